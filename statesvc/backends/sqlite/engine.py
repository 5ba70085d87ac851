"""The sqlite engine: commits go to the log, the state follows within its bound, reads see both.

Owns the threads, the hand-over between them and what is in memory. Must not know rules; SQL is in log.py and state.py.

    loop          decides who waits: checks conditions, holds what is committed but not applied, serves single rows
    commit thread appends batches to log.db, one at a time; what arrives meanwhile is the next batch
    apply thread  writes what was committed to state.db, in large batches, behind the log
    readers       run queries on state.db, after everything committed before the query has been applied

Rows travel fresh -> applying -> cache. Looking one up goes the same way, then to disk.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from statesvc_client.errors import Internal, NoSpace, StateError, Unavailable

from ... import logs
from ...process.errors import UnsafePath
from ...process.locks import InstanceLock
from ..ordering import Index, index_name, place_of
from ..port import Engine, EngineBroken, Key, LogEntry, Query, Result, Row, Unit, Write
from . import watermark
from .cache import RowCache, Waiting
from .files import unreadable
from .log import Change, End, read_entries
from .opening import Files, Paths, open_files, problems
from .state import StateReader
from .watermark import Watermark
from .workers import ReaderPool, Worker

log = logs.get(__name__)

APPLY_AT_ENTRIES = 4096
"""Entries that are applied at once when they have gathered; fewer wait a quarter of the time bound."""

MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Rows in memory that the state does not have yet, by their size; then commits wait, as they do for their number."""

RETRY_SECONDS = 1.0
"""Pause before the state is applied again after the disk was full."""

DISK_FULL = "the disk is full: the write was not taken; free some space and send it again"

SYNCHRONOUS = {"disk": "FULL", "os": "NORMAL"}


