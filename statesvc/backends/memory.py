"""The memory engine: the reference. Everything is gone at exit, and it says so with a new epoch at each start.

Owns conditions, sorted indexes over the rows and a bounded log. Must not know files or threads. An index is made the
first time a query walks it and kept from then on: a store that is only written to pays for none. What changed since the
last walk is put in at the next one, or when it has become much.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from . import epoch_names
from .numbered import Growth, beyond_the_end, no_longer_kept, position_of
from .ordering import BY_CREATION, Change, Index, IndexName, change, index_name, spine_of
from .packed import Cell, PackedRows, built
from .port import REMOVED, Cursor, Dump, Engine, Event, Key, Keys, LogEntry, LogKept, Query, Result, Row, Stamp, Unit
from .sorted_places import Place

if TYPE_CHECKING:
    from ..config import Settings

LOG_ENTRIES = 100_000
LOG_BYTES = 64 * 1024 * 1024
"""What is kept of the log at most, whichever comes first: enough for a watcher to come back, and bounded. The rows in
it are those of the store, as they were written; a row that leaves it is packed in the store."""

CUT_ENTRIES = 2_000
"""Entries cut in one step: a millisecond or two."""

MOST_UNINDEXED = 1_000
"""Changes that wait for the next walk at most: putting them in takes a few milliseconds."""

FILL_ROWS = 1_000
"""Rows put into a new index at a time, a few milliseconds: others run in between."""

DUMP_ROWS = 1_000
"""Rows handed over at a time: others run in between."""

Piece = list[tuple[Row, Place]]
"""Rows that an index is filled with at once, and their places by creation."""


def from_settings(_: Settings) -> MemoryEngine:
    return MemoryEngine()


class MemoryEngine(Engine):
    """Rows in dictionaries; a commit is done when the call returns."""

    name = "memory"
    immediate = True

    def __init__(self) -> None:
        self.durability = "memory"
        self.epoch = epoch_names.first()
        self._rows = PackedRows()
        self._of_kind = self._rows.of_kind
        self._indexes: dict[IndexName, Index] = {}
        self._filling: tuple[IndexName, Index] | None = None
        """The index that is being made: it is kept up to date like the others, and has not all rows yet."""
        self._one_index = asyncio.Lock()
        """Held by who makes an index: one at a time, so that a turn of the loop does one piece of such work."""
        self._unindexed: dict[Key, Row | None] = {}
        """Records changed since the indexes were last walked, as the indexes still have them."""
        self._log = NumberedLog(self._rows.pack)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        self._log.growth.tell()

    async def ping(self) -> None:
        """Always there."""

    def peek(self, key: Key) -> Row | None:
        # What `PackedRows.get` does, without the call: nothing is asked for more often.
        kind, id = key
        cells = self._of_kind.get(kind)
        if cells is None:
            return None
        cell = cells.get(id)
        return self._rows.in_use(key, cell) if type(cell) is bytes else cell  # type: ignore[return-value]

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self._rows.get(key) for key in keys]

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        lost: set[tuple[Key, Stamp | None]] = set()
        results = [self._apply(unit, lost) for unit in batch]
        self._log.trim()
        self._log.growth.tell()
        if self._log.lags:
            self._log.note(2 * MOST_UNINDEXED)
        if len(self._unindexed) > MOST_UNINDEXED:
            self._catch_up()
        return results

    def _apply(self, unit: Unit, lost: set[tuple[Key, Stamp | None]]) -> Result:
        """`lost` is what units before it would have made, and did not."""
        followed = self._indexes or self._filling is not None
        for row, expects, _, _ in unit:
            key = (row.kind, row.id)
            stored = self.peek(key)
            stamp = None if stored is None else (stored.uid, stored.revision)
            if stamp != expects or (lost and (key, expects) in lost):
                lost.update((write.row.key, write.row.stamp) for write in unit)
                return "conflict"
            if followed and key not in self._unindexed:
                # Should the unit come to nothing, the record is looked at in vain.
                self._unindexed[key] = stored
        for row, _, event, _ in unit:
            if event is None or row.deleted == REMOVED:
                self._write_seldom(row, event)
            else:
                self._of_kind[row.kind][row.id] = row
                self._log.append(event, row)
        return "applied"

    def _write_seldom(self, row: Row, event: Event | None) -> None:
        """What nobody is told of, and what is removed."""
        if event is not None:
            self._log.append(event, row)
        if row.deleted == REMOVED:
            self._rows.remove(row.key)
            self._log.forget(row.key)
        else:
            self._rows.put(row)
            self._rows.pack(row)

    async def kinds(self) -> list[str]:
        return sorted(self._of_kind)

    # --- indexes ---------------------------------------------------------------------------------------------------

    async def query(self, query: Query) -> list[Row]:
        index = await self._index_of(index_name(query))
        return self._rows.listed(query.kind, [place[-1] for place in islice(index.walk(query), query.limit)])

    async def count(self, query: Query) -> int:
        return (await self._index_of(index_name(query))).count(query)

    async def _index_of(self, name: IndexName) -> Index:
        """The index, true at the moment this returns."""
        while name not in self._indexes:
            async with self._one_index:
                await self._make(name)
        self._catch_up()
        return self._indexes[name]

    async def _make(self, name: IndexName) -> None:
        """Make the index unless somebody has, and first the one it shares its places with."""
        for each in (spine_of(name), name):
            if each is not None and each not in self._indexes:
                index = await self._filled(each, self._to_fill(each))
                if index is None:
                    return
                self._indexes[each] = index

    async def _filled(self, name: IndexName, pieces: Iterator[Piece]) -> Index | None:
        """A new index with all rows as they are at the moment this returns; None when they were replaced meanwhile.

        What changes while others run is put in before the next piece is taken.
        """
        self._catch_up()
        index = Index(name)
        filling = self._filling = (name, index)
        at_once = len(self._of_kind.get(name[0], ())) <= FILL_ROWS
        try:
            while (piece := next(pieces, None)) is not None:
                index.fill(piece)
                if not at_once:
                    await asyncio.sleep(0)
                    if self._filling is not filling:
                        return None
                    self._catch_up()
            index.filled()
            return index
        finally:
            if self._filling is filling:
                self._filling = None

    def _to_fill(self, name: IndexName) -> Iterator[Piece]:
        """Terms are filled along the index by creation, where there is one: in order, and with the places it has."""
        kind, shape, _ = name
        spine = self._indexes.get((kind, "sort", BY_CREATION)) if shape == "term" else None
        return self._in_any_order(kind) if spine is None else self._along(spine, kind)

    def _in_any_order(self, kind: str) -> Iterator[Piece]:
        ids = list(self._of_kind.get(kind, ()))
        for begin in range(0, len(ids), FILL_ROWS):
            some = ids[begin : begin + FILL_ROWS]
            rows = zip(some, self._rows.passing(kind, some), strict=True)
            yield [(row, (row.keys.created, id)) for id, row in rows if row is not None]

    def _along(self, spine: Index, kind: str) -> Iterator[Piece]:
        # Not what comes in meanwhile: that is put in by `_catch_up`, and may go on for ever.
        places = spine.in_order()
        for begin in range(0, len(places), FILL_ROWS):
            some = places[begin : begin + FILL_ROWS]
            rows = zip(self._rows.passing(kind, [place[-1] for place in some]), some, strict=True)
            yield [(row, place) for row, place in rows if row is not None]

    def _catch_up(self) -> None:
        """Make the indexes true."""
        if not self._unindexed:
            return
        changed, self._unindexed = self._unindexed, {}
        changes: defaultdict[str, list[Change]] = defaultdict(list)
        look = self._rows.look
        for key, before in changed.items():
            changes[key[0]].append(change(before, look(key)))
        for (kind, _, _), index in self._indexes.items():
            index.replace(changes.get(kind, ()))
        if self._filling is not None:
            (kind, _, _), index = self._filling
            index.replace(changes.get(kind, ()), filling=True)

    # --- the log ---------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        return str(self._log.end)

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        return self._log.read(after, limit)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        position = position_of(after)
        if (self._log.start if position is None else position) == self._log.end:
            await self._log.growth.wait(seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        while True:
            if not self._log.note(MOST_UNINDEXED):
                return self._log.history(key, after, limit)
            await asyncio.sleep(0)

    async def compact(self, keep: LogKept) -> bool:
        return self._log.cut(keep, CUT_ENTRIES)

    # --- the whole -------------------------------------------------------------------------------------------------

    async def dump(self) -> Dump:
        cells = self._rows.cells()
        return Dump(str(self._log.end), len(cells), _in_pieces(cells))

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        fresh = PackedRows()
        async for some in rows:
            for row in some:
                fresh.put(row)
                fresh.pack(row)
        self._rows.replace_all(fresh)
        self._indexes.clear()
        self._filling = None
        self._unindexed.clear()
        self._log.begin_anew()
        self.epoch = epoch_names.following(self.epoch)

    async def check(self) -> list[str]:
        found = [f"the index {' '.join(name)} differs from the records" for name in await self._wrong_indexes()]
        return [*found, *self._log.problems()]

    async def repair(self) -> list[str]:
        return [f"made the index {' '.join(name)} again" for name in await self._wrong_indexes(mend=True)]

    async def _wrong_indexes(self, *, mend: bool = False) -> list[IndexName]:
        """Those that are not as they would be made now; replaced by what they should be, when asked to."""
        wrong = []
        for name in list(self._indexes):
            async with self._one_index:
                made = await self._filled(name, self._in_any_order(name[0]))
                kept = self._indexes.get(name)  # gone when everything was replaced meanwhile
                if made is None or kept is None or made.content() == kept.content():
                    continue
                wrong.append(name)
                if mend:
                    self._indexes[name] = made
        return wrong

    def measures(self) -> dict[str, int]:
        return {"records": len(self._rows), "logEntries": self._log.end - self._log.start, "logBytes": self._log.bytes}


async def _in_pieces(cells: list[Cell]) -> AsyncIterator[list[Row]]:
    for begin in range(0, len(cells), DUMP_ROWS):
        yield [built(cell) for cell in cells[begin : begin + DUMP_ROWS]]


class NumberedLog:
    """Entries by their number, the oldest of them cut off. Reading costs what it returns. Whose history an entry is in
    is noted when somebody asks for one."""

    def __init__(self, left: Callable[[Row], object]) -> None:
        self._left = left
        """Is told of each row that leaves the log."""
        self.start = 0
        """The newest entry that was cut."""
        self.end = 0
        self.bytes = 0
        self.growth = Growth()
        self._before = 0
        """The number before that of the first in the lists. What was cut is empty there, and taken out now and then."""
        self._events: list[Event] = []
        self._rows: list[Row] = []
        self._of_record: dict[Key, list[int]] = {}
        self._noted = 0
        """The newest entry that is in `_of_record`."""
        self._forgotten: dict[Key, int] = {}
        """Records that are gone for good, and the newest entry then: what is older is no longer anybody's history."""

    def append(self, event: Event, row: Row) -> None:
        self.end += 1
        self._events.append(event)
        self._rows.append(row)
        self.bytes += len(row.body) + len(row.marks)
        if event.data is not None or event.message is not None:
            self.bytes += _said(event)

    def read(self, after: Cursor, limit: int) -> list[LogEntry]:
        position = position_of(after)
        if position is None:
            position = self.start
        elif position < self.start:
            raise no_longer_kept(after)
        elif position > self.end:
            raise beyond_the_end(after)
        return [self._entry(number) for number in range(position + 1, min(self.end, position + limit) + 1)]

    def _entry(self, number: int) -> LogEntry:
        spot = number - self._before - 1
        return LogEntry(str(number), self._events[spot], self._rows[spot])

    def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        """What was noted of a record."""
        numbers = self._of_record.get(key, [])
        begin = bisect_right(numbers, max(self.start, position_of(after) or 0))
        return [self._entry(number) for number in numbers[begin : begin + limit]]

    @property
    def lags(self) -> bool:
        """Whether somebody has asked for a history, and much has come since."""
        return bool(self._of_record) and self.end - self._noted > MOST_UNINDEXED

    def note(self, most: int) -> bool:
        """Bring the histories up to date by so many entries; whether there are more."""
        first = max(self._noted, self.start) + 1
        last = min(self.end, first + most - 1)
        for number in range(first, last + 1):
            key = self._rows[number - self._before - 1].key
            if number > self._forgotten.get(key, 0):
                self._of_record.setdefault(key, []).append(number)
        self._noted = last
        if last < self.end:
            return True
        self._forgotten.clear()
        return False

    def _note_all(self) -> None:
        self.note(self.end - self.start)

    def forget(self, key: Key) -> None:
        """The record is gone for good: its entries stay in the log, and are no longer anybody's history."""
        self._of_record.pop(key, None)
        if self._noted < self.end:
            self._forgotten[key] = self.end
        if len(self._forgotten) > MOST_UNINDEXED:
            self._note_all()

    def trim(self) -> None:
        """Stay within what is kept at most."""
        self._cut(self.end - LOG_ENTRIES - self.start)
        while self.bytes > LOG_BYTES:
            self._cut(1)

    def cut(self, keep: LogKept, most: int) -> bool:
        """Cut up to `most` entries that need not be kept; whether there are more of them."""
        for _ in range(most):
            if not self._may_go(keep):
                return False
            self._cut(1)
        return self._may_go(keep)

    def _may_go(self, keep: LogKept) -> bool:
        if self.start == self.end:
            return False
        return self.bytes > keep.most_bytes or self._events[self.start - self._before].at < keep.since

    def _cut(self, count: int) -> None:
        """Cut so many of the oldest entries."""
        events, rows, left = self._events, self._rows, self._left
        for spot in range(self.start - self._before, self.start - self._before + count):
            event, row = events[spot], rows[spot]
            events[spot], rows[spot] = _CUT
            self.start += 1
            self.bytes -= len(row.body) + len(row.marks)
            if event.data is not None or event.message is not None:
                self.bytes -= _said(event)
            if self.start <= self._noted:
                self._cut_history(row.key)
            left(row)
        if self.start - self._before > CUT_ENTRIES:
            self._take_out_what_was_cut()

    def _cut_history(self, key: Key) -> None:
        numbers = self._of_record.get(key)
        if numbers is None:
            return
        if numbers[-1] <= self.start:
            del self._of_record[key]
        elif numbers[len(numbers) // 2] <= self.start:
            # Half of them at a time: a record that changes all the time would be moved about at every cut.
            del numbers[: bisect_right(numbers, self.start)]

    def _take_out_what_was_cut(self) -> None:
        """Many at a time, because all that are kept are moved up."""
        count = self.start - self._before
        del self._events[:count], self._rows[:count]
        self._before = self.start

    def begin_anew(self) -> None:
        """Empty, and beyond every cursor given out so far."""
        self.start = self.end = self._before = self.end + 1
        self.bytes = 0
        self._events.clear()
        self._rows.clear()
        self._of_record.clear()
        self._forgotten.clear()
        self._noted = self.end
        self.growth.tell()

    def problems(self) -> Iterator[str]:
        kept = range(self.start + 1, self.end + 1)
        if {len(self._events), len(self._rows)} != {self.end - self._before}:
            yield "the log lacks entries"
            return
        logged: dict[Key, list[int]] = {}
        size = 0
        for number in kept:
            _, event, row = self._entry(number)
            logged.setdefault(row.key, []).append(number)
            size += len(row.body) + len(row.marks) + _said(event)
        if self.bytes != size:
            yield "the log is not as large as it was counted"
        self._note_all()
        for key, numbers in self._of_record.items():
            # What a removed record left in the log is older than all that was made under its name again.
            known = numbers[bisect_right(numbers, self.start) :]
            if known != logged.get(key, [])[-len(known) :]:
                yield f"the history of {' '.join(key)} differs from the log"


_CUT = (Event("", 0), Row("", "", "", 0, Keys(0, 0), b""))
"""Stands for an entry that was cut."""


def _said(event: Event) -> int:
    return len(event.data or b"") + len(event.message or "")
