"""Fields a kind has indexed: a list by one of them walks its index, and nothing else does."""

from __future__ import annotations

import pytest

from statesvc.store import queries
from statesvc.store.kinds import Kinds

NEWEST_FIRST = queries.Order("created", descending=True)


def planned(kind: str, **given) -> queries.Plan:
    return queries.plan(queries.read_filter(given), Kinds()[kind], NEWEST_FIRST)


@pytest.mark.parametrize(("kind", "field"), [("mount", "volume"), ("ip", "network")])
@pytest.mark.parametrize("spelled", [str, str.upper, "/{}".format], ids=["plain", "upper", "pointer"])
def test_a_list_by_an_indexed_field_walks_that_index_and_needs_no_other_look(kind: str, field: str, spelled):
    plan = planned(kind, where={spelled(field): "x"})
    assert (plan.walk.term, plan.exact) == (("label:", f"{field}=x"), True)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("mount", {"volume": 7}),
        ("mount", {"volume": None}),
        ("mount", {"/volume/name": "x"}),
        ("mount", {"path": "x"}),
        ("job", {"volume": "x"}),
    ],
)
def test_other_conditions_walk_no_index_of_a_field(kind: str, where: dict):
    assert planned(kind, where=where).walk.term is None


def test_further_conditions_are_still_tested():
    assert not planned("mount", where={"volume": "x", "path": "y"}).exact
    assert not planned("mount", where={"volume": "x"}, prefix="a").exact


def test_the_links_of_the_rules_are_no_labels_of_a_user():
    plan = planned("job", labels={"": "leased"})
    assert plan.walk.term is None
