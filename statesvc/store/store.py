"""The store: every rule applied to the newest state, every change handed to the engine.

Owns the order of things: read, decide, commit, and read again after a lost race. Must not know sockets, frames or how
an engine keeps its rows. What a write does is in writes.py, what a list finds in queries.py.

On an immediate engine a write is decided at once on the newest state, pending included, and `Decided.after` names the
commit its answer has to wait for. On a shared engine every commit may lose a race: then it is decided again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

from statesvc_client.errors import BadRequest, Conflict, Internal, Outcome, StateError, Unavailable
from statesvc_client.wire import Create, Delete, Fields, Get, Limits, List, Sync, Update
from statesvc_client.wire import Write as WriteRequest

from ..backends.port import Engine, Key, Place, Result, Row, Write
from . import marks, queries, writes
from .batches import Batch, GroupCommit
from .clock import Clock, Stamper
from .kinds import Kind, Kinds
from .records import checked_id, identify, spelled
from .writes import Caller, Moment, Subject

ATTEMPTS = 16
"""How often a write that keeps losing races on a shared engine is decided again before the client is told `busy`."""

SYNC_STEP = 128
"""Records of a sync decided before others get their turn: about a millisecond."""


class Decided(NamedTuple):
    """What became of a request, once the batch `after` is committed."""

    row: Row | None = None
    after: Batch | None = None
    refused: StateError | None = None
    duplicate_of: int | None = None


class Page(NamedTuple):
    """A page of a list."""

    rows: list[Row]
    as_of: str
    next_cursor: str | None = None
    truncated: bool = False


class SyncReport(NamedTuple):
    """What a sync did."""

    applied: int
    unchanged: int
    rejected: list[tuple[str, StateError]]
    missing: list[str] | None


PointWrite = Create | Update | Delete
_Decide = Callable[[Subject], Write | None]


class Store:
    """One namespace of records on one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        kinds: Kinds | None = None,
        limits: Limits | None = None,
        list_default: int = 100,
        list_examined: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.kinds = kinds or Kinds()
        self.limits = limits or Limits()
        self.commits = GroupCommit(engine)
        self._list_default = list_default
        self._list_examined = list_examined
        self._clock = clock or Clock()
        self._stamper = Stamper()
        life = os.urandom(8).hex()
        self._uids = (f"{life}{number:x}" for number in itertools.count(1))

    def start(self) -> None:
        self.commits.start()

    async def stop(self) -> None:
        await self.commits.stop()

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._stamper.text, self._uids.__next__, self.limits)

    # --- one record ------------------------------------------------------------------------------------------------

    def get_now(self, request: Get) -> Decided:
        kind = self.kinds[request.kind]
        key = (kind.name, checked_id(kind, request.target, self.limits.id_chars))
        row, after = self._newest(key)
        return Decided(row if row is not None and not row.deleted else None, after)

    async def get(self, request: Get) -> Decided:
        kind = self.kinds[request.kind]
        key = (kind.name, checked_id(kind, request.target, self.limits.id_chars))
        row = (await self.engine.get([key]))[0]
        return Decided(row if row is not None and not row.deleted else None)

    def _newest(self, key: Key) -> tuple[Row | None, Batch | None]:
        pending = self.commits.pending(key)
        return pending if pending is not None else (self.engine.peek(key), None)

    def write_now(self, request: PointWrite, caller: Caller, *, replayed: bool = False) -> Decided:
        """Decide a write on an immediate engine. `replayed`: its seq has passed on this connection before."""
        key, fields, kind = self._addressed(request)
        row, after = self._newest(key)
        subject = Subject(kind, key[1], row)
        try:
            decided = self._decide(request, fields, subject, caller, replayed=replayed)
        except StateError as refused:
            return Decided(after=after, refused=refused)
        if isinstance(decided, int):
            return Decided(row, after, duplicate_of=decided)
        return Decided(decided.row, self.commits.add((decided,)))

    async def write(self, request: PointWrite, caller: Caller, *, replayed: bool = False) -> Decided:
        """Decide a write on a shared engine: again after every lost race, within a bound."""
        key, fields, kind = self._addressed(request)
        unsure: list[Row] = []
        for _ in range(ATTEMPTS):
            row = await self._read(key)
            if row is not None and any(row.stamp == mine.stamp and row.body == mine.body for mine in unsure):
                return Decided(row)
            subject = Subject(kind, key[1], row)
            try:
                decided = self._decide(request, fields, subject, caller, replayed=replayed and not unsure)
            except StateError as refused:
                return Decided(refused=_once_unknown(refused, unsure))
            if isinstance(decided, int):
                return Decided(row, duplicate_of=None if unsure else decided)
            result = await self._commit(decided)
            if result == "applied":
                return Decided(decided.row)
            if result == "unknown":
                unsure.append(decided.row)
        outcome: Outcome = "unknown" if unsure else "not_applied"
        raise Unavailable(f"{kind.name} {key[1]} keeps changing; send the write again", outcome=outcome)

    async def _read(self, key: Key) -> Row | None:
        """The stored row, once no commit of our own is under way for it."""
        while (pending := self.commits.pending(key)) is not None:
            await pending[1].wait()
        return (await self.engine.get([key]))[0]

    async def _commit(self, write: Write) -> Result:
        batch = self.commits.add((write,))
        place = len(batch.units) - 1
        await batch.wait()
        if batch.failure is not None:
            raise batch.failure
        return batch.results[place]

    def _addressed(self, request: PointWrite) -> tuple[Key, Fields, Kind]:
        """Which record a write is about, and the fields it carries."""
        kind = self.kinds[request.kind]
        if isinstance(request, Delete):
            return (kind.name, checked_id(kind, request.target, self.limits.id_chars)), {}, kind
        fields = writes.payload(request, kind)
        if fields is None:
            if isinstance(request, Create) or not (request.set or request.inc or request.append):
                raise BadRequest(f"{'job' if kind.name == 'job' else 'record'} is required")
            fields = {}
        return (kind.name, identify(kind, request.target, fields, self.limits.id_chars)), fields, kind

    def _decide(
        self, request: PointWrite, fields: Fields, subject: Subject, caller: Caller, *, replayed: bool
    ) -> Write | int:
        """The write to commit, or the revision it made when it came before."""
        moment = self._moment()
        if caller.client:
            stored = b"" if subject.row is None else subject.row.marks
            window = marks.window_start(moment.now, self.limits.marks_seconds)
            made = marks.earlier_answer(stored, caller.client, request, window)
            if made is not None:
                return made
            if replayed:
                raise Conflict(f"write {request.seq} came before on this connection and was answered then")
        if isinstance(request, Create):
            return writes.create(request, fields, subject, caller, moment)
        if isinstance(request, Update):
            return writes.update(request, fields, subject, caller, moment)
        return writes.delete(request, subject, caller, moment)

    # --- many records ----------------------------------------------------------------------------------------------

    async def sync(self, request: Sync, caller: Caller) -> SyncReport:
        """Each record on its own: create what is missing, bring forward what moved, report the rest."""
        kind = self.kinds[request.kind]
        sent = self._sync_records(request, kind)
        report = _Tally()
        try:
            for number, (name, fields) in enumerate(sent.items()):
                if number % SYNC_STEP == SYNC_STEP - 1:
                    await asyncio.sleep(0)
                await self._sync_one(request, kind, name, fields, caller, report)
            missing = await self._not_sent(request, kind, sent, caller, report) if request.scope else None
            await report.settled()
        except StateError as failure:
            # Some of the records may be in: only sending the sync again tells.
            raise type(failure)(failure.text, outcome="unknown") from None
        return SyncReport(report.applied, report.unchanged, report.rejected, missing)

    def _sync_records(self, request: Sync, kind: Kind) -> dict[str, Fields]:
        given = request.jobs if request.jobs is not None else request.records
        if not given:
            raise BadRequest(f"{'jobs' if kind.name == 'job' else 'records'} array is required")
        if request.mode == "replace" and request.scope is None:
            raise BadRequest("mode replace needs a scope: it deletes what lies inside it and was not sent")
        sent: dict[str, Fields] = {}
        for number, record in enumerate(given):
            try:
                fields = spelled(kind, record)
                name = identify(kind, "", fields, self.limits.id_chars)
            except BadRequest as problem:
                raise BadRequest(f"element {number}: {problem.text}") from None
            if name in sent:
                raise BadRequest(f"element {number}: {name} is sent twice")
            sent[name] = fields
        return sent

    async def _sync_one(
        self, request: Sync, kind: Kind, name: str, fields: Fields, caller: Caller, report: _Tally
    ) -> None:
        def decide(subject: Subject) -> Write | None:
            return writes.sync(request, fields, subject, caller, self._moment())

        try:
            await self._bring_forward(request, kind, name, caller, report, decide)
        except StateError as refused:
            if refused.stops_the_writer():
                raise
            report.rejected.append((name, refused))

    async def _bring_forward(
        self, request: WriteRequest, kind: Kind, name: str, caller: Caller, report: _Tally, decide: _Decide
    ) -> None:
        """One record of many: decide, commit, count."""
        key = (kind.name, name)
        for _ in range(ATTEMPTS):
            row, after = self._newest(key) if self.engine.immediate else (await self._read(key), None)
            write = None if self._already_taken(request, row, caller) else decide(Subject(kind, name, row))
            if write is None:
                report.unchanged += 1
                report.depend_on(after)
                return
            if self.engine.immediate:
                report.depend_on(self.commits.add((write,)))
                report.applied += 1
                return
            if await self._commit(write) == "applied":
                report.applied += 1
                return
        raise Unavailable(f"{kind.name} {name} keeps changing; send the sync again")

    def _already_taken(self, request: WriteRequest, row: Row | None, caller: Caller) -> bool:
        if row is None or not caller.client:
            return False
        window = marks.window_start(self._clock.now(), self.limits.marks_seconds)
        return marks.earlier_answer(row.marks, caller.client, request, window) is not None

    async def _not_sent(
        self, request: Sync, kind: Kind, sent: dict[str, Fields], caller: Caller, report: _Tally
    ) -> list[str]:
        """Records inside the scope that the sync did not name; `replace` buries those without a lease."""
        assert request.scope is not None  # noqa: S101 - the caller looked
        given = queries.Filter(node_id=request.scope.node_id)
        planned = queries.plan(given, kind, queries.Order("created", descending=True))
        await self.commits.settled()
        async with aclosing(queries.candidates(self.engine, planned, None)) as rows:
            absent = [row.id async for row in rows if row.id not in sent and queries.passes(row, planned.tests)]
        if request.mode == "replace":
            for name in absent:
                await self._bury_one(request, kind, name, caller, report)
        return absent

    async def _bury_one(self, request: Sync, kind: Kind, name: str, caller: Caller, report: _Tally) -> None:
        scope = request.scope

        def decide(subject: Subject) -> Write | None:
            row = subject.living
            if row is None or scope is None or row.keys.node != scope.node_id:
                return None
            return writes.bury(request, row, caller, self._moment())

        await self._bring_forward(request, kind, name, caller, report, decide)

    # --- lists -----------------------------------------------------------------------------------------------------

    async def list(self, request: List, caller: Caller) -> Page:
        """A page. An agent without hello and without limit gets all that fits one frame, live records first."""
        kind = self.kinds[request.kind]
        given = queries.read_filter(request.filter)
        order = queries.read_order(request, given)
        limit = request.limit or given.limit or None
        if limit is not None and limit < 0:
            raise BadRequest(f"limit must be positive, not {limit}")
        await self.commits.settled()
        as_of = f"{self.engine.epoch}.{await self.engine.position()}"
        if given.ids is not None:
            return await self._by_ids(kind, given, order, as_of)
        whole = not caller.said_hello and limit is None and not request.cursor
        if whole and not (request.sort_by or given.sort_by):
            return await self._everything(kind, given, order, as_of)
        most = self._most(limit, caller)
        after = queries.read_cursor(request.cursor, kind, order) if request.cursor else None
        planned = queries.plan(given, kind, order)
        page = _Collector(most, self._frame_room, None if whole else self._list_examined)
        await page.collect(self.engine, planned, after)
        if not page.more:
            return Page(page.rows, as_of)
        return Page(page.rows, as_of, queries.write_cursor(kind, order, page.last(order)), truncated=whole)

    def _most(self, limit: int | None, caller: Caller) -> int | None:
        if not caller.said_hello:
            return limit
        return min(limit or self._list_default, self.limits.list_limit)

    @property
    def _frame_room(self) -> int:
        """Bytes of records a reply may hold; the rest is for the envelope, the cursor and the commas."""
        return self.limits.frame_bytes - 8192

    async def _by_ids(self, kind: Kind, given: queries.Filter, order: queries.Order, as_of: str) -> Page:
        names = list(dict.fromkeys(given.ids or ()))
        if len(names) > self.limits.list_limit:
            raise BadRequest(f"ids names {len(names)} records; the limit is {self.limits.list_limit}")
        rows = await self.engine.get([(kind.name, name) for name in names])
        all_tests = queries.tests(given, kind, queries.wanted_statuses(given, kind))
        found = [row for row in rows if row is not None and not row.deleted and queries.passes(row, all_tests)]
        having = [row for row in found if queries.place_of(row, order).key is not None]
        lacking = [row for row in found if queries.place_of(row, order).key is None]
        having.sort(key=lambda row: queries.place_of(row, order), reverse=order.descending)
        lacking.sort(key=lambda row: row.id, reverse=order.descending)
        page = _Collector(given.limit or None, self._frame_room, None)
        for row in having + lacking:
            page.take(row)
        return Page(page.rows, as_of, truncated=page.more)

    async def _everything(self, kind: Kind, given: queries.Filter, order: queries.Order, as_of: str) -> Page:
        """Live records, then the others, newest first, as many as fit one frame."""
        page = _Collector(None, self._frame_room, None)
        for group in _groups(kind):
            await page.collect(self.engine, queries.plan(given, kind, order, among=group), None)
        return Page(page.rows, as_of, truncated=page.more)


