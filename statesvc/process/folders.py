"""Folders: made for us alone, whatever the umask, and what is named in them brought onto the disk.

Owns the mode a new folder gets, and its sync. Does not know what is kept in one, nor whether an old one is safe.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make the folder, and whatever is missing above it, with mode 0700. One that is there is left as it is.

    Path.mkdir(parents=True) gives its mode to the last folder only and leaves the others to the umask: others could
    then take the whole of it away and put their own in its place.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk, as well as what they name."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
