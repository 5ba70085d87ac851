"""Transactions: several records, all or nothing, exactly once."""

from __future__ import annotations

import asyncio

import pytest

from statesvc.backends.port import Engine
from statesvc.config.model import Limits
from statesvc_client.errors import Unavailable
from tests.engines.addresses import EMBEDDED
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Json, Talker


def create(name: str, **fields) -> Json:
    return {"op": "create", "kind": "kv", "record": {"id": name, **fields}}


def update(name: str, **fields) -> Json:
    return {"op": "update", "kind": "kv", "id": name, **fields}


async def value(talker: Talker, name: str) -> object:
    return (await talker.ok("get", kind="kv", id=name))["record"].get("value")


async def test_writes_to_records_of_several_kinds_happen_together(client: Talker):
    await client.ok("create", job={"uuid": "old"})
    await client.ok("create", kind="kv", record={"id": "n", "value": 1})
    ops = [
        {"op": "create", "job": {"uuid": "a", "status": "QUEUED"}},
        {"op": "update", "kind": "kv", "id": "n", "inc": {"value": 2}},
        {"op": "delete", "jobId": "old"},
    ]
    reply = await client.ok("txn", ops=ops)
    made, counted, deleted = reply["results"]
    assert (made["job"]["uuid"], made["job"]["revision"]) == ("a", 1)
    assert (counted["record"]["value"], counted["record"]["revision"]) == (3, 2)
    assert deleted == {}
    assert (await client.refused("get", jobId="old"))[0] == "not_found"


@pytest.mark.parametrize(
    ("bad", "code", "text"),
    [
        ({"op": "update", "jobId": "nobody", "job": {"x": 1}}, "not_found", "op 1: job not found"),
        ({"op": "create", "job": {"uuid": "there"}}, "exists", "op 1: job already exists"),
        ({"op": "delete", "jobId": "nobody"}, "not_found", "op 1: job not found"),
        ({"op": "update", "jobId": "there", "job": {"status": "QUEUED"}}, "invalid_transition", "op 1: COMPLETED is"),
        ({"op": "update", "jobId": "there", "job": {"x": 1}, "token": 7}, "lease_lost", "op 1: the lease with token 7"),
        ({"op": "create", "job": {}}, "bad_request", "op 1: jobID is required"),
        ({"op": "create"}, "bad_request", "op 1: job is required"),
        (create("first"), "bad_request", "op 1: kv first is written by op 0 already"),
        ({**create("x"), "seq": 4}, "bad_request", "op 1: seq and again belong to the transaction"),
        ({"op": "create", "kind": "ip", "from": "net"}, "bad_request", "op 1: from is not for transactions"),
        ({"op": "create", "kind": "_dedupe", "record": {"id": "x"}}, "bad_request", "op 1: kinds that begin with _"),
    ],
    ids=lambda part: part if isinstance(part, str) and part.startswith("op") else None,
)
async def test_one_refused_write_refuses_all_and_is_named(client: Talker, bad: Json, code: str, text: str):
    await client.ok("create", job={"uuid": "there", "status": "COMPLETED"})
    reply = await client.ask("txn", ops=[create("first"), bad])
    assert (reply["code"], reply["outcome"]) == (code, "not_applied")
    assert reply["error"].startswith(f"TXN_ERROR: {text}")
    assert (await client.refused("get", kind="kv", id="first"))[0] == "not_found"


async def test_a_conflict_carries_the_record_as_its_kind_names_it(client: Talker):
    await client.ok("create", kind="kv", record={"id": "a", "value": 1, "secretEnvironment": {"k": "v"}})
    reply = await client.ask("txn", ops=[create("b"), update("a", record={"value": 2}, ifRevision=9)])
    assert reply["code"] == "conflict"
    assert reply["record"]["value"] == 1
    assert "secretEnvironment" not in reply["record"]
    assert "job" not in reply


async def test_results_hold_no_secrets(client: Talker):
    reply = await client.ok("txn", ops=[create("a", secretEnvironment={"k": "hidden-word"})])
    assert "hidden-word" not in str(reply)


async def test_a_transaction_is_limited_in_length_and_never_empty(client: Talker):
    assert (await client.refused("txn", ops=[]))[0] == "bad_request"
    assert (await client.refused("txn", ops=[create(str(number)) for number in range(33)]))[0] == "bad_request"
    reply = await client.ok("txn", ops=[create(str(number)) for number in range(32)])
    assert [result["record"]["id"] for result in reply["results"]] == [str(number) for number in range(32)]


@pytest.mark.parametrize("reconnect", [False, True], ids=["same-connection", "reconnected"])
async def test_a_transaction_sent_again_is_applied_once_and_tells_its_revisions(daemon: Daemon, reconnect: bool):
    client = await daemon.client("c")
    await client.ok("create", kind="kv", record={"id": "n", "value": 0}, seq=1)
    await client.ok("create", kind="kv", record={"id": "old"}, seq=2)
    ops = [create("a"), update("n", inc={"value": 1}), {"op": "delete", "kind": "kv", "id": "old"}]
    await client.ok("txn", ops=ops, seq=3, floor=3)
    if reconnect:
        client = await daemon.client("c")
    for _ in range(3):
        again = await client.ok("txn", ops=ops, seq=3, floor=3, again=True)
        assert again["duplicate"]
        assert again["results"] == [{"revision": 1}, {"revision": 2}, {"revision": 2}]
    assert await value(client, "n") == 1


