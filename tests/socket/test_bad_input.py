"""Bad input: one reply a line, a fixed code, the state unchanged, the connection usable."""

from __future__ import annotations

import json

from statesvc.backends.port import Engine
from statesvc.config.model import Limits
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker

DEEP = 100_000
LINES = [
    (b'{"op":"create","job":{"uuid":"b"', "bad_json"),
    (b'{"op":"delete","jobId":"a"', "bad_json"),
    (b'{"op":"delete","jobId":"a"}}', "bad_json"),
    (b'{"op":"delete","jobId":"a"}{"op":"delete","jobId":"a"}', "bad_json"),
    (b'{"op":"delete","jobId":"a"} {"op":"ping"}', "bad_json"),
    (b'[{"op":"delete","jobId":"a"}]', "bad_json"),
    (b'"delete"', "bad_json"),
    (b"5", "bad_json"),
    (b"null", "bad_json"),
    (b"", "bad_json"),
    (b"   ", "bad_json"),
    (b"\x00", "bad_json"),
    (b"\xff\xfe\xfd", "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":"\xff"}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"\xc3":1}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":"\xed\xa0\x80"}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":"\\ud800"}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":"\\udfff\\ud800"}}', "bad_json"),
    (b'{"op":"get","jobId":"\\ud800"}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":NaN}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":-Infinity}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":1e999}}', "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":' + b"9" * 100_000 + b"}}", "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":' + b"[" * DEEP + b"]" * DEEP + b"}}", "bad_json"),
    (b'{"op":"update","jobId":"a","job":{"x":' + b"[" * DEEP, "bad_json"),
    (b'{"a":' * DEEP, "bad_json"),
    (b'{"op":"delete","jobId":"a\\u0000"}', "bad_request"),
    (b'{"op":"delete","jobId":["a"]}', "bad_request"),
    (b'{"op":"delete","jobId":{"a":1}}', "bad_request"),
    (b'{"op":"delete","jobId":1}', "bad_request"),
    (b'{"op":"delete","jobId":true}', "bad_request"),
    (b'{"op":"delete","jobId":"a","ifRevision":"1"}', "bad_request"),
    (b'{"op":"delete","jobId":"a","ifRevision":99999999999999999999}', "bad_request"),
    (b'{"op":"delete","jobId":"a","seq":99999999999999999999}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":[]}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"Status":"FAILED","status":"FAILED"}}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"status":{}}}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"nodeId":1}}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"labels":[]}}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"priority":true}}', "bad_request"),
    (b'{"op":"update","jobId":"a","job":{"scheduledAt":"soon"}}', "bad_request"),
    (b'{"op":"update","jobId":"a","inc":{"x":null}}', "bad_request"),
    (b'{"op":"update","jobId":"a","inc":{"x":true}}', "bad_request"),
    (b'{"op":"update","jobId":"a","append":{"x":{}}}', "bad_request"),
    (b'{"op":"update","jobId":"a","kind":"JOB!","job":{}}', "bad_request"),
    (b'{"op":"sync","jobs":[null]}', "bad_request"),
    (b'{"op":"sync","jobs":[{"uuid":"a","x":1},null]}', "bad_request"),
    (b'{"op":"sync","jobs":"a"}', "bad_request"),
    (b'{"op":"delete","jobId":"a","requestId":{}}', "bad_request"),
    (b'{"op":"delete","jobId":"a","JobID":"b"}', "bad_request"),
    (b'{"op":"delete","jobId":"b","id":"a"}', "bad_request"),
    (b'{"op":["delete"],"jobId":"a"}', "bad_request"),
    (b'{"op":null,"jobId":"a"}', "bad_request"),
    (b'{"op":"DELETE","jobId":"a"}', "unknown_op"),
    (b'{"op":"delete\\u0000","jobId":"a"}', "unknown_op"),
    (b'{"jobId":"a"}', "unknown_op"),
    (b"{}", "unknown_op"),
]


