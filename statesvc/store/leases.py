"""Which leases stood still: every lease this daemon knows of, and when it last saw a sign of life.

Owns the only clock leases are judged by: this process's own, which no other machine and no change of the wall clock can
touch. Must not decide what happens to a record. After a start it knows nothing, so every lease gets its full time anew.

On an immediate engine a bare renewal lives here only: the row with its newest beat is laid over the stored one.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from statesvc_client.wire import Lease

from ..backends.port import Key, Row
from .leasing import is_leased, lease_of


class Seen(Struct, gc=False):
    """A lease as it was last seen to move."""

    lease: Lease
    since: float
    renewed: Row | None = None
    """The row with a beat that is not stored."""

    @property
    def ends(self) -> float:
        return self.since + self.lease.ttl + self.lease.hold


class Leases:
    """Every lease seen, by record."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._seen: dict[Key, Seen] = {}
        self._ends: list[tuple[float, Key]] = []
        """A heap; an entry may be early, never late."""
        self._planned: dict[Key, float] = {}
        """The earliest entry of each record in the heap: a renewal needs no other."""

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, row: Row) -> None:
        """Take notice of a row as it is stored now."""
        if is_leased(row):
            self._observe(self.newest(row))
        elif self._seen:
            self._seen.pop(row.key, None)

    def _observe(self, row: Row) -> None:
        lease = lease_of(row)
        if lease is None:
            return
        seen = self._seen.get(row.key)
        if seen is None or (seen.lease.token, seen.lease.beat) != (lease.token, lease.beat):
            self._set(row.key, Seen(lease, self._steady()))
        else:
            seen.lease = lease

    def _set(self, key: Key, seen: Seen) -> None:
        self._seen[key] = seen
        self._plan(key, seen.ends)

    def _plan(self, key: Key, at: float) -> None:
        planned = self._planned.get(key)
        if planned is None or at < planned:
            self._planned[key] = at
            heapq.heappush(self._ends, (at, key))

    def renewed(self, row: Row, lease: Lease) -> None:
        """A sign of life that is kept in memory only."""
        self._set(row.key, Seen(lease, self._steady(), row))

    def newest(self, row: Row) -> Row:
        """The row with the newest beat: the very same, unless it was renewed since."""
        seen = self._seen.get(row.key)
        if seen is None or seen.renewed is None or seen.renewed.stamp != row.stamp:
            return row
        return seen.renewed

    def stood_still(self, row: Row) -> bool:
        """Whether the lease on this row gave no sign of life for as long as it may."""
        self.note(row)
        seen = self._seen.get(row.key)
        return seen is not None and self._steady() >= seen.ends

    def is_silent(self, row: Row) -> bool:
        """Whether the holder of this row's lease gave no sign of life for its ttl: it must not count on it any more."""
        self.note(row)
        seen = self._seen.get(row.key)
        return seen is not None and self._steady() >= seen.since + seen.lease.ttl

    def past_ttl(self) -> Iterator[tuple[Key, Lease]]:
        """Leases without a sign of life for their ttl, whether or not they are still held back from others."""
        now = self._steady()
        for key, seen in self._seen.items():
            if now >= seen.since + seen.lease.ttl:
                yield key, seen.lease

    def lapsed(self) -> list[tuple[Key, Lease]]:
        """Leases that stood still. Each is named once, and again only if it is seen again."""
        now = self._steady()
        found: list[tuple[Key, Lease]] = []
        while self._ends and self._ends[0][0] <= now:
            at, key = heapq.heappop(self._ends)
            if self._planned.get(key) == at:
                del self._planned[key]
            seen = self._seen.get(key)
            if seen is None:
                continue
            if seen.ends > now:
                self._plan(key, seen.ends)
            else:
                found.append((key, seen.lease))
        return found

    def look_again(self, key: Key, after: float) -> None:
        """Name a lapsed lease once more, later: what was to be done about it did not work."""
        if key in self._seen:
            self._plan(key, self._steady() + after)
