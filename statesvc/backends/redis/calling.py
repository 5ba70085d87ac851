"""Sending scripts: as a whole where the server does not know them, again where a slot is on its way to another node.

Owns when a script is sent again. Must not know what it does. A script that writes looks for every key before its first
write, so that one which meets a key that has left has done nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from statesvc_client.errors import StateError

from .faults import Refused
from .scripting import Argument, Command, script

Send = Callable[..., Awaitable[list[Any]]]

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
"""Before a script is sent again to a node whose slot is on its way."""


async def run(
    send: Send,
    until: float,
    name: str,
    key: bytes,
    calls: Sequence[Sequence[Argument]],
    tail: Sequence[Command] = (),
) -> list[Any]:
    """The replies to calls of a script, then those to the commands of `tail`, which follow them every time. These count
    something, and each is about the calls it followed: of several the smallest holds for all calls.

    Calls must not depend on each other: some of them may be sent again behind the others, before the loop's clock says
    `until`. How long one sending may take is for `send` to know.
    """
    text = script(name)
    replies = await send(*(text.short(key, *each) for each in calls), *tail)
    pauses = _Pauses(until)
    while again := [place for place, reply in enumerate(replies[: len(calls)]) if _is(reply, "NOSCRIPT", "NOTLOCAL")]:
        if any(_is(replies[place], "NOTLOCAL") for place in again) and not await pauses.pause():
            break
        try:
            renewed = await send(*(text.whole(key, *calls[place]) for place in again), *tail)
        except StateError:
            if len(again) == len(calls):
                raise
            break  # some are answered: the answers count
        if len(again) < len(calls):
            renewed[len(again) :] = map(_smaller, replies[len(calls) :], renewed[len(again) :])
        for place, reply in zip([*again, *range(len(calls), len(replies))], renewed, strict=True):
            replies[place] = reply
    return replies


def _smaller(one: Any, other: Any) -> Any:
    """What is no number tells less than any number."""
    return min((one, other), key=lambda reply: reply if isinstance(reply, int) else -1)


def _is(reply: Any, *codes: str) -> bool:
    return isinstance(reply, Refused) and reply.code in codes


class _Pauses:
    """They grow, and end in time."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._next = FIRST_PAUSE_SECONDS

    async def pause(self) -> bool:
        """Whether there is time for another try."""
        pause = self._next * random.uniform(0.5, 1.0)  # daemons must not come all at once
        if asyncio.get_running_loop().time() + pause > self._until:
            return False
        self._next = min(self._next * 2, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)
        return True
