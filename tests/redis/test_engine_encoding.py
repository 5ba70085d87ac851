"""Keys as bytes sort as the values do, with ids behind them; a row's places and the bounds of queries fit together."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statesvc.backends.port import Keys, Place, Query, Row
from statesvc.backends.redis import encoding
from statesvc.backends.redis.standing import places, read_places
from statesvc.backends.redis.walks import walk as plan
from tests.engines.rows import row
from tests.engines.weak import walk

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text("\0\x01a\U0010ffff\uffff", max_size=6)
TIMES = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers() | st.integers(-20, 20) | st.floats(allow_nan=False) | st.floats(-20, 20)

IDS = TEXTS


def in_order(encode: Any, one: tuple[Any, str], other: tuple[Any, str]) -> None:
    """Two members compare as key and id do."""
    members = [encode(key) + encoding.of_id(id) for key, id in (one, other)]
    assert (members[0] < members[1]) == (one < other)
    assert (members[0] == members[1]) == (one == other)
    # A bound is the encoded key alone: it lies before every member with that key, and behind all with a smaller one.
    assert (members[0] >= encode(other[0])) == (one[0] >= other[0])


@given(st.tuples(TIMES, IDS), st.tuples(TIMES, IDS))
def test_times_sort_as_they_are(one: tuple[int, str], other: tuple[int, str]):
    in_order(encoding.of_time, one, other)


@given(st.tuples(TEXTS, IDS), st.tuples(TEXTS, IDS))
@example(("a", "b"), ("a\0", ""))
@example(("a", "\U0010ffff"), ("a\0", ""))
@example(("", "a"), ("\0", "a"))
def test_texts_sort_by_code_points_whatever_they_hold(one: tuple[str, str], other: tuple[str, str]):
    in_order(encoding.of_text, one, other)


@given(st.tuples(NUMBERS, IDS), st.tuples(NUMBERS, IDS))
@example((2**53, "a"), (float(2**53), "a"))
@example((2**53 + 1, "a"), (float(2**53), "a"))
@example((0, "a"), (-0.0, "b"))
@example((10**400, "a"), (math.inf, "a"))
@example((1 << 30_000, "a"), ((1 << 30_000) + 1, "a"))
@example((-(1 << 30_000), "a"), (-(1 << 29_000), "a"))
@example((5e-324, ""), (0, ""))
@example((-math.inf, "b"), (-(10**400), "a"))
def test_numbers_sort_as_they_are_integers_and_floats_of_any_size(one: tuple[Any, str], other: tuple[Any, str]):
    in_order(encoding.of_number, one, other)


@pytest.mark.parametrize("beyond", [-(2**63) - 1, 2**63, 10**30, -(10**30)])
def test_times_beyond_64_bits_count_as_the_first_or_last_moment(beyond: int):
    assert encoding.of_time(beyond) == encoding.of_time(max(-(2**63), min(beyond, 2**63 - 1)))


# --- places and bounds -----------------------------------------------------------------------------------------------

KEYS = st.builds(
    Keys,
    created=st.integers(-2, 2),
    updated=st.integers(-2, 2),
    status=st.none() | st.sampled_from(["a", "b\0", "x" * 100]),
    node=st.none() | st.sampled_from(["n", "x" * 100]),
    owner=st.none() | TEXTS,
    started=st.none() | st.integers(-2, 2),
    priority=st.none() | st.sampled_from([-1, 0, 0.5, 1]),
    labels=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(lambda some: tuple(sorted(some))),
    ready=st.none() | st.sampled_from(["1", "10", "1\0"]),
    due=st.none() | st.integers(-2, 2),
)
ROWS = st.lists(
    st.builds(
        lambda id, keys, deleted: Row("job", id, "u", 1, keys, b"{}", deleted=deleted), IDS, KEYS, st.integers(0, 1)
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)
TERMS = st.none() | st.sampled_from(
    [
        ("status", "a", ""),
        ("status", "x" * 100),
        ("node", "n"),
        ("label:a", "a", ""),
        ("label:", ""),
        ("label:a\0", "a"),
    ]
)


def walked(rows: list[Row], query: Query) -> list[Row]:
    """What the indexes say, walked in memory."""
    found = plan(query)
    assert found is not None
    low, high = found.low.removeprefix(b"["), found.high.removeprefix(b"(") if found.high != b"+" else None
    members: dict[bytes, Row] = {}
    for each in rows:
        for name, key in read_places(places(each)).items():
            member = key + encoding.of_id(each.id)
            if name in found.names and member >= low and (high is None or member < high):
                members[member] = each
    return [members[member] for member in sorted(members, reverse=query.descending)][: query.limit]


@given(
    rows=ROWS,
    sort=st.sampled_from(["created", "updated", "started", "priority", "status", "id", "ready", "due", "deleted"]),
    term=TERMS,
    missing=st.booleans(),
    descending=st.booleans(),
    after=st.none() | IDS,
)
def test_places_and_bounds_yield_what_the_plain_model_says(
    rows: list[Row], sort: Any, term: tuple[str, ...] | None, missing: bool, descending: bool, after: str | None
):
    missing = missing and term is None and sort in ("started", "priority", "status")
    sort = "created" if term else sort
    key: Any = {"status": "a", "id": after, "ready": "1"}.get(sort, 0)
    place = None if after is None else Place(None if missing else key, after)
    query = Query(kind="job", sort=sort, descending=descending, missing=missing, term=term, after=place, limit=100)
    assert walked(rows, query) == walk(rows, query)


def test_terms_that_could_be_run_together_are_kept_apart():
    names = set()
    for labels in ((("a", "bc"),), (("ab", "c"),), (("a:", "bc"),), (("", "abc"),), (("abc", ""),)):
        made = read_places(places(row("x", labels=labels)))
        [name] = [name for name in made if name.startswith(b"=l")]
        names.add(name)
    assert len(names) == 5


def test_a_long_value_and_its_digest_are_two_values():
    long = "x" * 65
    [digest] = [n for n in read_places(places(row("a", node=long))) if n.startswith(b"=n")]
    assert len(digest) < 40
    [other] = [n for n in read_places(places(row("a", node=long + "y"))) if n.startswith(b"=n")]
    assert digest != other


def test_rows_that_lack_nothing_still_stand_in_the_order_of_ids():
    full = row("a", status="s", started=1, completed=1, scheduled=1, priority=1)
    assert b"m0" in read_places(places(full))
    everything = plan(Query(kind="job", sort="id", limit=1))
    assert everything is not None
    assert len(everything.names) == 32
