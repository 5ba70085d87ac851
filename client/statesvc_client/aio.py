"""The asyncio face: `StateStore` on the caller's own event loop.

Owns nothing but awaiting. Must not decide anything: what a store does is in core.py.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from .adapter_errors import NotCached
from .core import CloseReport, Core
from .desk import Counters
from .face import Face, Record
from .options import OptionFields, Options
from .process import Daemon, Log


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

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush within the deadline, end, and tell what was left. Never hangs."""
        return await self._core.close(timeout)
