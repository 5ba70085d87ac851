"""One connection to the daemon: bytes out, lines in.

Owns the socket and its deadlines. Must not know what a line means, nor writes, nor calls.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from . import wire
from .framing import LineSplitter

REPLY_BYTES = 64 * 1024 * 1024
"""The longest line a client takes; a daemon's frames are 10 MiB unless configured otherwise."""


PeerCheck = Callable[[int], None]
"""Told the process id of who listens; raises `OSError` when it is not to be talked to."""


def anybody(_: int) -> None:
    """Whoever listens on the path is the daemon."""


class Connection(asyncio.Protocol):
    """Hands lines to whoever listens; `lost` is done once the connection is gone."""

    def __init__(self, sock: socket.socket, on_lines: Callable[[list[bytes]], None]) -> None:
        self.on_lines = on_lines
        self.on_writable: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard = loop.time()
        self.writable = True
        self._clock = loop.time
        self._sock = sock
        self._splitter = LineSplitter(REPLY_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self.heard = self._clock()
        lines = self._splitter.feed(data)
        if lines:
            self.on_lines(lines)
        if self._splitter.too_large:
            self.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    def connection_lost(self, _: Exception | None) -> None:
        self.writable = False
        if not self.lost.done():
            self.lost.set_result(None)

    @property
    def is_open(self) -> bool:
        return not self.lost.done() and self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def listen(self, *, wanted: bool) -> None:
        """Read on, or leave what comes to the socket and its sender."""
        if self._transport is None or self._transport.is_closing() or self._transport.is_reading() == wanted:
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def abandon_in_child(self) -> None:
        """After a fork: give up our copy of the descriptor. The connection stays the parent's, and so does its loop."""
        try:
            os.close(self._sock.detach())
        except OSError:
            pass


async def open_connection(
    path: str, seconds: float, on_lines: Callable[[list[bytes]], None], check_peer: PeerCheck = anybody
) -> Connection:
    """Connect within the deadline. Raises `OSError` or `TimeoutError`."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(seconds):
            await loop.sock_connect(sock, path)
            # With a full backlog a Unix socket says EAGAIN, and asyncio then believes it is connected.
            sock.getpeername()
            check_peer(listener_of(sock))
            _, connection = await loop.create_unix_connection(lambda: Connection(sock, on_lines), sock=sock)
    except BaseException:
        sock.close()
        raise
    return connection


def listener_of(sock: socket.socket) -> int:
    """The process that listens at the other end, as the kernel noted it."""
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


class Asking:
    """One request at a time on a connection of its own: the next line is the answer."""

    def __init__(self, path: str, check_peer: PeerCheck = anybody) -> None:
        self._path = path
        self._check_peer = check_peer
        self._connection: Connection | None = None
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def connection(self) -> Connection | None:
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def open(self, seconds: float) -> None:
        self._connection = await open_connection(self._path, seconds, self._take, self._check_peer)

    async def ask(self, message: Any) -> bytes:
        """The line that answers. Raises `ConnectionError` when the connection ends first."""
        connection = self._connection
        if connection is None:
            raise ConnectionError("not connected")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer = answer
        connection.send(wire.encode_line(message))
        waited_for: list[asyncio.Future[Any]] = [answer, connection.lost]
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionError("the daemon closed the connection before it answered")
        return answer.result()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def release(self) -> Connection | None:
        """Give the open connection to another listener."""
        connection, self._connection = self._connection, None
        return connection

    def _take(self, lines: list[bytes]) -> None:
        answer = self._answer
        if answer is None or answer.done() or len(lines) != 1:
            self.close()  # something that was not asked for: the two sides no longer agree on whose turn it is
        if answer is not None and not answer.done():
            answer.set_result(lines[0])
