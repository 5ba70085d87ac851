"""What Charon's job layer keeps of a job that waits: its fields, the queue, its schedule, what it depends on."""

from __future__ import annotations

import asyncio

import pytest

from tests.seeds.asking import (
    a_time,
    claim,
    event,
    followed,
    has_status,
    history,
    ids,
    job,
    run,
    submit,
    taken,
    total,
)
from tests.socket.talking import Daemon, Talker

PRIORITIES = {"low": 1, "normal": 5, "high": 10, "critical": 15}

ANSIBLE_JOB = {
    "uuid": "deploy-1",
    "name": "Deploy Application",
    "type": "ansible",
    "priority": PRIORITIES["high"],
    "status": "queued",
    "timeout": 1800,
    "playbook": "/path/to/deploy.yml",
    "inventory": ["app1.example.com", "app2.example.com"],
    "variables": {"app_version": "1.2.3", "environment": "production"},
    "userId": "ops",
    "tags": ["deployment", "production"],
    "description": "the new version",
    "logPath": "/var/log/deploy-1.log",
    "dependsOn": [],
    "maxRetries": 5,
    "retryCount": 0,
    "retryDelay": 120,
}


async def order_of_claims(client: Talker, count: int) -> list[str]:
    return [(await taken(client))["uuid"] for _ in range(count)]


# --- the job -------------------------------------------------------------------------------------------------------


async def test_every_field_of_a_submitted_job_is_kept(client: Talker):
    await client.ok("create", job=ANSIBLE_JOB)
    found = await job(client, "deploy-1")
    assert {name: found[name] for name in ANSIBLE_JOB} == {**ANSIBLE_JOB, "status": "QUEUED"}
    assert found["createdAt"]


async def test_the_result_of_a_job_is_kept_with_its_times(client: Talker):
    await client.ok("create", job=ANSIBLE_JOB)
    result = {"exitCode": 0, "output": "ok=12 changed=3", "logPath": "/var/log/deploy-1.log"}
    ended = await run(client, job=result)
    assert {name: ended[name] for name in result} == result
    assert ended["createdAt"] <= ended["startedAt"] <= ended["completedAt"]
    assert ended["status"] == "COMPLETED"


