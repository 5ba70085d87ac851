"""The front of each queue, in memory: what may be claimed next, decided writes included.

Owns which ready records are known by place, and up to where that is all there are. Must not decide who gets one. For
engines that belong to this process alone: every write comes by here, so a claim needs no query. What lies behind the
front is found by walking the engine's index, as on any other engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList

from ..backends.port import Place, Query, Row, Unit
from .store import Store

FRONT = 2048
"""Places read at a time. Twice as many are kept at most, of each kind."""

LOW = 64
"""So few are left before more are read."""


class Front:
    """The best places of one kind's queue."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._places: SortedList[tuple[str, str]] = SortedList()
        self._of: dict[str, tuple[str, str]] = {}
        self._end: tuple[str, str] | None = ("", "")
        """Everything up to here is known; None when that is all there is."""
        self._filling = False
        self._missed: list[Row] = []
        """What came while more was being read."""

    def noticed(self, row: Row) -> None:
        """A write was decided."""
        self._put(row)
        if self._filling:
            self._missed.append(row)

    def _put(self, row: Row) -> None:
        known = self._of.pop(row.id, None)
        if known is not None:
            self._places.remove(known)
        if row.deleted or row.keys.ready is None:
            return
        place = (row.keys.ready, row.id)
        if self._end is None or place <= self._end:
            self._places.add(place)
            self._of[row.id] = place
            self._stay_small()

    def _stay_small(self) -> None:
        if len(self._places) <= 2 * FRONT:
            return
        self._end = self._places[FRONT - 1]
        for place in self._places[FRONT:]:
            del self._of[place[1]]
        del self._places[FRONT:]

    @property
    def end(self) -> Place | None:
        """Where a walk goes on behind the front; None when nothing lies there."""
        return None if self._end is None else Place(*self._end)

    def walk(self) -> Iterator[Row]:
        """The newest rows of the front, best first. Taking one on the way is no harm."""
        last: tuple[str, str] | None = None
        while some := list(islice(self._places.irange(last, None, (False, False)), LOW)):
            for last in some:
                row, _ = self._store.newest((self._kind, last[1]))
                if row is not None and row.keys.ready is not None and not row.deleted:
                    yield row

    async def fill(self) -> None:
        """Read more, when little is left and there is more."""
        if self._end is None or self._filling or len(self._places) >= LOW:
            return
        self._filling = True
        try:
            await self._read_on(self._end)
        finally:
            self._filling = False
            self._missed.clear()

    async def _read_on(self, end: tuple[str, str]) -> None:
        await self._store.commits.settled()
        after = Place(*end) if end != ("", "") else None
        walk = Query(kind=self._kind, sort="ready", descending=False, limit=FRONT, after=after)
        rows = await self._store.engine.query(walk)
        if self._end != end:
            return  # it was forgotten or cut meanwhile
        last = rows[-1] if len(rows) == FRONT else None
        self._end = None if last is None else (last.keys.ready or "", last.id)
        for row in [*rows, *self._missed]:
            newest, _ = self._store.newest(row.key)
            if newest is not None:
                self._put(newest)


class Fronts:
    """The fronts of all queues anybody claims from."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fronts: dict[str, Front] = {}

    def of(self, kind: str) -> Front:
        front = self._fronts.get(kind)
        if front is None:
            front = self._fronts[kind] = Front(self._store, kind)
            self._store.commits.added = self._added
        return front

    def _added(self, unit: Unit) -> None:
        for write in unit:
            front = self._fronts.get(write.row.kind)
            if front is not None:
                front.noticed(write.row)

    def forget(self) -> None:
        """What was decided did not happen, or everything was replaced: read anew."""
        self._fronts.clear()
        self._store.commits.added = None
