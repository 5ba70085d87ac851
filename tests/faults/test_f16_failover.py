"""F16: Redis killed, failed over, demoted, full, forgetful: nothing acknowledged is lost, and every refusal is named.

Two daemons share the server, a mixed load goes on, and agents deliver numbered writes through the adapter. Afterwards
all that anybody was told has to have been true.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from statesvc_client import StateStore
from tests.daemon.harness import Client, Daemon, Reply, until
from tests.faults import failovers
from tests.fleet.daemons import a_namespace, daemon, fleet
from tests.fleet.delivery import Delivery
from tests.fleet.proxies import Proxy
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures
from tests.redis.servers import HOST, Cluster, SentinelPair, Server, free_port, wait_for_replica

LOAD = Plan(until_told=True, mixed=8, lockers=3, workers=3, jobs=15, hot=4, cold=30, ttl=2.0)
WRITES = 400
"""Of each agent and each plain client that deliver beside the load."""

ALWAYS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}

SLOW_TO_LOAD: dict[str, Any] = {
    "key_load_delay": 10_000,
    "loading_process_events_interval_bytes": 1024,
    "rdbcompression": "no",
}
"""Every key takes a moment to load, and between two of them the server answers: there is time for it to say LOADING."""

Trouble = Callable[[Race], Awaitable[None]]


def raced(folder: Path, values: Mapping[str, Any], trouble: Trouble, *, epochs: int = 1) -> list[Daemon]:
    """A load and deliveries on two daemons, with trouble on the way; what was said must have been true."""
    with fleet(folder, "redis", values, 2) as daemons:
        paths = [each.socket for each in daemons]
        race, delivery = Race(paths, LOAD), Delivery(paths, WRITES, agents=2, plain=1)

        async def meanwhile() -> None:
            delivering = asyncio.create_task(delivery.run())
            try:
                await race.more(50)
                await trouble(race)
                await race.more(50)
            finally:
                race.end()
                await delivering

        async def all_of_it() -> list[str]:
            await race.run(meanwhile)
            return await delivery.faults()

        undelivered = asyncio.run(all_of_it())
        print("\n".join(figures(race)), dict(race.heard))
        assert undelivered == []
        assert faults(race, epochs=epochs) == []
        assert delivery.epochs == []
        return daemons


def ask(of: Daemon, op: str, **fields: Any) -> Reply:
    with of.connect() as client:
        return client.ask(op, **fields)


def is_answered(of: Daemon, name: str) -> bool:
    """Whether a write succeeds. It may be repeated: a new epoch ends every connection, whatever was applied by then."""
    try:
        return ask(of, "update", jobId=name, job={"status": "QUEUED"}, upsert=True)["success"]
    except ConnectionError:
        return False


def times_said(word: str, *servers: Server) -> int:
    """How often servers have answered with an error, by their own count: what is followed or tried again at once shows
    in no reply of the daemon."""
    counts = (server.info().get(f"errorstat_{word}", "count=0") for server in servers)
    return sum(int(count.removeprefix("count=")) for count in counts)


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_syncs_always_may_be_killed_and_nothing_acknowledged_is_lost(folder: Path):
    with Server(**ALWAYS) as server:

        async def trouble(race: Race) -> None:
            for _ in range(3):
                server.kill()
                await race.more(3, "unavailable")
                server.start()
                await race.more(50)

        raced(folder, server.settings(namespace=a_namespace()), trouble)


def test_a_server_that_keeps_nothing_begins_a_new_epoch_and_everybody_is_told(folder: Path):
    with Server() as server, fleet(folder, "redis", server.settings(namespace=a_namespace()), 2) as daemons:
        before = {ask(each, "hello")["epoch"] for each in daemons}
        assert len(before) == 1
        told: list[tuple[str, str]] = []

        async def agent(watcher: Client) -> None:
            async with StateStore.connect(
                daemons[0].socket, connect_seconds=30, on_epoch=lambda *change: told.append(change)
            ) as state:
                state.create({"uuid": "a"})
                await state.flush(30)
                assert watcher.reply()["event"]["id"] == "a"
                server.kill()
                server.start()
                state.create({"uuid": "b"})
                await state.flush(30)
                await state.until(lambda: bool(told), 30)

        with daemons[1].connect() as watcher:
            cursor = watcher.ask("watch", requestId="w")["cursor"]
            asyncio.run(agent(watcher))
            assert watcher.is_closed()  # whoever was connected is to say hello again, and is told by its answer
            assert ask(daemons[1], "watch", after=cursor)["code"] == "gone"
        after = {ask(each, "hello")["epoch"] for each in daemons}
        assert len(after) == 1
        assert after.isdisjoint(before)
        assert told == [(before.pop(), after.pop())]
        assert ask(daemons[1], "get", jobId="b")["success"]


def test_a_server_that_may_have_lost_something_begins_a_new_epoch_too(folder: Path):
    """What was acknowledged was with the operating system; whether all of it was kept cannot be shown."""
    with (
        Server(appendonly="yes", appendfsync="everysec") as server,
        daemon(folder, "redis", server.settings(namespace=a_namespace())).serving() as one,
    ):
        before = ask(one, "health")
        assert before["durability"] == "os"
        assert ask(one, "create", job={"uuid": "a"})["success"]
        server.kill()
        server.start()
        until(lambda: is_answered(one, "b"), "a write to succeed")
        assert ask(one, "health")["epoch"] != before["epoch"]


# --- failed over -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["killed", "stopped", "split"], id="three"),
        pytest.param(list(failovers.FAULTS), id="every way", marks=pytest.mark.long),
    ],
)
def test_failovers_with_replicas_waited_for_lose_nothing_acknowledged(folder: Path, kinds: list[str]):
    """Wherever there are two masters for a moment, what the old one takes is acknowledged to nobody and told no
    watcher; a plain read may see it, though it will not last."""
    result = failovers.run(folder, kinds)
    print(result.figures())
    assert result.broken == []
    assert (result.lost, result.twice, result.epochs) == (0, 0, 0)
    assert [each.kind for each in result.rounds] == kinds
    assert all(each.acknowledged >= failovers.MORE_WRITES for each in result.rounds)


def test_the_many_failovers_of_a_run_are_every_kind_as_often_as_the_others():
    kinds = failovers.schedule(20, random.Random(1))
    assert {kinds.count(kind) for kind in failovers.FAULTS} <= {3, 4}
    assert failovers.schedule(20, random.Random(1)) == kinds


def _two_daemons_lose(folder: Path, values: Mapping[str, Any], lose: Callable[[Callable[[], None]], None]) -> None:
    """What `lose` does takes acknowledged writes with it; it is given what acknowledges one more. Everybody is told."""
    with fleet(folder, "redis", values, 2) as daemons:
        before = {ask(each, "hello")["epoch"] for each in daemons}
        names = iter(range(100))
        tokens: list[int] = []

        def acknowledge() -> None:
            job = {"uuid": f"lost-{next(names)}"}
            reply = until(lambda: _applied(daemons[0], job), "a write to be acknowledged")
            assert reply["job"]["revision"] == 1
            tokens.append(_token_of_lock(daemons[0], "a worker"))

        told: list[tuple[str, str]] = []

        async def agent() -> None:
            async with StateStore.connect(
                daemons[1].socket, connect_seconds=30, on_epoch=lambda *change: told.append(change)
            ) as state:
                state.create({"uuid": "first"})
                await state.flush(30)
                lose(acknowledge)  # here, in the main thread, because it starts servers
                await state.until(lambda: bool(told), 60)

        with daemons[1].connect() as watcher:
            cursor = watcher.ask("watch", requestId="w")["cursor"]
            asyncio.run(agent())
            assert watcher.is_closed()
        for each in daemons:
            until(partial(_is_in_another_epoch, each, before), "the new epoch")
        assert ask(daemons[1], "watch", after=cursor)["code"] == "gone"
        after = {ask(each, "hello")["epoch"] for each in daemons}
        assert told == [(before.pop(), after.pop())]
        assert after == set()
        until(lambda: ask(daemons[1], "get", jobId="lost-0").get("code") == "not_found", "what is left to be read")
        _expect_fenced(daemons[1], max(tokens))


def _token_of_lock(one: Daemon, holder: str) -> int:
    def claimed() -> list[dict[str, Any]] | None:
        return ask(one, "claim", kind="lock", id="the lock", holder=holder, ttl=60).get("records")

    (lock,) = until(claimed, "the lock to be had")
    token: int = lock["lease"]["token"]
    return token


def _expect_fenced(one: Daemon, lost: int) -> None:
    """Whoever holds a lease that was lost must not pass for the one that has it now."""
    assert _token_of_lock(one, "another worker") > lost
    assert ask(one, "update", kind="lock", id="the lock", token=lost)["code"] == "lease_lost"


def _is_in_another_epoch(one: Daemon, before: Collection[str]) -> bool:
    try:
        reply = ask(one, "hello")
    except ConnectionError:  # ended with the epoch, before it was asked anything
        return False
    return "epoch" in reply and reply["epoch"] not in before


def _applied(one: Daemon, job: dict[str, Any]) -> Reply | None:
    reply = ask(one, "create", job=job)
    return reply if reply["success"] else None


@pytest.mark.slow
def test_a_replica_that_lagged_and_was_promoted_begins_a_new_epoch_and_everybody_is_told(folder: Path):
    """One replica is waited for, and the other one takes over: what it lacks is lost, and the daemon that acknowledged
    it says so, though everything else would prove that nothing is."""
    with Server() as master, Server() as waited_for, Server() as lagging, Proxy(master.port) as line:
        for replica, port in ((waited_for, master.port), (lagging, line.port)):
            replica.say("REPLICAOF", HOST, port)
            wait_for_replica(replica)
        endpoints = ",".join(each.address for each in (master, waited_for, lagging))
        values = master.settings(namespace=a_namespace(), wait_replicas=1, endpoint=endpoints)

        def lose(acknowledge: Callable[[], None]) -> None:
            line.hang()
            acknowledge()
            line.go_away()
            master.kill()
            lagging.say("REPLICAOF", "NO", "ONE")
            waited_for.say("REPLICAOF", HOST, lagging.port)
            wait_for_replica(waited_for)

        _two_daemons_lose(folder, values, lose)


@pytest.mark.slow
def test_a_master_that_came_back_empty_before_anybody_noticed_begins_a_new_epoch_and_everybody_is_told(folder: Path):
    """Sentinel sees no failure, and the replica throws away what it has: waiting for it was no help."""
    with SentinelPair(down_after_ms=60_000) as pair:
        replica = pair.replica

        def lose(acknowledge: Callable[[], None]) -> None:
            acknowledge()
            pair.master.kill()
            pair.first.start()
            wait_for_replica(replica)

        _two_daemons_lose(folder, pair.settings(namespace=a_namespace(), wait_replicas=1), lose)


def test_a_server_that_came_back_empty_is_not_taken_for_new_once_a_daemon_meets_it_that_knows_better(folder: Path):
    """That one stood still, so one that had never been there found the server first."""
    values = {"namespace": a_namespace(), "timeout_seconds": 2.0}
    with Server() as server, fleet(folder, "redis", server.settings(**values), 2) as (knowing, another):
        epoch, lost = ask(knowing, "hello")["epoch"], _token_of_lock(knowing, "a worker")
        another.kill()
        knowing.signal(signal.SIGSTOP)
        try:
            server.kill()
            server.start()
            another.serving()
            taken_for_new = until(lambda: ask(another, "hello").get("epoch"), "the server to be found")
        finally:
            knowing.signal(signal.SIGCONT)
        for each in (knowing, another):
            until(partial(_is_in_another_epoch, each, {epoch, taken_for_new}), "the new epoch")
        assert ask(knowing, "hello")["epoch"] == ask(another, "hello")["epoch"]
        _expect_fenced(another, lost)


ASKED_OF_A_LOST_STORE: tuple[dict[str, Any], ...] = (
    {"op": "get", "kind": "kv", "id": "a"},
    {"op": "list", "kind": "kv"},
    {"op": "stats", "kind": "kv"},
    {"op": "history", "kind": "kv", "id": "a"},
    {"op": "update", "kind": "kv", "id": "a", "upsert": True, "inc": {"n": 1}},
    {"op": "claim", "kind": "lock", "id": "a"},
    {"op": "sync", "kind": "kv", "records": [{"id": "a", "n": 7}]},
)


def test_nobody_who_was_told_of_the_old_epoch_is_told_anything_of_a_store_that_lost_it(folder: Path):
    """A record that is missing, a counter that begins anew: as long as nobody heard of the new epoch, that is wrong."""
    with Server() as server, fleet(folder, "redis", server.settings(namespace=a_namespace()), 1) as (one,):
        for asked in ASKED_OF_A_LOST_STORE:
            ask(one, "update", kind="kv", id="a", upsert=True, inc={"n": 1})
            with one.connect() as client:
                epoch = client.ask("hello", client=f"agent {asked['op']}")["epoch"]
                server.say("FLUSHALL")
                with suppress(ConnectionError):  # it is ended, perhaps before it has sent anything
                    client.send(*[asked] * 5)
                    assert client.replies() == []
            assert ask(one, "hello")["epoch"] != epoch


# --- what a server may say -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scripts_that_the_server_forgot_are_given_to_it_again(folder: Path):
    with Server(**ALWAYS) as server:

        async def trouble(race: Race) -> None:
            before = times_said("NOSCRIPT", server)
            for _ in range(20):
                server.say("SCRIPT", "FLUSH")
                await race.more(20)
            assert times_said("NOSCRIPT", server) >= before + 20
            assert race.heard["unavailable"] == race.heard["internal"] == 0

        raced(folder, server.settings(namespace=a_namespace()), trouble)


@pytest.mark.slow
def test_a_full_server_is_no_space_until_there_is_some(folder: Path):
    with Server(**ALWAYS) as server:

        async def trouble(race: Race) -> None:
            server.say("CONFIG", "SET", "maxmemory", "1")
            await race.more(10, "no_space")
            server.say("CONFIG", "SET", "maxmemory", "0")
            await race.more(100)

        raced(folder, server.settings(namespace=a_namespace()), trouble)


@pytest.fixture
def values() -> dict[str, Any]:
    return {"namespace": a_namespace(), "timeout_seconds": 2.0}


def test_a_full_server_is_named_refuses_writes_and_goes_on_reading(folder: Path, values: dict[str, Any]):
    with Server() as server, daemon(folder, "redis", server.settings(**values)).serving() as one:
        assert ask(one, "create", job={"uuid": "a"})["success"]
        server.say("CONFIG", "SET", "maxmemory", "1")
        refused = ask(one, "create", job={"uuid": "b"})
        assert (refused["code"], refused["outcome"]) == ("no_space", "not_applied")
        assert "memory is full" in refused["error"]
        assert ask(one, "get", jobId="a")["success"]
        checks = {check["name"]: check["verdict"] for check in ask(one, "health")["checks"]}
        assert checks["commits"] == "fail"
        server.say("CONFIG", "SET", "maxmemory", "0")
        assert ask(one, "create", job={"uuid": "b"})["success"]
        checks = {check["name"]: check["verdict"] for check in ask(one, "health")["checks"]}
        assert checks["commits"] == "ok"


def test_a_server_that_starts_again_and_is_still_full_goes_on_reading(folder: Path, values: dict[str, Any]):
    with Server(**ALWAYS) as server, daemon(folder, "redis", server.settings(**values)).serving() as one:
        assert ask(one, "create", job={"uuid": "a"})["success"]
        epoch = ask(one, "hello")["epoch"]
        server._options |= {"maxmemory": 1}
        server.kill()
        server.start()
        until(lambda: ask(one, "get", jobId="a")["success"], "a read to succeed")
        assert ask(one, "list")["success"]
        refused = ask(one, "create", job={"uuid": "b"})
        assert (refused["code"], refused["outcome"]) == ("no_space", "not_applied")
        assert ask(one, "hello")["epoch"] == epoch
        server.say("CONFIG", "SET", "maxmemory", "0")
        assert ask(one, "create", job={"uuid": "b"})["success"]


def test_a_server_that_became_a_replica_takes_no_writes_until_it_is_a_master_again(
    folder: Path, values: dict[str, Any]
):
    """A write is held in the server meanwhile: else the daemon would have heard of it in time, and sent nothing."""
    with (
        Server() as server,
        daemon(folder, "redis", server.settings(**values)).serving() as one,
        ThreadPoolExecutor(1) as another,
    ):
        assert ask(one, "create", job={"uuid": "a"})["success"]
        server.say("CLIENT", "PAUSE", 60_000, "WRITE")
        writing = another.submit(ask, one, "create", job={"uuid": "b"})
        until(lambda: _holds_a_write(server), "the write to be in the server")
        server.say("REPLICAOF", HOST, free_port())
        server.say("CLIENT", "UNPAUSE")
        refused = writing.result(30)
        assert times_said("READONLY", server) > 0
        assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
        assert "it is a replica" in refused["error"]
        assert ask(one, "ping")["success"]
        server.say("REPLICAOF", "NO", "ONE")
        until(lambda: is_answered(one, "c"), "a write to succeed")
        assert ask(one, "get", jobId="b")["code"] == "not_found"


def _holds_a_write(server: Server) -> bool:
    clients = server.say("CLIENT", "LIST").decode().splitlines()
    return any("flags=b " in client and "cmd=eval" in client for client in clients)


@pytest.mark.slow
def test_a_server_that_still_loads_is_waited_for(folder: Path, values: dict[str, Any]):
    with (
        Server(**ALWAYS, **SLOW_TO_LOAD) as server,
        daemon(folder, "redis", server.settings(**values)).serving() as one,
    ):
        assert ask(one, "create", job={"uuid": "a"})["success"]
        server.say("EVAL", "for i = 1, 5000 do redis.call('SET', 'k' .. i, string.rep('x', 1100)) end", 0)
        server.say("BGREWRITEAOF")  # only while it reads such a file does it answer anybody
        until(lambda: _is_rewritten(server), "the server's file")
        server.kill()
        server.start(loaded=False)
        refused = ask(one, "update", jobId="a", inc={"n": 1})
        assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
        assert "it is still loading its data" in refused["error"]
        assert ask(one, "health")["ready"] is False
        assert times_said("LOADING", server) > 0
        server.say("CONFIG", "SET", "key-load-delay", 0)
        until(lambda: ask(one, "create", job={"uuid": "new"})["success"], "a write to succeed")
        assert ask(one, "get", jobId="a")["job"]["revision"] == 1


def _is_rewritten(server: Server) -> bool:
    info = server.info()
    return info["aof_rewrite_in_progress"] == info["aof_rewrite_scheduled"] == "0"


def test_a_server_busy_with_somebody_elses_script_is_waited_for_until_it_can_answer(
    folder: Path, values: dict[str, Any]
):
    with (
        Server(lua_time_limit=20) as server,
        daemon(folder, "redis", server.settings(**values)).serving() as one,
        ThreadPoolExecutor(1) as another,
    ):
        assert ask(one, "create", job={"uuid": "a"})["success"]
        spinning = another.submit(server.say, "EVAL", "while true do end", 0)
        until(lambda: _is_busy(server), "the server to say BUSY")
        refused = ask(one, "create", job={"uuid": "b"})
        assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
        assert "busy with a script" in refused["error"]
        assert ask(one, "ping")["success"]
        server.say("SCRIPT", "KILL")
        assert isinstance(spinning.exception(30), redis.ResponseError)
        until(lambda: ask(one, "create", job={"uuid": "c"})["success"], "a write to succeed")
        assert ask(one, "get", jobId="b")["code"] == "not_found"


def _is_busy(server: Server) -> bool:
    try:
        server.say("PING")
    except redis.ResponseError as error:
        return "BUSY" in str(error) or error.status_code == "BUSY"
    return False


def test_a_server_that_cannot_save_is_named_refuses_writes_and_goes_on_reading(folder: Path, values: dict[str, Any]):
    with Server() as server, daemon(folder, "redis", server.settings(**values)).serving() as one:
        assert ask(one, "create", job={"uuid": "a"})["success"]
        server.say("CONFIG", "SET", "save", "3600 100000")
        file = server.folder / "dump.rdb"
        file.mkdir()  # where it would put its data
        (file / "in the way").touch()
        server.say("BGSAVE")
        until(lambda: server.info()["rdb_last_bgsave_status"] == "err", "the server to fail")
        refused = ask(one, "create", job={"uuid": "b"})
        assert (refused["code"], refused["outcome"]) == ("no_space", "not_applied")
        assert "cannot save to its disk" in refused["error"]
        assert ask(one, "get", jobId="a")["success"]
        (file / "in the way").unlink()
        file.rmdir()
        server.say("BGSAVE")
        until(lambda: ask(one, "create", job={"uuid": "b"})["success"], "a write to succeed")


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_that_is_down_is_unavailable_and_served_again_when_it_is_whole(folder: Path, values: dict[str, Any]):
    with Cluster() as cluster:
        namespace = values["namespace"]
        with daemon(folder, "redis", cluster.settings(**values)).serving() as one:
            assert ask(one, "create", job={"uuid": "a"})["success"]
            other = cluster.other_than(cluster.master_of(namespace))
            other.kill()
            cluster.wait_until_down()
            refused = ask(one, "create", job={"uuid": "b"})
            assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
            assert "the cluster is down" in refused["error"]
            assert ask(one, "health")["ready"] is False
            other.start()
            cluster.wait_until_ok()
            until(lambda: ask(one, "create", job={"uuid": "b"})["success"], "a write to succeed")
            assert ask(one, "get", jobId="a")["success"]
            assert ask(one, "health")["ready"] is True


@pytest.mark.slow
def test_everything_is_delivered_once_while_the_namespace_moves_to_another_master(folder: Path):
    """Nothing is served while a slot moves; behind it begins a new epoch, for who can tell what the other node had."""
    namespace = a_namespace()
    with Cluster() as cluster, fleet(folder, "redis", cluster.settings(namespace=namespace), 2) as daemons:
        (before,) = {ask(each, "hello")["epoch"] for each in daemons}
        delivery = Delivery([each.socket for each in daemons], WRITES)

        async def move() -> None:
            for _ in range(2):
                await until_sent(delivery, 100)
                target = cluster.other_than(cluster.master_of(namespace))
                source = cluster.begin_move(namespace, target)
                while cluster.move_keys(namespace, source, target, most=20):
                    await asyncio.sleep(0)
                cluster.finish_move(namespace, target)

        async def all_of_it() -> list[str]:
            await asyncio.gather(delivery.run(), move())
            return await delivery.faults()

        assert asyncio.run(all_of_it()) == []
        assert times_said("MOVED", *cluster.masters) > 0
        (after,) = {ask(each, "hello")["epoch"] for each in daemons}
        assert {was for was, _ in delivery.epochs} >= {before}
        assert {now for _, now in delivery.epochs} >= {after}
        assert before not in {now for _, now in delivery.epochs}


async def until_sent(delivery: Delivery, more: int) -> None:
    """So many more writes, or all there are."""
    goal = delivery.sent + more
    while delivery.sent < goal and not delivery.is_over:
        await asyncio.sleep(0.005)
