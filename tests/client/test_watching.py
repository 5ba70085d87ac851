"""Watches: every change once and in order, from a cursor, over restarts of the watcher and of the daemon."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import Closed, Event, Gone, StateStore, blocking
from statesvc_client import watching as watching_module
from statesvc_client.errors import BadRequest
from statesvc_client.options import Options
from tests.client.conftest import RealDaemon, plain_environment, until, until_soon

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


@pytest.fixture(autouse=True)
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Options, "backoff_cap", 0.2)


async def taken(changes: Any, count: int) -> list[Event]:
    async with asyncio.timeout(SECONDS):
        return [await anext(changes) for _ in range(count)]


def following(state: StateStore) -> int:
    """Feeds of the store that are at work."""
    return len(state._core.feeds._running)


async def test_events_say_what_happened_and_bring_the_record(daemon: RealDaemon):
    async with connect(daemon) as state, state.watch() as changes:
        state.create({"uuid": "j", "status": "PENDING"})
        state.update("j", status="RUNNING", pid=7)
        state.emit("j", "note", "half way", {"percent": 50})
        state.update("j", a=1)
        state.delete("j")
        events = await taken(changes, 5)
        assert [event.type for event in events] == ["created", "status", "note", "updated", "deleted"]
        assert [event.revision for event in events[:4]] == [1, 2, 3, 4]
        moved, noted = events[1], events[2]
        assert (moved.kind, moved.id, moved.from_, moved.to) == ("job", "j", "PENDING", "RUNNING")
        assert (noted.message, noted.data) == ("half way", {"percent": 50})
        assert moved.record is not None
        assert (moved.record["pid"], events[-1].record) == (7, None)
        assert len({event.cursor for event in events}) == 5
        assert changes.cursor == events[-1].cursor


async def test_a_watch_has_a_filter_and_a_kind(daemon: RealDaemon):
    async with (
        connect(daemon) as state,
        state.watch(filter={"nodeId": "here"}) as here,
        state.watch("volume") as volumes,
    ):
        state.create({"uuid": "a", "nodeId": "there"})
        state.create({"uuid": "b", "nodeId": "here"})
        state.create({"id": "v"}, kind="volume")
        state.update("b", nodeId="there")
        assert [(event.type, event.id) for event in await taken(here, 2)] == [("created", "b"), ("left", "b")]
        assert [event.id for event in await taken(volumes, 1)] == ["v"]


async def test_a_watcher_that_begins_again_at_its_cursor_sees_every_change_once(daemon: RealDaemon):
    seen: list[Event] = []
    async with connect(daemon) as state:
        async with state.watch() as changes:
            cursor = changes.cursor
        for number in range(60):
            state.create({"uuid": f"j{number}"})
        for size in (1, 20, 7, 32):
            async with state.watch(after=cursor) as changes:
                seen += await taken(changes, size)
                cursor = changes.cursor
    assert [event.id for event in seen] == [f"j{number}" for number in range(60)]


async def test_a_watch_goes_on_over_restarts_of_the_daemon_and_sees_every_change_once_and_in_order(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as writer, state.watch() as changes:
        reading = asyncio.create_task(taken(changes, 300))
        for number in range(300):
            writer.update("j", n=number, upsert=True)
            if number in (100, 200):
                await writer.flush(SECONDS)
                daemon.kill()
                daemon.start()
        events = await reading
        assert [event.revision for event in events] == list(range(1, 301))
        assert [(event.record or {})["n"] for event in events] == list(range(300))
        writer.update("j", last=True)
        assert [event.revision for event in await taken(changes, 1)] == [301]


WATCHER = """
import json, sys
from statesvc_client.blocking import StateStore
path, after, count = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
with StateStore.connect(path, connect_seconds=30, warm=False) as state:
    with state.watch(after=after) as changes:
        print(json.dumps(changes.cursor), flush=True)
        for _, event in zip(range(count), changes):
            print(json.dumps([event.cursor, event.id, event.revision]), flush=True)
