"""The name of an epoch tells above which token its own begin, and nothing else."""

from __future__ import annotations

import time

import pytest

from statesvc.backends.epoch_names import TOKEN_STEP, first, floor_above, following, token_floor


def test_no_name_comes_twice():
    assert len({*(first() for _ in range(100)), *(following("") for _ in range(100))}) == 200


@pytest.mark.parametrize("epoch", ["", "00ff00ff00ff00ff"])
def test_a_store_that_never_lost_anything_begins_with_the_first_token(epoch: str):
    assert token_floor(epoch) == token_floor(first()) == 0


def test_tokens_of_what_follows_are_above_the_clock():
    before = time.time_ns() // 1000
    assert before > TOKEN_STEP
    floor = token_floor(following(first()))
    assert before <= floor <= time.time_ns() // 1000


def test_tokens_keep_growing_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    before = following(first())
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert token_floor(following(before)) == token_floor(before) + TOKEN_STEP


def test_a_floor_goes_by_the_clock_unless_that_is_behind_what_is_known():
    assert floor_above(5, 0) == 5 + TOKEN_STEP
    assert floor_above(5, 10**19) == 10**16
    assert floor_above(10**16 - 1, 10**19) == 10**16
    assert floor_above(10**16, 10**19) == 10**16 + TOKEN_STEP


def test_tokens_of_rows_that_are_taken_over_are_known_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert token_floor(following(first(), 77)) == 77 + TOKEN_STEP


def test_tokens_stay_what_every_client_can_count_to():
    epoch = first()
    for _ in range(1000):
        epoch = following(epoch)
    assert token_floor(epoch) + TOKEN_STEP < 2**53


def test_a_name_has_no_dot():
    """In a cursor a dot ends it."""
    assert "." not in first() + following(first())
