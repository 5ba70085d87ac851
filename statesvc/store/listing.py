"""Lists: a page out of the candidates a query finds.

Owns when a page ends and what a list answers. Must not know how candidates are found: that is in queries.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import NamedTuple

from statesvc_client.errors import BadRequest
from statesvc_client.wire import List

from ..backends.port import Place, Row
from . import queries
from .frames import ENVELOPE_BYTES
from .kinds import Kind
from .store import Store
from .turns import Turns
from .writes import Caller, living


class Page(NamedTuple):
    """A page of a list."""

    rows: list[Row]
    as_of: str
    next_cursor: str | None = None
    truncated: bool = False
    total: int | None = None


class Paging(NamedTuple):
    """How large a page is by default, and how many records a call examines for it."""

    default: int = 100
    examined: int = 10_000


async def list_records(store: Store, request: List, caller: Caller, paging: Paging = Paging()) -> Page:  # noqa: B008
    """A page of what the filter lets pass, and how many there are in all when asked to count."""
    came = store.patience.now()
    kind = store.kinds[request.kind]
    given = queries.read_filter(request.filter)
    order = queries.read_order(request, given)
    limit = request.limit or given.limit or None
    if limit is not None and limit < 0:
        raise BadRequest(f"limit must be positive, not {limit}")
    await store.commits.settled()
    as_of = await store.cursor_for_queries()
    asked = _Question(kind, given, order, limit)
    is_long = not caller.said_hello and (limit is None or limit > store.limits.list_limit)
    async with _place_among_long(store, came) if is_long else nullcontext():
        page = await _page(store, request, caller, asked, paging)
    total = await _total(store, asked) if request.count else None
    rows = [store.leases.newest(row) for row in page.rows] if store.leases else page.rows
    return page._replace(rows=rows, as_of=as_of, total=total)


@asynccontextmanager
async def _place_among_long(store: Store, came: float) -> AsyncIterator[None]:
    await store.patience.wait(came, store.long_lists.acquire)
    try:
        yield
    finally:
        store.long_lists.release()


class _Question(NamedTuple):
    kind: Kind
    given: queries.Filter
    order: queries.Order
    limit: int | None


async def _page(store: Store, request: List, caller: Caller, asked: _Question, paging: Paging) -> Page:
    kind, given, order, limit = asked
    whole = not caller.said_hello and limit is None and not request.cursor
    if whole and given.ids is None and not (request.sort_by or given.sort_by):
        return await _everything(store, kind, given, order)
    most = min(limit or paging.default, store.limits.list_limit) if caller.said_hello else limit
    after = queries.read_cursor(request.cursor, kind, order) if request.cursor else None
    page = _Collector(most, store.limits.frame_bytes, None if whole else paging.examined)
    if given.ids is not None:
        await page.fill(store, kind, await _named(store, asked, after))
    else:
        await page.collect(store, queries.plan(given, kind, order), after)
    if not page.more:
        return Page(page.rows, "")
    return Page(page.rows, "", queries.write_cursor(kind, order, page.last()), truncated=whole)


async def _everything(store: Store, kind: Kind, given: queries.Filter, order: queries.Order) -> Page:
    """For an agent without hello and without limit: live records, then the others, as many as fit one frame.

    A job that ends between the two walks is met by both; it is told once, as it was when it lived.
    """
    page = _Collector(None, store.limits.frame_bytes, None)
    for group in _groups(kind):
        planned = queries.plan(given, kind, order, among=group)
        told = {row.id for row in page.rows}
        planned.tests.insert(0, lambda row, _, told=told: row.id not in told)  # type: ignore[misc]
        await page.collect(store, planned._replace(exact=False), None)
    return Page(page.rows, "", truncated=page.more)


def _groups(kind: Kind) -> list[frozenset[str] | None]:
    """Live states first, with those that have none, then all others: final ones, and what an earlier configuration or
    another daemon's has left."""
    if kind.lifecycle is None:
        return [None]
    return [frozenset({queries.NO_STATUS, *kind.lifecycle.live}), None]


