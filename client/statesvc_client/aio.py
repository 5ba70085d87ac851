"""The asyncio face: `StateStore` on the caller's own event loop.

Owns nothing but awaiting. Must not decide anything: what a store does is in core.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from .adapter_errors import NotCached
from .claiming import TTL_SECONDS
from .context import AsyncJobContext
from .core import CloseReport, Core
from .desk import Counters
from .election import Election
from .face import Face, Record
from .holding import OnLost
from .locks import Lock
from .options import OptionFields, Options
from .process import Daemon, Log
from .queue import Queue
from .watching import Event, Watch, history, watch_request
from .worker import REGISTER_SECONDS, Worker


class StateStore(Face):
    """A state store for asyncio. Make one with `connect` or `spawn`, and enter it: `async with ... as state:`.

    Writes return at once and may come from any thread. When the outbox is full, a write on the event loop raises
    `OutboxFull` whatever the policy, because waiting there would stop the sender: `await state.room()` first. From
    other threads `when_full="block"` waits.
    """

    @classmethod
    def connect(cls, path: str | os.PathLike[str], **options: Unpack[OptionFields]) -> Self:
        """A store on a daemon that somebody else runs. Begins when entered, or with `await`."""
        return cls(Core(os.fspath(path), Options(**options)))

    @classmethod
    def spawn(
        cls,
        backend: str = "sqlite",
        *,
        data: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        command: Sequence[str] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log: Log | None = None,
        start_seconds: float = 10.0,
        stop_seconds: float = 10.0,
        **options: Unpack[OptionFields],
    ) -> Self:
        """A store on a daemon of its own, which ends with this process. Begins when entered, or with `await`."""
        daemon = Daemon(
            backend=backend, data=data, socket=socket, command=command, args=args, env=env, log=log,
            start_seconds=start_seconds, stop_seconds=stop_seconds,
        )  # fmt: skip
        return cls(Core(daemon.socket, Options(**options), daemon))

    async def _entered(self) -> Self:
        await self._core.start()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._entered().__await__()

    async def __aenter__(self) -> Self:
        return await self._entered()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def flush(self, timeout: float | None = None) -> Counters:
        """Return once every write made before is acknowledged (or rejected). Raises `FlushTimeout`."""
        return await self._core.flush(timeout)

    async def room(self, timeout: float | None = None) -> None:
        """Return once the outbox has room; raises `OutboxFull` after `timeout` (else `block_seconds`)."""
        await self._core.room(timeout)

    async def call(self, op: str, /, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Ask the daemon, with every write applied that was made before. Raises the `StateError` it answers."""
        return await self._core.call(op, fields, timeout)

    async def fetch(self, id: str, /, *, kind: str = "job", timeout: float | None = None) -> Record | None:
        """As `get`, but asks the daemon where the cache cannot tell."""
        try:
            return self.get(id, kind)
        except NotCached:
            return await self._core.fetch(id, kind, timeout)

    async def txn(self, ops: Sequence[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Several creates, updates and deletes, all or nothing; returns what each made."""
        results: list[dict[str, Any]] = (await self.call("txn", ops=ops, timeout=timeout))["results"]
        return results

    async def history(
        self, id: str, /, *, kind: str = "job", after: str | None = None, limit: int | None = None
    ) -> list[Event]:
        """What happened to a record, oldest first."""
        return await history(self._core, id, kind, after=after, limit=limit)

    async def stats(
        self, *, kind: str = "job", filter: Mapping[str, Any] | None = None, by: str = "status"
    ) -> dict[str, Any]:
        """Counts by a field, and how long records waited and ran."""
        return await self.call("stats", kind=kind, by=by, filter=dict(filter or {}))

    async def until(self, condition: Callable[[], object], timeout: float | None = None) -> None:
        """Return once a condition on the cache holds; asked whenever the cache has heard of something.

        `await state.until(lambda: "job-1" in state)`. Raises `TimeoutError`, or what the condition raises.
        """
        await self._core.until(condition, timeout)

    # --- watches and leases ----------------------------------------------------------------------------------------

    def watch(self, kind: str = "job", filter: Mapping[str, Any] | None = None, after: str | None = None) -> Watch:
        """Events of a kind, from now on, or behind a cursor: each once, in order, over every reconnect.

        Raises `Gone` where the log no longer reaches back so far, or goes on elsewhere.
        """
        return Watch(self, watch_request(kind, filter, after))

    def lock(
        self,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        wait: float | None = None,
        hold: float = 0.0,
        info: Any = None,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Lock:
        """One holder at a time. Waits for it up to `wait` seconds (None: for ever), then raises `LeaseHeld`."""
        return Lock(self, name, ttl=ttl, wait=wait, hold=hold, info=info, holder=holder, on_lost=on_lost)

    def elect(
        self,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        hold: float = 0.0,
        holder: str | None = None,
        on_elected: Callable[[], object] | None = None,
        on_lost: OnLost | None = None,
    ) -> Election:
        """Stand for leadership while the block lasts, again after every loss."""
        return Election(self, name, ttl=ttl, hold=hold, holder=holder, on_elected=on_elected, on_lost=on_lost)

    def worker(
        self,
        id: str,
        fields: Mapping[str, Any] | None = None,
        /,
        *,
        status: str = "running",
        ttl: float = TTL_SECONDS,
        wait: float | None = REGISTER_SECONDS,
        on_lost: OnLost | None = None,
    ) -> Worker:
        """Be a worker of this name: its record, its heartbeat, its routines' state."""
        return Worker(self, id, fields or {}, status=status, ttl=ttl, wait=wait, on_lost=on_lost)

    def queue(
        self,
        kind: str = "job",
        filter: Mapping[str, Any] | None = None,
        *,
        ttl: float = TTL_SECONDS,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Queue:
        """The ready jobs of a kind that match a filter, to be claimed one by one."""
        return Queue(self, kind, filter, ttl=ttl, holder=holder, on_lost=on_lost)

    def job_context(self, id: str, *, kind: str = "job") -> AsyncJobContext:
        """Make this the current job: `with state.job_context("job-1") as job:`"""
        return AsyncJobContext(self, id, kind=kind)

    def _tell(self, callback: Callable[[], object]) -> None:
        loop = self._core.loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._core.safely, callback)
            except RuntimeError:  # the loop was closed: nobody is there to be told
                pass

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush within the deadline, end, and tell what was left. Never hangs."""
        return await self._core.close(timeout)
