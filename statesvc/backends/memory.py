"""The memory engine: the reference. Everything is gone at exit, and it says so with a new epoch at each start.

Owns rows in dictionaries, sorted indexes over them and a bounded log. Must not know files or threads. An index is made
the first time a query walks it and kept from then on: a store that is only written to pays for none.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from .numbered import Growth, beyond_the_end, no_longer_kept, position_of
from .ordering import Index, IndexName, index_name
from .port import REMOVED, Cursor, Dump, Engine, Event, Key, LogEntry, LogKept, Query, Result, Row, Stamp, Unit

if TYPE_CHECKING:
    from ..config import Settings

LOG_ENTRIES = 100_000
LOG_BYTES = 64 * 1024 * 1024
"""What is kept of the log at most, whichever comes first: enough for a watcher to come back, and bounded."""

CUT_ENTRIES = 2_000
"""Entries cut in one step: a millisecond or two."""

DUMP_ROWS = 1_000
"""Rows handed over at a time: others run in between."""


def from_settings(_: Settings) -> MemoryEngine:
    return MemoryEngine()


class MemoryEngine(Engine):
    """Rows in a dictionary; a commit is done when the call returns."""

    name = "memory"
    immediate = True

    def __init__(self) -> None:
        self.durability = "memory"
        self.epoch = os.urandom(8).hex()
        self._rows: dict[Key, Row] = {}
        self._of_kind: Counter[str] = Counter()
        self._indexes: dict[IndexName, Index] = {}
        self._log = NumberedLog()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        self._log.growth.tell()

    async def ping(self) -> None:
        """Always there."""

    def peek(self, key: Key) -> Row | None:
        return self._rows.get(key)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self._rows.get(key) for key in keys]

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        lost: set[tuple[Key, Stamp | None]] = set()
        results = [self._apply(unit, lost) for unit in batch]
        self._log.trim()
        return results

    def _apply(self, unit: Unit, lost: set[tuple[Key, Stamp | None]]) -> Result:
        """`lost` is what units before it would have made, and did not."""
        rows = self._rows
        for row, expects, _ in unit:
            stored = rows.get(row.key)
            if (None if stored is None else stored.stamp) != expects or (row.key, expects) in lost:
                lost.update((write.row.key, write.row.stamp) for write in unit)
                return "conflict"
        for row, _, event in unit:
            if event is not None:
                self._log.append(event, row)
            if row.deleted == REMOVED:
                self._remove(row.key)
            else:
                self._keep(row)
        return "applied"

    def _keep(self, row: Row) -> None:
        before = self._rows.get(row.key)
        if before is None:
            self._of_kind[row.kind] += 1
        self._rows[row.key] = row
        self._index(before, row)

    def _remove(self, key: Key) -> None:
        before = self._rows.pop(key, None)
        if before is not None:
            self._of_kind[before.kind] -= 1
            self._index(before, None)
        self._log.forget(key)

    async def kinds(self) -> list[str]:
        return sorted(kind for kind, rows in self._of_kind.items() if rows)

    # --- indexes ---------------------------------------------------------------------------------------------------

    async def query(self, query: Query) -> list[Row]:
        index = self._index_of(index_name(query))
        places = index.walk(query)
        return [self._rows[query.kind, place[-1]] for place in islice(places, query.limit)]

    async def count(self, query: Query) -> int:
        return sum(1 for _ in self._index_of(index_name(query)).walk(query))

    def _index_of(self, name: IndexName) -> Index:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = self._filled(name)
        return index

    def _filled(self, name: IndexName) -> Index:
        index = Index(name)
        for row in self._rows.values():
            if row.kind == name[0]:
                index.add(row)
        return index

    def _index(self, before: Row | None, after: Row | None) -> None:
        """Keep the indexes made so far true."""
        row = after or before
        for name, index in self._indexes.items():
            if row is not None and name[0] == row.kind:
                if before is not None:
                    index.remove(before)
                if after is not None:
                    index.add(after)

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
        return self._log.history(key, after, limit)

    async def compact(self, keep: LogKept) -> bool:
        return self._log.cut(keep, CUT_ENTRIES)

    # --- the whole -------------------------------------------------------------------------------------------------

    async def dump(self) -> Dump:
        rows = list(self._rows.values())
        return Dump(str(self._log.end), len(rows), _in_pieces(rows))

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        fresh: dict[Key, Row] = {}
        async for some in rows:
            fresh.update((row.key, row) for row in some)
        self._rows = fresh
        self._of_kind = Counter(kind for kind, _ in fresh)
        self._indexes.clear()
        self._log.begin_anew()
        self.epoch = os.urandom(8).hex()

    async def check(self) -> list[str]:
        found = [f"the index {' '.join(name)} differs from the records" for name in self._wrong_indexes()]
        if +self._of_kind != Counter(kind for kind, _ in self._rows):
            found.append("the kinds differ from the records")
        return [*found, *self._log.problems()]

    def _wrong_indexes(self) -> list[IndexName]:
        return [name for name, index in self._indexes.items() if self._filled(name).content() != index.content()]

    async def repair(self) -> list[str]:
        wrong = self._wrong_indexes()
        for name in wrong:
            self._indexes[name] = self._filled(name)
        self._of_kind = Counter(kind for kind, _ in self._rows)
        return [f"made the index {' '.join(name)} again" for name in wrong]

    def measures(self) -> dict[str, int]:
        return {"records": len(self._rows), "logEntries": self._log.end - self._log.start, "logBytes": self._log.bytes}


async def _in_pieces(rows: list[Row]) -> AsyncIterator[list[Row]]:
    for begin in range(0, len(rows), DUMP_ROWS):
        yield rows[begin : begin + DUMP_ROWS]


class NumberedLog:
    """Entries by their number, the oldest of them cut off. Reading costs what it returns."""

    def __init__(self) -> None:
        self.start = 0
        """The newest entry that was cut."""
        self.end = 0
        self.bytes = 0
        self.growth = Growth()
        self._entries: dict[int, LogEntry] = {}
        self._of_record: dict[Key, list[int]] = {}

    def append(self, event: Event, row: Row) -> None:
        self.end += 1
        self._entries[self.end] = LogEntry(str(self.end), event, row)
        self._of_record.setdefault(row.key, []).append(self.end)
        self.bytes += _size(event, row)
        self.growth.tell()

    def read(self, after: Cursor, limit: int) -> list[LogEntry]:
        position = position_of(after)
        if position is None:
            position = self.start
        elif position < self.start:
            raise no_longer_kept(after)
        elif position > self.end:
            raise beyond_the_end(after)
        return [self._entries[number] for number in range(position + 1, min(self.end, position + limit) + 1)]

    def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        numbers = self._of_record.get(key, [])
        begin = bisect_right(numbers, max(self.start, position_of(after) or 0))
        return [self._entries[number] for number in numbers[begin : begin + limit]]

    def forget(self, key: Key) -> None:
        """The record is gone for good: its entries stay in the log, and are no longer anybody's history."""
        self._of_record.pop(key, None)

    def trim(self) -> None:
        """Stay within what is kept at most."""
        while self.bytes > LOG_BYTES or self.end - self.start > LOG_ENTRIES:
            self._cut_oldest()

    def cut(self, keep: LogKept, most: int) -> bool:
        """Cut up to `most` entries that need not be kept; whether there are more of them."""
        for _ in range(most):
            if not self._may_go(keep):
                return False
            self._cut_oldest()
        return self._may_go(keep)

    def _may_go(self, keep: LogKept) -> bool:
        if self.start == self.end:
            return False
        return self.bytes > keep.most_bytes or self._entries[self.start + 1].event.at < keep.since

    def _cut_oldest(self) -> None:
        self.start += 1
        entry = self._entries.pop(self.start)
        self.bytes -= _size(entry.event, entry.row)
        numbers = self._of_record.get(entry.row.key)
        if numbers is None:
            return
        if numbers[-1] <= self.start:
            del self._of_record[entry.row.key]
        elif numbers[len(numbers) // 2] <= self.start:
            # Half of them at a time: a record that changes all the time would be moved about at every cut.
            del numbers[: bisect_right(numbers, self.start)]

    def begin_anew(self) -> None:
        """Empty, and beyond every cursor given out so far."""
        self.start = self.end = self.end + 1
        self.bytes = 0
        self._entries.clear()
        self._of_record.clear()
        self.growth.tell()

    def problems(self) -> Iterator[str]:
        if list(self._entries) != list(range(self.start + 1, self.end + 1)):
            yield "the log lacks entries"
        if self.bytes != sum(_size(entry.event, entry.row) for entry in self._entries.values()):
            yield "the log is not as large as it was counted"
        logged = _by_record(self._entries.values())
        for key, numbers in self._of_record.items():
            # What a removed record left in the log is older than all that was made under its name again.
            kept = numbers[bisect_right(numbers, self.start) :]
            if kept != logged.get(key, [])[-len(kept) :]:
                yield f"the history of {' '.join(key)} differs from the log"


def _by_record(entries: Iterable[LogEntry]) -> dict[Key, list[int]]:
    numbers: dict[Key, list[int]] = {}
    for entry in entries:
        numbers.setdefault(entry.row.key, []).append(int(entry.cursor))
    return numbers


def _size(event: Event, row: Row) -> int:
    return len(row.body) + len(row.marks) + len(event.data or b"") + len(event.message or "")
