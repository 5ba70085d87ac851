"""Exactly once: seq, floor, again, and what a record remembers of who wrote to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statesvc.config.model import Limits
from statesvc.connection import Connection
from statesvc.store.claims import Claims
from statesvc.store.clock import SECOND, Clock
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker

WRITES = [
    {"op": "create", "job": {"uuid": "new"}},
    {"op": "update", "jobId": "old", "inc": {"n": 1}},
    {"op": "update", "jobId": "old", "append": {"l": [1]}},
    {"op": "update", "jobId": "fresh", "job": {"x": 1}, "upsert": True},
    {"op": "delete", "jobId": "old"},
]


async def revision(talker: Talker, name: str) -> int:
    return (await talker.ok("get", jobId=name))["job"]["revision"]


@pytest.mark.parametrize("frame", WRITES, ids=lambda frame: f"{frame['op']}-{list(frame)[-1]}")
@pytest.mark.parametrize("reconnect", [False, True], ids=["same-connection", "reconnected"])
async def test_a_write_sent_again_is_applied_once_and_told_so(daemon: Daemon, frame: dict, reconnect: bool):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "old", "n": 0}, seq=1)
    first = await client.ok(**frame, seq=2, floor=2)
    if reconnect:
        client = await daemon.client("c")
    made = first["job"]["revision"] if "job" in first else 2
    for _ in range(3):
        again = await client.ok(**frame, seq=2, floor=2, again=True, requestId="r")
        assert again == {"requestId": "r", "success": True, "duplicate": True, "revision": made}
    if frame["op"] != "delete":
        name = frame.get("jobId", "new")
        assert await revision(client, name) == made


@pytest.mark.parametrize("frame", WRITES, ids=lambda frame: f"{frame['op']}-{list(frame)[-1]}")
async def test_a_write_that_never_came_is_applied_when_it_comes_again(daemon: Daemon, frame: dict):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "old", "n": 0}, seq=1)
    reply = await client.ok(**frame, seq=2, floor=2, again=True)
    assert "duplicate" not in reply


async def test_a_frame_replayed_without_again_is_not_applied_a_second_time(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    await client.ok("update", jobId="a", inc={"n": 1}, seq=2)
    reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=2)
    assert reply.get("duplicate") or reply.get("code") == "conflict"
    # Of a write that was refused nothing is kept in the record: the connection itself remembers.
    refused = await client.ask("update", jobId="a", inc={"n": 1}, ifRevision=9, seq=3)
    assert refused["code"] == "conflict"
    reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=3)
    assert (reply["code"], reply["outcome"]) == ("conflict", "not_applied")
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 1


async def test_a_write_refused_before_is_told_so_once_a_later_one_is_in(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "status": "RUNNING"}, seq=1)
    assert (await client.ask("update", jobId="a", job={"x": 1}, ifRevision=7, seq=2, floor=1))["code"] == "conflict"
    await client.ok("update", jobId="a", job={"y": 1}, seq=3, floor=1)
    client = await daemon.client("c")
    # Without its condition it would pass now; it was refused, so it stays refused.
    reply = await client.ask("update", jobId="a", job={"x": 1}, seq=2, floor=1, again=True)
    assert (reply["code"], reply["outcome"]) == ("conflict", "not_applied")
    assert (await client.ok("update", jobId="a", job={"y": 1}, seq=3, floor=1, again=True))["duplicate"]
    assert (await client.ok("get", jobId="a"))["job"]["revision"] == 2


async def test_every_write_above_the_floor_is_remembered_with_the_revision_it_made(daemon: Daemon):
    client = await daemon.client("c")
    for seq in range(1, 9):
        await client.ok("update", jobId="a", inc={"n": 1}, upsert=True, seq=seq, floor=1)
    client = await daemon.client("c")
    for seq in (3, 1, 8, 5):
        again = await client.ok("update", jobId="a", inc={"n": 1}, upsert=True, seq=seq, floor=1, again=True)
        assert (again["duplicate"], again["revision"]) == (True, seq)
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 8


async def test_what_is_below_the_floor_need_not_be_kept(daemon: Daemon):
    client = await daemon.client("c")
    for seq in range(1, 51):
        await client.ok("update", jobId="a", inc={"n": 1}, upsert=True, seq=seq, floor=seq)
    [row] = await daemon.engine.get([("job", "a")])
    assert row is not None
    assert len(row.marks) < 60


async def test_the_seqs_of_different_clients_are_their_own(daemon: Daemon):
    one, two = await daemon.client("one"), await daemon.client("two")
    await one.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    for talker in (one, two):
        reply = await talker.ok("update", jobId="a", inc={"n": 1}, seq=2, again=True)
        assert "duplicate" not in reply
    assert (await one.ok("get", jobId="a"))["job"]["n"] == 2


async def test_marks_stay_with_the_id_through_delete_and_create(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a"}, seq=1, floor=1)
    await client.ok("delete", jobId="a", seq=2, floor=1)
    await client.ok("create", job={"uuid": "a", "life": 2}, seq=3, floor=1)
    assert (await client.ok("delete", jobId="a", seq=2, floor=1, again=True))["duplicate"]
    assert (await client.ok("create", job={"uuid": "a"}, seq=1, floor=1, again=True))["duplicate"]
    assert (await client.ok("get", jobId="a"))["job"]["life"] == 2


async def test_a_sync_sent_again_is_applied_once(daemon: Daemon):
    client = await daemon.client("c")
    jobs = [{"uuid": "a", "n": 1}, {"uuid": "b", "n": 1}]
    assert (await client.ok("sync", jobs=jobs, seq=1, floor=1))["applied"] == 2
    await client.ok("update", jobId="a", job={"n": 2}, seq=2, floor=1)
    report = await client.ok("sync", jobs=jobs, seq=1, floor=1, again=True)
    assert (report["applied"], report["unchanged"]) == (0, 2)
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 2


async def test_a_sync_replayed_without_again_writes_nothing(daemon: Daemon):
    client, other = await daemon.client("c"), await daemon.client("other")
    await other.ok("create", job={"uuid": "a", "n": 1, "nodeId": "node-1"}, seq=1)
    frame = {"jobs": [{"uuid": "a", "n": 1}], "scope": {"nodeId": "node-1"}, "mode": "replace", "seq": 1}
    assert (await client.ok("sync", **frame))["unchanged"] == 1
    assert (await client.ok("sync", **frame))["unchanged"] == 1
    await other.ok("update", jobId="a", job={"n": 2}, seq=2)
    await other.ok("create", job={"uuid": "b", "nodeId": "node-1"}, seq=3)
    report = await client.ok("sync", **frame)
    assert [(each["jobId"], each["code"]) for each in report["rejected"]] == [("a", "conflict")]
    assert report["applied"] == 0
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 2
    assert await revision(client, "b") == 1


# --- marks that were pushed out --------------------------------------------------------------------------------------


async def pushed_out(daemon: Daemon) -> Talker:
    """A client whose mark on `a` was pushed out by others."""
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    await client.ok("update", jobId="a", inc={"n": 1}, seq=2)
    for number in range(5):
        other = await daemon.client(f"other-{number}")
        await other.ok("update", jobId="a", inc={"n": 10}, seq=1)
    return await daemon.client("c")


async def test_a_resend_the_record_no_longer_knows_is_unknown_and_never_applied(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))
    client = await pushed_out(daemon)
    for _ in range(2):
        reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=2, again=True)
        assert (reply["success"], reply["outcome"]) == (False, "unknown")
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 51


async def test_a_sync_the_record_no_longer_knows_is_rejected_and_never_applied(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))
    client = await pushed_out(daemon)
    await client.ok("update", jobId="a", inc={"n": 100}, seq=9)
    jobs = [{"uuid": "a", "n": 0}, {"uuid": "new"}]
    report = await client.ok("sync", jobs=jobs, seq=1, again=True)
    assert [(each["jobId"], each["code"]) for each in report["rejected"]] == [("a", "conflict")]
    assert report["applied"] == 1
    assert (await client.ok("update", jobId="a", inc={"n": 100}, seq=9, again=True))["duplicate"]
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 151


async def test_a_record_that_no_longer_knows_of_a_sync_but_is_as_it_says_is_unchanged(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))
    client = await pushed_out(daemon)
    report = await client.ok("sync", jobs=[{"uuid": "a", "n": 51}], seq=1, again=True)
    assert (report["applied"], report["unchanged"], "rejected" in report) == (0, 1, False)


async def test_a_lost_mark_stays_lost_after_the_client_wrote_again(start: Start, engine):
    """A later mark of the same client says nothing about one that was pushed out: neither applied nor refused."""
    daemon = await start(engine, limits=Limits(marks_clients=4))
    client = await pushed_out(daemon)
    await client.ok("update", jobId="a", inc={"n": 100}, seq=3, floor=1)
    reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=2, floor=1, again=True)
    assert (reply["success"], reply["outcome"]) == (False, "unknown")
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 151


async def test_a_write_behind_all_that_is_remembered_was_never_taken_and_is_applied(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))
    client = await pushed_out(daemon)
    await client.ok("update", jobId="a", inc={"n": 100}, seq=3, floor=1)
    assert (await client.ok("update", jobId="a", inc={"n": 1}, seq=4, floor=1, again=True))["job"]["n"] == 152


async def test_a_first_send_is_applied_whatever_was_pushed_out(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))
    await pushed_out(daemon)
    newcomer = await daemon.client("newcomer")
    assert (await newcomer.ok("update", jobId="a", inc={"n": 1}, seq=1))["job"]["n"] == 52


async def test_sixty_four_clients_are_remembered(daemon: Daemon):
    first = await daemon.client("client-0")
    await first.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    for number in range(1, 64):
        other = await daemon.client(f"client-{number}")
        await other.ok("update", jobId="a", inc={"n": 1}, seq=1)
    assert (await first.ok("create", job={"uuid": "a"}, seq=1, again=True))["duplicate"]
    one_more = await daemon.client("client-64")
    await one_more.ok("update", jobId="a", inc={"n": 1}, seq=1)
    reply = await first.ask("create", job={"uuid": "a"}, seq=1, again=True)
    assert reply["outcome"] == "unknown"


async def test_a_resend_whose_mark_was_pushed_out_is_never_applied_however_late_it_comes(start: Start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=4))

    class Later(Clock):
        def now(self) -> int:
            return super().now() + 10 * 366 * 86_400 * SECOND

    client = await pushed_out(daemon)
    daemon.store.clock = Later()
    before = (await client.ok("get", jobId="a"))["job"]
    reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=1, again=True)
    assert reply["outcome"] == "unknown"
    assert (await client.ok("get", jobId="a"))["job"] == before


# --- the same client twice -------------------------------------------------------------------------------------------


class HeldClaims:
    """Claims begin, and go on when they are let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()


