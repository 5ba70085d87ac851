"""The store: every rule applied to the newest state, every change handed to the engine.

Owns the order of things: read, decide, commit, and read again after a lost race. Must not know sockets, frames or how
an engine keeps its rows. What a write does is in writes.py; lists are in listing.py, syncs in syncing.py.

On an immediate engine a write is decided at once on the newest state, pending included, and `Decided.after` names the
commit its answer has to wait for. On a shared engine every commit may lose a race: then it is decided again.
What takes several records, or a look around first, goes through `attempt`, which is the same on every engine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from statesvc_client.errors import (
    BadRequest,
    Busy,
    Conflict,
    Outcome,
    ServiceFault,
    StateError,
    Unavailable,
)
from statesvc_client.wire import (
    Cancel,
    Create,
    Delete,
    Emit,
    Fields,
    Get,
    Limits,
    Release,
    Renew,
    Request,
    Retry,
    Update,
)
from statesvc_client.wire import Write as WriteRequest

from ..backends.epoch_names import token_floor
from ..backends.port import REMOVED, Engine, Key, Result, Row, Unit, Write
from . import ending, leasing, marks, writes
from .batches import Batch, group_commit
from .clock import Clock, Stamper
from .handing import hand_over
from .kinds import Kind, Kinds
from .leases import Leases
from .leasing import Kept
from .patience import Patience
from .racing import ALONE, ATTEMPTS, Decided, Look, Precedence, Race, Tell, in_doubt, perhaps_applied, stepped_back
from .reads import Reads
from .records import checked_id, identify
from .sequence import Sequence as Lines
from .writes import Caller, Moment, Subject

PointWrite = Create | Update | Delete | Renew | Release | Cancel | Retry | Emit

Decide = Callable[[list[Row | None]], Unit | None]
"""From the newest rows of some records to the writes that should follow; None when nothing is to be done."""

_DECISIONS: dict[type[WriteRequest], Callable[[Any, Fields, Subject, Caller, Moment], Write | None]] = {
    Create: writes.create,
    Update: writes.update,
    Delete: lambda request, _, subject, caller, moment: writes.delete(request, subject, caller, moment),
    Renew: leasing.renew_with_progress,
    Release: leasing.release,
    Cancel: lambda request, _, subject, caller, moment: ending.cancel(request, subject, caller, moment),
    Retry: lambda request, _, subject, caller, moment: ending.retry(request, subject, caller, moment),
    Emit: lambda request, _, subject, caller, moment: writes.emit(request, subject, caller, moment),
}
"""What decides on a write to one record."""

_WITHOUT_FIELDS = frozenset({Delete, Cancel, Retry, Emit})
"""Writes that name a record and carry nothing for it."""

LONG_LISTS = 4
"""Lists gathered at once of those that fill a frame: of small records, that takes several times a frame's memory."""


