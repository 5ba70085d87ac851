"""Group commit: decided writes on their way into the engine.

Owns the batch that is filling, the one under way, and the newest decided state of every record in them. Must not know
what the writes mean. What arrives while a commit is under way is the next one, on every engine.

On a shared engine several commits may be under way. Those that share a record still come one after the other: what is
decided on a pending row waits until that row is settled, and is not tried if it did not come about.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from statesvc_client.errors import Internal, StateError, Unavailable

from .. import failpoints, logs
from ..backends.port import Engine, Key, Result, Row, Unit
from .handing import hand_over
from .patience import Patience

log = logs.get(__name__)

FULL_BYTES = 32 * 1024 * 1024
"""Records waiting for one commit. Beyond it connections stop taking frames until the batch is settled."""


class Batch:
    """Writes that are committed by one call, and who waits for that."""

    __slots__ = (
        "_applied",
        "begun",
        "bytes",
        "came",
        "failure",
        "foundations",
        "listeners",
        "results",
        "settled",
        "units",
    )

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.bytes = 0
        self.came = math.inf
        """When the request came that has waited for it the longest."""
        self.results: list[Result] = []
        self.failure: StateError | None = None
        self.begun = False
        """Whether it may have been applied already. On a shared engine others may have built on it then, and told."""
        self.settled = False
        self.listeners: list[Callable[[], None]] = []
        self._applied: set[int] | None = None
        self.foundations: dict[int, list[tuple[Row, Batch]]] = {}
        """On a shared engine: the pending rows a unit was decided on, and the commits they are in."""

    def sound(self) -> list[bool]:
        """For each unit, whether what it was decided on has come about in earlier commits, or may in this one."""
        lost: set[int] = set()
        verdicts: list[bool] = []
        for place, unit in enumerate(self.units):
            holds = all(
                id(row) not in lost if batch is self else batch.applied(row)
                for row, batch in self.foundations.get(place, ())
            )
            if not holds:
                lost.update(id(write.row) for write in unit)
            verdicts.append(holds)
        return verdicts

    def settle(self, results: list[Result], failure: StateError | None) -> None:
        self.results, self.failure, self.settled = results, failure, True
        self.foundations = {}  # it may be among them itself, and each keeps those before it

    def applied(self, row: Row) -> bool:
        """Whether the unit that wrote this row was applied; call it once settled."""
        if self._applied is None:
            done = (unit for unit, result in zip(self.units, self.results, strict=False) if result == "applied")
            self._applied = {id(write.row) for unit in done for write in unit}
        return id(row) in self._applied

    def applied_units(self) -> list[Unit]:
        """What came about; call it once settled."""
        if self.results.count("applied") == len(self.units):
            return self.units
        return [unit for unit, result in zip(self.units, self.results, strict=True) if result == "applied"]

    def tell_failure(self, whom: Callable[[StateError], None]) -> None:
        if self.failure is not None:
            whom(self.failure)

    def tell(self) -> None:
        """Let those who wait go on. They are of many connections: a bug in one must not take the others' answers."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            try:
                listener()
            except Exception:
                log.exception("commit_not_taken")

    async def wait(self) -> None:
        """Return once settled, well or badly."""
        if not self.settled:
            done = asyncio.get_running_loop().create_future()
            self.listeners.append(partial(hand_over, done, None))
            await done


class Bar(NamedTuple):
    """Why nothing is taken for now. What nobody is told of may pass, unless everything is about to be replaced."""

    why: str
    even_hidden: bool = False

    def check(self, unit: Unit) -> None:
        if self.even_hidden or any(write.event is not None for write in unit):
            raise Unavailable(self.why)