class SqliteEngine(Engine):
    """Two files in a folder of its own."""

    name = "sqlite"
    immediate = True

    def __init__(
        self,
        folder: Path,
        *,
        durability: str = "disk",
        cache_bytes: int = 32 * 1024 * 1024,
        apply_entries: int = 50_000,
        apply_seconds: float = 1.0,
        idle_seconds: float = 1.0,
    ) -> None:
        self.durability = durability
        self.epoch = ""
        self._paths = Paths.below(Path(folder))
        self._lock = InstanceLock(str(self._paths.folder / "lock"))
        self._apply_entries = apply_entries
        self._apply_seconds = apply_seconds
        self._idle_seconds = idle_seconds
        self._cache = RowCache(cache_bytes)
        self._fresh = Waiting()
        self._applying = Waiting()
        self._committing = asyncio.Lock()
        self._apply_under_way = False
        self._apply_timer: asyncio.TimerHandle | None = None
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_commit = 0.0
        self._marked = -1
        self._broken: EngineBroken | None = None
        self._stuck = False
        """The disk is full: the state cannot follow the log for now."""
        self._opening: asyncio.Future[Files] | None = None
        self._stopped = threading.Event()
        self._is_open = False

    # --- open and close --------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Make the folder if need be, and be the only one in it."""
        folder = self._paths.folder
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
        if not self._lock.held:
            self._lock.acquire()

    async def open(self) -> None:
        self.own()
        self._loop = asyncio.get_running_loop()
        opening = asyncio.to_thread(open_files, self._paths, SYNCHRONOUS[self.durability], self._stopped)
        self._opening = asyncio.ensure_future(opening)
        # A stop during a long replay cancels us, not the thread: close() waits for it before it gives up the folder.
        self._files = await asyncio.shield(self._opening)
        self.epoch = self._files.log.epoch
        self._committed = self._files.log.end
        self._reader = StateReader(self._paths.state)
        self._committer = Worker("statesvc-commit")
        self._applier = Worker("statesvc-apply")
        self._readers = ReaderPool(self._paths.state)
        self._is_open = True
        self._watch_for_idleness()

    async def close(self) -> None:
        """Apply everything, note the end of the log, let go."""
        for timer in (self._apply_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        if self._is_open:
            await self._close_files()
            self._is_open = False
        elif self._opening is not None:
            self._stopped.set()
            (files,) = await asyncio.gather(self._opening, return_exceptions=True)
            if isinstance(files, Files):
                files.abandon()
        self._lock.release()

    async def _close_files(self) -> None:
        try:
            if self._broken is None:
                await self._everything_applied()
        except StateError as problem:
            log.warning("state_behind_at_close", why=problem.text)
        self._readers.close()
        self._reader.close()
        for worker, finish in ((self._applier, self._close_state), (self._committer, self._close_log)):
            await asyncio.wrap_future(worker.submit(finish))
            worker.stop()

    def _close_state(self) -> None:
        self._closing(self._files.state.close, self._files.state.abandon)

    def _close_log(self) -> None:
        def close() -> None:
            self._files.log.close()
            self._mark_end()

        self._closing(close, self._files.log.abandon)

    def _closing(self, close: Callable[[], None], abandon: Callable[[], None]) -> None:
        if self._broken is not None:
            abandon()
            return
        try:
            close()
        except (apsw.Error, OSError) as problem:
            log.warning("closing_failed", why=str(problem))

    async def ping(self) -> None:
        self._check_usable()
        self._read_row(("", ""))

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the store failed and must be restarted: {self._broken}", outcome="not_applied")
        if not self._is_open:
            raise Unavailable("the store is not open")

    # --- reading ---------------------------------------------------------------------------------------------------

    def peek(self, key: Key) -> Row | None:
        row = self._fresh.rows.get(key) or self._applying.rows.get(key)
        if row is not None:
            return row
        known, cached = self._cache.find(key)
        if known:
            return cached
        self._check_usable()
        row = self._read_row(key)
        self._cache.put(key, row)
        return row

    def _read_row(self, key: Key) -> Row | None:
        try:
            return self._reader.row(key)
        except apsw.Error as problem:
            raise unreadable(self._paths.state, problem) from None

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self.peek(key) for key in keys]

    async def query(self, query: Query) -> list[Row]:
        await self._ready_for(query)
        if not self._stuck:
            return await self._readers.run(lambda reader: reader.query(query))
        return await self._query_both(query)

    async def count(self, query: Query) -> int:
        await self._ready_for(query)
        if not self._stuck:
            return await self._readers.run(lambda reader: reader.count(query))
        return await super().count(query)

    async def _ready_for(self, query: Query) -> None:
        """The index the query walks is there, and the state has all that was committed before the query."""
        self._check_usable()
        if self._files.state.needs_index(query):
            await self._in_applier(lambda: self._files.state.make_index(query.sort))
        await self._everything_applied()

    async def _query_both(self, query: Query) -> list[Row]:
        """While the disk is full: what the state has, with what it could not take laid over it."""
        waiting = {**self._applying.rows, **self._fresh.rows}
        index = Index(index_name(query))
        for row in waiting.values():
            if row.kind == query.kind and not row.deleted:
                index.add(row)
        ahead = [waiting[query.kind, place[-1]] for place in islice(index.walk(query), query.limit)]
        wider = msgspec.structs.replace(query, limit=query.limit + len(waiting))
        stored = await self._readers.run(lambda reader: reader.query(wider))
        rows = [row for row in stored if row.key not in waiting] + ahead
        rows.sort(key=lambda row: place_of(row, query), reverse=query.descending)
        return rows[: query.limit]

    async def position(self) -> int:
        return self._committed.position

    async def read_log(self, after: int, limit: int) -> list[LogEntry]:
        self._check_usable()
        try:
            return await asyncio.to_thread(read_entries, self._paths.log, after, limit)
        except apsw.Error as problem:
            raise unreadable(self._paths.log, problem) from None

    async def _in_applier(self, work: Callable[[], Any]) -> None:
        try:
            await asyncio.wrap_future(self._applier.submit(work))
        except apsw.FullError:
            raise NoSpace("the disk is full") from None
        except apsw.Error as problem:
            raise Internal(f"state.db cannot be written: {problem}") from None

    # --- committing ------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        # One after the other: a batch is judged on what the one before it left.
        async with self._committing:
            self._check_usable()
            await self._room()
            results, accepted, relabel = self._judge(batch)
            if accepted:
                changes = [Change(write.event, write.row) for write in accepted]
                self._committed = await self._append(changes)
                # Only now: an apply that begins while the log is written must not look for rows not there yet.
                self._last_commit = time.monotonic()
                self._fresh.take((write.row for write in accepted), relabel, self._last_commit)
                self._plan_apply()
                self._watch_for_idleness()
        return results

    def _judge(self, batch: Sequence[Unit]) -> tuple[list[Result], list[Write], set[Key]]:
        """Which units meet a state that is still the one they were decided on, those before them included."""
        staged: dict[Key, Row] = {}
        accepted: list[Write] = []
        relabel: set[Key] = set()
        results: list[Result] = []
        for unit in batch:
            stored = [staged.get(write.row.key) or self.peek(write.row.key) for write in unit]
            held = all(
                (None if row is None else row.stamp) == write.expects for row, write in zip(stored, unit, strict=True)
            )
            results.append("applied" if held else "conflict")
            if held:
                accepted += unit
                for row, write in zip(stored, unit, strict=True):
                    staged[write.row.key] = write.row
                    if _labels_differ(row, write.row):
                        relabel.add(write.row.key)
        return results, accepted, relabel

    async def _append(self, changes: list[Change]) -> End:
        try:
            return await asyncio.wrap_future(self._committer.submit(lambda: self._files.log.append(changes)))
        except apsw.FullError:
            raise NoSpace(DISK_FULL) from None
        except apsw.Error as problem:
            # After a failed write or fsync nobody knows what is on the disk: no second try, no acknowledgement.
            self._break(f"log.db failed: {problem}")
            raise Internal("the disk failed; whether the write was taken is not known", outcome="unknown") from None

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = EngineBroken(why)
            self._wake_waiters(self._committed.position)
            self.broke(self._broken)

    # --- applying --------------------------------------------------------------------------------------------------

    async def _room(self) -> None:
        """Commits wait while the state is too far behind the log."""
        while self._too_far_behind():
            if self._stuck:
                raise NoSpace(DISK_FULL)
            self._start_apply()
            await self._next_applied()

    def _too_far_behind(self) -> bool:
        fresh, applying = self._fresh, self._applying
        if fresh.entries + applying.entries >= self._apply_entries:
            return True
        if fresh.bytes + applying.bytes >= MOST_WAITING_BYTES:
            return True
        late = bool(fresh.rows) and time.monotonic() - fresh.since > self._apply_seconds
        return late and self._apply_under_way

    def _plan_apply(self) -> None:
        if self._fresh.entries >= APPLY_AT_ENTRIES or self._applied_waiters:
            self._start_apply()
        elif self._apply_timer is None:
            self._apply_timer = self._loop.call_later(self._apply_seconds / 4, self._start_apply)

    def _start_apply(self) -> None:
        if self._apply_timer is not None:
            self._apply_timer.cancel()
            self._apply_timer = None
        if self._apply_under_way or not self._fresh.rows or self._broken is not None:
            return
        self._apply_under_way = True
        self._applying, self._fresh = self._fresh, Waiting()
        self._loop.create_task(self._apply(self._applying, self._committed))

    async def _apply(self, waiting: Waiting, upto: End) -> None:
        rows, state = waiting.rows, self._files.state
        while True:
            try:
                await asyncio.wrap_future(self._applier.submit(lambda: state.apply(rows, waiting.relabel, upto)))
            except apsw.FullError:
                # The log has it, so nothing is lost; reads see it in memory until there is space again.
                log.warning("disk_full", file="state.db", behind=len(rows))
                self._stuck = True
                self._wake_waiters(self._committed.position)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the state can no longer follow
                self._break(f"state.db failed: {problem}")
                break
            else:
                self._stuck = False
                self._cache.adopt(rows, waiting.bytes)
                break
        self._applied(upto)

    def _applied(self, upto: End) -> None:
        if self._broken is None:
            self._applying = Waiting()
        self._apply_under_way = False
        self._wake_waiters(self._committed.position if self._broken is not None else upto.position)
        if self._fresh.rows and self._broken is None:
            self._plan_apply()

    def _wake_waiters(self, upto: int) -> None:
        waiters, self._applied_waiters = self._applied_waiters, []
        for position, waiter in waiters:
            if position > upto:
                self._applied_waiters.append((position, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def _next_applied(self) -> None:
        """Wait for the apply under way to end."""
        await self._applied_at(0)

    async def _everything_applied(self) -> None:
        """Wait until the state has all that was committed before this call, or is known not to get it for now."""
        if (self._fresh.rows or self._apply_under_way) and not self._stuck:
            await self._applied_at(self._committed.position)

    async def _applied_at(self, position: int) -> None:
        self._check_usable()
        waiter = self._loop.create_future()
        self._applied_waiters.append((position, waiter))
        self._start_apply()
        await waiter
        self._check_usable()

    # --- idleness --------------------------------------------------------------------------------------------------

    def _watch_for_idleness(self) -> None:
        if self._idle_timer is None and self._committed.position != self._marked:
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._look_for_idleness)

    def _look_for_idleness(self) -> None:
        """A store nobody writes to for a moment gets its watermark."""
        self._idle_timer = None
        if self._broken is not None or self._committed.position == self._marked:
            return
        wait = self._last_commit + self._idle_seconds - time.monotonic()
        if wait > 0:
            self._idle_timer = self._loop.call_later(wait, self._look_for_idleness)
        else:
            self._committer.submit(self._settle)

    def _settle(self) -> None:
        try:
            self._files.log.settle()
            self._mark_end()
        except apsw.IOError as problem:
            # What was to be moved out of the WAL may be lost from the file: no second try on it.
            self._loop.call_soon_threadsafe(self._break, f"log.db failed: {problem}")
        except (apsw.Error, OSError) as problem:
            log.warning("watermark_not_written", why=str(problem))

    def _mark_end(self) -> None:
        end = self._files.log.end
        watermark.write(self._paths.watermark, Watermark.of(self.epoch, end.position, end.digest))
        self._marked = end.position

    # --- checking --------------------------------------------------------------------------------------------------

    async def check(self) -> list[str]:
        await self._everything_applied()
        return await asyncio.to_thread(problems, self._paths, self._files.log.start)


def _labels_differ(before: Row | None, after: Row) -> bool:
    """Whether the label index has to follow."""
    old = () if before is None else (before.keys.labels, before.keys.created)
    new = (after.keys.labels, after.keys.created)
    return old != new and bool(after.keys.labels or (before is not None and before.keys.labels))
