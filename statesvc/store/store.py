"""The store: every rule applied to the newest state, every change handed to the engine.

Owns the order of things: read, decide, commit, and read again after a lost race. Must not know sockets, frames or how
an engine keeps its rows. What a write does is in writes.py; lists are in listing.py, syncs in syncing.py.

On an immediate engine a write is decided at once on the newest state, pending included, and `Decided.after` names the
commit its answer has to wait for. On a shared engine every commit may lose a race: then it is decided again.
"""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

from statesvc_client.errors import BadRequest, Busy, Conflict, Internal, Outcome, StateError
from statesvc_client.wire import Create, Delete, Fields, Get, Limits, Update
from statesvc_client.wire import Write as WriteRequest

from ..backends.port import Engine, Key, Result, Row, Stamp, Write
from . import marks, writes
from .batches import Batch, GroupCommit
from .clock import Clock, Stamper
from .kinds import Kind, Kinds
from .records import checked_id, identify
from .writes import Caller, Moment, Subject, living

ATTEMPTS = 16
"""How often a write that keeps losing races on a shared engine is decided again before the client is told `busy`."""


class Decided(NamedTuple):
    """What became of a request, once the batch `after` is committed."""

    row: Row | None = None
    after: Batch | None = None
    refused: StateError | None = None
    duplicate_of: int | None = None


PointWrite = Create | Update | Delete


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
        self.kinds = kinds or Kinds()
        self.limits = limits or Limits()
        self.commits = GroupCommit(engine)
        self._clock = clock or Clock()
        self._stamper = Stamper()
        life = os.urandom(8).hex()
        self._uids = (f"{life}{number:x}" for number in itertools.count(1))

    def start(self) -> None:
        self.commits.start()

    async def stop(self) -> None:
        await self.commits.stop()

    def moment(self) -> Moment:
        return Moment(self._clock.now(), self._stamper.text, self._uids.__next__, self.limits)

    # --- one record ------------------------------------------------------------------------------------------------

    def get_now(self, request: Get) -> Decided:
        row, after = self.newest(self._named(request))
        return Decided(living(row), after)

    async def get(self, request: Get) -> Decided:
        (row,) = await self.engine.get([self._named(request)])
        return Decided(living(row))

    def _named(self, request: Get | Delete) -> Key:
        kind = self.kinds[request.kind]
        return (kind.name, checked_id(kind, request.target, self.limits.id_chars))

    def newest(self, key: Key) -> tuple[Row | None, Batch | None]:
        pending = self.commits.pending(key)
        return pending if pending is not None else (self.engine.peek(key), None)

    def write_now(self, request: PointWrite, caller: Caller, *, replayed: bool = False) -> Decided:
        """Decide a write on an immediate engine. `replayed`: its seq has passed on this connection before."""
        key, fields, kind = self._addressed(request)
        row, after = self.newest(key)
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
        # A numbered write leaves its mark in the row it made: then the row itself tells whether it was taken.
        marked = bool(caller.client) and request.seq is not None
        unsure: list[Row] = []
        expected: Stamp | None = None
        for _ in range(ATTEMPTS):
            row = await self.read(key)
            if row in unsure:
                return Decided(row)
            if unsure and not marked and not writes.repeatable(request) and (row and row.stamp) != expected:
                return Decided(refused=_perhaps_applied(f"{kind.name} {key[1]} was changed by another"))
            try:
                decided = self._decide(
                    request, fields, Subject(kind, key[1], row), caller, replayed=replayed and not unsure
                )
            except StateError as refused:
                return Decided(refused=_perhaps_applied(refused.text) if unsure and not marked else refused)
            if isinstance(decided, int):
                return Decided(row, duplicate_of=None if unsure else decided)
            result = await self.commit(decided)
            if result == "applied":
                return Decided(decided.row)
            if result == "unknown":
                unsure.append(decided.row)
                expected = decided.expects
        outcome: Outcome = "unknown" if unsure else "not_applied"
        raise Busy(f"{kind.name} {key[1]} keeps changing; send the write again", outcome=outcome)

    async def read(self, key: Key) -> Row | None:
        """The stored row, once no commit of our own is under way for it: writers here take turns, they do not race."""
        while True:
            while (pending := self.commits.pending(key)) is not None:
                await pending[1].wait()
            row = (await self.engine.get([key]))[0]
            if self.commits.pending(key) is None:
                return row

    async def commit(self, write: Write) -> Result:
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
            return self._named(request), {}, kind
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
        made = self.earlier_answer(request, subject.row, caller)
        if made is not None:
            return made
        if replayed:
            raise Conflict(f"write {request.seq} came before on this connection and was answered then")
        moment = self.moment()
        if isinstance(request, Create):
            return writes.create(request, fields, subject, caller, moment)
        if isinstance(request, Update):
            return writes.update(request, fields, subject, caller, moment)
        return writes.delete(request, subject, caller, moment)

    def earlier_answer(self, request: WriteRequest, row: Row | None, caller: Caller) -> int | None:
        """The revision a numbered write made when it was taken before."""
        if row is None or not caller.client:
            return None
        return marks.earlier_answer(row.marks, caller.client, request)


def _perhaps_applied(why: str) -> StateError:
    """What is said after a commit whose fate is not known, when the record no longer tells it."""
    return Internal(f"the write may have been applied before it was overtaken: {why}", outcome="unknown")
