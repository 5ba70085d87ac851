"""Health: live, ready, and every check by name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine
from statesvc.store.batches import Bar
from statesvc_client.errors import Internal, NoSpace, Unavailable
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Json, Talker, settings_for


def verdicts(reply: Json) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in reply["checks"]}


def detail(reply: Json, name: str) -> str:
    [found] = [check.get("detail", "") for check in reply["checks"] if check["name"] == name]
    return found


async def test_a_daemon_that_serves_is_live_and_ready_and_names_its_checks(daemon: Daemon):
    talker = await daemon.talker()
    reply = await talker.ok("health", requestId="h")
    assert (reply["requestId"], reply["live"], reply["ready"]) == ("h", True, True)
    assert {"engine", "writes", "durability", "commits", "clock", "sweeper", "stuck"} <= set(verdicts(reply))
    assert "fail" not in {verdict for name, verdict in verdicts(reply).items() if name != "disk"}
    assert (reply["backend"], reply["epoch"]) == (daemon.engine.name, daemon.engine.epoch)
    assert reply["measures"]["clients"] == 2


async def test_a_frozen_store_is_live_and_not_ready(daemon: Daemon):
    talker = await daemon.talker()
    daemon.store.commits.bar = Bar("the store is frozen")
    reply = await talker.ok("health")
    assert (reply["live"], reply["ready"], verdicts(reply)["writes"]) == (True, False, "fail")
    daemon.store.commits.bar = None
    assert (await talker.ok("health"))["ready"]


class Away(MemoryEngine):
    """An engine that does not open before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.opening = asyncio.Event()

    async def open(self) -> None:
        await self.opening.wait()


async def test_health_is_answered_while_the_engine_is_still_opening(socket_folder: Path, start: Start):
    engine = Away()
    daemon = Daemon(engine, settings_for(socket_folder))
    starting = asyncio.create_task(daemon.start())
    async with asyncio.timeout(30):
        while not (socket_folder / "s.sock").exists():
            await asyncio.sleep(0.01)
    talker = await daemon.talker()
    reply = await talker.ok("health")
    assert (reply["live"], reply["ready"], verdicts(reply)["engine"]) == (True, False, "fail")
    assert "still opening" in detail(reply, "engine")
    engine.opening.set()
    await starting
    assert (await talker.ok("health"))["ready"]
    assert await daemon.stop() == 0


async def test_an_engine_that_does_not_answer_makes_it_unready(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    async def away() -> None:
        raise Unavailable("nobody there")

    talker = await daemon.talker()
    monkeypatch.setattr(daemon.engine, "ping", away)
    reply = await talker.ok("health")
    assert (reply["live"], reply["ready"], detail(reply, "engine")) == (True, False, "nobody there")


async def test_a_commit_that_failed_is_told_until_one_goes_well(start: Start, faulty: FaultyEngine):
    daemon = await start(faulty)
    talker = await daemon.talker()
    faulty.fail(NoSpace("the disk is full"))
    assert (await talker.refused("create", job={"uuid": "a"}))[0] == "no_space"
    reply = await talker.ok("health")
    assert verdicts(reply)["commits"] == "fail"
    assert "the disk is full" in detail(reply, "commits")
    await talker.ok("create", job={"uuid": "b"})
    assert verdicts(await talker.ok("health"))["commits"] == "ok"


async def test_a_refused_request_says_nothing_about_health(client: Talker):
    await client.refused("get", jobId="nobody")
    await client.refused("update", jobId="nobody", job={"x": 1})
    assert verdicts(await client.ok("health"))["commits"] == "ok"


async def test_what_cannot_be_read_is_no_failed_commit(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    async def damaged(_: object) -> list[str]:
        raise Internal("a page is damaged")

    client = await daemon.talker()
    monkeypatch.setattr(daemon.engine, "query", damaged)
    assert (await client.refused("list"))[0] == "internal"
    assert verdicts(await client.ok("health"))["commits"] == "ok"


async def test_durability_below_what_was_asked_for_is_a_warning(start: Start, engine: Engine):
    asked = await (await (await start(engine)).talker()).ok("health")
    expected = {"memory": "warn", "os": "warn", "disk": "ok", "replicated": "ok"}[engine.durability]
    assert verdicts(asked)["durability"] == expected


async def test_lapsed_leases_are_counted(daemon: Daemon):
    client = await daemon.client("me")
    await client.ok("claim", kind="lock", id="l", ttl=0.1, hold=1000)
    async with asyncio.timeout(30):
        while verdicts(reply := await client.ok("health"))["stuck"] == "ok":
            await asyncio.sleep(0.02)
    assert detail(reply, "stuck").startswith("1 leases lapsed")
