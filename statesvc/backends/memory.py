"""The memory engine: the reference. Everything is gone at exit, and it says so with a new epoch at each start.

Owns rows in dictionaries and sorted indexes over them. Must not know files or threads. An index is made the first time
a query walks it and kept from then on: a store that is only written to pays for none.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from .ordering import Index, IndexName, index_name
from .port import Engine, Key, LogEntry, Query, Result, Row, Unit

if TYPE_CHECKING:
    from ..config import Settings

LOG_ENTRIES = 100_000
LOG_BYTES = 64 * 1024 * 1024
"""What is kept of the log, whichever comes first: enough for a watcher to come back, and bounded."""


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
        self._indexes: dict[IndexName, Index] = {}
        self._log: deque[LogEntry] = deque()
        self._log_bytes = 0
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
            self._log_bytes += len(row.body) + len(row.marks)
        while self._log_bytes > LOG_BYTES or len(self._log) > LOG_ENTRIES:
            oldest = self._log.popleft().row
            self._log_bytes -= len(oldest.body) + len(oldest.marks)
        return "applied"

    async def position(self) -> int:
        return self._position

    async def read_log(self, after: int, limit: int) -> list[LogEntry]:
        newer = (entry for entry in self._log if entry.position > after)
        return list(islice(newer, limit))

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
