"""A commit that failed: the truth about each write, and no later one overtakes it."""

from __future__ import annotations

from typing import Any

import pytest

from statesvc.backends.memory import MemoryEngine
from statesvc_client.errors import Busy, Gone, Internal, NoSpace, StateError, Unavailable
from tests.engines.addresses import repeats
from tests.engines.faulty import Fault, FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon

FAULTS = [
    NoSpace("the disk is full"),
    Unavailable("away"),
    Busy("too much to do"),
    Internal("broken", outcome="not_applied"),
    Internal("the disk failed", outcome="unknown"),
    Unavailable("timed out", outcome="unknown"),
]


def named(error: StateError) -> str:
    return f"{error.code}-{error.outcome}"


@pytest.fixture
async def daemon(faulty: FaultyEngine, start: Start) -> Daemon:
    return await start(faulty)


@pytest.mark.parametrize("error", FAULTS, ids=named)
async def test_a_failed_write_says_what_became_of_it(daemon: Daemon, faulty: FaultyEngine, error: StateError):
    joblet = await daemon.talker()
    faulty.fail(error)
    reply = await joblet.ask("create", job={"uuid": "a"}, requestId="r")
    assert (reply["requestId"], reply["code"], reply["outcome"]) == ("r", error.code, error.outcome)
    assert reply["error"].startswith("CREATE_ERROR: ")
    assert "job" not in reply
    assert (await joblet.ask("get", jobId="a"))["code"] == "not_found"
    assert (await joblet.ok("create", job={"uuid": "a"}))["job"]["revision"] == 1


@pytest.mark.parametrize("error", FAULTS, ids=named)
async def test_later_writes_wait_until_the_failed_one_came_again(
    daemon: Daemon, faulty: FaultyEngine, error: StateError
):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    faulty.fail(error)
    assert (await client.ask("update", jobId="a", inc={"n": 1}, seq=2, floor=2))["code"] == error.code
    for seq in (3, 4):
        reply = await client.ask("update", jobId="a", inc={"n": 100}, seq=seq, floor=2)
        assert (reply["code"], reply["outcome"], reply["seq"]) == ("unavailable", "not_applied", seq)
    reply = await client.ask("sync", jobs=[{"uuid": "b"}], seq=5, floor=2)
    assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied")
    assert (await client.ok("get", jobId="a"))["job"]["n"] == 0
    assert (await client.ok("update", jobId="a", inc={"n": 1}, seq=2, floor=2, again=True))["job"]["n"] == 1
    assert (await client.ok("update", jobId="a", inc={"n": 100}, seq=3, floor=2, again=True))["job"]["n"] == 101


async def away(*_: Any) -> Any:
    raise Unavailable("the store failed and must be restarted")


async def cut(*_: Any) -> Any:
    raise Gone("no longer kept")


@pytest.mark.parametrize("error", FAULTS, ids=named)
async def test_an_event_says_what_became_of_it_though_the_log_cannot_be_read_any_more(
    daemon: Daemon, faulty: FaultyEngine, monkeypatch: pytest.MonkeyPatch, error: StateError
):
    """So it is after a failed sync: the engine is not used again."""
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a"}, seq=1)
    faulty.fail(error)
    monkeypatch.setattr(faulty, "read_log", away)
    reply = await client.ask("emit", jobId="a", event={"type": "note"}, seq=2)
    assert (reply["code"], reply["outcome"], reply["seq"]) == (error.code, error.outcome, 2)


@pytest.mark.parametrize("read_log", [away, cut])
async def test_an_event_that_is_committed_is_a_success_though_the_log_cannot_be_read_behind_it(
    daemon: Daemon, faulty: FaultyEngine, monkeypatch: pytest.MonkeyPatch, read_log: Any
):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a"}, seq=1)
    monkeypatch.setattr(faulty, "read_log", read_log)
    reply = await client.ok("emit", jobId="a", event={"type": "note"}, seq=2)
    monkeypatch.undo()
    assert reply["revision"] == 2
    behind = (await client.ok("history", jobId="a", after=reply["cursor"]))["events"]
    assert [event["type"] for event in behind] == ["note"]


