"""The cache on the real daemon: what others write shows up, over restarts and gaps, and own writes stay on top."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import NotCached, StateStore, blocking
from statesvc_client.calls import Calls
from statesvc_client.errors import Gone
from statesvc_client.face import Face
from statesvc_client.feed import Feed
from tests.client.conftest import RealDaemon, held, until_soon

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, **options)


def shows(state: Face, id: str, kind: str = "job", **fields: Any) -> bool:
    """Whether the cache shows a record with these fields."""
    try:
        record = state.get(id, kind)
    except NotCached:
        return False
    return record is not None and all(record.get(name) == value for name, value in fields.items())


async def test_what_other_clients_make_change_and_delete_shows_up(daemon: RealDaemon):
    async with connect(daemon) as mine, connect(daemon, warm=False) as other:
        other.create({"uuid": "j", "status": "PENDING"})
        await mine.until(lambda: shows(mine, "j", status="PENDING"), SECONDS)
        other.update("j", status="RUNNING", pid=1)
        await mine.until(lambda: shows(mine, "j", status="RUNNING", pid=1, revision=2), SECONDS)
        other.delete("j")
        await mine.until(lambda: "j" not in mine, SECONDS)
        assert mine.get("j") is None, "known to be absent"
        assert mine.counters.cached == 0


async def test_an_agent_that_alone_writes_its_records_asks_for_nothing(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    ask = Calls.ask

    def noted(calls: Calls, message: dict[str, Any], *more: Any) -> Any:
        asked.append(message["op"])
        return ask(calls, message, *more)

    monkeypatch.setattr(Calls, "ask", noted)
    async with connect(daemon) as state:
        for number in range(200):
            state.create({"uuid": f"j{number}", "status": "PENDING"})
            state.update(f"j{number}", status="RUNNING")
        await state.flush(SECONDS)
        state.create({"uuid": "last"})
        await state.until(lambda: shows(state, "last", revision=1) and "uid" in held(state, "last"), SECONDS)
        assert all("uid" in job and job["revision"] == 2 for job in state if job["uuid"] != "last")
    assert asked == ["list"], "at the start, and never again"


async def test_two_agents_that_write_one_record_end_with_the_same_view_of_it(daemon: RealDaemon):
    async with connect(daemon) as one, connect(daemon) as two:
        one.create({"uuid": "j", "n": 0, "words": []})
        await one.flush(SECONDS)
        await two.until(lambda: "j" in two, SECONDS)
        for number in range(100):
            one.update("j", inc={"n": 1}, append={"words": [f"one-{number}"]})
            two.update("j", inc={"n": 1}, append={"words": [f"two-{number}"]})
        await one.flush(SECONDS)
        await two.flush(SECONDS)
        for state in (one, two):
            await state.until(lambda state=state: shows(state, "j", n=200, revision=201), SECONDS)  # type: ignore[misc]
        assert held(one, "j") == held(two, "j")
        assert sorted(held(one, "j")["words"]) == sorted(f"{who}-{n}" for who in ("one", "two") for n in range(100))


async def test_revisions_shown_never_go_back_while_others_write(daemon: RealDaemon):
    seen: list[int] = []
    async with connect(daemon) as mine, connect(daemon, warm=False) as other:
        mine.create({"uuid": "j", "mine": 0, "other": 0})
        await mine.flush(SECONDS)

        def look() -> bool:
            job = held(mine, "j")
            seen.append(job.get("revision", 0))
            mines.append(job["mine"])
            return job["mine"] == 50 and job["other"] == 50

        mines: list[int] = []
        for number in range(1, 51):
            mine.update("j", mine=number)
            other.update("j", other=number)
            if number % 10 == 0:
                await mine.flush(SECONDS)
        await mine.until(look, SECONDS)
        assert mines == sorted(mines)
        assert held(mine, "j")["revision"] == 101


async def test_following_goes_on_over_a_restart_of_the_daemon(daemon: RealDaemon):
    async with connect(daemon) as mine:
        async with connect(daemon, warm=False) as other:
            other.create({"uuid": "before"})
            await mine.until(lambda: "before" in mine, SECONDS)
        daemon.kill()
        daemon.start()
        async with connect(daemon, warm=False) as other:
            other.create({"uuid": "after"})
            other.delete("before")
            await other.flush(SECONDS)
        await mine.until(lambda: "after" in mine and "before" not in mine, SECONDS)
        assert mine.counters.epochs == 0


async def test_a_new_epoch_is_read_anew_and_followed(tmp_path: Path):
    epochs: list[Any] = []
    async with StateStore.spawn(
        "memory", log=lambda _: None, start_seconds=60, on_epoch=lambda *told: epochs.append(told)
    ) as mine:
        mine.create({"uuid": "lost"})
        await mine.flush(SECONDS)
        assert mine.daemon_pid is not None
        os.kill(mine.daemon_pid, signal.SIGKILL)
        await until_soon(lambda: epochs, "the new epoch")
        await mine.until(lambda: "lost" not in mine, SECONDS)
        async with StateStore.connect(mine.path, connect_seconds=SECONDS, warm=False) as other:
            other.create({"uuid": "new"})
            await mine.until(lambda: "new" in mine, SECONDS)


async def test_a_restore_that_keeps_connections_is_a_new_epoch_and_read_anew(daemon: RealDaemon):
    epochs: list[Any] = []
    async with (
        connect(daemon, kinds=("job", "volume"), on_epoch=lambda *told: epochs.append(told)) as mine,
        connect(daemon, warm=False) as admin,
    ):
        admin.create({"uuid": "j", "n": 1})
        admin.create({"id": "v", "n": 1}, kind="volume")
        await admin.call("snapshot", path="a.snapshot")
        admin.update("j", n=2)
        admin.kind("volume").update("v", n=2)
        admin.create({"uuid": "new"})
        await mine.until(lambda: shows(mine, "j", n=2) and shows(mine, "v", "volume", n=2) and "new" in mine, SECONDS)
        await admin.call("restore", path="a.snapshot")
        await mine.until(
            lambda: shows(mine, "j", n=1) and shows(mine, "v", "volume", n=1) and "new" not in mine, SECONDS
        )
        assert len(epochs) == mine.counters.epochs == 1
        admin.update("j", n=3)
        await mine.until(lambda: shows(mine, "j", n=3), SECONDS)


async def test_what_is_gone_from_the_log_is_listed_again(daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch):
    """The watch is refused once, as after compaction, while changes happen that no watch tells of."""
    async with connect(daemon, warm=False) as other:
        refused: list[str] = []
        follow = Feed._listen

        async def gone_once(feed: Any, connection: Any) -> None:
            if not refused:
                refused.append(feed.cursor)
                connection.abort()
                other.create({"uuid": "missed"})
                await other.flush(SECONDS)
                raise Gone("compacted")
            await follow(feed, connection)

        monkeypatch.setattr(Feed, "_listen", gone_once)
        async with connect(daemon) as mine:
            await mine.until(lambda: "missed" in mine, SECONDS)
            other.create({"uuid": "followed"})
            await mine.until(lambda: "followed" in mine, SECONDS)
            assert len(refused) == 1
            assert mine.counters.connects <= 2, "it may be another epoch: asked once"


async def test_a_scope_is_followed_as_a_scope(daemon: RealDaemon):
    async with (
        connect(daemon, cache_filter={"nodeId": "here"}) as mine,
        connect(daemon, warm=False) as other,
    ):
        other.create({"uuid": "here", "nodeId": "here"})
        other.create({"uuid": "there", "nodeId": "there"})
        other.create({"uuid": "moving", "nodeId": "here"})
        await mine.until(lambda: "here" in mine and "moving" in mine, SECONDS)
        other.update("moving", nodeId="there")
        other.update("there", nodeId="here", a=1)
        await mine.until(lambda: "moving" not in mine and shows(mine, "there", a=1), SECONDS)
        with pytest.raises(NotCached):
            mine.get("moving")
        other.delete("here")
        await mine.until(lambda: "here" not in mine, SECONDS)


async def test_kinds_are_followed_side_by_side_and_others_are_not(daemon: RealDaemon):
    async with connect(daemon, kinds=("job", "volume")) as mine, connect(daemon, warm=False) as other:
        other.create({"id": "kv"}, kind="kv")
        other.create({"id": "v", "size": 1}, kind="volume")
        other.create({"uuid": "j"})
        await mine.until(lambda: "j" in mine and shows(mine, "v", "volume", size=1), SECONDS)
        with pytest.raises(NotCached):
            mine.get("kv", "kv")


async def test_a_cache_that_is_not_to_follow_does_not(daemon: RealDaemon):
    async with connect(daemon, follow=False) as mine, connect(daemon) as other:
        other.create({"uuid": "j"})
        await other.flush(SECONDS)
        assert mine.get("j") is None
        assert (await mine.call("get", jobId="j"))["job"]["revision"] == 1
        assert "j" in mine


async def test_secrets_are_not_lost_to_the_log_which_does_not_hold_them(daemon: RealDaemon):
    async with connect(daemon) as mine, connect(daemon, warm=False) as other:
        mine.create({"uuid": "j", "secretEnvironment": {"KEY": "secret"}})
        await mine.flush(SECONDS)
        other.update("j", a=1)
        await mine.until(lambda: shows(mine, "j", a=1), SECONDS)
        assert held(mine, "j")["secretEnvironment"] == {"KEY": "secret"}


def test_the_blocking_face_follows_too(daemon: RealDaemon):
    with (
        blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS) as mine,
        blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False) as other,
    ):
        other.create({"uuid": "j", "a": 1})
        mine.until(lambda: shows(mine, "j", a=1), SECONDS)
        with pytest.raises(TimeoutError):
            mine.until(lambda: "never" in mine, 0.01)
        with pytest.raises(ZeroDivisionError):
            mine.until(lambda: 1 / 0, SECONDS)
