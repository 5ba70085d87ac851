"""Scripts on a real server: a cache that is lost, a newer format, a memory that is full, and what is never sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from statesvc.backends.port import LogKept, Query, Row, Write
from statesvc.backends.redis.engine import RedisEngine
from statesvc_client.errors import Internal, NoSpace, Unavailable
from tests.engines.rows import after, born, buried, commit, fill, hidden, removed, row
from tests.redis.engines import engine_on, opened
from tests.redis.servers import HOST, Server, wait_for_replica

SORTS: list[Any] = [
    "created", "updated", "started", "completed", "scheduled", "priority", "status", "id", "ready", "due", "deleted",
]  # fmt: skip


async def everything_once(engine: RedisEngine) -> None:
    """Every call a serving daemon makes."""
    a, b = await fill(engine, [row("a", labels=(("x", "y"),)), row("b")])
    step = after(a, status="DONE")
    assert await engine.commit([(step,), (buried(b),)]) == ["applied", "applied"]
    assert await engine.commit([(hidden(step.row, token=5),)]) == ["applied"]
    assert await engine.get([a.key, b.key])
    for sort in SORTS:
        await engine.query(Query(kind="job", sort=sort, limit=10))
        await engine.count(Query(kind="job", sort=sort, limit=10))
    for term in (("label:x", "y"), ("status", "DONE", ""), ("node", ""), ("owner", "o")):
        await engine.query(Query(kind="job", term=term, limit=10))
        await engine.count(Query(kind="job", term=term, limit=10))
    await engine.query(Query(kind="job", sort="started", missing=True, limit=10))
    cursor = await engine.position()
    await engine.read_log("", 10)
    await engine.history(a.key, "", 10)
    await engine.log_grew("", 1)
    await engine.log_grew(cursor, 0.01)
    await engine.compact(LogKept(since=2, most_bytes=1 << 30))
    await engine.kinds()
    await engine.ping()
    await engine.assure()


async def test_a_script_cache_that_is_lost_goes_unnoticed(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, [row("a")])
        server.say("SCRIPT", "FLUSH")
        assert await engine.commit([born("b"), born("a", uid="late")]) == ["applied", "conflict"]
        server.say("SCRIPT", "FLUSH")
        assert [each.id for each in await engine.query(Query(kind="job", sort="id", descending=False, limit=9))] == [
            "a",
            "b",
        ]
        server.say("SCRIPT", "FLUSH")
        assert len(await engine.history(("job", "b"), "", 9)) == 1
        server.say("SCRIPT", "FLUSH")
        assert not await engine.compact(LogKept(since=0, most_bytes=1 << 30))
        assert await engine.check() == []


async def test_a_script_cache_that_is_lost_again_and_again_under_load_loses_nothing(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        units = [born(f"job-{number:04}") for number in range(1000)]
        running = asyncio.create_task(engine.commit(units))
        while not running.done():
            await asyncio.to_thread(server.say, "SCRIPT", "FLUSH")
        assert await running == ["applied"] * 1000
        assert await engine.count(Query(kind="job", limit=1)) == 1000
        assert await engine.check() == []


async def test_a_batch_of_many_calls_keeps_the_order_of_units_that_share_a_record(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        writes = list(born("hot"))
        units: list[Any] = [(writes[0],)]
        for number in range(400):
            writes.append(after(writes[-1].row))
            units += [(writes[-1],), born(f"cold-{number}")]
        assert await engine.commit(units) == ["applied"] * len(units)
        assert [entry.row.revision for entry in await engine.history(("job", "hot"), "", 1000)] == list(range(1, 402))


async def test_nothing_is_built_on_what_an_earlier_call_of_the_batch_refused(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        (a,) = await fill(engine, [row("a")])
        theirs = Write(row("a", revision=2, node="theirs"), a.stamp, None)
        assert await engine.commit([(theirs,)]) == ["applied"]
        ours = after(a)
        between = [born(f"job-{number}") for number in range(200)]
        results = await engine.commit([(ours,), *between, (after(ours.row),)])
        assert results == ["conflict", *["applied"] * 200, "conflict"]
        assert await engine.get([a.key]) == [theirs.row]


async def test_a_unit_larger_than_a_call_is_committed_alone(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        large = Row("job", "large", "u", 1, row("x").keys, b"x" * 600_000)
        assert await engine.commit([born("a"), (Write(large, None, None),), born("b")]) == ["applied"] * 3
        assert await engine.get([large.key]) == [large]


async def test_a_walk_over_rows_larger_than_a_reply_goes_on_by_itself(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        large = [Row("job", f"{n:02}", "u", 1, row("x").keys, bytes([n]) * 700_000) for n in range(30)]
        await fill(engine, large)
        for descending in (False, True):
            found = await engine.query(Query(kind="job", sort="id", descending=descending, limit=30))
            assert found == sorted(large, key=lambda each: each.id, reverse=descending)
        log = await engine.read_log("", 30)
        while len(log) < 30:
            log += await engine.read_log(log[-1].cursor, 30)
        assert [entry.row for entry in log] == large


# --- formats ---------------------------------------------------------------------------------------------------------


async def test_a_daemon_of_an_older_format_refuses_to_write(server: Server, namespace: str):
    key = f"{{{namespace}}}"
    async with opened(server, namespace) as engine:
        (a,) = await fill(engine, [row("a")])
        server.say("HSET", key, "format", 2, "oldest", 2)
        with pytest.raises(Unavailable, match=r"newer release.*update this daemon") as refused:
            await engine.commit([(after(a),)])
        assert refused.value.outcome == "not_applied"
        with pytest.raises(Unavailable, match="newer release"):
            await engine.compact(LogKept(since=9, most_bytes=0))
        late = engine_on(server, namespace)
        with pytest.raises(Unavailable, match=f"{namespace} is of a newer release"):
            await late.open()
        await late.close()
        server.say("HSET", key, "oldest", 1)
        assert await engine.commit([(after(a),)]) == ["applied"]


async def test_a_daemon_of_a_format_that_may_still_write_writes(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        server.say("HSET", f"{{{namespace}}}", "format", 2)
        assert await engine.commit([born("a")]) == ["applied"]


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_full_takes_nothing_and_still_lets_records_go(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            a, b = await fill(engine, [row("a"), row("b")])
            await commit(engine, [(buried(b),)])
            server.say("CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(NoSpace, match="maxmemory") as full:
                await engine.commit([born("c"), (after(a),)])
            assert full.value.outcome == "not_applied"
            assert await engine.get([a.key, ("job", "c")]) == [a, None]
            assert await engine.check() == []
            assert await engine.commit([(removed(buried(b).row),)]) == ["applied"]
            assert await engine.compact(LogKept(since=9, most_bytes=0)) is False
            assert await engine.read_log("", 10) == []
            server.say("CONFIG", "SET", "maxmemory", 0)
            assert await engine.commit([born("c")]) == ["applied"]
            assert await engine.check() == []


async def test_a_replica_that_takes_over_and_is_full_is_read_and_lets_records_go(namespace: str):
    with Server() as master, Server() as replica:
        replica.say("REPLICAOF", HOST, master.port)
        wait_for_replica(replica)
        endpoints = f"{master.address},{replica.address}"
        async with opened(master, namespace, endpoint=endpoints, wait_replicas=1, wait_seconds=30.0) as engine:
            a, b = await fill(engine, [row("a"), row("b")])
            await commit(engine, [(buried(b),)])
            epoch, cursor = engine.epoch, await engine.position()
            for server in (master, replica):
                server.say("CONFIG", "SET", "maxmemory", 1)
            replica.say("REPLICAOF", "NO", "ONE")
            master.say("REPLICAOF", HOST, replica.port)
            wait_for_replica(master)
            master.say("CLIENT", "KILL", "TYPE", "normal")
            assert await engine.get([a.key]) == [a]
            assert (engine.epoch, await engine.position()) == (epoch, cursor)
            assert [entry.row.id for entry in await engine.read_log("", 10)] == ["a", "b", "b"]
            with pytest.raises(NoSpace, match="maxmemory"):
                await engine.commit([born("c")])
            assert await engine.commit([(removed(buried(b).row),)]) == ["applied"]
            assert await engine.compact(LogKept(since=9, most_bytes=0)) is False
            await engine.assure()


async def test_a_script_that_fails_half_way_is_unknown_and_its_text_stays_here(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, [row("a")])
        names = f"{{{namespace}}}:1:"
        server.say("DEL", names + "kinds")
        server.say("SET", names + "kinds", "not a hash")
        with pytest.raises(Internal) as failed:
            await engine.commit([born("secret-name")])
        assert failed.value.outcome == "unknown"
        assert "secret-name" not in failed.value.text
        assert "user_script" not in failed.value.text


# --- what is never sent ----------------------------------------------------------------------------------------------


async def test_no_serving_call_scans_or_lists_the_keyspace(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            server.say("CONFIG", "RESETSTAT")
            await everything_once(engine)
        used = {name.partition("_")[2] for name in server_statistics(server) if name.startswith("cmdstat_")}
    assert used & {"keys", "scan", "hscan", "hgetall", "sscan", "zscan", "randomkey", "flushall"} <= {"hgetall"}
    assert {"evalsha", "zrange", "xadd"} <= used


def server_statistics(server: Server) -> dict[str, Any]:
    client = redis.Redis(port=server.port)
    try:
        return dict(client.info("commandstats"))
    finally:
        client.close()


async def test_every_key_of_a_namespace_begins_with_its_name_in_braces(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            await everything_once(engine)
        keys = server.say("KEYS", "*")
    assert keys
    assert all(key.startswith(f"{{{namespace}}}".encode()) for key in keys)
