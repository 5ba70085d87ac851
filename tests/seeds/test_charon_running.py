"""What Charon's job layer keeps of a job that runs and ends: retries, timeouts, cancelling, events, numbers."""

from __future__ import annotations

import pytest

from statesvc.config.model import Retention
from tests.daemon.harness import serving
from tests.seeds.asking import (
    a_time,
    claim,
    event,
    followed,
    has_status,
    history,
    ids,
    run,
    submit,
    taken,
    token,
    until,
)
from tests.socket.talking import Daemon, Talker

# --- retries and timeouts ------------------------------------------------------------------------------------------


async def test_a_failed_job_is_tried_again_after_its_delay(client: Talker):
    await submit(client, "flaky", maxRetries=5, retryDelay=120)
    ended = await run(client, "FAILED", job={"error": "unreachable"})
    assert (ended["status"], ended["retryCount"], ended["error"]) == ("SCHEDULED", 1, "unreachable")
    assert a_time(100) < ended["startAfter"] < a_time(160)
    assert await claim(client) is None


async def test_the_delay_doubles_with_every_try(client: Talker):
    await submit(client, "flaky", maxRetries=5, retryDelay=120, retryCount=2)
    ended = await run(client, "FAILED")
    assert a_time(4 * 100) < ended["startAfter"] < a_time(4 * 160)


async def test_a_job_that_used_up_its_retries_has_failed(client: Talker):
    await submit(client, "flaky", maxRetries=2, retryDelay=0)
    tried = 0
    while (held := await taken(client, wait=60))["status"] == "RUNNING":
        tried += 1
        reply = await client.ok("release", jobId="flaky", token=held["lease"]["token"], status="FAILED")
        if reply["job"]["status"] == "FAILED":
            break
    assert (tried, reply["job"]["retryCount"]) == (3, 2)


async def test_a_job_without_retries_fails_at_once(client: Talker):
    await submit(client, "job-1")
    assert (await run(client, "FAILED"))["status"] == "FAILED"


async def test_a_job_of_a_lost_worker_goes_back_to_the_queue(client: Talker):
    await submit(client, "job-1", maxRetries=1)
    first = await taken(client, holder="worker-1", ttl=0.1)
    again = await taken(client, holder="worker-2", wait=60)
    assert (again["uuid"], again["lease"]["holder"], again["retryCount"]) == ("job-1", "worker-2", 1)
    late = await client.refused("release", jobId="job-1", token=first["lease"]["token"], status="COMPLETED")
    assert late[0] == "lease_lost"


async def test_a_job_that_exceeds_its_timeout_ends_as_timeout(client: Talker):
    await submit(client, "slow", timeout=0.2)
    held = await token(client, ttl=300)
    ended = await has_status(client, "slow", "TIMEOUT")
    assert "timeout" in ended["error"]
    assert (await client.refused("release", jobId="slow", token=held, status="COMPLETED"))[0] == "lease_lost"


async def test_a_job_that_timed_out_is_tried_again_while_it_may(client: Talker):
    await submit(client, "slow", timeout=0.2, maxRetries=1, retryDelay=0.1)
    await taken(client, ttl=300)
    assert (await taken(client, wait=60, ttl=300))["retryCount"] == 1
    await has_status(client, "slow", "TIMEOUT")


async def test_a_worker_that_saw_the_timeout_itself_says_so(client: Talker):
    await submit(client, "slow", timeout=1800)
    assert (await run(client, "TIMEOUT"))["status"] == "TIMEOUT"


async def test_a_failed_job_is_put_back_by_hand(client: Talker):
    await submit(client, "job-1", maxRetries=1, retryCount=1)
    await run(client, "FAILED")
    put_back = (await client.ok("retry", jobId="job-1"))["job"]
    assert (put_back["status"], put_back["retryCount"], "completedAt" in put_back) == ("QUEUED", 0, False)
    assert (await taken(client))["uuid"] == "job-1"


# --- cancelling ----------------------------------------------------------------------------------------------------


