"""Waiting until replicas have what was written, where an acknowledgement is to mean that.

Owns the wait and the words for one that was in vain. Must not know what was written.
"""

from __future__ import annotations

from typing import Any

from statesvc_client.errors import Unavailable

from .link import Link
from .scripting import Command

_MARK = "redis.call('HDEL', KEYS[1], '') return redis.call('HINCRBY', KEYS[1], 'assured', 1)"
"""Removing comes first, though there is no such field: what follows it is allowed also when the memory is full."""


class Replicas:
    """How many replicas must have a write, and how long they may take."""

    def __init__(self, link: Link, namespace_key: bytes, wanted: int, seconds: float) -> None:
        self._link = link
        self._wanted = wanted
        self._milliseconds = int(seconds * 1000)
        # WAIT is about the writes of its own connection: this one comes behind everything that can be read by then.
        self._mark: Command = ("EVAL", _MARK, 1, namespace_key)
        self.wait: list[Command] = [("WAIT", wanted, self._milliseconds)] if wanted else []
        """What follows writes on their connection; nothing where replicas do not matter."""

    def check(self, waited: Any) -> None:
        """Raises unless the reply to the wait says that enough replicas have what was written."""
        if not self._wanted:
            return
        if not isinstance(waited, int):
            raise self._unsure("whether replicas have it is not known")
        if waited < self._wanted:
            raise self._unsure(f"{waited} of {self._wanted} replicas had it within {self._milliseconds} ms")

    async def ask(self, *commands: Command) -> list[Any]:
        """Replies to reads, given out once enough replicas have everything they tell."""
        if not self.wait:
            return await self._link.ask(*commands)
        *told, marked, waited = await self._link.change(*commands, self._mark, *self.wait)
        if not isinstance(marked, int):
            raise self._unsure("whether replicas have it is not known")
        self.check(waited)
        return told

    def _unsure(self, why: str) -> Unavailable:
        return Unavailable(f"redis at {self._link.server}: {why}", outcome="unknown")
