"""A state file with damaged pages: what is intact in it goes into a new file, or all of it is made again from the log.

Owns the way from a damaged state.db to a sound one. Must not know indexes and history. Nothing is thrown away: if a
record would be missing afterwards, the files are left as they are and it is named.

The new file says that nothing of the kept log is applied to it. So whoever opens it next replays all of that, which
brings back the history and what could not be read; until then nobody is served from it, whatever ends the repair.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from ..port import DataCorrupt, Key
from .cache import Waiting
from .checking import Newest, intact_row
from .files import is_damage, is_failing_disk, is_full_disk
from .log import Change, End, LogFile
from .opening import heed_lost_tail, readable_position, refuse_out_of_step, remove_state
from .paths import Paths
from .restoring import FILL_ROWS, clear, declare_complete, put_in_place
from .state import StateFile, TornState

RANGE_ROWS = 512
"""Rows that are read at once; around a damaged page they are halved until what is damaged stands alone."""

NAMED = 20
"""Lost records that an error names; of the rest it tells the number."""


def salvage(paths: Paths, synchronous: str, why: str) -> str:
    """Put a sound state.db in place of one that cannot be used; returns what was done, or raises `DataCorrupt`, or what
    the disk says when it is full or fails."""
    try:
        log = LogFile(paths.log, synchronous, new=False)
    except (apsw.Error, DataCorrupt):
        raise DataCorrupt(why) from None  # it is the log that is damaged: nothing else has all of it
    try:
        if log.start.position == 0:
            return _made_from_log(log, paths, why)
        return _made_from_itself(log, paths, why)
    except (apsw.Error, msgspec.DecodeError, TornState) as problem:
        if is_failing_disk(problem) or is_full_disk(problem):
            raise  # which says nothing about what is there
        raise DataCorrupt(f"{why}; and it cannot be repaired: {problem}; restore a snapshot") from None
    finally:
        log.abandon()


def _made_from_log(log: LogFile, paths: Paths, why: str) -> str:
    for _ in log.batches(log.start):
        pass  # all of it must be sound before anything else goes
    if readable_position(paths) > log.end.position:
        raise DataCorrupt(why)  # the state is what is left of the log's lost tail
    heed_lost_tail(log, paths)
    remove_state(paths)
    return f"{paths.state.name} was made again from the log, because it could not be used ({why})"


def _made_from_itself(log: LogFile, paths: Paths, why: str) -> str:
    newest = Newest((0, change) for _, changes in log.batches(log.start) for change in changes)
    old = StateFile(paths.state, log.epoch, log.start, new=False, take_torn=True)
    try:
        refuse_out_of_step(log, old.applied, paths)
        log.settle()  # the new file has more than it says: at level os a power loss could take that from the log
        rows = _Rows(old.db)
        clear(paths)
        paths.incoming.mkdir(mode=0o700)
        kept = _copy(rows, StateFile(paths.incoming / paths.state.name, log.epoch, log.start, new=True), log.start)
        lost = rows.lost_keys()
        _refuse_losses(lost, newest, paths, why)
    except BaseException:
        clear(paths)
        raise
    finally:
        old.abandon()
    declare_complete(paths, paths.state)
    put_in_place(paths)
    rest = f", {len(lost)} more were taken from the log" if lost else ""
    return f"{paths.state.name} had damaged pages: its {kept} intact records were written into a new file{rest}"


def _copy(rows: _Rows, new: StateFile, start: End) -> int:
    """Write what can be read into a new file, to which the log is to be applied from here on; returns how many records
    that are."""
    kept = 0
    waiting = Waiting()
    try:
        for data, checksum in rows.readable():
            row = intact_row(data, checksum)
            if row is None:
                raise DataCorrupt("a record does not match its checksum: repair that first")
            waiting.take(0, [Change(None, row)])
            kept += 1
            if waiting.entries >= FILL_ROWS:
                new.apply(waiting, new.applied)
                waiting = Waiting()
        new.apply(waiting, start)
    except BaseException:
        new.abandon()
        raise
    new.close()
    return kept


def _refuse_losses(lost: list[Key], newest: Newest, paths: Paths, why: str) -> None:
    """What the kept log has comes back when it is replayed; what it has not would be gone."""
    gone = [f"{kind} {name}" for kind, name in lost if not newest.has((kind, name))]
    if gone:
        more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
        raise DataCorrupt(
            f"{paths.state}: {', '.join(gone[:NAMED])}{more}: on a damaged page, and the log no longer has them: "
            f"restore a snapshot or bring back a copy of all files; they were left as they are ({why})"
        )


class _Rows:
    """The rows of a damaged table, as far as they can be read."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._lost: list[int] = []

    def readable(self) -> Iterator[tuple[bytes, int]]:
        newest = self._newest()
        for low in range(0, newest + 1, RANGE_ROWS):
            yield from self._between(low, min(low + RANGE_ROWS - 1, newest))

    def _newest(self) -> int:
        for index in ("NOT INDEXED", "INDEXED BY record_key"):
            try:
                return int(self._db.execute(f"SELECT max(rowid) FROM record {index}").get or 0)  # noqa: S608
            except apsw.Error as problem:
                if not is_damage(problem):
                    raise
        raise DataCorrupt("neither the records nor their index can be read")

    def _between(self, low: int, high: int) -> Iterator[tuple[bytes, int]]:
        sql = "SELECT data, checksum FROM record NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        try:
            found: list[tuple[bytes, int]] = self._db.execute(sql, (low, high)).fetchall()  # type: ignore[assignment]
        except apsw.Error as problem:
            if not is_damage(problem):
                raise
            if low == high:
                self._lost.append(low)
                return
            middle = (low + high) // 2
            yield from self._between(low, middle)
            yield from self._between(middle + 1, high)
        else:
            yield from found

    def lost_keys(self) -> list[Key]:
        """The records that could not be read: those whose place the index names."""
        if not self._lost:
            return []
        lost = set(self._lost)
        keys = self._db.execute("SELECT rowid, kind, id FROM record INDEXED BY record_key")
        return [(str(kind), str(name)) for place, kind, name in keys if place in lost]
