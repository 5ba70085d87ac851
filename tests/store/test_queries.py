"""Queries: which index drives a list, how bounds are found, and that a cursor is nobody's business but ours."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc.backends.port import Place
from statesvc.store import queries
from statesvc.store.kinds import Kinds
from statesvc.store.queries import Filter, Order, read_cursor, read_filter, read_order, write_cursor
from statesvc_client.errors import BadRequest
from statesvc_client.wire import List

JOB = Kinds()["job"]
KV = Kinds()["kv"]
NEWEST = Order("created", True)


def term(kind: Any = JOB, order: Order = NEWEST, **given_: Any) -> tuple[str, ...] | None:
    return queries.plan(read_filter(given_), kind, order).walk.term


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ({}, None),
        ({"status": "running"}, ("status", "RUNNING")),
        ({"statuses": ["FAILED", "QUEUED"]}, ("status", "FAILED", "QUEUED")),
        ({"statuses": ["QUEUED", "queued"]}, ("status", "QUEUED")),
        ({"nodeId": "n"}, ("node", "n")),
        ({"owner": "o", "status": "RUNNING"}, ("owner", "o")),
        ({"labels": {"a": "x"}, "owner": "o"}, ("label:a", "x")),
        ({"labels": {"a": 1}}, None),
        ({"nodeId": "n", "status": "RUNNING"}, ("status", "RUNNING")),
        ({"nodeId": "n", "status": "COMPLETED"}, ("node", "n")),
        ({"status": "RUNNING", "statuses": ["FAILED"]}, ("status",)),
        ({"status": "", "nodeId": "", "owner": ""}, None),
    ],
)
def test_the_narrowest_index_drives_a_list(filter_: dict, expected: tuple | None):
    assert term(**filter_) == expected


def test_an_order_other_than_creation_is_driven_by_its_own_index():
    assert term(order=Order("priority", True), status="RUNNING", nodeId="n") is None


def test_states_of_a_kind_without_a_lifecycle_are_taken_as_they_are():
    assert term(KV, status="Any thing") == ("status", "Any thing")


@pytest.mark.parametrize(
    ("prefix", "high"),
    [
        ("a", "b"),
        ("job-", "job."),
        ("é", "ê"),
        ("\ud7ff", "\ue000"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff", None),
        ("\uffff", "\U00010000"),
    ],
)
def test_a_prefix_is_a_range_of_ids(prefix: str, high: str | None):
    walk = queries.plan(Filter(prefix=prefix), JOB, Order("id", False)).walk
    assert (walk.low, walk.high) == (prefix, high)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(names, names)
def test_an_id_is_in_the_range_of_a_prefix_exactly_when_it_begins_with_it(prefix: str, name: str):
    walk = queries.plan(Filter(prefix=prefix), JOB, Order("id", False)).walk
    for each in (name, prefix + name):
        inside = each >= str(walk.low) and (walk.high is None or each < str(walk.high))
        assert inside is each.startswith(prefix)


@pytest.mark.parametrize(
    ("request_", "filter_", "order"),
    [
        ({}, {}, Order("created", True)),
        ({"sort_desc": False}, {}, Order("created", False)),
        ({"sort_by": "priority"}, {}, Order("priority", False)),
        ({"sort_by": "PRIORITY", "sort_desc": True}, {}, Order("priority", True)),
        ({}, {"sort_by": "updatedAt", "sort_desc": True}, Order("updated", True)),
        ({"sort_by": "id", "sort_desc": False}, {"sort_by": "status", "sort_desc": True}, Order("id", False)),
        ({"sort_by": "uuid"}, {}, Order("id", False)),
        ({"sort_by": ""}, {}, Order("created", True)),
    ],
)
def test_the_order_is_newest_first_unless_another_is_asked_for(request_: dict, filter_: dict, order: Order):
    assert read_order(List(**request_), Filter(**filter_)) == order


def test_an_unknown_filter_is_refused_with_the_known_ones():
    with pytest.raises(BadRequest, match=r"colour.*createdAfter"):
        read_filter({"colour": "blue"})


# --- cursors ---------------------------------------------------------------------------------------------------------

CURSORS = [
    (NEWEST, Place(5, "a")),
    (NEWEST, Place(-(2**63) + 1, "é😀")),
    (Order("id", False), Place("x", "x")),
    (Order("status", True), Place("RUNNING", "a")),
    (Order("status", True), Place(None, "a")),
    (Order("priority", False), Place(2.5, "a")),
    (Order("priority", False), Place(2**63 - 1, "a")),
    (Order("started", False), Place(None, "a")),
]


@pytest.mark.parametrize(("order", "place"), CURSORS)
def test_a_cursor_leads_back_to_its_place(order: Order, place: Place):
    text = write_cursor(JOB, order, place)
    assert read_cursor(text, JOB, order) == place
    assert text.isascii()
    assert not set(text) & set("+/= \n")


def test_a_cursor_of_another_list_is_refused():
    text = write_cursor(JOB, NEWEST, Place(5, "a"))
    for kind, order in ((KV, NEWEST), (JOB, Order("created", False)), (JOB, Order("updated", True))):
        with pytest.raises(BadRequest, match="cursor"):
            read_cursor(text, kind, order)


def forged(*fields: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (NEWEST, ""),
        (NEWEST, "!"),
        (NEWEST, "é"),
        (NEWEST, "AAAA"),
        (NEWEST, forged()),
        (NEWEST, forged(1, "job", "created", True)),
        (NEWEST, forged(2, "job", "created", True, 5, "a")),
        (NEWEST, forged(1, "job", "created", True, "5", "a")),
        (NEWEST, forged(1, "job", "created", True, None, "a")),
        (NEWEST, forged(1, "job", "created", True, 5.5, "a")),
        (NEWEST, forged(1, "job", "created", True, 2**63, "a")),
        (NEWEST, forged(1, "job", "created", True, 5, None)),
        (NEWEST, forged(1, "job", "created", 1, 5, "a")),
        (Order("id", False), forged(1, "job", "id", False, 5, "a")),
        (Order("id", False), forged(1, "job", "id", False, None, "a")),
        (Order("status", False), forged(1, "job", "status", False, 5, "a")),
        (Order("priority", False), forged(1, "job", "priority", False, "5", "a")),
        (Order("priority", False), forged(1, "job", "priority", False, 2**70, "a")),
    ],
)
def test_a_cursor_that_is_not_ours_is_refused(order: Order, text: str):
    with pytest.raises(BadRequest, match="cursor"):
        read_cursor(text, JOB, order)


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_of_ours_or_refused(text: str):
    with pytest.raises(BadRequest):
        read_cursor(text, JOB, NEWEST)


@pytest.mark.parametrize("pattern", ["(a?){1000}b", "((a?){30}){30}z", "(a|b|c)*" * 200, "x" * 2000])
def test_a_regex_that_would_be_costly_to_match_is_refused(pattern: str):
    with pytest.raises(BadRequest, match="regex"):
        queries.plan(Filter(regex=pattern), JOB, NEWEST)


@pytest.mark.parametrize("name", ["where", "labels"])
def test_a_filter_names_a_bounded_number_of_things(name: str):
    with pytest.raises(BadRequest, match=name):
        read_filter({name: {f"k{number}": 1 for number in range(65)}})
    with pytest.raises(BadRequest, match="statuses"):
        read_filter({"statuses": ["RUNNING"] * 65})
