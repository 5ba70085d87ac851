"""A feed against a daemon that breaks it off wherever it can: each event once, in order, or a reason why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import Gone, StateStore
from statesvc_client.errors import Denied, StateError
from statesvc_client.options import Options

SECONDS = 20


class TellingDaemon:
    """Tells of numbered events, and breaks off as planned: each plan is for one watch."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = str(path)
        self.count = count
        self.plans: list[tuple[int, bytes]] = []
        """After so many events: what is said last, before the connection ends."""
        self.asked: list[dict[str, Any]] = []

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                frame = json.loads(line)
                if frame["op"] == "watch":
                    self.asked.append(frame)
                    self._tell(frame, writer)
                else:
                    writer.write(b'{"success":true,"protocol":1,"epoch":"e","limits":{}}\n')
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _tell(self, frame: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        after = int(frame.get("after", "0").removeprefix("e."))
        writer.write(b'{"requestId":"","success":true,"cursor":"e.%d"}\n' % after)
        plan = self.plans.pop(0) if self.plans else None
        last = self.count if plan is None else min(self.count, after + plan[0])
        for number in range(after + 1, last + 1):
            event = {"cursor": f"e.{number}", "type": "updated", "kind": "job", "id": "j", "revision": number}
            writer.write(json.dumps({"requestId": "", "event": event}).encode() + b"\n")
        if plan is not None:
            writer.write(plan[1])
            writer.close()


@pytest.fixture
async def telling(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TellingDaemon]:
    monkeypatch.setattr(Options, "backoff_cap", 0.02)
    daemon = TellingDaemon(socket_folder / "state.sock", 100)
    await daemon.start()
    yield daemon
    await daemon.stop()


def failure(code: str) -> bytes:
    return json.dumps({"requestId": "", "success": False, "code": code, "error": "as told"}).encode() + b"\n"


async def told(daemon: TellingDaemon, count: int) -> list[int]:
    async with (
        StateStore.connect(daemon.path, warm=False) as state,
        state.watch(after="0") as changes,
        asyncio.timeout(SECONDS),
    ):
        return [(await anext(changes)).revision for _ in range(count)]


@pytest.mark.parametrize(
    "last",
    [b"", failure("busy"), failure("unavailable"), b'{"requestId":"","event":{"cur', b"not json\n"],
    ids=["cut", "busy", "unavailable", "cut inside a line", "nonsense"],
)
async def test_a_watch_that_is_broken_off_goes_on_behind_the_last_event(telling, last):
    telling.plans = [(number % 7, last) for number in range(20)]
    assert await told(telling, 100) == list(range(1, 101))
    assert len(telling.asked) > 10
    places = [int(frame["after"].removeprefix("e.")) for frame in telling.asked]
    assert places == sorted(places)


@pytest.mark.parametrize(("code", "kind"), [("gone", Gone), ("denied", Denied)])
async def test_what_cannot_be_overcome_is_raised_behind_the_events_that_came_before(telling, code, kind):
    telling.plans = [(5, failure(code))]
    seen: list[int] = []

    async def watch(state: StateStore) -> None:
        async for event in changes:
            seen.append(event.revision)  # noqa: PERF401 - what came before the error counts

    async with StateStore.connect(telling.path, warm=False) as state, asyncio.timeout(SECONDS):
        changes = state.watch()
        with pytest.raises(StateError) as raised:
            await watch(state)
    assert type(raised.value) is kind
    assert seen == [1, 2, 3, 4, 5]
    assert changes.cursor == "e.5"
