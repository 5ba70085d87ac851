"""Measuring: percentiles within a percent, values as text, and the bound on how many are counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc.store.clock import SECOND
from statesvc.store.statistics import MOST_VALUE_CHARS, MOST_VALUES, Histogram, Tally, as_text

TIMES = st.integers(0, 2**63 - 1) | st.integers(0, 100) | st.integers(SECOND, 100 * SECOND)


@given(st.lists(TIMES, min_size=1, max_size=300))
def test_a_percentile_is_within_a_percent_of_the_exact_one(times: list[int]):
    histogram = Histogram()
    for time in times:
        histogram.add(time)
    summary, ordered = histogram.summary(), sorted(times)
    for part, told in ((50, summary.p50), (90, summary.p90), (99, summary.p99)):
        exact = ordered[math.ceil(len(ordered) * part / 100) - 1] / SECOND
        assert told == pytest.approx(exact, rel=0.01)
    assert summary.max == ordered[-1] / SECOND
    assert summary.mean == pytest.approx(sum(times) / len(times) / SECOND)
    assert summary.count == len(times)


def test_times_the_wrong_way_round_count_as_no_time():
    histogram = Histogram()
    histogram.add(-5)
    summary = histogram.summary()
    assert (summary.count, summary.mean, summary.p99, summary.max) == (1, 0.0, 0.0, 0.0)


def test_memory_is_bounded_whatever_is_measured():
    histogram = Histogram()
    for power in range(64):
        for step in range(200):
            histogram.add(int(2 ** (power + step / 200)))
    assert len(histogram._buckets) < 5_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("x", "x"),
        ("", ""),
        (True, "true"),
        (1, "1"),
        (1.5, "1.5"),
        ([1, "a"], '[1,"a"]'),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_a_value_is_counted_as_text(value: Any, text: str):
    assert as_text(value) == text


def test_a_long_value_is_cut():
    assert len(as_text("x" * 10_000)) == MOST_VALUE_CHARS + 1


def test_beyond_the_bound_values_are_counted_together():
    tally = Tally()
    for number in range(MOST_VALUES + 7):
        tally.add(str(number))
    tally.add("0")
    assert (tally.total, tally.counts["*"], tally.counts["0"]) == (MOST_VALUES + 8, 7, 2)
    assert tally.truncated
