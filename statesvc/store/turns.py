"""Taking turns: long work on the event loop lets others in between.

Owns how long one piece of work may keep the loop to itself. Must not know what the work is.
"""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.002
"""A turn. Measured, not counted: what one record costs depends on the record and on the filter."""


class Turns:
    """Call `pause` between any two small steps; it gives way when the turn is over."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.monotonic() + SECONDS

    async def pause(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + SECONDS
