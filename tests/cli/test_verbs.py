"""The client verbs against a real daemon."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from statesvc.cli.session import Session
from statesvc_client import wire
from statesvc_client.errors import Unavailable
from tests.cli.running import plain_environment, run

HELLO = b'{"requestId":"1","success":true,"protocol":1,"version":"9"}\n'


def test_ping_tells_what_the_daemon_runs_on(ask):
    answer = ask("ping")
    assert answer.code == 0
    assert answer.record["backend"] == "memory"
    assert answer.record["protocol"] == 1


def test_a_record_lives_from_create_to_delete(ask):
    assert ask("create", "life-1", "--status", "PENDING", "--command", "echo hi", "pid=42").code == 0
    assert ask("update", "life-1", "--status", "RUNNING").record["revision"] == 2
    got = ask("get", "life-1").record
    assert (got["uuid"], got["status"], got["command"], got["pid"]) == ("life-1", "RUNNING", "echo hi", 42)
    assert ask("delete", "life-1").record == {"deleted": "life-1"}
    gone = ask("get", "life-1")
    assert (gone.code, gone.out) == (3, "")
    assert gone.err == "not_found: job not found\n"


def test_a_value_is_json_when_it_is_json_and_text_otherwise(ask):
    words = ["a=42", 'b="42"', "c=true", "d=null", 'e={"x": [1]}', "f=plain text", "g=a=b", "h=", "i=NaN"]
    record = ask("create", "values-1", *words).record
    expected = {
        "a": 42,
        "b": "42",
        "c": True,
        "d": None,
        "e": {"x": [1]},
        "f": "plain text",
        "g": "a=b",
        "h": "",
    }
    assert {name: record[name] for name in expected} == expected
    assert record["i"] == "NaN"


def test_numbers_and_text_come_back_as_they_were_given(ask):
    ask("create", "exact-1", f"big={2**63 - 1}", "tiny=1e-300", "text=häß😀", "n=0.1")
    got = ask("get", "exact-1", "-o", "json").record
    assert (got["big"], got["tiny"], got["text"], got["n"]) == (2**63 - 1, 1e-300, "häß😀", 0.1)


def test_create_takes_its_record_from_a_file_or_standard_input_and_words_on_top(ask, tmp_path):
    file = tmp_path / "job.json"
    file.write_text('{"uuid": "file-1", "status": "PENDING", "command": "a"}')
    assert ask("create", "-f", str(file), "command=b").record["command"] == "b"
    other = ask("create", "file-2", "-f", "-", stdin=file.read_text())
    assert (other.record["uuid"], other.record["command"]) == ("file-2", "a")


def test_creating_twice_is_a_conflict(ask):
    assert ask("create", "twice-1").code == 0
    again = ask("create", "twice-1")
    assert (again.code, again.err) == (4, "exists: job already exists\n")


def test_update_merges_assigns_adds_and_appends(ask):
    ask("create", "parts-1", 'metadata={"a": 1, "b": 2}', "count=1", "tags=[1]")
    words = [
        'metadata={"b": null, "c": 3}',
        "--inc",
        "count=4",
        "--append",
        "tags=[2, 3]",
        "--append",
        "notes=hi",
    ]
    record = ask("update", "parts-1", *words, "--set", "/metadata/d=5").record
    assert record["metadata"] == {"a": 1, "c": 3, "d": 5}
    assert (record["count"], record["tags"], record["notes"]) == (5, [1, 2, 3], ["hi"])


def test_update_can_be_tied_to_a_revision(ask):
    ask("create", "tied-1")
    assert ask("update", "tied-1", "a=1", "--if-revision", "1").record["revision"] == 2
    refused = ask("update", "tied-1", "a=2", "--if-revision", "1")
    assert refused.code == 4
    assert refused.err.startswith("conflict: ")
    assert "(the record is at revision 2)" in refused.err
    assert ask("delete", "tied-1", "--if-revision", "1").code == 4
    assert ask("delete", "tied-1", "--if-revision", "2").code == 0


def test_update_makes_the_record_only_when_told_to(ask):
    assert ask("update", "upsert-1", "a=1").code == 3
    assert ask("update", "upsert-1", "a=1", "--upsert").record["a"] == 1


def test_a_move_the_lifecycle_forbids_is_a_conflict(ask):
    ask("create", "final-1", "--status", "COMPLETED")
    refused = ask("update", "final-1", "--status", "RUNNING")
    assert refused.code == 4
    assert refused.err.startswith("invalid_transition: ")


def test_a_refused_request_is_an_error(ask):
    refused = ask("create", "bad-1", "--status", "NOSUCH")
    assert refused.code == 1
    assert refused.err.startswith("bad_request: ")


def test_other_kinds_have_their_own_names_for_things(ask):
    made = ask("create", "setting-1", "--kind", "kv", 'value={"a": 1}').record
    assert (made["id"], made["value"]) == ("setting-1", {"a": 1})
    assert ask("get", "setting-1", "--kind", "kv").record["value"] == {"a": 1}
    assert [each["id"] for each in ask("list", "--kind", "kv", "--prefix", "setting-").records] == ["setting-1"]
    assert ask("update", "setting-1", "value=2", "--kind", "kv").record["value"] == 2
    assert ask("delete", "setting-1", "--kind", "kv").code == 0
    assert ask("get", "setting-1").code == 3


def test_list_filters_sorts_and_limits(ask):
    for number, status in enumerate(["RUNNING", "RUNNING", "FAILED", "PENDING"]):
        ask(
            "create",
            f"filter-{number}",
            "--status",
            status,
            "--node",
            "n-filter",
            f'labels={{"n": "{number}"}}',
        )
    mine = ["--node", "n-filter", "--sort-by", "id", "--asc"]

    def ids(*words: str) -> list[str]:
        return [record["uuid"] for record in ask("list", *mine, *words).records]

    assert ids() == ["filter-0", "filter-1", "filter-2", "filter-3"]
    assert ids("--desc") == ["filter-3", "filter-2", "filter-1", "filter-0"]
    assert ids("--status", "RUNNING", "--status", "FAILED") == ["filter-0", "filter-1", "filter-2"]
    assert ids("--label", "n=2") == ["filter-2"]
    assert ids("--where", "status=PENDING") == ["filter-3"]
    assert ids("--regex", "-[12]$") == ["filter-1", "filter-2"]
    assert ids("--prefix", "filter-3") == ["filter-3"]
    assert ids("--id", "filter-1", "--id", "filter-3") == ["filter-1", "filter-3"]
    assert ids("--created-after", "2099-01-01T00:00:00Z") == []
    assert ids("--created-before", "2099-01-01T00:00:00Z") == ids()
    assert ids("--limit", "2") == ["filter-0", "filter-1"]


def test_list_counts_what_the_filter_lets_pass(ask):
    for number in range(3):
        ask("create", f"count-{number}", "--status", "RUNNING" if number else "PENDING", "--node", "n-count")
    assert ask("list", "--count", "--node", "n-count").out == "3\n"
    assert ask("list", "--count", "--node", "n-count", "--status", "RUNNING").out == "2\n"


def test_list_says_how_to_go_on_and_all_follows_the_cursors(ask):
    for number in range(7):
        ask("create", f"page-{number}", "--node", "n-page")
    mine = ["list", "--node", "n-page", "--sort-by", "id", "--asc"]
    first = ask(*mine, "--limit", "3")
    assert "there is more: --cursor " in first.err
    cursor = first.err.split()[4]
    second = ask(*mine, "--limit", "3", "--cursor", cursor)
    assert [each["uuid"] for each in second.records] == ["page-3", "page-4", "page-5"]
    everything = ask(*mine, "--all")
    assert [each["uuid"] for each in everything.records] == [f"page-{number}" for number in range(7)]
    assert everything.err == ""
    assert len(ask(*mine, "--all", "--limit", "5").records) == 5


@pytest.mark.parametrize("output", ["json", "jsonl", "table"])
def test_an_empty_list_is_printed_as_such(ask, output):
    answer = ask("list", "--node", "n-nobody", "-o", output)
    assert answer.code == 0
    expected = {
        "json": "[]\n",
        "jsonl": "",
        "table": "ID  STATUS  NODE  REVISION  CREATED  UPDATED  COMMAND\n",
    }
    assert answer.out == expected[output]


def test_a_list_as_json_is_one_array_over_all_pages(ask):
    for number in range(3):
        ask("create", f"pages-{number}", "--node", "n-array")
    answer = ask("list", "--node", "n-array", "-o", "json", "--all")
    assert sorted(each["uuid"] for each in json.loads(answer.out)) == ["pages-0", "pages-1", "pages-2"]


def test_a_table_cannot_be_broken_by_what_a_record_holds(ask):
    ask("create", "table-1", "--node", "n-table", "--command", "a\nb\x1b[2J" + "x" * 100)
    answer = ask("list", "--node", "n-table", "-o", "table")
    assert len(answer.out.splitlines()) == 2
    assert "\x1b" not in answer.out
    assert "\x1b" not in ask("get", "table-1", "-o", "table").out


def test_secrets_are_in_no_table_and_in_json_only_when_asked_for(ask):
    made = ask("create", "hush-1", "--node", "n-hush", 'secretEnvironment={"KEY": "hunter2"}')
    shown = made.out
    for output in ("table", "json", "jsonl"):
        shown += ask("get", "hush-1", "-o", output).out
        shown += ask("list", "--node", "n-hush", "-o", output).out
    shown += ask("get", "hush-1", "-o", "table", "--show-secrets").out
    shown += ask("list", "--node", "n-hush", "-o", "table", "--show-secrets").out
    shown += ask("update", "hush-1", "a=1").out
    assert "hush-1" in shown
    assert "hunter2" not in shown
    assert "hunter2" in ask("get", "hush-1", "--show-secrets").out
    assert "hunter2" in ask("list", "--node", "n-hush", "--show-secrets").out


def test_what_was_printed_can_be_sent_back_without_losing_the_secret(ask):
    ask("create", "back-1", 'secretEnvironment={"KEY": "hunter2"}')
    ask("update", "back-1", "-f", "-", "a=1", stdin=ask("get", "back-1").out)
    assert ask("get", "back-1", "--show-secrets").record["secretEnvironment"] == {"KEY": "hunter2"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("array", '[{"uuid": "array-1", "status": "RUNNING"}, {"uuid": "array-2", "status": "PENDING"}]'),
        ("object", '{"jobs": [{"uuid": "object-1", "status": "RUNNING"}, {"uuid": "object-2"}]}'),
        ("lines", '{"uuid": "lines-1", "status": "RUNNING"}\n\n{"uuid": "lines-2", "status": "PENDING"}\n'),
    ],
)
def test_sync_brings_a_file_of_records_forward_and_says_what_became_of_them(ask, tmp_path, name, text):
    file = tmp_path / "jobs"
    file.write_text(text)
    first = ask("sync", str(file))
    assert (first.code, first.record["applied"]) == (0, 2)
    assert ask("get", f"{name}-1").record["status"] == "RUNNING"
    assert ask("sync", "-", stdin=text).record["unchanged"] == 2


def test_sync_exits_4_when_a_record_was_rejected(ask):
    ask("create", "rejected-1", "--status", "COMPLETED")
    answer = ask("sync", "-", stdin='[{"uuid": "rejected-1", "status": "RUNNING"}]')
    assert answer.code == 4
    assert answer.record["rejected"][0]["jobId"] == "rejected-1"


def test_a_large_sync_goes_in_several_requests_and_is_reported_as_one(ask):
    records = [{"uuid": f"many-{number}", "status": "PENDING", "nodeId": "n-many"} for number in range(1201)]
    report = ask("sync", "-", "--node", "n-many", stdin=json.dumps(records)).record
    assert (report["applied"], report["rejected"], report["missing"]) == (1201, [], [])


def test_a_replacing_sync_deletes_what_the_node_no_longer_has(ask):
    ask("create", "replaced-1", "--node", "n-replaced")
    text = '[{"uuid": "replaced-2", "status": "PENDING", "nodeId": "n-replaced"}]'
    assert ask("sync", "-", "--mode", "replace", "--node", "n-replaced", stdin=text).code == 0
    assert [each["uuid"] for each in ask("list", "--node", "n-replaced").records] == ["replaced-2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create"], "give an ID, or a record with the field uuid"),
        (["create", "x", "novalue"], "'novalue' is not of the form name=value"),
        (["create", "a=1"], "give an ID"),
        (["update", "x"], "nothing to change"),
        (["update", "x", "--inc", "a=b"], "'b' is not what a can take"),
        (["update", "x", "--inc", "a=true"], "'true' is not what a can take"),
        (["update", "x", "--inc", "/SecretEnvironment/K=b"], "what was given is not what secretEnvironment can take"),
        (["update", "x", "--if-revision", "-1"], "--if-revision"),
        (["list", "--label", "x"], "--label: 'x' is not of the form name=value"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--sort-by", "colour"], "--sort-by"),
        (["sync", "/no/such/file"], "/no/such/file"),
        (["sync", "-", "--mode", "replace"], "--mode replace needs --node"),
        (["get"], "Missing argument 'ID'"),
        (["ping", "--timeout", "0"], "--timeout"),
        (["nosuch"], "No such command 'nosuch'"),
    ],
)
def test_a_wrong_usage_exits_2_and_says_what_is_wrong(tmp_path, words, told):
    answer = run(*words, *([] if words == ["nosuch"] else ["--socket", str(tmp_path / "none.sock")]), stdin="")
    assert answer.code == 2
    assert told in answer.err


@pytest.mark.parametrize("text", ["", "[]", "{broken", "[1]", "5", '{"jobs": 3}'])
def test_a_file_without_records_is_a_wrong_usage(tmp_path, text):
    answer = run("sync", "-", "--socket", str(tmp_path / "none.sock"), stdin=text)
    assert answer.code == 2


@pytest.mark.parametrize("text", ["", "[]", "{broken", '{"a": NaN}'])
def test_a_file_that_is_no_record_is_a_wrong_usage(tmp_path, text):
    answer = run("create", "x", "-f", "-", "--socket", str(tmp_path / "none.sock"), stdin=text)
    assert answer.code == 2


def test_no_daemon_exits_5_and_says_how_to_start_one(tmp_path):
    path = tmp_path / "none.sock"
    answer = run("get", "x", "--socket", str(path))
    assert answer.code == 5
    assert answer.err == (
        f"unavailable: cannot connect to {path}: No such file or directory; "
        f"is the daemon running? start it with: statesvc serve --socket {path}\n"
    )


def test_a_path_that_is_too_long_is_told_as_such(tmp_path):
    answer = run("ping", "--socket", "/" + "x" * 200)
    assert answer.code == 5
    assert "too long" in answer.err


def test_the_socket_comes_from_the_environment_or_the_configuration(served, tmp_path, monkeypatch):
    file = tmp_path / "c.yml"
    file.write_text(f"state:\n  socket: {served}\n")
    monkeypatch.setenv("STATESVC_CONFIG", str(file))
    assert run("ping").code == 0
    monkeypatch.setenv("STATESVC_SOCKET", str(tmp_path / "none.sock"))
    assert run("ping").code == 5


def test_a_bad_configuration_does_not_stop_a_verb_that_was_given_a_socket(served, monkeypatch):
    monkeypatch.setenv("STATESVC_CONFIG", "/no/such.yml")
    assert run("ping", "--socket", str(served)).code == 0
    without = run("ping")
    assert without.code == 1
    assert "/no/such.yml" in without.err
    assert "give --socket" in without.err


def test_a_daemon_that_does_not_answer_exits_5_within_the_timeout(scripted):
    path = scripted(HELLO, None)
    answer = run("get", "x", "--timeout", "0.05", "--socket", str(path))
    assert answer.code == 5
    assert answer.err == f"unavailable: no answer from {path} within 0.05 seconds\n"


def test_a_write_without_an_answer_says_that_its_outcome_is_unknown(scripted):
    answer = run("create", "x", "--socket", str(scripted(HELLO, b"")))
    assert answer.code == 5
    assert "closed the connection without an answer" in answer.err
    assert "the outcome is unknown" in answer.err


@pytest.mark.parametrize("line", [b"hello there\n", b"[]\n", b"\xff\n"])
def test_something_else_behind_the_socket_is_told_as_such(scripted, line):
    answer = run("ping", "--socket", str(scripted(line)))
    assert answer.code == 1
    assert "does not answer in the protocol of statesvc" in answer.err


def test_who_is_refused_at_the_door_is_told_why(scripted):
    line = b'{"requestId":"","success":false,"code":"denied","error":"uid 5 may not connect"}\n'
    answer = run("ping", "--socket", str(scripted(line)))
    assert (answer.code, answer.err) == (1, "denied: uid 5 may not connect\n")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("busy", 5),
        ("unavailable", 5),
        ("no_space", 5),
        ("lease_lost", 4),
        ("gone", 3),
        ("internal", 1),
        ("new", 1),
    ],
)
def test_every_code_of_the_wire_has_its_exit_code(scripted, code, exit_code):
    failure = json.dumps({"requestId": "2", "success": False, "code": code, "error": "GET_ERROR: no"}).encode()
    answer = run("get", "x", "--socket", str(scripted(HELLO, failure + b"\n")))
    assert answer.code == exit_code
    assert answer.err.endswith(": no\n")


def test_an_answer_that_comes_in_pieces_is_read_whole(scripted):
    record = json.dumps({"success": True, "job": {"uuid": "x", "text": "y" * 3_000_000}}).encode() + b"\n"
    assert len(run("get", "x", "--socket", str(scripted(HELLO, record))).record["text"]) == 3_000_000


def test_on_a_terminal_the_output_is_a_table(ask, served):
    ask("create", "tty-1", "--node", "n-tty")
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "statesvc", "list", "--node", "n-tty", "--socket", str(served)]
    with subprocess.Popen(command, stdout=child, env=plain_environment()) as process:
        os.close(child)
        shown = b""
        try:
            while data := os.read(parent, 4096):
                shown += data
        except OSError:  # how a terminal says that the other side is gone
            pass
        os.close(parent)
    assert process.returncode == 0
    assert shown.splitlines()[0].startswith(b"ID ")
    assert shown.splitlines()[1].startswith(b"tty-1 ")


class Glance(wire.Request, tag="glance"):
    """An op that this command line has never heard of."""


@pytest.mark.parametrize("op", [*wire.OPS, "glance"])
def test_without_an_answer_the_outcome_of_a_write_alone_is_unknown(scripted, monkeypatch, op):
    monkeypatch.setitem(wire.OPS, "glance", Glance)
    with Session(scripted(HELLO), timeout=20) as session, pytest.raises(Unavailable) as caught:
        session.ask(op)
    assert caught.value.outcome == ("unknown" if wire.OPS[op].writes else "not_applied")
