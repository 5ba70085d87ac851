"""F8, bad input to a real daemon: one reply a line, a fixed code, the state unchanged, the others served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, Reply, serving
from tests.faults.bad_lines import LINES
from tests.faults.program import scratch

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """One for all of these: none of them may leave a trace. It has to end as if nothing had been."""
    with scratch() as folder, serving(folder, backend=request.param) as daemon:
        yield daemon
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.stderr
        assert daemon.events("handler_failed") == []


@pytest.fixture
def talkers(daemon: Daemon) -> Iterator[list[Client]]:
    """One that never says hello, one that has."""
    with daemon.connect() as plain, daemon.connect() as greeted:
        assert greeted.hello("c")["success"]
        yield [plain, greeted]


@pytest.fixture
def record(daemon: Daemon) -> Iterator[Reply]:
    """What bad lines would like to change."""
    with daemon.connect() as client:
        yield client.ask("create", job={"uuid": "a", "status": "RUNNING", "text": "t"})["job"]
        assert client.ask("delete", jobId="a")["success"]


def end_of_the_log(client: Client) -> str:
    return str(client.ask("list", limit=1)["asOf"])


def test_a_bad_line_gets_its_code_and_changes_nothing(talkers: list[Client], record: Reply):
    plain, greeted = talkers
    end = end_of_the_log(plain)
    for what, (code, line) in LINES.items():
        for talker in talkers:
            for ending in (b"\n", b"\r\n"):
                talker.send_raw(line + ending)
                reply = talker.reply()
                assert (reply["success"], reply.get("code")) == (False, code), what
                assert reply.get("outcome", "not_applied") == "not_applied", what
                assert len(json.dumps(reply)) < 1000, what
                assert talker.ask("ping", requestId="still here") == {"requestId": "still here", "success": True}, what
        assert greeted.ask("get", jobId="a")["job"] == record, what
        assert end_of_the_log(plain) == end, what


def test_all_bad_lines_in_one_go_get_their_codes_in_order(talkers: list[Client], record: Reply):
    for talker in talkers:
        short = [(code, line) for code, line in LINES.values() if len(line) < 1000]
        talker.send_raw(b"".join(line + b"\n" for _, line in short))
        assert [talker.reply()["code"] for _ in short] == [code for code, _ in short]


def test_a_bad_line_byte_by_byte_is_the_same_line(talkers: list[Client]):
    for talker in talkers:
        for byte in b'{"op":"delete","jobId":"a"}}\r\n\n{"op":"ping","requestId":1}\n':
            talker.send_raw(bytes((byte,)))
        assert [talker.reply().get("code") for _ in range(3)] == ["bad_json", "bad_json", None]


def test_a_line_that_ends_as_on_windows_is_a_line(talkers: list[Client]):
    plain, _ = talkers
    plain.send_raw(b'{"op":"create","job":{"uuid":"w"}}\r\n{"op":"get","jobId":"w"}\r\n\r\n')
    made, got, empty = (plain.reply() for _ in range(3))
    assert made["job"] == got["job"]
    assert empty["code"] == "bad_json"


def test_a_huge_integer_is_kept_where_it_is_the_users_own(talkers: list[Client]):
    plain, _ = talkers
    plain.send_raw(b'{"op":"create","job":{"uuid":"h","x":' + b"9" * 300 + b',"priority":' + b"9" * 30 + b"}}\n")
    assert plain.reply()["success"]
    assert plain.ask("get", jobId="h")["job"]["x"] == int("9" * 300)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("sync", {"mode": "x" * 100_000}),
        ("restore", {"path": "x" * 100_000}),
        ("emit", {"jobId": "a", "event": {"type": "t", "y" * 100_000: 1}}),
        ("list", {"filter": {"z" * 100_000: 1}}),
        ("hello", {"ack": "x" * 100_000}),
    ],
)
def test_an_error_repeats_what_was_sent_only_in_part(talkers: list[Client], op: str, fields: dict):
    reply = talkers[0].ask(op, **fields)
    assert reply["code"] in {"bad_request", "not_found"}
    assert len(reply["error"]) < 1000


# --- frames that are too large ---------------------------------------------------------------------------------------


def ends_with(daemon: Daemon, code: str, *pieces: bytes) -> None:
    """The connection has one reply, with that code, and ends; what is sent behind it is not looked at."""
    with daemon.connect() as talker, daemon.connect() as other:
        try:
            for piece in pieces:
                talker.send_raw(piece)
        except ConnectionError:
            pass  # it need not be taken to the end
        reply = talker.reply()
        assert (reply["requestId"], reply["success"], reply["code"]) == ("", False, code)
        assert talker.replies() == []
        assert other.ask("ping")["success"]


def test_a_depth_of_a_million_costs_one_connection_and_nobody_else(daemon: Daemon):
    ends_with(daemon, "too_large", b"[" * 1_000_000 + b"\n")
    ends_with(daemon, "too_large", b'{"a":' * 1_000_000 + b"\n")


TEN_MILLION = 10_000_000


def test_ten_million_lists_in_a_frame_cost_one_connection_and_a_bounded_amount_of_memory(daemon: Daemon):
    """What does not fit a frame is refused while it comes, what fits before it is decoded."""
    daemon.reset_peak()
    before = daemon.peak_bytes()
    for _ in range(3):
        ends_with(daemon, "too_large", *[b"[]," * 100_000] * (TEN_MILLION // 100_000))
        ends_with(daemon, "too_large", b'{"op":"sync","jobs":[' + b"[]," * 3_400_000 + b"[]]}\n")
    assert daemon.peak_bytes() - before < 64 * MIB


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b", "(a+)+$", "(.{1,100}){1,100}", "((a{1,99}){1,99}){1,99}", "[", "(?=a)", "\\1", "a{1001}", "[ü-",
        "(?P<ü>a)", "\\p{ü", "a" * 1001, "(" * 400 + ")" * 400, "(?:" * 150 + "a" + ")?" * 150, "\\C",
        "(?P<n>a)(?P<n>b)",
    ],
    ids=lambda pattern: ascii(pattern[:24]),
)  # fmt: skip
def test_a_hostile_regex_is_answered_or_refused_and_costs_nothing(talkers: list[Client], daemon: Daemon, pattern: str):
    daemon.reset_peak()
    before = daemon.peak_bytes()
    for _ in range(20):
        reply = talkers[0].ask("list", filter={"regex": pattern}, limit=5)
        assert reply["success"] or reply["code"] == "bad_request", reply
    assert daemon.peak_bytes() - before < 16 * MIB


# --- limits that are set -------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(folder: Path) -> Iterator[Daemon]:
    """A daemon of low limits."""
    limits = {"limits__frame_bytes": 65_536, "limits__record_bytes": 4096, "limits__frame_values": 1000}
    with serving(folder, backend="memory", settings=limits) as daemon:
        yield daemon


def test_a_frame_that_is_too_long_ends_the_connection_after_its_reply(narrow: Daemon):
    with narrow.connect() as talker, narrow.connect() as other:
        talker.send({"op": "create", "job": {"uuid": "a"}, "requestId": 1})
        talker.send_raw(b"x" * 100_000)
        assert talker.reply()["requestId"] == 1
        reply = talker.reply()
        assert (reply["requestId"], reply["success"], reply["code"]) == ("", False, "too_large")
        talker.send({"op": "delete", "jobId": "a"})
        assert talker.replies() == []
        assert other.ask("get", jobId="a")["job"]["revision"] == 1
        exact = b'{"op":"ping","x":"' + b"y" * (65_536 - 20) + b'"}'
        assert len(exact) == 65_536
        other.send_raw(exact + b"\n")
        assert other.reply()["success"]


def test_a_frame_that_is_too_long_behind_one_that_is_answered_at_once_is_told(narrow: Daemon):
    with narrow.connect() as talker:
        talker.send_raw(b'{"op":"ping","requestId":1}\n' + b"x" * 70_000)
        assert talker.reply()["requestId"] == 1
        assert talker.reply()["code"] == "too_large"
        assert talker.replies() == []


def test_a_frame_of_too_many_values_ends_the_connection_after_its_reply(narrow: Daemon):
    jobs = b",".join(b'{"uuid":"%d"}' % number for number in range(600))
    with narrow.connect() as talker, narrow.connect() as other:
        talker.send_raw(b'{"op":"ping"}\n{"op":"sync","jobs":[' + jobs + b']}\n{"op":"create","job":{"uuid":"x"}}\n')
        assert talker.reply()["success"]
        assert talker.reply()["code"] == "too_large"
        assert talker.replies() == []
        for name in ("0", "x"):
            assert other.ask("get", jobId=name)["code"] == "not_found"
