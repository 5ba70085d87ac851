"""A daemon in the test's own loop, on a real socket, on each engine; its check must find nothing afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from statesvc import logs
from statesvc.backends.port import Engine
from statesvc.store import administration, retention
from tests.engines.addresses import EVERY, FLEETS, USUAL
from tests.engines.faulty import FaultyEngine
from tests.socket.talking import Daemon, Talker, settings_for

Start = Callable[..., Awaitable[Daemon]]


@pytest.fixture(params=USUAL)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each engine, not open yet: the daemon does that."""
    return EVERY[request.param].make(tmp_path)()


@pytest.fixture(autouse=True)
def no_other_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has to hear of a freeze here: it would wait for as long as another's commit may take."""

    async def at_once(_: Engine, **__: bool) -> None:
        pass

    for module in (administration, retention):
        monkeypatch.setattr(module, "until_heeded", at_once)


@pytest.fixture
async def start(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts daemons; stops them after the test, and looks whether all is well with their engines."""
    # The log belongs to the process, which is not ours alone.
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setattr(logs, "_write", lambda _: None)
    started: list[Daemon] = []

    async def start(engine: Engine, **settings: Any) -> Daemon:
        folder = socket_folder / str(len(started))
        folder.mkdir(mode=0o700)
        daemon = Daemon(engine, settings_for(folder, **settings))
        started.append(daemon)
        return await daemon.start()

    yield start
    problems: list[str] = []
    for daemon in started:
        if daemon.ended:
            continue
        await daemon.store.commits.settled()
        problems += await daemon.engine.check()
        assert await daemon.stop() == 0
    assert problems == []


@pytest.fixture
async def daemon(engine: Engine, start: Start) -> Daemon:
    return await start(engine)


@pytest.fixture(params=FLEETS)
async def fleet(request: pytest.FixtureRequest, tmp_path: Path, start: Start) -> list[Daemon]:
    """Three daemons on one store, on each engine that can be shared."""
    make = EVERY[request.param].make(tmp_path)
    return [await start(make()) for _ in range(3)]


@pytest.fixture
async def joblet(daemon: Daemon) -> Talker:
    """An agent that never says hello."""
    return await daemon.talker()


@pytest.fixture
async def client(daemon: Daemon) -> Talker:
    """A client that said hello and numbers its writes."""
    return await daemon.client("client-1")


@pytest.fixture
def faulty(engine: Engine) -> FaultyEngine:
    """The same engines with faults on demand."""
    return FaultyEngine(engine)