async def _named(store: Store, asked: _Question, after: Place | None) -> list[Place]:
    """Where the records stand that `ids` names and the rest of the filter lets pass. Looked at a few at a time: what is
    large is fetched again when it is its turn in the page."""
    kind, given = asked.kind, asked.given
    names = list(dict.fromkeys(given.ids or ()))
    if len(names) > store.limits.list_limit:
        raise BadRequest(f"ids names {len(names)} records; the limit is {store.limits.list_limit}")
    all_tests = queries.tests(given, kind, queries.wanted_statuses(given, kind))
    places: list[Place] = []
    for start in range(0, len(names), queries.FIRST_STEP):
        keys = [(kind.name, name) for name in names[start : start + queries.FIRST_STEP]]
        rows = [row for row in map(living, await store.engine.get(keys)) if row is not None]
        places += [queries.place_of(row, asked.order) for row in rows if queries.passes(row, all_tests)]
    return queries.behind(places, asked.order, after)


async def _total(store: Store, asked: _Question) -> int:
    """How many records the filter lets pass. Counted in the index where that is enough, else one by one."""
    if asked.given.ids is not None:
        return len(await _named(store, asked, None))
    planned = queries.plan(asked.given, asked.kind, queries.Order("created", descending=True))
    if planned.exact:
        return await store.engine.count(planned.walk)
    total, turns = 0, Turns()
    async with aclosing(queries.candidates(store.engine, planned, None)) as rows:
        async for row in rows:
            total += queries.passes(row, planned.tests)
            await turns.pause()
    return total


class _Collector:
    """Takes rows until the page is full, the frame is full, or enough were examined."""

    def __init__(self, most: int | None, frame_bytes: int, examine: int | None) -> None:
        self.rows: list[Row] = []
        self.more = False
        self._most = most
        self._room = frame_bytes - ENVELOPE_BYTES
        self._examine = examine
        self._examined = 0
        self._last: Place | None = None
        self._turns = Turns()

    def last(self) -> Place:
        """Where to go on from."""
        assert self._last is not None  # noqa: S101 - a page with more behind it has examined something
        return self._last

    async def collect(self, store: Store, planned: queries.Plan, after: Place | None) -> None:
        take_some = self._take_all if planned.exact else self._take_passing
        async with aclosing(queries.steps(store.engine, planned, after, self._most)) as fetched:
            async for rows in fetched:
                store.patience.answered()
                if not await take_some(rows, planned):
                    return

    async def _take_all(self, rows: list[Row], planned: queries.Plan) -> bool:
        """Take rows that the walk itself has chosen; whether more are wanted."""
        taken = next((number for number, row in enumerate(rows) if self._full() or not self.take(row)), len(rows))
        if taken:
            self._examined += taken
            self._last = queries.place_of(rows[taken - 1], planned.order)
        return taken == len(rows)

    async def _take_passing(self, rows: list[Row], planned: queries.Plan) -> bool:
        """Take those among them that the filter lets pass, which may take its time; whether more are wanted."""
        for row in rows:
            if self._full() or (queries.passes(row, planned.tests) and not self.take(row)):
                return False
            self._last = queries.place_of(row, planned.order)
            self._examined += 1
            await self._turns.pause()
        return True

    async def fill(self, store: Store, kind: Kind, places: list[Place]) -> None:
        """Take records whose places are known, in that order."""
        for place in places:
            if self._full():
                return
            (found,) = await store.engine.get([(kind.name, place.id)])
            store.patience.answered()
            row = living(found)
            if row is not None and not self.take(row):
                return
            self._last = place

    def _full(self) -> bool:
        full = self._most is not None and len(self.rows) >= self._most
        tired = self._examine is not None and self._examined >= self._examine
        self.more = self.more or full or tired
        return self.more

    def take(self, row: Row) -> bool:
        # The room of a frame as frames.Room counts it, here without a call for every row.
        size = len(row.body) + 1
        fits = size <= self._room or not self.rows
        if self.more or not fits or (self._most is not None and len(self.rows) >= self._most):
            self.more = True
            return False
        self._room -= size
        self.rows.append(row)
        return True
