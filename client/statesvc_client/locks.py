"""Locks: one holder at a time among all processes that use the daemon.

Owns acquiring by name and giving back. Must not know how leases are kept.
"""

from __future__ import annotations

from typing import Any

from . import claiming
from .adapter_errors import LeaseHeld
from .claiming import TTL_SECONDS
from .errors import NotFound
from .face import Face
from .holding import AsyncHolding, BlockingHolding, Holding, OnLost


class _Lock(Holding):
    """A lock of a name."""

    def __init__(
        self,
        store: Face,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        wait: float | None = None,
        hold: float = 0.0,
        info: Any = None,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(store, "lock", name, on_lost)
        self._ttl = ttl
        self._wait = wait
        self._request: dict[str, Any] = {"kind": "lock", "id": name}
        if hold:
            self._request["hold"] = hold
        if info is not None:
            self._request["record"] = {"info": info}
        if holder is not None:
            self._request["holder"] = holder

    async def _acquire(self) -> bool:
        if self.held:
            raise RuntimeError(f"the lock {self.id} is held here already; one object holds it once")
        claimed = await claiming.claim(self._core, self._request, self._ttl, self._wait)
        if claimed is not None:
            self._hold(claimed.lease)
        return claimed is not None

    async def _enter(self) -> None:
        if not await self._acquire():
            raise LeaseHeld(f"the lock {self.id} is held by {await self._current_holder()}; waited {self._wait:g} s")

    async def _current_holder(self) -> str:
        try:
            reply = await self._core.call("get", {"kind": "lock", "id": self.id}, None)
        except NotFound:
            return "nobody any more"
        return str(reply["record"].get("lease", {}).get("holder", "nobody any more"))

    async def _end(self, _: BaseException | None) -> None:
        await self._give_back()


class Lock(_Lock, AsyncHolding):
    """`async with state.lock("name") as lock:`, or `acquire` and `release` by hand."""

    async def acquire(self) -> bool:
        """Wait for it, as long as `wait` says; whether it is ours."""
        return await self._acquire()

    async def release(self) -> None:
        """Give it back, behind every write made before. Raises `LeaseLost` when it was lost."""
        await self._leave(None)


class BlockingLock(_Lock, BlockingHolding):
    """`with state.lock("name") as lock:`, or `acquire` and `release` by hand."""

    def acquire(self) -> bool:
        """Wait for it, as long as `wait` says; whether it is ours."""
        return self._run(self._acquire())

    def release(self) -> None:
        """Give it back, behind every write made before. Raises `LeaseLost` when it was lost."""
        self._run(self._leave(None))
