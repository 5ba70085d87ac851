"""Damage that somebody planted is found and named, and what can be made again is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from statesvc.backends.port import DataCorrupt, Query
from statesvc.backends.redis.engine import RedisEngine
from statesvc.backends.redis.names import Names
from tests.engines.rows import after, buried, commit, fill, removed, row
from tests.redis.engines import opened
from tests.redis.servers import Server


@pytest.fixture
async def engine(server: Server, namespace: str) -> AsyncIterator[RedisEngine]:
    """A store with records of all sorts."""
    async with opened(server, namespace) as engine:
        made = await fill(
            engine,
            [
                row(f"job-{n:02}", created=n, status="AB"[n % 2], node="n1", priority=n, labels=(("even", str(n % 2)),))
                for n in range(20)
            ],
        )
        await fill(engine, [row("k", kind="kv")])
        await commit(engine, [(after(made[3], status="C"),), (buried(made[4]),), (removed(made[5]),)])
        assert await engine.check() == []
        yield engine


@pytest.fixture
def names(namespace: str) -> Names:
    return Names(f"{{{namespace}}}".encode(), b"1")


async def mended(engine: RedisEngine) -> list[str]:
    """What was done; afterwards nothing is wrong, and a second repair has nothing to do."""
    done = await engine.repair()
    assert await engine.check() == []
    assert await engine.repair() == []
    return done


async def whole(engine: RedisEngine) -> Any:
    walks = [
        Query(kind="job", limit=100),
        Query(kind="job", limit=100, sort="id"),
        Query(kind="job", limit=100, sort="priority"),
        Query(kind="job", limit=100, sort="deleted"),
        Query(kind="job", limit=100, sort="started", missing=True),
        Query(kind="job", limit=100, term=("status", "A", "C")),
        Query(kind="job", limit=100, term=("label:even", "0")),
    ]
    return [await engine.query(each) for each in walks], await engine.kinds()


@pytest.mark.parametrize("index", [b"c", b"u", b"p", b"t", b"mf", b"=s:A", b"=n:n1", b"=l5::even:0"])
async def test_a_row_that_an_index_lost_is_found_and_put_back(engine, server: Server, names: Names, index: bytes):
    before = await whole(engine)
    key = names.index_of("job", index)
    if index == b"mf":  # whichever of those by id the row is in
        [key] = [k for k in server.say("KEYS", names.index_of("job", b"m?")) if server.say("ZCARD", k) > 5]
    [member] = server.say("ZRANGE", key, 2, 2)
    server.say("ZREM", key, member)
    [problem] = await engine.check()
    assert "is missing in the index" in problem
    assert len(await mended(engine)) == 1
    assert await whole(engine) == before


async def test_an_index_that_is_gone_is_made_again(engine: RedisEngine, server: Server, names: Names):
    before = await whole(engine)
    server.say("DEL", names.index_of("job", b"c"), names.index_of("job", b"=s:B"))
    assert await engine.query(Query(kind="job", limit=5)) == []
    assert len(await engine.check()) == 18
    await mended(engine)
    assert await whole(engine) == before


@pytest.mark.parametrize(
    ("index", "member"),
    [
        (b"c", b"\x80" + bytes(7) + b"nobody"),
        (b"c", b"\x80" + bytes(7) + b"job-07"),
        (b"t", b"A\0nobody"),
        (b"t", b"no end"),
        (b"m0", b"job-01"),
        (b"=s:A", b"\x80" + bytes(6) + b"\x01job-01"),
        (b"d", b"\x80" + bytes(7) + b"job-01"),
        (b"r", b"1\0job-01"),
    ],
)
async def test_a_stray_in_an_index_is_found_and_taken_out(
    engine: RedisEngine, server: Server, names: Names, index: bytes, member: bytes
):
    before = await whole(engine)
    server.say("ZADD", names.index_of("job", index), 0, member)
    [problem] = await engine.check()
    assert "names 1 records that do not stand there" in problem
    assert await mended(engine) == [
        problem.replace("the index", "took 1 records out of the index").partition(" names")[0]
    ]
    assert await whole(engine) == before


async def test_strays_do_not_end_a_walk_early(engine: RedisEngine, server: Server, names: Names):
    before = await engine.query(Query(kind="job", limit=5, descending=False))
    for number in range(20):
        server.say("ZADD", names.index_of("job", b"c"), 0, bytes(8) + b"nobody-%d" % number)
    assert await engine.query(Query(kind="job", limit=5, descending=False)) == before


async def test_places_that_do_not_fit_the_row_are_written_again(engine: RedisEngine, server: Server, names: Names):
    before = await whole(engine)
    stored = server.say("HGET", names.rows("job"), "job-07")
    server.say("HSET", names.rows("job"), "job-07", stored.replace(b"=s:B", b"=s:A"))
    assert any("job job-07 is not stored as its keys say" in problem for problem in await engine.check())
    assert "stored job job-07 as its keys say" in await mended(engine)
    assert await whole(engine) == before


async def test_a_row_that_cannot_be_read_is_named_and_left_alone(engine: RedisEngine, server: Server, names: Names):
    server.say("HSET", names.rows("kv"), "k", "not a row")
    assert any("stored row of kv k cannot be read" in problem for problem in await engine.check())
    await engine.repair()
    assert server.say("HGET", names.rows("kv"), "k") == b"not a row"
    with pytest.raises(DataCorrupt, match="kv k"):
        await engine.get([("kv", "k")])


async def test_counts_of_kinds_are_made_again(engine: RedisEngine, server: Server, names: Names):
    server.say("HSET", names.kinds, "job", 7)
    assert await engine.check() == ["19 rows of job are counted as 7"]
    assert await mended(engine) == ["counted the rows of job again"]


async def test_a_history_that_lacks_entries_is_made_again(engine: RedisEngine, server: Server, names: Names):
    before = await engine.history(("job", "job-03"), "", 10)
    server.say("RPOP", names.history(("job", "job-03")))
    assert await engine.check() == ["the history of job job-03 lacks entries"]
    assert await mended(engine) == ["made the history of job job-03 again"]
    assert await engine.history(("job", "job-03"), "", 10) == before


async def test_a_history_that_is_gone_is_made_again(engine: RedisEngine, server: Server, names: Names):
    before = await engine.history(("job", "job-03"), "", 10)
    server.say("DEL", names.history(("job", "job-03")))
    assert await engine.check() == ["the history of job job-03 lacks entries"]
    await mended(engine)
    assert await engine.history(("job", "job-03"), "", 10) == before


async def test_a_history_with_entries_of_others_is_made_again(engine: RedisEngine, server: Server, names: Names):
    before = await engine.history(("job", "job-03"), "", 10)
    server.say("RPUSH", names.history(("job", "job-03")), 7)
    assert await engine.check() == ["the history of job job-03 names entries that are not its own"]
    await mended(engine)
    assert await engine.history(("job", "job-03"), "", 10) == before


async def test_an_entry_that_is_gone_from_the_log_is_named(engine: RedisEngine, server: Server, names: Names):
    server.say("XDEL", names.log, "3-0")
    found = await engine.check()
    assert "the log has 22 entries between 0 and 23" in found
    assert any("the log lacks entries between" in problem for problem in found)


async def test_the_weight_of_the_log_is_counted_again(engine: RedisEngine, server: Server, names: Names):
    server.say("HINCRBY", names.namespace, "logBytes", 100)
    [problem] = await engine.check()
    assert "the log weighs" in problem
    assert await mended(engine) == ["weighed the log again"]


async def test_only_so_many_problems_are_named_one_by_one(server: Server, namespace: str, names: Names):
    async with opened(server, namespace) as engine:
        await fill(engine, [row(f"job-{number:03}") for number in range(150)])
        server.say("DEL", names.index_of("job", b"c"))
        found = await engine.check()
        assert len(found) == 101
        assert found[-1] == "and 50 more"


async def test_a_check_that_outlives_the_server_looks_at_every_row_once(namespace: str, names: Names, monkeypatch):
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine:
            await fill(engine, [row(f"job-{number:04}") for number in range(1500)])
            server.say("DEL", names.index_of("job", b"c"))
            inspect, steps = engine._namespace.run, 0

            async def run(name: str, *arguments: Any) -> list[Any]:
                nonlocal steps
                steps += name == "inspect"
                if name == "inspect" and steps == 5:
                    server.kill()
                    server.start()
                return await inspect(name, *arguments)

            monkeypatch.setattr(engine._namespace, "run", run)
            found = await engine.check()
            assert found[-1] == "and 1400 more"


async def test_checking_while_others_write_finds_nothing(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        newest = await fill(engine, [row(f"job-{number:03}", status="A") for number in range(300)])

        async def write() -> None:
            nonlocal newest
            for turn in range(6):
                steps = [after(each, status="AB"[turn % 2], created=turn) for each in newest]
                await other.commit([(step,) for step in steps])
                newest = [step.row for step in steps]

        writing = asyncio.create_task(write())
        while not writing.done():
            assert await engine.check() == []
            assert await engine.repair() == []
        await writing