async def test_a_bad_line_gets_its_code_and_changes_nothing(daemon: Daemon):
    talkers = [await daemon.talker(), await daemon.client("c")]
    before = (await talkers[0].ok("create", job={"uuid": "a", "status": "RUNNING", "text": "t"}))["job"]
    position = await daemon.engine.position()
    for line, code in LINES:
        for talker, ending in zip(talkers * 2, [b"\n", b"\n", b"\r\n", b"\r\n"], strict=True):
            talker.send_raw(line + ending)
            reply = await talker.receive()
            assert (reply["success"], reply["code"]) == (False, code), line[:100]
            assert len(json.dumps(reply)) < 1000
            assert await talker.ask("ping", requestId="still here") == {"requestId": "still here", "success": True}
        assert (await talkers[1].ok("get", jobId="a"))["job"] == before, line[:100]
        written = [entry.row.key for entry in await daemon.engine.read_log(position, 100)]
        assert [key for key in written if key != ("lock", "_sweeper")] == [], line[:100]


async def test_a_line_that_ends_as_on_windows_is_a_line(joblet: Talker):
    joblet.send_raw(b'{"op":"create","job":{"uuid":"a"}}\r\n{"op":"get","jobId":"a"}\r\n\r\n')
    made, got, empty = await joblet.receive_all(3)
    assert made["job"] == got["job"]
    assert empty["code"] == "bad_json"


async def test_of_a_key_given_twice_the_last_one_counts(joblet: Talker):
    """JSON leaves it open; that it is always the same one is what matters."""
    joblet.send_raw(b'{"op":"create","job":{"uuid":"a","x":1,"x":2},"job":{"uuid":"b","x":3,"x":4}}\n')
    assert (await joblet.receive())["job"]["x"] == 4
    assert (await joblet.ask("get", jobId="a"))["code"] == "not_found"
    assert (await joblet.ok("get", jobId="b"))["job"]["x"] == 4


async def test_a_huge_integer_is_kept_where_it_is_the_users_own(joblet: Talker):
    joblet.send_raw(b'{"op":"create","job":{"uuid":"a","x":' + b"9" * 300 + b',"priority":' + b"9" * 30 + b"}}\n")
    assert (await joblet.receive())["success"]
    assert (await joblet.ok("get", jobId="a"))["job"]["x"] == int("9" * 300)


async def ended(talker: Talker) -> None:
    """The daemon says nothing more and closes, however much is still sent."""
    assert await talker.line() == b""


async def test_a_frame_that_is_too_long_ends_the_connection_after_its_reply(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(frame_bytes=8192, record_bytes=4096))
    talker, other = await daemon.talker(), await daemon.talker()
    talker.send({"op": "create", "job": {"uuid": "a"}, "requestId": 1})
    talker.send_raw(b"x" * 100_000)
    assert (await talker.receive())["requestId"] == 1
    reply = await talker.receive()
    assert (reply["requestId"], reply["success"], reply["code"]) == ("", False, "too_large")
    talker.send({"op": "delete", "jobId": "a"})
    await ended(talker)
    assert (await other.ok("get", jobId="a"))["job"]["revision"] == 1
    exact = b'{"op":"ping","x":"' + b"y" * (8192 - 20) + b'"}'
    assert len(exact) == 8192
    other.send_raw(exact + b"\n")
    assert (await other.receive())["success"]


async def test_a_frame_that_is_too_long_behind_one_that_is_answered_at_once_is_told(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(frame_bytes=8192, record_bytes=4096))
    talker = await daemon.talker()
    talker.send_raw(b'{"op":"ping","requestId":1}\n' + b"x" * 10_000)
    assert (await talker.receive())["requestId"] == 1
    assert (await talker.receive())["code"] == "too_large"
    await ended(talker)


async def test_a_frame_of_too_many_values_ends_the_connection_after_its_reply(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(frame_values=1000))
    talker, other = await daemon.talker(), await daemon.talker()
    jobs = b",".join(b'{"uuid":"%d"}' % number for number in range(600))
    talker.send_raw(b'{"op":"ping"}\n{"op":"sync","jobs":[' + jobs + b']}\n{"op":"create","job":{"uuid":"x"}}\n')
    assert (await talker.receive())["success"]
    assert (await talker.receive())["code"] == "too_large"
    await ended(talker)
    for name in ("0", "x"):
        assert (await other.ask("get", jobId=name))["code"] == "not_found"


async def test_a_million_levels_cost_one_connection_and_nobody_else(daemon: Daemon):
    talker, other = await daemon.talker(), await daemon.talker()
    talker.send_raw(b"[" * 1_000_000 + b"\n")
    assert (await talker.receive())["code"] == "too_large"
    await ended(talker)
    assert (await other.ok("ping"))["success"]
