"""A feed: one watch of the daemon, kept up over every failure, on a connection of its own.

Owns the place in the log that was reached, and coming back to it: each event is handed on once, in order. Must not know
what the events are for. What cannot be overcome (the place is gone, the request is wrong) is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from . import wire
from .backoff import Backoff
from .connection import Asking, Connection, PeerCheck
from .errors import StateError, from_reply
from .greeting import greet
from .options import Options

log = logging.getLogger("statesvc_client")


class Placed(Protocol):
    """Whatever an event is decoded to, it has its place in the log."""

    @property
    def cursor(self) -> str: ...


EventType = TypeVar("EventType", bound=Placed)


class Line(Struct, Generic[EventType], gc=False):
    """A line of a watch: its beginning, an event, or its end."""

    event: EventType | None = None
    success: bool = True
    cursor: str | None = None
    code: str | None = None
    error: str | None = None


Decoder = msgspec.json.Decoder[Line[EventType]]
Take = Callable[[list[EventType]], object]


class Feed(Generic[EventType]):
    """Hands the events of a watch to `take`, a list at a time."""

    def __init__(
        self,
        path: str,
        options: Options,
        check_peer: PeerCheck,
        request: dict[str, Any],
        decoder: Decoder[EventType],
        take: Take[EventType],
    ) -> None:
        self._path = path
        self._options = options
        self._check_peer = check_peer
        self._request = {"op": "watch", **request}
        self._decode = decoder.decode
        self._take = take
        self._backoff = Backoff(options.backoff_base, options.backoff_cap)
        self._connection: Connection | None = None
        self._wanted = True
        self._ended: StateError | None = None
        self.cursor: str | None = request.get("after")
        """Behind the last event that was handed on."""
        self.begun_at = self.cursor
        self.begun = asyncio.Event()
        """The daemon has agreed to the watch: from here on nothing is missed."""

    async def run(self) -> None:
        """Follow until cancelled, or until it cannot go on."""
        while True:
            await self._one_session()
            await asyncio.sleep(self._backoff.next())

    async def _one_session(self) -> None:
        asking = Asking(self._path, self._check_peer)
        try:
            async with asyncio.timeout(self._options.answer_seconds):
                await greet(asking, self._options, None, "each", self._options.answer_seconds)
            connection = asking.release()
            if connection is not None:
                await self._listen(connection)
        except (OSError, TimeoutError) as problem:
            log.debug("no daemon to follow on %s yet: %s", self._path, problem)
        except StateError as problem:
            if not problem.retryable:
                raise
            log.debug("cannot follow for now: %s", problem)
        finally:
            asking.close()

    async def _listen(self, connection: Connection) -> None:
        self._ended = None
        self._connection = connection
        connection.on_lines = self._take_lines
        connection.listen(wanted=self._wanted)
        try:
            connection.send(wire.encode_line(self._request | ({"after": self.cursor} if self.cursor else {})))
            await asyncio.wait([connection.lost])
        finally:
            self._connection = None
            connection.abort()
        if self._ended is not None:
            raise self._ended

    def _take_lines(self, lines: list[bytes]) -> None:
        if self._ended is not None:
            return
        events: list[EventType] = []
        try:
            for line in lines:
                said = self._decode(line)
                if said.event is not None:
                    events.append(said.event)
                elif not self._goes_on(said):
                    break
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            self._end("internal", f"the other side does not speak this protocol: {problem}")
        if events:
            self._backoff.reset()
            self.cursor = events[-1].cursor
            self._take(events)

    def _goes_on(self, said: Line[EventType]) -> bool:
        """Take in the beginning of the watch, or its end."""
        if not said.success:
            self._end(said.code or "internal", said.error or "no reason given")
            return False
        self.cursor = self.cursor or said.cursor
        self.begun_at = self.begun_at or self.cursor
        self.begun.set()
        self._backoff.reset()
        return True

    def _end(self, code: str, text: str) -> None:
        self._ended = from_reply(code, text, None)
        if self._connection is not None:
            self._connection.abort()

    def listen(self, *, wanted: bool) -> None:
        """Whether more may come now; what does not fit waits with the daemon."""
        self._wanted = wanted
        if self._connection is not None:
            self._connection.listen(wanted=wanted)

    def abandon_in_child(self) -> None:
        if self._connection is not None:
            self._connection.abandon_in_child()


class Feeds:
    """The feeds of a store."""

    def __init__(self, path: str, options: Options, check_peer: PeerCheck) -> None:
        self._path = path
        self._options = options
        self._check_peer = check_peer
        self._running: set[Feed[Any]] = set()

    def make(self, request: dict[str, Any], decoder: Decoder[EventType], take: Take[EventType]) -> Feed[EventType]:
        return Feed(self._path, self._options, self._check_peer, request, decoder, take)

    async def run(self, feed: Feed[Any]) -> None:
        self._running.add(feed)
        try:
            await feed.run()
        finally:
            self._running.discard(feed)

    async def follow(self, request: dict[str, Any], decoder: Decoder[EventType], take: Take[EventType]) -> None:
        """Follow a watch until it cannot go on."""
        await self.run(self.make(request, decoder, take))

    def abandon_in_child(self) -> None:
        for feed in self._running:
            feed.abandon_in_child()
