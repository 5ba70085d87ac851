"""watch and history against real daemons."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.cli.running import daemon, ended, heed_interrupts, line_of, run, started, told_by


@pytest.fixture
def watched(served):
    """`statesvc watch` on the shared daemon, from the oldest event kept: nothing depends on when it begins."""
    return lambda *words, **options: started("watch", "--socket", str(served), *words, **options)


def test_watch_prints_one_event_a_line_as_it_happens(ask, watched):
    ask("create", "seen-1", "--status", "PENDING", "--node", "n-seen")
    with watched("--prefix", "seen-", "--after", "0", "-o", "table") as watch:
        assert line_of(watch).split()[1:] == ["created", "seen-1", "->", "PENDING"]
        ask("update", "seen-1", "--status", "RUNNING")
        assert line_of(watch).split()[1:] == ["status", "seen-1", "PENDING", "->", "RUNNING"]
        ask("emit", "seen-1", "note", "--message", "half way", "--data", '{"percent": 50}')
        assert line_of(watch).split(maxsplit=3)[1:] == ["note", "seen-1", 'half way  {"percent": 50}\n']
        ask("delete", "seen-1")
        assert line_of(watch).split()[1:] == ["deleted", "seen-1", "RUNNING", "->"]


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_for_programs_an_event_is_an_object_on_a_line(ask, watched, output):
    ask("create", f"told-{output}", 'secretEnvironment={"KEY": "hunter2"}', "a=1")
    with watched("--id", f"told-{output}", "--after", "0", "--count", "1", "-o", output) as watch:
        answer = ended(watch)
    assert answer.code == 0
    (event,) = answer.records
    assert (event["type"], event["id"], event["record"]["a"]) == ("created", f"told-{output}", 1)
    assert "hunter2" not in answer.out


def test_watch_follows_one_kind_and_what_the_filter_lets_pass(ask, watched):
    for words in (
        ["f-1", "--kind", "kv"],
        ["f-1", "--node", "n-f"],
        ["f-2", "--node", "n-g"],
        ["f-3", "--node", "n-f"],
    ):
        ask("create", *words)
    with watched("--prefix", "f-", "--node", "n-f", "--after", "0", "--count", "2") as watch:
        assert [event["id"] for event in ended(watch).records] == ["f-1", "f-3"]
    with watched("--kind", "kv", "--prefix", "f-", "--after", "0", "--count", "1") as watch:
        assert [event["kind"] for event in ended(watch).records] == ["kv"]


def test_watch_begins_behind_the_cursor_it_is_given(ask, watched):
    for number in range(3):
        ask("create", f"behind-{number}")
    with watched("--prefix", "behind-", "--after", "0", "--count", "1") as watch:
        cursor = ended(watch).record["cursor"]
    with watched("--prefix", "behind-", "--after", cursor, "--count", "2") as watch:
        assert [event["id"] for event in ended(watch).records] == ["behind-1", "behind-2"]


def test_an_interrupt_ends_a_watch_well_and_tells_how_to_go_on(ask, watched):
    ask("create", "int-1")
    with watched("--id", "int-1", "--after", "0", "-o", "table", preexec_fn=heed_interrupts) as watch:
        line_of(watch)
        watch.send_signal(signal.SIGINT)
        answer = ended(watch)
    assert (answer.code, answer.out) == (0, "")
    cursor = answer.err.split()[1]
    assert answer.err == f"--after {cursor} goes on from here\n"
    ask("update", "int-1", "a=1")
    with watched("--id", "int-1", "--after", cursor) as watch:
        types = [json.loads(line_of(watch))["type"]]
        if types == ["created"]:  # interrupted after printing it, before noting so: once more rather than not at all
            types.append(json.loads(line_of(watch))["type"])
    assert types[-1] == "updated"


def test_a_reader_that_has_had_enough_ends_a_watch_well(ask, watched):
    ask("create", "pipe-1")
    with watched("--id", "pipe-1", "--after", "0") as watch:
        line_of(watch)
        watch.stdout.close()
        ask("update", "pipe-1", "a=1")
        assert watch.stderr.read() == ""
        assert watch.wait(20) == 0


def test_watch_goes_on_behind_the_last_event_when_the_daemon_comes_back(tmp_path):
    path = tmp_path / "s.sock"
    flags = ("--data", str(tmp_path / "data"))
    with daemon(path, *flags) as first, started("watch", "--after", "0", "--socket", str(path)) as watch:
        run("create", "j-1", "--socket", str(path))
        assert json.loads(line_of(watch))["id"] == "j-1"
        first.terminate()
        assert told_by(watch).startswith("unavailable: ")
        first.wait(20)
        with daemon(path, *flags):
            run("update", "j-1", "a=1", "--socket", str(path))
            run("create", "j-2", "--socket", str(path))
            seen = [json.loads(line_of(watch)) for _ in range(2)]
            assert [(event["type"], event["id"]) for event in seen] == [("updated", "j-1"), ("created", "j-2")]
            assert watch.poll() is None


def test_a_watch_whose_log_is_gone_says_so_and_exits_3(tmp_path):
    path = tmp_path / "s.sock"
    with started("watch", "--after", "0", "--socket", str(path), stderr=subprocess.PIPE) as early:
        assert ended(early).code == 5
    with daemon(path, "--backend", "memory") as first, started("watch", "--after", "0", "--socket", str(path)) as watch:
        run("create", "j-1", "--socket", str(path))
        line_of(watch)
        first.terminate()
        first.wait(20)
        with daemon(path, "--backend", "memory"):
            answer = ended(watch)
    assert answer.code == 3
    last = answer.err.splitlines()[-1]
    assert last.startswith("gone: ")
    assert last.endswith("(list the records again, then watch)")


def test_a_watch_that_fell_behind_goes_on_behind_what_it_printed(scripted):
    hello = b'{"requestId":"1","success":true,"protocol":1}\n'
    event = b'{"requestId":"2","event":{"cursor":"e.1","type":"created","kind":"job","id":"x","revision":1,"at":"t"}}\n'
    busy = b'{"requestId":"2","success":false,"code":"busy","error":"WATCH_ERROR: too slow"}\n'
    path = scripted(hello, b'{"requestId":"2","success":true,"cursor":"e.0"}\n' + event + busy)
    with started("watch", "--socket", str(path)) as watch:
        assert json.loads(line_of(watch))["cursor"] == "e.1"
        assert told_by(watch) == "busy: WATCH_ERROR: too slow; the watch will go on\n"


def test_history_tells_what_happened_to_one_record_oldest_first(ask):
    ask("create", "past-1", "--status", "PENDING")
    ask("update", "past-1", "--status", "RUNNING")
    ask("emit", "past-1", "note", "--message", "hello")
    told = ask("history", "past-1").records
    assert [event["type"] for event in told] == ["created", "status", "note"]
    assert ask("history", "past-1", "-o", "table").out.splitlines()[1].endswith("status     past-1  PENDING -> RUNNING")
    behind = ask("history", "past-1", "--after", told[0]["cursor"]).records
    assert [event["type"] for event in behind] == ["status", "note"]


def test_history_says_how_to_go_on_and_all_follows_the_cursors(ask):
    ask("create", "long-1", "--kind", "kv")
    for number in range(4):
        ask("update", "long-1", f"value={number}", "--kind", "kv")
    first = ask("history", "long-1", "--kind", "kv", "--limit", "2")
    assert [event["revision"] for event in first.records] == [1, 2]
    assert first.err.startswith("there is more: --after ")
    second = ask("history", "long-1", "--kind", "kv", "--limit", "2", "--after", first.err.split()[4])
    assert [event["revision"] for event in second.records] == [3, 4]
    assert len(ask("history", "long-1", "--kind", "kv", "--all").records) == 5
    assert len(ask("history", "long-1", "--kind", "kv", "--all", "--limit", "3").records) == 3


def test_what_never_was_has_no_history(ask):
    answer = ask("history", "never-was")
    assert (answer.code, answer.out) == (3, "")
