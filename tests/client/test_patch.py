"""What an update does to a value, and two updates made into one: equal for every value they may meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client import composing, foresight, merging, patch, writes
from statesvc_client.errors import BadRequest

NAMES = st.sampled_from(["a", "b", "c", "status"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3))
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(OBJECTS, OBJECTS, OBJECTS)
def test_a_composed_patch_does_what_the_two_do_one_after_the_other(target, first, second):
    try:
        composed = composing.compose_patches(first, second)
    except composing.Incompatible:
        return
    assert patch.merge(target, composed) == patch.merge(patch.merge(target, first), second)


def test_a_patch_into_what_was_just_replaced_cannot_be_composed():
    with pytest.raises(composing.Incompatible):
        composing.compose_patches({"a": 1}, {"a": {"b": 2}})


@given(OBJECTS)
def test_what_a_reader_holds_stays_as_it_was(target):
    before = repr(target)
    patch.merge(target, {"a": {"b": 1}, "b": None})
    patch.assign(target, ["x", "y"], 1)
    assert repr(target) == before


def test_paths_are_names_or_json_pointers():
    assert patch.assign({}, patch.steps("a/b"), 1) == {"a/b": 1}
    assert patch.assign({}, patch.steps("/a~1b/c~0d"), 1) == {"a/b": {"c~d": 1}}
    assert patch.increment({"n": {"x": 1}}, ["n", "x"], 2) == {"n": {"x": 3}}
    assert patch.extend({}, ["log"], [1]) == {"log": [1]}
    assert patch.extend({"l": [{"m": [0]}]}, ["l", "0", "m"], [1]) == {"l": [{"m": [0, 1]}]}


@pytest.mark.parametrize(
    "more", [writes.More(inc={"text": 1}), writes.More(append={"text": [1]}), writes.More(inc={"/text/deeper": 1})]
)
def test_a_change_that_does_not_fit_the_value_is_refused(more):
    with pytest.raises(BadRequest):
        foresight.changed({"text": "x"}, writes.update("job", "j", {}, more))


# --- whole updates ---------------------------------------------------------------------------------------------------

PATHS = st.sampled_from(["n", "m", "/deep/n", "/deep/m", "/l/-", "/rows/-/n"])
LISTS = st.sampled_from(["l", "/deep/l", "/lists/-"])
UPDATES = st.fixed_dictionaries(
    {},
    optional={
        "fields": st.dictionaries(st.sampled_from(["a", "b", "deep", "n"]), VALUES, max_size=3),
        "set": st.dictionaries(
            st.sampled_from(["a", "/deep/a", "n", "/l/-", "/rows/-/a"]), st.integers(0, 9), max_size=2
        ),
        "inc": st.dictionaries(PATHS, st.integers(-3, 3), min_size=1, max_size=2),
        "append": st.dictionaries(LISTS, st.lists(st.integers(0, 9), max_size=2), min_size=1, max_size=2),
    },
)
TARGETS = st.fixed_dictionaries(
    {"n": st.integers(0, 9), "l": st.lists(st.integers(), max_size=2), "lists": st.just([]), "rows": st.just([])},
    optional={"a": VALUES, "deep": st.fixed_dictionaries({}, optional={"n": st.integers(), "l": st.just([1])})},
)


def made(change: dict) -> writes.Write:
    more = None
    if change.keys() - {"fields"}:
        more = writes.checked_more(change.get("set"), change.get("inc"), change.get("append"), None, upsert=False)
    return writes.update("job", "j", change.get("fields", {}), more)


@given(TARGETS, UPDATES, UPDATES)
def test_two_updates_merged_do_what_they_do_one_after_the_other(target, one, two):
    first, second = made(one), made(two)
    both = merging.merged(first, second)
    if both is None:
        return
    try:
        expected = foresight.changed(foresight.changed(target, first), second)
    except BadRequest:
        return
    assert foresight.changed(target, both) == expected


def test_two_steps_of_a_lifecycle_are_never_made_one():
    running = writes.update("job", "j", {"status": "RUNNING"}, None)
    done = writes.update("job", "j", {"status": "COMPLETED"}, None)
    progress = writes.update("job", "j", {"progress": 5}, None)
    assert merging.merged(running, done) is None
    both = merging.merged(running, progress)
    assert both is not None
    assert both.fields == {"status": "RUNNING", "progress": 5}


def test_counters_add_and_lists_concatenate():
    one = made({"inc": {"n": 2}, "append": {"l": [1]}})
    two = made({"inc": {"n": 3}, "append": {"l": [2]}, "fields": {"a": 1}})
    both = merging.merged(one, two)
    assert both is not None
    assert both.more is not None
    assert (both.more.inc, both.more.append, both.fields) == ({"n": 5}, {"l": [1, 2]}, {"a": 1})


@pytest.mark.parametrize("change", [{"set": {"/l/-": 2}}, {"inc": {"/l/-": 2}}, {"append": {"/l/-": [2]}}])
def test_values_put_behind_the_end_of_a_list_are_never_made_one(change):
    assert merging.merged(made(change), made(change)) is None


def test_a_conditional_update_is_never_merged():
    plain = made({"fields": {"a": 1}})
    conditional = writes.update("job", "j", {"a": 2}, writes.More(if_revision=3))
    assert merging.merged(plain, conditional) is None
    assert merging.merged(conditional, plain) is None
