"""Kinds: lifecycles as tables, names in any case, and plain kinds on demand."""

from __future__ import annotations

import pytest

from statesvc.store.kinds import JOB, Kinds, Lifecycle
from statesvc_client.errors import BadRequest
from statesvc_client.spelling import MOST_FINE


def lifecycle_of(name: str = "job") -> Lifecycle:
    lifecycle = Kinds()[name].lifecycle
    assert lifecycle is not None
    return lifecycle


def test_final_states_are_those_without_a_way_out():
    lifecycle = lifecycle_of()
    assert lifecycle.terminal == {"COMPLETED", "FAILED", "STOPPED", "CANCELED", "TIMEOUT"}
    assert set(lifecycle.live) == {"PENDING", "INITIALIZING", "SCHEDULED", "QUEUED", "RUNNING", "STOPPING"}
    assert lifecycle.claimed == "RUNNING"


def test_every_edge_leads_to_a_known_state():
    lifecycle = lifecycle_of()
    assert {after for edges in lifecycle.edges.values() for after in edges} <= set(lifecycle.edges)


def test_nothing_is_reachable_from_a_final_state_and_every_final_state_from_a_live_one():
    lifecycle = lifecycle_of()
    for state in lifecycle.terminal:
        assert lifecycle.reachable[state] == frozenset()
    assert lifecycle.reachable["PENDING"] >= lifecycle.terminal
    assert lifecycle.reachable["STOPPING"] == {"STOPPED", "COMPLETED", "FAILED", "CANCELED", "TIMEOUT"}
    assert "PENDING" not in lifecycle.reachable["RUNNING"]


@pytest.mark.parametrize(
    ("written", "state"),
    [("RUNNING", "RUNNING"), ("running", "RUNNING"), ("CANCELLED", "CANCELED"), ("cAnCeLlEd", "CANCELED")],
)
def test_a_state_has_one_spelling(written: str, state: str):
    assert lifecycle_of().canonical(written) == state


@pytest.mark.parametrize("written", ["", "RUN", "running ", "ﬁnished", None, 5, True, ["RUNNING"]])
def test_an_unknown_state_is_refused_with_the_known_ones(written: object):
    with pytest.raises(BadRequest, match=r"PENDING .* TIMEOUT"):
        lifecycle_of().canonical(written)


def test_an_extension_adds_states_and_edges_and_changes_nothing_else():
    kinds = Kinds({"job": {"running": ["paused"], "paused": ["running", "abandoned"]}})
    lifecycle = kinds["job"].lifecycle
    assert lifecycle is not None
    assert lifecycle.edges["RUNNING"] == JOB.lifecycle.edges["RUNNING"] | {"PAUSED"}  # type: ignore[union-attr]
    assert lifecycle.edges["PAUSED"] == {"RUNNING", "ABANDONED"}
    assert "ABANDONED" in lifecycle.terminal
    assert lifecycle.edges["QUEUED"] == JOB.lifecycle.edges["QUEUED"]  # type: ignore[union-attr]
    assert "PAUSED" not in JOB.lifecycle.edges  # type: ignore[union-attr]
    assert kinds["job"].id_field == "uuid"


def test_a_kind_of_the_configuration_gets_the_lifecycle_it_names():
    kind = Kinds({"door": {"OPEN": ["SHUT"], "SHUT": ["OPEN", "LOCKED"]}})["door"]
    assert kind.lifecycle is not None
    assert kind.lifecycle.terminal == {"LOCKED"}
    assert kind.id_field == "id"


def test_any_other_name_is_a_plain_kind():
    kind = Kinds()["whatever-1.x"]
    assert (kind.name, kind.id_field, kind.lifecycle) == ("whatever-1.x", "id", None)


@pytest.mark.parametrize("name", ["", "Job", "a b", "a/b", "1a", "-a", "a" * 65, "é", "a\n", "a\x00"])
def test_a_name_that_is_none_is_refused(name: str):
    with pytest.raises(BadRequest, match="kind"):
        Kinds()[name]


def test_names_made_up_by_clients_cost_bounded_memory():
    kinds = Kinds()
    for number in range(5000):
        assert kinds[f"kind{number}"].name == f"kind{number}"
    assert len(kinds) <= 1024 + len(kinds.declared())


def test_names_of_fields_made_up_by_clients_cost_bounded_memory():
    kinds = Kinds()
    for number in range(3):
        kinds[f"plain{number}"].spelling.of_fields({f"{number}-{name}": 1 for name in range(10_000)})
    assert kinds["plain0"].spelling is kinds["plain1"].spelling
    assert len(kinds["plain0"].spelling.fine) <= MOST_FINE


def test_known_fields_are_found_in_any_case_and_by_alias():
    kind = Kinds()["job"]
    for written, spelled in (("NodeId", "nodeId"), ("STARTTIME", "startTime"), ("job_uuid", "uuid"), ("JobID", "uuid")):
        assert kind.spelling.of(written) == spelled
    assert Kinds()["kv"].spelling.of("jobId") == "jobId"
