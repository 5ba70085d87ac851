"""Changing JSON values: RFC 7396, pointers, counters, lists; never in place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client import patch
from statesvc_client.errors import BadRequest

RFC_7396 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "change", "result"), RFC_7396)
def test_the_examples_of_rfc_7396(target: Any, change: Any, result: Any):
    assert patch.merge(target, change) == result


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ["a"]),
        ("a/b", ["a/b"]),
        ("a~1b", ["a~1b"]),
        ("/a", ["a"]),
        ("/a/b/0", ["a", "b", "0"]),
        ("/a~1b/c~0d/~01", ["a/b", "c~d", "~1"]),
        ("/", [""]),
        ("//", ["", ""]),
    ],
)
def test_a_path_is_a_name_or_a_pointer(path: str, names: list[str]):
    assert patch.steps(path) == names


def test_an_empty_path_is_refused():
    with pytest.raises(BadRequest, match="path"):
        patch.steps("")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a"], {"b": [1, {"c": None}]}),
        (["a", "b", "0"], 1),
        (["a", "b", "1", "c"], None),
        (["a", "b", "2"], None),
        (["a", "b", "-"], None),
        (["a", "b", "²"], None),
        (["a", "b", "x"], None),
        (["x", "y"], None),
    ],
)
def test_lookup_finds_what_stands_there_and_none_otherwise(names: list[str], found: Any):
    assert patch.lookup({"a": {"b": [1, {"c": None}]}}, names) == found


def test_assign_makes_what_is_missing_on_the_way():
    assert patch.assign({}, ["a", "b", "c"], 1) == {"a": {"b": {"c": 1}}}
    assert patch.assign({"a": None}, ["a", "b"], 1) == {"a": {"b": 1}}
    assert patch.assign({"a": [1, 2]}, ["a", "1"], None) == {"a": [1, None]}
    assert patch.assign({"a": [1]}, ["a", "-"], 2) == {"a": [1, 2]}
    assert patch.assign({"a": [1]}, ["a", "-", "b"], 2) == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"a": 5}, ["a", "b"]),
        ({"a": "x"}, ["a", "0"]),
        ({"a": True}, ["a", "b"]),
        ({"a": [1]}, ["a", "1"]),
        ({"a": [1]}, ["a", "-1"]),
        ({"a": [1]}, ["a", "²"]),
        ({"a": [1]}, ["a", "x"]),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(fields: Any, names: list[str]):
    changes: list[tuple[Any, Any]] = [(patch.assign, 1), (patch.increment, 1), (patch.extend, [1])]
    for change, value in changes:
        with pytest.raises(BadRequest):
            change(fields, names, value)


@pytest.mark.parametrize(
    ("before", "amount", "after"),
    [({}, 1, 1), ({"n": None}, 2, 2), ({"n": 1}, -3, -2), ({"n": 1}, 0.5, 1.5), ({"n": 2**64}, 1, 2**64 + 1)],
)
def test_increment_adds(before: Any, amount: float, after: float):
    assert patch.increment(before, ["n"], amount) == {"n": after}


@pytest.mark.parametrize("value", ["1", True, [], {}, 1.7e308, -(10**400)])
def test_increment_refuses_what_is_no_number_or_would_leave_them(value: Any):
    with pytest.raises(BadRequest, match="inc"):
        patch.increment({"n": value}, ["n"], 1.7e308)


def test_extend_appends_to_lists_only():
    assert patch.extend({}, ["l"], [1]) == {"l": [1]}
    assert patch.extend({"l": None}, ["l"], [1]) == {"l": [1]}
    assert patch.extend({"l": [0]}, ["l"], [[1], 2]) == {"l": [0, [1], 2]}
    others: list[Any] = ["x", 1, {}, False]
    for value in others:
        with pytest.raises(BadRequest, match="append"):
            patch.extend({"l": value}, ["l"], [1])


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0, False),
        (0, None, False),
        ("1", 1, False),
        ([1, True], [1.0, True], True),
        ([1, True], [1, 1], False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([], {}, False),
        (2**64, float(2**64), True),
        (2**64 + 1, float(2**64), False),
    ],
)
def test_same_means_equal_as_json(left: Any, right: Any, equal: bool):
    assert patch.same(left, right) is equal
    assert patch.same(right, left) is equal


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text("ab", max_size=2), values, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


@given(objects, objects)
def test_a_merge_applied_twice_is_a_merge_applied_once(target: Any, change: Any):
    once = patch.merge(target, change)
    assert patch.merge(once, change) == once


@given(objects)
def test_a_merge_into_nothing_is_the_patch_without_its_nulls(change: Any):
    assert patch.merge({}, change) == without_nulls(change)


@given(objects, objects, st.lists(st.sampled_from(["a", "b", "0", "-"]), min_size=1, max_size=4), values)
def test_what_a_reader_holds_stays_as_it_was(target: Any, change: Any, names: list[str], value: Any):
    kept, copies = (target, change, value), copy.deepcopy((target, change, value))
    patch.merge(target, change)
    changes: list[tuple[Any, Any]] = [(patch.assign, value), (patch.increment, 1), (patch.extend, [value])]
    for make, given_ in changes:
        try:
            changed = make(target, names, given_)
        except BadRequest:
            continue
        if make is patch.assign and "-" not in names:
            assert json.dumps(patch.lookup(changed, names)) == json.dumps(value)
    assert kept == copies


@given(values)
def test_everything_is_the_same_as_itself(value: Any):
    assert patch.same(value, copy.deepcopy(value))
