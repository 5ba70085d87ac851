"""What `statesvc init` looks at on a Redis server, and how it says how that stands."""

from __future__ import annotations

from typing import Any

import pytest

from statesvc.backends.port import Step
from statesvc.config.model import Secret
from statesvc_client.errors import Unavailable
from tests.engines.rows import born, fill, row
from tests.redis.engines import engine_on, opened
from tests.redis.servers import Server


async def prepared(server: Any, namespace: str, *, dry_run: bool, **values: Any) -> dict[str, Step]:
    engine = engine_on(server, namespace, **values)
    try:
        return {step.what: step for step in await engine.prepare(dry_run=dry_run)}
    finally:
        await engine.close()


async def test_a_dry_run_looks_and_leaves_nothing_behind(server: Server, namespace: str):
    steps = await prepared(server, namespace, dry_run=True)
    assert steps[f"namespace {namespace}"].state == "missing"
    assert server.say("KEYS", f"{{{namespace}}}*") == []
    assert {name: step.state for name, step in steps.items() if not name.startswith("namespace")} == {
        "redis server": "there",
        "maxmemory-policy": "there",
        "durability": "there",
        "permitted commands": "there",
    }
    assert server.address in steps["redis server"].detail
    assert steps["durability"].detail.startswith("memory")


async def test_the_namespace_is_made_once(server: Server, namespace: str):
    what = f"namespace {namespace}"
    assert (await prepared(server, namespace, dry_run=False))[what].state == "made"
    assert (await prepared(server, namespace, dry_run=False))[what].state == "there"
    assert server.say("KEYS", f"{{{namespace}}}*") == [f"{{{namespace}}}".encode()]
    async with opened(server, namespace) as engine:
        assert engine.epoch in (await prepared(server, namespace, dry_run=True))[what].detail
        await fill(engine, [row("a")])


async def test_what_somebody_has_to_put_right_is_said(namespace: str):
    with Server(maxmemory_policy="allkeys-lru", appendonly="yes", appendfsync="always") as server:
        steps = await prepared(server, namespace, dry_run=False)
        assert steps["maxmemory-policy"].state == "wrong"
        assert "noeviction" in steps["maxmemory-policy"].detail
        assert steps["durability"].detail.startswith("disk")
        server.say("HSET", f"{{{namespace}}}", "oldest", 7)
        steps = await prepared(server, namespace, dry_run=False, wait_replicas=2)
        assert steps["replicas"] == Step(
            "replicas",
            "wrong",
            "0 connected, wait_replicas is 2: no write would be acknowledged; connect replicas or lower it",
        )
        assert steps[f"namespace {namespace}"].state == "wrong"
        assert "update this daemon" in steps[f"namespace {namespace}"].detail


async def test_commands_that_are_not_permitted_are_named(namespace: str):
    with Server() as server:
        keys = f"~{{{namespace}}}*"
        server.say("ACL", "SETUSER", "u", "on", ">secret", keys, "+@all", "-xadd", "-zrange")
        user = {"username": "u", "password": Secret("secret")}
        steps = await prepared(server, namespace, dry_run=True, **user)
        assert steps["permitted commands"].state == "wrong"
        assert "ZRANGE" in steps["permitted commands"].detail
        assert "XADD" not in steps["permitted commands"].detail, "a dry run writes nothing"
        steps = await prepared(server, namespace, dry_run=False, **user)
        assert "ZRANGE, XADD" in steps["permitted commands"].detail
        server.say("ACL", "SETUSER", "u", "+xadd", "+zrange", "-ltrim", "-hrandfield")
        steps = await prepared(server, namespace, dry_run=False, **user)
        assert "HRANDFIELD, LTRIM" in steps["permitted commands"].detail
        server.say("ACL", "SETUSER", "u", "-eval", "+ltrim", "+hrandfield")
        steps = await prepared(server, namespace, dry_run=True, **user)
        assert "does not run scripts" in steps["permitted commands"].detail
        assert "secret" not in repr(steps)


MINIMAL = "+@read +@write +@connection +@stream +eval +evalsha +info +wait +time +config|get"


async def test_the_permissions_the_documents_name_are_enough(namespace: str):
    with Server() as server:
        server.say("ACL", "SETUSER", "u", "on", ">secret", f"~{{{namespace}}}*", "-@all", *MINIMAL.split())
        user = {"username": "u", "password": Secret("secret")}
        steps = await prepared(server, namespace, dry_run=False, **user)
        assert {step.state for step in steps.values()} <= {"there", "made"}
        async with opened(server, namespace, **user) as engine:
            await fill(engine, [row("a")])
            assert await engine.check() == []
            await engine.log_grew(await engine.position(), 0.01)


async def test_a_server_that_cannot_be_reached_is_named(namespace: str):
    with Server() as server:
        server.kill()
        with pytest.raises(Unavailable, match=server.address):
            await prepared(server, namespace, dry_run=True, timeout_seconds=0.2)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_preparing_twice_is_as_good_as_once(server: Server, namespace: str, dry_run: bool):
    assert await prepared(server, namespace, dry_run=dry_run)
    assert await prepared(server, namespace, dry_run=dry_run)


@pytest.mark.parametrize("command", ["hset", "xadd", "zadd", "rpush"])
async def test_a_right_that_was_taken_away_for_a_while_does_no_lasting_harm(namespace: str, command: str):
    """A script has no way back: what it wrote before it was refused stays. Others must be able to go on."""
    with Server() as server:
        server.say("ACL", "SETUSER", "u", "on", ">secret", f"~{{{namespace}}}*", "-@all", *MINIMAL.split())
        user = {"username": "u", "password": Secret("secret")}
        async with opened(server, namespace, **user) as engine:
            await fill(engine, [row("a")])
            server.say("ACL", "SETUSER", "u", f"-{command}")
            with pytest.raises(Unavailable, match="access rules forbid"):
                await engine.commit([born("b")])
            server.say("ACL", "SETUSER", "u", f"+{command}")
            assert await engine.commit([born("c"), born("d")]) == ["applied", "applied"]
            told = [entry.row.id for entry in await engine.read_log("", 10)]
            assert [name for name in told if name != "b"] == ["a", "c", "d"]
