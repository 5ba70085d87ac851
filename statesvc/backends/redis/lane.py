"""One connection in use: many callers' commands behind each other, and for each batch an exactly known fate.

Owns the order of batches on a connection and their deadlines. Must not know what commands mean or which server it is.
What callers hand over in one turn of the loop leaves in one write. A connection is read from all the time, so one that
the server closed while idle is noticed before anything is lost on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import RedisError

from .facts import Facts
from .faults import LOST, Trouble, broken
from .opening import Wire

SEND_BYTES = 256 * 1024
"""What is handed to the socket at a time. What waits behind it has surely not been sent."""


class Batch:
    """Commands that go out together, and what came back."""

    __slots__ = ("count", "done", "due", "packed", "replies", "sent", "trouble")

    def __init__(self, packed: list[bytes], due: float) -> None:
        self.packed = packed
        self.count = len(packed)
        self.due = due
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent = False
        """Whether any part of it may have reached the server."""
        self.replies: list[Any] = []
        self.trouble: Trouble | None = None
        """Why there are fewer replies than commands."""

    @property
    def whole(self) -> bool:
        return len(self.replies) == self.count

    def fates(self) -> list[Any]:
        """A reply a command, or `LOST`."""
        return self.replies + [LOST] * (self.count - len(self.replies))

    def settle(self, trouble: Trouble | None = None) -> None:
        self.trouble = trouble
        if not self.done.done():
            self.done.set_result(None)


class Lane:
    """A connection with batches under way. `ended` is called once, when it can be used no more."""

    def __init__(self, wire: Wire, facts: Facts, ended: Callable[[Lane, Trouble], None]) -> None:
        self.facts = facts
        self.server = wire.server
        self.trouble: Trouble | None = None
        self._wire = wire
        self._ended = ended
        self.retired = False
        self._unsent: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()
        self._loop = asyncio.get_running_loop()
        self.made = self._loop.time()
        self._something_to_send = asyncio.Event()
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = math.inf
        """When it comes. It cannot be asked itself: where the time is now, uvloop makes it no timer."""
        self._sender = self._loop.create_task(self._send())
        self._receiver = self._loop.create_task(self._receive())

    @property
    def usable(self) -> bool:
        return self.trouble is None and not self.retired

    async def run(self, batch: Batch) -> None:
        """Return when the batch has its replies, when its time is over, or when the connection broke."""
        if not self.usable:  # it ended between being handed out and being used
            batch.settle(self.trouble or self._given_up())
            return
        self._unsent.append(batch)
        self._something_to_send.set()
        if batch.due < self._alarm_at:
            self._set_alarm(batch.due)
        try:
            await batch.done
        finally:
            batch.packed = []  # a caller who gave up must not leave its bytes behind

    def retire(self) -> None:
        """Take no more; end when what is under way has been answered."""
        self.retired = True
        if not self._sent and not self._unsent:
            self.end(self._given_up())

    def end(self, trouble: Trouble) -> None:
        """Drop the connection. Batches under way learn what is known of them."""
        if self.trouble is not None:
            return
        self.trouble = trouble
        self._wire.abort()
        if self._alarm is not None:
            self._alarm.cancel()
        self._sender.cancel()
        self._receiver.cancel()
        for batch in (*self._sent, *self._unsent):
            batch.settle(trouble)
        self._sent.clear()
        self._unsent.clear()
        self._ended(self, trouble)

    def _given_up(self) -> Trouble:
        return Trouble(f"redis at {self.server}: the connection was given up")

    async def closed(self) -> None:
        """Wait until everything is let go of."""
        await asyncio.wait({self._sender, self._receiver})

    # --- both directions -------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        with self._ends_the_lane():
            while True:
                await self._something_to_send.wait()
                self._wire.must_be_open()  # here everything that waits is still surely unsent
                packed = self._next_to_send()
                if packed:
                    await self._wire.send(packed)

    def _next_to_send(self) -> list[bytes]:
        packed: list[bytes] = []
        size = 0
        while self._unsent and size < SEND_BYTES:
            batch = self._unsent.popleft()
            if batch.due <= self._loop.time():  # the process may have stood still: its alarm comes too late
                batch.settle(Trouble(f"redis at {self.server}: the time was over before it could be sent"))
            if batch.done.done():
                continue
            batch.sent = True
            self._sent.append(batch)
            packed += batch.packed
            size += sum(map(len, batch.packed))
        if not self._unsent:
            self._something_to_send.clear()
        return packed

    async def _receive(self) -> None:
        try:
            with self._ends_the_lane():
                while True:
                    self._take(await self._wire.receive())
        finally:
            await self._wire.close()

    def _take(self, reply: Any) -> None:
        if not self._sent:
            raise Trouble(f"redis at {self.server}: it answered what was not asked")
        batch = self._sent[0]
        batch.replies.append(reply)
        if batch.whole:
            self._sent.popleft()
            batch.settle()
            if self.retired:
                self.retire()

    @contextlib.contextmanager
    def _ends_the_lane(self) -> Iterator[None]:
        try:
            yield
        except Trouble as trouble:
            self.end(trouble)
        except (RedisError, OSError) as error:
            self.end(broken(error, self.server, doing="connection lost"))

    # --- time ------------------------------------------------------------------------------------------------------

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._loop.call_at(when, self._look_at_the_clock), when

    def _look_at_the_clock(self) -> None:
        """One timer for all batches: set for the earliest of them, and most of the time nothing is due."""
        self._alarm, self._alarm_at = None, math.inf
        now = self._loop.time()
        if any(batch.due <= now for batch in self._sent):
            # Behind an answer that is overdue no other will come, and a late one must not be taken for the next.
            self.end(Trouble(f"redis at {self.server}: no answer in time"))
            return
        for batch in self._unsent:
            if batch.due <= now:
                batch.settle(Trouble(f"redis at {self.server}: it does not take what it is sent"))
        self._unsent = deque(batch for batch in self._unsent if not batch.done.done())
        waiting = [batch.due for batch in (*self._sent, *self._unsent)]
        if waiting:
            self._set_alarm(min(waiting))
