"""Calls: every op of the wire can be asked, and fire-and-forget writes of every sort happen once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import StateStore, blocking
from statesvc_client.errors import Exists, InvalidTransition, NotFound
from statesvc_client.wire import OPS
from tests.client.conftest import RealDaemon, plain_environment, until_soon
from tests.client.test_agent import SwallowingProxy

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, **options)


ASKED: dict[str, dict[str, Any]] = {
    "ping": {},
    "hello": {"client": "somebody", "name": "else"},
    "create": {"job": {"uuid": "made"}},
    "update": {"job_id": "j", "set": {"a": 1}, "if_revision": 1},
    "delete": {"jobId": "gone"},
    "get": {"jobId": "j"},
    "list": {"filter": {"ids": ["j"]}, "sort_by": "id", "sort_desc": True},
    "sync": {"jobs": [{"uuid": "j", "status": "QUEUED"}]},
    "txn": {"ops": [{"op": "update", "job_id": "j", "job": {"b": 1}, "if_revision": 2}]},
    "claim": {"filter": {}, "holder": "me", "ttl": 600},
    "renew": {"jobId": "j", "token": 1, "job": {"c": 1}},
    "release": {"jobId": "j", "token": 1, "status": "FAILED"},
    "retry": {"jobId": "j"},
    "cancel": {"jobId": "j"},
    "emit": {"jobId": "j", "event": {"type": "note"}},
    "history": {"jobId": "j", "limit": 3},
    "watch": {"kind": "job"},
    "unwatch": {},
    "stats": {"by": "status"},
    "stuck": {"seconds": 10},
    "health": {},
    "snapshot": {},
    "restore": {"path": "snapshots/none.snapshot"},
    "check": {},
    "sweep": {},
    "freeze": {},
    "thaw": {},
    "feed": {},
}


async def test_every_op_of_the_wire_can_be_asked(daemon: RealDaemon):
    """Not one op fails before it reaches the daemon, and no answer is taken for another's."""
    assert ASKED.keys() == OPS.keys()
    async with connect(daemon) as state:
        state.create({"uuid": "j", "status": "QUEUED"})
        state.create({"uuid": "gone"})
        replies = {}
        for op, fields in ASKED.items():
            try:
                replies[op] = await state.call(op, **fields)
            except NotFound:
                assert op in ("restore", "unwatch")
        assert replies["txn"]["results"][0]["job"]["b"] == 1
        assert replies["claim"]["jobs"][0]["lease"]["token"] == 1
        assert replies["renew"]["lease"]["token"] == 1
        assert replies["release"]["job"]["status"] == "FAILED"
        assert replies["retry"]["job"]["status"] == "QUEUED"
        assert replies["cancel"]["job"]["status"] == "CANCELED"
        assert [event["type"] for event in replies["history"]["events"]][:1] == ["created"]
        assert sum(replies["stats"]["counts"].values()) >= 1
        assert replies["health"]["live"]
        assert (await state.call("get", jobId="j"))["job"]["status"] == "CANCELED"
        await state.until(lambda: (state.get("j") or {}).get("status") == "CANCELED", SECONDS)


async def test_progress_has_no_place_in_a_call(daemon: RealDaemon):
    async with connect(daemon) as state:
        with pytest.raises(ValueError, match="leave it out"):
            await state.call("check", progress=True)


async def test_a_transaction_happens_as_a_whole_or_not_at_all(daemon: RealDaemon):
    async with connect(daemon, kinds=("job", "volume", "mount")) as state:
        results = await state.txn(
            [
                {"op": "create", "job": {"uuid": "j"}},
                {"op": "create", "kind": "volume", "record": {"id": "v"}},
                {"op": "create", "kind": "mount", "record": {"id": "m", "volume": "v", "owner": "job/j"}},
            ]
        )
        assert len(results) == 3
        assert state.get("m", "mount"), "what a call made is shown when it returns"
        with pytest.raises(Exists):
            await state.txn(
                [
                    {"op": "update", "job_id": "j", "job": {"a": 1}},
                    {"op": "create", "kind": "volume", "record": {"id": "v"}},
                ]
            )
        assert "a" not in (await state.call("get", jobId="j"))["job"]