async def test_a_waiting_job_is_cancelled_at_once(client: Talker):
    await submit(client, "job-1")
    assert (await client.ok("cancel", jobId="job-1"))["job"]["status"] == "CANCELED"
    assert await claim(client) is None


@pytest.mark.parametrize("said", ["FAILED", "TIMEOUT", None])
async def test_a_running_job_is_asked_to_end_and_stays_cancelled(client: Talker, said: str | None):
    await submit(client, "job-1", maxRetries=5)
    held = await token(client)
    asked = (await client.ok("cancel", jobId="job-1"))["job"]
    assert (asked["status"], asked["cancelRequested"]) == ("RUNNING", True)
    assert (await client.ok("renew", jobId="job-1", token=held))["cancelRequested"] is True
    status = {} if said is None else {"status": said}
    ended = await client.ok("release", jobId="job-1", token=held, **status)
    assert ended["job"]["status"] == "CANCELED"


# --- events --------------------------------------------------------------------------------------------------------


async def test_the_life_of_a_job_is_told_event_by_event(daemon: Daemon):
    client, watcher = await daemon.client("client"), await daemon.client("watcher")
    await followed(watcher)
    await submit(client, "job-1", maxRetries=1, retryDelay=0)
    held = await token(client)
    await client.ok("renew", jobId="job-1", token=held, job={"progress": 50})
    await client.ok("emit", jobId="job-1", event={"type": "progress", "message": "half", "data": {"percent": 50}})
    await client.ok("release", jobId="job-1", token=held, status="FAILED")
    held = await token(client, wait=60)
    await client.ok("release", jobId="job-1", token=held, status="COMPLETED")
    await submit(client, "job-2")
    await client.ok("cancel", jobId="job-2")
    seen = [await event(watcher) for _ in range(9)]
    told = [(one["id"], one["type"], one.get("from"), one.get("to")) for one in seen]
    assert told == [
        ("job-1", "created", None, "QUEUED"),
        ("job-1", "claimed", "QUEUED", "RUNNING"),
        ("job-1", "updated", None, None),
        ("job-1", "progress", None, None),
        ("job-1", "released", "RUNNING", "QUEUED"),
        ("job-1", "claimed", "QUEUED", "RUNNING"),
        ("job-1", "released", "RUNNING", "COMPLETED"),
        ("job-2", "created", None, "QUEUED"),
        ("job-2", "status", "QUEUED", "CANCELED"),
    ]
    assert (seen[3]["message"], seen[3]["data"]) == ("half", {"percent": 50})
    assert seen[2]["record"]["progress"] == 50
    assert seen[4]["record"]["retryCount"] == 1


async def test_an_event_tells_its_job_its_time_and_the_job_as_it_was_then(client: Talker):
    await submit(client, "job-1")
    await run(client, job={"exitCode": 0})
    created, started, ended = await history(client, "job-1")
    assert [one["id"] for one in (created, started, ended)] == ["job-1"] * 3
    assert [one["record"]["status"] for one in (created, started, ended)] == ["QUEUED", "RUNNING", "COMPLETED"]
    assert created["at"] <= started["at"] <= ended["at"]
    assert len({one["cursor"] for one in (created, started, ended)}) == 3


async def test_a_subscriber_gets_the_events_of_the_states_it_asked_for(daemon: Daemon):
    client, watcher = await daemon.client("client"), await daemon.client("watcher")
    await followed(watcher, filter={"statuses": ["RUNNING", "COMPLETED", "FAILED"]})
    await submit(client, "job-1")
    await submit(client, "job-2")
    for status in ("COMPLETED", "FAILED"):
        await run(client, status)
    seen = [(await event(watcher)) for _ in range(4)]
    assert [(one["id"], one["to"]) for one in seen] == [
        ("job-1", "RUNNING"), ("job-1", "COMPLETED"), ("job-2", "RUNNING"), ("job-2", "FAILED"),
    ]  # fmt: skip


