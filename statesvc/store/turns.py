"""Taking turns: long work on the event loop lets others in between.

Owns how long one piece of work may keep the loop to itself, and how much of the loop all long work takes together. Must
not know what the work is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from .handing import hand_over

SECONDS = 0.0001
"""A turn. Measured, not counted: what one record costs depends on the record and on the filter."""

WRITING_SECONDS = 0.00025
"""A turn of work that writes: between two of them its writes are committed, which costs as much again."""

REST_SECONDS = 0.001
"""Between two turns while others are about, which is the shortest that timers know."""

QUIET_SECONDS = 0.00003
ABOUT_SECONDS = 0.005
"""Others are about when they were at work for more than the first between two turns, and for the second after that: a
write waits for the disk meanwhile."""


class Turns:
    """Call `pause` between any two small steps; it gives way when the turn is over."""

    __slots__ = ("_seconds", "_until")

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    async def pause(self) -> None:
        if time.monotonic() >= self._until:
            await _line_of(asyncio.get_running_loop()).wait()
            self._until = time.monotonic() + self._seconds


class _Line:
    """All long work on a loop, one behind the other: one has its turn, then everybody else is served. While there is
    nobody else it goes on at once; otherwise it takes a small part of the loop's time, however much there is of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended = self._others_until = 0.0

    async def wait(self) -> None:
        turn: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._end_turn()
        await turn

    def _end_turn(self) -> None:
        self._ended = time.thread_time()
        self.loop.call_soon(self._look_around)

    def _look_around(self) -> None:
        """Whoever else had something to do has done it by now."""
        now = time.monotonic()
        # In time of the processor: that somebody else had the machine is no reason to rest.
        if time.thread_time() - self._ended > QUIET_SECONDS:
            self._others_until = now + ABOUT_SECONDS
        if now < self._others_until:
            self.loop.call_later(REST_SECONDS, self._give_turn)
        else:
            self._give_turn()

    def _give_turn(self) -> None:
        hand_over(self._waiting[0], None)
        self.loop.call_soon(self._after_turn)

    def _after_turn(self) -> None:
        self._waiting.popleft()
        if self._waiting:
            self._end_turn()


_line: _Line | None = None
"""Of the loop that ran last: a process has one, but for tests."""


def _line_of(loop: asyncio.AbstractEventLoop) -> _Line:
    global _line  # noqa: PLW0603 - as there is one loop
    if _line is None or _line.loop is not loop:
        _line = _Line(loop)
    return _line


class Share:
    """Work that cannot be divided, one piece behind the other, each followed by as long a rest: together they take half
    of the loop's time at most, however many ask for it."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._began = self._ended = self._owed = 0.0

    async def take(self) -> None:
        """Wait for one's turn, and keep it until it is given back."""
        await self._line.acquire()
        try:
            await self._rest()
        except BaseException:
            self._line.release()
            raise
        self._began = time.monotonic()

    async def _rest(self) -> None:
        """For as long as is owed by now. What is shorter than timers know is owed on."""
        self._owed = max(0.0, self._owed - (time.monotonic() - self._ended))
        if self._owed >= REST_SECONDS:
            await asyncio.sleep(self._owed)
            self._owed = 0.0

    def give_back(self) -> None:
        self._ended = time.monotonic()
        self._owed += self._ended - self._began
        self._line.release()
