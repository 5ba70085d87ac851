"""The data folder: made if need be, and safe to keep a store in.

Owns who may have access to it. Must not know what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...process.errors import UnsafePath


def make_safe_folder(folder: Path) -> None:
    """Make the folder unless it is there; raises when somebody else could change what is in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UnsafePath(str(folder), f"the data folder cannot be made: {error.strerror}") from None
    found = folder.lstat()
    if not folder.is_dir() or folder.is_symlink():
        raise UnsafePath(str(folder), "the data folder must be a folder, not a link to one")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafePath(str(folder), f"the data folder belongs to uid {found.st_uid}")
    if found.st_mode & 0o022:
        raise UnsafePath(str(folder), "others may write to the data folder: chmod go-w")
