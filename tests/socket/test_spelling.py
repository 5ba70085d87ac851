"""Two spellings of everything: the seed's request, Joblet's own fields, and the names of other kinds."""

from __future__ import annotations

import pytest

from tests.socket.talking import Talker

SEED = (
    b'{"op": "create", "jobId": "abc123", "job": {"uuid": "abc123", "status": "RUNNING", "command": "echo test", '
    b'"createdAt": "2025-10-26T00:00:00Z"}, "requestId": "req-001", "timestamp": 1698432000}\n'
)

JOBLET = {
    "Uuid": "abc123",
    "Name": "",
    "Type": "standard",
    "Status": "RUNNING",
    "Command": "echo",
    "Args": ["test", ""],
    "Pid": 4242,
    "ExitCode": 0,
    "StartTime": "2025-10-26T00:00:01.123456789+02:00",
    "EndTime": None,
    "ScheduledTime": None,
    "NodeId": "node-1",
    "Environment": {"PATH": "/bin"},
    "Limits": {"CPU": {"Value": 100}, "Memory": {"Value": 0}},
    "Dependencies": [],
    "GPUIndices": [0, 1],
    "Mystery": {"Kept": ["as", "it", "is"]},
}

MANAGED = {"uid", "revision", "createdAt", "updatedAt", "startedAt"}


async def test_the_request_of_the_seed_is_answered_with_the_job(joblet: Talker):
    joblet.send_raw(SEED)
    reply = await joblet.receive()
    job = reply["job"]
    assert (reply["requestId"], reply["success"]) == ("req-001", True)
    assert "error" not in reply
    assert {name: job[name] for name in ("uuid", "status", "command", "createdAt")} == {
        "uuid": "abc123",
        "status": "RUNNING",
        "command": "echo test",
        "createdAt": "2025-10-26T00:00:00Z",
    }
    assert (await joblet.ok("get", jobId="abc123"))["job"] == job


async def test_joblets_spelling_of_a_job_comes_back_in_ours_with_nothing_lost(joblet: Talker):
    await joblet.ok("create", job=JOBLET)
    job = (await joblet.ok("get", jobId="abc123"))["job"]
    assert set(job) >= MANAGED
    assert {name: value for name, value in job.items() if name not in MANAGED} == {
        "uuid": "abc123",
        "name": "",
        "type": "standard",
        "status": "RUNNING",
        "command": "echo",
        "args": ["test", ""],
        "pid": 4242,
        "exitCode": 0,
        "startTime": "2025-10-26T00:00:01.123456789+02:00",
        "endTime": None,
        "scheduledTime": None,
        "nodeId": "node-1",
        "environment": {"PATH": "/bin"},
        "limits": {"CPU": {"Value": 100}, "Memory": {"Value": 0}},
        "dependencies": [],
        "gpuIndices": [0, 1],
        "Mystery": {"Kept": ["as", "it", "is"]},
    }


async def test_both_spellings_of_a_job_are_one_record(joblet: Talker):
    await joblet.ok("create", job=JOBLET)
    await joblet.ok("update", job={"uuid": "abc123", "status": "COMPLETED", "exitCode": 1})
    await joblet.ok("update", job={"UUID": "abc123", "EXITCODE": 2})
    job = (await joblet.ok("get", jobId="abc123"))["job"]
    assert (job["revision"], job["status"], job["exitCode"]) == (3, "COMPLETED", 2)
    assert not {"UUID", "EXITCODE", "ExitCode", "Uuid"} & set(job)


@pytest.mark.parametrize("name", ["jobId", "id", "job_uuid", "JobId", "JOBID", "jobid", "ID", "JOB_UUID"])
async def test_every_spelling_of_the_id_means_the_same(joblet: Talker, name: str):
    await joblet.ok("create", job={"status": "RUNNING"}, **{name: "j"})
    assert (await joblet.ok("get", **{name: "j"}))["job"]["uuid"] == "j"
    await joblet.ok("update", job={"pid": 1}, **{name: "j"})
    await joblet.ok("delete", **{name: "j"})
    assert (await joblet.ask("get", jobId="j"))["code"] == "not_found"


@pytest.mark.parametrize("name", ["uuid", "Uuid", "UUID", "jobId", "JobID", "job_uuid"])
async def test_the_id_may_stand_inside_the_job(joblet: Talker, name: str):
    job = (await joblet.ok("create", job={name: "j"}))["job"]
    assert job["uuid"] == "j"
    assert (await joblet.ok("update", job={name: "j", "pid": 1}))["job"]["pid"] == 1


async def test_for_jobs_record_stands_for_job_and_records_for_jobs(joblet: Talker):
    assert (await joblet.ok("create", record={"uuid": "a"}))["job"]["uuid"] == "a"
    assert (await joblet.ok("update", id="a", record={"pid": 1}))["job"]["pid"] == 1
    assert (await joblet.ok("sync", records=[{"uuid": "b"}]))["applied"] == 1


async def test_envelope_keys_are_matched_in_any_case_and_unknown_ones_ignored(joblet: Talker):
    joblet.send_raw(b'{"OP":"create","REQUESTID":"r","Job":{"UUID":"a"},"colour":"blue","Seq":null}\n')
    assert (await joblet.receive())["requestId"] == "r"
    await joblet.ok("update", JOBID="a", SET={"pid": 7}, IFREVISION=1)
    reply = await joblet.ok("list", FILTER={"IDS": ["a"]})
    assert reply["jobs"][0]["pid"] == 7


async def test_two_ids_that_differ_are_refused(joblet: Talker):
    code, text = await joblet.refused("create", jobId="a", job={"uuid": "b"})
    assert code == "bad_request"
    assert "a" in text
    assert "b" in text
    assert (await joblet.ok("create", jobId="a", job={"uuid": "a"}))["job"]["uuid"] == "a"


async def test_a_field_given_in_two_spellings_is_refused(joblet: Talker):
    code, text = await joblet.refused("create", job={"uuid": "a", "status": "RUNNING", "Status": "FAILED"})
    assert code == "bad_request"
    assert "status" in text


async def test_other_kinds_use_id_record_and_records(joblet: Talker):
    made = await joblet.ok("create", kind="kv", id="k", record={"value": {"any": ["json", None]}})
    assert "job" not in made
    assert made["record"]["id"] == "k"
    assert made["record"]["value"] == {"any": ["json", None]}
    assert (await joblet.ok("get", kind="kv", id="k"))["record"] == made["record"]
    assert (await joblet.ok("update", kind="kv", record={"id": "k", "status": "anything at all"}))["success"]
    assert (await joblet.ask("get", id="k"))["code"] == "not_found"


async def test_a_kind_with_an_odd_name_is_refused(joblet: Talker):
    for kind in ("", "KV", "a b", "../x", "x" * 65, "é"):
        assert (await joblet.refused("get", kind=kind, id="a"))[0] == "bad_request"
