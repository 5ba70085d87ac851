"""A daemon without its socket: the real server, store and engine, and one connection that is fed bytes by hand.

Owns the transport that stands in for the socket. Must not know what is counted. Everything between bytes in and bytes
out is the daemon's own code; its regular duties are not started, because they come by the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.bench import frames
from benchmarks.bench.lines import Batch, check
from statesvc import backends
from statesvc.config import Settings
from statesvc.connection import Connection
from statesvc.server import Server
from statesvc.store.writes import Caller


class Hearing(asyncio.Transport):
    """Takes what the daemon sends, and says when so many lines have come."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: list[bytes] = []
        self._missing = 0
        self._all_came: asyncio.Future[None] | None = None

    def expect(self, lines: int) -> asyncio.Future[None]:
        self._heard, self._missing = [], lines
        self._all_came = asyncio.get_running_loop().create_future()
        return self._all_came

    def heard(self) -> bytes:
        return b"".join(self._heard)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._heard.append(bytes(data))
        self._missing -= self._heard[-1].count(b"\n")
        if self._missing <= 0 and self._all_came is not None and not self._all_came.done():
            self._all_came.set_result(None)

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It never holds anything back."""

    def pause_reading(self) -> None:
        """The next bytes are fed once all replies have come."""

    def resume_reading(self) -> None:
        """See above."""


class Client:
    """Numbers its writes as the adapter does, in pipelines."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport = Hearing()
        self._seq = 0
        connection.connection_made(self._transport)

    def writes(self, heads: Sequence[bytes], depth: int) -> list[Batch]:
        """Frames made beforehand; each names the first unanswered one as its floor."""
        made = []
        for start in range(0, len(heads), depth):
            some, floor = heads[start : start + depth], self._seq + 1
            lines = [b'%b,"seq":%d,"floor":%d}\n' % (head, floor + at, floor) for at, head in enumerate(some)]
            self._seq += len(some)
            made.append(Batch(b"".join(lines), len(some)))
        return made

    async def exchange(self, batch: Batch) -> None:
        """Feed it, and wait until all of it is answered."""
        all_came = self._transport.expect(batch.replies)
        self._connection.data_received(batch.data)
        await all_came

    def check(self, batch: Batch) -> None:
        """Whether what was answered last were successes."""
        check(self._transport.heard(), batch.replies)

    def forget(self) -> None:
        """What was answered last."""
        self._transport.expect(0)

    async def ask(self, line: bytes) -> None:
        batch = Batch(line, 1)
        await self.exchange(batch)
        self.check(batch)

    def leave(self) -> None:
        self._connection.connection_lost(None)


@asynccontextmanager
async def connected(backend: str, folder: Path) -> AsyncIterator[Client]:
    """A client of a daemon with an empty store, at its default settings. Every index is in use."""
    settings = Settings(backend=backend, socket=folder / "s", data=folder / "data")
    server = Server(settings, backends.make(settings))
    server._engine.own()  # noqa: SLF001 - what `serve` does, without a socket and without duties
    await server._is_decided()  # noqa: SLF001
    client = Client(Connection(server._dispatcher, server._bounds, lambda _: None, Caller()))  # noqa: SLF001
    try:
        await client.ask(b'{"op":"hello","client":"counter","ack":"each","protocol":1}\n')
        for head in frames.every_index():
            await client.ask(head + b"}\n")
        yield client
    finally:
        client.leave()
        await server._close()  # noqa: SLF001
