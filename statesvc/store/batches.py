"""Group commit: decided writes on their way into the engine.

Owns the batch that is filling, the one under way, and the newest decided state of every record in them. Must not know
what the writes mean. What arrives while a commit is under way is the next one, on every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from statesvc_client.errors import Internal, StateError, Unavailable

from ..backends.port import Engine, Key, Result, Row, Unit

FULL_BYTES = 32 * 1024 * 1024
"""Records waiting for one commit. Beyond it connections stop taking frames until the batch is settled."""


class Batch:
    """Writes that are committed by one call, and who waits for that."""

    __slots__ = ("bytes", "failure", "listeners", "results", "settled", "units")

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.bytes = 0
        self.results: list[Result] = []
        self.failure: StateError | None = None
        self.settled = False
        self.listeners: list[Callable[[], None]] = []

    def settle(self, results: list[Result], failure: StateError | None) -> None:
        self.results, self.failure, self.settled = results, failure, True

    def tell(self) -> None:
        """Let those who wait go on."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()

    async def wait(self) -> None:
        """Return once settled, well or badly."""
        if not self.settled:
            done = asyncio.get_running_loop().create_future()
            self.listeners.append(partial(_wake, done))
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
        self._wake = asyncio.Event()
        self.committed: Callable[[list[Unit]], None] = lambda _: None
        """Is told what was committed, before those who wait for it hear of it."""
        self.added: Callable[[Unit], None] = lambda _: None
        """Is told what was decided, as soon as it is."""
        self.failed: Callable[[], None] = lambda: None
        """Is told when decided writes did not happen."""
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

    def pending(self, key: Key) -> tuple[Row, Batch] | None:
        """The newest decided row of a record whose commit is not settled yet."""
        return self._pending.get(key)

    def add(self, unit: Unit) -> Batch:
        if self.bar is not None:
            self.bar.check(unit)
        batch = self._filling
        batch.units.append(unit)
        for write in unit:
            row = write.row
            self._pending[row.key] = (row, batch)
            batch.bytes += len(row.body) + len(row.marks)
        self._wake.set()
        self.added(unit)
        return batch

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
            try:
                results = await self._engine.commit(batch.units)
            except StateError as failure:
                self._fail(batch, failure)
            except Exception as bug:  # noqa: BLE001 - an engine must not lose waiting clients by a bug of its own
                self._fail(batch, Internal(f"the engine failed: {type(bug).__name__}", outcome="unknown"))
            else:
                self._settle(batch, results)
            self._under_way = None

    def _settle(self, batch: Batch, results: list[Result]) -> None:
        if self._engine.immediate and results.count("applied") != len(results):
            # Nobody else writes there, so this cannot be; if it is, nothing decided since then can be trusted.
            self._fail(batch, Internal("the engine refused what was decided on its own state", outcome="unknown"))
        else:
            self._done(batch, results)

    def _done(self, batch: Batch, results: list[Result]) -> None:
        for unit in batch.units:
            for write in unit:
                pending = self._pending.get(write.row.key)
                if pending is not None and pending[1] is batch:
                    del self._pending[write.row.key]
        batch.settle(results, None)
        self.committed([unit for unit, result in zip(batch.units, results, strict=True) if result == "applied"])
        batch.tell()

    def _fail(self, batch: Batch, failure: StateError) -> None:
        """Everything decided on the failed batch fails with it: what is filling was, so it goes too."""
        follower, self._filling = self._filling, Batch()
        self._wake.clear()
        self._pending.clear()
        self.failed()
        batch.settle([], failure)
        follower.settle([], _follows(failure))
        # Both have failed before anyone hears of it: whoever goes on now must not decide on either.
        batch.tell()
        follower.tell()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _follows(failure: StateError) -> StateError:
    if failure.code == "no_space":
        return failure
    return Unavailable(f"an earlier commit failed: {failure.text}")
