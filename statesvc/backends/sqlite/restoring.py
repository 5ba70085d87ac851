"""A whole new store takes the place of the old one: wholly or not at all, whenever the process ends.

Owns the folders `incoming` and `restoring-TIME` inside the data folder. Must not know where the rows come from.

    restoring-TIME/      is being filled, while no daemon has the store; whoever has it next clears it away
    incoming/            is being filled; found at a start like this, it is cleared away: the old store stands
    incoming/complete    names the files that are whole and on the disk: from here on there is only the way forward,
                         now or at the next start
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from statesvc_client.errors import Internal, NoSpace

from ... import failpoints, logs
from ...process.folders import sync_folder
from .. import epoch_names
from ..port import DataCorrupt, Row
from .cache import Waiting
from .disk import sync_file
from .files import in_words, is_full_disk
from .log import Change, End, LogFile
from .paths import Paths, sides
from .state import StateFile
from .workers import Worker

log = logs.get(__name__)

FILL_ROWS = 5000
FILL_BYTES = 1024 * 1024
"""Rows written in one transaction, whichever comes first: bounded memory whatever there is to load."""

NO_ROOM = "the disk is full: old and new need room side by side; nothing was changed"

_COMPLETE = "complete"

_STAMP = "%Y%m%dT%H%M%SZ"
_RESTORING = re.compile(r"restoring-\d{8}T\d{6}Z")
"""By its whole name alone: what else people keep in the folder is theirs."""


class NewStore:
    """The store that is being filled: given rows under a new epoch, and a log that begins behind them."""

    def __init__(self, paths: Paths) -> None:
        clear(paths)
        paths.incoming.mkdir(mode=0o700)
        self._paths = Paths.below(paths.incoming)
        self._log = LogFile(self._paths.log, "FULL", new=True)
        self._state = StateFile(self._paths.state, self._log.epoch, self._log.start, new=True)
        self._waiting = Waiting()
        self._rows = 0
        self._highest_token = 0

    def add(self, rows: Sequence[Row]) -> None:
        changes = [Change(None, row) for row in rows]
        self._highest_token = max([self._highest_token, *(row.token for row in rows)])
        self._waiting.take(0, changes)
        self._rows += len(changes)
        if self._waiting.entries >= FILL_ROWS or self._waiting.bytes >= FILL_BYTES:
            self._write(self._log.start)

    def _write(self, upto: End) -> None:
        self._state.apply(self._waiting, upto)
        self._waiting = Waiting()
        if failpoints.armed:
            failpoints.reach("restore.inside")

    def close(self) -> None:
        """Everything there is, onto the disk. The log begins behind the rows: they cannot be made again from it."""
        start = End(max(1, self._rows), self._log.start.digest)
        self._write(start)
        epoch = epoch_names.following(self._log.epoch, self._highest_token)
        self._state.expect_epoch(epoch)
        self._log.begin_new_epoch(epoch, start)
        self._state.close()
        self._log.close()

    def abandon(self) -> None:
        for file in (self._state, self._log):
            try:
                file.abandon()
            except apsw.ConnectionClosedError:
                pass  # it was closed, or failed while it was being closed


class Incoming:
    """A new store on its way, written by a thread of its own."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._worker = Worker("statesvc-load")
        self._store: NewStore | None = None

    async def fill(self, rows: AsyncIterator[list[Row]]) -> None:
        self._store = store = await self._do(lambda: NewStore(self._paths))
        async for page in rows:
            await self._do(partial(store.add, page))
        await self._do(store.close)

    async def declare_complete(self) -> None:
        """From here on it takes the place of the old one."""
        await self._do(lambda: declare_complete(self._paths, self._paths.log, self._paths.state))
        self._worker.stop()

    def discard(self) -> None:
        """Clear it away, behind whatever the thread is still at."""
        cleared = self._worker.submit(self._clear)
        self._worker.stop()
        cleared.result()

    def _clear(self) -> None:
        if self._store is not None:
            self._store.abandon()
        clear(self._paths)

    async def _do(self, task: Callable[[], Any]) -> Any:
        try:
            return await self._worker.run(task)
        except (apsw.Error, OSError) as problem:
            if is_full_disk(problem):
                raise NoSpace(NO_ROOM) from None
            why = problem.strerror if isinstance(problem, OSError) else in_words(problem)
            raise Internal(f"the new store cannot be written: {why}") from None


