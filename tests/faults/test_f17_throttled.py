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
    assert result.too_calm() == []
    assert result.troubled["throttle"] > 0.4 * result.calls
    assert all(result.troubled[fault] for fault in ("drop", "slow", "twice"))


EACH: dict[str, int] = dict.fromkeys(throttled.SHARES, 1000)


@pytest.mark.parametrize(
    ("calls", "troubled", "named"),
    [
        (0, {}, ["throttle", "drop"]),
        (100, {"throttle": 1, "drop": 1}, []),
        (10_000, EACH | {"throttle": 4_500, "drop": 400}, []),
        (10_000, EACH | {"throttle": 4_499, "drop": 399}, ["throttle", "drop"]),
        (10_000, EACH | {"throttle": 5_000, "hang_after": 0}, ["hang_after"]),
    ],
)
def test_trouble_that_did_not_come_about_is_named(calls: int, troubled: dict[str, int], named: list[str]):
    result = throttled.Result(seed=1, calls=calls, troubled=troubled)
    assert [words.partition(":")[0] for words in result.too_calm()] == named