class GroupCommit:
    """Collects units, commits them batch by batch, and knows the state they lead to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._filling = Batch()
        self._under_way: Batch | None = None
        self._pending: dict[Key, tuple[Row, Batch]] = {}
        self.pending: Callable[[Key], tuple[Row, Batch] | None] = self._pending.get
        """The newest decided row of a record whose commit is not settled yet."""
        self._wake = asyncio.Event()
        self.committed: Callable[[list[Unit]], None] = lambda _: None
        """Is told what was committed, before those who wait for it hear of it."""
        self.added: Callable[[Unit], None] | None = None
        """Is told what was decided, as soon as it is; None while nobody wants to know."""
        self.failed: list[Callable[[list[Unit]], None]] = []
        """Are told which decided writes did not happen, before those who wait for them are."""
        self.await_orders: Callable[[], Callable[[], Awaitable[None]] | None] = lambda: None
        """On a shared engine: what to wait for while it is not known whether writes may be taken; it raises when that
        stays so."""
        self.bar: Bar | None = None
        """What is in the way of every write, those included that were asked for before."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._commit_forever(), name="group-commit")

    async def stop(self) -> None:
        """Commit what was handed over, then end."""
        await self.settled()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, unit: Unit, came: float | None = None) -> Batch:  # noqa: ARG002 - nobody is waited for in line here
        """`came`: when the request did that it is for, if that was not just now."""
        if self.bar is not None:
            self.bar.check(unit)
        batch = self._batch_for(unit)
        if not batch.units:
            self._wake.set()
        batch.units.append(unit)
        for row, _, _, _ in unit:
            self._pending[row.kind, row.id] = (row, batch)
            batch.bytes += len(row.body) + len(row.marks)
        if self.added is not None:
            self.added(unit)
        return batch

    def _batch_for(self, _: Unit) -> Batch:
        return self._filling

    @property
    def full(self) -> Batch | None:
        """The batch that is filling, when it holds so much that whoever can wait should wait for it."""
        return self._filling if self._filling.bytes >= FULL_BYTES else None

    async def settled(self) -> None:
        """Wait until everything added before this call is committed or has failed."""
        last = self._filling if self._filling.units else self._under_way
        if last is not None:
            await last.wait()

    async def _commit_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._filling = self._filling, Batch()
            self._under_way = batch
            await self._commit(batch)
            self._under_way = None
            # Who hears of this commit fills the next one. Where none ever waits, nobody else would come in between.
            await asyncio.sleep(0)

    async def _committed(self, batch: Batch) -> list[Result]:
        return await self._engine.commit(batch.units)

    async def _commit(self, batch: Batch) -> None:
        try:
            results = await self._committed(batch)
        except StateError as failure:
            self._fail(batch, failure)
        except Exception as bug:
            # An engine must not lose waiting clients by a bug of its own.
            log.exception("engine_failed", backend=self._engine.name)
            self._fail(batch, Internal(f"the engine failed: {type(bug).__name__}; see the log", outcome="unknown"))
        else:
            self._settle(batch, results)

    def _settle(self, batch: Batch, results: list[Result]) -> None:
        if self._engine.immediate and results.count("applied") != len(results):
            # Nobody else writes there, so this cannot be; if it is, nothing decided since then can be trusted.
            self._fail(batch, Internal("the engine refused what was decided on its own state", outcome="unknown"))
        else:
            self._done(batch, results)

    def _forget_pending(self, batch: Batch) -> None:
        if self._engine.immediate and not self._filling.units:
            self._pending.clear()  # there is no other batch
            return
        for unit in batch.units:
            for row, _, _, _ in unit:
                pending = self._pending.get((row.kind, row.id))
                if pending is not None and pending[1] is batch:
                    del self._pending[row.kind, row.id]

    def _done(self, batch: Batch, results: list[Result]) -> None:
        self._forget_pending(batch)
        batch.settle(results, None)
        try:
            self.committed(batch.applied_units())
        except Exception:  # a bug there must not leave this batch, and all that follow, without an answer
            log.exception("commit_not_taken")
        if failpoints.armed:
            failpoints.reach("reply.before")
        batch.tell()

    def _fail(self, batch: Batch, failure: StateError) -> None:
        """Everything decided on the failed batch fails with it: what is filling was, so it goes too."""
        follower, self._filling = self._filling, Batch()
        self._wake.clear()
        self._pending.clear()
        self._tell_failed(batch, follower)
        batch.settle([], failure)
        follower.settle([], _follows(failure))
        # Both have failed before anyone hears of it: whoever goes on now must not decide on either.
        batch.tell()
        follower.tell()

    def _tell_failed(self, *batches: Batch) -> None:
        units = [unit for batch in batches for unit in batch.units]
        for tell in self.failed:
            try:
                tell(units)
            except Exception:  # a bug there must not leave these batches without an answer either
                log.exception("commit_not_taken")


