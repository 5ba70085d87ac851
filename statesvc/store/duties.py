"""Background duties: what has to happen though nobody asks for it.

Owns when leases are looked at, when records become due, and who is affected by a record that ended. Must not decide
what becomes of a record: that is in leasing.py and ending.py. Removing what is old is in retention.py.

Nothing is a one-shot cascade. Everything is evaluated from the current state: what was just committed is looked at
soon, and all of it again now and then, so that a crash in between costs time and nothing else. On an engine that
several daemons share, the holder of the lock `_sweeper` does what writes; every daemon wakes its own waiting claims.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from statesvc_client.errors import Gone, LeaseLost, StateError
from statesvc_client.wire import Claim, Lease, Release, Renew

from .. import logs
from ..backends.port import LINK, Cursor, Key, Query, Row, Unit, Write
from . import ending, leasing, queries, queueing, writes
from .claims import Claims
from .clock import Drift
from .kinds import Kind
from .records import LEASED, OWNED, decode, has_links
from .retention import Retention
from .store import Store
from .together import all_done
from .turns import Turns
from .writes import Caller, Subject

log = logs.get(__name__)

TICK_SECONDS = 0.25
"""How often what is due is looked for: how late a lapse, a deadline or a scheduled start may be noticed."""

FULL_SECONDS = 60.0
"""How often everything is evaluated anew, whatever was noticed in between: another daemon may have died with it."""

FULL_SECONDS_ALONE = 600.0
"""The same where every change comes by here."""

MOST_NOTICED = 10_000
"""Ended or blocked records remembered by name; beyond that everything is evaluated anew instead, a little later."""

FULL_AFTER_OVERFLOW_SECONDS = 5.0

SWEEP_PAUSE_SECONDS = 0.005
"""Between two rounds of a sweep that an admin waits for."""

STEP = 64
"""Records changed together: one commit, small enough for others to get their turn."""

MOST_LINKS = 256
"""Links of a chain of dependents that are followed in one round."""

STALL_SECONDS = 1.0
"""How long this process may have stood still without a word about it."""

SWEEPER_TTL = 15.0

Item = TypeVar("Item")
Decision = Callable[[Subject], Write | None]


class Done(NamedTuple):
    """What a round of duties did, in records."""

    lapsed: int = 0
    promoted: int = 0
    timed_out: int = 0
    judged: int = 0
    freed: int = 0
    buried: int = 0
    removed: int = 0

    def plus(self, other: Done) -> Done:
        return Done(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Duties:
    """Keeps a store's leases, queues and owned records true."""

    def __init__(self, store: Store, claims: Claims, retention: Retention) -> None:
        self._store = store
        self._claims = claims
        self._retention = retention
        self._drift = Drift(store.clock)
        self._ended: set[Key] = set()
        self._blocked: set[Key] = set()
        self._next_due: int | None = 0
        """When the next record becomes due, as far as is known; None when none waits for a time."""
        self._holding_back: set[str] = set()
        """Kinds with records that are blocked by others."""
        self._owning: set[str] = set()
        """Kinds with owned records."""
        self._next_full = 0.0
        self._followed: Cursor | None = None
        self._sweeping = asyncio.Lock()
        self._sweeper = Caller(said_hello=True, name=f"statesvc-{os.urandom(8).hex()}")
        self._token: int | None = None
        self._renew_at = 0.0
        self.last_run: float | None = None
        """When a round ended well, on the steady clock."""
        store.commits.committed = self._committed

    # --- noticing --------------------------------------------------------------------------------------------------

    def _committed(self, units: Iterable[Unit]) -> None:
        """Most rows are nobody's concern."""
        concerned = bool(self._store.leases.seen or self._owning or self._holding_back or self._claims.awaited)
        for unit in units:
            for row, _, _, _ in unit:
                keys = row.keys
                if concerned or keys.due is not None or has_links(keys):
                    self.noticed(row)
                    concerned = True  # by those that follow: this one may wait for them

    def noticed(self, row: Row) -> None:
        """A row was committed, here or by another daemon."""
        keys = row.keys
        if has_links(keys) or self._store.leases.seen:
            self._store.leases.told(row)
            self._note_links(row)
        if keys.due is not None and (self._next_due is None or keys.due < self._next_due):
            self._next_due = keys.due
        if (self._owning or row.kind in self._holding_back) and self._is_over(row):
            self._remember(self._ended, row.key)
        self._claims.noticed(row)

    def _is_over(self, row: Row) -> bool:
        if row.deleted:
            return True
        return row.keys.completed is not None and self._store.kinds[row.kind].is_terminal(row.keys.status)

    def _note_links(self, row: Row) -> None:
        if (LINK, queueing.BLOCKED) in row.keys.labels:
            self._holding_back.add(row.kind)
            self._remember(self._blocked, row.key)
        if (LINK, OWNED) in row.keys.labels:
            self._owning.add(row.kind)
            # Its owner may have ended before it came.
            self._remember(self._ended, _owner_key(row))

    def _remember(self, keys: set[Key], key: Key | None) -> None:
        if key is None:
            return
        if len(keys) < MOST_NOTICED:
            keys.add(key)
        else:
            self._next_full = min(self._next_full, self._store.clock.steady() + FULL_AFTER_OVERFLOW_SECONDS)

    def start_over(self) -> None:
        """Everything was replaced: nothing that was noticed holds, all of it is to be looked at anew."""
        for known in (self._ended, self._blocked, self._holding_back, self._owning):
            known.clear()
        self._next_due, self._next_full = 0, 0.0
        self._claims.start_over()

    # --- rounds ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the duties for as long as the daemon serves."""
        await asyncio.gather(self._tick(), self._go_round())

    async def _tick(self) -> None:
        """Tell the leases that time passes, also while a round takes long. Renewals that came while we stood still have
        not been read yet; their senders must not pay for our pause."""
        while True:
            stalled = self._store.leases.tick()
            if stalled > STALL_SECONDS:
                log.warning("stalled", seconds=round(stalled, 3))
            await asyncio.sleep(TICK_SECONDS)

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._sweeping.locked():
                continue  # it is being done
            try:
                await self.round()
            except StateError as problem:
                log.warning("duties_postponed", why=problem.text)
            except Exception:  # whatever it is, the next round may be better
                log.exception("duty_failed", duty="round")

    async def follow(self) -> None:
        """On a shared engine: notice what other daemons commit, and commits of our own whose fate was not known."""
        while not self._store.engine.immediate:
            try:
                await self.catch_up(1.0)
            except StateError as problem:
                log.warning("duties_postponed", why=problem.text)
                await asyncio.sleep(1.0)
            except Exception:  # whatever it is, the next look may be better
                log.exception("duty_failed", duty="follow")
                await asyncio.sleep(1.0)

    async def catch_up(self, seconds: float = 0.0) -> None:
        """Notice what is new in the log, waiting for it so long."""
        engine = self._store.engine
        if self._followed is None:
            self._followed = await engine.position()
        try:
            await engine.log_grew(self._followed, seconds)
            while entries := await engine.read_log(self._followed, 1000):
                for entry in entries:
                    self.noticed(entry.row)
                self._followed = entries[-1].cursor
        except Gone:
            self._followed, self._next_full = None, 0.0

    async def round(self) -> Done:
        """One round, if the duties are ours."""
        return await self._do() if await self._may_sweep() else Done()

    async def _do(self) -> Done:
        """Whatever is due now. Done by two daemons at once it does no harm: every change is conditional."""
        if self._store.frozen:
            return Done()
        done = await self._look_around() if self._store.clock.steady() >= self._next_full else Done()
        done = done.plus(Done(lapsed=await self._lapse()))
        done = done.plus(await self._come_due())
        done = done.plus(await self._follow_up())
        if self._drift.trusted():
            buried, removed = await self._retention.step()
            done = done.plus(Done(buried=buried, removed=removed))
        self.last_run = self._store.clock.steady()
        return done

    async def sweep(self) -> dict[str, int]:
        """Everything there is to do, now, whoever has the duties; for an admin who does not want to wait."""
        async with self._sweeping:
            self._next_full, self._next_due = 0.0, 0
            self._retention.hurry()
            total = await self._do()
            while self._retention.busy and self._drift.trusted() and not self._store.frozen:
                await asyncio.sleep(SWEEP_PAUSE_SECONDS)
                total = total.plus(await self._do())
        return {_camel(name): number for name, number in total._asdict().items()}

    async def _may_sweep(self) -> bool:
        """Whether the duties are ours: always, where nobody else can open the data."""
        if self._store.frozen:
            return False
        if self._store.engine.immediate:
            return True
        steady = self._store.clock.steady()
        if steady < self._renew_at:
            return self._token is not None
        self._renew_at = steady + SWEEPER_TTL / 3
        self._token = await self._kept_sweeping() or await self._begun_sweeping()
        return self._token is not None

    async def _kept_sweeping(self) -> int | None:
        if self._token is None:
            return None
        try:
            await self._store.renew(Renew(kind="lock", id="_sweeper", token=self._token))
        except LeaseLost:
            return None
        return self._token

    async def _begun_sweeping(self) -> int | None:
        request = Claim(kind="lock", id="_sweeper", ttl=SWEEPER_TTL)
        claimed = await self._claims.claim(request, self._sweeper, set())
        return claimed.rows[0].token if claimed.rows else None

    async def stop(self) -> None:
        """Leave the duties to others at once."""
        if self._token is not None:
            request = Release(kind="lock", id="_sweeper", token=self._token)
            self._token = None
            try:
                await self._store.write(request, self._sweeper)
            except StateError as problem:
                # Then they wait until it lapses.
                log.warning("duties_postponed", why=problem.text)

    async def _follow_up(self) -> Done:
        """What follows from records that ended or came: whole chains, as long as they are not too long."""
        done = Done()
        for _ in range(MOST_LINKS):
            if not (self._ended or self._blocked):
                break
            # What ends while this goes on is for the next turn; what could not be done is for the next round.
            ended, self._ended = self._ended, set()
            blocked, self._blocked = self._blocked, set()
            try:
                judged, freed = await self._judge_after(ended, blocked), await self._free_after(ended)
            except BaseException:
                self._ended |= ended
                self._blocked |= blocked
                raise
            done = done.plus(Done(judged=judged, freed=freed))
        return done

    # --- looking around --------------------------------------------------------------------------------------------

    async def _look_around(self) -> Done:
        """Find every lease, and evaluate every blocked and every owned record, whatever was noticed before."""
        store = self._store
        alone = store.engine.immediate
        self._next_full = store.clock.steady() + (FULL_SECONDS_ALONE if alone else FULL_SECONDS)
        self._next_due = 0
        await store.commits.settled()
        judged = freed = 0
        self._holding_back.clear()
        self._owning.clear()
        for name in await store.engine.kinds():
            async for row in self._linked(name, LEASED):
                store.leases.note(row)
            async for rows in _in_steps(self._linked(name, queueing.BLOCKED)):
                self._holding_back.add(name)
                judged += await self._judge([row.key for row in rows])
            async for rows in _in_steps(self._linked(name, OWNED)):
                self._owning.add(name)
                freed += await self._free({key for key in map(_owner_key, rows) if key is not None})
        return Done(judged=judged, freed=freed)

    async def _linked(self, kind: str, link: str) -> AsyncIterator[Row]:
        """All records of a kind with a link of ours."""
        walk = Query(kind=kind, limit=queries.FIRST_STEP, term=(f"label:{LINK}", link), descending=False)
        turns = Turns()
        async with aclosing(queries.walked(self._store.engine, walk)) as rows:
            async for row in rows:
                yield row
                await turns.pause()

    # --- leases ----------------------------------------------------------------------------------------------------

    async def _lapse(self) -> int:
        """Take leases from holders that gave no sign of life. On a shared engine signs of life are in the rows."""
        store = self._store
        if not store.engine.immediate:
            await self._look_at_leases()
        lapsed = store.leases.lapsed()
        return sum([await all_done(self._lapse_one(*each) for each in some) for some in _steps(lapsed)])

    async def _look_at_leases(self) -> None:
        leases = self._store.leases
        for some in _steps(leases.to_look_at()):
            rows = await self._store.engine.get([key for key, _ in some])
            for (key, lease), row in zip(some, rows, strict=True):
                leases.looked_at(key, lease, row)

    async def _lapse_one(self, key: Key, lease: Lease) -> bool:
        def decide(subject: Subject) -> Write | None:
            write, row = leasing.lapse(subject, self._store.moment(), lease), subject.living
            if write is None and row is not None and leasing.is_leased(row):
                self._store.leases.note(row)  # another lease, or another beat, than was seen: its time begins now
            return write

        return await self._change(key, decide)

    # --- time ------------------------------------------------------------------------------------------------------

    async def _come_due(self) -> Done:
        """Records whose time has come: to become ready, or to have taken too long."""
        now = self._store.clock.now()
        if self._next_due is None or self._next_due > now:
            return Done()
        self._next_due = None
        done = Done()
        try:
            for kind in self._queues():
                done = done.plus(await self._due_of(kind, now))
        except BaseException:
            self._next_due = 0
            raise
        return done

    async def _due_of(self, kind: Kind, now: int) -> Done:
        walk = Query(kind=kind.name, sort="due", descending=False, limit=STEP)
        done, some = Done(), list[Row]()
        async with aclosing(queries.walked(self._store.engine, walk)) as rows:
            async for row in rows:
                due = row.keys.due or 0
                if due > now:
                    self._next_due = due if self._next_due is None else min(self._next_due, due)
                    break
                some.append(row)
                if len(some) == STEP:
                    done = done.plus(await self._due_now(kind, some))
                    some = []
        return done.plus(await self._due_now(kind, some))

    async def _due_now(self, kind: Kind, rows: list[Row]) -> Done:
        claimable = kind.queue.claimable if kind.queue else frozenset()
        waiting = [row.key for row in rows if row.keys.status in claimable]
        running = [row.key for row in rows if row.keys.status not in claimable]
        if running and not self._drift.trusted():
            # A clock that jumped must not end what runs.
            self._next_due, running = 0, []
        moment = self._store.moment
        promoted = (self._change(key, lambda subject: ending.promote(subject, moment())) for key in waiting)
        ended = (self._change(key, lambda subject: leasing.time_out(subject, moment())) for key in running)
        return Done(promoted=await all_done(promoted), timed_out=await all_done(ended))

    def _queues(self) -> list[Kind]:
        return [kind for kind in self._store.kinds.declared() if kind.queue is not None]

    # --- dependencies ----------------------------------------------------------------------------------------------

    async def _judge_after(self, ended: set[Key], blocked: set[Key]) -> int:
        """Blocked records whose fate may be known now: those that came, and those that waited for what ended."""
        blocked = set(blocked)
        for kind, name in ended:
            if kind in self._holding_back:
                async for row in self._linked(kind, f"after={name}"):
                    blocked.add(row.key)
        return sum([await self._judge(some) for some in _steps(list(blocked))])

    async def _judge(self, keys: list[Key]) -> int:
        return await all_done(self._judge_one(key) for key in keys)

    async def _judge_one(self, key: Key) -> bool:
        (row,) = await self._store.look([key])
        if row is None or not ending.is_blocked(row):
            return False
        needed = queueing.dependencies(decode(row.body))
        keys = [key, *((key[0], name) for name in needed if name != key[1])]

        def decide(rows: list[Row | None]) -> Unit | None:
            others = {name: found for (_, name), found in zip(keys, rows, strict=True)}
            subject = Subject(self._store.kinds[key[0]], key[1], rows[0])
            write = ending.judge(subject, others, self._store.moment())
            return None if write is None else (write,)

        return await self._store.attempt(keys, decide) is not None

    # --- ownership -------------------------------------------------------------------------------------------------

    async def _free_after(self, ended: set[Key]) -> int:
        return sum([await self._free(set(some)) for some in _steps(list(ended) if self._owning else [])])

    async def _free(self, owners: set[Key]) -> int:
        """Remove what is owned by those of these records that have ended."""
        keys = sorted(owners)
        found = zip(keys, await self._store.look(keys), strict=True)
        gone = [f"{kind}/{name}" for (kind, name), row in found if self._has_ended(kind, row)]
        return sum([await self._free_of(kind, gone) for kind in sorted(self._owning) if gone])

    def _has_ended(self, kind: str, row: Row | None) -> bool:
        return row is not None and (bool(row.deleted) or self._store.kinds[kind].is_terminal(row.keys.status))

    async def _free_of(self, kind: str, owners: list[str]) -> int:
        walk = Query(kind=kind, limit=STEP, term=("owner", *owners), descending=False)
        async with aclosing(queries.walked(self._store.engine, walk)) as rows:
            found = [(row.key, _owner_key(row)) async for row in rows if (LINK, OWNED) in row.keys.labels]
        owned = [(key, owner) for key, owner in found if owner is not None]
        return sum([await all_done(self._free_one(*each) for each in some) for some in _steps(owned)])

    async def _free_one(self, key: Key, owner: Key) -> bool:
        """Remove it, unless it is another's or its owner has come back since."""

        def decide(rows: list[Row | None]) -> Unit | None:
            row = writes.living(rows[0])
            if row is None or leasing.is_leased(row):
                return None
            if _owner_key(row) != owner or not self._has_ended(owner[0], rows[1]):
                return None
            return (writes.bury(None, row, writes.NOBODY, self._store.moment()),)

        return await self._store.attempt([key, owner], decide) is not None

    async def _change(self, key: Key, decide: Decision) -> bool:
        """Change one record, if there is anything to change."""
        kind = self._store.kinds[key[0]]

        def decided(rows: list[Row | None]) -> Unit | None:
            write = decide(Subject(kind, key[1], rows[0]))
            return None if write is None else (write,)

        return await self._store.attempt([key], decided) is not None


def _owner_key(row: Row) -> Key | None:
    kind, slash, name = (row.keys.owner or "").partition("/")
    return (kind, name) if slash and kind and name else None


def _steps(items: list[Item]) -> Iterable[list[Item]]:
    return (items[start : start + STEP] for start in range(0, len(items), STEP))


async def _in_steps(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    some: list[Item] = []
    async for item in items:
        some.append(item)
        if len(some) == STEP:
            yield some
            some = []
    if some:
        yield some


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
