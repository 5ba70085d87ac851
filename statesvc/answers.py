"""Answers: what a request is answered with, and the standing of the connection that asked.

Owns the shape of replies and the order of a client's numbered writes. Must not know transports or rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET, Raw, Struct

from statesvc_client import wire
from statesvc_client.errors import StateError, Unavailable
from statesvc_client.wire import Reply, Request

from .store.batches import Batch
from .store.handing import hand_over
from .store.writes import Caller


class Answer(Struct):
    """A reply, to be sent once the batch `after` is committed; `request` tells whom to blame if it is not."""

    line: bytes
    after: Batch | None = None
    request: Request | None = None
    silent: bool = False
    """A write of an `ack: last` client that succeeded: the next acknowledgement covers it."""
    final: bool = False
    """Nothing more is read from this connection."""
    weight: int = 0
    """Bytes it holds in memory besides its line: the record that a silent answer is about."""
    failed: bool = False
    """It says why the request did not succeed."""
    sent: Callable[[], None] | None = None
    """Is told once the line is on its way: from then on lines may follow that belong to the request."""


class Peerage(Protocol):
    """What a session may do to the connection it belongs to."""

    def end(self) -> Awaitable[None]:
        """Close it; done when nothing of it is under way any more."""

    def is_hung_up(self) -> bool:
        """Whether its client has closed it altogether, which may not have been heard of yet."""

    def push(self, line: bytes) -> bool:
        """Send a line outside the order of replies, such as progress or an event. False, and not sent, while the client
        takes nothing."""

    def say(self, line: bytes) -> None:
        """The same for the few lines that must not be lost, such as the end of a watch: they wait with the others."""

    def room(self) -> asyncio.Future[None] | None:
        """None while the client takes what it is sent; else what to wait for until it does again."""


class Nobody:
    """In place of a connection that is over."""

    async def end(self) -> None:
        """It has ended."""

    def is_hung_up(self) -> bool:
        return True

    def push(self, _: bytes) -> bool:
        return False

    def say(self, _: bytes) -> None:
        """There is nobody to hear it."""

    def room(self) -> None:
        """Nobody makes room."""


NOBODY = Nobody()


class Lasting(Protocol):
    """What goes on after its request was answered."""

    def end(self) -> None:
        """Nothing more is sent for it from here on."""


class Waits(set[asyncio.Future[None]]):
    """What a connection is waiting for on purpose. Once it is over, everything that is put in is cancelled at once."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def add(self, wait: asyncio.Future[None]) -> None:
        super().add(wait)
        if self.is_over:
            wait.cancel()

    def cancel(self) -> None:
        for wait in self:
            wait.cancel()


NOT_INTRODUCED = Caller()


