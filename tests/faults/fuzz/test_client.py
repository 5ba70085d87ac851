"""Lines fuzzed into the client: whatever a daemon says, the agent's loop lives and its calls return or raise what they
are said to raise; and once an honest daemon is there, the client is of use again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from statesvc_client import NotCached, StateStore
from statesvc_client.adapter_errors import AdapterError
from statesvc_client.errors import StateError
from statesvc_client.options import Options
from tests.client.scripted import ScriptedDaemon
from tests.faults.fuzz.grammar import RAW, Grammar, Mangling

STORES = 4


class LyingDaemon(ScriptedDaemon):
    """Says what it should, and mangled, and in too many words, until it is told to be honest."""

    def __init__(self, path: Path, random: Random) -> None:
        super().__init__(path)
        self.lies = True
        self.said = 0
        self._random = random
        self._grammar = Grammar(random)
        self._mangling = Mangling(random)

    def _say(self, writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
        if not self.lies:
            super()._say(writer, reply)
            return
        self.said += 1
        writer.write(self._lie(reply))

    def _lie(self, reply: dict[str, Any]) -> bytes:
        random = self._random.random()
        honest = msgspec.json.encode(reply)
        if random < 0.3:
            return honest + b"\n"
        if random < 0.6:
            return self._grammar.encoded(self._grammar.worse(deepcopy(reply))) + b"\n"
        if random < 0.8:
            return self._mangling.mangled(honest, self._grammar.frame()) + b"\n"
        if random < 0.9:
            return honest + b"\n" + self._grammar.one_of(RAW) + b"\n"
        return self._grammar.one_of((b"", b"\n", b"\n\n", honest[: len(honest) // 2], b"\xff" * 100 + b"\n"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that says half a line is given up soon."""
    monkeypatch.setattr(Options, "backoff_cap", 0.02)
    monkeypatch.setattr(Options, "backoff_base", 0.005)


@pytest.fixture
async def problems() -> AsyncIterator[list[str]]:
    """What reached the loop."""
    found: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: found.append(f"{told.get('message')}: {told.get('exception')!r}"))
    yield found
    loop.set_exception_handler(None)


@pytest.mark.parametrize("seed", range(2))
async def test_a_daemon_that_lies_costs_the_agent_nothing_but_answers(
    socket_folder: Path, problems: list[str], caplog: pytest.LogCaptureFixture, seed: int
):
    random = Random(seed)
    daemon = LyingDaemon(socket_folder / "s.sock", random)
    await daemon.start()
    try:
        for _ in range(STORES):
            await lied_to(daemon, random)
        daemon.lies = False
        await told_the_truth(daemon)
    finally:
        await daemon.stop()
    assert daemon.said > STORES
    assert problems == []
    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info
    ] == []


async def lied_to(daemon: LyingDaemon, random: Random) -> None:
    """Use a store for a while; nothing but its own errors may come of it."""
    with suppress(StateError, AdapterError, OSError, TimeoutError):
        options: dict[str, Any] = {"connect_seconds": 0.3, "close_seconds": 0.3, "answer_seconds": 0.2}
        async with StateStore.connect(daemon.path, warm=random.random() < 0.5, **options) as state:
            for number in range(8):
                await used(state, f"j{number % 3}", number)


async def used(state: StateStore, id: str, number: int) -> None:
    with suppress(StateError, AdapterError):
        state.create({"uuid": id, "n": number})
        state.update(id, n=number)
    with suppress(StateError, NotCached):
        state.get(id)
    with suppress(StateError, AdapterError, OSError, TimeoutError):
        await asyncio.wait_for(state.call("get", jobId=id), 0.1)
    await asyncio.sleep(0.005)


async def told_the_truth(daemon: LyingDaemon) -> None:
    async with StateStore.connect(daemon.path, warm=False, connect_seconds=10.0, close_seconds=10.0) as state:
        before = len(daemon.order)
        state.update("honest", n=1)
        await state.flush(10)
        assert len(daemon.order) == before + 1
