"""check, sweep, freeze and thaw, with a daemon and without one."""

from __future__ import annotations

import pytest

from statesvc.cli import progress
from tests.cli.running import run
from tests.sqlite.filling import damage


def test_a_store_without_problems_exits_0(home):
    with home.daemon():
        home.ask("create", "a")
        answer = home.ask("check")
        assert (answer.code, answer.record["problems"], answer.record["records"]) == (0, [], 1)
        table = home.ask("check", "-o", "table")
        assert (table.code, table.out, table.err) == (0, "", "problems: 0\n")
        assert home.ask("check", "--repair").record["repaired"] == []


def test_problems_are_a_line_each_and_exit_65(scripted):
    hello = b'{"requestId":"1","success":true}\n'
    progress = b'{"requestId":"2","progress":{"done":1,"total":2}}\n'
    reply = b'{"requestId":"2","success":true,"problems":["a is bad"],"repaired":["b was made again"],"done":{}}\n'
    answer = run("check", "--repair", "-o", "table", "--socket", str(scripted(hello, progress + reply)))
    assert (answer.code, answer.out) == (65, "repaired: b was made again\na is bad\n")


def test_long_work_tells_how_far_it_is_where_there_is_no_terminal(scripted, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    hello = b'{"requestId":"1","success":true}\n'
    told = (
        b'{"requestId":"2","progress":{"done":500,"total":2000}}\n{"requestId":"2","progress":{"done":7,"total":0}}\n'
    )
    answer = run("check", "--socket", str(scripted(hello, told + b'{"requestId":"2","success":true}\n')))
    first, second = answer.err.splitlines()
    assert first.startswith("checking: 25%  500 of 2,000 records, ")
    assert second.startswith("checking: 7 records, ")
    assert first.endswith("/s")


@pytest.fixture
def stopped(home):
    """A store that was closed."""
    with home.daemon():
        home.ask("create", "a", "--kind", "kv", "value=1")
    return home


def test_a_closed_store_can_be_checked(stopped):
    answer = stopped.alone("check")
    assert (answer.code, answer.record) == (0, {"problems": [], "repaired": []})


def test_a_damaged_state_is_found_and_repaired_without_a_daemon(stopped):
    (stopped.data / "state.db").write_bytes(b"not a database any more" * 1000)
    found = stopped.alone("check")
    assert found.code == 65
    assert "state.db" in found.record["problems"][0]
    repaired = stopped.alone("check", "--repair")
    assert (repaired.code, repaired.record["problems"]) == (0, [])
    assert repaired.record["repaired"]
    with stopped.daemon():
        assert stopped.ask("get", "a", "--kind", "kv").record["value"] == 1


def test_a_damaged_page_is_a_problem_to_a_daemon_too_and_is_made_again_while_it_serves(stopped):
    damage(stopped.data / "state.db", "record")
    with stopped.daemon():
        found = stopped.ask("check")
        assert (found.code, found.err) == (65, "")
        assert "state.db: a page does not match its checksum" in found.record["problems"]
        assert not any("\n" in problem for problem in found.record["problems"])
        verdicts = {check["name"]: check["verdict"] for check in stopped.ask("health").record["checks"]}
        assert verdicts["commits"] == "ok"
        repaired = stopped.ask("check", "--repair")
        assert (repaired.code, repaired.record["problems"]) == (0, [])
        assert repaired.record["repaired"][0].startswith("state.db was made again from the log")
        assert stopped.ask("get", "a", "--kind", "kv").record["value"] == 1
        assert stopped.ask("create", "b", "--kind", "kv").code == 0


def test_a_log_that_is_lost_cannot_be_repaired_and_exits_65(stopped):
    (stopped.data / "log.db").write_bytes(b"not a database any more" * 1000)
    answer = stopped.alone("check", "--repair")
    assert answer.code == 65
    assert "log.db" in answer.err + answer.out
    assert "Traceback" not in answer.err


def test_a_folder_without_a_store_exits_65(home):
    home.data.mkdir(mode=0o700)
    answer = home.alone("check")
    assert answer.code == 65
    assert "holds no store" in answer.err


@pytest.mark.parametrize("words", [["check"], ["check", "--repair"], ["snapshot", "restore", "a.snapshot"]])
def test_a_file_that_is_a_link_is_left_alone_and_exits_73(stopped, words):
    (stopped.data / "state.db").rename(stopped.data / "elsewhere")
    (stopped.data / "state.db").symlink_to("elsewhere")
    answer = stopped.alone(*words)
    assert (answer.code, answer.out) == (73, "")
    assert "state.db: is a symbolic link; put the file itself there" in answer.err
    assert (stopped.data / "state.db").is_symlink()


def test_a_folder_that_a_daemon_has_is_not_checked(home):
    with home.daemon():
        home.ask("create", "a")
        answer = home.alone("check", "--repair")
        assert answer.code == 75
        assert len(answer.err.splitlines()) == 1


def test_only_sqlite_has_files_to_check(home, monkeypatch):
    monkeypatch.setenv("STATESVC_BACKEND", "memory")
    answer = home.alone("check")
    assert answer.code == 2
    assert "the backend is memory" in answer.err


def test_a_data_folder_is_named_only_when_no_daemon_is_asked(home):
    answer = home.ask("check", "--data", str(home.data))
    assert answer.code == 2
    assert "--data goes with --offline" in answer.err


def test_sweep_does_the_duties_now_and_tells_what_was_done(home):
    with home.daemon("--backend", "memory"):
        home.ask("create", "a")
        assert all(isinstance(number, int) for number in home.ask("sweep").record.values())


def test_freeze_stops_writes_over_restarts_until_thaw(home):
    with home.daemon():
        home.ask("create", "a")
        assert home.ask("freeze").record == {"frozen": True}
        refused = home.ask("create", "b")
        assert refused.code == 5
        assert refused.err.startswith("unavailable: ")
        assert home.ask("get", "a").code == 0
    with home.daemon():
        assert home.ask("create", "b").code == 5
        assert home.ask("thaw").record == {"frozen": False}
        assert home.ask("create", "b").code == 0
