"""Transactions: several writes that happen together or not at all.

Owns the order in which the writes are decided, and whether a transaction that comes again was taken before. Must not
know what a single write does: that is in writes.py. A create that brings a `dedupeKey` is a transaction of one.

Unlike `Store.attempt` this has to tell a lost race from a commit whose fate is not known: a transaction without a
number must not add twice, and must not be given up because another was faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from statesvc_client.errors import BadRequest, Busy, Conflict, Internal, Outcome, ServiceFault, StateError
from statesvc_client.wire import Create, Delete, Fields, TxnOp, Update, printable
from statesvc_client.wire import Write as WriteRequest

from ..backends.port import Key, Row, Unit, Write
from . import deduplication, writes
from .kinds import Kind
from .racing import ATTEMPTS, in_doubt, stepped_back
from .store import Store
from .writes import Caller, Subject

Found = dict[Key, Row | None]


class Transacted(NamedTuple):
    """What a transaction made, in the order of its writes."""

    rows: list[Row | None]
    """The record after each write; tombstones for what was deleted."""
    duplicate_of: list[int | None] | None = None
    """The revisions it made when it was taken before, where they are still known."""


class Refused(Exception):
    """One write was refused, and with it all of them."""

    def __init__(self, place: int, error: StateError) -> None:
        super().__init__(error.text)
        self.place = place
        self.error = error


class _Step(NamedTuple):
    """One write, read."""

    op: TxnOp
    kind: Kind
    key: Key
    fields: Fields
    guard: Key | None


async def transact(
    store: Store, request: WriteRequest, ops: Sequence[TxnOp], caller: Caller, *, replayed: bool = False
) -> Transacted:
    """Do all of it, or raise why nothing of it is done. `replayed`: its seq has passed on this connection before."""
    store.check_thawed()
    return await _Transaction(store, request, ops, caller, replayed=replayed).run()


class _Transaction:
    """One transaction while it is decided."""

    def __init__(
        self, store: Store, request: WriteRequest, ops: Sequence[TxnOp], caller: Caller, *, replayed: bool
    ) -> None:
        self._store = store
        self._request = request
        self._caller = caller
        self._replayed = replayed
        self._marked = bool(caller.client) and request.seq is not None
        self._steps = self._read_all(ops)
        self._unsure: list[Unit] = []
        """Units that may have been committed."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read_all(self, ops: Sequence[TxnOp]) -> list[_Step]:
        steps: list[_Step] = []
        seen: dict[Key, int] = {}
        for place, op in enumerate(ops):
            try:
                step = self._read(op)
                for key in (step.key, step.guard):
                    if key is not None and seen.setdefault(key, place) != place:
                        raise BadRequest(_twice(step, key, seen[key]))
            except StateError as error:
                raise Refused(place, error) from None
            steps.append(step)
        return steps

    def _read(self, op: TxnOp) -> _Step:
        store, request = self._store, self._request
        deduplication.check_not_own(op.kind)
        key, fields, kind = store.addressed(op)
        # The number of the whole is what each record keeps.
        op = replace(op, seq=request.seq, floor=request.floor, again=request.again)
        guard = deduplication.guard_of(kind, fields) if isinstance(op, Create) else None
        return _Step(op, kind, key, fields, guard)

    # --- the order of things ---------------------------------------------------------------------------------------

    async def run(self) -> Transacted:
        for tried in range(ATTEMPTS):
            await stepped_back(tried)
            try:
                done = await self._attempt()
            except ServiceFault as problem:
                raise in_doubt(problem) if self._unsure else problem from None
            if done is not None:
                return done
        outcome: Outcome = "unknown" if self._unsure else "not_applied"
        raise Busy("the records of the transaction keep changing; send it again", outcome=outcome)

    async def _attempt(self) -> Transacted | None:
        """What it made, or None when it has to be decided again."""
        server = self._store.engine.server
        keys = await self._keys()
        found: Found = dict(zip(keys, await self._store.look(keys), strict=True))
        done = self._standing(found)
        if done is not None:
            await self._store.engine.assure(server)
            return done
        if any(self._holder(step, found) not in (None, *keys) for step in self._steps):
            return None  # a key changed hands while we looked
        decided = await self._decided(found)
        if isinstance(decided, Transacted):
            await self._store.engine.assure(server)
            return decided
        result = await self._store.committed(decided)
        if result == "unknown":
            self._unsure.append(decided)
        return self._made(decided) if result == "applied" else None

    async def _keys(self) -> list[Key]:
        """The records written, their guards, and whom the guards name."""
        keys = [step.key for step in self._steps]
        guards = [step.guard for step in self._steps if step.guard is not None]
        holders = map(deduplication.named_by, await self._store.look(guards) if guards else ())
        return list(dict.fromkeys([*keys, *guards, *(holder for holder in holders if holder is not None)]))

    async def _decided(self, found: Found) -> Unit | Transacted:
        try:
            earlier = self._earlier_answers(found)
            if earlier is None:
                return self._decide(dict(found))
        except (StateError, Refused) as refused:
            await self._settled(found)
            raise self._perhaps_applied(refused) from None
        await self._settled(found)
        rows = [found[step.key] for step in self._steps]
        # Found by its marks after a commit of unknown fate: the records are the answer, unless others changed them.
        are_ours = self._unsure and [row and row.revision for row in rows] == earlier
        return Transacted(rows, None if are_ours else earlier)

    async def _settled(self, found: Found) -> None:
        """An answer that was read off pending rows waits for their commit, and fails with it."""
        batches = [pending[1] for key in found if (pending := self._store.commits.pending(key)) is not None]
        for batch in batches:
            await batch.wait()
            if batch.failure is not None:
                raise batch.failure

    # --- deciding --------------------------------------------------------------------------------------------------

    def _decide(self, found: Found) -> Unit:
        """One after the other, each on what those before it made."""
        if self._replayed and not self._unsure:
            raise Conflict(f"write {self._request.seq} came before on this connection and was answered then")
        if self._unsure and not self._may_be_repeated(found):
            raise Conflict("a record of it was changed by another")
        unit: list[Write] = []
        for place, step in enumerate(self._steps):
            try:
                made = self._decide_one(step, found)
            except StateError as error:
                raise Refused(place, error) from None
            found.update((write.row.key, write.row) for write in made)
            unit += made
        return tuple(unit)

    def _decide_one(self, step: _Step, found: Found) -> list[Write]:
        op, kind, key, fields, guard = step
        subject, moment = Subject(kind, key[1], found[key]), self._store.moment()
        if isinstance(op, Update):
            return [writes.update(op, fields, subject, self._caller, moment)]
        if isinstance(op, Delete):
            return [writes.delete(op, subject, self._caller, moment)]
        made = writes.create(op, fields, subject, self._caller, moment)
        if guard is None:
            return [made]
        holder = self._holder(step, found)
        deduplication.check_free(kind, fields, None if holder is None else found[holder])
        return [made, deduplication.guarded(guard, found[guard], key, moment)]

    def _holder(self, step: _Step, found: Found) -> Key | None:
        return None if step.guard is None else deduplication.named_by(found[step.guard])

    # --- what came of it before ------------------------------------------------------------------------------------

    def _earlier_answers(self, found: Found) -> list[int | None] | None:
        """The revisions made when it was taken before. One record that knows it speaks for all."""
        answers: list[int | None] = []
        doubts: list[Conflict] = []
        for step in self._steps:
            try:
                answers.append(self._store.earlier_answer(self._request, found[step.key], self._caller))
            except Conflict as doubt:
                answers.append(None)
                doubts.append(doubt)
        try:
            if any(answer is not None for answer in answers):
                return answers
            if doubts:
                raise next((doubt for doubt in doubts if doubt.outcome == "unknown"), doubts[0])
            return None
        finally:
            doubts.clear()  # a failure keeps its frames, and must not be kept by them

    def _standing(self, found: Found) -> Transacted | None:
        """Done after all, when what an uncertain commit would have written is what is stored."""
        for unit in self._unsure:
            if all(found.get(write.row.key) == write.row for write in unit):
                return self._made(unit)
        return None

    def _made(self, unit: Unit) -> Transacted:
        rows = {write.row.key: write.row for write in unit}
        return Transacted([rows[step.key] for step in self._steps])

    def _may_be_repeated(self, found: Found) -> bool:
        """Whether deciding again does no harm: marks tell, or nothing has changed since."""
        if self._marked:
            return True
        stamps = {key: None if row is None else row.stamp for key, row in found.items()}
        return all(stamps.get(write.row.key) == write.expects for write in self._unsure[-1])

    def _perhaps_applied(self, refused: StateError | Refused) -> StateError | Refused:
        """A refusal after an uncertain commit may be the work of that very commit, unless marks say otherwise."""
        if not self._unsure or self._marked:
            return refused
        return Internal(f"the transaction may have been applied before it was overtaken: {refused}", outcome="unknown")


def _twice(step: _Step, key: Key, before: int) -> str:
    if key == step.guard:
        return f"{deduplication.FIELD} {printable(step.fields[deduplication.FIELD])} is that of op {before} already"
    return f"{step.kind.name} {printable(key[1])} is written by op {before} already: a transaction writes a record once"
