"""The epoch holds exactly as long as it can be shown that nothing acknowledged was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest

from statesvc.backends.epoch_names import token_floor
from statesvc.backends.port import LogKept, Query
from statesvc.backends.redis import commits
from statesvc.backends.redis.durability import durability_of
from statesvc.backends.redis.epochs import Trust, unproven
from statesvc.backends.redis.facts import Facts
from statesvc_client.errors import StateError, Unavailable
from tests.engines.rows import after, born, fill, pieces, row
from tests.redis.conftest import once_it_works
from tests.redis.engines import opened
from tests.redis.servers import SentinelPair, Server, wait_for_replica

NONE = "0" * 40


def facts(**values: Any) -> Facts:
    return Facts(**{"address": "a", "version": "7.2.4", "run_id": "r1", "replid": "p1", "replid2": NONE, **values})


@pytest.mark.parametrize(
    ("met", "trust", "proven"),
    [
        (facts(), Trust(), True),
        # The same process; nobody replicated for a while, and the id of the stream was given up.
        (facts(replid="p2"), Trust(), True),
        # The same process, which had followed another in between.
        (facts(replid="p2", replid2="px"), Trust(), False),
        (facts(run_id="r2", replid="p2", replid2="p1"), Trust(), False),
        (facts(run_id="r2", replid="p2", replid2="p1"), Trust(wait_replicas=1), True),
        (facts(run_id="r2", replid="p2", replid2="px"), Trust(wait_replicas=1), False),
        (facts(run_id="r2", replid="p2", replid2="p1", aof=True, fsync="always"), Trust(), False),
        (facts(run_id="r2", replid="p2"), Trust(), False),
        (facts(run_id="r2", replid="p2", aof=True, fsync="everysec"), Trust(), False),
        (facts(run_id="r2", replid="p2", aof=False, fsync="always"), Trust(), False),
        (facts(run_id="r2", replid="p2", aof=True, fsync="always"), Trust(), True),
        (facts(run_id="r2", replid="p2", aof=True, fsync="always"), Trust(fixed=False), False),
        (facts(run_id="r2", replid="p2", aof=True, fsync="always", cluster=True), Trust(), False),
        (facts(run_id="r2", replid="p2", aof=True, fsync="always"), Trust(durability="os"), False),
        (facts(run_id="r2", replid="p2"), Trust(durability="disk"), True),
        (facts(run_id="r2", replid="p2", cluster=True), Trust(durability="disk"), False),
        (facts(run_id="r2", replid="p2", cluster=True), Trust(durability="replicated"), True),
    ],
)
def test_what_is_proven_and_what_is_not(met: Facts, trust: Trust, proven: bool):
    assert (unproven("r1 p1", met, trust) is None) == proven


@pytest.mark.parametrize(
    ("met", "trust", "level"),
    [
        (facts(), Trust(), "memory"),
        (facts(aof=False, fsync="always"), Trust(), "memory"),
        (facts(aof=True, fsync="everysec"), Trust(), "os"),
        (facts(aof=True, fsync="no"), Trust(), "os"),
        (facts(aof=True), Trust(), "os"),
        (facts(aof=True, fsync="always"), Trust(), "disk"),
        (facts(aof=True, fsync="always"), Trust(wait_replicas=1), "replicated"),
        (facts(), Trust(durability="disk"), "disk"),
    ],
)
def test_durability_is_the_lowest_level_that_can_be_shown(met: Facts, trust: Trust, level: str):
    assert durability_of(met, trust) == level


class Told:
    """Counts how often an engine says that it began anew."""

    def __init__(self, engine: Any) -> None:
        self.times = 0
        engine.began_anew = self._count

    def _count(self) -> None:
        self.times += 1


async def test_a_connection_that_is_lost_changes_nothing(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        told, epoch = Told(engine), engine.epoch
        await fill(engine, [row("a")])
        server.say("CLIENT", "KILL", "TYPE", "normal")
        await fill(engine, [row("b")])
        assert (engine.epoch, told.times) == (epoch, 0)


async def test_a_server_that_forgot_everything_begins_a_new_epoch(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            told, epoch = Told(engine), engine.epoch
            assert engine.durability == "memory"
            await fill(engine, [row("a")])
            server.kill()
            server.start()
            assert await engine.get([("job", "a")]) == [None]
            assert engine.epoch != epoch
            assert told.times == 1
            assert await engine.commit([born("a")]) == ["applied"]
            assert await engine.position() == "1"


async def test_a_server_that_is_emptied_while_it_runs_begins_a_new_epoch(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine, opened(server, namespace) as other:
            told, epoch = Told(engine), engine.epoch
            (a,) = await fill(engine, [row("a")])
            server.say("FLUSHALL")
            assert await engine.commit([(after(a),)]) == ["conflict"]
            assert engine.epoch != epoch
            assert told.times == 1
            assert await engine.commit([born("a")]) == ["applied"]
            assert await other.get([("job", "a")]) == [row("a")]
            assert other.epoch == engine.epoch


async def test_a_daemon_that_knows_what_was_lost_does_not_go_along_with_one_that_knows_nothing(namespace: str):
    """Which found the server first, and took it for a new one: tokens would begin at 1 again."""
    with Server() as server:
        async with opened(server, namespace) as knowing, opened(server, namespace) as idle:
            told, epoch = Told(knowing), knowing.epoch
            await fill(knowing, [row("a")])
            server.kill()
            server.start()
            async with opened(server, namespace) as new:
                taken_for_new = new.epoch
                assert token_floor(taken_for_new) == 0
                await fill(new, [row("b")])
                assert await knowing.get([("job", "a"), ("job", "b")]) == [None, row("b")]
                assert knowing.epoch not in (epoch, taken_for_new)
                assert token_floor(knowing.epoch) > 0
                assert told.times == 1
                await asyncio.gather(new.ping(), idle.ping())
                assert new.epoch == idle.epoch == knowing.epoch


async def test_a_server_emptied_while_it_runs_and_taken_for_a_new_one_begins_a_new_epoch(namespace: str):
    """There is no other server to be met: the epoch alone says that the one that was known is gone."""
    with Server() as server:
        async with opened(server, namespace) as knowing:
            (a,) = await fill(knowing, [row("a")])
            server.say("FLUSHALL")
            async with opened(server, namespace) as new:
                assert token_floor(new.epoch) == 0
                assert await knowing.commit([(after(a),)]) == ["conflict"]
                assert token_floor(knowing.epoch) > 0


async def test_a_daemon_that_knows_what_was_lost_and_founds_too_late_does_not_go_along_either(namespace: str):
    """It saw that nothing was there, and so did one that knows nothing, which was quicker."""
    with Server() as server:
        async with opened(server, namespace) as knowing, AsyncExitStack() as others:
            await fill(knowing, [row("a")])
            server.say("FLUSHALL")
            taken_for_new: list[str] = []

            async def overtaken(*commands: Any) -> list[Any]:
                replies = await knowing._link.ask(*commands)
                if not taken_for_new:
                    taken_for_new.append((await others.enter_async_context(opened(server, namespace))).epoch)
                return replies

            await knowing._namespace.judge.judge(lambda: knowing._link.facts, overtaken)
            assert token_floor(knowing.epoch) > token_floor(taken_for_new[0]) == 0


async def test_a_new_epoch_is_above_the_one_that_was_known_also_where_the_clock_was_set_back(
    namespace: str, monkeypatch: pytest.MonkeyPatch
):
    with Server() as server:
        async with opened(server, namespace) as knowing, AsyncExitStack() as others:
            await knowing.load(pieces())
            floor = token_floor(knowing.epoch)
            monkeypatch.setattr(time, "time_ns", lambda: 0)
            server.say("FLUSHALL")
            new = await others.enter_async_context(opened(server, namespace))
            await knowing.ping()
            assert token_floor(knowing.epoch) > floor > token_floor(new.epoch) == 0


async def test_however_many_reads_meet_a_new_epoch_all_of_them_are_answered(namespace: str):
    """Each looks by itself what holds, and all of them see the same."""
    with Server() as server:
        async with opened(server, namespace) as one, opened(server, namespace) as other:
            (a,) = await fill(one, [row("a")])
            epoch = other.epoch
            await one.load(pieces(a))
            assert other.epoch == epoch
            found = await asyncio.gather(*(other.query(Query(kind="job", limit=10)) for _ in range(100)))
            assert found == [[a]] * 100
            assert other.epoch == one.epoch != epoch


async def test_a_server_that_takes_over_while_the_epoch_is_looked_at_is_judged_by_what_it_says_itself(namespace: str):
    """By what the one before it said, it would be another one that may lack something."""
    with in_a_row() as (master, replica):
        both = {"endpoint": f"{master.address},{replica.address}"}
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0, **both) as engine:
            told, epoch = Told(engine), engine.epoch
            await fill(engine, [row("a")])
            replica.say("REPLICAOF", "NO", "ONE")
            master.kill()
            await engine._namespace.learn()
            assert (engine.epoch, told.times) == (epoch, 0)


async def test_a_server_that_syncs_every_write_keeps_its_epoch_through_a_crash(namespace: str):
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine:
            told, epoch = Told(engine), engine.epoch
            assert engine.durability == "disk"
            rows = await fill(engine, [row(f"job-{number}") for number in range(50)])
            server.kill()
            server.start()
            assert await engine.get([each.key for each in rows]) == rows
            assert (engine.epoch, told.times) == (epoch, 0)
        async with opened(server, namespace) as late:
            assert late.epoch == epoch


async def test_a_server_that_syncs_every_write_and_lacks_one_begins_a_new_epoch(namespace: str):
    """The daemon's own newest write counts for more than what the server says of itself."""
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as engine:
            told, epoch = Told(engine), engine.epoch
            rows = await fill(engine, [row("a")])
            kept = {file: file.read_bytes() for file in server.folder.rglob("*.aof*") if file.is_file()}
            await fill(engine, [row("b")])
            server.kill()
            for file, content in kept.items():
                file.write_bytes(content)
            server.start()
            assert await engine.get([("job", "a"), ("job", "b")]) == [rows[0], None]
            assert engine.epoch != epoch
            assert told.times == 1


