"""What an agent sees of a lease it holds, whatever it is for: the token, whether it is lost, writes guarded by it.

Owns these and entering and leaving. Must not know how leases are renewed, nor what they are for.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from . import claiming
from .errors import LeaseLost
from .face import Face
from .lease import Lease
from .writes import named

log = logging.getLogger("statesvc_client")

T = TypeVar("T")

OnLost = Callable[[], object]


class Holding:
    """A record, held or to be held by a lease."""

    def __init__(self, store: Face, kind: str, id: str, on_lost: OnLost | None = None) -> None:
        self._store = store
        self._core = store._core  # noqa: SLF001 - the holdings are part of the store
        self.kind = kind
        self.id = id
        self._on_lost = on_lost
        self._lease: Lease | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self._lease!r})"

    @property
    def held(self) -> bool:
        """Whether it is ours now, by the daemon's last word and by the clock."""
        lease = self._lease
        return lease is not None and not lease.released and not lease.lost

    @property
    def lost(self) -> bool:
        """Whether it was ours and somebody else may have it now. Then stop, at once."""
        return self._lease is not None and self._lease.lost

    @property
    def token(self) -> int:
        """The fencing token: grows with every claim, and guards writes."""
        return self._claimed().token

    @property
    def holder(self) -> str:
        return self._claimed().holder

    def check(self) -> None:
        """Raise `LeaseLost` unless it is ours. Costs a look at the clock, so a process that was stopped sees it too."""
        self._claimed().check()

    def update(self, patch: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Change the held record, as the store's `update`, only while the lease is ours.

        Checked here, and again by the daemon, whose refusal comes to `on_rejected` as `LeaseLost`.
        """
        self.check()
        self._store.kind(self.kind).update(self.id, patch, **fields, token=self.token)

    def guard(self) -> dict[str, Any]:
        """An op for `txn`: with it the others happen only while the lease is ours."""
        self.check()
        record = "job" if self.kind == "job" else "record"
        return {"op": "update", **named(self.kind, self.id), record: {}, "token": self.token}

    # --- for what is held ------------------------------------------------------------------------------------------

    def _claimed(self) -> Lease:
        if self._lease is None:
            raise LeaseLost(f"{self.kind} {self.id} is not held")
        return self._lease

    def _hold(self, lease: Lease) -> None:
        self._lease = lease
        if self._on_lost is not None:
            lease.when_lost(partial(self._store._tell, self._on_lost))  # noqa: SLF001

    @property
    def _is_the_parents(self) -> bool:
        """Whether this process was forked from the one that holds it, and so has nothing to give back."""
        return os.getpid() != self._pid

    async def _until_lost(self) -> None:
        lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        leave = self._claimed().when_lost(partial(_tell_loop, loop, lost.set))
        try:
            await lost.wait()
        finally:
            leave()

    async def _txn(self, ops: Sequence[Mapping[str, Any]], timeout: float | None) -> list[dict[str, Any]]:
        try:
            reply = await self._core.call("txn", {"ops": [self.guard(), *ops]}, timeout, self._claimed())
        except LeaseLost:
            self._core.renewer.look()
            raise
        results: list[dict[str, Any]] = reply["results"]
        return results[1:]

    async def _give_back(
        self, fields: dict[str, Any] | None = None, *, status: str | None = None, delay: float = 0.0
    ) -> None:
        """Release it and wait until the daemon has."""
        lease = self._claimed()
        if lease.released or self._is_the_parents:
            return
        try:
            release = claiming.release(self._core, lease, fields, status=status, delay=delay)
        except BaseException:
            self._core.renewer.drop(lease)  # it could not be queued, so the lease lapses
            raise
        await release.done()

    async def _leave(self, error: BaseException | None) -> None:
        """The block is over. What its end raises must not hide what the block raised."""
        if self._lease is None or self._is_the_parents:
            return
        try:
            await self._end(error)
        except Exception as problem:
            self._core.renewer.drop(self._lease)
            if error is None:
                raise
            log.warning("%s %s was not given back: %s", self.kind, self.id, problem)

    async def _enter(self) -> None:
        raise NotImplementedError

    def _entered(self) -> None:
        """The block begins, where the agent stands."""

    def _leaving(self) -> None:
        """The block ends, where the agent stands."""

    async def _end(self, error: BaseException | None) -> None:
        """Give it back as the end of its block asks for."""
        raise NotImplementedError


class AsyncHolding(Holding):
    """For asyncio."""

    async def until_lost(self) -> None:
        """Return when it is lost."""
        await self._until_lost()

    async def txn(self, ops: Sequence[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Several writes, all or nothing, and only while the lease is ours. Raises `LeaseLost`."""
        return await self._txn(ops, timeout)

    async def __aenter__(self) -> Self:
        await self._enter()
        self._entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving()
        await self._leave(error)


class BlockingHolding(Holding):
    """For threads."""

    def until_lost(self, timeout: float | None = None) -> bool:
        """Return when it is lost, or the time is over; whether it is lost."""
        try:
            self._run(asyncio.wait_for(self._until_lost(), timeout))
        except TimeoutError:
            return self.lost
        return True

    def txn(self, ops: Sequence[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Several writes, all or nothing, and only while the lease is ours. Raises `LeaseLost`."""
        return self._run(self._txn(ops, timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._store._run(work)  # noqa: SLF001 - part of the store

    def __enter__(self) -> Self:
        self._run(self._enter())
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving()
        self._run(self._leave(error))


def _tell_loop(loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop was closed: nobody is there to be told
        pass
