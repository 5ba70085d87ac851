"""What a call on the link gives when all is well: values, refusals, news, and one connection for many callers."""

from __future__ import annotations

import asyncio

import pytest

from statesvc.backends.redis import link as link_module
from statesvc.backends.redis.facts import Facts
from statesvc.backends.redis.faults import Trouble
from statesvc.backends.redis.lane import Batch
from statesvc.backends.redis.link import LOST, Ask, Refused
from statesvc.backends.redis.opening import pack
from statesvc_client.errors import Busy, StateError, Unavailable
from tests.redis.conftest import LinkTo
from tests.redis.proxies import Proxy
from tests.redis.servers import Server


async def test_reads_and_writes_give_values_and_refusals_in_their_order(server, link_to: LinkTo, namespace):
    link = link_to(server.settings())
    await link.open()
    key = f"{{{namespace}}}"
    fates = await link.change(("SET", key, b"\xff\x00"), ("LPUSH", key, "x"), ("STRLEN", key))
    assert fates[0] == b"OK"
    assert isinstance(fates[1], Refused)
    assert fates[1].code == "WRONGTYPE"
    assert fates[2] == 2
    assert await link.ask(("GET", key), ("GET", key + "none"), ("HGETALL", key + "none")) == [b"\xff\x00", None, []]


async def test_an_unknown_script_is_the_callers_to_load(server, link_to: LinkTo):
    link = link_to(server.settings())
    [refused] = await link.change(("EVALSHA", "0" * 40, 0))
    assert isinstance(refused, Refused)
    assert refused.code == "NOSCRIPT"


async def test_a_scripts_own_error_keeps_its_word(server, link_to: LinkTo, namespace):
    link = link_to(server.settings())
    script = "return redis.error_reply('STATESVC-EPOCH other')"
    assert await link.change(("EVAL", script, 1, namespace)) == [Refused("STATESVC-EPOCH", "other")]


async def test_the_server_is_known_after_opening(server: Server, link_to: LinkTo):
    link = link_to(server.settings())
    with pytest.raises(Unavailable, match="not been reached yet"):
        _ = link.facts
    await link.open()
    info = server.info()
    facts = link.facts
    assert facts.address == server.address
    assert (facts.run_id, facts.replid, facts.role) == (info["run_id"], info["master_replid"], "master")
    assert (facts.aof, facts.fsync, facts.maxmemory_policy) == (False, "everysec", "noeviction")
    assert not facts.cluster


async def test_a_unix_socket_and_another_database_are_reached(link_to: LinkTo):
    with Server() as server:
        link = link_to({"storage.redis.endpoint": server.socket_path, "storage.redis.db": 3})
        await link.open()
        await link.change(("SET", "k", "v"))
        assert server.info()["db3"].startswith("keys=1")
        assert link.facts.address == server.socket_path


async def test_a_database_that_is_not_there_is_named(server, link_to: LinkTo):
    link = link_to(server.settings(db=9999))
    with pytest.raises(Unavailable, match=r"no database of that number \(storage.redis.db\)"):
        await link.open()


