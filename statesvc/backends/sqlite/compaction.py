"""Cutting the log at its front, and giving space back to the file system: a little at a time, while serving.

Owns what may go and how much of it goes in one slice. Must not know how work reaches the file's own threads.

A commit that comes in the middle of a slice waits for its end, so a slice is short. What the log no longer has cannot
be replayed any more, so only what the state has safely on the disk is ever cut.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from statesvc_client.errors import NoSpace

from ... import failpoints
from ..port import LogKept
from .files import DatabaseFile, damage_told, is_full_disk, transaction
from .log import End, LogFile
from .paths import Paths
from .state import StateFile
from .wal import synced_salts, wal_of

SLICE_SECONDS = 0.004
"""After this much time a slice takes nothing new in hand."""

CUT_BATCHES = 256
CUT_BYTES = 512 * 1024
"""What is cut off the log in one slice, whichever comes first, but at least one batch."""

TRIM_ROWS = 1000
"""Rows of the history that one slice looks at."""

VACUUM_PAGES = 16
"""Pages given back between two looks at the clock."""

SPARE_PAGES = 256
SPARE_PART = 8
"""Free pages a file may keep for what comes next: so many, or so small a part of it. Giving back every page only to
take it again would write twice."""

LONG_WAL_BYTES = 32 * 1024 * 1024
"""A WAL file that was once this long and is not needed any more is cut short."""

NO_ROOM = "the disk is full: the log cannot be cut"


class Step(NamedTuple):
    """What a slice led to."""

    more: bool = False
    """There is more of the same to do."""
    waits: bool = False
    """More could go, were it safely in the state."""


Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does something in a file's own thread."""


class Compaction:
    """Goes about it step by step."""

    def __init__(self, log: LogFile, state: StateFile, paths: Paths, in_log: Run, in_state: Run) -> None:
        self._log = log
        self._state = state
        self._paths = paths
        self._run_in_log = in_log
        self._run_in_state = in_state
        self._trim: HistoryTrim | None = None
        self._upto: int | None = None
        """Where the log ended when the run of steps under way began: what came since is left to the next run, so that
        each comes to an end, however fast others write."""

    async def step(self, keep: LogKept, catch_up: Callable[[], Awaitable[None]]) -> bool:
        """Do a little of what is most urgent; True while there is more. `catch_up` brings the state up to the log."""
        upto = self._upto = self._log.end.position if self._upto is None else self._upto
        more = False
        try:
            more = await self._little(keep, upto, catch_up)
        finally:
            if not more:
                self._upto = None  # also when it failed: what can be done all the same must not end there for ever
        return more

    async def _little(self, keep: LogKept, upto: int, catch_up: Callable[[], Awaitable[None]]) -> bool:
        if await self._cut(keep, upto, catch_up) or await self._in_state(self._trim_history):
            return True
        log_shrinks = await self._in_log(lambda: shrink(self._log, self._paths.log))
        state_shrinks = await self._in_state(lambda: shrink(self._state, self._paths.state))
        return bool(log_shrinks or state_shrinks)

    async def _in_log(self, work: Callable[[], Any]) -> Any:
        with damage_told(self._paths.log):
            return await self._run_in_log(work)

    async def _in_state(self, work: Callable[[], Any]) -> Any:
        try:
            with damage_told(self._paths.state):
                return await self._run_in_state(work)
        except apsw.Error as problem:
            if not is_full_disk(problem):
                raise
            # Also where only the index of its WAL cannot grow: whatever became of it, the log has it too.
            raise NoSpace(NO_ROOM) from None

    async def _cut(self, keep: LogKept, upto: int, catch_up: Callable[[], Awaitable[None]]) -> bool:
        step = await self._in_log(lambda: cut(self._log, keep, upto, self._state.secured))
        if step.waits:
            await catch_up()
            return await self._secure()
        return bool(step.more)

    async def _secure(self) -> bool:
        """Put what is applied onto the disk, most of it beside the thread that applies; whether that led on."""
        before = self._state.secured
        await asyncio.to_thread(synced_salts, self._paths.state)
        await self._in_state(self._state.secure)
        return self._state.secured > before

    def _trim_history(self) -> bool:
        if self._trim is None:
            self._trim = HistoryTrim(self._state, self._paths.log)
        return self._trim.slice(self._log.start.position, self._log.end.position)


# --- the log -------------------------------------------------------------------------------------------------------


def cut(log: LogFile, keep: LogKept, upto: int, secured: int) -> Step:
    """Take a slice off the front of the log. The newest batch always stays: the chain hangs on it."""
    going, step = _front(log, keep, min(upto, log.end.position - 1), secured)
    if going is not None:
        with transaction(log.db):
            log.db.execute("DELETE FROM batch WHERE first <= ?", (going.start.position,))
            log.db.executemany("UPDATE fact SET value = ? WHERE name = ?", going.facts())
            if failpoints.armed:
                failpoints.reach("compaction.inside")
        log.start = going.start
        log.written()
    return step


