"""One connection, from nothing to usable: connected, encrypted, known by name, and told who the server is.

Owns redis-py's connection classes and the first commands on a connection. Must not know which server is the right one.
redis-py never tries anything again here, and never learns a password: what is sent, and how often, is decided above.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import RedisError

from .access import Access, Address, Identity, Tls
from .facts import Facts, facts_of, read_config, read_info
from .faults import Refused, Trouble, broken, is_error_reply, refused, trouble_of

Command = tuple[str | bytes | int, ...]

Ask = Callable[..., Awaitable[list[Any]]]
"""Takes commands, gives their replies: bytes, int, None or lists of these, as protocol 2 has them, or `Refused`."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: what the system has not sent by the time the socket is closed is not sent."""

_CONFIGURED = ("appendonly", "appendfsync", "maxmemory-policy")


def pack(commands: Sequence[Command]) -> list[bytes]:
    """Commands as the server reads them."""
    return [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type] # its stub takes one-tuples


class _Abrupt(AbstractConnection):
    """A connection that can be let go of without sending what still waits: a hung server would never take it."""

    def abort(self) -> None:
        if self._writer is None:
            return
        wire = self._writer.get_extra_info("socket")
        if wire is not None:
            with contextlib.suppress(OSError, ValueError):  # it may be closed already; uvloop says so by ValueError
                # Else the system would go on sending what it has taken, for minutes if need be.
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._writer.transport.abort()

    def is_hung_up(self) -> bool:
        """Whether the other side has closed, also when the loop had no turn yet to notice."""
        if self._writer is None or self._writer.is_closing():
            return True
        look = select.poll()
        look.register(self._writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(look.poll(0))


class _Tcp(_Abrupt, Connection):
    pass


class _Tls(_Abrupt, SSLConnection):
    pass


class _Unix(_Abrupt, UnixDomainSocketConnection):
    async def _connect(self) -> None:
        # redis-py's own greets the server in here and once more afterwards.
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await asyncio.open_unix_connection(path=self.path)


class Wire:
    """A connected socket with replies in the order of the commands."""

    def __init__(self, connection: _Abrupt, server: str) -> None:
        self._connection = connection
        self.server = server

    def must_be_open(self) -> None:
        """Raise when the server has closed: what is sent from then on surely never arrives."""
        if self._connection.is_hung_up():
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server")

    async def send(self, packed: list[bytes]) -> None:
        """Hand bytes over. Whatever is raised, any part of them may have gone out.

        Only on a connection that is open: on another one redis-py would connect again, past everything done here.
        """
        await self._connection.send_packed_command(packed, check_health=False)

    async def receive(self) -> Any:
        """The next reply, or `Refused`."""
        try:
            return await self._connection.read_response(disconnect_on_error=False)
        except RedisError as error:
            if not is_error_reply(error):
                raise
            return refused(error)

    async def exchange(self, *commands: Command) -> list[Any]:
        """Commands and their replies, on a connection nobody else uses yet."""
        self.must_be_open()
        await self.send(pack(commands))
        return [await self.receive() for _ in commands]

    def abort(self) -> None:
        """Drop the socket at once, with everything that waits in it."""
        self._connection.abort()

    async def close(self) -> None:
        self._connection.abort()
        try:
            await self._connection.disconnect()
        except (RedisError, OSError):
            pass


class Opener:
    """Makes connections to any address, as the settings say."""

    def __init__(self, access: Access, name: str) -> None:
        self._access = access
        self._name = name
        self._tls: tuple[object, ssl.SSLContext] | None = None

    async def open(self, address: Address, identity: Identity) -> Wire:
        """A connection on which we have said who we are. Raises `Trouble`, in time."""
        server = str(address)
        connection = self._connection(address)
        wire = Wire(connection, server)
        try:
            async with asyncio.timeout(self._access.connect_seconds):
                await connection.connect()  # type: ignore[no-untyped-call]
                await _introduce(wire, identity)
        except (RedisError, OSError) as error:
            await wire.close()
            encrypted = self._access.tls is not None and not address.path
            raise broken(error, server, doing="cannot connect with TLS" if encrypted else "cannot connect") from None
        except BaseException:
            await wire.close()
            raise
        return wire

    async def meet(self, wire: Wire) -> Facts:
        """What the server says of itself; the connection is set to its database. Raises `Trouble`."""
        try:
            async with asyncio.timeout(self._access.connect_seconds):
                return await self._meet(wire)
        except (RedisError, OSError) as error:
            raise broken(error, wire.server, doing="asked who it is") from None

    async def _meet(self, wire: Wire) -> Facts:
        asked = [("CONFIG", "GET", name) for name in _CONFIGURED]
        database = self._access.db
        _, number, selected, info, *configured = await wire.exchange(
            ("CLIENT", "SETNAME", self._name),
            ("CLIENT", "ID"),
            ("SELECT", database) if database else ("PING",),
            ("INFO",),
            *asked,
        )
        if isinstance(info, Refused):
            raise trouble_of(info, wire.server, during="INFO")
        if isinstance(selected, Refused):
            raise trouble_of(selected, wire.server, during=f"SELECT {database}" if database else "PING")
        config = {name: value for reply in configured for name, value in read_config(reply).items()}
        return facts_of(wire.server, read_info(info), config, number if isinstance(number, int) else None)

    def _connection(self, address: Address) -> _Abrupt:
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": None,  # calls have deadlines of their own
            "socket_connect_timeout": self._access.connect_seconds,
            "driver_info": None,
        }
        if address.path:
            return _Unix(path=address.path, **options)
        if self._access.tls is None:
            return _Tcp(host=address.host, port=address.port, **options)
        connection = _Tls(host=address.host, port=address.port, **options)
        # redis-py's own context would trust the machine's authorities beside the one that is configured.
        connection.ssl_context.context = self._context(self._access.tls)
        return connection

    def _context(self, tls: Tls) -> ssl.SSLContext:
        """Made anew when a file has changed: a certificate can be exchanged while we run."""
        stamp = tls.stamp()
        if self._tls is None or self._tls[0] != stamp:
            self._tls = (stamp, tls.context())
        return self._tls[1]


async def _introduce(wire: Wire, identity: Identity) -> None:
    auth = identity.auth()
    if auth is None:
        return
    [reply] = await wire.exchange(auth)
    if isinstance(reply, Refused):
        raise trouble_of(reply, wire.server, during="AUTH")


__all__ = ["Ask", "Command", "Opener", "Trouble", "Wire", "pack"]