async def test_an_earlier_seq_does_not_stand_for_the_failed_one(daemon: Daemon, faulty: FaultyEngine):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    faulty.fail(NoSpace("full"))
    assert (await client.ask("update", jobId="a", inc={"n": 1}, seq=2, floor=1))["code"] == "no_space"
    assert (await client.ok("create", job={"uuid": "a"}, seq=1, floor=1, again=True))["duplicate"]
    reply = await client.ask("update", jobId="a", inc={"n": 100}, seq=3, floor=1)
    assert reply["code"] == "unavailable"
    assert (await client.ok("update", jobId="a", inc={"n": 1}, seq=2, floor=1, again=True))["job"]["n"] == 1


async def test_a_write_without_a_number_waits_too(daemon: Daemon, faulty: FaultyEngine):
    client = await daemon.client("c")
    faulty.fail(NoSpace("full"))
    assert (await client.ask("create", job={"uuid": "a"}, seq=1))["code"] == "no_space"
    reply = await client.ask("create", job={"uuid": "b"})
    assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied")


async def test_a_refusal_by_the_rules_does_not_stop_anybody(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a"}, seq=1)
    assert (await client.ask("create", job={"uuid": "a"}, seq=2))["code"] == "exists"
    assert (await client.ask("update", jobId="x", job={}, seq=3))["code"] == "not_found"
    assert (await client.ask("update", jobId="a", job={"status": 1}, seq=4))["code"] == "bad_request"
    assert (await client.ask("update", jobId="a", job={}, ifRevision=7, seq=5))["code"] == "conflict"
    assert (await client.ok("update", jobId="a", job={}, seq=6))["success"]


async def test_other_clients_and_reads_go_on(daemon: Daemon, faulty: FaultyEngine):
    client, other, joblet = await daemon.client("c"), await daemon.client("d"), await daemon.talker()
    await client.ok("create", job={"uuid": "a"}, seq=1)
    faulty.fail(NoSpace("full"))
    assert (await client.ask("update", jobId="a", job={"n": 1}, seq=2))["code"] == "no_space"
    assert (await client.ok("get", jobId="a"))["job"]["revision"] == 1
    assert (await client.ok("list"))["success"]
    assert (await client.ok("ping"))["success"]
    assert (await other.ok("update", jobId="a", job={"n": 2}, seq=1))["success"]
    assert (await joblet.ok("update", job={"uuid": "a", "n": 3}))["success"]


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
async def test_an_unknown_outcome_is_told_truly_when_the_write_comes_again(
    daemon: Daemon, faulty: FaultyEngine, applied: bool
):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    faulty.fail(Internal("the disk failed", outcome="unknown"), applied=applied)
    assert (await client.ask("update", jobId="a", inc={"n": 1}, seq=2, floor=2))["outcome"] == "unknown"
    again = await client.ok("update", jobId="a", inc={"n": 1}, seq=2, floor=2, again=True)
    assert again.get("duplicate", False) is applied
    job = (await client.ok("get", jobId="a"))["job"]
    assert (job["n"], job["revision"]) == (1, 2)


@pytest.mark.parametrize("error", FAULTS, ids=named)
async def test_of_a_write_that_comes_again_and_is_not_taken_nobody_knows_whether_it_was_before(
    daemon: Daemon, faulty: FaultyEngine, error: StateError
):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    faulty.fail(error)
    reply = await client.ask("update", jobId="a", inc={"n": 1}, seq=2, floor=2, again=True)
    # Only a write that was tried, and of which nothing is known since, is told to be what fails.
    code = "unavailable" if named(error) == "internal-not_applied" else error.code
    assert (reply["code"], reply["outcome"], reply["seq"]) == (code, "unknown", 2)
    behind = [{"op": "update", "jobId": "a", "inc": {"n": 9}, "seq": seq, "floor": 2} for seq in (3, 4)]
    replies = await client.in_one_go([{**behind[0], "again": True}, behind[1]])
    assert [(reply["code"], reply["outcome"]) for reply in replies] == [
        ("unavailable", "unknown"), ("unavailable", "not_applied"),
    ]  # fmt: skip
    assert (await client.ok("update", jobId="a", inc={"n": 1}, seq=2, floor=2, again=True))["job"]["n"] == 1


async def test_a_store_that_takes_no_writes_does_not_deny_one_it_may_have_taken(daemon: Daemon):
    client, admin = await daemon.client("c"), await daemon.talker()
    create = {"job": {"uuid": "a"}, "seq": 1, "floor": 1}
    await client.ok("create", **create)
    await admin.ok("freeze")
    again = await client.ask("create", **create, again=True)
    assert (again["code"], again["outcome"]) == ("unavailable", "unknown")
    other = await (await daemon.client("d")).ask("create", job={"uuid": "b"}, seq=1)
    assert (other["code"], other["outcome"]) == ("unavailable", "not_applied")
    await admin.ok("thaw")
    assert (await client.ok("create", **create, again=True))["duplicate"]


async def test_a_refusal_decides_a_write_that_comes_again_too(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a"}, seq=1)
    reply = await client.ask("update", jobId="a", job={}, ifRevision=7, seq=2, again=True)
    assert (reply["code"], reply["outcome"]) == ("conflict", "not_applied")


@pytest.mark.parametrize("count", [10, 129, 300, 2000])
async def test_a_pipeline_fails_from_the_failed_write_on_and_is_whole_when_sent_again(
    daemon: Daemon, faulty: FaultyEngine, count: int
):
    """What was sent behind the failed write, in however many batches and turns, must not get in before it."""
    count = count if count < 1000 else repeats(daemon.engine, count)
    client = await daemon.client("c")
    faulty.fail(NoSpace("full"))
    names = [f"j{seq % 7}" for seq in range(1, count + 1)]
    frames = [
        {"op": "update", "jobId": name, "append": {"seen": [seq]}, "upsert": True, "seq": seq, "floor": 1}
        for seq, name in enumerate(names, start=1)
    ]
    replies = await client.in_one_go(frames)
    outcomes = [reply["success"] for reply in replies]
    assert not any(outcomes[outcomes.index(False) :])
    assert {reply["outcome"] for reply in replies if not reply["success"]} == {"not_applied"}
    assert replies[0]["code"] == "no_space"
    for reply in await client.in_one_go({**frame, "again": True} for frame in frames):
        assert reply["success"], reply
    for name in set(names):
        job = (await client.ok("get", jobId=name))["job"]
        assert job["seen"] == [seq for seq, each in enumerate(names, start=1) if each == name]


async def test_what_was_decided_on_a_failed_commit_fails_with_it(start: Start):
    faulty = FaultyEngine(MemoryEngine())
    daemon = await start(faulty)
    one, two = await daemon.talker(), await daemon.talker()
    faulty.hold()
    faulty.fail(Internal("the disk failed", outcome="unknown"))
    one.send({"op": "create", "job": {"uuid": "a"}})
    while faulty.commits == 0:
        await two.ok("ping")
    # Decided on a record whose commit is under way: an update, a refusal and a read.
    two.send(
        {"op": "update", "job": {"uuid": "a", "n": 1}}, {"op": "create", "job": {"uuid": "a"}}, {"op": "get", "id": "a"}
    )
    one.send({"op": "ping"})
    await (await daemon.talker()).ok("ping")
    faulty.let_go()
    assert (await one.receive())["outcome"] == "unknown"
    assert (await one.receive())["success"]
    update, create, get = await two.receive_all(3)
    assert (update["success"], update["outcome"]) == (False, "not_applied")
    assert create["code"] != "exists"
    assert not get["success"]
    assert (await two.ask("get", jobId="a"))["code"] == "not_found"


async def test_no_reply_leaves_before_its_commit_is_done(start: Start):
    faulty = FaultyEngine(MemoryEngine())
    daemon = await start(faulty)
    one, two = await daemon.talker(), await daemon.talker()
    faulty.hold()
    one.send({"op": "ping", "requestId": 0}, {"op": "create", "job": {"uuid": "a"}, "requestId": 1}, {"op": "ping"})
    assert (await one.receive())["requestId"] == 0
    while faulty.commits == 0:
        await two.ok("ping")
    two.send({"op": "get", "jobId": "a", "requestId": "g"})
    for _ in range(20):
        await (await daemon.talker()).ok("ping")
    assert not one._reader._buffer  # type: ignore[attr-defined]
    assert not two._reader._buffer  # type: ignore[attr-defined]
    faulty.let_go()
    assert [reply.get("requestId") for reply in await one.receive_all(2)] == [1, ""]
    assert (await two.receive())["job"]["revision"] == 1


async def test_a_bug_in_an_engine_is_an_unknown_outcome_and_leaks_nothing(daemon: Daemon, faulty: FaultyEngine):
    joblet = await daemon.talker()
    faulty.faults.append(Fault(ValueError("s3cret detail")))
    reply = await joblet.ask("create", job={"uuid": "a"})
    assert (reply["code"], reply["outcome"]) == ("internal", "unknown")
    assert "s3cret" not in reply["error"]
    assert (await joblet.ok("create", job={"uuid": "b"}))["success"]