@pytest.fixture
def held_claims(monkeypatch: pytest.MonkeyPatch) -> HeldClaims:
    held, claim = HeldClaims(), Claims.claim

    async def hold(*given: Any, **more: Any) -> Any:
        held.begun.set()
        await held.gate.wait()
        return await claim(*given, **more)

    monkeypatch.setattr(Claims, "claim", hold)
    return held


async def test_a_second_hello_with_the_same_client_ends_the_older_connection(daemon: Daemon):
    older = await daemon.client("c")
    await older.ok("create", job={"uuid": "a"}, seq=1)
    newer = await daemon.client("c")
    assert await older.line() == b""
    assert (await newer.ok("create", job={"uuid": "a"}, seq=1, again=True))["duplicate"]
    assert (await (await daemon.client("d")).ok("ping"))["success"]


async def test_what_the_older_connection_had_under_way_is_decided_first(daemon: Daemon):
    older = await daemon.client("c")
    older.send(*({"op": "create", "job": {"uuid": f"j{seq}"}, "seq": seq, "floor": 1} for seq in range(1, 40)))
    newer = await daemon.client("c")
    frames = (
        {"op": "create", "job": {"uuid": f"j{seq}"}, "seq": seq, "floor": 1, "again": True} for seq in range(1, 40)
    )
    for reply in await newer.in_one_go(frames):
        assert reply["success"], reply
    for seq in range(1, 40):
        assert await revision(newer, f"j{seq}") == 1


