"""Onto the disk: files synced, small files replaced as a whole.

Owns that a small file is there as a whole or not at all, and that none whose sync failed is synced a second time. Must
not know what is in the files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ... import failpoints
from ...process.folders import sync_folder
from .paths import unfinished


def replace(path: Path, content: bytes) -> None:
    """Give a small file another content, onto the disk; after a crash either the old or the new one is there."""
    fresh = unfinished(path)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    except OSError:
        os.unlink(fresh)  # a file that could not be synced is never synced again: the next one is another
        raise
    finally:
        os.close(fd)
    if failpoints.armed:
        failpoints.reach("replace.inside")
    os.replace(fresh, path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