class _Front(NamedTuple):
    """Where the kept part of the log is to begin."""

    start: End
    total: int
    visible: int

    def facts(self) -> list[tuple[int | bytes, str]]:
        return [
            (self.start.position, "start"),
            (self.start.digest, "start_digest"),
            (self.total, "start_total"),
            (self.visible, "start_visible"),
        ]


def _front(log: LogFile, keep: LogKept, upto: int, secured: int) -> tuple[_Front | None, Step]:
    """What the next slice cuts off, if anything, and whether more follows."""
    overtaken = _overtaken(log.db, keep.since)
    begin = before = int(log.db.execute("SELECT value FROM fact WHERE name = 'start_total'").get or 0)
    front: _Front | None = None
    for first, entries, at, total, visible, digest in log.db.execute(
        "SELECT first, entries, at, total, visible, digest FROM batch WHERE first > ? ORDER BY first LIMIT ?",
        (log.start.position, CUT_BATCHES),
    ):
        last = first + entries - 1
        is_old = at < keep.since or first <= overtaken
        if last > upto or not (is_old or log.total - before > keep.most_bytes):
            return front, Step()
        if last > secured:
            return front, Step(waits=True)
        if front is not None and total - begin > CUT_BYTES:
            return front, Step(more=True)
        front, before = _Front(End(last, digest), total, visible), total
    return front, Step(more=front is not None)


def _overtaken(db: apsw.Connection, since: int) -> int:
    """A batch before which everything is old, whatever the clock said: one that is old itself came after it."""
    row = db.execute("SELECT first FROM batch WHERE back AND at < ? ORDER BY at DESC LIMIT 1", (since,)).get
    return 0 if row is None else int(row)


# --- the state -----------------------------------------------------------------------------------------------------


class HistoryTrim:
    """Takes out of the state's history what the log no longer has, walking it from one end to the other."""

    def __init__(self, state: StateFile, log_path: Path) -> None:
        self._state = state
        self._log_path = log_path
        self._place = (0, 0)
        self._upto = 0
        """Entries up to here go in the walk under way; 0 between walks."""
        found = state.db.execute("SELECT value FROM fact WHERE name = 'trimmed'").get
        self._trimmed = int(found or 0)

    def slice(self, start: int, end: int) -> bool:
        """One slice; True while the walk goes on. A walk begins when it takes out a fair part of what it walks."""
        if not self._upto:
            stale = start - self._trimmed
            if stale <= 0 or stale * SPARE_PART < end - self._trimmed:
                return False
            # At level os the cut may not be on the disk: what the log has after a power loss, the history must have.
            synced_salts(self._log_path)
            self._upto = start
        self._walk()
        return bool(self._upto)

    def _walk(self) -> None:
        db = self._state.db
        rows: list[Any] = db.execute(
            "SELECT record, position FROM history WHERE (record, position) > (?, ?) ORDER BY record, position LIMIT ?",
            (*self._place, TRIM_ROWS),
        ).fetchall()
        with transaction(db):
            db.executemany(
                "DELETE FROM history WHERE record = ? AND position = ?",
                [(record, position) for record, position in rows if position <= self._upto],
            )
            if len(rows) < TRIM_ROWS:
                self._note()
        self._state.written()
        if len(rows) < TRIM_ROWS:
            self._place, self._trimmed, self._upto = (0, 0), self._upto, 0
        else:
            self._place = rows[-1]

    def _note(self) -> None:
        self._state.db.execute(
            "INSERT INTO fact VALUES ('trimmed', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (self._upto,),
        )


# --- space ---------------------------------------------------------------------------------------------------------


def shrink(file: DatabaseFile, path: Path) -> bool:
    """Give free pages back, or cut a long WAL short; True while there is more to give."""
    if not _has_too_many_free_pages(file.db):
        if _has_long_wal(path):
            file.shorten_wal()
        return False
    until = time.monotonic() + SLICE_SECONDS
    with transaction(file.db):  # one transaction: what is moved is synced once
        while _has_too_many_free_pages(file.db) and time.monotonic() < until:
            # SQLite moves a page with every step, and it is the reading of its rows that makes the steps.
            file.db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    file.written()
    return _has_too_many_free_pages(file.db) or _has_long_wal(path)


def _has_too_many_free_pages(db: apsw.Connection) -> bool:
    if db.pragma("auto_vacuum") != 2:  # a file made before pages could be given back: they are used again
        return False
    return bool(db.pragma("freelist_count") > max(SPARE_PAGES, db.pragma("page_count") // SPARE_PART))


def _has_long_wal(path: Path) -> bool:
    try:
        return os.stat(wal_of(path)).st_size > LONG_WAL_BYTES
    except FileNotFoundError:
        return False
