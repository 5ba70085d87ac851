"""The weak engine: everything the port allows an engine to get away with, and nothing more.

Owns rows in one `WeakStorage`, shared by as many engines as a test wants: each engine is another daemon on the same
store. It must not know rules. What works here works on an engine that is far away, shared and eventually consistent:

    commits     of different records are applied in any order; those of one record in the order they were handed over
    answers     a unit may be answered `unknown`; sometimes it was applied, sometimes not
    queries     may miss what was committed lately, for a bounded number of queries; then they have caught up
    races       another daemon may commit between a read and the commit that was decided on it
    units       hold at most as many writes as the port says
    the log     lies in three parts; a record's entries are in one of them, and every reader mixes the parts its own
                way. A cursor says how far each part was read: "a3.b7.c0"
    a dump      takes its time: each record is as it was at the start, or newer
    time        every call lets others run first, more or less often

All of it comes from a seed: a failure happens again.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from statesvc.backends.port import (
    REMOVED,
    UNIT_WRITES,
    Cursor,
    Dump,
    Engine,
    Event,
    Key,
    LogEntry,
    LogKept,
    Place,
    Query,
    Result,
    Row,
    Stamp,
    Unit,
    sort_key,
)
from statesvc_client.errors import BadRequest, Gone

STALE_QUERIES = 3
"""Queries that may miss a commit; the next one sees it."""

PARTS = "abc"
CUT_ENTRIES = 3
DUMP_ROWS = 5
POLL_SECONDS = 0.002

Vector = dict[str, int]
"""How far each part of the log was read."""

_CURSOR = re.compile(r"a(\d{1,9})\.b(\d{1,9})\.c(\d{1,9})")


def part_of(key: Key) -> str:
    return PARTS[zlib.crc32("/".join(key).encode()) % len(PARTS)]


def _cursor(vector: Vector) -> Cursor:
    return ".".join(f"{part}{vector[part]}" for part in PARTS)


def _vector(cursor: Cursor) -> Vector:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise BadRequest(f"not a cursor of the weak engine: {cursor!r}")
    return dict(zip(PARTS, map(int, found.groups()), strict=True))


class _Logged(NamedTuple):
    """An entry at its place in its part of the log."""

    number: int
    event: Event
    row: Row

    @property
    def size(self) -> int:
        return len(self.row.body) + len(self.row.marks)


class _Part:
    """One part of the log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start = self.end = 0
        self.entries: list[_Logged] = []

    def append(self, event: Event, row: Row) -> None:
        self.end += 1
        self.entries.append(_Logged(self.end, event, row))

    def behind(self, number: int) -> list[_Logged]:
        return self.entries[number - self.start :]

    def cut_oldest(self) -> None:
        self.start = self.entries.pop(0).number


class _Lagging(NamedTuple):
    """A row that queries do not see before the query of this number."""

    order: int
    row: Row
    seen_from: int


class WeakStorage:
    """What all daemons on it share."""

    def __init__(self, seed: int = 0, *, unknown: float = 0.2) -> None:
        self.epoch = os.urandom(8).hex()
        self.unknown = unknown
        self.chance = random.Random(seed)
        self.rows: dict[Key, Row] = {}
        self.parts = {name: _Part(name) for name in PARTS}
        self.born_at: dict[Key, int] = {}
        """Where the history of a record begins that was there before and removed."""
        self._writes = 0
        self._seen: dict[Key, _Lagging] = {}
        self._lagging: list[_Lagging] = []
        self._queries = 0

    def apply(self, unit: Unit) -> Result:
        for row, expects, _, _ in unit:
            stored = self.rows.get(row.key)
            if (None if stored is None else stored.stamp) != expects:
                return "conflict"
        for row, _, event, _ in unit:
            self._store(row, event)
        return "applied"

    def _store(self, row: Row, event: Event | None) -> None:
        part = self.parts[part_of(row.key)]
        if event is not None:
            part.append(event, row)
        if row.deleted == REMOVED:
            self.rows.pop(row.key, None)
            self.born_at[row.key] = part.end
        else:
            self.rows[row.key] = row
        self._writes += 1
        seen_from = self._queries + self.chance.randint(1, STALE_QUERIES + 1)
        self._lagging.append(_Lagging(self._writes, row, seen_from))

    def query(self, query: Query) -> list[Row]:
        self._queries += 1
        self._seen, self._lagging = self._view(self._queries)
        return walk((lagging.row for lagging in self._seen.values()), query)

    def catch_up(self) -> None:
        """The next query sees all there is."""
        self._queries += STALE_QUERIES

    def _view(self, number: int) -> tuple[dict[Key, _Lagging], list[_Lagging]]:
        """What the query of this number sees, and what it does not yet. A record never goes back to an older row."""
        seen = dict(self._seen)
        for lagging in self._lagging:
            before = seen.get(lagging.row.key)
            if lagging.seen_from <= number and (before is None or before.order < lagging.order):
                seen[lagging.row.key] = lagging
        return seen, [lagging for lagging in self._lagging if lagging.seen_from > number]

    # --- the log -----------------------------------------------------------------------------------------------------

    def begin(self) -> Vector:
        return {name: part.start for name, part in self.parts.items()}

    def end(self) -> Vector:
        return {name: part.end for name, part in self.parts.items()}

    def read(self, after: Cursor, limit: int, chance: random.Random) -> list[LogEntry]:
        """Entries of all parts, mixed by `chance`; those of one part in order."""
        at = _vector(after) if after else self.begin()
        if any(not part.start <= at[name] <= part.end for name, part in self.parts.items()):
            raise Gone(f"the log is not kept from {after} on, or does not reach that far")
        waiting = [(name, part.behind(at[name])) for name, part in self.parts.items()]
        found: list[LogEntry] = []
        while len(found) < limit and (left := [each for each in waiting if each[1]]):
            name, entries = chance.choice(left)
            number, event, row = entries.pop(0)
            at = {**at, name: number}
            found.append(LogEntry(_cursor(at), event, row))
        return found

    def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        name, at = part_of(key), _vector(after) if after else self.begin()
        least = max(at[name], self.born_at.get(key, 0))
        return [
            LogEntry(_cursor({**at, name: number}), event, row)
            for number, event, row in self.parts[name].entries
            if row.key == key and number > least
        ][:limit]

    def cut(self, keep: LogKept) -> bool:
        for _ in range(CUT_ENTRIES):
            if not (free := self._may_be_cut(keep)):
                return False
            free[0].cut_oldest()
        return bool(self._may_be_cut(keep))

    def _may_be_cut(self, keep: LogKept) -> list[_Part]:
        filled = [part for part in self.parts.values() if part.entries]
        too_large = sum(entry.size for part in filled for entry in part.entries) > keep.most_bytes
        return [part for part in filled if too_large or part.entries[0].event.at < keep.since]

    # --- the whole ---------------------------------------------------------------------------------------------------

    def replace(self, rows: dict[Key, Row]) -> None:
        self.epoch = os.urandom(8).hex()
        self.rows = rows
        self.parts = {name: _Part(name) for name in PARTS}
        self.born_at.clear()
        self._lagging.clear()
        self._seen = {key: _Lagging(self._writes, row, 0) for key, row in rows.items()}

    def problems(self) -> list[str]:
        found: list[str] = []
        for key, row in self.rows.items():
            told = [entry.row for entry in self.history(key, "", 10**9)]
            if told and told[-1].stamp != row.stamp:
                found.append(f"{key}: the row is not what the log leads to")
            for before, after in pairwise(told):
                if before.uid == after.uid and after.revision != before.revision + 1:
                    found.append(f"{key}: revision {after.revision} follows {before.revision} in the log")
        seen, left = self._view(self._queries + STALE_QUERIES + 1)
        if left or {key: each.row for key, each in seen.items() if each.row.deleted != REMOVED} != self.rows:
            found.append("queries would never see every row")
        return found


