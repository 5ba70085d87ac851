"""Claims: finding what to take a lease on, and waiting until there is something.

Owns who waits for which record and in which order they are woken. Must not know what a claim does to a record: that is
in leasing.py. A claim is atomic on every engine because taking the record is one conditional write; whoever comes
second finds it taken and goes on to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from statesvc_client.errors import BadRequest, Conflict, StateError
from statesvc_client.wire import Claim, Fields

from ..backends.port import LINK, Key, Query, Row, Unit
from . import leasing, queries, writes
from .batches import Batch
from .frames import Room
from .kinds import Kind
from .readiness import Fronts
from .records import checked_id
from .store import Decide, Store
from .turns import WRITING_SECONDS, Turns
from .writes import Caller, Subject

LOOK_AGAIN_SECONDS = 5.0
"""How often a waiting claim looks by itself on a shared engine: another daemon may have made room."""

MOST_EXAMINED = 10_000
"""Ready records looked at for one claim: a filter that lets nothing pass must not cost the whole queue each time."""


class Claimed(NamedTuple):
    """What a claim got: nothing, one record, or as many as it asked for."""

    rows: list[Row]
    duplicate: bool = False


class _Asked(NamedTuple):
    """A claim, read."""

    request: Claim
    kind: Kind
    fields: Fields
    caller: Caller
    key: Key | None
    tests: list[queries.Test]


class _Waiting:
    """A claim in line, and the future that is done when it should look again."""

    __slots__ = ("asked", "hint", "missed", "woken")

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked
        self.hint: Key | None = None
        """The record it was woken for: a query may not know of it yet."""
        self.missed: Key | None = None
        """A record that came while it was looking: it looks once more before it rests."""
        self.rest()

    def rest(self) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wants(self, row: Row) -> bool:
        key = self.asked.key
        if key is not None:
            return row.key == key and not leasing.is_leased(row)
        return row.keys.ready is not None and queries.passes(row, self.asked.tests)

    def wake(self, hint: Key | None = None) -> bool:
        """Whether it rested."""
        if self.woken.done():
            return False
        self.hint = hint
        self.woken.set_result(None)
        return True


_Line = dict[_Waiting, None]


class _Taking:
    """Records taken one by one: on a shared engine each is a race of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.taken: list[Row] = []
        self._room = Room(store.limits.frame_bytes)
        self._problem: StateError | None = None
        """Why it did not get all it might have; one that leaves it open whether it got something outweighs others."""
        self.is_over = False
        """One that is refused must not keep the others from being taken; a service that fails is not asked again. Nor
        is anything taken that the reply has no room for: nobody would hear of that lease."""

    async def take(self, key: Key, decide: Decide) -> None:
        unit = await self._store.attempt([key], partial(self._decide_if_it_fits, decide), once=True)
        if unit is not None:
            self._took(unit[0].row)

    def _decide_if_it_fits(self, decide: Decide, rows: list[Row | None]) -> Unit | None:
        unit = decide(rows)
        if unit and not self._room.is_for(len(unit[0].row.body)):
            self.is_over = True
            return None
        return unit

    def _took(self, row: Row) -> None:
        self.taken.append(row)
        self._room.give(len(row.body))

    def note(self, problem: StateError) -> None:
        if self._problem is None or problem.outcome == "unknown":
            self._problem = problem
        self.is_over = self.is_over or problem.stops_the_writer()

    async def done(self) -> list[Row]:
        """What it got. Less than was asked for is an answer too, unless there may be more than it knows of."""
        if self._problem is not None and (not self.taken or self._problem.outcome == "unknown"):
            raise self._problem
        return self.taken


