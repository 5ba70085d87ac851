"""What the daemon does not know it keeps: any JSON survives create, update, sync, get and list in meaning."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.socket.talking import Daemon, Talker

VALUES: list[Any] = [
    0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**40, -(10**40),
    0.1, 1.0, -0.0, 1e308, 5e-324, 1.7976931348623157e308, 123456789.123456789, 1e21, 1e-7,
    "", "text", "ü", "😀", "\u0000\u001f\u007f", '\\ " / \b\f\n\r\t', "\u2028\u2029", "e\u0301", "\ufeff", "\uffff",
    True, False, None,
    [], {}, [[]], [{}], {"": ""}, {"a": {}}, {"a": []}, {"a": None}, [None, None], {"é": {"ü": ["😀"]}},
    {"status": "x", "revision": 7, "uid": 5, "createdAt": "never", "secretEnvironment": 1, "UUID": 3},
    {"$ref": "#", "__proto__": {}, "constructor": 1},
]  # fmt: skip


def same(left: Any, right: Any) -> bool:
    """Equal in JSON's meaning and in Python's types: 1 is not 1.0, and -0.0 is not 0.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@pytest.mark.parametrize("kind", ["job", "kv"])
async def test_every_kind_of_value_comes_back_as_it_went(daemon: Daemon, kind: str):
    joblet, client = await daemon.talker(), await daemon.client()
    fields: dict[str, Any] = {f"field{number}": value for number, value in enumerate(VALUES)}
    one, many = ("job", "jobs") if kind == "job" else ("record", "records")
    await joblet.ok("create", kind=kind, id="a", **{one: fields})
    await joblet.ok("update", kind=kind, id="b", **{one: {"status": "RUNNING", **fields}}, upsert=True)
    name = "uuid" if kind == "job" else "id"
    await joblet.ok("sync", kind=kind, **{many: [{name: "c", **fields}]})
    await client.ok("create", kind=kind, id="d", **{one: {}})
    await client.ok("update", kind=kind, id="d", set=fields)
    await daemon.caught_up()
    listed = {each[name]: each for each in (await client.ok("list", kind=kind))[many]}
    for record in "abcd":
        got = (await joblet.ok("get", kind=kind, id=record))[one]
        for field, value in fields.items():
            assert same(got[field], value), (record, field)
        assert same(got, listed[record])


async def test_explicit_empties_are_not_absences(joblet: Talker):
    fields: dict[str, Any] = {
        "a": None,
        "b": "",
        "c": [],
        "d": {},
        "e": 0,
        "f": False,
        "environment": {},
        "args": [],
        "owner": "",
    }
    await joblet.ok("create", job={"uuid": "x", **fields})
    job = (await joblet.ok("get", jobId="x"))["job"]
    assert {name: job[name] for name in fields} == fields


async def test_numbers_that_json_writes_in_several_ways_keep_their_value(joblet: Talker):
    joblet.send_raw(b'{"op":"create","job":{"uuid":"x","n":[1e2,1E+2,100,1.50,-0,0.1e1]}}\n')
    assert (await joblet.receive())["success"]
    assert (await joblet.ok("get", jobId="x"))["job"]["n"] == [100, 100, 100, 1.5, 0, 1]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)

names = itertools.count()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values)
async def test_any_json_value_survives(joblet: Talker, value: Any):
    name = f"job-{next(names)}"
    await joblet.ok("create", job={"uuid": name, "payload": value})
    await joblet.ok("update", job={"uuid": name, "again": value})
    job = (await joblet.ok("get", jobId=name))["job"]
    assert same(job["payload"], value)
    assert same(job["again"], value)
    for number in (value,) if isinstance(value, float) else ():
        assert math.copysign(1, job["payload"]) == math.copysign(1, number)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6).map(lambda name: "x" + name),
        json_values,
        max_size=5,
    )
)
async def test_any_unknown_field_survives_under_its_own_name(joblet: Talker, fields: dict[str, Any]):
    name = f"job-{next(names)}"
    await joblet.ok("create", job={"uuid": name, **fields})
    job = (await joblet.ok("get", jobId=name))["job"]
    assert same({field: job[field] for field in fields}, fields)
