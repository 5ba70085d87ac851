"""Fuzzing over the socket, in short: hostile clients at a real daemon, and a good one beside them."""

from __future__ import annotations

import pytest

from tests.faults.fuzz import outside


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_hostile_clients_break_nothing_and_a_good_one_is_served(backend: str):
    report = outside.run(600, seed=4, backend=backend)
    assert report.findings == []
    assert report.frames >= 600
    assert report.good_answers > 10
