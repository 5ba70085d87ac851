"""One record: create, update, delete, get, and the fields the daemon manages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.config.model import Limits
from statesvc.store.clock import Clock, parse
from tests.socket.talking import Daemon, Talker

NANOSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


async def stored(talker: Talker, name: str = "a") -> dict:
    return (await talker.ok("get", jobId=name))["job"]


# --- revisions, uids, times ------------------------------------------------------------------------------------------


async def test_a_record_begins_at_revision_one_and_each_write_adds_one(joblet: Talker):
    job = (await joblet.ok("create", job={"uuid": "a"}))["job"]
    uid = job["uid"]
    assert job["revision"] == 1
    assert uid
    for revision in (2, 3, 4):
        job = (await joblet.ok("update", job={"uuid": "a", "pid": revision}))["job"]
        assert (job["uid"], job["revision"]) == (uid, revision)
    assert await stored(joblet) == job


async def test_an_update_that_changes_nothing_is_still_a_revision(joblet: Talker):
    await joblet.ok("create", job={"uuid": "a", "status": "RUNNING"})
    assert (await joblet.ok("update", job={"uuid": "a", "status": "RUNNING"}))["job"]["revision"] == 2


async def test_a_record_made_again_has_a_new_uid_and_begins_anew(joblet: Talker):
    first = (await joblet.ok("create", job={"uuid": "a", "old": True}))["job"]
    await joblet.ok("delete", jobId="a")
    second = (await joblet.ok("create", job={"uuid": "a"}))["job"]
    assert second["uid"] != first["uid"]
    assert second["revision"] == 1
    assert "old" not in second


async def test_uids_are_never_used_twice(joblet: Talker):
    replies = await joblet.in_one_go({"op": "create", "job": {"uuid": f"j{number}"}} for number in range(50))
    assert len({reply["job"]["uid"] for reply in replies}) == 50


async def test_the_daemon_writes_its_times_with_nanoseconds(joblet: Talker):
    job = (await joblet.ok("create", job={"uuid": "a", "status": "RUNNING"}))["job"]
    for name in ("createdAt", "updatedAt", "startedAt"):
        assert NANOSECONDS.fullmatch(job[name])
    assert job["createdAt"] == job["updatedAt"] == job["startedAt"]
    assert "completedAt" not in job
    job = (await joblet.ok("update", job={"uuid": "a", "status": "FAILED"}))["job"]
    assert NANOSECONDS.fullmatch(job["completedAt"])
    assert job["completedAt"] == job["updatedAt"]


async def test_times_given_at_create_are_kept_as_given(joblet: Talker):
    given = {
        "createdAt": "2020-02-29T23:59:59.123456789+05:30",
        "startedAt": "2020-03-01T00:00:00Z",
        "completedAt": "2020-03-01t00:00:00.5z",
    }
    await joblet.ok("create", job={"uuid": "a", "status": "COMPLETED", **given})
    job = await stored(joblet)
    assert {name: job[name] for name in given} == given
    job = (await joblet.ok("update", job={"uuid": "a", "exitCode": 0}))["job"]
    assert {name: job[name] for name in given} == given


@pytest.mark.parametrize("absent", [None, "", "0001-01-01T00:00:00Z"])
async def test_a_time_that_was_never_set_counts_as_absent(joblet: Talker, absent: str | None):
    job = (await joblet.ok("create", job={"uuid": "a", "createdAt": absent, "startedAt": absent}))["job"]
    assert job["createdAt"] == job["updatedAt"]
    assert "startedAt" not in job


@pytest.mark.parametrize("bad", ["yesterday", "2025-13-01T00:00:00Z", "2025-01-01", 5, True, [], "2025-01-01T00:00:00"])
async def test_a_time_that_is_none_is_refused_by_name(joblet: Talker, bad: object):
    for name in ("createdAt", "startedAt", "completedAt", "scheduledAt"):
        code, text = await joblet.refused("create", job={"uuid": "a", name: bad})
        assert code == "bad_request"
        assert name in text
    assert (await joblet.ask("get", jobId="a"))["code"] == "not_found"


async def test_managed_fields_in_an_update_are_ignored(client: Talker, daemon: Daemon):
    before = (await client.write("create", job={"uuid": "a"}))["job"]
    forged = {
        "uid": "x", "revision": 99, "createdAt": "1999-01-01T00:00:00Z", "updatedAt": "1999-01-01T00:00:00Z",
        "startedAt": "1999-01-01T00:00:00Z", "completedAt": "1999-01-01T00:00:00Z", "expiresAt": 1,
        "lease": {"holder": "me"}, "cancelRequested": True, "own": 1,
    }  # fmt: skip
    after = (await client.write("update", jobId="a", job=forged))["job"]
    assert after == {**before, "own": 1, "revision": 2, "updatedAt": after["updatedAt"]}
    assert after["updatedAt"] != forged["updatedAt"]
    for change in ({"set": forged}, {"inc": {"revision": 5, "n": 1}}, {"append": {"uid": [1], "l": [1]}}):
        after = (await client.write("update", jobId="a", **change))["job"]
        assert (after["uid"], after["createdAt"]) == (before["uid"], before["createdAt"])
    assert after["revision"] == 5
    joblet = await daemon.talker()
    after = (await joblet.ok("update", job={"uuid": "a", **forged}))["job"]
    assert (after["uid"], after["revision"], after["createdAt"]) == (before["uid"], 6, before["createdAt"])
    assert not {"lease", "cancelRequested", "expiresAt", "startedAt", "completedAt"} & set(after)


async def test_uid_revision_lease_and_the_like_are_ignored_at_create(joblet: Talker):
    forged = {"uid": "x", "revision": 99, "updatedAt": "1999-01-01T00:00:00Z", "lease": {}, "cancelRequested": True}
    job = (await joblet.ok("create", job={"uuid": "a", "expiresAt": 5, **forged}))["job"]
    assert set(job) == {"uuid", "uid", "revision", "createdAt", "updatedAt"}
    assert job["revision"] == 1
    assert job["uid"] != "x"


async def test_updated_at_never_decreases_whatever_the_clock_does(joblet: Talker, daemon: Daemon):
    hours = iter([10, 9, 30, 2, 3, 40])

    class Wild(Clock):
        def now(self) -> int:
            return next(hours) * 3_600_000_000_000 + 1_700_000_000_000_000_000

    job = (await joblet.ok("create", job={"uuid": "a"}))["job"]
    daemon.store.clock = Wild()
    last = parse(job["updatedAt"], "updatedAt")
    # Our own clock is far ahead of 2023: the first steps stand still.
    for number in range(3):
        job = (await joblet.ok("update", job={"uuid": "a", "n": number}))["job"]
        assert parse(job["updatedAt"], "updatedAt") >= last
        last = parse(job["updatedAt"], "updatedAt")


# --- assign without hello, merge patch with it -----------------------------------------------------------------------

BEFORE = {"uuid": "a", "keep": 1, "gone": 2, "deep": {"x": 1, "y": {"z": 2}}, "list": [1, 2]}
PATCH = {"gone": None, "deep": {"y": {"z": None, "w": 3}}, "list": [3], "new": {"n": None, "m": 1}}


async def test_without_hello_an_update_assigns_each_field_null_included(joblet: Talker):
    await joblet.ok("create", job=BEFORE)
    job = (await joblet.ok("update", jobId="a", job=PATCH))["job"]
    assert {name: job[name] for name in (*PATCH, "keep")} == {**PATCH, "keep": 1}


async def test_after_hello_an_update_is_a_merge_patch(client: Talker):
    await client.write("create", job=BEFORE)
    job = (await client.write("update", jobId="a", job=PATCH))["job"]
    assert "gone" not in job
    assert job["deep"] == {"x": 1, "y": {"w": 3}}
    assert job["list"] == [3]
    assert job["new"] == {"m": 1}
    assert job["keep"] == 1


async def test_after_hello_create_still_keeps_nulls(client: Talker):
    await client.write("create", job={"uuid": "a", "x": None, "y": {"z": None}})
    job = await stored(client)
    assert job["x"] is None
    assert job["y"] == {"z": None}


async def test_set_assigns_null_included_by_name_and_by_pointer(client: Talker):
    await client.write("create", job=BEFORE)
    paths = {
        "keep": None, "/deep/y": {"q": None}, "/fresh/a/b": 1, "/list/0": 9, "/list/-": 7, "/a~1b/c~0d": 5, "x/y": 6,
    }  # fmt: skip
    job = (await client.write("update", jobId="a", set=paths))["job"]
    assert job["keep"] is None
    assert job["deep"] == {"x": 1, "y": {"q": None}}
    assert job["fresh"] == {"a": {"b": 1}}
    assert job["list"] == [9, 2, 7]
    assert job["a/b"] == {"c~d": 5}
    assert job["x/y"] == 6


async def test_inc_adds_and_append_extends_and_absent_counts_as_nothing(client: Talker):
    await client.write("create", job={"uuid": "a", "n": 5, "f": 0.5, "big": 2**63, "l": [1], "null": None})
    change = {"inc": {"n": -7, "f": 1, "big": 1, "m": 3, "/c/d": 1, "null": 2}, "append": {"l": [2, [3]], "/c/l": [0]}}
    job = (await client.write("update", jobId="a", **change))["job"]
    assert (job["n"], job["f"], job["big"], job["m"], job["null"]) == (-2, 1.5, 2**63 + 1, 3, 2)
    assert job["c"] == {"d": 1, "l": [0]}
    assert job["l"] == [1, 2, [3]]


async def test_all_parts_of_one_update_apply_together(client: Talker):
    await client.write("create", job={"uuid": "a", "n": 1})
    reply = await client.write(
        "update", jobId="a", job={"status": "RUNNING"}, set={"s": 1}, inc={"n": 1}, append={"l": [1]}
    )
    job = reply["job"]
    assert (job["revision"], job["status"], job["s"], job["n"], job["l"]) == (2, "RUNNING", 1, 2, [1])


@pytest.mark.parametrize(
    "change",
    [
        {"inc": {"text": 1}},
        {"inc": {"flag": 1}},
        {"inc": {"list": 1}},
        {"inc": {"float": 1.7e308}},
        {"inc": {"huge": 0.5}},
        {"append": {"text": [1]}},
        {"append": {"n": [1]}},
        {"set": {"/text/x": 1}},
        {"set": {"/list/9": 1}},
        {"set": {"/list/x": 1}},
        {"set": {"/list/²": 1}},
        {"set": {"": 1}},
        {"set": {"status": "NOWHERE"}},
        {"set": {"labels": "x"}},
        {"job": {"priority": "urgent"}},
        {"job": {"nodeId": 5}},
        {"job": {"owner": []}},
        {"job": {"n": 2}, "inc": {"text": 1}},
    ],
    ids=str,
)
async def test_a_change_that_cannot_be_made_changes_nothing(client: Talker, change: dict):
    fields = {"text": "t", "flag": True, "n": 1, "list": [1, 2], "float": 1.7e308, "huge": 10**400}
    await client.write("create", job={"uuid": "a", **fields})
    before = await stored(client)
    reply = await client.write("update", jobId="a", **change)
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert await stored(client) == before
    assert (await client.write("update", jobId="a", inc={"n": 1}))["job"]["n"] == 2


async def test_known_fields_in_paths_are_matched_in_any_case(client: Talker):
    await client.write("create", job={"uuid": "a", "status": "QUEUED"})
    job = (await client.write("update", jobId="a", set={"Status": "running", "/LABELS/x": "y"}))["job"]
    assert (job["status"], job["labels"]) == ("RUNNING", {"x": "y"})
    assert not {"Status", "LABELS"} & set(job)


async def test_the_id_of_a_record_cannot_be_changed(client: Talker):
    await client.write("create", job={"uuid": "a"})
    reply = await client.write("update", jobId="a", set={"uuid": "b", "x": 1})
    assert reply["success"]
    assert reply["job"]["uuid"] == "a"
    assert (await client.ask("get", jobId="b"))["code"] == "not_found"


# --- ifRevision and upsert -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["update", "delete"])
async def test_if_revision_applies_on_that_revision_only(client: Talker, op: str):
    await client.write("create", job={"uuid": "a"})
    current = (await client.write("update", jobId="a", job={"n": 2}))["job"]
    more = {"job": {"n": 3}} if op == "update" else {}
    for wrong in (0, 1, 3):
        reply = await client.write(op, jobId="a", ifRevision=wrong, **more)
        assert (reply["code"], reply["outcome"]) == ("conflict", "not_applied")
        assert reply["job"] == current
    assert await stored(client) == current
    assert (await client.write(op, jobId="a", ifRevision=2, **more))["success"]


async def test_a_race_of_compare_and_set_has_one_winner(daemon: Daemon):
    talkers = [await daemon.client(f"c{number}") for number in range(8)]
    await talkers[0].ok("create", kind="kv", record={"id": "k", "value": 0})
    for number, talker in enumerate(talkers):
        talker.send({"op": "update", "kind": "kv", "id": "k", "record": {"value": number}, "ifRevision": 1, "seq": 1})
    replies = [await talker.receive() for talker in talkers]
    winners = [number for number, reply in enumerate(replies) if reply["success"]]
    assert len(winners) == 1
    assert {reply["code"] for reply in replies if not reply["success"]} == {"conflict"}
    kept = (await talkers[0].ok("get", kind="kv", id="k"))["record"]
    assert (kept["value"], kept["revision"]) == (winners[0], 2)


async def test_counters_lose_nothing_when_many_add_at_once(daemon: Daemon):
    talkers = [await daemon.client(f"c{number}") for number in range(10)]
    await talkers[0].ok("create", job={"uuid": "a"})
    for _ in range(5):
        for talker in talkers:
            talker.seq += 1
            talker.send({"op": "update", "jobId": "a", "inc": {"n": 1}, "seq": talker.seq})
        for talker in talkers:
            reply = await talker.receive()
            assert reply["success"], reply
    job = await stored(talkers[0])
    assert (job["n"], job["revision"]) == (50, 51)


async def test_upsert_makes_what_is_not_there_and_updates_what_is(client: Talker):
    made = (await client.write("update", jobId="a", job={"x": 1}, inc={"n": 1}, upsert=True))["job"]
    assert (made["revision"], made["x"], made["n"]) == (1, 1, 1)
    again = (await client.write("update", jobId="a", job={"x": None}, inc={"n": 1}, upsert=True))["job"]
    assert (again["revision"], again["n"], again["uid"]) == (2, 2, made["uid"])
    assert "x" not in again


async def test_upsert_if_revision_zero_makes_a_record_once(client: Talker):
    assert (await client.write("update", jobId="a", job={"x": 1}, upsert=True, ifRevision=0))["success"]
    reply = await client.write("update", jobId="a", job={"x": 2}, upsert=True, ifRevision=0)
    assert reply["code"] == "conflict"
    assert (await client.write("update", jobId="b", job={}, upsert=True, ifRevision=3))["code"] == "not_found"


async def test_after_hello_an_update_of_what_is_not_there_is_not_found(client: Talker):
    reply = await client.write("update", jobId="a", job={"status": "RUNNING"})
    assert (reply["code"], reply["error"]) == ("not_found", "UPDATE_ERROR: job not found")


# --- delete ----------------------------------------------------------------------------------------------------------


async def test_a_deleted_record_is_gone_and_a_late_update_does_not_revive_it(daemon: Daemon):
    joblet, client = await daemon.talker(), await daemon.client()
    await joblet.ok("create", job={"uuid": "a", "status": "RUNNING"})
    await joblet.ok("delete", jobId="a")
    assert (await joblet.ask("get", jobId="a"))["code"] == "not_found"
    assert (await joblet.refused("delete", jobId="a")) == ("not_found", "DELETE_ERROR: job not found")
    late = {"uuid": "a", "status": "COMPLETED"}
    assert (await joblet.refused("update", job=late)) == ("not_found", "UPDATE_ERROR: job not found")
    assert (await client.write("update", jobId="a", job=late))["code"] == "not_found"
    report = await joblet.ok("sync", jobs=[late])
    assert (report["applied"], [each["jobId"] for each in report["rejected"]]) == (0, ["a"])
    await daemon.caught_up()
    assert "jobs" not in await joblet.ok("list")
    assert "jobs" not in await joblet.ok("list", filter={"ids": ["a"]})


# --- secrets ---------------------------------------------------------------------------------------------------------

SECRET = "tr0ub4dor"


@pytest.mark.parametrize("name", ["secretEnvironment", "SecretEnvironment", "SECRETENVIRONMENT"])
async def test_the_secret_environment_is_seen_in_get_and_list_only(daemon: Daemon, name: str):
    client = await daemon.client()
    joblet = await daemon.talker()
    job = {"uuid": "a", "status": "RUNNING", name: {"KEY": SECRET, "LIST": []}}
    replies = [
        await client.write("create", job=job),
        await client.write("create", job=job),
        await client.write("update", jobId="a", job={"pid": 1}),
        await client.write("update", jobId="a", set={f"/{name}/OTHER": SECRET}),
        await client.write("update", jobId="a", job={"pid": 2}, ifRevision=1),
        await client.write("update", jobId="a", inc={f"/{name}/KEY": 1}),
        await client.write("update", jobId="a", append={name: [SECRET]}),
        await client.write("update", jobId="a", append={f"/{name}/KEY": [SECRET]}),
        await client.write("update", jobId="a", set={f"/{name}/KEY/DEEPER": SECRET}),
        await client.write("update", jobId="a", set={f"/{name}/LIST/KEY": SECRET}),
        await client.write("txn", ops=[{"op": "update", "jobId": "a", "inc": {f"/{name}/KEY": 1}}]),
        await client.write("update", jobId="a", set={f"/{name}/KEY" + 64 * "/x": SECRET}),
        await client.write("update", jobId="a", job={"status": "PENDING"}),
        await client.write("delete", jobId="a", ifRevision=9),
        await joblet.ask("update", job=job),
        await joblet.ask("sync", jobs=[{**job, "pid": 3}]),
        await joblet.ask("create", job={**job, "Status": "RUNNING"}),
        await joblet.ask("create", job={**job, "createdAt": "never"}),
    ]
    assert not any(SECRET in str(reply) or "KEY" in str(reply) for reply in replies)
    assert not any("secretEnvironment" in reply.get("job", {}) for reply in replies)
    await daemon.caught_up()
    for talker in (client, joblet):
        assert (await talker.ok("get", jobId="a"))["job"]["secretEnvironment"]["KEY"] == SECRET
        assert (await talker.ok("list"))["jobs"][0]["secretEnvironment"]["KEY"] == SECRET


@pytest.mark.parametrize(
    "path", ["secretEnvironment", "/secretEnvironment/KEY", "SECRETENVIRONMENT", "/SecretEnvironment"]
)
async def test_a_secret_can_neither_be_counted_by_nor_guessed_by_a_filter(daemon: Daemon, path: str):
    client = await daemon.client()
    await client.ok("create", job={"uuid": "a", "status": "QUEUED", "secretEnvironment": {"KEY": SECRET}})
    await daemon.caught_up()
    guess = {"where": {path: SECRET if path.endswith("KEY") else {"KEY": SECRET}}}
    asked: list[tuple[str, dict]] = [("stats", {"by": path})]
    asked += [(op, {"filter": guess}) for op in ("stats", "list", "watch", "claim", "stuck")]
    asked.append(("list", {"filter": {"ids": ["a"], **guess}}))
    for op, fields in asked:
        code, error = await client.refused(op, **fields)
        assert (code, SECRET in error) == ("bad_request", False), op
        assert "secretEnvironment" in error
    assert (await client.ok("stats", by="/environment/secretEnvironment"))["total"] == 1


# --- ids and sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "x" * 256, "é😀", " ", "a/b", "../../etc", "%00", "'; --", "\u202e", "null"])
async def test_an_id_may_be_any_text_without_control_characters(joblet: Talker, daemon: Daemon, name: str):
    await joblet.ok("create", job={"uuid": name})
    assert (await stored(joblet, name))["uuid"] == name
    await daemon.caught_up()
    assert [job["uuid"] for job in (await joblet.ok("list", filter={"prefix": name[:1]}))["jobs"]] == [name]


@pytest.mark.parametrize("name", ["x" * 257, "a\x00", "\n", "a\x7f", "\x1b[31m"])
async def test_an_id_with_control_characters_or_too_long_is_refused(joblet: Talker, name: str):
    for frame in ({"op": "create", "job": {"uuid": name}}, {"op": "get", "jobId": name}, {"op": "delete", "id": name}):
        joblet.send(frame)
        reply = await joblet.receive()
        assert reply["code"] == "bad_request"
        assert "jobID" in reply["error"]


async def test_a_record_over_the_limit_is_refused_and_one_at_it_is_not(daemon: Daemon):
    client = await daemon.client()
    reply = await client.write("create", job={"uuid": "a", "x": "y" * (8 * 1024 * 1024)})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert (await client.write("create", job={"uuid": "a", "x": "y" * (8 * 1024 * 1024 - 1000)}))["success"]
    reply = await client.write("update", jobId="a", job={"z": "y" * 1000})
    assert reply["code"] == "bad_request"
    assert (await stored(client))["revision"] == 1


async def test_a_record_does_not_grow_beyond_the_values_that_a_frame_may_carry(start, engine):
    daemon = await start(engine, limits=Limits(frame_values=1000))
    client = await daemon.client()
    some = list(range(600))
    assert (await client.write("update", jobId="a", upsert=True, append={"x": some}))["success"]
    reply = await client.write("update", jobId="a", append={"x": some})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert "more than 936 JSON values" in reply["error"]
    kept = await stored(client)
    assert kept["x"] == some
    assert (await client.ok("sync", jobs=[kept]))["unchanged"] == 1, "what was read can be sent back"


async def test_a_record_does_not_grow_so_far_by_a_claim_or_what_is_told_of_its_progress_either(start, engine):
    daemon = await start(engine, limits=Limits(frame_values=1000))
    client = await daemon.client()
    some = list(range(600))
    lease = (await client.write("claim", kind="lock", id="a", record={"x": some}))["records"][0]["lease"]
    for op in ("renew", "release"):
        reply = await client.write(op, kind="lock", id="a", token=lease["token"], record={"y": some})
        assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
        assert "more than 936 JSON values" in reply["error"]
    assert (await client.write("release", kind="lock", id="a", token=lease["token"], record={"y": []}))["success"]
    reply = await client.write("claim", kind="lock", id="a", record={"y": some})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert "more than 936 JSON values" in reply["error"]


async def test_what_the_daemon_adds_has_room_beside_the_largest_record(start, engine):
    daemon = await start(engine, limits=Limits(frame_values=1000))
    client = await daemon.client()
    count = 940
    while not (await client.write("create", job={"uuid": "a", "status": "QUEUED", "x": [0] * count}))["success"]:
        count -= 1
    assert count > 900
    await daemon.caught_up()
    (job,) = (await client.write("claim", filter={"ids": ["a"]}, holder="h"))["jobs"]
    assert (await client.write("update", jobId="a", job={"status": "STOPPING"}))["success"]
    released = await client.write("release", jobId="a", token=job["lease"]["token"], status="FAILED")
    assert released["job"]["status"] == "FAILED"
    assert (await client.write("retry", jobId="a"))["success"]


LOWERED = {"values": {"frame_values": 1000}, "bytes": {"record_bytes": 4096}, "depth": {"depth": 64}}


@pytest.mark.parametrize("lowered", LOWERED)
async def test_a_record_from_before_a_limit_was_lowered_is_used_as_any_other_and_only_does_not_grow(
    start, engine, lowered: str
):
    daemon = await start(engine)
    client = await daemon.client()
    deep = json.loads("[" * 100 + "]" * 100)
    await client.write("create", job={"uuid": "a", "status": "QUEUED", "x": [0] * 10_000, "deep": deep})
    daemon.store.limits = replace(daemon.store.limits, **LOWERED[lowered])
    await daemon.caught_up()
    token = (await client.write("claim", filter={}, holder="h"))["jobs"][0]["lease"]["token"]
    assert (await client.write("renew", jobId="a", token=token))["success"]
    assert (await client.write("release", jobId="a", token=token))["job"]["status"] == "QUEUED"
    assert (await client.write("emit", jobId="a", event={"type": "seen"}))["success"]
    grown = {"values": {"y": [0]}, "bytes": {"y": 0}, "depth": {"x": [deep]}}[lowered]
    reply = await client.write("update", jobId="a", job=grown)
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert (await client.write("update", jobId="a", job={"x": [0] * 9000}))["success"], "it became less"
    assert (await client.write("cancel", jobId="a"))["job"]["status"] == "CANCELED"


@pytest.mark.parametrize("field", ["createdAt", "startedAt", "completedAt", "scheduledAt"])
async def test_no_time_is_longer_than_times_are(start, engine, field: str):
    daemon = await start(engine)
    client = await daemon.client()
    record = {"uuid": "a", "status": "COMPLETED", field: "2026-01-01T00:00:00." + "0" * 100_000 + "Z"}
    created = await client.write("create", job=record)
    assert (created["code"], created["outcome"]) == ("bad_request", "not_applied")
    assert field in created["error"]
    assert len(created["error"]) < 300
    synced = await client.ask("sync", jobs=[record])
    assert "bad_request" in {synced.get("code"), *(each["code"] for each in synced.get("rejected", ()))}
    assert (await client.ask("get", jobId="a"))["code"] == "not_found"


@pytest.mark.parametrize("lowered", LOWERED)
async def test_a_record_from_before_a_limit_was_lowered_can_be_moved_on_to_its_end(start, engine, lowered: str):
    daemon = await start(engine)
    client = await daemon.client()
    deep = json.loads("[" * 100 + "]" * 100)
    await client.write("create", job={"uuid": "a", "status": "QUEUED", "x": [0] * 10_000, "deep": deep, "pid": 0})
    daemon.store.limits = replace(daemon.store.limits, **LOWERED[lowered])
    for pid in range(9):  # the tenth revision takes a digit more
        assert (await client.write("update", jobId="a", job={"pid": pid}))["success"], pid
    for status in ("SCHEDULED", "INITIALIZING", "RUNNING"):
        assert (await client.write("update", jobId="a", job={"status": status}))["success"], status
    reply = await client.write("update", jobId="a", job={"status": "COMPLETED", "y": [[deep]]})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert (await client.write("update", jobId="a", job={"status": "COMPLETED"}))["job"]["completedAt"]


async def test_a_status_of_no_lifecycle_is_bound_like_any_other_field(start, engine):
    daemon = await start(engine, limits=Limits(record_bytes=4096))
    client = await daemon.client()
    await client.write("create", kind="note", record={"id": "n", "status": "new"})
    reply = await client.write("update", kind="note", id="n", record={"status": "x" * 5000})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")


async def test_a_record_does_not_outgrow_a_reply_by_the_names_in_its_lease(start, engine):
    daemon = await start(engine, limits=Limits(frame_bytes=65_536, record_bytes=57_344, id_chars=1024))
    client = await daemon.client()
    names = {"id": "l", "kind": "lock", "holder": "\x01" * 1024}
    assert (await client.write("claim", **names, record={}))["records"][0]["lease"]
    reply = await client.write("update", kind="lock", id="l", record={"x": "y" * 56_000})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert "a reply has room for" in reply["error"]
    assert (await client.write("update", kind="lock", id="l", record={"x": "y" * 40_000}))["success"]


async def test_no_patch_is_deeper_than_what_other_ops_could_send_back(start, engine):
    daemon = await start(engine, limits=Limits(depth=64))
    client = await daemon.client()
    await client.write("create", job={"uuid": "a"})
    wide = [[0]] * 300  # more brackets than levels
    for levels, success in ((60, True), (61, False), (62, False)):
        deep = json.loads("[" * levels + "]" * levels)
        reply = await client.write("update", jobId="a", job={"x": deep, "wide": wide})
        assert reply["success"] == success, levels
        claimed = await client.write("claim", kind="lock", id=f"l{levels}", holder="h", record={"x": deep})
        assert claimed["success"] == success, levels
    kept = await stored(client)
    assert (await client.ok("sync", jobs=[kept]))["unchanged"] == 1
    assert (await client.write("txn", ops=[{"op": "update", "jobId": "a", "job": kept}]))["success"]


async def test_a_record_does_not_grow_beyond_the_depth_that_a_frame_may_have(start, engine):
    daemon = await start(engine, limits=Limits(depth=64))
    client = await daemon.client()
    assert (await client.write("update", jobId="a", upsert=True, set={"/n" * 40: []}))["success"]
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    reply = await client.write("update", jobId="a", append={"/n" * 40: deep})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert "nested deeper than 61" in reply["error"]
    kept = await stored(client)
    assert kept["revision"] == 1
    assert (await client.ok("sync", jobs=[kept]))["unchanged"] == 1
