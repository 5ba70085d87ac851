"""Loading and dumping beside others: nobody sees half of it, what was replaced goes away, readers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from statesvc.backends import epoch_names
from statesvc.backends.port import LogKept, Query, Row
from statesvc.backends.redis import compaction, loading
from statesvc.backends.redis.meta import Meta
from statesvc.backends.redis.scanning import BEGINNINGS, Scan
from statesvc_client.errors import Gone, Unavailable
from tests.engines.rows import after, born, fill, row
from tests.redis.engines import opened
from tests.redis.servers import HOST, Server, wait_for_replica

ALL_KEPT = LogKept(since=0, most_bytes=1 << 40)


async def pieces(rows: list[Row]) -> AsyncIterator[list[Row]]:
    for begin in range(0, len(rows), 7):
        yield rows[begin : begin + 7]


def many(word: str, count: int = 300) -> list[Row]:
    return [row(f"job-{n:03}", uid=f"{word}-{n}", node=word, labels=((word, str(n)),)) for n in range(count)]


async def compacted(engine) -> None:
    while await engine.compact(ALL_KEPT):
        pass


async def test_others_see_the_old_store_until_they_see_the_new_one(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        old, new = many("old"), many("new")
        await fill(engine, old)
        told: list[str] = []
        other.began_anew = lambda: told.append(other.epoch)
        own: list[str] = []
        engine.began_anew = lambda: own.append(engine.epoch)
        running = asyncio.create_task(engine.load(pieces(new)))
        seen = set()
        while not running.done():
            found = await other.query(Query(kind="job", limit=1000))
            assert len(found) == 300
            nodes = {each.keys.node for each in found}
            assert len(nodes) == 1
            seen |= nodes
            got = await other.get([each.key for each in old])
            assert len({each.keys.node for each in got if each is not None}) == 1
            assert None not in got
        await running
        assert seen >= {"old"}
        assert await other.get([each.key for each in new]) == new
        assert other.epoch == engine.epoch
        assert told == [other.epoch]
        assert own == [], "whoever loads knows"
        assert await other.check() == []


async def test_what_was_replaced_is_dropped_step_by_step(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, many("old"))
        await engine.load(pieces(many("new", 10)))
        generations = {key.split(b":")[1] for key in server.say("KEYS", f"{{{namespace}}}:*")}
        assert generations == {b"1", b"2", b"generations"}
        await compacted(engine)
        left = server.say("KEYS", f"{{{namespace}}}:*")
        assert {key.split(b":")[1] for key in left} == {b"2"}
        assert await engine.count(Query(kind="job", limit=1)) == 10
        assert await engine.check() == []


async def test_every_step_of_dropping_gets_on_however_many_rows_there_were(server: Server, namespace: str):
    """Thousands of rows leave a table that is empty in places, which a step must not look at in vain."""
    rows = 8000
    async with opened(server, namespace) as engine:
        await engine.load(pieces([row(f"job-{n}", kind="job" if n % 8 else "rare") for n in range(rows)]))
        await engine.load(pieces([]))
        steps = rows // compaction.DROP_ROWS + 10
        while steps and await engine.compact(ALL_KEPT):
            steps -= 1
        assert steps
        assert {key.split(b":")[1] for key in server.say("KEYS", f"{{{namespace}}}:*")} <= {b"3"}


async def test_a_damaged_row_does_not_keep_a_generation_from_being_dropped(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, many("old", 5))
        server.say("HSET", f"{{{namespace}}}:1:r:job", "job-003", b"x")
        await engine.load(pieces(many("new", 1)))
        await compacted(engine)
        assert server.say("EXISTS", f"{{{namespace}}}:1:r:job", f"{{{namespace}}}:1:kinds") == 0


async def test_a_load_that_was_given_up_is_dropped_after_a_while(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened(server, namespace) as engine:
        await fill(engine, [row("a")])

        async def broken() -> AsyncIterator[list[Row]]:
            yield many("half")
            raise RuntimeError("the file ends here")

        with pytest.raises(RuntimeError):
            await engine.load(broken())
        await compacted(engine)
        assert server.say("HGET", f"{{{namespace}}}:2:kinds", "job"), "somebody may still be loading into it"
        monkeypatch.setattr(compaction, "GIVEN_UP_SECONDS", -1)
        await compacted(engine)
        assert server.say("KEYS", f"{{{namespace}}}:2:*") == []
        assert await engine.get([("job", "a")]) == [row("a")]


async def test_a_load_whose_generation_was_dropped_meanwhile_changes_nothing(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compaction, "GIVEN_UP_SECONDS", -1)
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("a")])
        epoch = engine.epoch

        async def slow() -> AsyncIterator[list[Row]]:
            yield many("one")
            await compacted(other)
            yield many("two")

        with pytest.raises(Unavailable, match="nothing was loaded"):
            await engine.load(slow())
        assert engine.epoch == epoch
        assert await engine.get([("job", "a")]) == [row("a")]


async def test_a_load_into_a_generation_that_is_being_dropped_changes_nothing(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    """Some of its rows are gone already: whoever stood still for so long must not go on."""
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("a")])
        epoch = engine.epoch

        async def slow() -> AsyncIterator[list[Row]]:
            yield many("one")
            with monkeypatch.context() as patience:
                patience.setattr(compaction, "GIVEN_UP_SECONDS", -1)
                assert await other.compact(ALL_KEPT)
            yield many("two")

        with pytest.raises(Unavailable, match="nothing was loaded"):
            await engine.load(slow())
        assert engine.epoch == epoch
        assert await engine.get([("job", "a")]) == [row("a")]
        await compacted(engine)
        assert server.say("KEYS", f"{{{namespace}}}:2:*") == []


async def test_a_load_during_which_the_server_forgot_some_of_it_changes_nothing(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            await fill(engine, [row("a")])

            async def interrupted() -> AsyncIterator[list[Row]]:
                yield many("half")
                server.say("SAVE")
                yield many("lost")
                server.kill()
                server.start()
                yield many("rest")

            with pytest.raises(Unavailable, match="nothing was loaded") as refused:
                await engine.load(interrupted())
            assert refused.value.outcome == "not_applied"
            assert await engine.query(Query(kind="job", limit=9)) == [row("a")]
            await engine.load(pieces(many("new")))
            assert await engine.count(Query(kind="job", limit=1)) == 300


@pytest.mark.parametrize("when", ["between two calls", "before the switch"])
async def test_a_load_that_a_replica_takes_over_without_all_of_it_changes_nothing(
    namespace: str, monkeypatch: pytest.MonkeyPatch, when: str
):
    """The epoch stays, as everything acknowledged is there; a load has not been acknowledged yet."""
    with Server() as master, Server() as replica, Server() as behind:
        replica.say("REPLICAOF", HOST, master.port)
        behind.say("REPLICAOF", HOST, replica.port)
        wait_for_replica(replica)
        wait_for_replica(behind)
        both = {"endpoint": f"{master.address},{replica.address}", "wait_replicas": 1, "wait_seconds": 30.0}
        async with opened(master, namespace, **both) as engine:
            await fill(engine, [row("a")])
            epoch = engine.epoch

            def following(*_: object) -> str:
                if when == "before the switch":
                    master.kill()
                return "e1e1"

            async def interrupted() -> AsyncIterator[list[Row]]:
                yield many("half")
                master.say("WAIT", 1, 30_000)
                replica.say("REPLICAOF", "NO", "ONE")
                yield many("lost")
                if when == "between two calls":
                    master.kill()
                yield many("rest")

            monkeypatch.setattr(epoch_names, "following", following)
            with pytest.raises(Unavailable, match="nothing was loaded") as refused:
                await engine.load(interrupted())
            assert refused.value.outcome == "not_applied"
            assert engine.epoch == epoch
            assert await engine.query(Query(kind="job", limit=9)) == [row("a")]


async def test_a_load_that_outlives_the_server_misses_nothing(namespace: str):
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine:
            rows = many("x", 1000)

            async def interrupted() -> AsyncIterator[list[Row]]:
                yield rows[:500]
                server.kill()
                server.start()
                yield rows[500:]

            await engine.load(interrupted())
            assert await engine.get([each.key for each in rows]) == rows
            assert await engine.check() == []


async def test_a_load_that_was_overtaken_changes_nothing_also_if_that_is_known_by_then(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:

        async def slow() -> AsyncIterator[list[Row]]:
            yield many("slow")
            await other.load(pieces(many("quick", 3)))
            await engine.ping()
            assert engine.epoch == other.epoch

        with pytest.raises(Unavailable, match="nothing was loaded"):
            await engine.load(slow())
        assert await engine.count(Query(kind="job", limit=1)) == 3


async def test_a_new_epoch_is_told_when_the_load_it_came_about_in_has_failed(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        (a,) = await fill(engine, [row("a")])
        told: list[str] = []
        engine.began_anew = lambda: told.append(engine.epoch)

        async def slow() -> AsyncIterator[list[Row]]:
            yield many("slow")
            await other.load(pieces([row("a")]))
            await engine.ping()

        with pytest.raises(Unavailable):
            await engine.load(slow())
        assert told == [other.epoch]
        assert await engine.commit([(after(a),)]) == ["conflict"], "nobody has looked since"


async def test_a_load_that_is_replaced_at_once_is_not_called_a_success(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        told: list[str] = []
        engine.began_anew = lambda: told.append(engine.epoch)
        learn = engine._namespace.learn

        async def late() -> Meta:
            await other.ping()
            await other.load(pieces(many("other", 3)))
            return await learn()

        monkeypatch.setattr(engine._namespace, "learn", late)
        with pytest.raises(Unavailable, match="another epoch") as unsure:
            await engine.load(pieces(many("new", 5)))
        assert unsure.value.outcome == "unknown"
        assert told == [other.epoch]


async def test_of_two_loads_at_once_one_wins_and_the_other_is_told(server: Server, namespace: str):
    async with opened(server, namespace) as one, opened(server, namespace) as two:
        results = await asyncio.gather(
            one.load(pieces(many("one"))), two.load(pieces(many("two"))), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["NoneType", "Unavailable"]
        winner = "one" if results[0] is None else "two"
        for engine in (one, two):
            found = await engine.query(Query(kind="job", limit=1000))
            assert {each.keys.node for each in found} == {winner}
            assert len(found) == 300
            await compacted(engine)
            assert await engine.check() == []


async def test_a_row_that_comes_twice_is_there_once(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        first, second = row("a", labels=(("x", "1"),)), row("a", uid="later", labels=(("x", "2"),))
        rows = [first, *many("new", loading.CALL_ROWS), second]
        await engine.load(pieces(rows))
        assert await engine.get([("job", "a")]) == [second]
        assert await engine.query(Query(kind="job", limit=9, term=("label:x", "1"))) == []
        assert await engine.check() == []


async def test_a_dump_that_is_overtaken_by_a_load_says_so(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, many("old", 1000))
        dump = await engine.dump()
        assert 0 < len(await anext(dump.rows)) < 1000
        await other.load(pieces(many("new", 3)))
        with pytest.raises(Gone, match="replaced"):
            await anext(dump.rows)


async def test_a_dump_that_outlives_the_server_misses_nothing(namespace: str):
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine:
            rows, epoch = await fill(engine, many("x", 3000)), engine.epoch
            dump = await engine.dump()
            told = [*await anext(dump.rows), *await anext(dump.rows), *await anext(dump.rows)]
            assert len(told) < len(rows) / 2
            server.kill()
            server.start()
            told += [each async for some in dump.rows for each in some]
            assert engine.epoch == epoch
            assert sorted(told, key=lambda each: each.id) == sorted(rows, key=lambda each: each.id)


async def test_a_dump_that_a_replica_takes_over_misses_nothing(namespace: str):
    """The connection to the old master stays for a while, and tells what the new one has: also who was judged last."""
    with Server() as master, Server() as replica:
        replica.say("REPLICAOF", HOST, master.port)
        wait_for_replica(replica)
        both = {"endpoint": f"{master.address},{replica.address}", "wait_replicas": 1, "wait_seconds": 30.0}
        async with opened(master, namespace, **both) as engine:
            rows, epoch = await fill(engine, many("x", 3000)), engine.epoch
            dump = await engine.dump()
            told = await anext(dump.rows)
            replica.say("REPLICAOF", "NO", "ONE")
            master.say("REPLICAOF", HOST, replica.port)
            wait_for_replica(master)
            async with opened(master, namespace, **both) as other:
                await other.assure()
            told += await anext(dump.rows)
            master.kill()
            told += [each async for some in dump.rows for each in some]
            assert engine.epoch == epoch
            assert sorted(told, key=lambda each: each.id) == sorted(rows, key=lambda each: each.id)


def test_a_scan_in_which_servers_follow_each_other_without_end_is_given_up():
    scan = Scan()
    for number in range(BEGINNINGS):
        scan.stepped(f"process-{number}", b"7")
        assert (scan.cursor, scan.is_over) == (b"7", False)
        scan.stepped(f"process-{number + 1}", b"0")
        assert (scan.cursor, scan.is_over) == (b"0", False), "the end of another process's scan"
    with pytest.raises(Unavailable, match="begin again"):
        scan.stepped("process", b"7")


async def test_a_commit_decided_on_the_old_store_is_a_conflict_in_the_new_one(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        (a,) = await fill(engine, [row("a")])
        await other.load(pieces([row("a")]))
        assert await engine.commit([(after(a),), born("b")]) == ["conflict", "conflict"]
        assert engine.epoch == other.epoch
        assert await engine.commit([(after(a),)]) == ["conflict"], "nobody has looked since"
        assert await engine.get([("job", "a")]) == [a]
        assert await engine.commit([(after(a),), born("b")]) == ["applied", "applied"]


async def test_a_watcher_of_the_old_log_is_woken_by_the_new_one(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("a")])
        cursor = await engine.position()
        waiting = asyncio.create_task(engine.log_grew(cursor, 60))
        await asyncio.sleep(0)
        await other.load(pieces([row("a")]))
        await asyncio.wait_for(waiting, 30)
        assert engine.epoch == other.epoch
        assert int(await engine.position()) > int(cursor)
