"""Which leases stood still: every lease this daemon knows of, and when it last saw a sign of life.

Owns the only clock leases are judged by: this process's own, which no other machine and no change of the wall clock can
touch. Must not decide what happens to a record. After a start it knows nothing, so every lease gets its full time anew.

On an immediate engine a bare renewal that leaves the ttl as it is lives here only: the row with its newest beat is laid
over the stored one.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from statesvc_client.wire import Lease

from ..backends.port import Key, Row
from .leasing import is_leased, lease_of

NAMED_AGAIN_SECONDS = 1.0
"""How long a lease that stood still is not named again while it is being dealt with."""

LOOKS_PER_TTL = 8
"""How often a lease is looked at within its time, on an engine where other daemons renew: a lapse is noticed that much
later at most, and a renewal costs nothing but its write."""

MOST_BETWEEN_TICKS_SECONDS = 0.5
"""What counts at most of the time between two ticks: twice what lies between them when all is well."""

SPARE_PLANS = 1024
"""Plans for leases that are gone already, before they are cleared away."""


class Seen(Struct, gc=False):
    """A lease as it was last seen to move."""

    lease: Lease
    since: float
    looked: float = 0.0
    """When its row was last looked at, on an engine where signs of life are in the rows."""
    renewed: Row | None = None
    """The row with a beat that is not stored."""

    @property
    def ends(self) -> float:
        return self.since + self.lease.ttl + self.lease.hold


class Leases:
    """Every lease seen, by record."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self.seen: dict[Key, Seen] = {}
        """Whoever asks at every request whether there are any looks here."""
        self._ends: list[tuple[float, Key]] = []
        """A heap; an entry may be early, never late."""
        self._planned: dict[Key, float] = {}
        """The earliest entry of each record in the heap: a renewal needs no other."""
        self._by_origin: dict[str, Key] = {}
        self._ticked: float | None = None
        self._stalled = 0.0

    def __len__(self) -> int:
        return len(self.seen)

    def note(self, row: Row) -> None:
        """Take notice of a row as it is stored now."""
        if is_leased(row):
            self._observe(self.newest(row))
        elif self.seen and not self._is_old_news(row):
            self._forget(row.key)

    def _is_old_news(self, row: Row) -> bool:
        """Whether the row is from before its lease. On a shared engine the answer to a commit may come behind what the
        log tells of the next one: a lease forgotten for that would not lapse until all of them are looked for. Only the
        token tells: revisions may have been seen that never came about."""
        seen = self.seen.get(row.key)
        return seen is not None and row.token < seen.lease.token

    def told(self, row: Row) -> None:
        """Take notice of a row the log tells of. What was seen since may be newer: bare renewals are in no log."""
        lease, seen = lease_of(row), self.seen.get(row.key)
        if lease is None or seen is None or (lease.token, lease.beat) >= (seen.lease.token, seen.lease.beat):
            self.note(row)

    def _forget(self, key: Key) -> None:
        self._unlink(key)
        self.seen.pop(key, None)
        if len(self._ends) > 2 * len(self.seen) + SPARE_PLANS:
            # A lease that is given back leaves its plan behind; those of a week must not pile up.
            self._planned = {key: seen.ends for key, seen in self.seen.items()}
            self._ends = [(at, key) for key, at in self._planned.items()]
            heapq.heapify(self._ends)

    def _unlink(self, key: Key) -> None:
        seen = self.seen.get(key)
        if seen is not None and seen.lease.origin:
            self._by_origin.pop(seen.lease.origin, None)

    def tick(self) -> float:
        """This process runs, which it says every so often once it has begun to. If it stood still itself, what came
        meanwhile is heard only now, so that time does not count: returns how much that is since the last tick."""
        now = self._steady()
        stalled = 0.0 if self._ticked is None else max(0.0, now - self._ticked - MOST_BETWEEN_TICKS_SECONDS)
        self._stalled += stalled
        self._ticked = now
        return stalled

    def _now(self) -> float:
        """What is asked after a stall and before the next tick must not count it either."""
        now = self._steady()
        if self._ticked is not None:
            now = min(now, self._ticked + MOST_BETWEEN_TICKS_SECONDS)
        return now - self._stalled

    def of_origin(self, origin: str) -> Key | None:
        """The record that is held by this very claim."""
        return self._by_origin.get(origin)

    def _observe(self, row: Row) -> None:
        lease = lease_of(row)
        if lease is None:
            return
        seen = self.seen.get(row.key)
        if seen is None or (seen.lease.token, seen.lease.beat) != (lease.token, lease.beat):
            self._set(row.key, Seen(lease, self._now()))
        else:
            seen.lease = lease
            self._plan(row.key, seen.ends)

    def _set(self, key: Key, seen: Seen) -> None:
        self._unlink(key)
        self.seen[key] = seen
        if seen.lease.origin:
            self._by_origin[seen.lease.origin] = key
        self._plan(key, seen.ends)

    def _plan(self, key: Key, at: float) -> None:
        planned = self._planned.get(key)
        if planned is None or at < planned:
            self._planned[key] = at
            heapq.heappush(self._ends, (at, key))

    def renewed(self, row: Row, lease: Lease) -> None:
        """A sign of life that is kept in memory only."""
        self._set(row.key, Seen(lease, self._now(), renewed=row))

    def to_be_stored(self, key: Key) -> None:
        """The newest beat is on its way into the row itself: none is laid over that."""
        seen = self.seen.get(key)
        if seen is not None:
            seen.renewed = None

    def newest(self, row: Row) -> Row:
        """The row with the newest beat: the very same, unless it was renewed since."""
        seen = self.seen.get(row.key)
        if seen is None or seen.renewed is None or seen.renewed.stamp != row.stamp:
            return row
        return seen.renewed

    def stood_still(self, row: Row) -> bool:
        """Whether the lease on this row gave no sign of life for as long as it may."""
        self.note(row)
        seen = self.seen.get(row.key)
        return seen is not None and self._now() >= seen.ends

    def is_silent(self, row: Row) -> bool:
        """Whether the holder of this row's lease gave no sign of life for its ttl: it must not count on it any more."""
        self.note(row)
        seen = self.seen.get(row.key)
        return seen is not None and self._now() >= seen.since + seen.lease.ttl

    def past_ttl(self) -> Iterator[tuple[Key, Lease]]:
        """Leases without a sign of life for their ttl, whether or not they are still held back from others."""
        now = self._now()
        for key, seen in self.seen.items():
            if now >= seen.since + seen.lease.ttl:
                yield key, seen.lease

    def to_look_at(self) -> list[tuple[Key, Lease]]:
        """Leases whose rows should be looked at again for a sign of life: several times within the time they have."""
        now = self._now()
        found: list[tuple[Key, Lease]] = []
        for key, seen in self.seen.items():
            if now >= max(seen.looked, seen.since) + seen.lease.ttl / LOOKS_PER_TTL:
                seen.looked = now
                found.append((key, seen.lease))
        return found

    def looked_at(self, key: Key, lease: Lease, row: Row | None) -> None:
        """The row is what was stored after this lease had been seen. If it is not in there it is gone, or never came
        about; what was heard meanwhile may be newer than the row."""
        seen = self.seen.get(key)
        if seen is None or seen.lease.token != lease.token:
            return
        if row is not None and is_leased(row):
            self.note(row)
        else:
            self._forget(key)

    def undone(self, key: Key, stored: Row | None) -> None:
        """A write to this record did not happen, and this is what is stored. A lease that only the write had is none;
        one that is stored keeps its time, without a beat laid over what the write would have made of the row."""
        seen, lease = self.seen.get(key), None if stored is None else lease_of(stored)
        if seen is not None and lease is not None and seen.lease.token == lease.token:
            seen.lease, seen.renewed = lease, None
            self._plan(key, seen.ends)
            return
        self._forget(key)
        if stored is not None:
            self.note(stored)

    def never_given(self, row: Row) -> None:
        """The claim of this row did not happen, as far as is known."""
        seen = self.seen.get(row.key)
        if seen is not None and seen.lease.token == row.token:
            self._forget(row.key)

    def lapsed(self) -> list[tuple[Key, Lease]]:
        """Leases that stood still."""
        now = self._now()
        found: list[tuple[Key, Lease]] = []
        while self._ends and self._ends[0][0] <= now:
            at, key = heapq.heappop(self._ends)
            if self._planned.get(key) == at:
                del self._planned[key]
            seen = self.seen.get(key)
            if seen is None:
                continue
            if seen.ends > now:
                self._plan(key, seen.ends)
            else:
                found.append((key, seen.lease))
                # Named again until it is gone: what is to be done about it may not work at once.
                self._plan(key, now + NAMED_AGAIN_SECONDS)
        return found
