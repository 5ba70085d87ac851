"""Queues: claiming jobs, working on them under a lease, and giving them back with how they ended.

Owns what the end of a block means for its job. Must not know which job is next, retries or back-off: the daemon does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from . import claiming
from .calls import epoch_of
from .claiming import TTL_SECONDS, Claimed
from .context import AsyncJobContext, BlockingJobContext, JobContext
from .errors import LeaseLost, NotFound
from .face import Face, Record
from .holding import AsyncHolding, BlockingHolding, Holding, OnLost
from .lease import clock
from .writes import named

T = TypeVar("T")


class _ClaimedJob(Holding):
    """A job that is ours to work on.

    Entering makes it the current job. Leaving ends it: COMPLETED; FAILED with the error's text, after which the daemon
    may try again by the job's policy; given back untried when the block was cancelled.
    """

    _context_type: type[JobContext] = JobContext

    def __init__(self, store: Face, claimed: Claimed, on_lost: OnLost | None) -> None:
        super().__init__(store, claimed.lease.kind, claimed.lease.id, on_lost)
        self.claimed = claimed.record
        """The record as it was when it was claimed."""
        self._hold(claimed.lease)
        self.context = self._context_type(store, self.id, kind=self.kind, record=claimed.record)
        self.context.guard_by(claimed.lease.token_to_send)

    @property
    def record(self) -> Record:
        """The record as this agent knows it now, own writes included."""
        return self.context.record

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the end of this job. Told by renewals, and sooner by a cache that follows."""
        return self._claimed().cancel_requested or bool(self.record.get("cancelRequested"))

    def progress(self, patch: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Report how far it is: fields of the record, written at once and in order. As `update`."""
        self.update(patch, **fields)

    async def _renew(self, patch: Mapping[str, Any] | None) -> None:
        lease = self._claimed()
        lease.check()
        fields = {"record" if self.kind != "job" else "job": dict(patch)} if patch else {}
        sent = clock()
        try:
            reply = await self._core.call(
                "renew", {**named(self.kind, self.id), "token": lease.token, "ttl": lease.ttl, **fields}, None, lease
            )
            lease.confirm(sent, cancel_requested=bool(reply.get("cancelRequested")))
            lease.lose_to(epoch_of(reply))
            lease.check()
        except (LeaseLost, NotFound) as problem:
            lease.lose(str(problem))
            self._core.renewer.look()
            raise

    async def _release(self, status: str | None, delay: float, fields: dict[str, Any]) -> None:
        await self._give_back(fields, status=status, delay=delay)

    async def _enter(self) -> None:
        self.check()

    def _entered(self) -> None:
        self.context.__enter__()

    def _leaving(self) -> None:
        self.context.__exit__(None, None, None)

    async def _end(self, error: BaseException | None) -> None:
        if error is None:
            await self._give_back(status="COMPLETED")
        elif isinstance(error, Exception):
            await self._give_back({"error": claiming.told(error)}, status="FAILED")
        else:
            await self._give_back()


class ClaimedJob(_ClaimedJob, AsyncHolding):
    """`async with job:` around the work."""

    _context_type = AsyncJobContext
    context: AsyncJobContext

    async def renew(self, patch: Mapping[str, Any] | None = None) -> None:
        """Renew now, with progress, and wait for the daemon. Raises `LeaseLost`."""
        await self._renew(patch)

    async def release(self, status: str | None = None, *, delay: float = 0.0, **fields: Any) -> None:
        """End it by hand: with a last patch, or without a status back to the queue, after `delay` seconds."""
        await self._release(status, delay, fields)


class BlockingClaimedJob(_ClaimedJob, BlockingHolding):
    """`with job:` around the work."""

    _context_type = BlockingJobContext
    context: BlockingJobContext

    def renew(self, patch: Mapping[str, Any] | None = None) -> None:
        """Renew now, with progress, and wait for the daemon. Raises `LeaseLost`."""
        self._run(self._renew(patch))

    def release(self, status: str | None = None, *, delay: float = 0.0, **fields: Any) -> None:
        """End it by hand: with a last patch, or without a status back to the queue, after `delay` seconds."""
        self._run(self._release(status, delay, fields))


class _Queue:
    """The ready jobs of a kind, or those of them that match a filter."""

    def __init__(
        self,
        store: Face,
        kind: str = "job",
        filter: Mapping[str, Any] | None = None,
        *,
        ttl: float = TTL_SECONDS,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self._store = store
        self._core = store._core  # noqa: SLF001 - part of the store
        self._ttl = ttl
        self._on_lost = on_lost
        self._request: dict[str, Any] = {"kind": kind, "filter": dict(filter or {})}
        if holder is not None:
            self._request["holder"] = holder

    async def _claim(self, wait: float | None) -> Claimed | None:
        return await claiming.claim(self._core, self._request, self._ttl, wait)


class Queue(_Queue):
    """For asyncio."""

    async def claim(self, wait: float | None = 0.0) -> ClaimedJob | None:
        """The best ready job, waited for up to `wait` seconds (None: for ever); None when there was none."""
        claimed = await self._claim(wait)
        return None if claimed is None else ClaimedJob(self._store, claimed, self._on_lost)

    async def jobs(self) -> AsyncIterator[ClaimedJob]:
        """One job after the other, for ever: `async for job in queue.jobs(): async with job: ...`"""
        while True:
            job = await self.claim(wait=None)
            if job is not None:
                yield job


class BlockingQueue(_Queue):
    """For threads."""

    def claim(self, wait: float | None = 0.0) -> BlockingClaimedJob | None:
        """The best ready job, waited for up to `wait` seconds (None: for ever); None when there was none."""
        claimed = self._run(self._claim(wait))
        return None if claimed is None else BlockingClaimedJob(self._store, claimed, self._on_lost)

    def jobs(self) -> Iterator[BlockingClaimedJob]:
        """One job after the other, for ever: `for job in queue.jobs(): with job: ...`"""
        while True:
            job = self.claim(wait=None)
            if job is not None:
                yield job

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._store._run(work)  # noqa: SLF001 - part of the store
