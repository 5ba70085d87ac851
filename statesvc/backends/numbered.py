"""Logs that number their entries: the number as a cursor, and waiting for the next one.

Owns what engines with one numbered log have in common. Must not know where entries are kept.
"""

from __future__ import annotations

import asyncio

from statesvc_client.errors import BadRequest, Gone

from .port import Cursor

MOST_DIGITS = 19
"""Positions fit 64 bits."""


def position_of(cursor: Cursor) -> int | None:
    """The position a cursor stands for; None for the place before the oldest kept entry."""
    if not cursor:
        return None
    if len(cursor) > MOST_DIGITS or not (cursor.isascii() and cursor.isdigit()):
        raise BadRequest(f"not a cursor of this log: {cursor[:40]!r}; use one that a list or an event gave")
    return int(cursor)


def no_longer_kept(cursor: Cursor) -> Gone:
    return Gone(f"events behind cursor {cursor} are no longer kept")


def beyond_the_end(cursor: Cursor) -> Gone:
    return Gone(f"cursor {cursor} is not of this log: it is beyond its end")


class Growth:
    """Those who wait for the log to grow. Nobody waiting costs a commit nothing."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake everybody."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, seconds: float) -> None:
        """Return at the next growth, or when the time is over."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
