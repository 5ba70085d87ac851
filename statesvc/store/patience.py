"""How long a request waits while a shared engine says nothing at all.

Owns when that is too long. Must not know what is waited for, nor whether something was sent.

A request may wait in line before it makes a call of its own, and every call has a deadline: behind a few that met an
engine which hangs it would wait for all of theirs, then for its own. So its time is that of one call, and counts from
when it came. But the line may be long on an engine that is well. So the time counts anew from each answer, whoever got
it: while there are answers the line moves, and nobody in it is sent away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from statesvc_client.errors import Unavailable

from ..backends.port import Engine

AT_ONCE_SECONDS = 0.05
"""Who waited no longer before it asks is as good as one who did not: the call ends at about the same time as its own
patience, and tells more of what is wrong."""


class Patience:
    """The same for all requests on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answered = -math.inf

    def now(self) -> float:
        """When a request comes, by the loop's clock: what each of them costs must be next to nothing."""
        return asyncio.get_running_loop().time()

    def answered(self) -> None:
        """The engine has told something that only it can know."""
        self._answered = self.now()

    def left(self, came: float) -> float:
        """How long a request still waits, as far as is known: an answer meanwhile makes it longer."""
        return max(came, self._answered) + self._engine.timeout_seconds - self.now()

    def has_waited(self, came: float) -> bool:
        """Whether there is less time than a call takes at most."""
        return self.left(came) < self._engine.timeout_seconds - AT_ONCE_SECONDS

    def is_too_short(self, left: float) -> bool:
        """Whether a call would hardly be answered in the time that is left: to send it would only put in doubt what
        became of it."""
        return left <= min(AT_ONCE_SECONDS, self._engine.timeout_seconds / 10)

    def over(self) -> Unavailable:
        """What a request is told that has waited for too long."""
        return Unavailable(f"{self._engine.name} has not answered for {self._engine.timeout_seconds:g} s")

    async def wait(self, came: float, happens: Callable[[], Awaitable[object]]) -> None:
        """Return when it has happened; raise when that takes too long. It is asked for once: who stands in line for it
        keeps its place, however often the time counts anew."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as deadline:
                alarm = Alarm(self, came, lambda: deadline.reschedule(loop.time()))
                try:
                    await happens()
                finally:
                    alarm.turn_off()
        except TimeoutError:
            if not deadline.expired():
                raise  # one of its own
            raise self.over() from None


class Alarm:
    """Rings once, when the time of a request is over; an answer meanwhile puts it off."""

    __slots__ = ("_came", "_patience", "_ring", "_timer")

    def __init__(self, patience: Patience, came: float, ring: Callable[[], None]) -> None:
        self._patience = patience
        self._came = came
        self._ring = ring
        self._timer: asyncio.Handle | None = None
        self._set(patience.left(came))

    def turn_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, left: float) -> None:
        if left < math.inf:
            self._timer = asyncio.get_running_loop().call_later(left, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        left = self._patience.left(self._came)
        if left > 0:
            self._set(left)
        else:
            self._timer = None
            self._ring()
