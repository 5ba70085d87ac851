"""The weak engine: everything the port allows an engine to get away with, and nothing more.

Owns rows in one `WeakStorage`, shared by as many engines as a test wants: each engine is another daemon on the same
store. It must not know rules. What works here works on an engine that is far away, shared and eventually consistent:

    commits     of different records are applied in any order; those of one record in the order they were handed over
    answers     a unit may be answered `unknown`; sometimes it was applied, sometimes not
    queries     may miss what was committed lately, for a bounded number of queries; then they have caught up
    races       another daemon may commit between a read and the commit that was decided on it
    units       hold at most 100 writes
    time        every call lets others run first, more or less often

All of it comes from a seed: a failure happens again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from statesvc.backends.port import UNIT_WRITES, Engine, Key, LogEntry, Place, Query, Result, Row, Unit
from statesvc_client.errors import BadRequest

STALE_QUERIES = 3
"""Queries that may miss a commit; the next one sees it."""


class _Lagging(NamedTuple):
    """A log entry that queries do not see before the query of this number."""

    entry: LogEntry
    seen_from: int


class WeakStorage:
    """What all daemons on it share."""

    def __init__(self, seed: int = 0, *, unknown: float = 0.2) -> None:
        self.epoch = os.urandom(8).hex()
        self.unknown = unknown
        self.chance = random.Random(seed)
        self.rows: dict[Key, Row] = {}
        self.log: list[LogEntry] = []
        self._seen: dict[Key, LogEntry] = {}
        self._lagging: list[_Lagging] = []
        self._queries = 0

    def apply(self, unit: Unit) -> Result:
        for row, expects, _ in unit:
            stored = self.rows.get(row.key)
            if (None if stored is None else stored.stamp) != expects:
                return "conflict"
        for row, _, event in unit:
            self.rows[row.key] = row
            entry = LogEntry(len(self.log) + 1, event, row)
            self.log.append(entry)
            self._lagging.append(_Lagging(entry, self._queries + self.chance.randint(1, STALE_QUERIES + 1)))
        return "applied"

    def query(self, query: Query) -> list[Row]:
        self._queries += 1
        self._seen, self._lagging = self._view(self._queries)
        return walk((entry.row for entry in self._seen.values()), query)

    def _view(self, number: int) -> tuple[dict[Key, LogEntry], list[_Lagging]]:
        """What the query of this number sees, and what it does not yet. A record never goes back to an older row."""
        seen = dict(self._seen)
        for entry, seen_from in self._lagging:
            before = seen.get(entry.row.key)
            if seen_from <= number and (before is None or before.position < entry.position):
                seen[entry.row.key] = entry
        return seen, [lagging for lagging in self._lagging if lagging.seen_from > number]

    def problems(self) -> list[str]:
        newest: dict[Key, Row] = {}
        found: list[str] = []
        for entry in self.log:
            before, row = newest.get(entry.row.key), entry.row
            if before is not None and before.uid == row.uid and row.revision != before.revision + 1:
                found.append(f"{row.key}: revision {row.revision} follows {before.revision} in the log")
            newest[row.key] = row
        if newest != self.rows:
            found.append("the rows are not what the log leads to")
        seen, left = self._view(self._queries + STALE_QUERIES + 1)
        if left or {key: entry.row for key, entry in seen.items()} != self.rows:
            found.append("queries would never see every row")
        return found


class WeakEngine(Engine):
    """One daemon's access to a weak storage."""

    name = "weak"
    immediate = False

    def __init__(self, storage: WeakStorage | None = None) -> None:
        self.storage = storage or WeakStorage()
        self.durability = "memory"
        self.epoch = self.storage.epoch

    async def open(self) -> None:
        await self._let_others_run()

    async def close(self) -> None:
        await self._let_others_run()

    async def ping(self) -> None:
        await self._let_others_run()

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        await self._let_others_run()
        return [self.storage.rows.get(key) for key in keys]

    async def query(self, query: Query) -> list[Row]:
        await self._let_others_run()
        return self.storage.query(query)

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        if any(len(unit) > UNIT_WRITES for unit in batch):
            raise BadRequest(f"a unit holds more than {UNIT_WRITES} writes")
        results: list[Result] = ["unknown"] * len(batch)
        for place in self._any_order(batch):
            await self._let_others_run()
            results[place] = self._attempt(batch[place])
        return results

    def _attempt(self, unit: Unit) -> Result:
        chance = self.storage.chance
        if chance.random() >= self.storage.unknown:
            return self.storage.apply(unit)
        if chance.random() < 0.5:
            self.storage.apply(unit)
        return "unknown"

    def _any_order(self, batch: Sequence[Unit]) -> list[int]:
        """Places of the units, shuffled; units that share a record stay in order."""
        waiting = list(range(len(batch)))
        order: list[int] = []
        while waiting:
            blocked: set[Key] = set()
            free: list[int] = []
            for place in waiting:
                keys = {write.row.key for write in batch[place]}
                if blocked.isdisjoint(keys):
                    free.append(place)
                blocked |= keys
            chosen = self.storage.chance.choice(free)
            waiting.remove(chosen)
            order.append(chosen)
        return order

    async def position(self) -> int:
        await self._let_others_run()
        return len(self.storage.log)

    async def read_log(self, after: int, limit: int) -> list[LogEntry]:
        await self._let_others_run()
        return self.storage.log[after : after + limit]

    async def check(self) -> list[str]:
        return self.storage.problems()

    async def _let_others_run(self) -> None:
        for _ in range(self.storage.chance.randint(0, 2)):
            await asyncio.sleep(0)


# --- queries, the plain way ------------------------------------------------------------------------------------------


def walk(rows: Any, query: Query) -> list[Row]:
    """What a query means, written down without an index. Other engines are compared with it."""
    found = [row for row in rows if row.kind == query.kind and not row.deleted and _matches(row, query)]
    found.sort(key=lambda row: _place(row, query), reverse=query.descending)
    return found[: query.limit]


def _matches(row: Row, query: Query) -> bool:
    key = _key(row, query)
    if query.missing:
        return key is None and _behind(row, query)
    return key is not None and _has_term(row, query.term) and _within(key, query) and _behind(row, query)


def _within(key: Any, query: Query) -> bool:
    return (query.low is None or key >= query.low) and (query.high is None or key < query.high)


def _behind(row: Row, query: Query) -> bool:
    if query.after is None:
        return True
    mine, last = _place(row, query), _last(query.after, query)
    return mine < last if query.descending else mine > last


def _has_term(row: Row, term: tuple[str, ...] | None) -> bool:
    if term is None:
        return True
    field, *values = term
    if field.startswith("label:"):
        return any((field.removeprefix("label:"), value) in row.keys.labels for value in values)
    return (getattr(row.keys, field) or "") in values


def _key(row: Row, query: Query) -> Any:
    return row.id if query.sort == "id" else getattr(row.keys, query.sort)


def _place(row: Row, query: Query) -> tuple[Any, ...]:
    return (row.id,) if query.missing else (_key(row, query), row.id)


def _last(after: Place, query: Query) -> tuple[Any, ...]:
    return (after.id,) if query.missing else tuple(after)
