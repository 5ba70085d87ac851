"""One write on an engine that other daemons write to as well: decided, and again for as long as others are faster.

Owns when a lost race is run again, and what is said once the fate of a commit was not known. Must not know what a write
does to a record, nor how an engine keeps it.

Most writes win at the first attempt. That one is made without a task of its own: it is carried on by the loop's turn
that brings the request, by the one that brings the row where one has to be read, and by the one that settles the
commit. A task is made for whatever takes more than that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from statesvc_client.errors import Busy, Internal, Outcome, StateError
from statesvc_client.wire import Create, Fields

from ..backends.port import REMOVED, Guess, Key, Result, Row, Stamp, Write
from .batches import Batch
from .kinds import Kind
from .sequence import Turn
from .writes import Caller, Subject, living

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


ALONE = Precedence()
"""Of a write that nobody sent others before."""


class Decided(Struct):
    """What became of a request, once the batch `after` is committed."""

    # Left to the collector: a refusal knows the frames it was raised in, and one of them may know this.

    row: Row | None = None
    after: Batch | None = None
    refused: StateError | None = None
    duplicate_of: int | None = None


Tell = Callable[["Decided | Exception"], None]
"""Is told, once, what became of a request. It must not raise: others are told behind it."""


class Race:
    """One write on a shared engine: decided on what the record is being led to, and again for as long as others are
    faster. Once the fate of a commit was not known, the stored row tells: it is what was written, or carries its mark,
    or was changed by another, and then nobody can tell whether that one came before."""

    __slots__ = (
        "_batch",
        "_caller",
        "_came",
        "_expected",
        "_fields",
        "_foundation",
        "_key",
        "_kind",
        "_made",
        "_marked",
        "_place",
        "_precedence",
        "_replayed",
        "_request",
        "_server",
        "_store",
        "_tell",
        "_turn",
        "_unsure",
    )

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
        tell: Tell,
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
        self._tell = tell
        self._replayed = replayed
        self._came = store.patience.now()
        # A numbered write leaves its mark in the row it made: then the row itself tells whether it was taken.
        self._marked = bool(caller.client) and request.seq is not None
        self._unsure: list[Row] = []
        self._expected: Stamp | None = None

    # --- the first attempt -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. What becomes of it is told, at once or later."""
        self._turn.when_mine(self._lead)

    def _lead(self) -> None:
        """Decide on what the writes ahead lead to; or on what is likely to be stored, or else on what is."""
        self._server = self._store.engine.server
        try:
            self._turn.check_unspoiled()
            if self._decided_on_pending():
                return
            made = self._decided_on_guess(0)
            if made is not None:
                self._commit(made, None)
            else:
                self._store.reads.ask(self._key, self._fetched, self._came)
        except Exception as problem:  # noqa: BLE001 - whoever sent it is told
            self._finish(problem)

    def _fetched(self, row: Row | None, unread: StateError | None) -> None:
        if unread is not None:
            self._finish(unread)
            return
        try:
            if not self._decided_on_pending():
                self._try(row, None)
        except Exception as problem:  # noqa: BLE001 - whoever sent it is told
            self._finish(problem)

    def _decided_on_pending(self) -> bool:
        pending = self._store.commits.pending(self._key)
        if pending is not None:
            self._try(*pending)
        elif not self._turn.is_first:
            # Those ahead have just been settled, and may have to decide again.
            self._go_on(self._run())
        else:
            return False
        return True

    def _try(self, row: Row | None, batch: Batch | None) -> None:
        foundation = row if batch is not None else None
        made = self._decide(None if row is not None and row.deleted == REMOVED else row)
        if isinstance(made, Write):
            self._commit(made, foundation)
        elif batch is None and made.refused is not None:
            self._finish(made)
        else:
            self._go_on(self._run_after(self._answered(made, foundation, batch)))

    def _commit(self, made: Write, foundation: Row | None) -> None:
        self._precedence.check()
        self._turn.decided(made.row, foundation)
        self._made, self._foundation = made, foundation
        batch = self._store.commits.add((made,), self._came)
        self._batch, self._place = batch, len(batch.units) - 1
        batch.listeners.append(self._settled)

    def _settled(self) -> None:
        """Go on from what the commit came to. It is one of many that are told of it: a bug here has no other way out
        than the answer."""
        try:
            outcome = self._taken()
        except Exception as problem:  # noqa: BLE001 - whoever sent it is told
            outcome = problem
        if outcome is not None:
            self._finish(outcome)

    def _taken(self) -> Decided | Exception | None:
        """What is to be told; None when it has to be decided again."""
        failure = self._batch.failure
        if failure is not None:
            self._precedence.failed(failure)
            return failure
        result = self._batch.results[self._place]
        if result == "applied":
            self._turn.applied(self._foundation)
            return Decided(self._made.row)
        if isinstance(result, StateError):
            return result
        self._note(result, self._made)
        self._turn.undecided()
        self._go_on(self._run())
        return None

    def _finish(self, outcome: Decided | Exception) -> None:
        problem = outcome.refused if isinstance(outcome, Decided) else outcome
        if isinstance(problem, StateError):
            self._turn.failed(problem)
        self._turn.leave()
        self._tell(outcome)

    # --- whatever takes more ---------------------------------------------------------------------------------------

    def _go_on(self, rest: Coroutine[Any, Any, Decided]) -> None:
        self._store.go_on(self._finished(rest))

    async def _finished(self, rest: Coroutine[Any, Any, Decided]) -> None:
        outcome: Decided | Exception
        try:
            outcome = await rest
        except Exception as problem:  # noqa: BLE001 - whoever sent it is told
            outcome = problem
        self._finish(outcome)

    async def _run_after(self, attempt: Coroutine[Any, Any, Decided | None]) -> Decided:
        decided = await attempt
        return await self._run() if decided is None else decided

    async def _run(self) -> Decided:
        """Decide on what is stored, until it is taken or answered. Whatever was decided here on a row that lost its
        race has lost as well: only what is stored counts then."""
        for tried in range(1, ATTEMPTS):
            await stepped_back(tried)
            try:
                await self._store.patience.wait(self._came, self._turn.first)
                made = self._decided_on_guess(tried)
                if made is not None:
                    decided = await self._committed(made)
                else:
                    self._server = self._store.engine.server
                    decided = await self._attempt(await self._store.read(self._key, self._came))
            except StateError as problem:
                raise in_doubt(problem) if self._unsure else problem from None
            if decided is not None:
                return decided
        outcome: Outcome = "unknown" if self._unsure else "not_applied"
        raise Busy(f"{self._kind.name} {self._key[1]} keeps changing; send the write again", outcome=outcome)

    async def _attempt(self, row: Row | None) -> Decided | None:
        """What became of it; None when it has to be decided again."""
        store = self._store
        written = self._turn.stood if self._unsure else None
        if written is not None or (row is not None and row in self._unsure):
            await store.engine.assure(self._server)
            return Decided(written or row)
        if row is not None and all(store.made_before(row.uid, tried.uid) for tried in self._unsure):
            # An older record stands there: what would have taken its place never came about.
            self._unsure.clear()
        if self._is_overtaken(row):
            why = f"{self._kind.name} {self._key[1]} was changed by another"
            return Decided(refused=perhaps_applied(why))
        made = self._decide(row)
        if not isinstance(made, Write):
            return await self._answered(made, None, None)
        return await self._committed(made)

    async def _committed(self, made: Write) -> Decided | None:
        self._precedence.check()
        self._turn.decided(made.row)
        result = await self._store.committed((made,), self._precedence.failed, came=self._came)
        if result == "applied":
            return Decided(made.row)
        self._note(result, made)
        return None

    def _note(self, result: Result, made: Write) -> None:
        if result == "unknown":
            self._unsure.append(made.row)
            self._expected = made.expects

    # --- deciding --------------------------------------------------------------------------------------------------

    def _is_overtaken(self, row: Row | None) -> bool:
        """Whether a commit of unknown fate can no longer be told from one that never was. To write again would be wrong
        even where nothing adds up: what another wrote in between would be undone by a write that came before it."""
        return bool(self._unsure) and not self._marked and (row and row.stamp) != self._expected

    def _decided_on_guess(self, tried: int) -> Write | None:
        """The write, decided without a read on what is most likely stored: its commit tells whether that is so. After a
        lost race it is what was in the way. An answer is never read off a guess."""
        store = self._store
        if self._unsure or self._replayed or self._request.again:
            return None
        if tried and (not self._turn.is_first or store.commits.pending(self._key) is not None):
            return None
        guess = store.engine.guess(self._key)
        if guess is None and not tried and isinstance(self._request, Create):
            guess = Guess(None)  # what is created is most likely not there yet
        if guess is None:
            return None
        made = self._decide(guess.row)
        return made._replace(basis=guess.row) if isinstance(made, Write) else None

    def _decide(self, row: Row | None) -> Write | Decided:
        subject = Subject(self._kind, self._key[1], row)
        replayed = self._replayed and not self._unsure
        try:
            made = self._store.decide(self._request, self._fields, subject, self._caller, replayed=replayed)
        except StateError as refused:
            in_doubt = self._unsure and not self._marked
            return Decided(refused=perhaps_applied(refused.text) if in_doubt else refused.with_traceback(None))
        if isinstance(made, int):
            return Decided(row, duplicate_of=made)
        return Decided(row) if made is None else made

    async def _answered(self, answer: Decided, foundation: Row | None, batch: Batch | None) -> Decided | None:
        """An answer that needs no commit of its own, once what it was read off is true and as safe as it gets."""
        if batch is not None:
            if batch.begun:
                return None
            self._turn.decided()
            await self._store.patience.wait(self._came, batch.wait)
            if batch.failure is not None:
                raise batch.failure
            if foundation is not None and not batch.applied(foundation):
                return None
        if answer.refused is not None:
            return answer  # it is not there, however safe that is which was in its way
        await self._store.engine.assure(self._server)
        # Found by its mark after a commit of unknown fate: the record is the answer, unless others changed it since.
        is_ours = self._unsure and answer.row is not None and answer.row.revision == answer.duplicate_of
        return msgspec.structs.replace(answer, duplicate_of=None) if is_ours else answer