class WeakEngine(Engine):
    """One daemon's access to a weak storage."""

    name = "weak"
    immediate = False

    def __init__(self, storage: WeakStorage | None = None) -> None:
        self.storage = storage or WeakStorage()
        self.durability = "memory"
        # Each daemon mixes the parts of the log its own way.
        self._mixing = random.Random(self.storage.chance.random())

    @property
    def epoch(self) -> str:  # type: ignore[override]
        return self.storage.epoch

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
        lost: set[tuple[Key, Stamp | None]] = set()
        for place in self._any_order(batch):
            await self._let_others_run()
            unit = batch[place]
            built_on_lost = any((write.row.key, write.expects) in lost for write in unit)
            results[place] = "conflict" if built_on_lost else self._attempt(unit)
            if results[place] != "applied":
                lost.update((write.row.key, write.row.stamp) for write in unit)
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

    async def kinds(self) -> list[str]:
        await self._let_others_run()
        return sorted({kind for kind, _ in self.storage.rows})

    # --- the log -----------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        await self._let_others_run()
        return _cursor(self.storage.end())

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        await self._let_others_run()
        return self.storage.read(after, limit, self._mixing)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        """Others write to the same store and tell nobody: look again and again."""
        known = _vector(after) if after else self.storage.begin()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.storage.end() == known and loop.time() < until:
            await asyncio.sleep(min(POLL_SECONDS, seconds))

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        await self._let_others_run()
        return self.storage.history(key, after, limit)

    async def compact(self, keep: LogKept) -> bool:
        await self._let_others_run()
        return self.storage.cut(keep)

    # --- the whole ---------------------------------------------------------------------------------------------------

    async def dump(self) -> Dump:
        await self._let_others_run()
        keys = list(self.storage.rows)
        return Dump(_cursor(self.storage.end()), len(keys), self._rows_of(keys))

    async def _rows_of(self, keys: list[Key]) -> AsyncIterator[list[Row]]:
        """Each record as it is when its turn comes."""
        for begin in range(0, len(keys), DUMP_ROWS):
            found = await self.get(keys[begin : begin + DUMP_ROWS])
            yield [row for row in found if row is not None]

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        fresh = {row.key: row async for some in rows for row in some}
        self.storage.replace(fresh)

    async def check(self) -> list[str]:
        return self.storage.problems()

    async def repair(self) -> list[str]:
        """It has no indexes that could be wrong."""
        return []

    def measures(self) -> dict[str, int]:
        return {"records": len(self.storage.rows)}

    async def _let_others_run(self) -> None:
        for _ in range(self.storage.chance.randint(0, 2)):
            await asyncio.sleep(0)


# --- queries, the plain way ------------------------------------------------------------------------------------------


def walk(rows: Iterable[Row], query: Query) -> list[Row]:
    """What a query means, written down without an index. Other engines are compared with it."""
    found = [row for row in rows if row.kind == query.kind and _is_met(row, query) and _matches(row, query)]
    found.sort(key=lambda row: _place(row, query), reverse=query.descending)
    return found[: query.limit]


def _is_met(row: Row, query: Query) -> bool:
    return row.deleted > 0 if query.sort == "deleted" else row.deleted == 0


def _matches(row: Row, query: Query) -> bool:
    key = sort_key(row, query.sort)
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


def _place(row: Row, query: Query) -> tuple[Any, ...]:
    return (row.id,) if query.missing else (sort_key(row, query.sort), row.id)


def _last(after: Place, query: Query) -> tuple[Any, ...]:
    return (after.id,) if query.missing else tuple(after)
