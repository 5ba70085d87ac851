"""Those who wait: for their writes to be decided, for room in the outbox, for the cache to show something.

Owns the futures and their deadlines. Must not know sockets or what a write is; it is told when something moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .adapter_errors import Closed, FlushTimeout, OutboxFull
from .desk import Desk

Condition = Callable[[], object]


class Waits:
    """Whoever waits for a store, on its loop."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._rooms: list[asyncio.Future[None]] = []
        self._conditions: list[tuple[Condition, asyncio.Future[None]]] = []

    # --- what moved ------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Something was decided."""
        if self.flushes:
            floor = self._desk.outbox.floor
            for target, done in self.flushes:
                if target < floor:
                    _let_go(done)
            self.flushes = [waiting for waiting in self.flushes if not waiting[1].done()]
        if self._rooms and self._desk.has_room():
            rooms, self._rooms = self._rooms, []
            for room in rooms:
                _let_go(room)
        if self._conditions:
            self.news()

    def news(self) -> None:
        """The cache may show something else."""
        for condition, done in self._conditions:
            try:
                if not done.done() and condition():
                    done.set_result(None)
            except Exception as problem:  # noqa: BLE001 - it belongs to whoever gave the condition
                done.set_exception(problem)
        self._conditions = [waiting for waiting in self._conditions if not waiting[1].done()]

    def close(self) -> None:
        waiting = [done for _, done in self.flushes] + self._rooms + [done for _, done in self._conditions]
        for done in waiting:
            if not done.done():
                done.set_exception(Closed("the store was closed while this waited"))

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def until_decided(self, seq: int, timeout: float | None) -> None:
        """Return once every write up to a number is decided. Raises `FlushTimeout`."""
        if seq < self._desk.outbox.floor:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushes.append((seq, done))
        self.progress()
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            raise FlushTimeout(self._desk.outbox.queued, timeout or 0.0) from None
        finally:
            self.flushes = [waiting for waiting in self.flushes if waiting[1] is not done]

    async def until_room(self, seconds: float) -> None:
        """Return once the outbox has room. Raises `OutboxFull`."""
        try:
            async with asyncio.timeout(seconds):
                while not self._desk.has_room():
                    await self._next_room()
        except TimeoutError:
            raise OutboxFull(
                f"{self._desk.outbox.queued} writes are waiting and no room came within {seconds:g} s"
            ) from None

    async def _next_room(self) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(room)
        try:
            await room
        finally:
            if room in self._rooms:
                self._rooms.remove(room)

    async def until_true(self, condition: Condition, timeout: float | None) -> None:
        """Return once a condition on the cache holds. Raises `TimeoutError`, or what the condition raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conditions.append((condition, done))
        try:
            self.news()
            async with asyncio.timeout(timeout):
                await done
        finally:
            self._conditions = [waiting for waiting in self._conditions if waiting[1] is not done]


def _let_go(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
