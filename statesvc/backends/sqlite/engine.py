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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw

from statesvc_client.errors import Internal, NoSpace, Unavailable

from ... import logs
from ...process.errors import UnsafePath
from ...process.locks import InstanceLock
from ..port import DataCorrupt, Engine, EngineBroken, Key, LogEntry, Query, Result, Row, Unit, Write
from . import watermark
from .cache import RowCache, cost
from .files import open_reader, refuse_newer
from .log import FORMAT as LOG_FORMAT
from .log import Change, End, LogFile, digest_at, read_batches, read_entries
from .state import FORMAT as STATE_FORMAT
from .state import StateFile, StateReader
from .watermark import Watermark

log = logs.get(__name__)

READERS = 2
"""Threads for queries: one more than the cores would only add waiting."""

APPLY_AT_ENTRIES = 4096
"""Entries that are applied at once when they have gathered; fewer wait a quarter of the time bound."""

REPLAY_ENTRIES = 20_000
"""Entries replayed in one transaction: bounded memory whatever the log holds."""

RETRY_SECONDS = 1.0
"""Pause before the state is applied again after the disk was full."""

SYNCHRONOUS = {"disk": "FULL", "os": "NORMAL"}


class Worker:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            try:
                future.set_result(task())
            except BaseException as problem:  # noqa: BLE001 - it belongs to whoever waits for the future
                future.set_exception(problem)

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()


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
        self._folder = Path(folder)
        self._lock = InstanceLock(str(self._folder / "lock"))
        self._apply_entries = apply_entries
        self._apply_seconds = apply_seconds
        self._idle_seconds = idle_seconds
        self._cache = RowCache(cache_bytes)
        self._fresh: dict[Key, Row] = {}
        self._fresh_bytes = 0
        self._fresh_entries = 0
        self._fresh_since = 0.0
        self._relabel: set[Key] = set()
        self._applying: dict[Key, Row] = {}
        self._applying_entries = 0
        self._apply_under_way = False
        self._apply_timer: asyncio.TimerHandle | None = None
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_commit = 0.0
        self._marked = -1
        self._broken: EngineBroken | None = None
        self._is_open = False

    # --- open and close --------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Make the folder if need be, and be the only one in it."""
        folder = self._folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not folder.is_dir() or folder.is_symlink():
            raise UnsafePath(str(folder), "the data folder must be a folder, not a link to one")
        if found.st_uid not in (os.geteuid(), 0):
            raise UnsafePath(str(folder), f"the data folder belongs to uid {found.st_uid}")
        if not self._lock.held:
            self._lock.acquire()

    async def open(self) -> None:
        self.own()
        self._loop = asyncio.get_running_loop()
        self._committer = Worker("statesvc-commit")
        self._applier = Worker("statesvc-apply")
        try:
            await asyncio.wrap_future(self._applier.submit(self._open_files))
        except apsw.Error as problem:
            raise self._open_failure(problem) from None
        finally:
            if not hasattr(self, "_reader"):
                self._committer.stop()
                self._applier.stop()
        self._readers = ThreadPoolExecutor(READERS, "statesvc-read")
        self._thread_reader = threading.local()
        self._is_open = True

    def _open_files(self) -> None:
        """Open both files, check that they belong together, bring the state up to the log."""
        paths = {name: self._folder / name for name in ("log.db", "state.db", "watermark")}
        refuse_newer(paths["log.db"], LOG_FORMAT)
        refuse_newer(paths["state.db"], STATE_FORMAT)
        mark = watermark.read(paths["watermark"])
        if not paths["log.db"].exists() and (mark is not None or paths["state.db"].exists()):
            raise DataCorrupt(f"{paths['log.db']} is missing, but other files of the store are there: bring it back")
        self._log = LogFile(paths["log.db"], SYNCHRONOUS[self.durability])
        self.epoch = self._log.epoch
        self._check_tail(mark, paths)
        self._state = StateFile(paths["state.db"], self._log.epoch, self._log.start)
        self._replay()
        watermark.sync_folder(self._folder)
        self._committed = self._log.end
        self._reader = StateReader(paths["state.db"])

    def _check_tail(self, mark: Watermark | None, paths: dict[str, Path]) -> None:
        """A log that was closed or idle must still have what the watermark names."""
        if mark is None:
            return
        log_path = paths["log.db"]
        if mark.epoch != self._log.epoch:
            raise DataCorrupt(f"{log_path} and the watermark beside it belong to different stores")
        if mark.position > self._log.end.position:
            raise DataCorrupt(
                f"{log_path} ends at entry {self._log.end.position}, but entry {mark.position} was safely in it: "
                "its tail is lost; bring back a copy"
            )
        reader = open_reader(log_path)
        try:
            found = digest_at(reader, mark.position, self._log.start)
        finally:
            reader.close()
        if mark.position > self._log.start.position and (found is None or found.hex() != mark.digest):
            raise DataCorrupt(f"{log_path}: entry {mark.position} is not the one the watermark names")
        self._marked = mark.position

    def _replay(self) -> None:
        """Apply what the log has and the state has not."""
        state, applied = self._state, self._state.applied
        if applied.position > self._log.end.position:
            raise DataCorrupt(
                f"state.db has applied entry {applied.position}, but log.db ends at {self._log.end.position}: "
                "the log's tail is lost; bring back a copy"
            )
        rows: dict[Key, Row] = {}
        total = gathered = 0
        end = applied
        for end, changes in self._log.batches(self._verified(applied)):
            rows |= {change.row.key: change.row for change in changes}
            gathered += len(changes)
            total += len(changes)
            if gathered >= REPLAY_ENTRIES:
                state.apply(rows, list(rows), end)
                rows, gathered = {}, 0
        if rows:
            state.apply(rows, list(rows), end)
        if total:
            log.info("log_replayed", entries=total, position=end.position)

    def _verified(self, applied: End) -> End:
        """Where to go on from: the state and the log must agree on the digest there."""
        reader = open_reader(self._folder / "log.db")
        try:
            known = digest_at(reader, applied.position, self._log.start)
        finally:
            reader.close()
        if applied.position >= self._log.start.position and known != applied.digest:
            raise DataCorrupt(f"state.db and log.db disagree about entry {applied.position}")
        return applied

    def _open_failure(self, problem: apsw.Error) -> Exception:
        where = f"the store in {self._folder}"
        if isinstance(problem, (apsw.CorruptError, apsw.NotADBError)):
            return DataCorrupt(f"{where} is damaged: {problem}")
        if isinstance(problem, apsw.FullError):
            return NoSpace(f"{where} cannot be opened: the disk is full")
        return EngineBroken(f"{where} cannot be opened: {problem}")

    async def close(self) -> None:
        """Apply everything, note the end of the log, let go."""
        for timer in (self._apply_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        if self._is_open:
            self._is_open = False
            await self._close_files()
        self._lock.release()

    async def _close_files(self) -> None:
        try:
            if self._broken is None:
                await self._everything_applied()
                await asyncio.wrap_future(self._applier.submit(self._state.close))
                await asyncio.wrap_future(self._committer.submit(self._close_log))
            else:
                self._state.abandon()
                self._log.abandon()
        except (apsw.Error, Unavailable) as problem:
            log.warning("closing_failed", why=str(problem))
        self._readers.shutdown()
        self._reader.close()
        self._committer.stop()
        self._applier.stop()

    def _close_log(self) -> None:
        self._log.close()
        self._mark_end()

    async def ping(self) -> None:
        self._check_usable()

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the store failed and must be restarted: {self._broken}", outcome="not_applied")
        if not self._is_open:
            raise Unavailable("the store is not open")

    # --- reading ---------------------------------------------------------------------------------------------------

    def peek(self, key: Key) -> Row | None:
        row = self._fresh.get(key) or self._applying.get(key)
        if row is not None:
            return row
        known, cached = self._cache.find(key)
        if known:
            return cached
        self._check_usable()
        try:
            row = self._reader.row(key)
        except apsw.Error as problem:
            raise Internal(f"state.db cannot be read: {problem}") from None
        self._cache.put(key, row)
        return row

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self.peek(key) for key in keys]

    async def query(self, query: Query) -> list[Row]:
        if self._state.needs_index(query):
            await self._in_applier(lambda: self._state.make_index(query.sort))
        await self._everything_applied()
        rows: list[Row] = await self._in_reader(lambda reader: reader.query(query))
        return rows

    async def position(self) -> int:
        return self._committed.position

    async def read_log(self, after: int, limit: int) -> list[LogEntry]:
        self._check_usable()
        return await self._loop.run_in_executor(self._readers, self._read_entries, after, limit)

    def _read_entries(self, after: int, limit: int) -> list[LogEntry]:
        db = open_reader(self._folder / "log.db")
        try:
            return read_entries(db, after, limit)
        finally:
            db.close()

    async def _in_reader(self, read: Callable[[StateReader], Any]) -> Any:
        self._check_usable()

        def work() -> Any:
            reader = getattr(self._thread_reader, "reader", None)
            if reader is None:
                reader = self._thread_reader.reader = StateReader(self._folder / "state.db")
            return read(reader)

        try:
            return await self._loop.run_in_executor(self._readers, work)
        except apsw.Error as problem:
            raise Internal(f"state.db cannot be read: {problem}") from None

    async def _in_applier(self, work: Callable[[], Any]) -> None:
        try:
            await asyncio.wrap_future(self._applier.submit(work))
        except apsw.FullError:
            raise NoSpace("the disk is full") from None
        except apsw.Error as problem:
            raise Internal(f"state.db cannot be written: {problem}") from None

    # --- committing ------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        self._check_usable()
        await self._room()
        results, accepted = self._judge(batch)
        if accepted:
            changes = [Change(write.event, write.row) for write in accepted]
            self._committed = await self._append(changes)
            self._take_in(accepted)
        return results

    def _judge(self, batch: Sequence[Unit]) -> tuple[list[Result], list[Write]]:
        """Which units meet a state that is still the one they were decided on, those before them included."""
        staged: dict[Key, Row] = {}
        accepted: list[Write] = []
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
                    self._note_labels(row, write.row)
        return results, accepted

    def _note_labels(self, before: Row | None, after: Row) -> None:
        """The label index is touched only where labels changed: most writes leave them alone."""
        old = () if before is None else (before.keys.labels, before.keys.created)
        new = (after.keys.labels, after.keys.created)
        if old != new and (after.keys.labels or (before is not None and before.keys.labels)):
            self._relabel.add(after.key)

    async def _append(self, changes: list[Change]) -> End:
        try:
            return await asyncio.wrap_future(self._committer.submit(lambda: self._log.append(changes)))
        except apsw.FullError:
            raise NoSpace("the disk is full: the write was not taken; free some space and send it again") from None
        except apsw.Error as problem:
            # After a failed write or fsync nobody knows what is on the disk: no second try, no acknowledgement.
            self._break(f"log.db failed: {problem}")
            raise Internal("the disk failed; whether the write was taken is not known", outcome="unknown") from None

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = EngineBroken(why)
            self.broke(self._broken)

    def _take_in(self, accepted: list[Write]) -> None:
        if not self._fresh:
            self._fresh_since = time.monotonic()
        for write in accepted:
            self._fresh[write.row.key] = write.row
            self._fresh_bytes += cost(write.row)
        self._fresh_entries += len(accepted)
        self._last_commit = time.monotonic()
        self._plan_apply()
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._look_for_idleness)

    # --- applying --------------------------------------------------------------------------------------------------

    async def _room(self) -> None:
        """Commits wait while the state is too far behind the log."""
        while self._too_far_behind():
            self._start_apply()
            await self._next_applied()

    def _too_far_behind(self) -> bool:
        if self._fresh_entries + self._applying_entries >= self._apply_entries:
            return True
        late = bool(self._fresh) and time.monotonic() - self._fresh_since > self._apply_seconds
        return late and self._apply_under_way

    def _plan_apply(self) -> None:
        if self._fresh_entries >= APPLY_AT_ENTRIES or self._applied_waiters:
            self._start_apply()
        elif self._apply_timer is None:
            self._apply_timer = self._loop.call_later(self._apply_seconds / 4, self._start_apply)

    def _start_apply(self) -> None:
        if self._apply_timer is not None:
            self._apply_timer.cancel()
            self._apply_timer = None
        if self._apply_under_way or not self._fresh or self._broken is not None:
            return
        self._apply_under_way = True
        self._applying, self._fresh = self._fresh, {}
        self._applying_entries, self._fresh_entries = self._fresh_entries, 0
        size, self._fresh_bytes = self._fresh_bytes, 0
        relabel, self._relabel = self._relabel, set()
        self._loop.create_task(self._apply(self._applying, relabel, self._committed, size))

    async def _apply(self, rows: dict[Key, Row], relabel: set[Key], upto: End, size: int) -> None:
        while True:
            try:
                await asyncio.wrap_future(self._applier.submit(lambda: self._state.apply(rows, relabel, upto)))
            except apsw.FullError:
                # The log has it, so nothing is lost; reads see it in memory until there is space again.
                log.warning("disk_full", file="state.db", behind=len(rows))
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the state can no longer follow
                self._break(f"state.db failed: {problem}")
                break
            else:
                self._cache.adopt(rows, size)
                break
        self._applied(upto)

    def _applied(self, upto: End) -> None:
        if self._broken is None:
            self._applying, self._applying_entries = {}, 0
        self._apply_under_way = False
        waiters, self._applied_waiters = self._applied_waiters, []
        for position, waiter in waiters:
            if position <= upto.position or self._broken is not None:
                _wake(waiter)
            else:
                self._applied_waiters.append((position, waiter))
        if self._fresh and self._broken is None:
            self._plan_apply()

    async def _next_applied(self) -> None:
        """Wait for the apply under way to end."""
        await self._applied_at(0)

    async def _everything_applied(self) -> None:
        """Wait until the state has all that was committed before this call."""
        if self._fresh or self._apply_under_way:
            await self._applied_at(self._committed.position)

    async def _applied_at(self, position: int) -> None:
        waiter = self._loop.create_future()
        self._applied_waiters.append((position, waiter))
        self._start_apply()
        await waiter
        self._check_writable()

    def _check_writable(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the store failed and must be restarted: {self._broken}")

    # --- idleness --------------------------------------------------------------------------------------------------

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
            self._log.settle()
            self._mark_end()
        except (apsw.Error, OSError) as problem:
            log.warning("watermark_not_written", why=str(problem))

    def _mark_end(self) -> None:
        end = self._log.end
        watermark.write(self._folder / "watermark", Watermark(self.epoch, end.position, end.digest.hex()))
        self._marked = end.position

    # --- checking --------------------------------------------------------------------------------------------------

    async def check(self) -> list[str]:
        await self._everything_applied()
        return await self._loop.run_in_executor(self._readers, self._problems)

    def _problems(self) -> list[str]:
        reader = StateReader(self._folder / "state.db")
        db = open_reader(self._folder / "log.db")
        try:
            found = [f"log.db: {text}" for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
            return found + list(reader.problems()) + self._differences(db, reader)
        except DataCorrupt as corrupt:
            return [str(corrupt)]
        finally:
            reader.close()
            db.close()

    def _differences(self, db: apsw.Connection, reader: StateReader) -> list[str]:
        """Where the state is not what the kept log leads to."""
        newest: dict[Key, Row] = {}
        for _, changes in read_batches(db, self._folder / "log.db", self._log.start, self._log.start):
            newest |= {change.row.key: change.row for change in changes}
        return [
            f"state.db: {kind} {name} is not what the log says"
            for (kind, name), row in newest.items()
            if reader.row((kind, name)) != row
        ]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
