"""The data folder: made if need be, and safe to keep a store in.

Owns who may have access to it, and that its files lie in it and are ours. Must not know what is in them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ...process.errors import UnsafePath
from ...process.folders import make_private
from ..port import Step
from .paths import Paths, unfinished

ROOT = 0
"""May own a folder that we keep files in; the files we make ourselves, and nobody else could have."""


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
    if found.st_uid not in (os.geteuid(), ROOT):
        raise UnsafePath(str(folder), f"the data folder belongs to uid {found.st_uid}")
    if found.st_mode & 0o022:
        raise UnsafePath(str(folder), "others may write to the data folder: chmod go-w")


def refuse_strangers(paths: Paths) -> None:
    """What has the name of a file of the store must be one, and ours. A database that is a link would have its WAL
    elsewhere, where nobody looks for it; whoever opens a pipe waits."""
    for file in (*paths.files, *map(unfinished, (paths.log, paths.state, *paths.notes))):
        _refuse_unless(file, stat.S_ISREG, "file", {os.geteuid()})
    _refuse_unless(paths.incoming, stat.S_ISDIR, "folder", {os.geteuid(), ROOT})


def _refuse_unless(path: Path, is_right: Callable[[int], bool], kind: str, owners: set[int]) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePath(str(path), f"is a symbolic link; put the {kind} itself there")
    if not is_right(found.st_mode):
        raise UnsafePath(str(path), f"is {_described(found.st_mode)}, not a {kind} of the store; move it away")
    if found.st_uid not in owners:
        raise UnsafePath(str(path), f"belongs to uid {found.st_uid}, not to uid {os.geteuid()} which runs this")


def _described(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a device, socket or pipe"
