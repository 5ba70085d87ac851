"""F17: DynamoDB that throttles half of the calls and loses answers to what took effect: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dynamodb import servers
from tests.faults import throttled
from tests.fleet.race import Plan

MIXED = Plan(operations=120, mixed=6, lockers=2, workers=2, jobs=6, hot=3, cold=20, ttl=5.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("writes", [1_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_everything_arrives_once_and_in_order_and_histories_are_linearizable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, writes: int
):
    for name, value in servers.environment().items():
        monkeypatch.setenv(name, value)
    result = throttled.run(folder, writes, mixed=MIXED, seed=17)
    print(result.figures())
    assert result.broken == []
    assert (result.lost, result.twice) == (0, 0)
    assert result.acknowledged == result.expected >= writes
    assert result.operations >= MIXED.operations
    assert result.troubled["throttle"] > 0.4 * result.calls
    assert all(result.troubled[fault] for fault in ("drop", "slow", "twice"))
