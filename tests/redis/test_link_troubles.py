"""What becomes of calls while the server is away, hangs, refuses or loses answers: bounded, named, never a guess."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial

import pytest
import redis

from statesvc.backends.redis import calling
from statesvc.backends.redis import link as link_module
from statesvc.backends.redis.link import LOST, Refused, as_error
from statesvc_client.errors import StateError, Unavailable
from tests.redis.conftest import CALL_SECONDS, FAILING_SECONDS, LinkTo, once_it_works
from tests.redis.proxies import Proxy, Said, Scripted
from tests.redis.servers import Server, eventually

# --- lost answers --------------------------------------------------------------------------------------------------


async def test_a_write_whose_answer_is_swallowed_is_lost_and_never_sent_again(
    server: Server, link_to: LinkTo, namespace
):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address}, seconds=1)
        await link.change(("SET", namespace, 0))
        proxy.swallow()
        assert await link.change(("INCR", namespace), ("INCR", namespace)) == [LOST, LOST]
        assert await once_it_works(lambda: link.ask(("GET", namespace))) == [b"2"]
        assert await link.change(("INCR", namespace)) == [3]


async def test_a_read_whose_answer_is_swallowed_is_asked_again(server: Server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address}, seconds=4)
        await link.ask(("PING",))
        proxy.swallow()
        assert await link.ask(("ECHO", namespace)) == [namespace.encode()]


async def test_a_connection_that_breaks_halfway_leaves_the_answers_that_came(link_to: LinkTo):
    answered = 0

    def answer(command: Said) -> bytes | None:
        nonlocal answered
        if command[0] != b"SET":
            return None
        answered += 1
        return b":%d\r\n" % answered if answered < 3 else b"!\r\n"

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        assert await link.change(*[("SET", "k", number) for number in range(5)]) == [1, 2, LOST, LOST, LOST]


async def test_a_lost_write_is_ended_in_the_server_before_anybody_reads_back(
    server: Server, link_to: LinkTo, namespace
):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address}, seconds=1)
        await link.change(("SET", namespace, "before"))
        proxy.hold()
        assert await link.change(("SET", namespace, "late")) == [LOST]
        assert await once_it_works(lambda: link.ask(("GET", namespace))) == [b"before"]
        proxy.release()
        for _ in range(20):  # the old connection's bytes are sent on, and nobody takes them
            assert await link.ask(("GET", namespace)) == [b"before"]
        assert server.say("GET", namespace) == b"before"


async def test_writes_that_were_never_sent_wait_for_the_server(link_to: LinkTo):
    with Server() as server:
        link = link_to(server.settings())
        await link.open()
        server.kill()
        writes = [asyncio.create_task(link.change(("INCR", "k"))) for _ in range(50)]
        while link._pace.trouble is None:
            await asyncio.sleep(0.01)
        server.start()
        fates = [fate for [fate] in await asyncio.gather(*writes)]
        assert fates == list(range(1, 51)), "in the order they were handed over"


async def test_a_server_that_restarts_while_nobody_asks_costs_no_answer(link_to: LinkTo):
    with Server() as server:
        link = link_to(server.settings())
        await link.open()
        first = link.facts.run_id
        await link.change(("SET", "k", "v"))
        server.kill()
        server.start()
        assert await link.change(("SET", "k", "w")) == [b"OK"]
        assert link.facts.run_id != first


# --- away, hung, flapping ------------------------------------------------------------------------------------------


async def test_a_server_that_is_away_at_the_start_is_named_and_used_when_it_comes(link_to: LinkTo):
    with Server() as server:
        server.kill()
        link = link_to(server.settings(), seconds=FAILING_SECONDS)
        with pytest.raises(Unavailable, match=rf"redis at {server.address}: .*Connect") as caught:
            await link.open()
        assert caught.value.outcome == "not_applied"
        with pytest.raises(Unavailable):
            await link.change(("SET", "k", "v"))
        server.start()
        await once_it_works(lambda: link.change(("SET", "k", "v")))
        await link.open()
        assert await link.ask(("GET", "k")) == [b"v"]


async def test_a_host_without_an_address_is_named(link_to: LinkTo):
    link = link_to({"storage.redis.endpoint": "no-such-host.invalid:6379"}, seconds=0.5)
    with pytest.raises(Unavailable, match=r"redis at no-such-host\.invalid:6379"):
        await link.open()


async def test_a_server_that_hangs_is_given_up_in_time_and_used_again_when_it_answers(link_to: LinkTo):
    with Server() as server:
        link = link_to(server.settings(), seconds=1)
        await link.change(("SET", "k", "v"))
        server.pause()
        try:
            reads = [link.ask(("GET", "k")) for _ in range(100)]
            answers = await asyncio.gather(link.change(("INCR", "n")), *reads, return_exceptions=True)
            assert answers[0] == [LOST]
            assert {type(answer) for answer in answers[1:]} == {Unavailable}
            with pytest.raises(Unavailable, match=server.address):
                await link.change(("INCR", "m"))
        finally:
            server.resume()
        [lost] = await once_it_works(lambda: link.ask(("GET", "n")))
        assert lost in (None, b"1")
        assert await link.change(("INCR", "m")) == [1], "what could not be sent was not applied later"
        assert await link.ask(("GET", "n")) == [lost], "what was lost stays as it was read back"


async def test_a_server_that_takes_nothing_costs_bounded_memory(link_to: LinkTo):
    with Server() as server:
        link = link_to(server.settings(), seconds=1)
        await link.change(("PING",))
        server.pause()
        try:
            large = b"x" * 1_000_000
            fates = await asyncio.gather(
                *(link.change(("SET", "k", large)) for _ in range(100)), return_exceptions=True
            )
        finally:
            server.resume()
        kinds = Counter("lost" if fate == [LOST] else type(fate).__name__ for fate in fates)
        assert kinds["Busy"] > 0, kinds
        assert kinds["Unavailable"] > 0, "what was not handed to the socket was surely not applied"
        assert kinds["lost"] > 0
        assert kinds.total() == kinds["Busy"] + kinds["Unavailable"] + kinds["lost"]
        assert link._bytes == 0
        assert await once_it_works(lambda: link.change(("SET", "k", "small"))) == [b"OK"]


async def test_while_a_server_is_away_it_is_looked_for_with_pauses_and_not_at_all_when_nobody_asks(
    link_to: LinkTo, server
):
    async with Proxy(server.port) as proxy:
        proxy.hangs_up = True
        link = link_to({"storage.redis.endpoint": proxy.address}, seconds=3)
        calls = [link.ask(("PING",)) for _ in range(200)] + [link.change(("PING",)) for _ in range(200)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unavailable}
        assert 1 <= proxy.accepted <= 40
        before = proxy.accepted
        await asyncio.sleep(1.5)  # longer than the longest pause
        assert proxy.accepted <= before + 1
        proxy.hangs_up = False
        assert await once_it_works(lambda: link.ask(("PING",))) == [b"PONG"]


async def test_a_server_that_breaks_after_every_greeting_is_not_stormed(link_to: LinkTo):
    def answer(command: Said) -> bytes | None:
        return b"!\r\n" if command[0] == b"GET" else None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address}, seconds=3)
        with pytest.raises(Unavailable, match="not Redis's protocol"):
            await link.ask(("GET", "k"))
        assert 1 <= scripted.accepted <= 40


async def test_on_a_flapping_connection_every_write_is_known_or_lost(server: Server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address})
        fates: Counter[str] = Counter()

        async def write() -> None:
            for _ in range(100):
                [fate] = await link.change(("INCR", namespace))
                fates["lost" if fate is LOST else "applied"] += 1

        async def flap() -> None:
            while True:
                await asyncio.sleep(0.02)
                proxy.cut()

        flapping = asyncio.create_task(flap())
        await asyncio.gather(*(write() for _ in range(10)))
        flapping.cancel()
        [count] = await once_it_works(lambda: link.ask(("GET", namespace)))
        assert fates["applied"] <= int(count) <= fates["applied"] + fates["lost"]
        assert fates.total() == 1000


# --- not now -------------------------------------------------------------------------------------------------------


async def test_a_server_that_loads_is_waited_for(link_to: LinkTo):
    slow = {"key_load_delay": 10_000, "loading_process_events_interval_bytes": 1024}
    with Server(save="3600 1000000", rdbcompression="no") as server:
        server.say("EVAL", "for i = 1, 5000 do redis.call('SET', 'k' .. i, string.rep('x', 1100)) end", 0)
        server.shut_down()
        server._options |= slow
        server.start(loaded=False)
        assert server.info()["loading"] == "1"
        with pytest.raises(Unavailable, match="still loading its data"):
            await link_to(server.settings(), seconds=2).open()
        link = link_to(server.settings())
        opening = asyncio.create_task(link.open())
        while link._pace.trouble is None:
            await asyncio.sleep(0.01)
        server.say("CONFIG", "SET", "key-load-delay", 0)
        await opening
        assert await link.ask(("STRLEN", "k5000")) == [1100]


async def test_a_full_server_refuses_and_goes_on_reading(link_to: LinkTo):
    with Server(maxmemory="1mb", maxmemory_policy="noeviction") as server:
        link = link_to(server.settings())
        await link.open()
        [fate] = await link.change(("SET", "k", b"x" * 100_000))
        assert isinstance(fate, Refused)
        error = as_error(fate, link.facts.address)
        assert (fate.code, error.code, error.outcome) == ("OOM", "no_space", "not_applied")
        script = "return redis.call('SET', KEYS[1], ARGV[1])"
        [fate] = await link.change(("EVAL", script, 1, "k", b"x" * 100_000))
        assert isinstance(fate, Refused)
        assert fate.code == "OOM"
        assert await link.ask(("GET", "k")) == [None]
        server.say("CONFIG", "SET", "maxmemory", "0")
        assert await link.change(("SET", "k", "v")) == [b"OK"]


async def test_a_master_that_became_a_replica_takes_writes_again_when_it_is_promoted(link_to: LinkTo):
    with Server() as server, Server() as other:
        link = link_to(server.settings())
        await link.change(("SET", "k", "v"))
        server.say("REPLICAOF", "127.0.0.1", other.port)
        write = asyncio.create_task(link.change(("SET", "k", "w")))
        while link._pace.trouble is None:
            await asyncio.sleep(0.01)
        assert not write.done()
        server.say("REPLICAOF", "NO", "ONE")
        assert await write == [b"OK"]
        assert await link.ask(("GET", "k")) == [b"w"]


async def test_a_replica_is_not_taken_for_a_master(link_to: LinkTo):
    with Server() as server, Server() as other:
        server.say("REPLICAOF", "127.0.0.1", other.port)
        with pytest.raises(Unavailable, match=rf"redis at {server.address}: it is a replica"):
            await link_to(server.settings(), seconds=FAILING_SECONDS).open()


@pytest.mark.parametrize("command", [("SET", "k", "v"), ("EVAL", "return redis.call('SET', KEYS[1], 'v')", 1, "k")])
async def test_a_master_without_its_replicas_is_waited_for(link_to: LinkTo, command):
    with Server() as server:
        link = link_to(server.settings())
        await link.open()
        server.say("CONFIG", "SET", "min-replicas-to-write", 1)
        write = asyncio.create_task(link.change(command))
        assert await link.ask(("GET", "k")) == [None], "reads go on"
        assert not write.done()
        server.say("CONFIG", "SET", "min-replicas-to-write", 0)
        assert (await write)[0] == b"OK"


async def test_a_server_busy_with_a_script_is_waited_for_on_the_same_connection(link_to: LinkTo):
    with Server(lua_time_limit=10) as server:
        async with Proxy(server.port) as proxy:
            link = link_to({"storage.redis.endpoint": proxy.address})
            await link.change(("SET", "k", "v"))
            endless = threading.Thread(target=_endless_script, args=(server,))
            endless.start()
            try:
                await asyncio.to_thread(eventually, lambda: _is_busy(server), "a busy server")
                made = proxy.accepted
                write = asyncio.create_task(link.change(("SET", "k", "w")))
                await asyncio.sleep(0.05)
            finally:
                server.say("SCRIPT", "KILL")
                await asyncio.to_thread(endless.join)
            assert await write == [b"OK"]
            assert proxy.accepted == made


def _endless_script(server: Server) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        server.say("EVAL", "while true do end", 0)


def _is_busy(server: Server) -> bool:
    try:
        server.say("GET", "k")
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


@pytest.mark.parametrize(
    "code",
    ["LOADING x", "BUSY x", "TRYAGAIN x", "CLUSTERDOWN x", "MASTERDOWN x", "NOREPLICAS x", "NOAUTH x", "ASK 1 a:1"],
)
async def test_what_was_refused_for_now_is_sent_again_until_it_is_taken(link_to: LinkTo, code: str):
    left = 3

    def answer(command: Said) -> bytes | None:
        nonlocal left
        if command[0] not in (b"SET", b"GET"):
            return None
        left -= 1
        return f"-{code}\r\n".encode() if left >= 0 else b"+OK\r\n"

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        assert await link.change(("SET", "k", "v")) == [b"OK"]
        assert len(scripted.said) == 4
        left = 1
        assert await link.ask(("GET", "k")) == [b"OK"]


@pytest.fixture
def all_time_is_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "KEPT_FOR_THE_ANSWER", 1.0)


@pytest.mark.usefixtures("all_time_is_for_the_answer")
@pytest.mark.parametrize("code", ["BUSY x", "READONLY x"])
async def test_a_refused_write_is_not_sent_again_when_its_answer_might_come_too_late(link_to: LinkTo, code: str):
    """It would be unknown then, and is surely not applied now."""

    def answer(command: Said) -> bytes | None:
        return f"-{code}\r\n".encode() if command[0] == b"SET" else None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        await once_it_works(lambda: link.change(("PING",)))
        with pytest.raises(Unavailable) as caught:
            await link.change(("SET", "k", "v"))
        assert caught.value.outcome == "not_applied"
        assert scripted.said == [(b"SET", b"k", b"v")]


@pytest.mark.usefixtures("all_time_is_for_the_answer")
async def test_a_write_that_waited_for_a_connection_too_long_is_not_sent(link_to: LinkTo):
    def answer(command: Said) -> bytes | None:
        return b"+OK\r\n" if command[0] == b"SET" else None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        with pytest.raises(Unavailable) as caught:
            await link.change(("SET", "k", "v"))
        assert caught.value.outcome == "not_applied"
        assert scripted.said == []


@pytest.mark.usefixtures("all_time_is_for_the_answer")
async def test_a_script_whose_keys_are_on_their_way_is_not_sent_again_when_its_answer_might_come_too_late(
    link_to: LinkTo,
):
    scripts = (b"EVAL", b"EVALSHA")

    def answer(command: Said) -> bytes | None:
        return b"-ERR Script attempted to access a non local key\r\n" if command[0] in scripts else None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        until = asyncio.get_running_loop().time() + CALL_SECONDS
        send = partial(link.change, until=until)
        await once_it_works(lambda: link.change(("PING",)))
        [fate] = await calling.run(send, link_module.sends_until(until), "commit", b"{n}", [()])
        assert isinstance(fate, Refused)
        assert fate.code == "NOTLOCAL"
        assert len(scripted.said) == 1


async def test_reads_that_work_do_not_hasten_writes_that_are_refused(link_to: LinkTo):
    def answer(command: Said) -> bytes | None:
        return b"-CLUSTERDOWN x\r\n" if command[0] == b"SET" else None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address}, seconds=3)
        write = asyncio.create_task(link.change(("SET", "k", "v")))
        while not write.done():
            await link.ask(("GET", "k"))
        with pytest.raises(Unavailable, match="the cluster is down"):
            await write
        assert scripted.accepted <= 60


async def test_a_batch_of_which_a_part_was_applied_is_not_sent_again(link_to: LinkTo):
    def answer(command: Said) -> bytes | None:
        if command[0] == b"SET":
            return b"+OK\r\n" if command[1] == b"first" else b"-READONLY x\r\n"
        return None

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        fates = await link.change(("SET", "first", 1), ("SET", "second", 2), ("WAIT", 0, 0))
        assert fates == [b"OK", Refused("READONLY", "x"), b"OK"]
        assert len(scripted.said) == 2


async def test_an_answered_wait_does_not_make_a_refused_batch_applied(link_to: LinkTo):
    refusals = 2

    def answer(command: Said) -> bytes | None:
        nonlocal refusals
        if command[0] == b"WAIT":
            return b":0\r\n"
        if command[0] != b"SET":
            return None
        refusals -= 1
        return b"-READONLY x\r\n" if refusals >= 0 else b"+OK\r\n"

    async with Scripted(answer) as scripted:
        link = link_to({"storage.redis.endpoint": scripted.address})
        assert await link.change(("SET", "k", 1), ("WAIT", 0, 0)) == [b"OK", 0]


# --- what cannot be used -------------------------------------------------------------------------------------------


async def test_a_server_that_is_too_old_is_named_with_both_versions(link_to: LinkTo):
    async with Scripted(redis_version="6.0.16") as scripted:
        with pytest.raises(Unavailable, match=r"is version 6\.0\.16; 6\.2 is the oldest"):
            await link_to({"storage.redis.endpoint": scripted.address}).open()


@pytest.mark.parametrize("version", ["6.2.0", "6.10.1", "7.0.0", "8.2"])
async def test_every_newer_server_is_taken(link_to: LinkTo, version: str):
    async with Scripted(redis_version=version) as scripted:
        await link_to({"storage.redis.endpoint": scripted.address}).open()


async def test_a_server_of_another_protocol_is_named(link_to: LinkTo):
    def answer(_: Said) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async with Scripted(answer) as scripted:
        with pytest.raises(Unavailable, match="not Redis's protocol"):
            await link_to({"storage.redis.endpoint": scripted.address}, seconds=FAILING_SECONDS).open()


async def test_a_server_without_room_for_another_client_is_waited_for(link_to: LinkTo):
    with Server(maxclients=2) as server:
        first, second = link_to(server.settings()), link_to(server.settings(), seconds=0.5)
        await first.open()
        await first.change(("SET", "k", "v"))
        with pytest.raises(Unavailable, match=server.address):
            await second.open()
        await first.close()
        await once_it_works(lambda: second.ask(("GET", "k")))


async def test_no_text_of_an_error_shows_what_was_sent(server: Server, link_to: LinkTo):
    link = link_to(server.settings())
    [fate] = await link.ask(("NOSUCHCOMMAND", "user-secret"))
    assert isinstance(fate, Refused)
    error: StateError = as_error(fate, link.facts.address)
    assert "user-secret" not in error.text


async def test_connections_there_are_go_on_while_no_new_one_can_be_made(server: Server, link_to: LinkTo, namespace):
    async with Proxy(server.port) as proxy:
        link = link_to({"storage.redis.endpoint": proxy.address}, seconds=2)
        await link.open()
        proxy.hangs_up = True
        write = asyncio.create_task(link.change(("SET", namespace, "v")))
        made = proxy.accepted
        while not write.done():
            assert await link.ask(("ECHO", "on")) == [b"on"]
        with pytest.raises(Unavailable, match=proxy.address):
            await write
        assert 1 <= proxy.accepted - made <= 40
        proxy.hangs_up = False
        assert await once_it_works(lambda: link.change(("SET", namespace, "v"))) == [b"OK"]
