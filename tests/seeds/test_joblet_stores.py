"""What Joblet's job and task stores keep has its place: records, states, indexes, queries, events, the task queue."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.addresses import repeats
from tests.seeds.asking import (
    a_time,
    claim,
    event,
    followed,
    has_status,
    history,
    ids,
    job,
    record,
    submit,
    taken,
    token,
    total,
)
from tests.socket.talking import Daemon, Talker

JOB = {
    "uuid": "job-1",
    "status": "INITIALIZING",
    "task": "task-1",
    "command": ["/bin/echo", "hi"],
    "environment": {"PATH": "/bin"},
    "limits": {"cpu": 50, "memory": 512, "io": 1000},
    "network": {"name": "bridge", "mode": "isolated"},
    "volumes": [{"volumeId": "volume-1", "path": "/data"}],
    "pid": 4242,
    "startTime": "2025-10-26T00:00:00Z",
    "exitCode": 0,
    "error": "",
    "cpuUsage": 12.5,
    "memoryUsage": 1 << 40,
    "ioStats": {"readBytes": 1, "writeBytes": 2},
    "labels": {"team": "search"},
}

STATES = ("INITIALIZING", "SCHEDULED", "RUNNING", "COMPLETED", "FAILED", "STOPPED", "CANCELLED")
MOVES = {
    "INITIALIZING": ("SCHEDULED", "RUNNING", "FAILED"),
    "SCHEDULED": ("RUNNING", "CANCELLED"),
    "RUNNING": ("COMPLETED", "FAILED", "STOPPED"),
    "COMPLETED": (),
    "FAILED": (),
    "STOPPED": (),
    "CANCELLED": (),
}


async def move(client: Talker, before: str, after: str) -> dict:
    await client.ok("create", job={"uuid": f"{before}-{after}", "status": before})
    return await client.ask("update", jobId=f"{before}-{after}", job={"status": after})


# --- the job store -------------------------------------------------------------------------------------------------


async def test_a_job_is_added_read_changed_and_removed_by_its_id(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "INITIALIZING"})
    await client.ok("update", jobId="job-1", job={"pid": 4242})
    assert (await job(client, "job-1"))["pid"] == 4242
    await client.ok("delete", jobId="job-1")
    assert (await client.refused("get", jobId="job-1"))[0] == "not_found"


async def test_every_field_of_a_job_is_kept(client: Talker):
    await client.ok("create", job=JOB)
    found = await job(client, "job-1")
    assert {name: found[name] for name in JOB} == JOB
    assert found["createdAt"] <= found["updatedAt"]


async def test_usage_is_reported_while_a_job_runs_and_keeps_its_precision(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    usage = {"cpuUsage": 12.375, "memoryUsage": (1 << 53) + 1, "ioStats": {"readBytes": (1 << 63) + 5}}
    await client.ok("update", jobId="job-1", job=usage)
    found = await job(client, "job-1")
    assert {name: found[name] for name in usage} == usage


async def test_the_times_of_a_job_are_set_by_its_states(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "INITIALIZING"})
    started = (await client.ok("update", jobId="job-1", job={"status": "RUNNING"}))["job"]
    assert started["startedAt"] == started["updatedAt"]
    ended = (await client.ok("update", jobId="job-1", job={"status": "COMPLETED", "exitCode": 0}))["job"]
    assert ended["completedAt"] == ended["updatedAt"]
    assert ended["startedAt"] == started["startedAt"]


async def test_jobs_are_found_by_state_node_and_label(client: Talker):
    for number in range(6):
        fields = {"nodeId": f"node-{number % 3}", "labels": {"team": "search" if number % 2 else "ads"}}
        await client.ok("create", job={"uuid": f"job-{number}", "status": STATES[number], **fields})
    assert await ids(client, filter={"status": "RUNNING"}) == ["job-2"]
    assert await ids(client, filter={"statuses": ["RUNNING", "FAILED"]}, sortBy="id") == ["job-2", "job-4"]
    assert await ids(client, filter={"nodeId": "node-1"}, sortBy="id") == ["job-1", "job-4"]
    assert await ids(client, filter={"labels": {"team": "search"}}, sortBy="id") == ["job-1", "job-3", "job-5"]
    assert await ids(client, filter={"labels": {"team": "search"}, "status": "STOPPED"}) == ["job-5"]


async def test_jobs_are_found_by_the_range_of_a_time(client: Talker):
    for number in range(4):
        times = dict.fromkeys(("createdAt", "startedAt", "completedAt"), f"2025-10-2{number}T00:00:00Z")
        await client.ok("create", job={"uuid": f"job-{number}", "status": "COMPLETED", **times})
    between = ("2025-10-20T00:00:00Z", "2025-10-23T00:00:00Z")
    for name in ("created", "started", "completed"):
        found = await ids(client, filter={f"{name}After": between[0], f"{name}Before": between[1]}, sortBy="id")
        assert found == ["job-1", "job-2"]


async def test_jobs_are_found_by_any_other_field_and_by_their_ids(client: Talker):
    await client.ok("create", job=JOB)
    await client.ok("create", job={**JOB, "uuid": "other-1", "pid": 1, "limits": {"cpu": 10}})
    assert await ids(client, filter={"where": {"pid": 4242}}) == ["job-1"]
    assert await ids(client, filter={"where": {"/limits/cpu": 10}}) == ["other-1"]
    assert await ids(client, filter={"prefix": "job-"}) == ["job-1"]
    assert await ids(client, filter={"regex": "^other-[0-9]$"}) == ["other-1"]


async def test_a_query_is_sorted_and_read_in_pages_without_gaps_while_jobs_are_added(client: Talker):
    for number in range(25):
        await client.ok("create", job={"uuid": f"job-{number:02d}", "status": "RUNNING", "priority": number})
    for order in ({"sortBy": "id"}, {"sortBy": "createdAt"}, {"sortBy": "priority"}):
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = await client.ok("list", filter={"status": "RUNNING"}, limit=10, **order, **more)
            found += [one["uuid"] for one in page["jobs"]]
            await client.ok("create", job={"uuid": f"early-{order['sortBy']}-{len(found)}", "status": "FAILED"})
            if "nextCursor" not in page:
                break
            more = {"cursor": page["nextCursor"]}
        assert found == [f"job-{number:02d}" for number in range(25)]
    newest = await ids(client, filter={"status": "RUNNING"}, sortBy="createdAt", sortDesc=True, limit=2)
    assert newest == ["job-24", "job-23"]


# --- states and moves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", STATES)
async def test_every_move_of_the_table_is_allowed(client: Talker, before: str):
    for after in MOVES[before]:
        reply = await move(client, before, after)
        assert reply["success"], reply
        assert reply["job"]["status"] == after.replace("CANCELLED", "CANCELED")


@pytest.mark.parametrize("before", [state for state, after in MOVES.items() if not after])
async def test_no_move_leaves_a_terminal_state(client: Talker, before: str):
    for after in set(STATES) - {before}:
        reply = await move(client, before, after)
        assert reply["code"] == "invalid_transition"
        assert "is final" in reply["error"]


async def test_a_move_that_is_not_in_the_table_is_refused_and_named(client: Talker):
    reply = await move(client, "RUNNING", "INITIALIZING")
    assert (reply["code"], reply["outcome"]) == ("invalid_transition", "not_applied")
    assert "RUNNING does not become INITIALIZING" in reply["error"]
    assert (await job(client, "RUNNING-INITIALIZING"))["status"] == "RUNNING"


async def test_an_unknown_state_is_refused_with_the_known_ones(client: Talker):
    code, text = await client.refused("create", job={"uuid": "job-1", "status": "SLEEPING"})
    assert code == "bad_request"
    assert all(state.replace("CANCELLED", "CANCELED") in text for state in STATES)


async def test_a_move_is_told_with_the_old_and_the_new_state(daemon: Daemon):
    client, listener = await daemon.client("client"), await daemon.client("listener")
    await client.ok("create", job={"uuid": "job-1", "status": "INITIALIZING"})
    await followed(listener)
    await client.ok("update", jobId="job-1", job={"status": "RUNNING"})
    moved = await event(listener)
    assert (moved["type"], moved["from"], moved["to"]) == ("status", "INITIALIZING", "RUNNING")
    assert moved["record"]["updatedAt"] == moved["at"]


# --- counters and events -------------------------------------------------------------------------------------------


async def test_active_total_failed_and_completed_jobs_are_counted_from_what_is_there(client: Talker):
    for number, status in enumerate(("RUNNING", "RUNNING", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED")):
        await client.ok("create", job={"uuid": f"job-{number}", "status": status})
    reply = await client.ok("stats")
    assert (reply["total"], reply["counts"]) == (6, {"RUNNING": 2, "FAILED": 1, "COMPLETED": 3})
    await client.ok("update", jobId="job-0", job={"status": "FAILED"})
    assert (await client.ok("stats"))["counts"] == {"RUNNING": 1, "FAILED": 2, "COMPLETED": 3}


async def test_counters_of_ones_own_are_added_to_by_racing_connections_without_a_loss(daemon: Daemon):
    clients = [await daemon.client(f"client-{number}") for number in range(5)]
    await clients[0].ok("create", kind="kv", record={"id": "metrics", "value": {"active": 0, "total": 0}})

    async def count(client: Talker) -> None:
        add = {"op": "update", "kind": "kv", "id": "metrics", "inc": {"/value/active": 1, "/value/total": 1}}
        assert all(reply["success"] for reply in await client.in_one_go([add] * 40))
        await client.ok("update", kind="kv", id="metrics", inc={"/value/active": -40})

    await asyncio.gather(*(count(client) for client in clients))
    assert (await record(clients[0], "kv", "metrics"))["value"] == {"active": 0, "total": 200}


async def test_how_long_jobs_waited_and_ran_is_measured(client: Talker):
    for number in range(10):
        times = {
            "createdAt": "2025-10-26T00:00:00Z", "startedAt": "2025-10-26T00:00:05Z",
            "completedAt": f"2025-10-26T00:00:{15 + number:02d}Z",
        }  # fmt: skip
        await client.ok("create", job={"uuid": f"job-{number}", "status": "COMPLETED", **times})
    durations = (await client.ok("stats"))["durations"]
    assert (durations["run"]["count"], durations["run"]["max"]) == (10, pytest.approx(19, rel=0.02))
    assert durations["run"]["mean"] == pytest.approx(14.5, rel=0.02)
    assert durations["wait"]["p50"] == pytest.approx(5, rel=0.02)


async def test_a_published_event_reaches_every_subscriber_and_stays_in_the_history(daemon: Daemon):
    client = await daemon.client("client")
    subscribers = [await daemon.client(f"subscriber-{number}") for number in range(3)]
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    for subscriber in subscribers:
        await followed(subscriber)
    told = {"type": "oom.warning", "message": "90 % of memory", "data": {"source": "cgroup", "bytes": 1 << 30}}
    await client.ok("emit", jobId="job-1", event=told)
    for subscriber in subscribers:
        heard = await event(subscriber)
        assert {name: heard[name] for name in told} == told
        assert heard["at"]
    assert [one["type"] for one in await history(client, "job-1")] == ["created", "oom.warning"]


async def test_no_event_is_dropped_when_many_are_published_at_once(daemon: Daemon):
    client, subscriber = await daemon.client("client"), await daemon.client("subscriber")
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    await followed(subscriber)
    ticks = range(repeats(daemon.engine, 500))
    frames = [{"op": "emit", "jobId": "job-1", "event": {"type": "tick", "data": number}} for number in ticks]
    assert all(reply["success"] for reply in await client.in_one_go(frames))
    assert [(await event(subscriber))["data"] for _ in ticks] == list(ticks)


# --- batches and concurrent access ---------------------------------------------------------------------------------


async def test_a_batch_is_applied_whole_or_not_at_all(client: Talker):
    for name in ("job-1", "job-2"):
        await client.ok("create", job={"uuid": name, "status": "RUNNING"})
    updates = [{"op": "update", "jobId": f"job-{number}", "job": {"pid": number}} for number in (1, 2)]
    absent = {"op": "update", "jobId": "nobody", "job": {"pid": 3}}
    refused = await client.ask("txn", ops=[*updates, absent])
    assert (refused["code"], refused["outcome"]) == ("not_found", "not_applied")
    assert "pid" not in await job(client, "job-1")
    applied = await client.ok("txn", ops=updates)
    assert [result["job"]["pid"] for result in applied["results"]] == [1, 2]


async def test_many_jobs_are_brought_forward_at_once(client: Talker):
    jobs = [{"uuid": f"job-{number}", "status": "RUNNING"} for number in range(200)]
    assert (await client.ok("sync", jobs=jobs))["applied"] == 200
    ended = [{**one, "status": "COMPLETED"} for one in jobs]
    assert (await client.ok("sync", jobs=ended))["applied"] == 200
    assert await total(client, "job", status="COMPLETED") == 200


async def test_a_hundred_concurrent_adds_give_a_hundred_jobs(daemon: Daemon):
    talkers = [await daemon.client(f"client-{number}") for number in range(20)]

    async def add(place: int) -> None:
        for number in range(5):
            await talkers[place].ok("create", job={"uuid": f"job-{place}-{number}", "status": "INITIALIZING"})

    await asyncio.gather(*(add(place) for place in range(20)))
    assert await total(talkers[0], "job") == 100


# --- tasks ---------------------------------------------------------------------------------------------------------


async def test_every_field_of_a_task_is_kept(client: Talker):
    task = {
        "id": "task-1", "type": "job", "status": "QUEUED", "priority": 7, "scheduledAt": "2025-10-26T00:00:00Z",
        "handler": "run_job", "maxRetries": 3, "retryCount": 0, "retryDelay": 2.5, "owner": "job/job-1",
    }  # fmt: skip
    await client.ok("create", kind="task", record=task)
    held = await taken(client, "task")
    assert {name: held[name] for name in task} == {**task, "status": "RUNNING"}
    ended = await client.ok(
        "release", kind="task", id="task-1", token=held["lease"]["token"], status="COMPLETED",
        record={"result": {"exitCode": 0, "lines": ["done"]}},
    )  # fmt: skip
    assert ended["record"]["result"] == {"exitCode": 0, "lines": ["done"]}
    assert ended["record"]["completedAt"]


async def test_tasks_come_by_priority_then_by_schedule(client: Talker):
    queue = (("low", 1, -10), ("second", 9, -10), ("first", 9, -100), ("later", 9, 3600))
    for name, priority, seconds in queue:
        fields = {"id": name, "status": "QUEUED", "priority": priority, "scheduledAt": a_time(seconds)}
        await client.ok("create", kind="task", record=fields)
    assert [(await taken(client, "task"))["id"] for _ in range(3)] == ["first", "second", "low"]
    assert await claim(client, "task") is None


async def test_a_worker_is_woken_when_a_task_becomes_ready(daemon: Daemon):
    client, worker = await daemon.client("client"), await daemon.client("worker")
    worker.send({"op": "claim", "kind": "task", "holder": "worker-1", "filter": {}, "wait": 60})
    await client.ok("create", kind="task", record={"id": "task-1", "status": "QUEUED"})
    assert [one["id"] for one in (await worker.receive())["records"]] == ["task-1"]


async def test_a_task_that_is_not_valid_is_not_queued(client: Talker):
    for fields in ({"maxRetries": -1}, {"retryDelay": "soon"}, {"status": "DOZING"}):
        record = {"id": "task-1", "status": "QUEUED", **fields}
        assert (await client.refused("create", kind="task", record=record))[0] == "bad_request"
    assert await claim(client, "task") is None


async def test_a_failed_task_is_tried_again_as_often_as_it_may(client: Talker):
    await client.ok(
        "create", kind="task", record={"id": "task-1", "status": "QUEUED", "maxRetries": 1, "retryDelay": 0}
    )
    for retries, status in ((1, "QUEUED"), (1, "FAILED")):
        held = await token(client, "task", wait=60)
        ended = await client.ok("release", kind="task", id="task-1", token=held, status="FAILED")
        assert (ended["record"]["retryCount"], ended["record"]["status"]) == (retries, status)


async def test_cancelling_a_task_reaches_whoever_runs_it(client: Talker):
    await client.ok("create", kind="task", record={"id": "task-1", "status": "QUEUED"})
    held = await token(client, "task")
    await client.ok("cancel", kind="task", id="task-1")
    assert (await client.ok("renew", kind="task", id="task-1", token=held))["cancelRequested"] is True
    ended = await client.ok("release", kind="task", id="task-1", token=held)
    assert ended["record"]["status"] == "CANCELED"


async def test_a_scheduled_job_is_found_by_its_time_and_comes_when_it_is_due(client: Talker):
    await submit(client, "tomorrow", status="SCHEDULED", scheduledAt=a_time(86_400))
    await submit(client, "soon", status="SCHEDULED", scheduledAt=a_time(0.3))
    assert await ids(client, filter={"status": "SCHEDULED"}, sortBy="scheduledAt") == ["soon", "tomorrow"]
    assert (await taken(client, wait=60))["uuid"] == "soon"
    await client.ok("cancel", jobId="tomorrow")
    assert (await has_status(client, "tomorrow", "CANCELED"))["completedAt"]


async def test_no_more_jobs_are_taken_than_there_is_room_for(client: Talker):
    for number in range(5):
        await submit(client, f"job-{number}")
    room = 3 - (await client.ok("stats"))["counts"].get("RUNNING", 0)
    assert len((await client.ok("claim", holder="agent", filter={}, limit=room))["jobs"]) == 3
    assert (await client.ok("stats"))["counts"] == {"RUNNING": 3, "QUEUED": 2}
