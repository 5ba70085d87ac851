"""stats, health and stuck against real daemons."""

from __future__ import annotations

import pytest

from statesvc.cli.measuring import in_words
from tests.cli.running import run


def test_stats_counts_by_status_and_says_how_long_things_took(ask):
    for number, status in enumerate(["RUNNING", "COMPLETED", "COMPLETED"]):
        times = ["createdAt=2026-01-01T00:00:00Z", "startedAt=2026-01-01T00:00:10Z"]
        ends = ["completedAt=2026-01-01T00:01:10Z"] if status == "COMPLETED" else []
        ask("create", f"stat-{number}", "--status", status, "--node", "n-stat", *times, *ends)
    told = ask("stats", "--node", "n-stat").record
    assert (told["total"], told["counts"]) == (3, {"COMPLETED": 2, "RUNNING": 1})
    assert (told["durations"]["run"]["count"], told["durations"]["run"]["max"]) == (2, 60.0)
    shown = [line.split() for line in ask("stats", "--node", "n-stat", "-o", "table").out.splitlines()]
    assert shown[0] == ["STATUS", "COUNT", "SHARE"]
    assert shown[1] == ["COMPLETED", "2", "67%", "#" * 30]
    assert shown[2] == ["RUNNING", "1", "33%", "#" * 15]
    assert shown[3] == ["total", "3"]
    assert shown[5] == ["DURATION", "COUNT", "MEAN", "P50", "P90", "P99", "MAX"]
    assert next(line[:3] for line in shown if line[:1] == ["run"]) == ["run", "2", "1m00s"]


def test_stats_counts_by_any_field_and_filter(ask):
    for number, team in enumerate(["red", "red", "blue"]):
        ask("create", f"team-{number}", "--kind", "kv", f'metadata={{"team": "{team}"}}')
    told = ask("stats", "--kind", "kv", "--by", "/metadata/team", "--prefix", "team-").record
    assert told["counts"] == {"red": 2, "blue": 1}
    table = ask("stats", "--kind", "kv", "--by", "/metadata/team", "--prefix", "team-", "-o", "table").out
    assert table.startswith("/METADATA/TEAM")


def test_stats_of_every_kind_counts_records_by_kind(ask):
    ask("create", "kinds-1", "--kind", "volume")
    assert ask("stats", "--kind", "*").record["counts"]["volume"] >= 1
    assert ask("stats", "--kind", "*", "-o", "table").out.startswith("KIND")


def test_stats_of_nothing_is_a_total_of_none(ask):
    assert ask("stats", "--node", "n-nobody", "-o", "table").out.splitlines()[1].split() == ["total", "0"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0ms"), (0.25, "250ms"), (3.21, "3.2s"), (310, "5m10s"), (7500, "2h05m"), (4 * 3600 + 3 * 86400, "3d04h")],
)
def test_a_duration_is_told_as_people_say_it(seconds, words):
    assert in_words(seconds) == words


def test_health_exits_0_when_the_daemon_is_ready(ask):
    answer = ask("health")
    assert (answer.code, answer.record["live"], answer.record["ready"]) == (0, True, True)
    assert {check["name"] for check in answer.record["checks"]} >= {"engine", "writes"}
    shown = ask("health", "-o", "table").out.splitlines()
    assert ["ready", "true"] in [line.split() for line in shown]
    assert ["CHECK", "VERDICT", "DETAIL"] in [line.split() for line in shown]


def test_health_exits_1_when_the_daemon_lives_and_is_not_ready(home):
    with home.daemon("--backend", "memory"):
        home.ask("freeze")
        answer = home.ask("health")
        assert (answer.code, answer.record["ready"]) == (1, False)
        assert home.ask("health", "-o", "table").code == 1
        assert home.ask("health", "--live").code == 0


def test_health_exits_5_when_nobody_answers(tmp_path):
    for words in (["health"], ["health", "--live"]):
        assert run(*words, "--socket", str(tmp_path / "none.sock")).code == 5


def test_stuck_names_what_does_not_move_and_exits_0(ask):
    ask("create", "stuck-1", "--status", "RUNNING", "--node", "n-stuck")
    answer = ask("stuck", "--node", "n-stuck", "--seconds", "0")
    assert (answer.code, answer.record["id"], answer.record["status"]) == (0, "stuck-1", "RUNNING")
    assert answer.record["reasons"]
    headings, row = ask("stuck", "--node", "n-stuck", "--seconds", "0", "-o", "table").out.splitlines()
    assert headings.split() == ["ID", "STATUS", "UPDATED", "REASONS"]
    assert row.split()[:2] == ["stuck-1", "RUNNING"]


@pytest.mark.parametrize(
    ("output", "out"), [("json", "[]\n"), ("jsonl", ""), ("table", "ID  STATUS  UPDATED  REASONS\n")]
)
def test_when_all_moves_nothing_is_stuck(ask, output, out):
    answer = ask("stuck", "--node", "n-nobody", "-o", output)
    assert (answer.code, answer.out) == (0, out)