class Session:
    """One connection's standing: who is calling, and how far its numbered writes have come."""

    __slots__ = (
        "_asks",
        "_awaited",
        "_waits",
        "_watches",
        "ack_last",
        "caller",
        "connection",
        "epoch",
        "is_deaf",
        "is_leaving",
        "is_lost",
        "last_seq",
        "stopped_at",
    )

    def __init__(self, connection: Peerage, caller: Caller = NOT_INTRODUCED) -> None:
        self.connection: Peerage = connection
        self.caller = caller
        self.epoch: str | None = None
        """The one it was told of when it said hello."""
        self._waits: Waits | None = None
        self._watches: dict[wire.RequestId, Lasting] | None = None
        self._awaited: asyncio.Future[None] | None = None
        self._asks = False
        """What is awaited is only to be told."""
        self.is_leaving = False
        self.is_deaf = False
        """Its client has hung up: what it sent is still taken, but nobody hears of anything."""
        self.is_lost = False
        """Its connection is gone: what was read of it and not begun is not begun any more."""
        self.ack_last = False
        self.last_seq = 0
        self.stopped_at: int | None = None
        """The write that failed and must come again before any later one."""

    def part(self) -> None:
        """Let go of a connection that is over. Held here, it and all it has would be there until somebody looks for
        cycles, which is seldom."""
        self.connection = NOBODY

    def unknown_epoch(self, now: str) -> str | None:
        """The epoch, when it has begun since this one said hello: a restore keeps connections."""
        return None if self.epoch in (None, now) else now

    @property
    def waits(self) -> Waits:
        """What it waits for on purpose. Most connections never do, and there may be many."""
        if self._waits is None:
            self._waits = Waits()
            self._waits.is_over = self.is_leaving
        return self._waits

    @property
    def watches(self) -> dict[wire.RequestId, Lasting]:
        """Watches of this connection, by the id of their request."""
        if self._watches is None:
            self._watches = {}
        return self._watches

    def withdraw(self) -> None:
        if self._waits is not None:
            self._waits.cancel()

    def leave(self) -> None:
        """Nobody will take what comes next: nothing is waited for or watched any more."""
        self.is_leaving = True
        if self._waits is not None:
            self._waits.is_over = True
            self._waits.cancel()
        for watch in list((self._watches or {}).values()):
            watch.end()

    def hang_up(self) -> None:
        """Its client is gone, and left what it sent before."""
        self.leave()
        self.is_deaf = True
        self._end_in_vain()

    def lose(self) -> None:
        """Its connection is gone."""
        self.is_lost = True
        self.hang_up()

    @property
    def asks(self) -> bool:
        """Whether it waits for something that is only to be told."""
        return self._awaited is not None and self._asks

    def _end_in_vain(self) -> None:
        if self._awaited is not None and self._is_in_vain():
            self._awaited.cancel()

    def _is_in_vain(self) -> bool:
        return self.is_lost or (self._asks and self.is_deaf)

    async def while_there(self, wanted: Awaitable[Any], *, asks: bool = False) -> bool:
        """Wait for something; False when the connection was lost before it came. What the client only `asks` for is
        not waited for either once it has hung up."""
        self._awaited = waiting = asyncio.ensure_future(wanted)
        self._asks = asks
        self._end_in_vain()
        try:
            await waiting
        except asyncio.CancelledError:
            if not self._is_in_vain():
                raise
            return False
        finally:
            self._awaited = None
            del wanted, waiting  # a failure keeps its frames, and must not be kept by them: a request may be large
        return True

    @property
    def is_watching(self) -> bool:
        return bool(self._watches)

    @property
    def lingers(self) -> bool:
        """Whether something keeps it that may take any time."""
        return bool(self._watches or self._waits)

    def admit(self, request: wire.Write) -> bool:
        """Let a numbered write pass in order. Returns whether its seq has passed here before, unannounced."""
        seq = request.seq
        if self.stopped_at is not None:
            self.check_order(request)
            if seq == self.stopped_at:
                self.stopped_at = None
        if seq is None or not self.caller.client:
            return False
        if seq > self.last_seq:
            self.last_seq = seq
            return False
        return not request.again

    def check_order(self, request: wire.Write) -> None:
        """Refuse a write that stands behind one that failed."""
        if self.stopped_at is not None and (request.seq is None or request.seq > self.stopped_at):
            raise Unavailable(f"write {self.stopped_at} failed and must be sent again before any later one")

    def overtakes(self, answer: Answer) -> bool:
        """Whether a write that went well stands behind one that has to be sent again."""
        request = answer.request
        if self.stopped_at is None or answer.failed or not isinstance(request, wire.Write) or request.seq is None:
            return False
        return request.seq > self.stopped_at

    def failed(self, request: Request | None, error: StateError) -> None:
        """Note a write that did not get through: those behind it have to wait for it."""
        seq = request.seq if isinstance(request, wire.Write) else None
        if seq is None or not self.caller.client or not error.stops_the_writer():
            return
        if self.stopped_at is None or seq <= self.stopped_at:
            self.stopped_at = seq
            self.last_seq = seq - 1


class Meanwhile(NamedTuple):
    """An answer that takes time, while requests behind it may begin already."""

    answer: Awaitable[Answer]


class Coming:
    """The place in line of an answer that is put there when it is ready; until then, nothing behind it is sent."""

    __slots__ = ("answer", "came")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.came: Callable[[Answer], None] | None = None
        """Is told of the answer, if it was not there yet."""

    def put(self, answer: Answer) -> None:
        self.answer = answer
        if self.came is not None:
            self.came(answer)

    async def wait(self) -> Answer:
        if self.answer is not None:
            return self.answer
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.came = partial(hand_over, told)
        return await told


Handler = Callable[[Any, Session], Answer | Coming | Awaitable[Answer]]
"""Answers one kind of request, at once or later; raises what the reply should say."""


def replied(reply: Reply, request: Request, after: Batch | None = None) -> Answer:
    return Answer(wire.encode_line(reply), after, request)


def succeeded(request: Request, **fields: Any) -> Reply:
    """The reply to a request that went well."""
    return Reply(request_id=request.request_id, success=True, **fields)


def put_record(reply: Reply | wire.Result, kind: str, body: bytes) -> None:
    if kind == "job":
        reply.job = Raw(body)
    else:
        reply.record = Raw(body)


def put_records(reply: Reply, kind: str, bodies: list[bytes]) -> None:
    raw = [Raw(body) for body in bodies]
    reply.jobs, reply.records = (raw, UNSET) if kind == "job" else (UNSET, raw)


def failed(op: str, request_id: wire.RequestId, error: StateError, seq: int | None) -> Reply:
    """The reply to a request that did not."""
    known = op in wire.OPS
    return Reply(
        request_id=request_id,
        success=False,
        error=f"{op.upper()}_ERROR: {error.text}" if known else error.text,
        code=error.code,
        outcome=error.outcome if known and wire.OPS[op].writes else None,
        seq=seq,
    )