class SharedCommit(GroupCommit):
    """The same for an engine that others write to, and that may take several commits at once: one that is slow does not
    hold up the others."""

    def __init__(self, engine: Engine, patience: Patience) -> None:
        super().__init__(engine)
        self._patience = patience
        self._running: dict[Batch, asyncio.Task[None]] = {}
        self._held: Batch | None = None
        """What was decided on rows that are under way: it goes when they are settled."""
        self._blockers: set[Batch] = set()

    def add(self, unit: Unit, came: float | None = None) -> Batch:
        batch = super().add(unit)
        batch.came = min(batch.came, self._patience.now() if came is None else came)
        return batch

    def _batch_for(self, unit: Unit) -> Batch:
        founded = [found for write in unit if (found := self._pending.get(write.row.key)) is not None]
        batch = self._filling
        if any(each is not batch for _, each in founded):
            batch = self._held = self._held or Batch()
            self._blockers.update(each for _, each in founded if each is not batch)
        if founded:
            batch.foundations[len(batch.units)] = founded
        return batch

    @property
    def full(self) -> Batch | None:
        if self._held is not None and self._held.bytes >= FULL_BYTES:
            return self._held
        return super().full

    async def settled(self) -> None:
        for batch in [*self._running, self._filling, *([] if self._held is None else [self._held])]:
            if batch.units:
                await batch.wait()

    async def _commit_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._filling.units and len(self._running) < self._engine.side_by_side:
                batch, self._filling = self._filling, Batch()
                self._run(batch)
            if self._held is not None and not self._blockers and len(self._running) < self._engine.side_by_side:
                batch, self._held = self._held, None
                self._run(batch)

    def _run(self, batch: Batch) -> None:
        batch.begun = True
        self._running[batch] = asyncio.get_running_loop().create_task(self._commit_one(batch), name="commit")

    async def _commit_one(self, batch: Batch) -> None:
        try:
            await self._commit(batch)
        finally:
            del self._running[batch]
            self._blockers.discard(batch)
            self._wake.set()

    async def _committed(self, batch: Batch) -> list[Result]:
        """What was decided on a row that did not come about is not even tried: the stored row may by chance have the
        stamp it expects, and be another. Nor is what may not be written any more, though it was taken before."""
        if (look := self.await_orders()) is not None:
            await self._patience.wait(batch.came, look)
        if not batch.foundations and self.bar is None:
            return await self._tried(batch.units, batch.came)
        verdicts = [self._refusal(unit, holds=holds) for unit, holds in zip(batch.units, batch.sound(), strict=True)]
        tried = [unit for unit, refusal in zip(batch.units, verdicts, strict=True) if refusal is None]
        done = iter(await self._tried(tried, batch.came))
        return [next(done) if refusal is None else refusal for refusal in verdicts]

    async def _tried(self, units: list[Unit], came: float) -> list[Result]:
        """Commit them in the time that is left to the one who has waited the longest."""
        left = self._patience.left(came)
        if self._patience.is_too_short(left):
            raise self._patience.over()
        results = await self._engine.commit_within(units, left)
        if "applied" in results:  # whatever else is said of a unit may be known without having asked
            self._patience.answered()
        return results

    def _refusal(self, unit: Unit, *, holds: bool) -> Result | None:
        if not holds:
            return "conflict"
        try:
            if self.bar is not None:
                self.bar.check(unit)
        except Unavailable as refused:
            return refused
        return None

    def _fail(self, batch: Batch, failure: StateError) -> None:
        """Where commits come one after the other, what waits behind the failed one fails as well: nobody's writes have
        a gap then. Where they go side by side that is promised for each record only."""
        behind = self._take_waiting() if self._engine.side_by_side == 1 else []
        for each in (batch, *behind):
            self._forget_pending(each)
        self._tell_failed(batch, *behind)
        batch.settle([], failure)
        for each in behind:
            each.settle([], _follows(failure))
        for each in (batch, *behind):
            each.tell()

    def _take_waiting(self) -> list[Batch]:
        waiting = [self._filling] if self._held is None else [self._filling, self._held]
        self._filling, self._held = Batch(), None
        self._blockers.clear()
        return waiting

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*self._running.values(), return_exceptions=True)


def group_commit(engine: Engine, patience: Patience) -> GroupCommit:
    return GroupCommit(engine) if engine.immediate else SharedCommit(engine, patience)


def _follows(failure: StateError) -> StateError:
    if failure.code == "no_space":
        return failure
    return Unavailable(f"an earlier commit failed: {failure.text}")
