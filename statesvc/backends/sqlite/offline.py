"""Checking and repairing a store that no daemon has open.

Owns the order of it: lock, open, look, repair, close. Must not know what a fault is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import apsw

from ...process.locks import InstanceLock
from ..port import DataCorrupt, EngineBroken
from .checking import damaged_page, faults, problems
from .files import in_words, is_full_disk
from .folder import refuse_strangers
from .opening import SYNCHRONOUS, Files, open_files
from .paths import Paths
from .repairing import repaired
from .salvaging import salvage


def check_folder(folder: Path, durability: str = "disk") -> list[str]:
    """What is inconsistent in the store of a folder, in words; empty when all is well."""
    with _owned(folder) as paths:
        try:
            with _opened(paths, durability):
                return problems(paths)
        except DataCorrupt as corrupt:
            return [str(corrupt)]


def repair_folder(folder: Path, durability: str = "disk") -> list[str]:
    """Make again what can be made again, and say so, a sentence each; what is lost is named among them.

    Raises `DataCorrupt` when the store cannot be made fit to be served, and then leaves the files as they were; and
    `EngineBroken` when it is the disk that fails.
    """
    with _owned(folder) as paths:
        done = []
        if (why := _unusable(paths, durability)) is not None:
            done.append(salvage(paths, SYNCHRONOUS[durability], why))
        with _opened(paths, durability) as files:
            found = faults(paths)
            return done + (repaired(files, paths, found) if found else [])


@contextmanager
def _owned(folder: Path) -> Iterator[Paths]:
    paths = Paths.below(folder)
    refuse_strangers(paths)
    if not any(path.exists() for path in (*paths.files, paths.incoming)):
        raise DataCorrupt(f"{folder} holds no store: there is neither log.db nor state.db in it")
    with InstanceLock(str(folder / "lock")):
        try:
            yield paths
        except (apsw.FullError, apsw.IOError, OSError) as problem:
            if is_full_disk(problem):
                raise EngineBroken(f"{folder}: the disk is full; free some space, then try again") from None
            why = problem.strerror if isinstance(problem, OSError) else in_words(problem)
            raise EngineBroken(f"{folder}: {why}; check the disk, then try again") from None


@contextmanager
def _opened(paths: Paths, durability: str) -> Iterator[Files]:
    files = open_files(paths, SYNCHRONOUS[durability], Event())
    try:
        yield files
    except BaseException:
        files.abandon()
        raise
    files.close()


def _unusable(paths: Paths, durability: str) -> str | None:
    """Why state.db cannot be used as it is; None when it can."""
    try:
        with _opened(paths, durability):
            return damaged_page(faults(paths))
    except DataCorrupt as corrupt:
        return str(corrupt)