async def test_a_server_that_may_have_lost_the_last_second_begins_a_new_epoch(namespace: str):
    with Server(appendonly="yes", appendfsync="everysec") as server:
        async with opened(server, namespace) as engine:
            told, epoch = Told(engine), engine.epoch
            assert engine.durability == "os"
            rows = await fill(engine, [row("a")])
            server.shut_down()
            server.start()
            assert await engine.get([("job", "a")]) == rows
            assert engine.epoch != epoch
            assert told.times == 1
            assert await engine.commit([(after(rows[0]),)]) == ["applied"]


async def test_daemons_agree_on_one_new_epoch_and_each_is_told_once(namespace: str):
    with Server(appendonly="yes", appendfsync="everysec") as server:
        async with (
            opened(server, namespace) as one,
            opened(server, namespace) as two,
            opened(server, namespace) as three,
        ):
            engines = [one, two, three]
            told = [Told(engine) for engine in engines]
            await fill(one, [row("a")])
            server.shut_down()
            server.start()
            await asyncio.gather(*(engine.ping() for engine in engines))
            assert len({engine.epoch for engine in engines}) == 1
            assert [each.times for each in told] == [1, 1, 1]


async def test_a_daemon_that_wrote_nothing_for_long_is_no_reason_for_a_new_epoch(namespace: str):
    """Its newest entry was cut meanwhile: nothing speaks against a server that is proven."""
    with Server(appendonly="yes", appendfsync="always") as server:
        async with opened(server, namespace) as idle, opened(server, namespace) as busy:
            epoch = idle.epoch
            await fill(idle, [row("a")])
            await fill(busy, [row("b")])
            while await busy.compact(LogKept(since=1 << 60, most_bytes=1 << 40)):
                pass
            server.kill()
            server.start()
            await asyncio.gather(idle.ping(), busy.ping())
            assert idle.epoch == busy.epoch == epoch


