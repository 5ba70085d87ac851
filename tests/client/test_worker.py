"""Workers: a name that one process holds, a heartbeat, and counters that add up whoever adds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from statesvc_client import LeaseHeld, LeaseLost, StateStore, blocking
from tests.client.conftest import RealDaemon

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


def connect_blocking(daemon: RealDaemon, **options: Any) -> blocking.StateStore:
    return blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


async def stored(state: StateStore, id: str) -> dict[str, Any]:
    record: dict[str, Any] = (await state.call("get", kind="worker", id=id))["record"]
    return record


def test_eight_threads_that_each_count_to_500_make_4000(daemon: RealDaemon):
    with connect_blocking(daemon) as state, state.worker("w", {"flowId": "flow"}) as worker:
        counter = worker.routine("counter")

        def count() -> None:
            for _ in range(500):
                counter.inc("total_requests")

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert counter.get("total_requests") == 4000, "the cache, at once"
        state.flush(SECONDS)
        assert state.call("get", kind="worker", id="w")["record"]["state"] == {"counter": {"total_requests": 4000}}


def test_a_full_outbox_merges_guarded_counts_and_loses_none(daemon: RealDaemon):
    with connect_blocking(daemon, max_records=20) as state, state.worker("w") as worker:
        for _ in range(1000):
            worker.routine("a/b~c").inc("n/m", 2)
        state.flush(SECONDS)
        assert state.call("get", kind="worker", id="w")["record"]["state"] == {"a/b~c": {"n/m": 2000}}


async def test_a_worker_says_who_and_where_it_is_and_how_it_ends(daemon: RealDaemon):
    async with connect(daemon, node_id="node-1") as state:
        async with state.worker("w", {"flowId": "flow-1"}, status="starting") as worker:
            record = await stored(state, "w")
            assert (record["status"], record["nodeId"], record["flowId"]) == ("starting", "node-1", "flow-1")
            assert (record["lease"]["holder"], record["lease"]["token"]) == ("w", worker.token)
            assert record["bootId"]
            worker.set_status("running")
            assert worker.status == "running"
        record = await stored(state, "w")
        assert (record["status"], "lease" in record) == ("stopped", False)
        with pytest.raises(ValueError, match="boom"):
            async with state.worker("w") as worker:
                raise ValueError("boom")
        record = await stored(state, "w")
        assert (record["status"], record["error"]) == ("failed", "ValueError: boom")
        worker = state.worker("w")
        await worker.__aenter__()
        await worker.stop()
        assert (await stored(state, "w"))["status"] == "stopped"


async def test_routines_keep_their_own_state_over_runs_of_the_worker(daemon: RealDaemon):
    async with connect(daemon) as state, state.worker("w") as worker:
        one, two = worker.routine("one"), worker.routine("two")
        assert one.get() is None
        assert one.get("count", 0) == 0
        one.update(count=1, cache={"a": 1})
        one.update({"cache": {"b": 2}}, last="x")
        one.set("whole", {"only": None})
        two.append("seen", "a", "b")
        assert worker.routines == {
            "one": {"count": 1, "cache": {"a": 1, "b": 2}, "last": "x", "whole": {"only": None}},
            "two": {"seen": ["a", "b"]},
        }
        one.update(last=None)
    async with connect(daemon) as state, state.worker("w") as worker:
        assert worker.routine("one").get() == {"count": 1, "cache": {"a": 1, "b": 2}, "whole": {"only": None}}
        assert worker.routine("two").get("seen") == ["a", "b"]


async def test_a_name_is_at_work_once(daemon: RealDaemon):
    async with connect(daemon) as one, connect(daemon) as two, one.worker("w"):
        with pytest.raises(LeaseHeld, match="at work elsewhere"):
            async with two.worker("w", wait=0):
                pass


async def test_a_worker_that_died_while_stopping_can_come_back(daemon: RealDaemon):
    async with connect(daemon) as state:
        worker = state.worker("w", ttl=0.5)
        await worker.__aenter__()
        worker.set_status("stopping")
        await state.flush(SECONDS)
        assert worker._lease is not None
        state._core.renewer.drop(worker._lease)
        async with state.worker("w", wait=SECONDS) as again:
            assert again.token > worker.token
            await state.flush(SECONDS)
            assert (await stored(state, "w"))["status"] == "running"


async def test_a_worker_whose_lease_was_lost_cannot_write_any_more(daemon: RealDaemon):
    async with connect(daemon) as state:
        worker = state.worker("w", ttl=600)
        await worker.__aenter__()
        await state.call("delete", kind="worker", id="w")
        worker.routine("r").inc("n")
        await state.flush(SECONDS)
        assert worker.lost
        with pytest.raises(LeaseLost):
            worker.routine("r").inc("n")