async def test_many_callers_share_one_connection_for_reads_and_one_for_writes(server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        writes = [link.change(("RPUSH", namespace, number)) for number in range(300)]
        await asyncio.gather(*writes)
        reads = await asyncio.gather(*(link.ask(("LINDEX", namespace, number)) for number in range(300)))
        assert [int(reply) for [reply] in reads] == list(range(300)), (
            "writes are applied in the order they were handed over"
        )
        assert proxy.accepted == 2


async def test_a_caller_that_gives_up_leaves_the_connection_to_the_others(server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        await link.open()
        made = proxy.accepted
        proxy.hold()
        tasks = [asyncio.create_task(link.ask(("ECHO", number))) for number in range(10)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        tasks[7].cancel()
        proxy.release()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answer for answer in answers if isinstance(answer, list)] == [
            [b"%d" % n] for n in range(10) if n not in (3, 7)
        ]
        assert await link.ask(("ECHO", "on")) == [b"on"]
        assert proxy.accepted == made


async def test_a_blocking_read_brings_news_and_holds_nobody_up(server, link_to: LinkTo, namespace):
    link = link_to(server.settings())
    news = asyncio.create_task(link.block(("XREAD", "BLOCK", 60_000, "STREAMS", namespace, "0"), 60))
    await link.change(("XADD", namespace, "1-0", "f", "v"))
    assert await news == [[namespace.encode(), [[b"1-0", [b"f", b"v"]]]]]
    assert await link.block(("XREAD", "BLOCK", 10, "STREAMS", namespace, "1-0"), 0.01) is None


async def test_a_blocking_read_that_is_refused_raises_what_it_means(server, link_to: LinkTo, namespace):
    link = link_to(server.settings())
    await link.change(("SET", namespace, "no stream"))
    with pytest.raises(StateError, match="the error WRONGTYPE") as caught:
        await link.block(("XREAD", "BLOCK", 10, "STREAMS", namespace, "0"), 0.01)
    assert caught.value.code == "internal"


async def test_a_blocking_read_survives_a_lost_connection(server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        await link.open()
        news = asyncio.create_task(link.block(("XREAD", "BLOCK", 60_000, "STREAMS", namespace, "0"), 60))
        while proxy.accepted < 2:
            await asyncio.sleep(0.01)
        proxy.cut()
        await link.change(("XADD", namespace, "1-0", "f", "v"))
        assert (await news)[0][0] == namespace.encode()


async def test_blocking_reads_are_bounded_and_one_that_is_given_up_frees_its_place(server, link_to: LinkTo, namespace):
    link = link_to(server.settings())
    command = ("XREAD", "BLOCK", 60_000, "STREAMS", namespace, "0")
    waiting = [asyncio.create_task(link.block(command, 60)) for _ in range(link_module.BLOCKING_CONNECTIONS)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await link.block(command, 60)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert await link.block(("XREAD", "BLOCK", 10, "STREAMS", namespace, "0"), 0.01) is None


async def test_what_waits_is_bounded_in_number_and_in_bytes(server, link_to: LinkTo, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_module, "WAITING_CALLS", 5)
    monkeypatch.setattr(link_module, "WAITING_BYTES", 10_000)
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        await link.open()
        assert await link.ask(("ECHO", b"x" * 50_000)) == [b"x" * 50_000], "alone there is room for anything"
        proxy.hold()
        waiting = [asyncio.create_task(link.ask(("ECHO", number))) for number in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="5 calls of"):
            await link.change(("SET", "k", "v"))
        proxy.release()
        await asyncio.gather(*waiting)
        proxy.hold()
        large = asyncio.create_task(link.ask(("ECHO", b"x" * 9_000)))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await link.ask(("ECHO", b"x" * 9_000))
        proxy.release()
        await large
        assert await link.ask(("ECHO", "on")) == [b"on"]


async def test_every_new_connection_is_greeted_before_it_is_used(server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        met: list[str] = []

        async def greet(facts: Facts, ask: Ask) -> None:
            await asyncio.sleep(0)
            assert await ask(("INCR", namespace)) == [len(met) + 1]
            met.append(facts.run_id)

        link.greet = greet
        await link.open()
        await link.change(("INCR", namespace + "x"))
        assert met == [server.info()["run_id"]] * 2
        proxy.cut()
        assert await link.ask(("GET", namespace)) == [b"3"]


async def test_what_the_greeting_raises_reaches_the_caller_and_the_server_is_not_pestered(server, link_to: LinkTo):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})

        async def greet(_facts: Facts, _ask: Ask) -> None:
            raise Unavailable("the namespace is of a newer format")

        link.greet = greet
        for _ in range(50):
            with pytest.raises(Unavailable, match="newer format"):
                await link.change(("SET", "k", "v"))
        assert proxy.accepted < 10


async def test_calls_under_way_when_the_link_closes_learn_what_is_known(server, link_to: LinkTo):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        await link.change(("PING",))
        await link.ask(("PING",))
        proxy.hold()
        write = asyncio.create_task(link.change(("SET", "k", "v"), ("SET", "k", "w")))
        read = asyncio.create_task(link.ask(("GET", "k")))
        for _ in range(5):
            await asyncio.sleep(0)
        await link.close()
        assert await write == [LOST, LOST]
        with pytest.raises(Unavailable):
            await read
        with pytest.raises(Unavailable, match="the link is closed"):
            await link.change(("SET", "k", "v"))


async def test_a_connection_that_ends_between_being_made_and_being_used_costs_only_another(server, link_to: LinkTo):
    link = link_to(server.settings())
    await link.open()
    [lane] = link._lanes
    lane.end(Trouble("ended"))
    batch = Batch(pack([("PING",)]), asyncio.get_running_loop().time() + 60)
    await lane.run(batch)
    assert not batch.sent
    assert batch.trouble is not None
    assert await link.ask(("PING",)) == [b"PONG"]
