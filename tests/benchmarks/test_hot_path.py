"""The hot path stays as lean as it is: what a request takes is counted, never timed, and held against bounds.json.

When a bound is passed on purpose, or has become too wide: `python -m benchmarks.counts --write`.
"""

from __future__ import annotations

import functools
import math

import pytest

from benchmarks.counts import bounds, program
from benchmarks.counts.measuring import (
    BLOCKS,
    BYTECODES,
    BYTES,
    C_CALLS,
    CALLS,
    CREATE,
    ENGINES,
    GET,
    KEPT,
    UPDATE,
    Counts,
    measured,
    named,
    requests,
    stored,
)
from statesvc.dispatch import Dispatcher

PLANTED = 0.5
"""How much of what a request takes is added to it where a check must notice."""

BY_OP = {b"create": CREATE, b"update": UPDATE, b"get": GET}


@functools.cache
def usual(engine: str) -> Counts:
    return requests(engine)


@functools.cache
def everything() -> Counts:
    return measured()


@pytest.fixture
def kept() -> Counts:
    assert bounds.FILE.exists()
    counts = bounds.kept()
    if counts is None:
        pytest.skip(f"bounds.json was not counted under {bounds.PYTHON}")
    return counts


def test_a_request_takes_no_more_than_it_did(kept):
    assert bounds.exceeded(everything(), kept) == []


def test_bounds_are_near_enough_to_notice_half_as_much_work_again(kept):
    assert bounds.too_wide(everything(), kept) == [], "it takes less now: python -m benchmarks.counts --write"
    assert {work: set(some) for work, some in everything().items()} == {work: set(kept[work]) for work in kept}


@pytest.mark.parametrize("engine", ENGINES)
def test_counts_are_the_same_again(engine):
    again = requests(engine)
    pairs = [(some[what], again[work][what]) for work, some in usual(engine).items() for what in some]
    assert all(math.isclose(first, second, rel_tol=0.1) for first, second in pairs), pairs


# --- the check itself ----------------------------------------------------------------------------------------------


def _loop(extra: float) -> None:
    for _ in range(math.ceil(extra / 3)):  # three bytecodes a turn
        pass


def _empty() -> None:
    pass


def _call(extra: float) -> None:
    for _ in range(math.ceil(extra)):
        _empty()


def _call_c(extra: float) -> None:
    for _ in range(math.ceil(extra)):
        len("")


@pytest.mark.parametrize(("what", "work"), [(BYTECODES, _loop), (CALLS, _call), (C_CALLS, _call_c)])
def test_half_as_much_work_again_is_noticed_in_every_request(monkeypatch, what, work):
    before, answer = usual("memory"), Dispatcher.answer

    def with_more_work(self, frame, session, *, busy=False):
        asked = BY_OP.get(frame[7 : frame.index(b'"', 7)])  # {"op":"…
        if asked is not None:
            work(PLANTED * before[named("memory", asked)][what])
        return answer(self, frame, session, busy=busy)

    monkeypatch.setattr(Dispatcher, "answer", with_more_work)
    noticed = "\n".join(bounds.exceeded(requests("memory"), before))
    for asked in BY_OP.values():
        assert f"{named('memory', asked)} takes" in noticed
    assert noticed.count(f" {what}, with") >= len(BY_OP)


def test_half_as_much_kept_for_a_job_is_noticed(monkeypatch):
    before = stored()
    assert bounds.exceeded(stored(), before) == []
    blocks, size = (math.ceil(PLANTED * before[KEPT][what]) for what in (BLOCKS, BYTES))
    answer, never_freed = Dispatcher.answer, []

    def that_leaks(self, frame, session, *, busy=False):
        never_freed.append([bytes(size // blocks + number) for number in range(blocks)])
        return answer(self, frame, session, busy=busy)

    monkeypatch.setattr(Dispatcher, "answer", that_leaks)
    noticed = "\n".join(bounds.exceeded(stored(), before))
    assert f" {BLOCKS}, with" in noticed
    assert f" {BYTES}, with" in noticed


def test_bounds_that_are_too_wide_are_noticed():
    kept: Counts = {"memory: create": {BYTECODES: 1000.0}}
    assert bounds.too_wide({"memory: create": {BYTECODES: 900.0}}, kept) == []
    assert len(bounds.too_wide({"memory: create": {BYTECODES: 860.0}}, kept)) == 1


def test_what_is_not_kept_yet_is_noticed():
    assert len(bounds.exceeded({"memory: create": {BYTECODES: 1.0}}, {})) == 1


def test_bounds_are_renewed_by_one_command(monkeypatch, tmp_path, capsys):
    found: Counts = {"memory: create": {BYTECODES: 1000.0, CALLS: 10.0}}
    monkeypatch.setattr(bounds, "FILE", tmp_path / "bounds.json")
    monkeypatch.setattr(program, "measured", lambda: found)
    (tmp_path / "bounds.json").write_text('{"python": "another", "counts": {}}')
    assert program.main([]) == 0
    assert program.main(["--write"]) == 0
    assert bounds.kept() == found
    assert program.main([]) == 0
    found = {"memory: create": {BYTECODES: 1301.0, CALLS: 10.0}}
    assert program.main([]) == 1
    shown = capsys.readouterr()
    assert "1,301.0   1,000.0    1.30" in shown.out
    assert shown.err.endswith("too much: memory: create takes 1,301.0 bytecodes, with 1,000.0 kept as usual\n")
