"""From callbacks to those who wait: an outcome is handed over, unless nobody waits for it any more.

Owns that meeting. Must not know what the outcome is about.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

Outcome = TypeVar("Outcome")


def hand_over(told: asyncio.Future[Outcome], outcome: Outcome | Exception) -> None:
    if told.done():
        return  # nobody waits any more
    if isinstance(outcome, Exception):
        told.set_exception(outcome)
    else:
        told.set_result(outcome)