class Store:
    """One namespace of records on one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        kinds: Kinds | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.kinds = Kinds() if kinds is None else kinds
        self.limits = limits or Limits()
        self.patience = Patience(engine)
        self.commits = group_commit(engine, self.patience)
        self.clock = clock or Clock()
        self.leases = Leases(self.clock.steady)
        self.commits.failed.append(self._undone)
        self._token_floor = 0
        self._sequence = Lines()
        self.reads = Reads(engine, self.patience)
        self.long_lists = asyncio.Semaphore(LONG_LISTS)
        self._going_on: set[asyncio.Task[None]] = set()
        self._stamper = Stamper()
        self._life = os.urandom(8).hex()
        self._uids = (f"{self._life}{number:x}" for number in itertools.count(1))

    def start(self) -> None:
        self.commits.start()

    async def stop(self) -> None:
        await self.commits.stop()

    @property
    def token_floor(self) -> int:
        """Fencing tokens up to this one may have been given out: to records that are gone, or before this epoch."""
        return max(self._token_floor, token_floor(self.engine.epoch))

    def raise_token_floor(self, floor: int) -> None:
        self._token_floor = max(self._token_floor, floor)

    def moment(self) -> Moment:
        return Moment(
            self.clock.now(),
            self._stamper.text,
            self._uids.__next__,
            self.limits,
            random.random,
            self.token_floor,
            self.leases.is_silent,
        )

    def made_before(self, uid: str, other: str) -> bool:
        """Whether one uid is surely older than another: both were made here, one after the other."""
        life = self._life
        if not (uid.startswith(life) and other.startswith(life)):
            return False
        return int(uid.removeprefix(life), 16) < int(other.removeprefix(life), 16)

    async def cursor(self) -> str:
        """The place behind the newest committed entry of the log, as clients know it."""
        return f"{self.engine.epoch}.{await self.engine.position()}"

    async def cursor_for_queries(self) -> str:
        """A place from which nothing is missed that a query made from here on may not show yet."""
        return f"{self.engine.epoch}.{await self.engine.position_for_queries()}"

    # --- one record ------------------------------------------------------------------------------------------------

    def get_now(self, request: Get) -> tuple[Row | None, Batch | None]:
        """The living record, on an immediate engine, and the commit it is in."""
        row, after = self.newest(self._named(request))
        return (None if row is None or row.deleted else row), after

    async def get(self, request: Get) -> Decided:
        told: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self.get_soon(request, partial(hand_over, told))
        return await told

    def get_soon(self, request: Get, tell: Tell, sender: object = None) -> None:
        """The same for one who does not wait: what was found is told."""
        key = self._named(request)
        Look(self, key, self._sequence.enter(key, sender=sender, reads=True), tell).start()

    def _named(self, request: Request) -> Key:
        kind = self.kinds[request.kind]
        return (kind.name, checked_id(kind, request.target, self.limits.id_chars))

    def newest(self, key: Key) -> tuple[Row | None, Batch | None]:
        pending = self.commits.pending(key)
        if pending is not None:
            row, batch = pending
            if row.deleted == REMOVED:
                return None, batch
            return (self.leases.newest(row) if self.leases.seen else row), batch
        stored = self.engine.peek(key)
        return (stored if stored is None or not self.leases.seen else self.leases.newest(stored)), None

    def write_now(self, request: PointWrite, caller: Caller, *, replayed: bool = False) -> Decided:
        """Decide a write on an immediate engine. `replayed`: its seq has passed on this connection before."""
        if self.commits.bar is not None:
            self.check_thawed()
        key, fields, kind = self.addressed(request)
        row, after = self.newest(key)
        try:
            decided = self.decide(request, fields, Subject(kind, key[1], row), caller, replayed=replayed)
        except StateError as refused:
            # Nobody asks where it was raised, and the frames of that would have to wait for the collector.
            return Decided(after=after, refused=refused.with_traceback(None))
        if type(decided) is Write:
            return Decided(decided.row, self.commits.add((decided,)))
        return Decided(row, after, duplicate_of=decided)  # type: ignore[arg-type]  # a revision, or nothing to do

    @property
    def frozen(self) -> bool:
        """Writes are refused for now, by order of an admin."""
        return self.commits.bar is not None

    @property
    def being_replaced(self) -> bool:
        """Everything there is makes way for a snapshot."""
        return self.commits.bar is not None and self.commits.bar.even_hidden

    def check_thawed(self) -> None:
        if self.commits.bar is not None:
            raise Unavailable(self.commits.bar.why)

    async def write(self, request: PointWrite, caller: Caller, *, replayed: bool = False) -> Decided:
        """Decide a write on a shared engine: again after every lost race, within a bound."""
        told: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self.write_soon(request, caller, partial(hand_over, told), replayed=replayed)
        return await told

    def write_soon(
        self,
        request: PointWrite,
        caller: Caller,
        tell: Tell,
        *,
        replayed: bool = False,
        precedence: Precedence = ALONE,
    ) -> None:
        """The same for one who does not wait: what became of it is told."""
        self.check_thawed()
        key, fields, kind = self.addressed(request)
        turn = self._sequence.enter(key, caller.client, precedence.sender)
        Race(self, request, caller, kind, key, fields, turn, precedence, tell, replayed=replayed).start()

    def go_on(self, rest: Coroutine[Any, Any, None]) -> None:
        """Let what takes more than a turn of the loop go on by itself."""
        task = asyncio.get_running_loop().create_task(rest)
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)

    async def read(self, key: Key, came: float | None = None) -> Row | None:
        """The stored row, once no commit of our own is under way for it: writers here take turns, they do not race.
        `came`: when the request did that wants it, if that was not just now."""
        came = self.patience.now() if came is None else came
        while True:
            while (pending := self.commits.pending(key)) is not None:
                await self.patience.wait(came, pending[1].wait)
            row = await self.reads.get(key, came)
            if self.commits.pending(key) is None:
                return row

    async def fetch(self, key: Key, came: float) -> Row | None:
        """The row as it is stored by now, whatever is under way: everything committed before this call is in it."""
        return await self.reads.get(key, came)

    async def commit(self, write: Write, came: float | None = None) -> Result:
        return await self.committed((write,), came=came)

    async def committed(
        self, unit: Unit, failed: Callable[[StateError], None] | None = None, *, came: float | None = None
    ) -> Result:
        """Commit it, and tell what became of it; `failed` is told of a failure before anybody else goes on."""
        batch = self.commits.add(unit, came)
        place = len(batch.units) - 1
        if failed is not None:
            batch.listeners.append(partial(batch.tell_failure, failed))
        await batch.wait()
        if batch.failure is not None:
            raise batch.failure
        result = batch.results[place]
        if isinstance(result, StateError):
            raise result
        return result

    def _undone(self, units: list[Unit]) -> None:
        """What leases were seen to be in writes that did not happen counts no more."""
        for write in (write for unit in units for write in unit) if self.leases else ():
            if self.engine.immediate:
                self.leases.undone(write.row.key, self.engine.peek(write.row.key))
            elif write.event is not None and write.event.type in ("claimed", "created"):
                self.leases.never_given(write.row)

    # --- renewals --------------------------------------------------------------------------------------------------

    async def renew(self, request: Renew) -> tuple[Kept, Batch | None]:
        """A renewal without a patch. Where this process owns the data it is kept in memory, unless it brings another
        ttl; elsewhere it is one write that nobody is told of. Doing it again does no harm, so it leaves no mark."""
        key, _, kind = self.addressed(request)
        if self.engine.immediate:
            row, after = self.newest(key)
            kept = leasing.renew_bare(request, Subject(kind, key[1], row), self.moment())
            if kept.other_ttl:
                self.leases.to_be_stored(key)
                return kept, self.commits.add((Write(kept.row, kept.row.stamp, None),))
            self.leases.renewed(kept.row, kept.lease)
            return kept, after
        outcome: Outcome = "not_applied"
        came = self.patience.now()
        for tried in range(ATTEMPTS):
            await stepped_back(tried)
            try:
                kept, basis = await self._renewal(request, kind, key, came, may_guess=outcome != "unknown")
                result = await self.commit(Write(kept.row, kept.row.stamp, None, basis), came)
            except ServiceFault as problem:
                raise in_doubt(problem) if outcome == "unknown" else problem from None
            if result == "applied":
                self.leases.note(kept.row)
                return kept, None
            if result == "unknown":
                outcome = "unknown"
        raise Busy(f"{kind.name} {key[1]} keeps changing; send the renewal again", outcome=outcome)

    async def _renewal(
        self, request: Renew, kind: Kind, key: Key, came: float, *, may_guess: bool
    ) -> tuple[Kept, Row | None]:
        """The renewal to commit, and the guess it was decided on, if it was. A refusal is never read off a guess."""
        guess = self.engine.guess(key) if may_guess and self.commits.pending(key) is None else None
        if guess is not None:
            with suppress(StateError):
                return leasing.renew_bare(request, Subject(kind, key[1], guess.row), self.moment()), guess.row
        row = await self.read(key, came)
        return leasing.renew_bare(request, Subject(kind, key[1], row), self.moment()), None

    # --- several records -------------------------------------------------------------------------------------------

    async def look(self, keys: Sequence[Key], came: float | None = None) -> list[Row | None]:
        """The newest rows, decided ones included; tombstones too."""
        if self.engine.immediate:
            return [self.newest(key)[0] for key in keys]
        return list(await asyncio.gather(*(self.read(key, came) for key in keys)))

    def attempt_now(self, keys: Sequence[Key], decide: Decide) -> tuple[Unit, Batch] | None:
        """The same on an immediate engine, without waiting: what was decided, and the commit it is in."""
        unit = decide([self.newest(key)[0] for key in keys])
        return (unit, self.commits.add(unit)) if unit else None

    async def attempt(self, keys: Sequence[Key], decide: Decide, *, once: bool = False) -> Unit | None:
        """Read, decide, commit; on a shared engine again after every lost race. Returns what was committed.

        After a commit whose fate is not known, what follows from the state alone is decided anew on whatever is there.
        What must happen `once` at most, a claim, is decided anew only as long as nothing has changed: then the first
        commit and the next cannot both be applied. Otherwise it may have happened and been overtaken.
        """
        unsure: list[Unit] = []
        basis: list[Row | None] = []
        came = self.patience.now()
        for tried in range(ATTEMPTS):
            await stepped_back(tried)
            server = self.engine.server
            try:
                rows = await self.look(keys, came)
                found = dict(zip(keys, rows, strict=True))
                stored = (_as_stored(unit, found, once=once) for unit in unsure)
                if (done := next(filter(None, stored), None)) is not None:
                    await self.engine.assure(server)
                    return done
                unsure = [unit for unit in unsure if not (once and _lost_its_place(unit, found))]
                if once and unsure and rows != basis:
                    raise perhaps_applied("others have changed the record since")
                unit, basis = decide(rows), rows
                if not unit and once and unsure:
                    raise perhaps_applied("by now there is nothing to do")
                if not unit:
                    return None
                result = await self.committed(unit, came=came)
            except StateError as problem:
                is_open = unsure and (once or isinstance(problem, ServiceFault))
                raise in_doubt(problem) if is_open else problem from None
            if result == "applied":
                return unit
            if result == "unknown":
                unsure.append(unit)
        outcome: Outcome = "unknown" if unsure else "not_applied"
        kind, name = keys[0]
        raise Busy(f"{kind} {name} keeps changing; send the request again", outcome=outcome)

    # --- deciding --------------------------------------------------------------------------------------------------

    def addressed(self, request: PointWrite) -> tuple[Key, Fields, Kind]:
        """Which record a write is about, and the fields it carries."""
        kind = self.kinds[request.kind]
        if type(request) in _WITHOUT_FIELDS:
            return self._named(request), {}, kind
        fields = writes.payload(request, kind)  # type: ignore[arg-type]  # all others carry some
        if fields is None:
            if isinstance(request, Create) or (isinstance(request, Update) and not _changes_something(request)):
                raise BadRequest(f"{'job' if kind.name == 'job' else 'record'} is required")
            fields = {}
        return (kind.name, identify(kind, request.target, fields, self.limits.id_chars)), fields, kind

    def decide(
        self, request: PointWrite, fields: Fields, subject: Subject, caller: Caller, *, replayed: bool
    ) -> Write | int | None:
        """The write to commit, None when there is nothing to do, or the revision it made when it came before."""
        if subject.row is not None and request.seq is not None:
            made = self.earlier_answer(request, subject.row, caller)
            if made is not None:
                return made
        if replayed:
            raise Conflict(f"write {request.seq} came before on this connection and was answered then")
        return _DECISIONS[type(request)](request, fields, subject, caller, self.moment())

    def earlier_answer(self, request: WriteRequest, row: Row | None, caller: Caller) -> int | None:
        """The revision a numbered write made when it was taken before."""
        if row is None or not caller.client:
            return None
        return marks.earlier_answer(row.marks, caller.client, request)


def _changes_something(request: Update) -> bool:
    """Whether an update says anything. A token alone does: it holds only while its lease does, and so a transaction."""
    return bool(request.set or request.inc or request.append) or request.token is not None


def _as_stored(unit: Unit, rows: dict[Key, Row | None], *, once: bool) -> Unit | None:
    """The unit as it is stored now; None unless all of it is. What happens once, a claim, may have been renewed since.
    Of another write to a record that is under one, the claim says nothing."""
    stored = []
    for write in unit:
        row = rows.get(write.row.key)
        if row is None and write.row.deleted == REMOVED:
            stored.append(write)
        elif row is not None and (row == write.row or (once and _is_same_claim(row, write.row))):
            stored.append(write._replace(row=row))
        else:
            return None
    return tuple(stored)


def _lost_its_place(unit: Unit, rows: dict[Key, Row | None]) -> bool:
    """Whether another's write is where a claim of the unit would be: it was not applied, and cannot be any more."""
    for write in unit:
        row = rows.get(write.row.key)
        if row is not None and row.stamp == write.row.stamp and leasing.claim_of(row) != leasing.claim_of(write.row):
            return True
    return False


def _is_same_claim(row: Row, claimed: Row) -> bool:
    claim = leasing.claim_of(claimed)
    return claim is not None and row.stamp == claimed.stamp and leasing.claim_of(row) == claim
