"""De-duplication: one live record for each dedupeKey of a kind."""

from __future__ import annotations

import asyncio

import pytest

from tests.socket.talking import Daemon, Talker

KEYS = ["nightly", "x" * 256, "ümlaut/with\tcontrol", "=", "#"]


@pytest.mark.parametrize("key", KEYS, ids=["short", "long", "strange", "equals", "hash"])
async def test_a_second_create_with_the_key_of_a_live_job_finds_that_job(client: Talker, key: str):
    await client.ok("create", job={"uuid": "a", "status": "QUEUED", "dedupeKey": key})
    reply = await client.ask("create", job={"uuid": "b", "status": "QUEUED", "dedupeKey": key})
    assert (reply["code"], reply["outcome"]) == ("exists", "not_applied")
    assert reply["job"]["uuid"] == "a"
    assert (await client.refused("get", jobId="b"))[0] == "not_found"


async def test_the_key_is_found_in_any_spelling(client: Talker):
    await client.ok("create", job={"Uuid": "a", "DedupeKey": "k"})
    assert (await client.refused("create", job={"uuid": "b", "dedupekey": "k"}))[0] == "exists"


async def test_other_keys_other_kinds_and_no_key_do_not_collide(client: Talker):
    await client.ok("create", job={"uuid": "a", "dedupeKey": "k"})
    await client.ok("create", job={"uuid": "b", "dedupeKey": "K"})
    await client.ok("create", kind="task", record={"id": "a", "dedupeKey": "k"})
    for name in ("c", "d"):
        await client.ok("create", job={"uuid": name, "dedupeKey": None})
        # Where there is no queue the field is the user's own.
        await client.ok("create", kind="kv", record={"id": name, "dedupeKey": "k"})


@pytest.mark.parametrize("end", ["ended", "deleted", "key-dropped"])
async def test_the_key_is_free_again_once_its_job_no_longer_needs_it(client: Talker, end: str):
    await client.ok("create", job={"uuid": "a", "status": "RUNNING", "dedupeKey": "k"})
    if end == "ended":
        await client.ok("update", jobId="a", job={"status": "COMPLETED"})
    elif end == "deleted":
        await client.ok("delete", jobId="a")
    else:
        await client.ok("update", jobId="a", job={"dedupeKey": None})
    await client.ok("create", job={"uuid": "b", "dedupeKey": "k"})
    assert (await client.ask("create", job={"uuid": "c", "dedupeKey": "k"}))["job"]["uuid"] == "b"


async def test_of_many_creates_at_once_one_passes(daemon: Daemon):
    talkers = [await daemon.client(f"c{number}") for number in range(8)]
    replies = await asyncio.gather(
        *(
            talker.ask("create", job={"uuid": f"job-{number}", "dedupeKey": "k"}, seq=1)
            for number, talker in enumerate(talkers)
        )
    )
    [made] = [reply["job"]["uuid"] for reply in replies if reply["success"]]
    assert {reply["job"]["uuid"] for reply in replies} == {made}
    assert {reply["code"] for reply in replies if not reply["success"]} == {"exists"}


async def test_a_create_sent_again_is_a_duplicate_and_not_in_its_own_way(daemon: Daemon):
    client = await daemon.client("c")
    frame = {"job": {"uuid": "a", "dedupeKey": "k"}, "seq": 1}
    await client.ok("create", **frame)
    client = await daemon.client("c")
    again = await client.ok("create", **frame, again=True)
    assert (again["duplicate"], again["revision"]) == (True, 1)


async def test_a_transaction_may_end_a_job_and_make_its_successor(client: Talker):
    await client.ok("create", job={"uuid": "a", "status": "RUNNING", "dedupeKey": "k"})
    successor = {"op": "create", "job": {"uuid": "b", "dedupeKey": "k"}}
    code, text = await client.refused("txn", ops=[successor])
    assert (code, "op 0: job already exists" in text) == ("exists", True)
    await client.ok("txn", ops=[{"op": "update", "jobId": "a", "job": {"status": "COMPLETED"}}, successor])
    twice = [{"op": "create", "job": {"uuid": name, "dedupeKey": "new"}} for name in "cd"]
    assert await client.refused("txn", ops=twice) == (
        "bad_request",
        "TXN_ERROR: op 1: dedupeKey new is that of op 0 already",
    )


async def test_a_key_that_is_no_text_is_refused_by_name(client: Talker):
    code, text = await client.refused("create", job={"uuid": "a", "status": "QUEUED", "dedupeKey": 7})
    assert (code, "dedupeKey must be a text" in text) == ("bad_request", True)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("create", {"record": {"id": "x"}}),
        ("update", {"id": "x", "record": {"a": 1}, "upsert": True}),
        ("delete", {"id": "job/=k"}),
        ("claim", {"id": "x", "holder": "h"}),
        ("sync", {"records": [{"id": "x"}]}),
        ("get", {"id": "job/=k"}),
        ("list", {}),
        ("stats", {}),
    ],
)
async def test_what_the_daemon_keeps_for_itself_is_nobody_elses(client: Talker, op: str, fields: dict):
    await client.ok("create", job={"uuid": "a", "dedupeKey": "k"})
    code, text = await client.refused(op, kind="_dedupe", **fields)
    assert (code, "the daemon's own" in text) == ("bad_request", True)


async def test_the_guard_goes_when_its_job_has_ended(daemon: Daemon):
    client = await daemon.client(None)
    await client.ok("create", job={"uuid": "a", "status": "RUNNING", "dedupeKey": "k"})
    await client.ok("update", jobId="a", job={"status": "COMPLETED"})
    async with asyncio.timeout(30):
        while True:
            (guard,) = await daemon.engine.get([("_dedupe", "job/=k")])
            if guard is None or guard.deleted:
                break
            await daemon.caught_up()
            await asyncio.sleep(0.01)