async def test_writes_of_every_sort_happen_once_though_their_answers_are_lost(daemon: RealDaemon, socket_folder: Path):
    proxy = SwallowingProxy(socket_folder / "proxy.sock", daemon.path)
    await until_soon(lambda: Path(daemon.path).exists(), "the daemon's socket")
    await proxy.start()
    told: list[tuple[str, type]] = []
    try:
        async with StateStore.connect(
            proxy.path, connect_seconds=SECONDS, warm=False, on_rejected=lambda w, e: told.append((w.op, type(e)))
        ) as state:
            for id in ("noted", "waits", "failed", "held", "done"):
                status = {"failed": "FAILED", "done": "COMPLETED"}.get(id, "QUEUED")
                state.create({"uuid": id, "status": status})
            await state.flush(SECONDS)
            reply = await state.call("claim", filter={"ids": ["held"]}, ttl=600)
            token = reply["jobs"][0]["lease"]["token"]
            proxy.swallow = True
            for number in range(20):
                state.emit("noted", "step", data=number)
            state.cancel("waits")
            state.retry("failed")
            state.retry("done")
            state.update("held", token=token, inc={"n": 1})
            state._admit(_release("held", token))
            await until_soon(lambda: proxy.swallowed >= 2, "answers to drop")
            proxy.swallow = False
            proxy.cut()
            await state.flush(SECONDS)
            steps = [event.data for event in await state.history("noted") if event.type == "step"]
            assert steps == list(range(20))
            jobs = {job["uuid"]: job for job in (await state.call("list"))["jobs"]}
            assert [jobs[id]["status"] for id in ("waits", "failed", "held")] == ["CANCELED", "QUEUED", "COMPLETED"]
            assert jobs["held"]["n"] == 1
            assert len(told) == 1
            assert told[0][0] == "retry"
    finally:
        await proxy.stop()


def _release(id: str, token: int) -> Any:
    from statesvc_client import writes

    return writes.release("job", id, {}, writes.More(token=token, status="COMPLETED"))


async def test_refusals_of_the_new_writes_come_back_as_what_they_are(daemon: RealDaemon):
    told: list[tuple[str, type]] = []
    async with connect(daemon, on_rejected=lambda w, e: told.append((w.op, type(e)))) as state:
        state.create({"uuid": "done", "status": "COMPLETED"})
        state.cancel("done")
        state.retry("done")
        state.emit("none", "note")
        state.kind("task").cancel("none")
        await state.flush(SECONDS)
        assert told == [
            ("cancel", InvalidTransition), ("retry", InvalidTransition), ("emit", NotFound), ("cancel", NotFound),
        ]  # fmt: skip
        await state.until(lambda: (state.get("done") or {}).get("uid"), SECONDS)
        assert (state.get("done") or {})["status"] == "COMPLETED"


SPOOLED = """
import os, sys
from statesvc_client import writes
from statesvc_client.blocking import StateStore
path, spool, token = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = StateStore.connect(path, connect_seconds=0, spool=spool, warm=False)
for number in range(50):
    state.emit("j", "step", data=number)
    state.update("j", token=token, inc={"n": 1})
state._admit(writes.release("job", "j", {}, writes.More(token=token, status="COMPLETED")))
os.kill(os.getpid(), 9)
"""


def test_with_a_spool_what_a_killed_worker_had_to_say_about_its_job_is_said_by_the_next(daemon, tmp_path):
    spool = tmp_path / "spool"
    with blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS) as state:
        state.create({"uuid": "j", "status": "QUEUED"})
        token = state.call("claim", filter={}, ttl=600)["jobs"][0]["lease"]["token"]
    ended = subprocess.run(
        [sys.executable, "-c", SPOOLED, daemon.path, str(spool), str(token)],
        env=plain_environment(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, spool=spool) as state:
        state.flush(SECONDS)
        job = state.call("get", jobId="j")["job"]
        assert (job["status"], job["n"]) == ("COMPLETED", 50)
        assert [event.data for event in state.history("j") if event.type == "step"] == list(range(50))
        assert state.counters.rejected == 0


async def test_calls_side_by_side_use_connections_of_their_own(daemon: RealDaemon):
    async with connect(daemon) as state:
        waits = [asyncio.create_task(state.call("claim", filter={}, wait=SECONDS)) for _ in range(12)]
        await until_soon(lambda: len(getattr(state._core._calls, "_busy", ())) == 12, "all to wait")
        replies = await asyncio.gather(*(state.call("ping", timeout=SECONDS) for _ in range(20)))
        assert all(reply["success"] for reply in replies)
        for number in range(12):
            state.create({"uuid": f"j{number}", "status": "QUEUED"})
        claimed = [reply["jobs"][0]["uuid"] for reply in await asyncio.gather(*waits)]
        assert len(set(claimed)) == 12