@pytest.mark.parametrize("state", ["queued", "scheduled", "running", "completed", "failed", "cancelled", "timeout"])
async def test_every_state_is_known_in_its_spelling(client: Talker, state: str):
    made = await client.ok("create", job={"uuid": "job-1", "status": state})
    assert made["job"]["status"] == {"cancelled": "CANCELED"}.get(state, state.upper())
    assert await ids(client, filter={"status": state}) == ["job-1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "sleeping"}, {"priority": "urgent"}, {"timeout": -1}, {"maxRetries": "many"}, {"retryDelay": "2m"},
        {"dependsOn": "job-0"}, {"scheduledAt": "tomorrow"}, {"onDependencyFailure": "ignore"},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
async def test_a_job_that_cannot_be_meant_is_refused_by_the_name_of_its_field(client: Talker, fields: dict):
    code, text = await client.refused("create", job={"uuid": "job-1", "status": "QUEUED", **fields})
    assert code == "bad_request"
    assert next(iter(fields)) in text
    assert await total(client, "job") == 0


async def test_a_job_is_submitted_once_by_its_id_and_by_its_dedupe_key(client: Talker):
    await submit(client, "job-1", dedupeKey="deploy app1")
    assert (await client.refused("create", job={"uuid": "job-1", "status": "QUEUED"}))[0] == "exists"
    again = await client.ask("create", job={"uuid": "job-2", "status": "QUEUED", "dedupeKey": "deploy app1"})
    assert (again["code"], again["job"]["uuid"]) == ("exists", "job-1")
    await run(client)
    assert (await submit(client, "job-3", dedupeKey="deploy app1"))["uuid"] == "job-3"


async def test_a_secret_variable_is_seen_by_who_reads_the_job_and_by_nobody_else(daemon: Daemon):
    client, watcher = await daemon.client("client"), await daemon.client("watcher")
    await followed(watcher)
    made = await submit(client, "job-1", secretEnvironment={"VAULT": "hush-hush"})
    assert "secretEnvironment" not in made
    assert "hush-hush" not in str(await event(watcher))
    assert "hush-hush" not in str(await history(client, "job-1"))
    assert (await taken(client))["secretEnvironment"] == {"VAULT": "hush-hush"}
    assert (await job(client, "job-1"))["secretEnvironment"] == {"VAULT": "hush-hush"}


async def test_jobs_are_found_by_user_tag_and_type(client: Talker):
    await submit(client, "job-1", userId="ops", type="ansible", labels={"tag": "production"})
    await submit(client, "job-2", userId="dev", type="provisioning")
    assert await ids(client, filter={"where": {"userId": "ops"}}) == ["job-1"]
    assert await ids(client, filter={"where": {"type": "provisioning"}}) == ["job-2"]
    assert await ids(client, filter={"labels": {"tag": "production"}}) == ["job-1"]


# --- the queue -----------------------------------------------------------------------------------------------------


async def test_jobs_come_by_priority_and_in_order_of_age_within_one(client: Talker):
    for number in (1, 2):
        for name, priority in PRIORITIES.items():
            await submit(client, f"{name}-{number}", priority=priority)
    assert await order_of_claims(client, 8) == [
        f"{name}-{number}" for name in ("critical", "high", "normal", "low") for number in (1, 2)
    ]


async def test_a_priority_may_be_given_by_its_name(client: Talker):
    for name in PRIORITIES:
        await submit(client, name, priority=name)
    assert await order_of_claims(client, 4) == ["critical", "high", "normal", "low"]
    assert (await job(client, "high"))["priority"] == "high"


async def test_a_job_without_a_priority_is_a_normal_one(client: Talker):
    await submit(client, "low", priority=1)
    await submit(client, "unsaid")
    await submit(client, "high", priority=10)
    assert await order_of_claims(client, 3) == ["high", "unsaid", "low"]


async def test_no_two_workers_get_the_same_job(daemon: Daemon):
    client = await daemon.client("client")
    for number in range(40):
        await submit(client, f"job-{number:02d}")
    workers = [await daemon.client(f"worker-{number}") for number in range(8)]

    async def work(worker: Talker) -> list[str]:
        done = []
        while (held := await claim(worker, ttl=300)) is not None:
            done.append(held["uuid"])
        return done

    taken_by = await asyncio.gather(*(work(worker) for worker in workers))
    assert sorted(name for names in taken_by for name in names) == [f"job-{number:02d}" for number in range(40)]


async def test_a_started_job_is_running_and_names_its_worker(client: Talker):
    await submit(client, "job-1")
    held = await taken(client, holder="worker-1")
    assert (held["status"], held["lease"]["holder"]) == ("RUNNING", "worker-1")
    assert held["startedAt"]


async def test_a_free_worker_waits_for_the_next_job(daemon: Daemon):
    client, worker = await daemon.client("client"), await daemon.client("worker")
    worker.send({"op": "claim", "holder": "worker-1", "filter": {}, "wait": 60})
    await submit(client, "job-1")
    assert [one["uuid"] for one in (await worker.receive())["jobs"]] == ["job-1"]


async def test_an_empty_queue_gives_nothing_and_no_error(client: Talker):
    assert await claim(client) is None


async def test_a_worker_may_choose_what_it_takes(client: Talker):
    await submit(client, "job-1", type="ansible", priority=15)
    await submit(client, "job-2", type="provisioning")
    assert (await taken(client, filter={"where": {"type": "provisioning"}}))["uuid"] == "job-2"


async def test_several_jobs_are_taken_at_once(client: Talker):
    for number in range(5):
        await submit(client, f"job-{number}")
    reply = await client.ok("claim", holder="worker-1", filter={}, limit=3)
    assert [one["uuid"] for one in reply["jobs"]] == ["job-0", "job-1", "job-2"]


# --- scheduling ----------------------------------------------------------------------------------------------------


async def test_a_job_for_later_is_not_handed_out_before_its_time(client: Talker):
    await submit(client, "later", status="SCHEDULED", scheduledAt=a_time(7200))
    await submit(client, "later-too", startAfter=a_time(7200))
    await client.ok("sweep")
    assert await claim(client) is None
    assert await ids(client, filter={"status": "SCHEDULED"}, sortBy="scheduledAt") == ["later"]


@pytest.mark.parametrize("field", ["scheduledAt", "startAfter"])
async def test_a_scheduled_job_is_handed_out_once_its_time_has_come(client: Talker, field: str):
    await submit(client, "soon", status="SCHEDULED", **{field: a_time(0.3)})
    assert (await taken(client, wait=60))["uuid"] == "soon"


async def test_of_due_jobs_the_one_scheduled_first_comes_first(client: Talker):
    await submit(client, "second", status="SCHEDULED", scheduledAt=a_time(-60))
    await submit(client, "first", status="SCHEDULED", scheduledAt=a_time(-3600))
    assert await order_of_claims(client, 2) == ["first", "second"]


# --- dependencies --------------------------------------------------------------------------------------------------


async def test_a_job_waits_for_what_it_depends_on(client: Talker):
    await submit(client, "db")
    await submit(client, "app", dependsOn=["db"], priority=15)
    held = await taken(client)
    assert held["uuid"] == "db"
    assert await claim(client) is None
    await client.ok("release", jobId="db", token=held["lease"]["token"], status="COMPLETED")
    assert (await taken(client, wait=60))["uuid"] == "app"


async def test_a_job_waits_for_all_it_depends_on(client: Talker):
    for name in ("db", "cache"):
        await submit(client, name)
    await submit(client, "app", dependsOn=["db", "cache"])
    await run(client)
    await client.ok("sweep")
    held = await taken(client)
    assert held["uuid"] == "cache"
    await client.ok("release", jobId="cache", token=held["lease"]["token"], status="COMPLETED")
    assert (await taken(client, wait=60))["uuid"] == "app"


async def test_a_chain_of_jobs_runs_in_its_order(client: Talker):
    await submit(client, "third", dependsOn=["second"])
    await submit(client, "second", dependsOn=["first"])
    await submit(client, "first")
    for name in ("first", "second", "third"):
        held = await taken(client, wait=60)
        assert held["uuid"] == name
        await client.ok("release", jobId=name, token=held["lease"]["token"], status="COMPLETED")


@pytest.mark.parametrize(("reaction", "status"), [(None, "FAILED"), ("fail", "FAILED"), ("cancel", "CANCELED")])
async def test_a_failed_dependency_ends_its_dependents(client: Talker, reaction: str | None, status: str):
    said = {} if reaction is None else {"onDependencyFailure": reaction}
    await submit(client, "db")
    await submit(client, "app", dependsOn=["db"], **said)
    await run(client, "FAILED")
    assert "db" in (await has_status(client, "app", status))["error"]
    await submit(client, "late", dependsOn=["db"], **said)
    await has_status(client, "late", status)


async def test_a_job_whose_dependency_is_missing_waits_and_is_named_as_stuck(client: Talker):
    await submit(client, "app", dependsOn=["nobody"])
    await client.ok("sweep")
    assert await claim(client) is None
    (stuck,) = (await client.ok("stuck"))["stuck"]
    assert stuck["id"] == "app"
    assert any("nobody" in reason or "dependency" in reason for reason in stuck["reasons"])