@pytest.mark.parametrize("wait_replicas", [0, 1])
async def test_a_failover_keeps_the_epoch_only_where_replicas_were_waited_for(namespace: str, wait_replicas: int):
    with SentinelPair() as pair:
        async with opened(pair, namespace, wait_replicas=wait_replicas, wait_seconds=30.0) as engine:
            told, epoch = Told(engine), engine.epoch
            rows = await fill(engine, [row(f"job-{number}") for number in range(20)])
            if not wait_replicas:  # everything is there, but that is luck
                pair.first.say("WAIT", 1, 10_000)
            await asyncio.to_thread(lambda: pair.wait_for_failover(pair.kill_master()))
            [found] = await once_it_works(lambda: as_list(engine.query(Query(kind="job", limit=100))))
            assert len(found) == len(rows)
            assert (engine.epoch == epoch) == bool(wait_replicas)
            assert told.times == int(not wait_replicas)


async def as_list(answer: Any) -> list[Any]:
    return [await answer]


# --- replicas --------------------------------------------------------------------------------------------------------


async def test_a_write_that_too_few_replicas_have_is_unknown_and_may_be_assured_later(namespace: str):
    with Server() as master, Server() as replica:
        replica.say("REPLICAOF", "127.0.0.1", master.port)
        wait_for_replica(replica)
        async with opened(master, namespace, wait_replicas=1, wait_seconds=0.05) as engine:
            assert engine.durability == "replicated"
            replica.pause()
            with pytest.raises(Unavailable, match="0 of 1 replicas had it within 50 ms") as unsure:
                await engine.commit([born("a")])
            assert unsure.value.outcome == "unknown"
            assert await engine.get([("job", "a")]) == [row("a")], "it can be read, and may yet be lost"
            with pytest.raises(Unavailable, match="0 of 1 replicas"):
                await engine.assure()
            replica.resume()
            await once_it_works(lambda: as_list(engine.assure()))
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0) as patient:
            assert await patient.commit([born("b")]) == ["applied"]


