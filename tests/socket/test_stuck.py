"""Stuck records: named with their reasons, and nothing else is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from statesvc.store.clock import SECOND, Clock
from statesvc.store.duties import Duties
from statesvc.store.leases import Leases
from tests.socket.talking import Daemon, Talker


class Movable(Clock):
    """A clock that can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> int:
        return super().now() + int(self.ahead * SECOND)

    def steady(self) -> float:
        return super().steady() + self.ahead


@pytest.fixture
def clock(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Movable:
    """The daemon's clock; its duties rest, so that nothing is set right while a test looks."""

    async def rest(_: Duties) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(Duties, "round", rest)
    # Time that is set forward is not to be taken for a daemon that stood still.
    monkeypatch.setattr(Leases, "tick", lambda _: 0.0)
    daemon.store.leases._ticked = None
    clock = Movable()
    daemon.store.clock = clock
    daemon.store.leases._steady = clock.steady
    return clock


async def stuck(daemon: Daemon, talker: Talker, **fields) -> dict[str, list[str]]:
    await daemon.caught_up()
    reply = await talker.ok("stuck", **fields)
    return {found["id"]: found["reasons"] for found in reply["stuck"]}


async def test_nothing_is_stuck_that_moves_or_may_wait(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    for status in ("QUEUED", "RUNNING", "COMPLETED", "PENDING"):
        await client.ok("create", job={"uuid": status, "status": status})
    assert await stuck(daemon, client) == {}
    clock.ahead = 10_000
    assert list(await stuck(daemon, client)) == ["RUNNING"]


async def test_a_running_record_without_an_update_is_named_with_its_silence(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    await client.ok("create", job={"uuid": "a", "status": "RUNNING"})
    clock.ahead = 100
    assert await stuck(daemon, client) == {}
    assert await stuck(daemon, client, seconds=200) == {}
    [reason] = (await stuck(daemon, client, seconds=50))["a"]
    assert reason.startswith("no update for 1")


async def test_the_record_is_told_with_its_status_and_its_last_update(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    made = (await client.ok("create", job={"uuid": "a", "status": "RUNNING"}))["job"]
    clock.ahead = 400
    await daemon.caught_up()
    [found] = (await client.ok("stuck"))["stuck"]
    assert (found["id"], found["status"], found["updatedAt"]) == ("a", "RUNNING", made["updatedAt"])


async def test_a_lapsed_lease_is_named_on_any_kind(daemon: Daemon, clock: Movable):
    client = await daemon.client("me")
    await client.ok("create", job={"uuid": "a", "status": "QUEUED"})
    await daemon.caught_up()
    assert (await client.ok("claim", filter={"ids": ["a"]}, ttl=5))["jobs"]
    await client.ok("claim", kind="lock", id="l", ttl=5, hold=100)
    await client.ok("claim", kind="lock", id="fresh", ttl=500)
    # A lease is judged from when it was first seen, which may be now.
    assert await stuck(daemon, client, kind="lock") == await stuck(daemon, client) == {}
    clock.ahead = 20
    assert await stuck(daemon, client) == {"a": ["lease lapsed"]}
    assert await stuck(daemon, client, kind="lock", filter={"prefix": "l"}) == {"l": ["lease lapsed"]}
    assert await stuck(daemon, client, kind="lock", filter={"ids": ["fresh"]}) == {}


async def test_an_operation_left_running_by_a_holder_that_is_gone_is_named(daemon: Daemon, clock: Movable):
    client = await daemon.client("me")
    claimed = await client.ok("claim", kind="operation", id="rebalance", status="running", ttl=5)
    token = claimed["records"][0]["lease"]["token"]
    assert await stuck(daemon, client, kind="operation") == {}
    await client.ok("release", kind="operation", id="rebalance", token=token)
    assert await stuck(daemon, client, kind="operation") == {"rebalance": ["lease lapsed"]}
    await client.ok("update", kind="operation", id="rebalance", record={"status": "completed"})
    assert await stuck(daemon, client, kind="operation") == {}


async def test_a_deadline_that_has_passed_is_named(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    await client.ok("create", job={"uuid": "a", "status": "RUNNING", "timeout": 30})
    await client.ok("create", job={"uuid": "b", "status": "RUNNING", "timeout": 3000})
    clock.ahead = 60
    assert await stuck(daemon, client) == {"a": ["past its deadline"]}


async def test_a_scheduled_record_nobody_makes_ready_is_named(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    soon = (datetime.now(UTC) + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await client.ok("create", job={"uuid": "a", "status": "SCHEDULED", "startAfter": soon})
    clock.ahead = 300
    assert await stuck(daemon, client) == {}
    clock.ahead = 500
    [reason] = (await stuck(daemon, client))["a"]
    assert reason.startswith("no update for")


async def test_dependencies_that_failed_or_are_not_there_are_named(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    for name, status in (("good", "COMPLETED"), ("bad", "FAILED"), ("busy", "QUEUED")):
        await client.ok("create", job={"uuid": name, "status": status})
    needed = ["good", "bad", "busy", "ghost"]
    await client.ok("create", job={"uuid": "a", "status": "QUEUED", "dependsOn": needed})
    assert await stuck(daemon, client) == {
        "a": ["depends on bad, which failed", "depends on ghost, which is not there"],
    }


async def test_as_many_as_asked_for_are_named_oldest_first(daemon: Daemon, clock: Movable):
    client = await daemon.client(None)
    for number in range(5):
        await client.ok("create", job={"uuid": f"j{number}", "status": "RUNNING", "nodeId": f"n{number % 2}"})
    clock.ahead = 1000
    await daemon.caught_up()
    reply = await client.ok("stuck", limit=3)
    assert ([found["id"] for found in reply["stuck"]], reply["truncated"]) == (["j0", "j1", "j2"], True)
    reply = await client.ok("stuck", limit=5)
    assert (len(reply["stuck"]), reply.get("truncated")) == (5, None)
    assert list(await stuck(daemon, client, filter={"nodeId": "n1"})) == ["j1", "j3"]
    assert (await client.refused("stuck", limit=0))[0] == "bad_request"
