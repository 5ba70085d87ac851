"""A namespace whose slot moves to another node under load: nothing is lost, nothing is half done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from statesvc.backends.port import LogKept, Query, Row
from statesvc.backends.redis.engine import RedisEngine
from statesvc_client.errors import Unavailable
from tests.engines.rows import after, born, commit, fill, removed, row
from tests.redis.engines import opened
from tests.redis.servers import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


async def test_a_slot_that_moves_key_by_key_never_leaves_half_a_unit(cluster: Cluster, namespace: str):
    """Units of several records, written on while the keys leave one by one. What is refused meanwhile is not there."""
    async with opened(cluster, namespace, timeout_seconds=1.0) as engine:
        await fill(engine, [row(f"job-{number}", labels=(("n", str(number)),)) for number in range(20)])
        source = cluster.master_of(namespace)
        target = cluster.other_than(source)
        made: dict[str, str] = {}
        await asyncio.to_thread(cluster.begin_move, namespace, target)
        for number in range(12):
            await asyncio.to_thread(cluster.move_keys, namespace, source, target, 9)
            made[f"unit-{number}"] = await attempt(engine, f"unit-{number}")
        await asyncio.to_thread(cluster.move_keys, namespace, source, target)
        await asyncio.to_thread(cluster.finish_move, namespace, target)
    async with opened(cluster, namespace) as engine:
        for name, outcome in made.items():
            there = await engine.get([("job", name), ("kv", name)])
            assert there in ([None, None], pair(name)), "wholly or not at all"
            assert outcome == "unknown" or (outcome == "applied") == (there == pair(name))
        assert await engine.check() == []
        assert await attempt(engine, "late") == "applied"
        assert await engine.check() == []
        assert "refused" in made.values(), "the move was in the way of none"


def pair(name: str) -> list[Row | None]:
    return [row(name, kind="job"), row(name, kind="kv")]


async def attempt(engine: RedisEngine, name: str) -> str:
    try:
        [result] = await engine.commit([(*born(name, kind="job"), *born(name, kind="kv"))])
    except Unavailable as problem:
        return "refused" if problem.outcome == "not_applied" else "unknown"
    return str(result)


async def test_calls_wait_until_a_slot_has_moved(cluster: Cluster, namespace: str):
    async with opened(cluster, namespace, timeout_seconds=60.0) as engine:
        (a, b) = await fill(engine, [row("a"), row("b")])
        source = cluster.master_of(namespace)
        target = cluster.other_than(source)
        await asyncio.to_thread(cluster.begin_move, namespace, target)
        await asyncio.to_thread(cluster.move_keys, namespace, source, target, 3)
        calls = [
            asyncio.create_task(commit(engine, [(after(a),), (removed(b),), born("c")])),
            asyncio.create_task(engine.query(Query(kind="job", limit=9, sort="id"))),
            asyncio.create_task(engine.history(a.key, "", 9)),
            asyncio.create_task(engine.compact(LogKept(since=0, most_bytes=1 << 40))),
        ]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.move_keys, namespace, source, target)
        await asyncio.to_thread(cluster.finish_move, namespace, target)
        await asyncio.gather(*calls, return_exceptions=True)
        assert {each.id for each in await engine.query(Query(kind="job", limit=9))} <= {"a", "b", "c"}
        assert await engine.check() == []


async def test_a_log_is_cut_while_its_slot_moves_wholly_or_not_at_all(cluster: Cluster, namespace: str):
    async with opened(cluster, namespace, timeout_seconds=1.0) as engine:
        last = (await fill(engine, [row("a")]))[0]
        for _ in range(5):
            step = after(last)
            assert await engine.commit([(step,)]) == ["applied"]
            last = step.row
        source = cluster.master_of(namespace)
        target = cluster.other_than(source)
        await asyncio.to_thread(cluster.begin_move, namespace, target)
        for _ in range(6):
            await asyncio.to_thread(cluster.move_keys, namespace, source, target, 2)
            try:
                await engine.compact(LogKept(since=1 << 60, most_bytes=1 << 40))
            except Unavailable:
                pass
        await asyncio.to_thread(cluster.move_keys, namespace, source, target)
        await asyncio.to_thread(cluster.finish_move, namespace, target)
    async with opened(cluster, namespace) as engine:
        assert await engine.check() == []
        while await engine.compact(LogKept(since=1 << 60, most_bytes=1 << 40)):
            pass
        assert await engine.read_log("", 10) == []
        assert await engine.check() == []
