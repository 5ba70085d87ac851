"""The door: connections are taken in as they come, a few at a time.

Owns accepting. Must not know who may come in, which it asks, nor what is spoken. However many want to come in, those
who are in keep most of the loop's time: what cannot be taken yet waits in the kernel.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

AT_ONCE = 4
REST_SECONDS = 0.001
"""So many, then a rest: some two thousand a second, and each takes about a tenth of a millisecond."""

Welcome = Callable[[socket.socket], asyncio.Protocol | None]
"""The protocol for a new connection, told of its loss if it does not come to be one; None when it was told why it
cannot come in."""


class Acceptor:
    """Takes in connections from a listening socket until it is closed."""

    def __init__(self, listening: socket.socket, welcome: Welcome) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._welcome = welcome
        self._rest: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._coming: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._open()

    async def close(self) -> None:
        """Take in no more. When this returns, everybody taken in is with their protocol."""
        if self._rest is not None:
            self._rest.cancel()
        self._is_closed = True
        self._loop.remove_reader(self._listening)
        await asyncio.gather(*self._coming, return_exceptions=True)
        self._listening.close()

    def _open(self) -> None:
        self._rest = None
        # Not at once: who has just left gives their place away first.
        self._loop.add_reader(self._listening, self._loop.call_soon, self._take_some)

    def _take_some(self) -> None:
        if self._rest is not None or self._is_closed:
            return
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError:
                break  # gone already, or there are no descriptors: later
            self._take(connection)
        self._loop.remove_reader(self._listening)
        self._rest = self._loop.call_later(REST_SECONDS, self._open)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        protocol = self._welcome(connection)
        if protocol is None:
            connection.close()
            return
        task = self._loop.create_task(self._introduce(connection, protocol))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _introduce(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as gone:
            connection.close()
            protocol.connection_lost(gone)