"""


def watcher(daemon: RealDaemon, after: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WATCHER, daemon.path, after, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment())


def test_a_watcher_process_that_is_killed_goes_on_from_the_last_cursor_it_wrote_down(daemon: RealDaemon):
    seen: list[Any] = []
    with blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False) as state:
        process = watcher(daemon, "", 10_000)
        assert process.stdout is not None
        cursor = json.loads(process.stdout.readline())
        for number in range(50):
            state.update("j", n=number, upsert=True)
        while len(seen) < 20:
            cursor, id, revision = json.loads(process.stdout.readline())
            seen.append((id, revision))
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
        process.stdout.close()
        state.flush(SECONDS)
        daemon.stop()
        daemon.start()
        again = watcher(daemon, cursor, 30)
        told, _ = again.communicate(timeout=60)
        seen += [(id, revision) for _, id, revision in map(json.loads, told.splitlines()[1:])]
    assert seen == [("j", revision) for revision in range(1, 51)]


async def test_a_place_that_is_gone_is_raised_and_not_jumped_over(tmp_path: Path):
    async with StateStore.spawn("memory", log=lambda _: None, start_seconds=60) as state:
        state.create({"uuid": "j"})
        await state.flush(SECONDS)
        async with state.watch() as changes:
            assert state.daemon_pid is not None
            os.kill(state.daemon_pid, signal.SIGKILL)
            with pytest.raises(Gone):
                await taken(changes, 1)
        with pytest.raises(Gone):
            async with state.watch(after=changes.cursor):
                pass


async def test_a_filter_that_makes_no_sense_is_refused_at_the_door(daemon: RealDaemon):
    async with connect(daemon) as state:
        with pytest.raises(BadRequest):
            async with state.watch(filter={"no such filter": 1}):
                pass
        assert following(state) == 0


async def test_closing_a_watch_closes_its_connection_and_so_does_dropping_it(daemon: RealDaemon):
    async with connect(daemon) as state:
        async with state.watch() as changes:
            assert following(state) == 1
        assert following(state) == 0
        with pytest.raises(StopAsyncIteration):
            await anext(changes)
        dropped = state.watch(after="0")
        state.create({"uuid": "j"})
        await taken(dropped, 1)
        assert following(state) == 1
        del dropped
        gc.collect()
        await until_soon(lambda: following(state) == 0, "the dropped watch to end")


async def test_whoever_waits_for_an_event_is_told_when_the_store_closes(daemon: RealDaemon):
    state = await connect(daemon)
    changes = state.watch()
    waiting = asyncio.create_task(taken(changes, 1))
    await until_soon(lambda: following(state), "the watch to begin")
    await state.close()
    with pytest.raises(Closed):
        await waiting


async def test_a_slow_reader_holds_a_bounded_number_of_events_and_misses_none(daemon, monkeypatch):
    monkeypatch.setattr(watching_module, "MOST_EVENTS", 16)
    async with connect(daemon) as state, state.watch() as changes:
        for number in range(2000):
            state.update("j", n=number, padding="x" * 2000, upsert=True)
        await state.flush(SECONDS)
        inbox = changes._inbox
        assert inbox is not None
        await until_soon(lambda: inbox._full, "the inbox to be full")
        most = 0
        for number in range(2000):
            [event] = await taken(changes, 1)
            most = max(most, len(inbox.events))
            assert (event.record or {})["n"] == number
        assert most < 500, "one read's worth, not everything"


def test_one_who_asks_for_event_by_event_gets_all_of_a_burst_and_what_comes_after_it(daemon, monkeypatch):
    monkeypatch.setattr(watching_module, "MOST_EVENTS", 16)
    connected = blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False)
    with connected as state, state.watch() as changes:
        for number in range(500):
            state.update("j", n=number, padding="x" * 2000, upsert=True)
        state.flush(SECONDS)
        inbox = changes._inbox
        assert inbox is not None
        until(lambda: inbox._full, "the inbox to be full")
        told = (changes.next(SECONDS) for _ in range(500))
        assert [event and (event.record or {})["n"] for event in told] == list(range(500))


async def test_history_tells_the_same_events_page_by_page(daemon: RealDaemon, monkeypatch):
    monkeypatch.setattr(watching_module, "PAGE_EVENTS", 7)
    async with connect(daemon) as state, state.watch() as changes:
        state.create({"uuid": "j", "status": "PENDING"})
        state.create({"uuid": "other"})
        for number in range(20):
            state.emit("j", "step", data=number)
        told = await state.history("j")
        assert [event.type for event in told] == ["created"] + ["step"] * 20
        assert told == [event for event in await taken(changes, 22) if event.id == "j"]
        assert [event.data for event in await state.history("j", limit=9)][1:] == list(range(8))
        assert [event.data for event in await state.history("j", after=told[18].cursor)] == [18, 19]


def test_the_blocking_face_iterates(daemon: RealDaemon):
    with blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False) as state:
        with state.watch() as changes:
            for number in range(100):
                state.create({"uuid": f"j{number}"})
            seen = [event.id for _, event in zip(range(100), changes, strict=False)]
            assert seen == [f"j{number}" for number in range(100)]
            assert changes.next(0.01) is None
            assert len(state._core.feeds._running) == 1
        until(lambda: not state._core.feeds._running, "the feed to end")
        assert list(changes) == []
        assert [event.type for event in state.history("j0")] == ["created"]
