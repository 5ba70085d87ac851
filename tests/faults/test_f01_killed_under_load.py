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
def test_nothing_acknowledged_is_lost_and_nothing_is_applied_twice_over_many_kills(load, capsys):
    tally = kills.Tally()
    load(ROUNDS, 6, tally, CHECKED_ROUNDS)
    with capsys.disabled():
        print(f"\n{tally.figures()}")
    assert tally.problems == []
    assert tally.rounds == ROUNDS
    assert tally.answers > 0
    assert tally.checked == ROUNDS // CHECKED_ROUNDS


def test_the_wal_of_a_killed_daemon_is_enough_to_bring_everything_back(folder):
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        fill(client, 500)
        daemon.kill()
        with daemon.serving().connect() as again:
            assert jobs_of(again) == names(500)
