"""Leader election: of all who stand, one is the leader; when it is gone, another.

Owns standing again after a loss. Must not know how leases are kept: leadership is a lock that is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from . import claiming
from .adapter_errors import AdapterError
from .claiming import TTL_SECONDS
from .errors import LeaseLost, StateError
from .face import Face
from .holding import AsyncHolding, BlockingHolding, Holding, OnLost


class _Election(Holding):
    """Standing for leadership, from entering to leaving."""

    def __init__(
        self,
        store: Face,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        hold: float = 0.0,
        holder: str | None = None,
        on_elected: Callable[[], object] | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(store, "lock", name, on_lost)
        self._ttl = ttl
        self._request: dict[str, Any] = {"kind": "lock", "id": name}
        if hold:
            self._request["hold"] = hold
        if holder is not None:
            self._request["holder"] = holder
        self._on_elected = on_elected
        self._news = asyncio.Event()
        """We are the leader, or stand no longer: for those who wait to look again."""
        self._problem: Exception | None = None
        self._standing: asyncio.Task[Any] | None = None

    @property
    def leader(self) -> bool:
        """Whether we are, by the daemon's last word and by the clock."""
        return self.held

    async def _enter(self) -> None:
        await self._core.begin()
        self._problem = None
        self._standing = self._core.spawn_task(self._stand())
        self._standing.add_done_callback(self._stands_no_longer)

    async def _stand(self) -> None:
        try:
            await self._stand_again_and_again()
        except (StateError, AdapterError) as problem:
            self._problem = problem

    def _stands_no_longer(self, _: object) -> None:
        if self._problem is None:
            self._problem = LeaseLost(f"{self.kind} {self.id}: we stand for election no longer")
        self._news.set()

    async def _stand_again_and_again(self) -> None:
        while True:
            claimed = await claiming.claim(self._core, self._request, self._ttl, None)
            if claimed is None:
                continue
            self._hold(claimed.lease)
            self._news.set()
            if self._on_elected is not None:
                self._store._tell(self._on_elected)  # noqa: SLF001
            await self._until_lost()

    async def _until_elected(self, timeout: float | None) -> None:
        async with asyncio.timeout(timeout):
            while not self.leader:
                if self._problem is not None:
                    raise self._problem
                self._news.clear()  # an event that is set lets nobody else run
                await self._news.wait()

    async def _end(self, _: BaseException | None) -> None:
        if self.held:
            await self._give_back()

    async def _leave(self, error: BaseException | None) -> None:
        if self._standing is not None and not self._is_the_parents:
            self._standing.cancel()
            await asyncio.wait([self._standing])
        await super()._leave(error)


class Election(_Election, AsyncHolding):
    """`async with state.elect("name") as election: await election.elected()`"""

    async def elected(self, timeout: float | None = None) -> None:
        """Return once we are the leader. Raises `TimeoutError`, and `LeaseLost` when we stand no longer."""
        await self._until_elected(timeout)

    async def resign(self) -> None:
        """Stand no longer, and give leadership back."""
        await self._leave(None)


class BlockingElection(_Election, BlockingHolding):
    """`with state.elect("name") as election: election.elected()`"""

    def elected(self, timeout: float | None = None) -> None:
        """Return once we are the leader. Raises `TimeoutError`, and `LeaseLost` when we stand no longer."""
        self._run(self._until_elected(timeout))

    def resign(self) -> None:
        """Stand no longer, and give leadership back."""
        self._run(self._leave(None))
