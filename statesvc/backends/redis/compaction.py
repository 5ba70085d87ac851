"""Cutting the log and dropping what no longer counts, one small step at a time.

Owns how large a step is. Must not know why an entry may go. Steps of several daemons do not get in each other's way.
"""

from __future__ import annotations

from ..port import LogKept
from .facts import read_info
from .namespace import Namespace
from .writing import change_store

CUT_ENTRIES = 500
"""Entries cut in one step: a few milliseconds of the server's time."""

DROP_ROWS = 50

GIVEN_UP_SECONDS = 3600
"""A generation nobody has loaded into for so long will never count."""


async def step(namespace: Namespace, keep: LogKept) -> bool:
    """Whether there is more to do."""
    dropped = await change_store(namespace, "drop", DROP_ROWS, GIVEN_UP_SECONDS)
    cut = await change_store(namespace, "compact", keep.since, keep.most_bytes, CUT_ENTRIES)
    if (dropped and dropped[1]) or (cut and cut[1]):
        return True
    await _weigh(namespace)
    return False


async def _weigh(namespace: Namespace) -> None:
    """What the server's memory holds, for people; not every server tells."""
    [told] = await namespace.link.ask(("INFO", "memory"))
    if isinstance(told, bytes):
        used = read_info(told).get("used_memory", "")
        namespace.used_memory = int(used) if used.isdecimal() else namespace.used_memory