async def test_a_client_that_comes_back_waits_for_what_its_lost_connection_has_under_way(
    daemon: Daemon, held_claims: HeldClaims
):
    older, newer, other = await daemon.client("c", name="w"), await daemon.talker(), await daemon.talker()
    for name in ("a", "b"):
        await older.ok("create", job={"uuid": name, "status": "QUEUED"})
    await daemon.caught_up()
    older.send({"op": "claim", "seq": 1, "floor": 1})
    await held_claims.begun.wait()
    daemon.server._dispatcher._sessions["c"].connection.abort()  # type: ignore[attr-defined]
    assert await older.line() == b""
    newer.send({"op": "hello", "client": "c", "name": "w"})
    for _ in range(20):
        await other.ok("ping")
    assert not newer._reader._buffer  # type: ignore[attr-defined]
    held_claims.gate.set()
    assert (await newer.receive())["success"]
    await daemon.caught_up()
    found = await newer.ok("claim", seq=1, floor=1, again=True)
    assert (found["duplicate"], len(found["jobs"])) == (True, 1)


async def test_what_was_sent_behind_a_hello_is_taken_in_its_name_though_the_client_has_hung_up(
    daemon: Daemon, held_claims: HeldClaims
):
    older, newer, other = await daemon.client("c", name="w"), await daemon.talker(), await daemon.talker()
    await older.ok("create", job={"uuid": "a", "status": "QUEUED"})
    await daemon.caught_up()
    older.send({"op": "claim", "seq": 1, "floor": 1})
    await held_claims.begun.wait()
    count: dict[str, Any] = {
        "op": "update",
        "kind": "kv",
        "id": "n",
        "upsert": True,
        "inc": {"n": 1},
        "seq": 2,
        "floor": 1,
    }
    newer.send({"op": "hello", "client": "c", "name": "w"}, count)
    (waiting,) = await saying_hello(daemon)
    waiting._session.hang_up()
    held_claims.gate.set()
    async with asyncio.timeout(30):
        while not (await other.ask("get", kind="kv", id="n"))["success"]:
            await asyncio.sleep(0.001)
    again = await daemon.client("c", name="w")
    assert (await again.ok(**count, again=True))["duplicate"]
    assert (await again.ok("get", kind="kv", id="n"))["record"]["n"] == 1


