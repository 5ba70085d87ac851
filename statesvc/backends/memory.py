"""The memory engine: the reference. Everything is gone at exit, and it says so with a new epoch at each start.

Owns rows in dictionaries and sorted indexes over them. Must not know files or threads. An index is made the first time
a query walks it and kept from then on: a store that is only written to pays for none.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from sortedcontainers import SortedList

from .port import Engine, Key, Keys, LogEntry, Query, Result, Row, Unit

if TYPE_CHECKING:
    from ..config import Settings

LOG_ENTRIES = 100_000
"""Entries of the log that are kept: enough for a watcher to come back, bounded because it lives in memory."""

Shape = Literal["term", "sort", "missing"]
IndexName = tuple[str, Shape, str]
"""A kind, and what its index holds: records by a term's value, in a sort order, or lacking a sort key."""


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
        self._indexes: dict[IndexName, _Index] = {}
        self._log: deque[LogEntry] = deque(maxlen=LOG_ENTRIES)
        self._position = 0

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to keep."""

    async def ping(self) -> None:
        """Always there."""

    def peek(self, key: Key) -> Row | None:
        return self._rows.get(key)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return [self._rows.get(key) for key in keys]

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        return [self._apply(unit) for unit in batch]

    def _apply(self, unit: Unit) -> Result:
        rows = self._rows
        for row, expects, _ in unit:
            stored = rows.get(row.key)
            if (None if stored is None else stored.stamp) != expects:
                return "conflict"
        for row, _, event in unit:
            self._index(rows.get(row.key), row)
            rows[row.key] = row
            self._position += 1
            self._log.append(LogEntry(self._position, event, row))
        return "applied"

    async def position(self) -> int:
        return self._position

    async def read_log(self, after: int, limit: int) -> list[LogEntry]:
        newer = (entry for entry in self._log if entry.position > after)
        return list(islice(newer, limit))

    # --- indexes ---------------------------------------------------------------------------------------------------

    async def query(self, query: Query) -> list[Row]:
        index = self._index_of(_name(query))
        places = index.walk(query)
        return [self._rows[query.kind, place[-1]] for place in islice(places, query.limit)]

    def _index_of(self, name: IndexName) -> _Index:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = self._filled(name)
        return index

    def _filled(self, name: IndexName) -> _Index:
        index = _Index(name)
        for row in self._rows.values():
            if row.kind == name[0] and not row.deleted:
                index.add(row)
        return index

    def _index(self, before: Row | None, after: Row) -> None:
        """Keep the indexes made so far true."""
        for name, index in self._indexes.items():
            if name[0] == after.kind:
                if before is not None and not before.deleted:
                    index.remove(before)
                if not after.deleted:
                    index.add(after)

    async def check(self) -> list[str]:
        return [
            f"the index {' '.join(name)} differs from the records"
            for name, index in self._indexes.items()
            if self._filled(name).content() != index.content()
        ]


def _name(query: Query) -> IndexName:
    if query.term is not None:
        return (query.kind, "term", query.term[0])
    return (query.kind, "missing" if query.missing else "sort", query.sort)


class _Index:
    """Sorted places of the records of one kind, one list for each value of the term it is over."""

    def __init__(self, name: IndexName) -> None:
        _, self._shape, self._field = name
        self._lists: dict[str, SortedList[Any]] = {}

    def add(self, row: Row) -> None:
        for value, place in self._places(row):
            self._lists.setdefault(value, SortedList()).add(place)

    def remove(self, row: Row) -> None:
        for value, place in self._places(row):
            self._lists[value].remove(place)
            if not self._lists[value]:
                del self._lists[value]

    def content(self) -> dict[str, list[Any]]:
        return {value: list(places) for value, places in self._lists.items()}

    def walk(self, query: Query) -> Iterator[tuple[Any, ...]]:
        places = self._lists.get(query.term[1] if query.term else "")
        if places is None:
            return iter(())
        low, high = _ends(query)
        return iter(places.irange(low, high, inclusive=(False, False), reverse=query.descending))

    def _places(self, row: Row) -> list[tuple[str, tuple[Any, ...]]]:
        """Where a row stands: the term's value, and its place in that value's order."""
        keys, field = row.keys, self._field
        if self._shape == "term":
            return [(value, (keys.created, row.id)) for value in _term_values(keys, field)]
        key = row.id if field == "id" else getattr(keys, field)
        if self._shape == "missing":
            return [("", (row.id,))] if key is None else []
        return [] if key is None else [("", (key, row.id))]


def _term_values(keys: Keys, field: str) -> list[str]:
    if field.startswith("label:"):
        name = field.removeprefix("label:")
        return [value for label, value in keys.labels if label == name]
    return [getattr(keys, field) or ""]


def _ends(query: Query) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """The open range of places a query walks. (5,) lies before every (5, id): so low takes 5 in, high leaves it out."""
    low: tuple[Any, ...] | None = None if query.low is None else (query.low,)
    high: tuple[Any, ...] | None = None if query.high is None else (query.high,)
    if query.after is not None:
        place = (query.after.id,) if query.missing else tuple(query.after)
        if query.descending:
            high = place
        else:
            low = place
    return low, high
