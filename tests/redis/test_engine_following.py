"""Waiting for the log goes on through lost connections and restarts, and costs one connection however many wait."""

from __future__ import annotations

import asyncio

from statesvc.backends.port import LogKept
from tests.engines.rows import born, fill, row
from tests.redis.engines import opened
from tests.redis.servers import Server, eventually, wait_for_replica

LONG = 60.0


async def blocked(server: Server, wanted: int) -> None:
    """Until so many connections of a server wait in it."""

    def look() -> bool:
        return int(server.info()["blocked_clients"]) == wanted

    await asyncio.to_thread(eventually, look, f"{wanted} blocked connections")


async def test_others_writes_wake_those_who_wait(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        for number in range(5):
            waiting = [asyncio.create_task(engine.log_grew(str(number), LONG)) for _ in range(50)]
            await asyncio.sleep(0)
            await fill(other, [row(f"job-{number}")])
            await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)


async def test_many_who_wait_are_one_connection_in_the_server(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            waiting = [asyncio.create_task(engine.log_grew("0", LONG)) for _ in range(200)]
            await blocked(server, 1)
            await fill(engine, [row("a")])
            await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)


async def test_a_wait_survives_the_loss_of_its_connection(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine, opened(server, namespace) as other:
            waiting = asyncio.create_task(engine.log_grew("0", LONG))
            for _ in range(3):
                await blocked(server, 1)
                server.say("CLIENT", "KILL", "TYPE", "normal")
            await blocked(server, 1)
            assert not waiting.done()
            await fill(other, [row("a")])
            await asyncio.wait_for(waiting, LONG / 2)


async def test_a_wait_survives_a_server_that_starts_again(namespace: str):
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine, opened(server, namespace) as other:
            await fill(engine, [row("a")])
            waiting = asyncio.create_task(engine.log_grew("1", LONG))
            await blocked(server, 1)
            server.kill()
            server.start()
            await fill(other, [row("b")])
            await asyncio.wait_for(waiting, LONG / 2)
            assert [entry.row.id for entry in await engine.read_log("1", 9)] == ["b"]


async def test_a_wait_goes_by_the_log_of_the_server_that_took_over(namespace: str):
    """It has fewer entries than were seen before, where replicas lacked those; others get their numbers."""
    with Server() as master, Server() as replica:
        replica.say("REPLICAOF", "127.0.0.1", master.port)
        wait_for_replica(replica)
        both = {"endpoint": f"{master.address},{replica.address}"}
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0, **both) as engine:
            await fill(engine, [row("a")])
            epoch = engine.epoch
            replica.say("REPLICAOF", "NO", "ONE")
            async with opened(master, namespace) as other:
                await fill(other, [row(f"lost-{number}") for number in range(9)])
            await engine.log_grew("1", LONG)
            master.kill()
            await engine.ping()
            assert engine.epoch == epoch
            waiting = asyncio.create_task(engine.log_grew("1", LONG))
            await blocked(replica, 1)
            async with opened(replica, namespace) as other:
                await fill(other, [row("b")])
            await asyncio.wait_for(waiting, LONG / 2)


async def test_closing_ends_every_wait(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        waiting = [asyncio.create_task(engine.log_grew("0", LONG)) for _ in range(3)]
        await asyncio.sleep(0.05)
    await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)


async def test_a_log_that_was_cut_to_nothing_is_waited_on_at_its_end(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("a"), row("b")])
        while await engine.compact(LogKept(since=1 << 60, most_bytes=1 << 40)):
            pass
        waiting = [asyncio.create_task(engine.log_grew(cursor, LONG)) for cursor in ("", "2")]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert await other.commit([born("c")]) == ["applied"]
        await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)


async def test_measures_follow_what_is_stored(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, [row(f"job-{number}") for number in range(10)])
        before = engine.measures()
        assert before["logEntries"] == 10
        assert before["logBytes"] > 10 * len(row("job-0").body)
        while await engine.compact(LogKept(since=1 << 60, most_bytes=1 << 40)):
            pass
        await engine.ping()
        after = engine.measures()
        assert (after["logEntries"], after["logBytes"]) == (0, 0)
        assert after["usedMemory"] > 0
