"""F1: the daemon is killed at any moment, again and again: what it acknowledged is there, once, and whole.

A short form of `python -m tests.faults.kills`.
"""

from __future__ import annotations

import pytest

from tests.daemon.harness import Daemon
from tests.daemon.jobs import fill, jobs_of, names
from tests.faults import kills

ROUNDS = 5
CHECKED_ROUNDS = 2


@pytest.mark.slow
@pytest.mark.parametrize("load", [kills.race, kills.pipelined])
@pytest.mark.parametrize("level", ["disk", "os"])
def test_nothing_acknowledged_is_lost_and_nothing_is_applied_twice_over_many_kills(load, level, capsys):
    tally = kills.Tally()
    load(kills.Session(ROUNDS, 6, level, CHECKED_ROUNDS), tally)
    with capsys.disabled():
        print(f"\n{tally.figures()}")
    assert tally.problems == []
    assert tally.kills == tally.rounds[level] == ROUNDS
    assert tally.answers > 0
    assert tally.checked_files == ROUNDS // CHECKED_ROUNDS


def test_every_load_gets_all_the_rounds_and_both_levels():
    planned = list(kills.sessions(3 * kills.SESSION_ROUNDS + 1, 1))
    assert sum(session.rounds for session in planned) == 3 * kills.SESSION_ROUNDS + 1
    assert {session.level for session in planned} == {"disk", "os"}


def test_the_wal_of_a_killed_daemon_is_enough_to_bring_everything_back(folder):
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        fill(client, 500)
        daemon.kill()
        with daemon.serving().connect() as again:
            assert jobs_of(again) == names(500)
