"""Waiting for the log to grow: one blocking read a daemon wakes everybody who waits.

Owns the newest log number known, those who wait for a larger one, and the task that looks out for it while somebody
waits. Must not know what entries say.
"""

from __future__ import annotations

import asyncio

from statesvc_client.errors import StateError

from ..numbered import Growth
from .meta import Meta
from .namespace import Namespace

BLOCK_SECONDS = 5.0
"""One blocking read. Afterwards the namespace is looked at, so that a store that was replaced is noticed."""

PAUSE_SECONDS = 0.5
"""Before a server that could not be read is asked again: the link has tried for a while by then."""


class Follower:
    """Knows how far the log reaches, and tells when it reaches further."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._growth = Growth()
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self.end = 0

    def reached(self, number: int) -> None:
        """The log is known to reach so far."""
        if number > self.end:
            self.end = number
            self._growth.tell()

    def found(self, number: int) -> None:
        """So far it reaches on the server there is: less far than before, where that one took over without entries that
        nobody was told of. Others get their numbers now."""
        if number != self.end:
            self.end = number
            self._growth.tell()

    async def look(self) -> Meta:
        """See how far the log reaches."""
        known = self.end
        meta = await self._namespace.look()
        if self.end == known:  # else somebody has told meanwhile, and what was looked at may be older
            self.found(meta.seq)
        return meta

    def replaced(self, meta: Meta) -> None:
        """It is another log: whoever waits has to look again."""
        self.end = meta.seq
        self._growth.tell()

    async def wait(self, seconds: float) -> None:
        """Return when the log reaches further than `end`, or when the time is over."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())
        self._waiting += 1
        try:
            await self._growth.wait(seconds)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        self._growth.tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _follow(self) -> None:
        # The first waiter counts itself after it has made this task.
        await asyncio.sleep(0)
        while self._waiting:
            try:
                await self._step()
            except StateError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _step(self) -> None:
        log, place = self._namespace.names.log, f"{self.end}-0"
        blocking = ("XREAD", "COUNT", 1, "BLOCK", int(BLOCK_SECONDS * 1000), "STREAMS", log, place)
        await self._namespace.link.block(blocking, BLOCK_SECONDS)
        await self.look()
