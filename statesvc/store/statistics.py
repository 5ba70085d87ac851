"""Statistics: how many records there are by any field, and how long they waited and ran.

Owns counting and measuring within a bound of memory, however many records there are. Must not know how they are found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from statesvc_client import patch
from statesvc_client.errors import BadRequest
from statesvc_client.wire import Duration, Stats

from ..backends.port import Query, Row
from . import queries
from .clock import SECOND
from .deduplication import OWN
from .kinds import Kind
from .matching import matching
from .records import decode
from .store import Store

EVERY_KIND = "*"

MOST_VALUES = 1000
"""Distinct values counted one by one."""

OTHERS = "*"
"""What all further values are counted under."""

MOST_VALUE_CHARS = 256
"""Of a value's text: longer ones that begin alike are counted as one."""

ERROR = 0.005
"""How far a percentile may be off, as a part of it: half of the percent that is promised."""

_GROWTH = math.log((1 + ERROR) / (1 - ERROR))


class Counted(NamedTuple):
    """What stats answers."""

    total: int
    counts: dict[str, int]
    durations: dict[str, Duration]
    truncated: bool


async def count_records(store: Store, request: Stats) -> Counted:
    """Count what the filter lets pass, in one walk."""
    if request.kind == EVERY_KIND:
        return await _count_kinds(store, request)
    kind = store.kinds[request.kind]
    given = queries.read_filter(request.filter)
    value_of = _reader(kind, request.by or "status")
    tally, ran, waited = Tally(), Histogram(), Histogram()
    async with aclosing(matching(store, kind, given)) as rows:
        async for row in rows:
            tally.add(value_of(row))
            _measure(row, ran, waited)
    durations = {name: each.summary() for name, each in (("run", ran), ("wait", waited)) if each.count}
    return Counted(tally.total, dict(tally.counts), durations, tally.truncated)


async def _count_kinds(store: Store, request: Stats) -> Counted:
    if request.filter or request.by:
        raise BadRequest("kind * counts records by kind: it takes neither filter nor by")
    await store.commits.settled()
    tally = Tally()
    for name in await store.engine.kinds():
        if not name.startswith(OWN):
            number = await store.engine.count(Query(kind=name, limit=queries.MOST_STEP))
            tally.add(name, number)
    return Counted(tally.total, dict(tally.counts), {}, tally.truncated)


def _measure(row: Row, ran: Histogram, waited: Histogram) -> None:
    keys = row.keys
    if keys.started is None:
        return
    waited.add(keys.started - keys.created)
    if keys.completed is not None:
        ran.add(keys.completed - keys.started)


# --- values --------------------------------------------------------------------------------------------------------

_KEYS: dict[str, Callable[[Row], str | None]] = {
    "status": lambda row: row.keys.status,
    "nodeId": lambda row: row.keys.node,
    "owner": lambda row: row.keys.owner,
}
"""Fields that are known without decoding the record."""


def _reader(kind: Kind, path: str) -> Callable[[Row], str]:
    names = queries.open_path(kind, path)
    known = _KEYS.get(names[0]) if len(names) == 1 else None
    if known is not None:
        return lambda row: as_text(known(row))
    return lambda row: as_text(patch.lookup(decode(row.body), names))


def as_text(value: Any) -> str:
    """A value to count by: texts as they are, what is missing as nothing, all else as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST_VALUE_CHARS else text[:MOST_VALUE_CHARS] + "…"


class Tally:
    """Counts values, the first so many of them one by one."""

    def __init__(self) -> None:
        self.total = 0
        self.counts: Counter[str] = Counter()
        self.truncated = False

    def add(self, value: str, number: int = 1) -> None:
        if not number:
            return
        self.total += number
        if value not in self.counts and len(self.counts) >= MOST_VALUES:
            value, self.truncated = OTHERS, True
        self.counts[value] += number


# --- durations -----------------------------------------------------------------------------------------------------


class Histogram:
    """Durations in buckets that grow by a constant factor: a few thousand at most, whatever comes."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0
        self._most = 0
        self._buckets: Counter[int] = Counter()

    def add(self, nanoseconds: int) -> None:
        """Times that a client gave may lie the wrong way round: that counts as no time at all."""
        took = max(0, nanoseconds)
        self.count += 1
        self._sum += took
        self._most = max(self._most, took)
        self._buckets[-1 if took == 0 else math.ceil(math.log(took) / _GROWTH)] += 1

    def summary(self) -> Duration:
        p50, p90, p99 = (self._percentile(part) for part in (50, 90, 99))
        mean = self._sum / self.count / SECOND
        return Duration(count=self.count, mean=mean, p50=p50, p90=p90, p99=p99, max=self._most / SECOND)

    def _percentile(self, part: int) -> float:
        """The duration that so many percent took at most, in seconds."""
        left = math.ceil(self.count * part / 100)
        for bucket, number in sorted(self._buckets.items()):
            left -= number
            if left <= 0:
                return min(_middle(bucket), self._most) / SECOND
        return self._most / SECOND


def _middle(bucket: int) -> float:
    """The value that is off by the same part at both ends of a bucket."""
    return 0.0 if bucket < 0 else math.exp(bucket * _GROWTH) * (1 - ERROR)
