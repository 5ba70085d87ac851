"""Between a daemon and its server in tests: a proxy that breaks things, and a server that says what it is told.

Owns exact faults. Must not know engines. Both run on the loop of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Self

import hiredis

Said = tuple[bytes, ...]


class Passing:
    """One connection through the proxy."""

    def __init__(self) -> None:
        self.swallows = False
        self.writers: list[asyncio.StreamWriter] = []
        self.open = asyncio.Event()
        self.open.set()


class Proxy:
    """Forwards connections to a server on loopback, and fails in the way it is told to.

    `accepted` counts the connections that were made. With `tls` it speaks TLS to the outside and none to the server.
    """

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.server_port = port
        self.accepted = 0
        self.hangs_up = False
        """Close every new connection at once."""
        self._tls = tls
        self._passing: set[Passing] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def swallow(self) -> None:
        """Let no more answers through on the connections there are. New ones work."""
        for passing in self._passing:
            passing.swallows = True

    def hold(self) -> None:
        """Keep back what is sent on the connections there are, until `release`. New ones work."""
        for passing in self._passing:
            passing.open.clear()

    def release(self) -> None:
        """Send what was kept back, though those who sent it may be gone."""
        for passing in self._passing:
            passing.open.set()

    def cut(self) -> None:
        """Break the connections there are."""
        for passing in self._passing:
            for writer in passing.writers:
                writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.hangs_up:
            writer.transport.abort()
            return
        passing = Passing()
        self._passing.add(passing)
        passing.writers.append(writer)
        try:
            inner_reader, inner = await asyncio.open_connection("127.0.0.1", self.server_port)
            passing.writers.append(inner)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._outward(inner_reader, writer, passing))
                both.create_task(self._inward(reader, inner, passing))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._passing.discard(passing)
            for end in passing.writers:
                end.transport.abort()

    async def _inward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, passing: Passing) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await passing.open.wait()
                target.write(data)
                await target.drain()
        await passing.open.wait()  # what is kept back arrives even when its sender is gone
        if not passing.swallows:
            target.close()

    async def _outward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, passing: Passing) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if not passing.swallows:
                    target.write(data)
                    await target.drain()
        if not passing.swallows:
            target.close()


INFO = {"redis_version": "7.2.4", "run_id": "a" * 40, "master_replid": "b" * 40, "role": "master"}


class Scripted:
    """A server on loopback that answers what `answer` says; None leaves it to the usual answers.

    `said` holds every command it was sent, without those a connection begins with.
    """

    def __init__(
        self, answer: Callable[[Said], bytes | None] = lambda _: None, *, tls: ssl.SSLContext | None = None, **info: str
    ) -> None:
        self._tls = tls
        self.said: list[Said] = []
        self.accepted = 0
        self._answer = answer
        self._info = INFO | info
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def address(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        parser = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    writer.write(self._reply(tuple(command)))
        self._writers.discard(writer)
        writer.close()

    def _reply(self, command: Said) -> bytes:
        told = self._answer(command)
        if told is not None:
            self.said.append(command)
            return told
        match command[0]:
            case b"INFO":
                return bulk("".join(f"{name}:{value}\r\n" for name, value in self._info.items()).encode())
            case b"CONFIG":
                return b"*0\r\n"
            case b"CLIENT" if command[1] == b"ID":
                return b":7\r\n"
            case b"PING":
                return b"+PONG\r\n"
            case _:
                return b"+OK\r\n"


def bulk(data: bytes) -> bytes:
    """Bytes as a reply."""
    return b"$%d\r\n%b\r\n" % (len(data), data)