async def test_one_record_that_remembers_speaks_for_all(start: Start, engine: Engine):
    daemon = await start(engine, limits=Limits(marks_clients=2))
    client = await daemon.client("c")
    ops = [update("busy", inc={"value": 1}, upsert=True), update("quiet", inc={"value": 1}, upsert=True)]
    await client.ok("txn", ops=ops, seq=1)
    for number in range(4):
        other = await daemon.client(f"other-{number}")
        await other.ok("update", kind="kv", id="busy", inc={"value": 10}, seq=1)
    again = await (await daemon.client("c")).ok("txn", ops=ops, seq=1, again=True)
    assert again["duplicate"]
    assert again["results"] == [{}, {"revision": 1}]
    reader = await daemon.client("d")
    assert (await value(reader, "busy"), await value(reader, "quiet")) == (41, 1)


async def test_a_transaction_that_never_came_is_applied_when_it_comes_again(daemon: Daemon):
    client = await daemon.client("c")
    reply = await client.ok("txn", ops=[create("a")], seq=1, again=True)
    assert "duplicate" not in reply


async def test_a_refused_transaction_replayed_unannounced_stays_refused(daemon: Daemon):
    client = await daemon.client("c")
    assert (await client.ask("txn", ops=[update("a", record={"x": 1})], seq=1))["code"] == "not_found"
    await (await daemon.client("d")).ok("create", kind="kv", record={"id": "a"}, seq=1)
    reply = await client.ask("txn", ops=[update("a", record={"x": 1})], seq=1)
    assert (reply["code"], reply["outcome"]) == ("conflict", "not_applied")


async def test_a_client_that_wants_runs_acknowledged_still_gets_its_results(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send({"op": "txn", "ops": [create("a")], "seq": 1, "requestId": "t"})
    reply = await client.receive()
    assert (reply["requestId"], reply["results"][0]["record"]["id"]) == ("t", "a")


async def test_transactions_that_race_lose_nothing(daemon: Daemon):
    """Both counters are always moved together, by everybody."""
    setup = await daemon.client(None)
    await setup.ok("txn", ops=[create("a", value=0), create("b", value=0)])
    talkers = [await daemon.client(f"c{number}") for number in range(6)]

    async def move(talker: Talker) -> None:
        for seq in range(1, 6):
            ops = [update("a", inc={"value": 1}), update("b", inc={"value": -1})]
            reply = await talker.ask("txn", ops=ops, seq=seq, floor=seq)
            while reply.get("code") == "busy":
                reply = await talker.ask("txn", ops=ops, seq=seq, floor=seq, again=True)
            assert reply["success"], reply

    await asyncio.gather(*map(move, talkers))
    assert (await value(setup, "a"), await value(setup, "b")) == (30, -30)


async def test_without_numbers_a_transaction_is_never_applied_twice(daemon: Daemon):
    """Where a commit's fate cannot be found out the answer is `unknown`; whatever is told to be done is done once."""
    setup = await daemon.client(None)
    await setup.ok("txn", ops=[create("a", value=0), create("b", value=0)])

    async def move(talker: Talker) -> list[Json]:
        ops = [update("a", inc={"value": 1}), update("b", inc={"value": -1})]
        return [await talker.ask("txn", ops=ops) for _ in range(6)]

    talkers = [await daemon.client(None) for _ in range(5)]
    replies = [reply for some in await asyncio.gather(*map(move, talkers)) for reply in some]
    done = sum(reply["success"] for reply in replies)
    doubtful = sum(reply.get("outcome") == "unknown" for reply in replies)
    a, b = await value(setup, "a"), await value(setup, "b")
    assert isinstance(a, int)
    assert done <= a <= done + doubtful
    assert b == -a
    assert doubtful == 0 or not daemon.engine.immediate


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_what_was_decided_on_a_failed_commit_fails_with_it(start: Start, faulty: FaultyEngine):
    """The second transaction finds the record of the first, whose commit then fails: it must not say `exists`.

    Writers of a shared engine take turns: there it is decided on what is stored.
    """
    daemon = await start(faulty)
    one, two = await daemon.client("one"), await daemon.client("two")
    faulty.hold()
    before = faulty.commits
    one.send({"op": "txn", "ops": [create("a")], "seq": 1})
    while faulty.commits == before:
        await asyncio.sleep(0)
    faulty.fail(Unavailable("pulled the plug"))
    two.send({"op": "txn", "ops": [create("a")], "seq": 1})
    pending = daemon.store.commits.pending(("kv", "a"))
    assert pending is not None
    async with asyncio.timeout(30):
        while len(pending[1].listeners) < 2:  # both wait for it
            await asyncio.sleep(0)
    faulty.let_go()
    assert (await one.receive())["code"] == "unavailable"
    assert (await two.receive())["code"] == "unavailable"


async def test_records_that_do_not_fit_the_reply_are_left_out_and_said_so(start: Start, engine: Engine):
    daemon = await start(engine, limits=Limits(frame_bytes=65_536, record_bytes=40_000))
    client = await daemon.client(None)
    for name in "abc":
        await client.ok("create", kind="kv", record={"id": name, "value": "x" * 30_000})
    reply = await client.ok("txn", ops=[update(name, record={"n": 1}) for name in "abc"])
    assert reply["truncated"]
    assert reply["results"] == [{"revision": 2}] * 3