async def test_every_subscriber_gets_every_event(daemon: Daemon):
    client = await daemon.client("client")
    watchers = [await daemon.client(f"watcher-{number}") for number in range(3)]
    for watcher in watchers:
        await followed(watcher)
    for number in range(20):
        await submit(client, f"job-{number:02d}")
    for watcher in watchers:
        assert [(await event(watcher))["id"] for _ in range(20)] == [f"job-{number:02d}" for number in range(20)]


async def test_the_end_of_a_job_is_waited_for_without_a_gap(daemon: Daemon):
    client, waiter = await daemon.client("client"), await daemon.client("waiter")
    await submit(client, "job-1")
    listed = await waiter.ok("list", filter={"ids": ["job-1"]})
    assert listed["jobs"][0]["status"] == "QUEUED"
    await run(client, job={"exitCode": 0})
    await followed(waiter, filter={"ids": ["job-1"]}, after=listed["asOf"])
    while (happened := await event(waiter)).get("to") != "COMPLETED":
        pass
    assert happened["record"]["exitCode"] == 0


# --- numbers, health, storage --------------------------------------------------------------------------------------


async def test_jobs_of_a_time_are_counted_by_their_state(client: Talker):
    for number, status in enumerate(("COMPLETED", "COMPLETED", "FAILED")):
        await submit(client, f"job-{number}")
        await run(client, status)
    await client.ok("create", job={"uuid": "old", "status": "COMPLETED", "createdAt": a_time(-2 * 86_400)})
    reply = await client.ok("stats", filter={"createdAfter": a_time(-86_400)})
    assert (reply["total"], reply["counts"]) == (3, {"COMPLETED": 2, "FAILED": 1})
    assert reply["durations"]["run"]["count"] == 3
    assert reply["durations"]["wait"]["count"] == 3


async def test_jobs_are_counted_by_any_other_field(client: Talker):
    for number in range(3):
        await submit(client, f"job-{number}", type="ansible" if number else "provisioning")
    assert (await client.ok("stats", by="type"))["counts"] == {"ansible": 2, "provisioning": 1}


async def test_workers_active_jobs_and_the_size_of_the_queue_are_counted(client: Talker):
    for name in ("worker-1", "worker-2"):
        await taken(client, "worker", id=name, holder=name, status="running")
    for number in range(5):
        await submit(client, f"job-{number}")
    for _ in range(2):
        await taken(client)
    assert (await client.ok("stats", kind="worker"))["counts"] == {"running": 2}
    assert (await client.ok("stats"))["counts"] == {"RUNNING": 2, "QUEUED": 3}


async def test_the_health_of_the_daemon_is_a_list_of_named_verdicts(client: Talker):
    reply = await client.ok("health")
    assert (reply["live"], reply["ready"]) == (True, True)
    assert all(check["verdict"] in {"ok", "warn", "fail"} for check in reply["checks"])


async def test_ended_jobs_are_removed_after_their_retention_and_live_ones_stay(engine, start):
    daemon = await start(engine, retention=Retention(terminal_seconds=0))
    client = await daemon.client("client")
    await submit(client, "ended")
    await run(client)
    await submit(client, "waiting", createdAt=a_time(-365 * 86_400))

    async def cleaned() -> bool:
        await client.ok("sweep")
        return await ids(client) == ["waiting"]

    await until(cleaned, "the ended job to be removed")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_jobs_and_their_history_survive_the_end_of_the_daemon(socket_folder, end):
    with serving(socket_folder) as daemon, daemon.connect() as client:
        client.ask("create", jobId="job-1", job={"uuid": "job-1", "status": "QUEUED", "playbook": "deploy.yml"})
        getattr(daemon, end)()
    with serving(socket_folder) as daemon, daemon.connect() as client:
        client.hello("client")
        assert client.ask("get", jobId="job-1")["job"]["playbook"] == "deploy.yml"
        assert [one["type"] for one in client.ask("history", jobId="job-1")["events"]] == ["created"]
        assert client.ask("claim", holder="worker-1", filter={})["jobs"][0]["uuid"] == "job-1"
