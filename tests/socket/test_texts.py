"""The texts and codes an agent may depend on, exactly as documented."""

from __future__ import annotations

import json

import pytest

from statesvc_client import __version__
from tests.socket.talking import Daemon, Talker

JOB = {"uuid": "a", "status": "RUNNING"}


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        ({"op": "create"}, "bad_request", "CREATE_ERROR: job is required"),
        ({"op": "create", "job": None}, "bad_request", "CREATE_ERROR: job is required"),
        ({"op": "create", "jobId": "a"}, "bad_request", "CREATE_ERROR: job is required"),
        ({"op": "create", "job": JOB}, "exists", "CREATE_ERROR: job already exists"),
        ({"op": "update"}, "bad_request", "UPDATE_ERROR: job is required"),
        ({"op": "update", "jobId": "a", "job": None}, "bad_request", "UPDATE_ERROR: job is required"),
        ({"op": "update", "job": {"uuid": "x", "pid": 1}}, "not_found", "UPDATE_ERROR: job not found"),
        ({"op": "update", "jobId": "x", "job": {"status": ""}}, "not_found", "UPDATE_ERROR: job not found"),
        ({"op": "delete"}, "bad_request", "DELETE_ERROR: jobID is required"),
        ({"op": "delete", "jobId": ""}, "bad_request", "DELETE_ERROR: jobID is required"),
        ({"op": "delete", "jobId": "x"}, "not_found", "DELETE_ERROR: job not found"),
        ({"op": "get"}, "bad_request", "GET_ERROR: jobID is required"),
        ({"op": "get", "jobId": "", "id": ""}, "bad_request", "GET_ERROR: jobID is required"),
        ({"op": "get", "jobId": "x"}, "not_found", "GET_ERROR: job not found"),
        ({"op": "sync"}, "bad_request", "SYNC_ERROR: jobs array is required"),
        ({"op": "sync", "jobs": None}, "bad_request", "SYNC_ERROR: jobs array is required"),
        ({"op": "sync", "jobs": []}, "bad_request", "SYNC_ERROR: jobs array is required"),
        ({"op": "fly"}, "unknown_op", "unknown operation: fly"),
        ({"op": ""}, "unknown_op", "unknown operation: "),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
async def test_a_refusal_has_its_code_and_its_text(joblet: Talker, frame: dict, code: str, text: str):
    await joblet.ok("create", job=JOB)
    joblet.send({**frame, "requestId": "r-1"})
    reply = await joblet.receive()
    outcome = {"outcome": "not_applied"} if frame["op"] in {"create", "update", "delete", "sync"} else {}
    assert reply == {"requestId": "r-1", "success": False, "error": text, "code": code, **outcome}


async def test_what_is_no_json_is_told_so_with_an_empty_request_id(joblet: Talker):
    for frame in (b"hello\n", b'{"op":"get","requestId":"r"\n', b"[]\n", b"\n"):
        joblet.send_raw(frame)
        reply = await joblet.receive()
        assert reply.pop("error").startswith("INVALID_JSON: ")
        assert reply == {"requestId": "", "success": False, "code": "bad_json"}


async def test_a_success_is_said_shortly(joblet: Talker):
    joblet.send_raw(b'{"op":"ping","requestId":"p"}\n')
    assert await joblet.line() == b'{"requestId":"p","success":true}\n'
    await joblet.ok("create", job=JOB)
    joblet.send_raw(b'{"op":"delete","jobId":"a","requestId":"d"}\n')
    assert await joblet.line() == b'{"requestId":"d","success":true}\n'


async def test_a_request_without_a_request_id_is_answered_with_an_empty_one(joblet: Talker):
    assert await joblet.ask("ping") == {"requestId": "", "success": True}


@pytest.mark.parametrize("request_id", ["", "r", "ü\n\u0000", 0, -5, 2**70])
async def test_a_request_id_comes_back_as_it_was(joblet: Talker, request_id: str | int):
    assert await joblet.ask("ping", requestId=request_id) == {"requestId": request_id, "success": True}


async def test_an_empty_list_leaves_the_jobs_out_for_an_agent_without_hello(joblet: Talker):
    reply = await joblet.ok("list", requestId="l")
    assert set(reply) <= {"requestId", "success", "asOf"}


async def test_hello_tells_what_the_daemon_is(daemon: Daemon):
    talker = await daemon.talker()
    reply = await talker.ok("hello", client="c", name="agent", nodeId="n", bootId="b", ack="each", protocol=1)
    assert reply["protocol"] == 1
    assert reply["version"] == __version__
    assert reply["backend"] == daemon.engine.name
    assert reply["durability"] == daemon.engine.durability
    assert reply["epoch"] == daemon.engine.epoch
    assert reply["limits"] == {
        "frameBytes": 10 * 1024 * 1024,
        "frameValues": 200_000,
        "depth": 256,
        "idChars": 256,
        "recordBytes": 8 * 1024 * 1024,
        "requestsInFlight": 4096,
        "listLimit": 1000,
        "marksClients": 64,
    }


async def test_hello_in_another_protocol_is_refused(joblet: Talker):
    code, text = await joblet.refused("hello", client="c", protocol=2)
    assert code == "bad_request"
    assert text.startswith("HELLO_ERROR: ")
    assert "2" in text
    assert (await joblet.ask("ping"))["success"]


async def test_an_unknown_status_names_the_known_ones(joblet: Talker):
    for op in ("create", "update"):
        code, text = await joblet.refused(op, job={"uuid": "s", "status": "SLEEPING"})
        assert code == "bad_request"
        for known in ("SLEEPING", "PENDING", "RUNNING", "TIMEOUT"):
            assert known in text


async def test_another_kind_is_named_in_its_texts(joblet: Talker):
    assert await joblet.refused("get", kind="kv", id="x") == ("not_found", "GET_ERROR: kv not found")
    assert await joblet.refused("create", kind="kv", id="x") == ("bad_request", "CREATE_ERROR: record is required")
    assert await joblet.refused("get", kind="kv") == ("bad_request", "GET_ERROR: id is required")
    assert await joblet.refused("sync", kind="kv") == ("bad_request", "SYNC_ERROR: records array is required")
    await joblet.ok("create", kind="kv", record={"id": "x", "value": 1})
    assert await joblet.refused("create", kind="kv", record={"id": "x"}) == (
        "exists",
        "CREATE_ERROR: kv already exists",
    )