# --- taking the place of the old one -------------------------------------------------------------------------------


def declare_complete(paths: Paths, *files: Path) -> None:
    """Say that the files of these names in `incoming` are to take their places."""
    for file in files:
        sync_file(paths.incoming / file.name)
    unnamed = paths.incoming / f"{_COMPLETE}.new"
    unnamed.write_text("\n".join(file.name for file in files))
    sync_file(unnamed)
    sync_folder(paths.incoming)
    sync_folder(paths.folder)
    os.replace(unnamed, paths.incoming / _COMPLETE)
    sync_folder(paths.incoming)
    if failpoints.armed:
        failpoints.reach("restore.complete")


def stamp() -> str:
    """What the folders of a restore without a daemon are told apart by."""
    return time.strftime(_STAMP, time.gmtime())


def restoring_at(paths: Paths, stamp: str) -> Path:
    """The folder of a restore without a daemon, which may not touch `incoming`: that may be half of the store."""
    return paths.folder / f"restoring-{stamp}"


def clear_restoring(paths: Paths) -> None:
    """Remove what restores without a daemon left that were killed. Whoever has the store's lock is alone with them."""
    with os.scandir(paths.folder) as entries:
        left = [each.path for each in entries if _RESTORING.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    for folder in left:
        log.warning("unfinished_restore_removed", folder=folder)
        shutil.rmtree(folder)


def finish(paths: Paths) -> None:
    """Bring to its end what was under way when the last process ended. Nobody may have the store open."""
    clear_restoring(paths)
    complete = paths.incoming / _COMPLETE
    if complete.exists():
        put_in_place(paths)
    elif paths.incoming.exists():
        if any(paths.incoming.iterdir()):
            log.warning("unfinished_restore_removed", folder=str(paths.incoming))
        clear(paths)


def clear(paths: Paths) -> None:
    """Remove what is in `incoming`; that it was complete is forgotten first, for half of it must never be taken."""
    if paths.incoming.exists():
        (paths.incoming / _COMPLETE).unlink(missing_ok=True)
        sync_folder(paths.incoming)
        shutil.rmtree(paths.incoming)


def _complete_files(paths: Paths) -> list[str]:
    """The names of the files that are complete: those of a restore, or of a repair. Nothing else was ever declared, and
    no part of the one is the other: what is damaged is noticed before anything is moved."""
    path = paths.incoming / _COMPLETE
    names = path.read_bytes().decode(errors="replace").split("\n")
    if names not in ([paths.log.name, paths.state.name], [paths.state.name]):
        raise DataCorrupt(f"{path} is damaged: it does not name the files of a store; bring back a copy of the folder")
    return names


def put_in_place(paths: Paths) -> None:
    """Let the files that are complete take their places. May end anywhere and be done again."""
    notes = {paths.log.name: (paths.watermark, paths.unsynced), paths.state.name: (paths.state_watermark,)}
    for name in _complete_files(paths):
        target = paths.folder / name
        # A WAL of the old file must never meet the new one, nor what was noted about it.
        for old in (*sides(target), *notes[name]):
            old.unlink(missing_ok=True)
        sync_folder(paths.folder)
        if (paths.incoming / name).exists():
            os.replace(paths.incoming / name, target)
            if failpoints.armed:
                failpoints.reach("restore.placing")
    sync_folder(paths.folder)
    sync_folder(paths.incoming)
    clear(paths)
    sync_folder(paths.folder)
    log.info("restore_finished", folder=str(paths.folder))
