"""A sorted list of places against a plain one: whatever is put in, taken out and walked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statesvc.backends import sorted_places
from statesvc.backends.sorted_places import Place, SortedPlaces

places = st.tuples(st.integers(0, 6), st.sampled_from("abcdefgh"))
bounds = st.none() | places | st.tuples(st.integers(0, 7))
steps = st.lists(st.tuples(st.booleans(), places), max_size=60)


def walked(known: list[Place], low: Place | None, high: Place | None) -> list[Place]:
    return [place for place in known if (low is None or place > low) and (high is None or place < high)]


@given(steps, bounds, bounds)
def test_it_is_what_a_plain_list_would_be(steps, low, high):
    usual, sorted_places.RUN_PLACES = sorted_places.RUN_PLACES, 4
    try:
        made, known = SortedPlaces(), set[Place]()
        for adds, place in steps:
            if adds:
                made.add(place)
                known.add(place)
            else:
                assert made.take(place) == (place if place in known else None)
                known.discard(place)
        plain = sorted(known)
        assert list(made) == plain
        assert (len(made), bool(made)) == (len(plain), bool(plain))
        between = walked(plain, low, high)
        assert list(made.between(low, high)) == between
        assert list(made.between(low, high, descending=True)) == between[::-1]
        assert made.count(low, high) == len(between)
    finally:
        sorted_places.RUN_PLACES = usual


def test_the_very_object_that_was_put_in_comes_out():
    kept, equal = ((1000, name) for name in "aa")
    assert kept is not equal
    made = SortedPlaces()
    made.add(kept)
    made.add(equal)
    assert made.take(equal) is kept
    assert not made


def test_what_comes_in_order_fills_its_runs():
    made = SortedPlaces()
    for number in range(3 * sorted_places.RUN_PLACES):
        made.add((number,))
    assert len(made._runs) == 3
