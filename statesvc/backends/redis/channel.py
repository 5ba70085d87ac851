"""A connection when it is needed: made by one attempt at a time, with pauses that grow while attempts fail.

Owns when a server may be tried again. Must not know how it is reached or what it is asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from .faults import Trouble
from .lane import Lane

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
"""Between attempts to reach a master. The longest is what recovery may take once the server is back."""


class Pace:
    """When the master may be looked for again: by one at a time, after a pause that grows with failures in a row.

    Only a call that worked on a newer connection starts it anew: a server that lets one in and then breaks is not
    reached yet, and one that still serves old connections may let in no new ones.
    """

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._failures = 0
        self._failed_at = 0.0
        self._next = 0.0
        self._writes_only = False
        self.trouble: Trouble | None = None

    def failed(self, trouble: Trouble, *, writing: bool = False) -> None:
        self._failures += 1
        self._writes_only = writing
        self.trouble = trouble
        self._failed_at = asyncio.get_running_loop().time()
        self._next = self._failed_at + self._pause()

    def worked(self, lane: Lane, *, writing: bool = False) -> None:
        """A call was answered. Where writes were refused, a read that works says nothing."""
        if lane.made < self._failed_at or (self._writes_only and not writing):
            return
        self._failures = 0
        self.trouble = None

    def lasting(self) -> Trouble | None:
        """A trouble that waiting will not cure, while it is too early to look whether somebody else has."""
        if self.trouble is None or not self.trouble.lasting:
            return None
        return self.trouble if asyncio.get_running_loop().time() < self._next else None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The time in which one attempt may be made."""
        async with self._one:
            await asyncio.sleep(max(0.0, self._next - asyncio.get_running_loop().time()))
            yield

    def _pause(self) -> float:
        lasting = self.trouble is not None and self.trouble.lasting
        if self._failures == 1 and not lasting:
            return 0.0  # a connection that was idle too long, a slot that moved: the next attempt mostly works
        return jittered(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, self._failures - 1)


class Channel:
    """One connection for one purpose, made when it is needed and made again when it broke."""

    def __init__(self, reach: Callable[[], Awaitable[Lane]], pace: Pace) -> None:
        self._reach = reach
        self._pace = pace
        self._lane: Lane | None = None
        self._opening: asyncio.Task[Lane | Trouble | None] | None = None
        self._waiting = 0

    async def lane(self, until: float) -> Lane | Trouble:
        """A connection that can be used, or why there is none by then."""
        if self._lane is not None and self._lane.usable:
            return self._lane
        return self._pace.lasting() or await self._opened(until)

    async def _opened(self, until: float) -> Lane | Trouble:
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening.done():
            self._opening = loop.create_task(self._open())
        opening = self._opening
        self._waiting += 1
        try:
            await asyncio.wait({opening}, timeout=until - loop.time())
        finally:
            self._waiting -= 1
        outcome = opening.result() if opening.done() and not opening.cancelled() else None
        return outcome or self._pace.trouble or Trouble("not reached in time")

    async def _open(self) -> Lane | Trouble | None:
        """Try until it works, until it cannot, or until nobody waits any more."""
        while self._waiting:
            async with self._pace.turn():
                if not self._waiting:
                    break
                try:
                    self._lane = await self._reach()
                except Trouble as trouble:
                    if trouble.lasting:
                        return trouble
                else:
                    return self._lane
        return None

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})


def jittered(first: float, longest: float, doubled: int) -> float:
    """A pause that doubles each time, and differs between daemons that met the same failure at the same moment."""
    return min(longest, first * 2.0 ** min(doubled, 32)) * random.uniform(0.5, 1.0)
