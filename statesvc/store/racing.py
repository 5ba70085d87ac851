"""One write on an engine that other daemons write to as well: decided, and again for as long as others are faster.

Owns when a lost race is run again, and what is said once the fate of a commit was not known. Must not know what a write
does to a record, nor how an engine keeps it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from statesvc_client.errors import Busy, Internal, Outcome, StateError
from statesvc_client.wire import Fields

from ..backends.port import REMOVED, Key, Row, Stamp, Write
from .batches import Batch
from .kinds import Kind
from .sequence import Turn
from .writes import Caller, Subject

if TYPE_CHECKING:
    from .store import PointWrite, Store

ATTEMPTS = 32
"""How often a write that keeps losing races on a shared engine is decided again before the client is told `busy`."""

PATIENT_ATTEMPTS = 2
"""Lost races after which a writer steps back for a moment before it tries again: others want the record too."""

STEP_BACK_SECONDS = 0.002
MOST_STEP_BACK_SECONDS = 0.1


class Precedence(NamedTuple):
    """How a write stands to those its sender sent before it."""

    check: Callable[[], None] = lambda: None
    """Raises when it must not be committed any more, because one before it has failed meanwhile."""
    failed: Callable[[StateError], None] = lambda _: None
    """Is told of a failed commit at once, before anything behind it goes on."""
    sender: object = None
    """Whose requests are in order."""


class Decided(NamedTuple):
    """What became of a request, once the batch `after` is committed."""

    row: Row | None = None
    after: Batch | None = None
    refused: StateError | None = None
    duplicate_of: int | None = None


class Race:
    """One write on a shared engine: decided on what the record is being led to, and again for as long as others are
    faster. Once the fate of a commit was not known, the stored row tells: it is what was written, or carries its mark,
    or was changed by another, and then nobody can tell whether that one came before."""

    def __init__(
        self,
        store: Store,
        request: PointWrite,
        caller: Caller,
        kind: Kind,
        key: Key,
        fields: Fields,
        turn: Turn,
        precedence: Precedence,
        *,
        replayed: bool,
    ) -> None:
        self._store = store
        self._request = request
        self._caller = caller
        self._kind = kind
        self._key = key
        self._fields = fields
        self._turn = turn
        self._precedence = precedence
        self._replayed = replayed
        # A numbered write leaves its mark in the row it made: then the row itself tells whether it was taken.
        self._marked = bool(caller.client) and request.seq is not None
        self._unsure: list[Row] = []
        self._expected: Stamp | None = None

    async def run(self) -> Decided:
        for tried in range(ATTEMPTS):
            await stepped_back(tried)
            try:
                decided = await self._attempt(*await (self._stored() if tried else self._leading()))
            except StateError as problem:
                raise in_doubt(problem) if self._unsure else problem from None
            if decided is not None:
                return decided
        outcome: Outcome = "unknown" if self._unsure else "not_applied"
        raise Busy(f"{self._kind.name} {self._key[1]} keeps changing; send the write again", outcome=outcome)

    async def _leading(self) -> tuple[Row | None, Batch | None]:
        """What the writes ahead lead to, decided and not yet committed; or what is stored, when there are none."""
        await self._turn.mine()
        row, batch = await self._store.leading(self._key)
        if batch is None and not self._turn.is_first:
            # Those ahead have just been settled, and may have to decide again.
            return await self._stored()
        return row, batch

    async def _stored(self) -> tuple[Row | None, Batch | None]:
        """Whatever was decided here on a row that lost its race has lost as well: only what is stored counts then."""
        await self._turn.first()
        return await self._store.read(self._key), None

    async def _attempt(self, row: Row | None, batch: Batch | None) -> Decided | None:
        """What became of it; None when it has to be decided again."""
        store, key, foundation = self._store, self._key, row if batch is not None else None
        row = None if row is not None and row.deleted == REMOVED else row
        written = self._turn.stood if self._unsure else None
        if written is not None or (row is not None and row in self._unsure):
            await store.engine.assure()
            return Decided(written or row)
        if self._is_overtaken(row):
            why = f"{self._kind.name} {key[1]} was changed by another"
            return Decided(refused=_perhaps_applied(why))
        made = self._decide(row)
        if not isinstance(made, Write):
            return await self._answered(made, foundation, batch)
        self._precedence.check()
        self._turn.decided(made.row, foundation)
        result = await store.committed((made,), self._precedence.failed)
        if result == "applied":
            self._turn.applied(foundation)
            return Decided(made.row)
        if result == "unknown":
            self._unsure.append(made.row)
            self._expected = made.expects
        return None

    def _is_overtaken(self, row: Row | None) -> bool:
        """Whether a commit of unknown fate can no longer be told from one that never was. To write again would be wrong
        even where nothing adds up: what another wrote in between would be undone by a write that came before it."""
        return bool(self._unsure) and not self._marked and (row and row.stamp) != self._expected

    def _decide(self, row: Row | None) -> Write | Decided:
        subject = Subject(self._kind, self._key[1], row)
        replayed = self._replayed and not self._unsure
        try:
            made = self._store.decide(self._request, self._fields, subject, self._caller, replayed=replayed)
        except StateError as refused:
            in_doubt = self._unsure and not self._marked
            return Decided(refused=_perhaps_applied(refused.text) if in_doubt else refused)
        if isinstance(made, int):
            return Decided(row, duplicate_of=made)
        return Decided(row) if made is None else made

    async def _answered(self, answer: Decided, foundation: Row | None, batch: Batch | None) -> Decided | None:
        """An answer that needs no commit of its own, once what it was read off is true and as safe as it gets."""
        if batch is not None:
            if batch.begun:
                return None
            self._turn.decided()
            await batch.wait()
            if batch.failure is not None:
                raise batch.failure
            if foundation is not None and not batch.applied(foundation):
                return None
        if answer.duplicate_of is None:
            return answer
        await self._store.engine.assure()
        # Found by its mark after a commit of unknown fate: the record is the answer, unless others changed it since.
        is_ours = self._unsure and answer.row is not None and answer.row.revision == answer.duplicate_of
        return answer._replace(duplicate_of=None) if is_ours else answer


async def read_in_line(store: Store, key: Key, turn: Turn) -> Row | None:
    """The record as everything before leads to it, once that is committed; nothing that is sent after counts.

    What a commit leads to that may have been applied before this was asked for is not the answer: another daemon may
    have changed the record since, and said so.
    """
    await turn.mine()
    row, batch = await store.leading(key)
    if not turn.is_first if batch is None else batch.begun:
        await turn.first()
        return await store.fetch(key)
    turn.decided()
    if batch is None or row is None:
        return row
    await batch.wait()
    if batch.failure is None and batch.applied(row):
        return None if row.deleted == REMOVED else row
    await turn.first()
    return await store.fetch(key)


async def stepped_back(tried: int) -> None:
    """Wait a little, longer each time, once a few races were lost: those who want one record must not all run at once
    again."""
    if tried > PATIENT_ATTEMPTS:
        most = min(MOST_STEP_BACK_SECONDS, STEP_BACK_SECONDS * 2 ** (tried - PATIENT_ATTEMPTS))
        await asyncio.sleep(random.random() * most)


def in_doubt(problem: StateError) -> StateError:
    """The same failure, after a commit whose fate is not known."""
    return type(problem)(problem.text, outcome="unknown", record=problem.record)


def _perhaps_applied(why: str) -> StateError:
    """What is said after a commit whose fate is not known, when the record no longer tells it."""
    return Internal(f"the write may have been applied before it was overtaken: {why}", outcome="unknown")
