"""What the tests of watch and history share: reading events, and a client that stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from statesvc.backends.port import Engine, LogKept, Row
from statesvc.connection import Connection
from tests.socket.talking import PATIENCE, Daemon, Talker

Json = dict[str, Any]

NOTHING_KEPT = LogKept(since=2**62, most_bytes=0)


async def watching(daemon: Daemon, **request: Any) -> Talker:
    """A connection of its own with one watch, whose id is `w`."""
    talker = await daemon.client(None)
    await talker.ok("watch", **{"requestId": "w", **request})
    return talker


async def event(talker: Talker, watch: str = "w") -> Json:
    line = await talker.receive()
    assert line.get("requestId") == watch, line
    found: Json = line["event"]
    return found


async def events(talker: Talker, count: int) -> list[Json]:
    return [await event(talker) for _ in range(count)]


def shown(found: list[Json], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(each.get(name) for name in names) for each in found]


async def until(condition: Any) -> None:
    """Wait until something is so, for as long as patience lasts."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def stop_reading(talker: Talker) -> None:
    talker._writer.transport.pause_reading()  # type: ignore[attr-defined]


def read_on(talker: Talker) -> None:
    talker._writer.transport.resume_reading()  # type: ignore[attr-defined]


def with_watches(daemon: Daemon) -> list[Connection]:
    return [connection for connection in daemon.server._connections if connection._session.watches]


async def compact(engine: Engine) -> None:
    """Cut as much of the log as may be cut."""
    while await engine.compact(NOTHING_KEPT):
        pass


async def nothing() -> AsyncIterator[list[Row]]:
    """What to load into an engine that is to begin anew."""
    yield []