class Look:
    """One read in the line of its record: the record as everything before leads to it, once that is committed; nothing
    that is sent after counts.

    What a commit leads to that may have been applied before this was asked for is not the answer: another daemon may
    have changed the record since, and said so.
    """

    __slots__ = ("_came", "_key", "_store", "_tell", "_turn")

    def __init__(self, store: Store, key: Key, turn: Turn, tell: Tell) -> None:
        self._store = store
        self._key = key
        self._turn = turn
        self._tell = tell
        self._came = store.patience.now()

    def start(self) -> None:
        self._turn.when_mine(self._lead)

    def _lead(self) -> None:
        if self._turn.is_first and self._store.commits.pending(self._key) is None:
            # Everything before is settled, so it is in what is read from here on.
            self._store.reads.ask(self._key, self._fetched, self._came)
        else:
            self._store.go_on(self._finished())

    def _fetched(self, row: Row | None, problem: StateError | None) -> None:
        outcome: Decided | Exception
        try:
            outcome = Decided(living(row)) if problem is None else problem
        except Exception as bug:  # noqa: BLE001 - whoever asked is told
            outcome = bug
        self._finish(outcome)

    def _finish(self, outcome: Decided | Exception) -> None:
        self._turn.leave()
        self._tell(outcome)

    async def _finished(self) -> None:
        outcome: Decided | Exception
        try:
            outcome = Decided(living(await self._read()))
        except Exception as problem:  # noqa: BLE001 - whoever asked is told
            outcome = problem
        self._finish(outcome)

    async def _read(self) -> Row | None:
        pending = self._store.commits.pending(self._key)
        if pending is not None and not pending[1].begun:
            row, batch = pending
            self._turn.decided()
            await self._store.patience.wait(self._came, batch.wait)
            if batch.failure is None and batch.applied(row):
                return None if row.deleted == REMOVED else row
        await self._store.patience.wait(self._came, self._turn.first)
        return await self._store.fetch(self._key, self._came)


async def stepped_back(tried: int) -> None:
    """Wait a little, longer each time, once a few races were lost: those who want one record must not all run at once
    again."""
    if tried > PATIENT_ATTEMPTS:
        most = min(MOST_STEP_BACK_SECONDS, STEP_BACK_SECONDS * 2 ** (tried - PATIENT_ATTEMPTS))
        await asyncio.sleep(random.random() * most)


def in_doubt(problem: StateError) -> StateError:
    """The same failure, after a commit whose fate is not known."""
    return type(problem)(problem.text, outcome="unknown", record=problem.record)


def perhaps_applied(why: str) -> StateError:
    """What is said after a commit whose fate is not known, when the record no longer tells it."""
    return Internal(f"the write may have been applied before it was overtaken: {why}", outcome="unknown")
