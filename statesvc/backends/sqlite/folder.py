"""The data folder: made if need be, and safe to keep a store in.

Owns who may have access to it, and that its files lie in it. Must not know what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ...process.errors import UnsafePath
from ...process.folders import make_private
from ..port import Step
from .paths import Paths, sides


def prepared(folder: Path, *, dry_run: bool) -> Step:
    """How it stands with the folder; made unless it is there or this is a dry run."""
    was_there = os.path.lexists(folder)
    if was_there or not dry_run:
        make_safe_folder(folder)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise UnsafePath(str(folder), f"uid {os.geteuid()} may not read and write in the data folder")
    state: Literal["there", "made", "missing"] = "there" if was_there else "missing" if dry_run else "made"
    return Step(f"the folder {folder}", state, "nothing else is needed: the daemon makes its files in it")


def make_safe_folder(folder: Path) -> None:
    """Make the folder unless it is there; raises when somebody else could change what is in it."""
    try:
        make_private(folder)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UnsafePath(str(folder), f"the data folder cannot be made: {error.strerror}") from None
    found = folder.lstat()
    if not folder.is_dir() or folder.is_symlink():
        raise UnsafePath(str(folder), "the data folder must be a folder, not a link to one")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafePath(str(folder), f"the data folder belongs to uid {found.st_uid}")
    if found.st_mode & 0o022:
        raise UnsafePath(str(folder), "others may write to the data folder: chmod go-w")


def refuse_links(paths: Paths) -> None:
    """A database that is a link would have its WAL elsewhere, where nobody looks for it."""
    for database in (paths.log, paths.state):
        for file in (database, *sides(database)):
            if file.is_symlink():
                raise UnsafePath(str(file), "is a symbolic link; put the file itself there")
