"""What a call makes of what the agent gave."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from statesvc_client import Job, spelling, wire, writes
from statesvc_client.errors import BadRequest, TooLarge


def test_a_frame_carries_the_number_the_floor_and_whether_it_comes_again():
    write = writes.update("job", "j-1", {"pid": 1}, None)
    write.seq = 7
    assert json.loads(write.line(5)) == {
        "op": "update", "jobId": "j-1", "job": {"pid": 1}, "seq": 7, "floor": 5,
    }  # fmt: skip
    write.sent = True
    assert json.loads(write.line(5))["again"] is True


def test_a_slice_of_writes_is_the_lines_of_each():
    made = [
        writes.create("job", {"uuid": 'j"1', "labels": {"team": "ä"}}),
        writes.update("job", 'j"1', {"pid": 1, "note": None}, None),
        writes.update("job", "j", {"a": 1}, writes.More(inc={"n": 1}, token=3)),
        writes.update("volume", "v", {"size": 2}, None),
        writes.delete("job", "j", None),
        writes.emit("job", "j", {"type": "note"}),
        writes.release("job", "j", {"error": "x"}, writes.More(token=3, status="FAILED")),
    ]
    for seq, write in enumerate(made, start=7):
        write.seq, write.sent = seq, seq % 2 == 0
    sent = writes.lines(made, 5).splitlines(keepends=True)
    assert [json.loads(line) for line in sent] == [json.loads(write.line(5)) for write in made]
    assert all(line.endswith(b"}\n") for line in sent)
    assert [json.loads(line).get("again", False) for line in sent] == [write.sent for write in made]


@pytest.mark.parametrize(
    "make",
    [
        lambda kind, id: writes.update(kind, id, {"pid": 1}, None),
        lambda kind, id: writes.create(kind, {"uuid" if kind == "job" else "id": id}),
        lambda kind, id: writes.delete(kind, id, None),
        lambda kind, id: writes.release(kind, id, {}, writes.More(token=1)),
    ],
)
def test_half_a_character_is_refused_in_the_call_and_never_holds_up_what_leaves_with_it(make):
    for kind, id in (("job", "j\ud800"), ("volume", "v\ud800"), ("volume\ud800", "v")):
        with pytest.raises(ValueError, match="half a character"):
            make(kind, id)
    with pytest.raises(TypeError, match="kind"):
        make(3, "v")
    assert writes.lines([make("job", "j-ä"), make("volüme", "v")], 1).count(b"\n") == 2


def test_other_kinds_are_spelled_with_kind_id_and_record():
    write = writes.create("volume", {"id": "v-1", "size": 3})
    assert json.loads(write.frame()) == {
        "op": "create", "kind": "volume", "id": "v-1", "record": {"id": "v-1", "size": 3},
    }  # fmt: skip
    assert json.loads(writes.delete("volume", "v-1", 3).frame()) == {
        "op": "delete", "kind": "volume", "id": "v-1", "ifRevision": 3,
    }  # fmt: skip


def test_what_the_caller_changes_afterwards_is_not_sent():
    labels = {"team": "a"}
    write = writes.update("job", "j", {"labels": labels}, None)
    labels["team"] = "b"
    assert write.fields == {"labels": {"team": "a"}}
    assert json.loads(write.frame())["job"] == {"labels": {"team": "a"}}


def test_times_are_shown_as_the_daemon_will_show_them():
    write = writes.create("job", {"uuid": "j", "createdAt": datetime(2025, 1, 2, tzinfo=UTC)})
    assert write.fields["createdAt"] == "2025-01-02T00:00:00Z"


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"a": {"b": float("-inf")}}])
def test_numbers_that_json_cannot_say_are_refused_where_they_are_given(value):
    with pytest.raises(ValueError, match="JSON has no such number"):
        writes.update("job", "j", {"x": value}, None)


@pytest.mark.parametrize("id", ["", None, 5, b"x"])
def test_an_id_is_a_string_that_is_not_empty(id):
    with pytest.raises(ValueError, match="needs an uuid"):
        writes.update("job", id, {}, None)


def test_what_no_frame_can_hold_is_refused_where_it_is_given():
    with pytest.raises(TooLarge):
        writes.update("job", "j", {"log": "x" * 11 * 1024 * 1024}, None)
    with pytest.raises(TooLarge):
        writes.update("job", "j", {"log": [1] * 200_001}, None)


def test_a_job_is_the_fields_that_were_given():
    job = Job(uuid="j", status="PENDING", command="echo hi", gpuCount=2)
    assert job.to_dict() == {"uuid": "j", "status": "PENDING", "command": "echo hi", "gpuCount": 2}
    assert (job.status, job["gpuCount"]) == ("PENDING", 2)
    assert "secret" not in repr(Job("j", secretEnvironment={"KEY": "secret"}))
    assert writes.create("job", job).fields == job.to_dict()


def test_states_are_shown_in_the_daemons_spelling():
    assert writes.update("job", "j", {"status": "cancelled"}, None).fields == {"status": "CANCELED"}
    assert writes.update("job", "j", {"status": ""}, None).fields == {}
    assert writes.update("operation", "o", {"status": "running"}, None).fields == {"status": "running"}


def test_managed_fields_are_not_shown_as_if_a_client_could_write_them():
    assert writes.update("job", "j", {"revision": 9, "createdAt": "x", "a": 1}, None).fields == {"a": 1}


def test_mistaking_a_parameter_for_a_field_is_told():
    with pytest.raises(TypeError, match="a field of that name goes into the patch"):
        writes.checked_more(None, 5, None, None, upsert=False)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a list"):
        writes.checked_more(None, None, {"l": "text"}, None, upsert=False)


@pytest.mark.parametrize("path", ["", "/a" * 65])
def test_a_path_that_leads_nowhere_is_refused_where_it_is_given(path):
    with pytest.raises(BadRequest, match="path"):
        writes.checked_more({path: 1}, None, None, None, upsert=False)
    with pytest.raises(BadRequest, match="path"):
        writes.checked_more(None, {path: 1}, None, None, upsert=False)
    with pytest.raises(BadRequest, match="path"):
        writes.checked_more(None, None, {path: [1]}, None, upsert=False)


@pytest.mark.parametrize(
    "write",
    [
        writes.create("job", {"uuid": "j", "a": [1, {"b": None}]}),
        writes.update("job", "j", {"a": None}, writes.More(inc={"n": 1}, upsert=True)),
        writes.update("volume", "v", {"size": 1}, None),
        writes.delete("job", "j", 4),
        writes.delete("volume", "v", None),
        writes.update("job", "j", {"a": 1}, writes.More(token=7)),
        writes.emit("job", "j", {"type": "note", "message": "m", "data": [1, None]}),
        writes.emit("volume", "v", {"type": "note"}),
        writes.cancel("job", "j"),
        writes.retry("task", "t"),
        writes.release("job", "j", {"exitCode": 0, "gone": None}, writes.More(token=7, status="FAILED", delay=1.5)),
        writes.release("lock", "l", {}, writes.More(token=7)),
    ],
    ids=lambda write: f"{write.op} {write.kind}",
)
def test_a_write_comes_back_from_its_frame(write):
    again = writes.restored(write.frame(), 12)
    assert (again.op, again.kind, again.id, again.fields, again.more) == (
        write.op, write.kind, write.id, write.fields, write.more,
    )  # fmt: skip
    assert (again.seq, again.sent, again.frame()) == (12, True, write.frame())


FRAMES = [
    (writes.emit("job", "j", {"type": "note"}), {"op": "emit", "jobId": "j", "event": {"type": "note"}}),
    (writes.cancel("task", "t"), {"op": "cancel", "kind": "task", "id": "t"}),
    (writes.retry("job", "j"), {"op": "retry", "jobId": "j"}),
    (
        writes.release("job", "j", {"Error": "x", "revision": 9}, writes.More(token=3, status="FAILED")),
        {"op": "release", "jobId": "j", "token": 3, "status": "FAILED", "job": {"error": "x", "revision": 9}},
    ),
    (
        writes.release("lock", "l", {"note": 1}, writes.More(token=3, delay=2.0)),
        {"op": "release", "kind": "lock", "id": "l", "token": 3, "delay": 2.0, "record": {"note": 1}},
    ),
    (
        writes.update("job", "j", {"a": 1}, writes.More(token=3)),
        {"op": "update", "jobId": "j", "job": {"a": 1}, "token": 3},
    ),
]


@pytest.mark.parametrize(("write", "message"), FRAMES, ids=lambda part: getattr(part, "op", ""))
def test_the_frames_of_writes_are_what_the_wire_asks_for(write, message):
    write.seq = 5
    assert json.loads(write.frame()) == message
    request = wire.decode_request(write.line(4).rstrip(), wire.Limits())
    assert isinstance(request, wire.Write)
    assert (request.op, request.target, request.seq, request.floor, request.again) == (write.op, write.id, 5, 4, False)
    write.sent = True
    assert json.loads(write.line(4)) == {**message, "seq": 5, "floor": 4, "again": True}


def test_nothing_that_was_written_is_in_the_repr_of_a_write_or_in_an_error_about_its_secrets():
    """A callback logs what was rejected, and an agent its own mistakes."""
    secret = "canary-secret"
    more = writes.More(set={f"/secretEnvironment/{secret}": secret}, if_revision=1)
    write = writes.update("job", "j", {"secretEnvironment": {"K": secret}}, more)
    assert repr(write) == str(write) == "Write(update job 'j', seq 0)"
    assert repr(more) == "More(set, if_revision)"
    wrong: Any = {f"/secretEnvironment/{secret}": "x"}
    mistakes = [
        lambda: writes.update("job", "j", {"secretEnvironment": {secret: float("nan")}}, None),
        lambda: writes.create("job", {"uuid": "j", "secretEnvironment": {"K": f"{secret}\ud800"}}),
        lambda: writes.update("job", "j", {}, writes.More(set={f"/secretEnvironment/{secret}": float("nan")})),
        lambda: writes.checked_more(None, wrong, None, None, False),
        lambda: writes.checked_more(None, None, wrong, None, False),
    ]
    for mistake in mistakes:
        with pytest.raises((TypeError, ValueError)) as caught:
            mistake()
        assert secret not in f"{caught.value!r}"


def test_what_json_cannot_say_is_refused_in_an_event_and_a_release_too():
    with pytest.raises(ValueError, match="data is nan"):
        writes.emit("job", "j", {"type": "t", "data": float("nan")})
    with pytest.raises(ValueError, match="state/n/0 is nan"):
        writes.update("job", "j", {}, writes.More(set={"/state/n": {float("nan")}}))
    with pytest.raises(ValueError, match="n is inf"):
        writes.release("job", "j", {"n": float("inf")}, writes.More(token=1))
    with pytest.raises(ValueError, match="needs an uuid"):
        writes.cancel("job", "")


def test_known_names_are_put_right_when_a_write_is_made():
    made = writes.create("job", {"Uuid": "j", "Status": "pending", "NodeId": "n", "Mine": 1})
    assert (made.id, made.fields) == ("j", {"uuid": "j", "status": "PENDING", "nodeId": "n", "Mine": 1})
    assert b'"nodeId":"n"' in made.body
    assert writes.create("job", {"job_uuid": "j"}).id == "j"
    changed = writes.update("job", "j", {"STATUS": "running", "UpdatedAt": "now"}, None)
    assert (changed.fields, changed.status) == ({"status": "RUNNING"}, "RUNNING")
    deep = writes.update("job", "j", {}, writes.More(set={"/Metadata/Key": 1}, inc={"RetryCount": 1}))
    assert deep.more == writes.More(set={"/metadata/Key": 1}, inc={"retryCount": 1})
    assert writes.update("volume", "v", {"NodeId": "n", "Uuid": "u"}, None).fields == {"nodeId": "n", "Uuid": "u"}


def test_names_in_their_own_spelling_cost_no_copy():
    given = {"status": "RUNNING", "mine": 1}
    assert spelling.JOB.of_fields(given) is given


def test_a_name_given_in_two_spellings_is_refused_where_it_is_given():
    with pytest.raises(BadRequest, match="two spellings"):
        writes.update("job", "j", {"pid": 1, "Pid": 2}, None)