async def test_what_cannot_be_assured_because_the_server_is_away_is_unknown(namespace: str):
    """It was read, so nobody may say that it is not there."""
    with Server() as server:
        async with opened(server, namespace, wait_replicas=1, timeout_seconds=1.0) as engine:
            server.kill()
            with pytest.raises(Unavailable) as unsure:
                await engine.assure()
            assert unsure.value.outcome == "unknown"


@contextmanager
def in_a_row() -> Iterator[tuple[Server, Server]]:
    """A master and its replica, which has one itself: enough to be waited for, should it take over."""
    with Server() as master, Server() as replica, Server() as behind:
        replica.say("REPLICAOF", "127.0.0.1", master.port)
        behind.say("REPLICAOF", "127.0.0.1", replica.port)
        wait_for_replica(replica)
        wait_for_replica(behind)
        yield master, replica


async def test_what_was_read_from_one_server_is_not_assured_by_the_next(namespace: str):
    """The one that took over has replicas enough, and lacks what was read before."""
    with in_a_row() as (master, replica):
        both = {"endpoint": f"{master.address},{replica.address}"}
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0, **both) as engine:
            await fill(engine, [row("a")])
            replica.say("REPLICAOF", "NO", "ONE")
            async with opened(master, namespace) as other:
                await fill(other, [row("lost")])
            epoch, server = engine.epoch, engine.server
            assert await engine.get([("job", "lost")]) == [row("lost")]
            master.kill()
            with pytest.raises(Unavailable, match="took over") as unsure:
                await engine.assure(server)
            assert unsure.value.outcome == "unknown"
            assert engine.epoch == epoch
            server = engine.server
            assert await engine.get([("job", "a"), ("job", "lost")]) == [row("a"), None]
            await engine.assure(server)


async def test_calls_sent_again_elsewhere_do_not_assure_those_that_went_before(
    namespace: str, monkeypatch: pytest.MonkeyPatch
):
    """The server forgets the script between two calls that were sent at once, and is gone when the second comes again:
    the one that took over has replicas enough, and lacks what the first wrote."""
    monkeypatch.setattr(commits, "CALL_UNITS", 1)
    with in_a_row() as (master, replica):
        both = {"endpoint": f"{master.address},{replica.address}"}
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0, **both) as engine:
            await fill(engine, [row("a")])
            replica.say("REPLICAOF", "NO", "ONE")
            change = engine._link.change

            async def forgetful(*commands: Any, until: float) -> list[Any]:
                if len(commands) == 2:
                    return await change(*commands, until=until)
                one, two, _ = commands
                first, waited, _, second = await change(one, ("WAIT", 1, 1), ("SCRIPT", "FLUSH"), two, until=until)
                master.kill()
                return [first, second, waited]

            monkeypatch.setattr(engine._link, "change", forgetful)
            with pytest.raises(Unavailable, match="0 of 1 replicas") as unsure:
                await engine.commit([born("lost"), born("b")])
            assert unsure.value.outcome == "unknown"
            assert await engine.get([("job", "lost"), ("job", "b")]) == [None, row("b")]


async def test_a_refused_unit_needs_no_replica(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as plain:
            await fill(plain, [row("a")])
        async with opened(server, namespace, wait_replicas=1, wait_seconds=0.05) as engine:
            assert await engine.commit([born("a", uid="late")]) == ["conflict"]
            with pytest.raises(StateError):
                await engine.commit([born("b")])


async def test_an_entry_that_a_failover_could_undo_is_told_nobody(namespace: str):
    with Server() as master, Server() as replica:
        replica.say("REPLICAOF", "127.0.0.1", master.port)
        wait_for_replica(replica)
        async with opened(master, namespace, wait_replicas=1, wait_seconds=30.0) as engine:
            await fill(engine, [row("a")])
            cursor = await engine.position()
        async with opened(master, namespace, wait_replicas=1, wait_seconds=0.05) as engine:
            assert await engine.position() == cursor
            replica.pause()
            with pytest.raises(Unavailable):
                await engine.commit([born("b")])
            for call in (engine.position(), engine.read_log(cursor, 10), engine.read_log("", 10)):
                with pytest.raises(Unavailable, match="0 of 1 replicas"):
                    await call
            replica.resume()
            assert [entry.row.id for entry in await once_it_works(lambda: engine.read_log(cursor, 10))] == ["b"]
            assert int(await engine.position()) == int(cursor) + 1
