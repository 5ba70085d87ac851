"""The program that measures recoveries runs, and tells of one that took too long. What must arrive: F15."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tests.daemon.harness import ROOT, SECONDS, environment
from tests.faults.recoveries import GIVE_UP_SECONDS, MOST_GROWN_BYTES, MOST_SECONDS, Outcome, figures

WELL = Outcome(seconds=0.5, unserved=2.0, grown=1_000_000, acknowledged=100, faults=[])
QUICK = "--stores redis --faults away --seconds 1 --rounds 1 -o json"


@pytest.mark.slow
@pytest.mark.parametrize(("within", "code"), [(GIVE_UP_SECONDS, 0), (-1.0, 1)], ids=["any time", "no time"])
def test_the_program_runs_and_a_recovery_that_takes_longer_than_it_may_is_broken(within: float, code: int):
    command = [sys.executable, "-m", "tests.faults.recoveries", *QUICK.split(), f"--within={within}"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=3 * SECONDS, check=False)
    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)
    assert told["figures"]["redis, away"].keys() == figures([WELL]).keys()
    assert told["figures"]["redis, away"]["writes"] > 0
    assert len(told["broken"]) == code


@pytest.mark.parametrize(
    ("outcome", "broken", "slow"),
    [
        (WELL, 0, 0),
        (WELL._replace(seconds=MOST_SECONDS + 1), 0, 1),
        (WELL._replace(seconds=math.inf), 1, 0),
        (WELL._replace(grown=MOST_GROWN_BYTES), 1, 0),
        (WELL._replace(faults=["lost", "twice"]), 2, 0),
    ],
    ids=["well", "late", "never", "too much memory", "not once"],
)
def test_each_promise_that_is_broken_is_told(outcome: Outcome, broken: int, slow: int):
    assert (len(outcome.broken()), len(outcome.slow())) == (broken, slow)


def test_of_many_rounds_the_worst_is_shown():
    shown = figures([WELL, WELL, WELL._replace(seconds=4.0, grown=2**21)])
    assert (shown["recovered, s"], shown["worst"], shown["grown, MiB"], shown["writes"]) == (0.5, 4.0, 2.0, 300)
