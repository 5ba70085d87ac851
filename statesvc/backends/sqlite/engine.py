"""The sqlite engine: commits go to the log, the state follows within its bound, reads see both.

Owns the threads, the hand-over between them and what is in memory. Must not know rules; SQL is in log.py and state.py.

    loop          decides who waits: checks conditions, holds what is committed but not applied, serves single rows
    commit thread appends batches to log.db, one at a time; what arrives meanwhile is the next batch
    apply thread  writes what was committed to state.db, in large batches, behind the log
    readers       run queries on state.db, after everything committed before the query has been applied

A row that is committed is in the cache at once, and waits to be applied beside it. Looking one up asks the cache, then
what waits, for the cache may have dropped it meanwhile, then the disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from statesvc_client.errors import Internal, NoSpace, StateError, Unavailable

from ... import failpoints, logs
from ...process.locks import InstanceLock
from ..numbered import position_of
from ..port import (
    Cursor,
    DataCorrupt,
    Dump,
    Engine,
    EngineBroken,
    Key,
    LogEntry,
    LogKept,
    Query,
    Result,
    Row,
    Step,
    Unit,
)
from .applying import DISK_FULL, Applying
from .cache import UNKNOWN, RowCache, present
from .checking import Fault, damaged_page, faults, problems
from .compaction import NO_ROOM, Compaction
from .dumping import OpenDump
from .files import damage_told, in_words, is_damage, is_failing_disk, is_full_disk, unreadable
from .folder import make_safe_folder, prepared, refuse_strangers
from .judging import Judged, judge
from .log import Change, End
from .opening import LOG_CURE, SYNCHRONOUS, Files, end_of, open_files, state_cure
from .overlay import continued, laid_over, widened
from .paths import Paths, size_with_wal
from .presence import Presence
from .reading import ReadableLog
from .repairing import repaired
from .restoring import Incoming, put_in_place
from .salvaging import salvage
from .state import StateReader
from .workers import ReaderPool, Worker

log = logs.get(__name__)

Done = TypeVar("Done")

NO_ROOM_TO_REPAIR = "state.db cannot be repaired: the disk is full; free some space, then try again"


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
        self._cache_bytes = cache_bytes
        self._cache = RowCache(cache_bytes)
        self._committing = asyncio.Lock()
        self._tending = asyncio.Lock()
        """Held while something is done to the files as a whole."""
        self._loading = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_commit = 0.0
        self._marked = -1
        self._unsettled = ""
        """Why the watermark could not be written, as was told."""
        self._broken: EngineBroken | DataCorrupt | None = None
        self._opening: asyncio.Future[Files] | None = None
        self._stopped = threading.Event()
        self._is_open = False

    # --- open and close --------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Make the folder if need be, and be the only one in it."""
        make_safe_folder(self._paths.folder)
        refuse_strangers(self._paths)
        if not self._lock.held:
            self._lock.acquire()

    async def prepare(self, *, dry_run: bool) -> list[Step]:
        """All it needs is a folder that is safe to keep a store in."""
        return [prepared(self._paths.folder, dry_run=dry_run)]

    async def open(self) -> None:
        self.own()
        self._loop = asyncio.get_running_loop()
        opening = asyncio.to_thread(open_files, self._paths, SYNCHRONOUS[self.durability], self._stopped)
        self._opening = asyncio.ensure_future(opening)
        # A stop during a long replay cancels us, not the thread: close() waits for it before it gives up the folder.
        self._begin(await asyncio.shield(self._opening))

    def _begin(self, files: Files) -> None:
        self._files = files
        self._opening = None
        self.epoch = self._files.log.epoch
        self._committed = self._files.log.end
        self._reader = StateReader(self._paths.state)
        self._committer = Worker("statesvc-commit")
        self._applier = Worker("statesvc-apply")
        self._readers = ReaderPool(self._paths.state, StateReader)
        self._log = ReadableLog(self._paths.log, self._committed.position, self._files.log.visible)
        self._applying = Applying(
            files.state, self._applier, self._committed,
            most_entries=self._apply_entries, most_seconds=self._apply_seconds, failed=self._state_failed,
        )  # fmt: skip
        self._presence = Presence(self._readers.run, self._most_records, self._caught_up)
        self._compaction = Compaction(files.log, files.state, self._paths, self._committer.run, self._applier.run)
        self._is_open = True
        self._watch_for_idleness()

    async def close(self) -> None:
        """Apply everything, note the end of the log, let go."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        async with self._tending:
            if self._is_open:
                await self._close_files()
                self._is_open = False
        if self._opening is not None:
            self._stopped.set()
            (files,) = await asyncio.gather(self._opening, return_exceptions=True)
            if isinstance(files, Files):
                files.abandon()
        self._lock.release()

    async def _close_files(self) -> None:
        await self._applying.everything()
        if self._applying.entries:
            log.warning("state_behind_at_close", entries=self._applying.entries)
        self._applying.let_go()
        self._presence.forget()
        for dump in list(self._files.state.long_readers):
            await asyncio.to_thread(dump.close)  # a page of it may be under way
        await self._log.close()
        await self._readers.close()
        self._reader.close()
        for worker, finish in ((self._applier, self._close_state), (self._committer, self._close_log)):
            await asyncio.wrap_future(worker.submit(finish))
            worker.stop()
            if failpoints.armed and worker is self._applier:
                failpoints.reach("close.between")

    def _close_state(self) -> None:
        self._closing(self._files.state.close, self._files.state.abandon)

    def _close_log(self) -> None:
        self._closing(self._files.log.close, self._files.log.abandon)

    def _closing(self, close: Callable[[], None], abandon: Callable[[], None]) -> None:
        if self._broken is not None:
            abandon()
            return
        try:
            close()
        except (apsw.Error, OSError) as problem:
            log.warning("closing_failed", why=in_words(problem))

    async def ping(self) -> None:
        self._check_usable()
        self._read_row(("", ""))

    def _check_usable(self) -> None:
        if self._broken is not None:
            cure = "repaired" if isinstance(self._broken, DataCorrupt) else "restarted"
            raise Unavailable(f"the store failed and must be {cure}: {self._broken}", outcome="not_applied")
        if not self._is_open:
            raise Unavailable("the store is not open")

    # --- reading ---------------------------------------------------------------------------------------------------

    def peek(self, key: Key) -> Row | None:
        # Every request passes here, most of them more than once: what is hot is found with one look, as is what is new.
        found = self._cache.young.get(key, UNKNOWN)
        if found is not UNKNOWN:
            return found
        if self._presence.lacks(key):
            return None
        found = self._cache.find(key)
        if found is not UNKNOWN:
            return found
        row = self._applying.row(key)
        if row is not None:
            return present(row)
        self._check_usable()
        row = self._read_row(key)
        self._cache.put(key, row)
        if row is None:
            self._presence.missed()
        return row

    def _read_row(self, key: Key) -> Row | None:
        try:
            return self._reader.row(key)
        except apsw.ConnectionClosedError:
            raise Unavailable("the store is not open") from None
        except apsw.Error as problem:
            raise unreadable(self._paths.state, problem) from None

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self.peek(key) for key in keys]

    async def query(self, query: Query) -> list[Row]:
        await self._ready_for(query)
        if not self._applying.stuck:
            return await self._readers.run(lambda reader: reader.query(query))
        waiting = self._applying.rows()
        stored = await self._readers.run(lambda reader: reader.query(widened(query, waiting)))
        return laid_over(query, waiting, stored)

    async def count(self, query: Query) -> int:
        await self._ready_for(query)
        if not self._applying.stuck:
            return await self._readers.run(lambda reader: reader.count(query))
        return await super().count(query)

    async def _ready_for(self, query: Query) -> None:
        """The index the query walks is there, and the state has all that was committed before the query."""
        self._check_usable()
        if self._files.state.needs_index(query):
            await self._in_applier(lambda: self._files.state.make_index(query.sort))
        await self._everything_applied()

    async def kinds(self) -> list[str]:
        self._check_usable()
        await self._everything_applied()
        waiting = self._applying.kinds() if self._applying.stuck else set()
        # While the disk is full, a kind whose last record is about to go is still named.
        return sorted({*waiting, *await self._readers.run(lambda reader: reader.kinds())})

    # --- the log ---------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        return self._log.position

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        self._check_usable()
        return await self._log.read(after, limit)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        self._check_usable()
        await self._log.grew(after, seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        self._check_usable()
        position = max(position_of(after) or 0, self._files.log.start.position)
        if self._applying.row(key) is not None:
            await self._everything_applied()
        if not self._applying.stuck:
            return await self._stored_history(key, position, limit)
        ahead, is_all = self._applying.history(key, position)
        return continued([] if is_all else await self._stored_history(key, position, limit), ahead, limit)

    async def _stored_history(self, key: Key, after: int, limit: int) -> list[LogEntry]:
        while positions := await self._positions(key, after, limit):
            if found := await self._log.at(key, positions):
                return found
            # All of these were cut a moment ago; there may be newer ones.
            after = positions[-1]
        return []

    async def _positions(self, key: Key, after: int, limit: int) -> list[int]:
        return await self._readers.run(lambda reader: reader.history(key, after, limit))

    async def _in_applier(self, work: Callable[[], Any]) -> Any:
        """To its end, also when whoever asked for it is gone: what the disk says is for all."""
        return await asyncio.shield(self._judged_in_applier(work))

    async def _judged_in_applier(self, work: Callable[[], Any]) -> Any:
        try:
            with damage_told(self._paths.state):
                return await self._applier.run(work)
        except apsw.Error as problem:
            if is_full_disk(problem):
                raise NoSpace("the disk is full") from None
            if not is_failing_disk(problem):
                raise Internal(f"state.db cannot be written: {problem}") from None
            # Nobody may build on the file: the next one to sync it would be told that all is well.
            self._state_failed(problem)
            raise Internal("the disk failed") from None

    # --- committing ------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        # One after the other: a batch is judged on what the one before it left.
        async with self._committing:
            self._check_usable()
            await self._applying.room()
            self._check_usable()
            judged = judge(batch, self.peek)
            if judged.changes:
                await self._append_and_take(judged)
                self._watch_for_idleness()
        return judged.results

    async def _append_and_take(self, judged: Judged) -> None:
        try:
            self._committed = await self._append(judged.changes)
            # Only now: an apply that begins while the log is written must not look for rows not there yet.
            self._take(judged)
        except StateError:
            raise  # nothing was written, or the store has come to its end
        except Exception as bug:
            # The log may have what the state was not told of: with the next commit it would be passed over for good.
            self._break(EngineBroken(f"a commit was not taken over: {type(bug).__name__}"))
            raise

    def _take(self, judged: Judged) -> None:
        """Changes are committed: from here on everybody sees them."""
        changes = judged.changes
        self._last_commit = time.monotonic()
        self._presence.add(judged.new_keys())
        size = self._applying.take(changes, judged.keys, judged.replaced, self._committed)
        self._cache.adopt(judged.rows, size)
        self._log.take(self._committed.position - len(changes) + 1, changes, size, self._files.log.visible)

    async def _append(self, changes: list[Change]) -> End:
        try:
            return await asyncio.wrap_future(self._committer.submit(lambda: self._files.log.append(changes)))
        except apsw.FullError:
            raise NoSpace(DISK_FULL) from None
        except apsw.Error as problem:
            # After a failed write or fsync nobody knows what is on the disk: no second try, no acknowledgement.
            self._log_failed(problem)
            what = "log.db is damaged" if is_damage(problem) else "the disk failed"
            raise Internal(f"{what}; whether the write was taken is not known", outcome="unknown") from None

    def _log_failed(self, problem: Exception) -> None:
        self._break(end_of(self._paths.log, problem, LOG_CURE))

    def _state_failed(self, problem: Exception) -> None:
        self._break(end_of(self._paths.state, problem, state_cure(self._files.log)))

    def _break(self, end: EngineBroken | DataCorrupt) -> None:
        if self._broken is None:
            self._broken = end
            self._applying.let_go()
            self._log.let_go()
            self._presence.forget()
            self.broke(self._broken)

    async def _everything_applied(self) -> None:
        """Wait until the state has all that was committed before this call, or is known not to get it for now."""
        if self._applying.entries:
            self._check_usable()
            await self._applying.everything()
            self._check_usable()

    def _most_records(self) -> int:
        try:
            return self._reader.most_records()
        except apsw.Error as problem:
            raise unreadable(self._paths.state, problem) from None

    async def _caught_up(self) -> bool:
        await self._everything_applied()
        return not self._applying.stuck

    # --- idleness --------------------------------------------------------------------------------------------------

    def _watch_for_idleness(self) -> None:
        if self._idle_timer is None and self._committed.position != self._marked:
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._look_for_idleness)

    def _look_for_idleness(self) -> None:
        """A store nobody writes to for a moment gets its watermark."""
        self._idle_timer = None
        if self._broken is not None or not self._is_open or self._committed.position == self._marked:
            return
        wait = self._last_commit + self._idle_seconds - time.monotonic()
        if wait > 0:
            self._idle_timer = self._loop.call_later(wait, self._look_for_idleness)
        else:
            self._committer.submit(self._settle)

    def _settle(self) -> None:
        try:
            position = self._files.log.end.position
            self._files.log.settle()
            self._marked = position
            self._unsettled = ""
        except apsw.IOError as problem:
            # What was to be moved out of the WAL may be lost from the file: no second try on it.
            self._loop.call_soon_threadsafe(self._log_failed, problem)
        except (apsw.Error, OSError) as problem:
            if self._unsettled != str(problem):  # it is tried every idle second
                self._unsettled = str(problem)
                log.warning("watermark_not_written", why=self._unsettled)
            self._loop.call_soon_threadsafe(self._watch_for_idleness)

    # --- the whole -------------------------------------------------------------------------------------------------

    async def compact(self, keep: LogKept) -> bool:
        async with self._tending:
            self._check_usable()
            try:
                return await self._compaction.step(keep, self._everything_applied)
            except apsw.FullError:
                raise NoSpace(NO_ROOM) from None
            except apsw.BusyError:
                return True
            except OSError as problem:
                raise Unavailable(f"the log cannot be cut now: {problem.strerror}") from None
            except apsw.Error as problem:
                self._break(EngineBroken(f"the store failed while it was being compacted: {problem}"))
                raise Internal("the disk failed") from None
            finally:
                self._log.cut(self._files.log.start.position)

    async def dump(self) -> Dump:
        self._check_usable()
        await self._everything_applied()
        if self._applying.stuck:
            raise NoSpace("the disk is full: state.db is behind the log; free some space")
        try:
            opened = await asyncio.to_thread(OpenDump, self._paths, self._files.state)
        except apsw.Error as problem:
            raise unreadable(self._paths.state, problem) from None
        return Dump(str(opened.position), opened.total, opened.pages())

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        async with self._loading:
            self._check_usable()
            # Its rows are about to go: what they take is what the new ones need on their way.
            self._cache = RowCache(self._cache_bytes)
            new = Incoming(self._paths)
            try:
                await new.fill(rows)
            except BaseException:
                await asyncio.to_thread(new.discard)
                raise
            # From here on it goes to its end, also when whoever called us no longer waits.
            await asyncio.shield(self._loop.create_task(self._take_place(new)))

    async def _take_place(self, new: Incoming) -> None:
        async with self._tending, self._committing:
            try:
                self._check_usable()
                await self._everything_applied()
                await new.declare_complete()
            except BaseException:
                await self._give_up(new)
                raise
            await self._replace_files(lambda: put_in_place(self._paths))

    async def _give_up(self, new: Incoming) -> None:
        try:
            await asyncio.to_thread(new.discard)
        except OSError as problem:
            # If it has been declared complete, it takes its place at the next start: nothing more may be taken on.
            self._break(EngineBroken(f"a new store cannot be cleared away: {problem.strerror}"))

    async def _replace_files(self, replace: Callable[[], Done]) -> Done:
        """Close the store, let files take the places of others, and go on with those."""
        try:
            self._is_open = False
            await self._close_files()
            done = await asyncio.to_thread(replace)
            self._cache = RowCache(self._cache_bytes)
            self._marked = -1
            synchronous = SYNCHRONOUS[self.durability]
            self._begin(await asyncio.to_thread(open_files, self._paths, synchronous, self._stopped))
            return done
        except Exception as problem:  # noqa: BLE001 - whatever it is, there is no store to serve
            why = f"the new store could not take the place of the old one: {problem}"
            self._break(DataCorrupt(why) if isinstance(problem, DataCorrupt) else EngineBroken(why))
            raise Internal("it was cut off: it is finished at the next start", outcome="unknown") from None

    async def check(self) -> list[str]:
        self._check_usable()
        await self._everything_applied()
        return await asyncio.to_thread(problems, self._paths, *self._files)

    async def repair(self) -> list[str]:
        # To its end, also when whoever called us no longer waits: for a while there may be no store.
        return await asyncio.shield(self._loop.create_task(self._repaired()))

    async def _repaired(self) -> list[str]:
        # Beside a load it would take what that is filling for its own.
        async with self._loading, self._tending:
            found, done = await self._faults(), []
            if (why := damaged_page(found)) is not None:
                done.append(await self._salvaged(why))
                found = await self._faults()
            if not found or damaged_page(found):
                return done  # nothing is to be built on a damaged file
            return done + await self._mended(found)

    async def _faults(self) -> list[Fault]:
        self._check_usable()
        await self._everything_applied()
        return await asyncio.to_thread(faults, self._paths, *self._files)

    async def _salvaged(self, why: str) -> str:
        """A page cannot be mended where it is: a sound file takes the place of the damaged one."""
        async with self._committing:
            await self._everything_applied()
            if self._applying.stuck:
                return NO_ROOM_TO_REPAIR
            return await self._replace_files(lambda: self._salvage(why))

    def _salvage(self, why: str) -> str:
        try:
            return salvage(self._paths, SYNCHRONOUS[self.durability], why)
        except DataCorrupt as corrupt:
            return str(corrupt)  # the files were left as they are, and are served as before
        except (apsw.Error, OSError) as problem:
            if not is_full_disk(problem):
                raise
            return NO_ROOM_TO_REPAIR

    async def _mended(self, found: list[Fault]) -> list[str]:
        await self._everything_applied()
        self._presence.forget()
        try:
            done: list[str] = await self._in_applier(lambda: repaired(self._files, self._paths, found))
        finally:
            # However far it came: what was read meanwhile may be of before.
            self._cache = RowCache(self._cache_bytes)
            self._presence.forget()
        return done

    def measures(self) -> dict[str, int]:
        if not self._is_open:
            return {}
        files = self._files
        return {
            "logBytes": size_with_wal(self._paths.log),
            "stateBytes": size_with_wal(self._paths.state),
            "freeBytes": files.log.free_bytes + files.state.free_bytes,
            "entriesWaiting": self._applying.entries,
            "logEntries": files.log.end.position - files.log.start.position,
        }
