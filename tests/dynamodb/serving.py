"""A small HTTP/1.1 server for endpoints that are played: requests with a length, connections that stay open.

Owns bytes and connections. Must not know DynamoDB. What answers a request is called on the loop, one request at a time
unless it waits for something itself.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, cast

from tests.listening import Listener

REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error"}


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def operation(self) -> str:
        """What DynamoDB is asked to do."""
        return self.headers.get("x-amz-target", "").rpartition(".")[2]


@dataclass
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Answer = Reply | None
"""None: the connection is closed without a word."""

Handler = Callable[[Request], Answer | Awaitable[Answer]]


class Connection(asyncio.Protocol):
    def __init__(self, handler: Handler, every: set[Connection]) -> None:
        self._handler = handler
        self._every = every
        self._received = bytearray()
        self._waiting: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._every.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._every.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting is None and (request := self._next()) is not None:
            answer = self._handler(request)
            if inspect.isawaitable(answer):
                self._waiting = asyncio.ensure_future(self._wait_for(answer))
            else:
                self._send(answer)

    async def _wait_for(self, answer: Awaitable[Answer]) -> None:
        reply = await answer
        self._waiting = None
        self._send(reply)
        self._go_on()

    def _next(self) -> Request | None:
        """The next whole request, once it is there."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(self._received) < end + 4 + length:
            return None
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        method, path, _ = first.split(" ", 2)
        return Request(method, path, headers, body)

    def _send(self, reply: Answer) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if reply is None:
            self.transport.abort()
            return
        lines = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        first = f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Other')}\r\n"
        head = f"{first}{lines}content-length: {len(reply.body)}\r\n\r\n"
        self.transport.write(head.encode("latin-1") + reply.body)


class Served:
    """A listening endpoint. `connections` are those open now, `accepted` counts all there ever were."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._listener = Listener(self._accept, tls)
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def _accept(self) -> Connection:
        self.accepted += 1
        return Connection(self._handler, self.connections)

    async def open(self, port: int = 0) -> None:
        self.port = self._listener.open(port)

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        await self._listener.close()
        for each in list(self.connections):
            if each.transport is not None:
                each.transport.abort()
        while self.connections:
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