class _TakingNow(_Taking):
    """Records taken where nobody else can be faster: each is decided at once. Those of a turn share a commit."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._commits: list[Batch] = []
        """Of each that was taken."""

    async def take(self, key: Key, decide: Decide) -> None:
        added = self._store.attempt_now([key], partial(self._decide_if_it_fits, decide))
        if added is not None:
            unit, commit = added
            self._took(unit[0].row)
            self._commits.append(commit)

    async def done(self) -> list[Row]:
        kept = []
        for row, commit in zip(self.taken, self._commits, strict=True):
            await commit.wait()
            if commit.failure is None:
                kept.append(row)
            else:
                self.note(commit.failure)
        self.taken = kept
        return await super().done()


class Claims:
    """Takes leases, and keeps those who wait for one in line."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[str | Key, _Line] = {}
        """Those who wait for a kind's queue, and for single records, in the order they came."""
        self._fronts = Fronts(store)
        self._being_taken: set[Key] = set()
        if store.engine.immediate:
            store.commits.failed.append(self._undone)

    def _undone(self, units: list[Unit]) -> None:
        """Writes did not happen: what they took is free, and what they made ready is not."""
        self._fronts.forget()
        for key in {write.row.key for unit in units for write in unit} if self._lines else ():
            stored = self._store.engine.peek(key)
            if stored is not None:
                self.noticed(stored)
            else:
                for waiting in self._lines.get(key, {}):
                    waiting.wake()

    def start_over(self) -> None:
        """Everything was replaced: what is ready is to be found anew."""
        self._fronts.forget()

    async def claim(
        self, request: Claim, caller: Caller, waits: set[asyncio.Future[None]], *, replayed: bool = False
    ) -> Claimed:
        """Take what the request asks for, at once or within the time it is ready to wait. `waits` are the waits of its
        connection, which cancels them when it is gone."""
        self._store.check_thawed()
        asked = self._read(request, caller)
        server = self._store.engine.server
        found = await self._taken_before(asked, sent_again=request.again or replayed)
        if found:
            await self._store.engine.assure(server)
            return Claimed(found, duplicate=True)
        if replayed:
            raise Conflict(f"claim {request.seq} came before on this connection and was answered then")
        if not request.wait:
            return Claimed(await self._take(asked))
        return Claimed(await self._take_in_time(asked, waits))

    def _read(self, request: Claim, caller: Caller) -> _Asked:
        store = self._store
        kind = store.kinds[request.kind]
        request.holder = leasing.check_claim(request, kind, caller, store.limits.id_chars)
        fields = writes.payload(request, kind) or {}
        if request.target and request.filter is not None:
            raise BadRequest("a claim is by id or by filter: send one of them")
        if request.target:
            key = (kind.name, checked_id(kind, request.target, store.limits.id_chars))
            return _Asked(request, kind, fields, caller, key, [])
        given = queries.read_filter(request.filter)
        tests = queries.tests(given, kind, queries.wanted_statuses(given, kind))
        if given.ids is not None:
            ids = frozenset(given.ids)
            tests.insert(0, lambda row, _: row.id in ids)
        return _Asked(request, kind, fields, caller, None, tests)

    # --- taking ----------------------------------------------------------------------------------------------------

    async def _take(self, asked: _Asked) -> list[Row]:
        if asked.key is not None:
            taken = await self._take_one(asked, asked.key)
            return [] if taken is None else [taken]
        return await self._take_best(asked)

    async def _take_one(self, asked: _Asked, key: Key) -> Row | None:
        unit = await self._store.attempt([key], partial(self._decide, asked, key), once=True)
        return None if unit is None else unit[0].row

    def _decide(self, asked: _Asked, key: Key, rows: list[Row | None]) -> Unit | None:
        (row,) = rows
        leases, moment = self._store.leases, self._store.moment()
        subject = Subject(asked.kind, key[1], row)
        if asked.key is None and (row is None or not queries.passes(row, asked.tests)):
            return None  # it has changed since it was found
        if asked.key is None:
            write = leasing.claim_ready(asked.request, asked.fields, subject, asked.caller, moment)
        else:
            lapsed = row is not None and leasing.is_leased(row) and leases.stood_still(row)
            write = leasing.claim_by_id(asked.request, asked.fields, subject, asked.caller, moment, lapsed=lapsed)
        return None if write is None else (write,)

    async def _take_best(self, asked: _Asked) -> list[Row]:
        """The best ready records that pass the filter, as many as are wanted."""
        taking = _TakingNow(self._store) if self._store.engine.immediate else _Taking(self._store)
        passed_over: list[Key] = []
        try:
            await self._walk(taking, asked, passed_over)
        except StateError as problem:
            taking.note(problem)
        for key in passed_over:
            # Whoever was taking it may have left it after all.
            if self._goes_on(taking, asked):
                await self._try(taking, asked, key)
        return await taking.done()

    def _goes_on(self, taking: _Taking, asked: _Asked) -> bool:
        return not taking.is_over and len(taking.taken) < asked.request.limit

    async def _walk(self, taking: _Taking, asked: _Asked, passed_over: list[Key]) -> None:
        turns, examined = Turns(WRITING_SECONDS), 0
        async with aclosing(self._candidates(asked.kind.name)) as rows:
            async for row in rows:
                examined += 1
                if row.key in self._being_taken:
                    passed_over.append(row.key)
                elif queries.passes(row, asked.tests):
                    await self._try(taking, asked, row.key)
                if not self._goes_on(taking, asked) or examined >= MOST_EXAMINED:
                    break
                await turns.pause()

    async def _try(self, taking: _Taking, asked: _Asked, key: Key) -> None:
        """Take one record. On a shared engine that is a journey, and others here go for another one meanwhile."""
        self._being_taken.add(key)
        try:
            await taking.take(key, partial(self._decide, asked, key))
        except StateError as problem:
            taking.note(problem)
        finally:
            self._being_taken.discard(key)

    async def _candidates(self, kind: str) -> AsyncGenerator[Row, None]:
        """Ready records, best first: from the front of the queue, where there is one, then from the engine's index."""
        store, after = self._store, None
        if store.engine.immediate:
            front = self._fronts.of(kind)
            await front.fill()
            after = front.end
            for row in front.walk():
                yield row
            if after is None:
                return
        # What was sent before the claim is there for it, as for a list.
        await store.commits.settled()
        walk = Query(kind=kind, sort="ready", descending=False, limit=queries.FIRST_STEP)
        async with aclosing(queries.walked(store.engine, walk, after)) as rows:
            async for row in rows:
                yield row

    async def _taken_before(self, asked: _Asked, *, sent_again: bool) -> list[Row]:
        """What this very claim got when it first came, and still has: also if nobody says that it comes again."""
        origin = leasing.origin_of(asked.request, asked.caller)
        store = self._store
        if origin is None or not (sent_again or not store.engine.immediate or store.leases.of_origin(origin)):
            return []
        await store.commits.settled()
        found: list[Row] = []
        room = Room(store.limits.frame_bytes)
        async with aclosing(self._of_origin(asked, origin)) as rows:
            async for row in rows:
                # Those that have grown beyond a frame since then are not told again: their leases lapse.
                if len(found) == asked.request.limit or not room.is_for(len(row.body)):
                    break
                found.append(row)
                room.give(len(row.body))
        return found

    async def _of_origin(self, asked: _Asked, origin: str) -> AsyncGenerator[Row, None]:
        """The records that a claim has."""
        label = (LINK, f"origin={origin}")
        walk = Query(kind=asked.kind.name, limit=queries.FIRST_STEP, term=(f"label:{LINK}", label[1]))
        async with aclosing(queries.walk_steps(self._store.engine, walk, wanted=asked.request.limit)) as steps:
            async for rows in steps:
                for row in await self._store.look([row.key for row in rows]):
                    if row is not None and label in row.keys.labels:
                        yield row

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def _take_in_time(self, asked: _Asked, waits: set[asyncio.Future[None]]) -> list[Row]:
        loop = asyncio.get_running_loop()
        until = loop.time() + asked.request.wait
        line = self._lines.setdefault(asked.key or asked.kind.name, {})
        waiting = _Waiting(asked)
        # In line before looking: what comes in between wakes it.
        line[waiting] = None
        withdrawn: asyncio.Future[None] = loop.create_future()
        waits.add(withdrawn)
        longest = asked.request.wait if self._store.engine.immediate else LOOK_AGAIN_SECONDS
        taken: list[Row] = []
        try:
            while not withdrawn.cancelled():
                taken = await self._take(asked) or await self._take_hinted(waiting)
                left = until - loop.time()
                if taken or left <= 0:
                    return taken
                if waiting.missed is not None:
                    waiting.hint, waiting.missed = waiting.missed, None
                    continue
                seconds = min(left, longest)
                await asyncio.wait([waiting.woken, withdrawn], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not withdrawn.cancelled():
                    waiting.rest()
            return []
        finally:
            waits.discard(withdrawn)
            self._leave(line, waiting)

    async def _take_hinted(self, waiting: _Waiting) -> list[Row]:
        hint, waiting.hint = waiting.hint, None
        taken = None if hint is None else await self._take_one(waiting.asked, hint)
        return [] if taken is None else [taken]

    def _leave(self, line: _Line, waiting: _Waiting) -> None:
        """Whoever was woken and goes without having used it lets the next one look."""
        del line[waiting]
        if waiting.woken.done():
            for other in line:
                if other.wake(waiting.hint):
                    break
        if not line:
            self._lines.pop(waiting.asked.key or waiting.asked.kind.name, None)

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for a record."""
        return bool(self._lines)

    def noticed(self, row: Row) -> None:
        """A row was committed: wake the first in line who may want it."""
        if not self._lines:
            return
        for name in (row.key, row.kind) if row.keys.ready is not None else (row.key,):
            line = self._lines.get(name, {})
            for waiting in line:
                if not waiting.woken.done() and waiting.wants(row):
                    waiting.wake(row.key)
                    return
            for waiting in line:
                if waiting.wants(row):
                    waiting.missed = row.key
