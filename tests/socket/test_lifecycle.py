"""The job lifecycle: stepwise for clients that said hello, as far as reachable for whole records; final is final.

The table is written down here as the design has it, on purpose a second time.
"""

from __future__ import annotations

import pytest

from tests.socket.talking import Daemon, Talker

EDGES = {
    "PENDING": "INITIALIZING SCHEDULED QUEUED RUNNING FAILED CANCELED",
    "INITIALIZING": "SCHEDULED QUEUED RUNNING FAILED STOPPED CANCELED",
    "SCHEDULED": "INITIALIZING QUEUED RUNNING FAILED CANCELED",
    "QUEUED": "SCHEDULED INITIALIZING RUNNING FAILED CANCELED",
    "RUNNING": "STOPPING COMPLETED FAILED STOPPED CANCELED TIMEOUT",
    "STOPPING": "STOPPED COMPLETED FAILED CANCELED TIMEOUT",
    "COMPLETED": "",
    "FAILED": "",
    "STOPPED": "",
    "CANCELED": "",
    "TIMEOUT": "",
}
STEPS = {state: set(after.split()) for state, after in EDGES.items()}
FINAL = {state for state, after in STEPS.items() if not after}


def reachable(state: str) -> set[str]:
    seen: set[str] = set()
    ahead = {state}
    while ahead:
        ahead = {after for each in ahead for after in STEPS[each]} - seen
        seen |= ahead
    return seen


@pytest.mark.parametrize("before", STEPS)
async def test_after_hello_a_job_moves_step_by_step(client: Talker, before: str):
    for after in STEPS:
        name = f"{before}-{after}"
        await client.write("create", job={"uuid": name, "status": before})
        reply = await client.write("update", jobId=name, job={"status": after, "n": 1})
        job = (await client.ok("get", jobId=name))["job"]
        if after == before or after in STEPS[before]:
            assert reply["success"], reply
            assert (job["status"], job["revision"]) == (after, 2)
        else:
            assert (reply["code"], reply["outcome"]) == ("invalid_transition", "not_applied"), (before, after)
            assert (job["status"], job["revision"]) == (before, 1)
            assert "n" not in job


@pytest.mark.parametrize("before", STEPS)
async def test_a_whole_record_moves_to_any_state_that_is_reachable(joblet: Talker, before: str):
    for after in STEPS:
        name = f"{before}-{after}"
        await joblet.ok("create", job={"uuid": name, "status": before})
        reply = await joblet.ask("update", job={"uuid": name, "status": after, "n": 1})
        synced = await joblet.ok("sync", jobs=[{"uuid": name, "status": after, "n": 2}])
        job = (await joblet.ok("get", jobId=name))["job"]
        if after == before or after in reachable(before):
            assert reply["success"], reply
            assert synced["applied"] == 1
            assert (job["status"], job["n"]) == (after, 2)
        else:
            assert reply["code"] == "invalid_transition"
            assert [each["code"] for each in synced["rejected"]] == ["invalid_transition"]
            assert (job["status"], job["revision"]) == (before, 1)
            assert "n" not in job


async def test_a_record_may_be_created_in_any_state(client: Talker):
    for state in STEPS:
        job = (await client.write("create", job={"uuid": state, "status": state}))["job"]
        assert job["status"] == state
        assert ("completedAt" in job) is (state in FINAL)
        assert ("startedAt" in job) is (state == "RUNNING")


@pytest.mark.parametrize("final", sorted(FINAL))
async def test_a_final_state_is_final_and_other_fields_may_still_change(client: Talker, final: str):
    await client.write("create", job={"uuid": "a", "status": final, "exitCode": None})
    for other in STEPS.keys() - {final}:
        reply = await client.write("update", jobId="a", job={"status": other})
        assert reply["code"] == "invalid_transition"
        assert final in reply["error"]
        reply = await client.write("update", jobId="a", set={"status": other})
        assert reply["code"] == "invalid_transition"
    job = (await client.write("update", jobId="a", job={"exitCode": 3, "status": final}))["job"]
    assert (job["exitCode"], job["status"], job["revision"]) == (3, final, 2)


