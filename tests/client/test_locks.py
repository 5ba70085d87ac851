"""Locks and elections: one holder at a time, given back behind the writes made before, taken over when it is gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from statesvc_client import LeaseHeld, LeaseLost, StateStore, blocking
from statesvc_client.errors import BadRequest
from tests.client.conftest import RealDaemon, until_soon

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


def connect_blocking(daemon: RealDaemon, **options: Any) -> blocking.StateStore:
    return blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


async def test_a_lock_has_one_holder_whose_token_grows(daemon: RealDaemon):
    async with connect(daemon, name="one") as one, connect(daemon, name="two") as two:
        async with one.lock("x", info={"why": "test"}) as lock:
            first = lock.token
            assert (lock.holder, lock.held, lock.lost) == ("one", True, False)
            with pytest.raises(LeaseHeld, match="held by one"):
                async with two.lock("x", wait=0):
                    pass
            record = (await two.call("get", kind="lock", id="x"))["record"]
            assert (record["info"], record["lease"]["holder"]) == ({"why": "test"}, "one")
        assert not lock.held
        with pytest.raises(LeaseLost, match="given back"):
            lock.check()
        async with two.lock("x", wait=0) as lock:
            assert lock.token > first


async def test_of_two_that_race_for_a_lock_one_gets_it(daemon: RealDaemon):
    async with connect(daemon) as one, connect(daemon) as two:
        for round in range(25):
            locks = [state.lock(f"rebalance_lock:{round}", wait=0, ttl=300) for state in (one, two)]
            got = await asyncio.gather(*(lock.acquire() for lock in locks))
            assert sorted(got) == [False, True]
            assert [lock.held for lock in locks] == got


async def test_whoever_waits_gets_the_lock_when_it_is_given_back(daemon: RealDaemon):
    async with connect(daemon) as one, connect(daemon) as two:
        lock = one.lock("x")
        assert await lock.acquire()
        waiting = asyncio.create_task(two.lock("x", wait=SECONDS).acquire())
        assert not await one.lock("x", wait=0.05).acquire()
        await lock.release()
        assert await waiting


async def test_a_lock_object_can_be_used_again_but_not_twice_at_once(daemon: RealDaemon):
    async with connect(daemon) as state:
        lock = state.lock("x")
        async with lock:
            with pytest.raises(RuntimeError, match="held here already"):
                await lock.acquire()
        async with lock:
            assert lock.held


async def test_eight_that_wait_for_a_lock_hold_up_no_other_call(daemon: RealDaemon):
    async with connect(daemon) as state, state.lock("x"):
        waiting = [asyncio.create_task(state.lock("x", wait=SECONDS).acquire()) for _ in range(10)]
        await until_soon(lambda: len(getattr(state._core._calls, "_busy", ())) == 10, "all of them to wait")
        assert (await state.call("ping", timeout=10))["success"]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_lock_given_up_while_waiting_is_not_taken_afterwards(daemon: RealDaemon):
    async with connect(daemon) as state:
        async with state.lock("x"):
            waiting = asyncio.create_task(state.lock("x", wait=None).acquire())
            await until_soon(lambda: getattr(state._core._calls, "_busy", ()), "it to wait")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until_soon(lambda: not getattr(state._core._calls, "_busy", ()), "its connection to end")
        assert await state.lock("x", wait=0).acquire()


async def test_a_lock_is_given_back_behind_the_writes_made_under_it(daemon: RealDaemon):
    async with connect(daemon) as one, connect(daemon) as two:
        one.create({"uuid": "counter", "n": 0})
        for _ in range(5):
            async with one.lock("x", wait=SECONDS):
                one.update("counter", inc={"n": 1})
            async with two.lock("x", wait=SECONDS):
                seen = (await two.call("get", jobId="counter"))["job"]["n"]
                two.update("counter", n=seen + 1)
        await two.flush(SECONDS)
        assert (await two.call("get", jobId="counter"))["job"]["n"] == 10


async def test_writes_to_other_records_can_be_guarded_by_a_lock(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create({"id": "table", "value": 1}, kind="kv")
        async with state.lock("x") as lock:
            results = await lock.txn([{"op": "update", "kind": "kv", "id": "table", "record": {"value": 2}}])
            assert results[0]["record"]["value"] == 2
            token = lock.token
        stale = {"op": "update", "kind": "lock", "id": "x", "record": {}, "token": token}
        with pytest.raises(LeaseLost):
            await state.txn([stale, {"op": "update", "kind": "kv", "id": "table", "record": {"value": 3}}])
        assert (await state.call("get", kind="kv", id="table"))["record"]["value"] == 2


async def test_leaving_a_block_whose_lock_was_lost_says_so(daemon: RealDaemon):
    async with connect(daemon) as state:
        with pytest.raises(LeaseLost):
            async with state.lock("x", ttl=600):
                await state.call("delete", kind="lock", id="x")


async def test_what_a_block_raises_is_not_hidden_by_a_lost_lock(daemon: RealDaemon):
    async def work(state: StateStore) -> None:
        async with state.lock("y", ttl=600):
            await state.call("delete", kind="lock", id="y")
            raise ZeroDivisionError

    async with connect(daemon) as state:
        with pytest.raises(ZeroDivisionError):
            await work(state)


async def test_hold_keeps_a_lapsed_lock_from_being_retaken_at_once(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as other:
        lock = state.lock("x", ttl=0.5, hold=600)
        assert await lock.acquire()
        assert lock._lease is not None
        state._core.renewer.drop(lock._lease)
        async with asyncio.timeout(SECONDS):
            while not lock.lost:
                await asyncio.sleep(0.05)
        assert not await other.lock("x", wait=0.7).acquire()


def test_threads_of_many_stores_race_for_one_lock_and_count_without_loss(daemon: RealDaemon):
    """Read, add, write without any help: only the lock keeps the count right."""

    def work() -> None:
        with connect_blocking(daemon) as state:
            for _ in range(10):
                with state.lock("x", wait=60):
                    n = state.call("get", jobId="counter")["job"]["n"]
                    state.update("counter", n=n + 1)

    with connect_blocking(daemon) as state:
        state.create({"uuid": "counter", "n": 0})
        state.flush(SECONDS)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert state.call("get", jobId="counter")["job"]["n"] == 40


# --- elections -------------------------------------------------------------------------------------------------------


async def test_one_leads_and_another_follows_when_it_resigns(daemon: RealDaemon):
    told: list[str] = []
    async with connect(daemon) as one, connect(daemon) as two:
        async with (
            one.elect("boss", on_elected=lambda: told.append("one")) as first,
            two.elect("boss", on_elected=lambda: told.append("two")) as second,
        ):
            await asyncio.wait(
                [asyncio.create_task(first.elected()), asyncio.create_task(second.elected())],
                return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS,
            )  # fmt: skip
            assert first.leader != second.leader
            leader, follower = (first, second) if first.leader else (second, first)
            token = leader.token
            with pytest.raises(TimeoutError):
                await follower.elected(0.05)
            await leader.resign()
            await follower.elected(SECONDS)
            assert (leader.leader, follower.leader, follower.token > token) == (False, True, True)
        assert sorted(told) == ["one", "two"]
        async with one.lock("boss", wait=0):
            pass


async def test_a_leader_that_lost_it_is_told_and_stands_again(daemon: RealDaemon):
    told: list[str] = []
    async with connect(daemon) as state:
        election = state.elect(
            "boss", ttl=0.6, on_elected=lambda: told.append("elected"), on_lost=lambda: told.append("lost")
        )
        async with election:
            await election.elected(SECONDS)
            first = election.token
            await state.call("delete", kind="lock", id="boss")
            await until_soon(lambda: told[:3] == ["elected", "lost", "elected"], "to be elected again")
            assert election.leader
            assert election.token > first


async def test_whoever_waits_to_be_elected_is_told_that_it_stands_no_longer(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as other, other.lock("boss"), state.elect("boss") as election:
        waiting = asyncio.create_task(election.elected())
        await until_soon(lambda: getattr(state._core._calls, "_busy", ()), "it to stand")
        await election.resign()
        with pytest.raises(LeaseLost, match="no longer"):
            await asyncio.wait_for(waiting, SECONDS)


async def test_an_election_that_was_left_says_so_and_can_be_entered_again(daemon: RealDaemon):
    async with connect(daemon) as state:
        election = state.elect("boss")
        for _ in range(2):
            async with election:
                await election.elected(SECONDS)
            with pytest.raises(LeaseLost, match="no longer"):
                await election.elected(SECONDS)


async def test_whoever_cannot_stand_is_told_why(daemon: RealDaemon):
    async with connect(daemon) as state, state.elect("boss", ttl=-1) as election:
        with pytest.raises(BadRequest):
            await election.elected(SECONDS)
        assert not election.leader


def test_the_blocking_face_elects_too(daemon: RealDaemon):
    with connect_blocking(daemon) as one, connect_blocking(daemon) as two, one.elect("boss") as first:
        first.elected(SECONDS)
        with two.elect("boss") as second:
            with pytest.raises(TimeoutError):
                second.elected(0.05)
            first.resign()
            second.elected(SECONDS)
            assert (first.leader, second.leader) == (False, True)
            with pytest.raises(LeaseLost, match="no longer"):
                first.elected(SECONDS)


async def test_a_lock_taken_over_a_connection_from_before_a_restore_is_held(daemon: RealDaemon):
    async with connect(daemon) as agent, connect(daemon) as admin:
        await agent.call("ping")  # leaves a connection behind that said hello in the epoch before
        await admin.call("snapshot", path="a.snapshot")
        await admin.call("restore", path="a.snapshot")
        async with agent.lock("x", ttl=3.0) as lock:

            async def renewed() -> bool:
                record = (await admin.call("get", kind="lock", id="x"))["record"]
                return bool(record["lease"]["beat"] >= 2)

            while not await renewed():
                lock.check()
                await asyncio.sleep(0.01)
            lock.check()


async def test_a_lock_held_over_a_restore_is_lost(daemon: RealDaemon):
    async with connect(daemon) as agent, connect(daemon) as admin:
        lock = agent.lock("x", ttl=3.0)
        assert await lock.acquire()
        await admin.call("snapshot", path="a.snapshot")
        await admin.call("restore", path="a.snapshot")
        await asyncio.wait_for(lock.until_lost(), SECONDS)
        with pytest.raises(LeaseLost, match="the store has a new epoch"):
            lock.check()
