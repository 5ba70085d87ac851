"""What Joblet's state daemon keeps has its place: its six ops as its agents send them, its fields, its persistence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from statesvc.config import load
from statesvc.config.model import Retention
from statesvc_client.blocking import StateStore
from tests.client.conftest import held
from tests.daemon.harness import serving
from tests.seeds.asking import a_time, ids, until
from tests.socket.talking import Daemon, Talker

CREATE: dict[str, Any] = {
    "op": "create",
    "jobId": "abc123",
    "job": {
        "uuid": "abc123",
        "status": "RUNNING",
        "command": "echo test",
        "createdAt": "2025-10-26T00:00:00Z",
    },
    "requestId": "req-001",
    "timestamp": 1698432000,
}

CONFIGURATION = """
state:
  backend: "memory"
  socket: "/opt/joblet/run/state-ipc.sock"
  storage:
    dynamodb:
      region: ""
      table_name: "joblet-jobs"
      ttl_enabled: true
      ttl_days: 30
      read_capacity: 5
      write_capacity: 5
    redis:
      endpoint: "localhost:6379"
      db: 0
      ttl_days: 30
"""


async def test_the_request_of_the_page_is_answered_as_the_page_says(joblet: Talker):
    joblet.send(CREATE)
    reply = await joblet.receive()
    assert (reply["requestId"], reply["success"]) == ("req-001", True)
    assert "error" not in reply
    assert {name: reply["job"][name] for name in CREATE["job"]} == CREATE["job"]


async def test_every_op_of_an_agent_is_answered(joblet: Talker):
    replies = await joblet.in_one_go(
        [
            CREATE,
            {"op": "update", "jobId": "abc123", "job": {"uuid": "abc123", "status": "COMPLETED", "exitCode": 0}},
            {"op": "get", "jobId": "abc123"},
            {"op": "list", "filter": {"status": "COMPLETED"}},
            {"op": "sync", "jobs": [{"uuid": "abc123", "status": "COMPLETED"}, {"uuid": "b", "status": "PENDING"}]},
            {"op": "delete", "jobId": "abc123"},
        ]
    )
    assert [reply["success"] for reply in replies] == [True] * 6
    assert replies[2]["job"]["exitCode"] == 0
    assert [one["uuid"] for one in replies[3]["jobs"]] == ["abc123"]
    assert (replies[4]["applied"], replies[4]["unchanged"]) == (1, 1)


async def test_every_attribute_of_the_table_is_kept(joblet: Talker):
    attributes = {
        "uuid": "abc123", "status": "COMPLETED", "command": "echo test", "createdAt": "2025-10-26T00:00:00Z",
        "completedAt": "2025-10-26T00:01:00Z", "exitCode": 0, "nodeId": "node-1",
    }  # fmt: skip
    await joblet.ok("create", job=attributes)
    found = (await joblet.ok("get", jobId="abc123"))["job"]
    assert {name: found[name] for name in attributes} == attributes
    assert found["updatedAt"] > "2025-10-26"


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "COMPLETED", "FAILED"])
async def test_every_state_of_the_table_is_known_and_found(joblet: Talker, status: str):
    await joblet.ok("create", job={"uuid": "abc123", "status": status})
    assert [one["uuid"] for one in (await joblet.ok("list", filter={"status": status}))["jobs"]] == ["abc123"]


async def test_all_running_jobs_are_listed_by_their_age(client: Talker):
    for number in (2, 0, 1):
        made = {"uuid": f"job-{number}", "status": "RUNNING", "createdAt": f"2025-10-2{number}T00:00:00Z"}
        await client.ok("create", job=made)
    await client.ok("create", job={"uuid": "other", "status": "FAILED"})
    assert await ids(client, filter={"status": "RUNNING"}, sortBy="createdAt") == ["job-0", "job-1", "job-2"]


async def test_ended_jobs_expire_after_their_days_and_running_ones_never(engine, start):
    daemon = await start(engine, retention=Retention(terminal_seconds=30 * 86_400))
    client = await daemon.client("client")
    for name, status, days in (("old", "COMPLETED", 31), ("young", "COMPLETED", 29), ("live", "RUNNING", 365)):
        times = {"createdAt": a_time(-days * 86_400)}
        if status == "COMPLETED":
            times["completedAt"] = times["createdAt"]
        await client.ok("create", job={"uuid": name, "status": status, **times})

    async def expired() -> bool:
        await client.ok("sweep")
        return await ids(client, sortBy="id") == ["live", "young"]

    await until(expired, "the old job to expire")


async def test_a_restarted_agent_reconciles_what_it_runs_with_what_is_stored(client: Talker):
    for number in range(3):
        await client.ok("create", job={"uuid": f"job-{number}", "status": "RUNNING", "nodeId": "node-1"})
    known = [{"uuid": "job-0", "status": "RUNNING", "nodeId": "node-1"}]
    ended = [{"uuid": "job-1", "status": "COMPLETED", "nodeId": "node-1", "exitCode": 0}]
    report = await client.ok("sync", jobs=[*known, *ended], scope={"nodeId": "node-1"})
    assert (report["applied"], report["unchanged"], report["missing"]) == (1, 1, ["job-2"])


async def test_twenty_pooled_connections_write_at_once(daemon: Daemon):
    pool = [await daemon.talker() for _ in range(20)]

    async def write(place: int) -> None:
        for number in range(5):
            name = f"job-{place}-{number}"
            await pool[place].ok("create", job={"uuid": name, "status": "PENDING"})
            await pool[place].ok("update", job={"uuid": name, "status": "RUNNING"})

    await asyncio.gather(*(write(place) for place in range(20)))
    assert len((await pool[0].ok("list", filter={"status": "RUNNING"}))["jobs"]) == 100


async def test_the_daemon_tells_whether_it_is_there_and_how_it_is(joblet: Talker):
    await joblet.ok("ping")
    reply = await joblet.ok("health")
    assert (reply["live"], reply["ready"]) == (True, True)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_job_is_still_there_after_a_restart(socket_folder: Path, end: str):
    with serving(socket_folder) as daemon, daemon.connect() as agent:
        agent.send(CREATE)
        assert agent.reply()["success"]
        getattr(daemon, end)()
    with serving(socket_folder) as daemon, daemon.connect() as agent:
        found = agent.ask("get", jobId="abc123")["job"]
        assert {name: found[name] for name in CREATE["job"]} == CREATE["job"]


def test_memory_is_lost_on_a_restart_and_says_so(socket_folder: Path):
    epochs = []
    for _ in range(2):
        with serving(socket_folder, backend="memory") as daemon, daemon.connect() as agent:
            welcome = agent.hello("agent")
            assert welcome["durability"] == "memory"
            epochs.append(welcome["epoch"])
            assert agent.ask("create", job={"uuid": "abc123", "status": "PENDING"})["success"]
            daemon.stop()
    assert epochs[0] != epochs[1]


def test_the_configuration_of_the_page_is_read_as_it_stands(tmp_path: Path):
    file = tmp_path / "joblet-config.yml"
    file.write_text(CONFIGURATION)
    settings = load({}, {"JOBLET_CONFIG_PATH": str(file)}).settings
    assert (settings.backend, str(settings.socket)) == ("memory", "/opt/joblet/run/state-ipc.sock")
    assert settings.storage.dynamodb.table_name == "joblet-jobs"
    assert settings.storage.dynamodb.ttl_days == settings.storage.redis.ttl_days == 30


def test_writes_of_an_agent_return_at_once_and_arrive_when_the_daemon_comes_back(socket_folder: Path):
    with serving(socket_folder) as daemon, StateStore.connect(daemon.socket) as state:
        state.create({"uuid": "job-1", "status": "PENDING"})
        state.flush()
        daemon.stop()
        state.update("job-1", status="RUNNING")
        assert held(state, "job-1")["status"] == "RUNNING"
        with serving(socket_folder):
            state.flush()
            assert state.call("get", id="job-1")["job"]["status"] == "RUNNING"


def test_an_agent_that_speaks_lines_needs_no_library(socket_folder: Path):
    with serving(socket_folder, backend="memory") as daemon, daemon.connect() as agent:
        agent.send_raw(json.dumps(CREATE).encode() + b"\n")
        assert agent.reply()["requestId"] == "req-001"
