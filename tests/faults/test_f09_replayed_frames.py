"""F9: frames doubled, delayed, and replayed across reconnects: every effect comes about exactly once."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from statesvc_client import StateStore as AsyncStore
from statesvc_client.blocking import StateStore
from tests.daemon.harness import SECONDS, Client, Daemon, serving
from tests.faults.disk import Load
from tests.faults.replays import ReplayingProxy

SEEDS = [1, 2]
WRITES = 400
JOBS = 5


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("seed", SEEDS)
def test_numbered_writes_through_a_proxy_that_doubles_and_replays_are_applied_once(folder, backend, seed):
    with serving(folder, backend=backend) as daemon, ReplayingProxy(folder / "p.sock", daemon.socket, seed) as proxy:
        load = Load(daemon, path=proxy.path)
        for _ in range(4):
            load.write(WRITES // 4)
        proxy.calm = True
        load.persist()
        assert load.wrong(daemon) == []
        assert proxy.doubled > 0
        assert proxy.replayed > 0
        assert proxy.cut_off > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_an_asyncio_agent_behind_such_a_proxy_has_each_of_its_writes_applied_once(folder, seed):
    async def play(path: str) -> int:
        async with AsyncStore.connect(path, connect_seconds=SECONDS) as state, asyncio.timeout(4 * SECONDS):
            written = 0
            while written < WRITES or not proxy.has_meddled:
                written += counted_up(state)
                await asyncio.sleep(0.001)
            proxy.calm = True
            await state.flush(2 * SECONDS)
            assert state.counters.rejected == 0
            return written

    with serving(folder) as daemon, ReplayingProxy(folder / "p.sock", daemon.socket, seed) as proxy:
        each = asyncio.run(play(str(proxy.path))) // JOBS
        assert counted(daemon) == [(each, each)] * JOBS


def counted_up(state: AsyncStore | StateStore) -> int:
    """Each job's counter is to be one higher; returns how many writes that takes."""
    for number in range(JOBS):
        state.update(f"job-{number}", inc={"n": 1}, upsert=True)
    return JOBS


def test_agents_of_many_threads_behind_such_a_proxy_have_each_of_their_writes_applied_once(folder):
    def play(state: StateStore, stop_at: float) -> int:
        written = 0
        while written < WRITES // 4 or not proxy.has_meddled:
            assert time.monotonic() < stop_at, "the proxy lets everything pass"
            written += counted_up(state)
            time.sleep(0.001)
        return written

    with serving(folder) as daemon, ReplayingProxy(folder / "p.sock", daemon.socket, 3) as proxy:
        with StateStore.connect(str(proxy.path), connect_seconds=SECONDS) as state:
            with ThreadPoolExecutor(4) as threads:
                written = sum(threads.map(play, [state] * 4, [time.monotonic() + 2 * SECONDS] * 4))
            proxy.calm = True
            state.flush(2 * SECONDS)
            assert state.counters.rejected == 0
        assert counted(daemon) == [(written // JOBS, written // JOBS)] * JOBS


def counted(daemon: Daemon) -> list[tuple[int, int]]:
    """Each job's counter and its revision."""
    with daemon.connect() as client:
        jobs = [client.ask("get", jobId=f"job-{number}")["job"] for number in range(JOBS)]
    return [(job["n"], job["revision"]) for job in jobs]


# --- word for word -------------------------------------------------------------------------------------------------


def a_life() -> list[dict[str, Any]]:
    """One of every sort of write, as one client sends them."""
    writes: list[dict[str, Any]] = [
        {"op": "create", "job": {"uuid": "gone", "n": 0}},
        {"op": "update", "jobId": "gone", "inc": {"n": 1}},
        {"op": "delete", "jobId": "gone"},
        {"op": "create", "job": {"uuid": "gone", "n": 10}},
        {"op": "update", "jobId": "gone", "append": {"list": ["x"]}},
        {"op": "emit", "jobId": "gone", "event": {"type": "note", "message": "once"}},
        {"op": "create", "job": {"uuid": "queued-1", "status": "QUEUED"}},
        {"op": "create", "job": {"uuid": "queued-2", "status": "QUEUED"}},
        {"op": "claim", "filter": {"ids": ["queued-1", "queued-2"]}, "holder": "w", "ttl": 60},
        {"op": "update", "jobId": "late", "job": {"status": "COMPLETED"}, "upsert": True},
        {"op": "update", "jobId": "late", "job": {"status": "RUNNING"}},
        {"op": "cancel", "jobId": "queued-2"},
        {"op": "txn", "ops": [{"op": "update", "jobId": "gone", "inc": {"n": 5}}]},
    ]
    return [{**write, "seq": seq, "floor": 1, "requestId": seq} for seq, write in enumerate(writes, 1)]


def everything(client: Client) -> Any:
    """All records, and the whole of their histories."""
    jobs = client.ask("list", limit=1000)["jobs"]
    told = {job["uuid"]: client.ask("history", jobId=job["uuid"])["events"] for job in jobs}
    return json.loads(json.dumps([jobs, told]))


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("marked", [True, False], ids=["again", "word-for-word"])
def test_a_whole_life_replayed_on_another_connection_changes_nothing(folder, backend, marked):
    life = a_life()
    more: dict[str, Any] = {"again": True} if marked else {}
    with serving(folder, backend=backend) as daemon, daemon.connect() as watching:
        watching.hello()
        with daemon.connect() as client:
            client.hello("w")
            answers = [client.ask(**write) for write in life]
        refused = [answer["requestId"] for answer in answers if not answer["success"]]
        assert refused == [11], answers
        before = everything(watching)
        for cut in (len(life), 5, 9):
            with daemon.connect() as client:
                client.hello("w")
                again = [client.ask(**write, **more) for write in life[:cut]]
            assert [answer["success"] for answer in again if answer["requestId"] in refused] in ([], [False])
            assert all(answer.get("duplicate") for answer in again if answer["success"]), again
            assert everything(watching) == before


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_two_connections_that_deliver_one_clients_writes_in_turn_apply_each_once(folder, backend):
    """A frame that was delayed comes on the older connection, behind its own repetition on the newer one."""
    with serving(folder, backend=backend) as daemon, daemon.connect() as reading:
        assert reading.ask("create", job={"uuid": "job-1", "n": 0})["success"]
        for seq in range(1, 21):
            frame: dict[str, Any] = {"op": "update", "jobId": "job-1", "inc": {"n": 1}, "seq": seq, "floor": seq}
            with daemon.connect() as older, daemon.connect() as newer:
                older.hello("w")
                older.send(frame)  # whether it is taken before the next hello ends this connection is open
                newer.hello("w")
                assert newer.ask(**frame, again=True)["success"]
            job = reading.ask("get", jobId="job-1")["job"]
            assert (job["n"], job["revision"]) == (seq, seq + 1)
