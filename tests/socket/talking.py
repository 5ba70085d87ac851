"""What the socket suite talks with: a daemon in this process, on a real socket, and plain clients of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from statesvc.backends.port import Engine
from statesvc.config import Settings
from statesvc.server import Server
from tests.engines.addresses import caught_up

PATIENCE = 60.0
"""Seconds a reply may take on a machine that is busy with something else."""

LONGEST = 64 * 1024 * 1024

Json = dict[str, Any]


class Talker:
    """One connection: lines out, lines in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.seq = 0

    def send(self, *frames: Json) -> None:
        """Put frames on the way, without waiting for anything."""
        self._writer.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def line(self) -> bytes:
        """The next line as it came; empty when the daemon ended the connection."""
        try:
            return await asyncio.wait_for(self._reader.readline(), PATIENCE)
        except ConnectionResetError:
            return b""

    async def receive(self) -> Json:
        line = await self.line()
        assert line.endswith(b"\n"), "the connection ended"
        reply: Json = json.loads(line)
        return reply

    async def receive_all(self, count: int) -> list[Json]:
        return [await self.receive() for _ in range(count)]

    async def ask(self, op: str, **fields: Any) -> Json:
        """One request, its reply."""
        self.send({"op": op, **fields})
        return await self.receive()

    async def ok(self, op: str, **fields: Any) -> Json:
        """A request that has to succeed."""
        reply = await self.ask(op, **fields)
        assert reply["success"], reply
        return reply

    async def refused(self, op: str, **fields: Any) -> tuple[str, str]:
        """A request that has to fail: its code and text."""
        reply = await self.ask(op, **fields)
        assert not reply["success"], reply
        return reply["code"], reply["error"]

    async def write(self, op: str, **fields: Any) -> Json:
        """A numbered write: the next seq, everything before it answered."""
        self.seq += 1
        return await self.ask(op, seq=self.seq, floor=self.seq, **fields)

    async def hello(self, client: str | None = None, /, **fields: Any) -> Json:
        named = {} if client is None else {"client": client}
        return await self.ok("hello", **named, **fields)

    async def in_one_go(self, frames: Iterable[Json]) -> list[Json]:
        """Requests in a pipeline, and their replies."""
        sent = list(frames)
        self.send(*sent)
        return await self.receive_all(len(sent))

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the daemon was first


class Daemon:
    """A server on this loop, and everybody who talks to it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.server = Server(settings, engine)
        self.store = self.server._store
        self._socket = settings.socket
        self._talkers: list[Talker] = []
        self.ended = False
        self._task: asyncio.Task[int] | None = None

    async def start(self) -> Self:
        listening = asyncio.Event()
        self._task = asyncio.create_task(self.server.serve(announce=lambda _: listening.set()))
        waiting = asyncio.create_task(listening.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert listening.is_set(), self._task
        # The socket is up before the engine is; a read waits for the engine.
        reply = await (await self.talker()).ask("get", jobId="nobody")
        assert reply["code"] == "not_found", reply
        return self

    async def talker(self) -> Talker:
        """A new connection that has said nothing yet."""
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=LONGEST)
        self._talkers.append(Talker(reader, writer))
        return self._talkers[-1]

    async def client(self, client: str | None = "client", /, **fields: Any) -> Talker:
        """A new connection that has said hello."""
        talker = await self.talker()
        await talker.hello(client, **fields)
        return talker

    async def caught_up(self) -> None:
        """From here on lists see every write answered so far, on the engine that may be late too."""
        await caught_up(self.engine)

    async def at_rest(self) -> None:
        """From here on the daemon writes nothing of itself for a while: the first round of its duties is over."""
        async with asyncio.timeout(PATIENCE):
            while self.server._upkeep.last_run is None:
                await asyncio.sleep(0.01)

    async def stop(self) -> int:
        for talker in self._talkers:
            await talker.close()
        assert self._task is not None
        self.server._signalled("the test is over")
        self.ended = True
        return await asyncio.wait_for(self._task, PATIENCE)


def settings_for(folder: Path, **fields: Any) -> Settings:
    return Settings(socket=folder / "s.sock", data=folder / "data", drain_seconds=5.0, **fields)