@pytest.mark.parametrize(
    ("written", "kept"),
    [("running", "RUNNING"), ("Running", "RUNNING"), ("CANCELLED", "CANCELED"), ("cancelled", "CANCELED")],
)
async def test_states_are_matched_in_any_case_and_cancelled_is_canceled(joblet: Talker, written: str, kept: str):
    assert (await joblet.ok("create", job={"uuid": "a", "status": written}))["job"]["status"] == kept
    assert (await joblet.ok("update", job={"uuid": "a", "status": written}))["job"]["status"] == kept


@pytest.mark.parametrize("empty", ["", None])
async def test_an_empty_status_counts_as_absent(daemon: Daemon, empty: str | None):
    joblet, client = await daemon.talker(), await daemon.client()
    job = (await joblet.ok("create", job={"uuid": "a", "status": empty}))["job"]
    assert "status" not in job
    await joblet.ok("update", job={"uuid": "a", "status": "RUNNING"})
    for talker in (joblet, client):
        job = (await talker.ok("update", jobId="a", job={"status": empty, "x": 1}))["job"]
        assert job["status"] == "RUNNING"
    report = await joblet.ok("sync", jobs=[{"uuid": "a", "status": empty, "x": 1}])
    assert (report["applied"], report["unchanged"]) == (0, 1)


@pytest.mark.parametrize("bad", ["DONE", 5, True, [], {}, "RUNNING "])
async def test_a_status_that_is_not_known_is_refused_everywhere(joblet: Talker, bad: object):
    await joblet.ok("create", job={"uuid": "a", "status": "RUNNING"})
    assert (await joblet.ask("create", job={"uuid": "b", "status": bad}))["code"] == "bad_request"
    assert (await joblet.ask("update", job={"uuid": "a", "status": bad}))["code"] == "bad_request"
    report = await joblet.ask("sync", jobs=[{"uuid": "a", "status": bad}])
    assert report.get("code") == "bad_request" or report["rejected"][0]["code"] == "bad_request"
    assert (await joblet.ok("get", jobId="a"))["job"]["revision"] == 1


async def test_times_follow_the_states(client: Talker):
    await client.write("create", job={"uuid": "a", "status": "QUEUED"})
    job = (await client.write("update", jobId="a", job={"status": "RUNNING"}))["job"]
    assert job["startedAt"] == job["updatedAt"]
    started = job["startedAt"]
    job = (await client.write("update", jobId="a", job={"status": "STOPPING"}))["job"]
    job = (await client.write("update", jobId="a", job={"status": "STOPPED"}))["job"]
    assert job["startedAt"] == started
    assert job["completedAt"] == job["updatedAt"]


async def test_without_hello_an_update_with_a_status_creates_and_the_late_create_is_told_so(joblet: Talker):
    job = (await joblet.ok("update", job={"uuid": "a", "status": "RUNNING", "pid": 1}))["job"]
    assert (job["revision"], job["status"], job["pid"]) == (1, "RUNNING", 1)
    late = {"uuid": "a", "status": "PENDING"}
    assert await joblet.refused("create", job=late) == ("exists", "CREATE_ERROR: job already exists")
    assert (await joblet.ok("get", jobId="a"))["job"]["status"] == "RUNNING"


async def test_a_kind_without_a_lifecycle_takes_any_status(joblet: Talker):
    await joblet.ok("create", kind="thing", record={"id": "a", "status": "Sleeping"})
    await joblet.ok("update", kind="thing", record={"id": "a", "status": "awake"})
    await joblet.ok("update", kind="thing", record={"id": "a", "status": "Sleeping"})
    assert (await joblet.ok("get", kind="thing", id="a"))["record"]["status"] == "Sleeping"


async def test_a_lifecycle_can_be_extended_by_the_configuration(engine, start):
    lifecycles = {"job": {"RUNNING": ("PAUSED",), "PAUSED": ("RUNNING", "ABANDONED")}, "door": {"OPEN": ("SHUT",)}}
    daemon = await start(engine, lifecycles=lifecycles)
    client = await daemon.client()
    await client.write("create", job={"uuid": "a", "status": "RUNNING"})
    for state in ("PAUSED", "RUNNING", "PAUSED", "ABANDONED"):
        assert (await client.write("update", jobId="a", job={"status": state.lower()}))["success"]
    job = (await client.ok("get", jobId="a"))["job"]
    assert job["status"] == "ABANDONED"
    assert "completedAt" in job
    await client.write("create", kind="door", record={"id": "d", "status": "shut"})
    reply = await client.write("update", kind="door", id="d", record={"status": "OPEN"})
    assert reply["code"] == "invalid_transition"