async def saying_hello(daemon: Daemon, count: int = 1) -> set[Connection]:
    """The connections whose hello takes a while, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            new = (each for each in daemon.server._connections if not each._session.caller.said_hello)
            if len(found := {each for each in new if each._task is not None}) == count:
                return found
            await asyncio.sleep(0.001)


async def lost(connection: Connection) -> asyncio.Task[None]:
    """Lose a connection; what it has under way."""
    under_way = connection._task
    assert under_way is not None
    connection.abort()
    async with asyncio.timeout(30):
        while not connection._lost:
            await asyncio.sleep(0.001)
    return under_way


async def test_of_two_that_say_hello_at_once_the_later_one_stays(daemon: Daemon, held_claims: HeldClaims):
    older, first, second = await daemon.client("c", name="w"), await daemon.talker(), await daemon.talker()
    older.send({"op": "claim"})
    await held_claims.begun.wait()
    for count, talker in enumerate((first, second), start=1):
        talker.send({"op": "hello", "client": "c"})
        await saying_hello(daemon, count)
    held_claims.gate.set()
    assert (await second.receive())["success"]
    assert (await second.ok("ping"))["success"]
    (connection,) = (each for each in daemon.server._connections if each._session.caller.client == "c")
    assert daemon.server._dispatcher._sessions["c"].connection is connection


async def test_one_that_goes_while_its_hello_waits_is_forgotten(daemon: Daemon, held_claims: HeldClaims):
    older, gone, newer = await daemon.client("c", name="w"), await daemon.talker(), await daemon.talker()
    older.send({"op": "claim"})
    await held_claims.begun.wait()
    sessions = daemon.server._dispatcher._sessions
    claim = await lost(sessions["c"].connection)  # type: ignore[arg-type]
    gone.send({"op": "hello", "client": "c"})
    (waiting,) = await saying_hello(daemon)
    hello = await lost(waiting)
    held_claims.gate.set()
    await asyncio.wait([claim, hello])
    await newer.ok("ping")
    assert not sessions
    await newer.hello("c")
    assert (await newer.ok("ping"))["success"]


async def test_one_whose_hello_waited_when_it_went_does_not_end_the_one_that_is_there(
    daemon: Daemon, held_claims: HeldClaims
):
    older, newer, gone = await daemon.client("c", name="w"), await daemon.talker(), await daemon.talker()
    older.send({"op": "claim"})
    await held_claims.begun.wait()
    newer.send({"op": "hello", "client": "c"})
    before = await saying_hello(daemon)
    gone.send({"op": "hello", "client": "c"})
    (waiting,) = await saying_hello(daemon, 2) - before
    hello = await lost(waiting)
    held_claims.gate.set()
    assert (await newer.receive())["success"]
    await asyncio.wait([hello])
    assert (await newer.ok("ping"))["success"]


async def test_a_hello_that_waits_for_the_engine_is_not_taken_once_its_connection_is_lost(daemon: Daemon):
    gone, other = await daemon.talker(), await daemon.talker()
    dispatcher, opened = daemon.server._dispatcher, asyncio.Event()
    dispatcher.serving, ready, dispatcher._ready = False, dispatcher._ready, opened.wait  # type: ignore[assignment]
    gone.send({"op": "hello", "client": "c"})
    (waiting,) = await saying_hello(daemon)
    hello = await lost(waiting)
    dispatcher.serving, dispatcher._ready = True, ready
    opened.set()
    await asyncio.wait([hello])
    await other.ok("ping")
    assert not dispatcher._sessions
    assert waiting not in daemon.server._connections


async def test_a_connection_that_changes_its_name_leaves_the_old_one_free(daemon: Daemon):
    talker = await daemon.client("first")
    await talker.hello("second")
    other = await daemon.client("first")
    assert (await talker.ok("ping"))["success"]
    assert (await other.ok("ping"))["success"]
    for number in range(20):
        await talker.hello(f"name-{number}")
    assert len(daemon.server._dispatcher._sessions) == 2


@pytest.mark.parametrize("client", ["", "x" * 257])
async def test_a_client_needs_a_name_of_a_sensible_length(joblet: Talker, client: str):
    assert (await joblet.refused("hello", client=client))[0] == "bad_request"
    assert (await joblet.ok("hello"))["success"]