class _Tally:
    """A sync's counts while it goes on."""

    def __init__(self) -> None:
        self.applied = 0
        self.unchanged = 0
        self.rejected: list[tuple[str, StateError]] = []
        self._batches: list[Batch] = []

    def depend_on(self, batch: Batch | None) -> None:
        if batch is not None and (not self._batches or self._batches[-1] is not batch):
            self._batches.append(batch)

    async def settled(self) -> None:
        """Wait for every commit the sync took part in; raises when one of them failed."""
        for batch in self._batches:
            await batch.wait()
            if batch.failure is not None:
                raise batch.failure


class _Collector:
    """Takes rows until the page is full, the frame is full, or enough were examined."""

    def __init__(self, most: int | None, room: int, examine: int | None) -> None:
        self.rows: list[Row] = []
        self.more = False
        self._most = most
        self._room = room
        self._examine = examine
        self._examined = 0
        self._last: Row | None = None

    def last(self, order: queries.Order) -> Place:
        assert self._last is not None  # noqa: S101 - a page with more behind it has examined something
        return queries.place_of(self._last, order)

    async def collect(self, engine: Engine, planned: queries.Plan, after: Place | None) -> None:
        step = min(256, (self._most or 255) + 1)
        async with aclosing(queries.candidates(engine, planned, after, step)) as rows:
            async for row in rows:
                if self._full():
                    return
                if queries.passes(row, planned.tests) and not self.take(row):
                    return
                self._last = row
                self._examined += 1
                if self._examined % 1024 == 0:
                    await asyncio.sleep(0)

    def _full(self) -> bool:
        full = self._most is not None and len(self.rows) >= self._most
        tired = self._examine is not None and self._examined >= self._examine
        self.more = self.more or full or tired
        return self.more

    def take(self, row: Row) -> bool:
        size = len(row.body) + 1
        if self.more or size > self._room or (self._most is not None and len(self.rows) >= self._most):
            self.more = True
            return False
        self._room -= size
        self.rows.append(row)
        return True


def _groups(kind: Kind) -> list[frozenset[str] | None]:
    """Live states first, with those that have none, then the final ones."""
    if kind.lifecycle is None:
        return [None]
    return [frozenset({queries.NO_STATUS, *kind.lifecycle.live}), kind.lifecycle.terminal]


def _once_unknown(refused: StateError, unsure: list[Row]) -> StateError:
    """A refusal met after a commit whose fate is not known says nothing about that commit."""
    if not unsure:
        return refused
    return Internal(f"the write may have been applied before it was overtaken: {refused.text}", outcome="unknown")
