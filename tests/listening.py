"""A listener whose end leaves nothing open: for servers that tests play, and take away while others connect.

Owns accepting connections. Must not know what is spoken on them. asyncio's own server, when it is closed, forgets what
it has accepted and not yet set up, and leaves it open.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

HOST = "127.0.0.1"


class Listener:
    """Accepts connections on a port, from `open` to `close`."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        self._protocol = protocol
        self._tls = tls
        self._socket: socket.socket | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        """Connections that are accepted, and not yet with their protocol."""

    def open(self, port: int = 0) -> int:
        """Listen on the loop that runs; returns the port."""
        self._socket = socket.create_server((HOST, port))
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """Accept no more. When this returns, everything accepted is with its protocol."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        await asyncio.gather(*self._beginning)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return  # it was gone before we came to it
        task = asyncio.get_running_loop().create_task(self._begin(accepted))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted, ssl=self._tls)
        except (OSError, ssl.SSLError):
            accepted.close()
