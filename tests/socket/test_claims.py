"""Claim, renew and release through the socket: shapes of replies, waiting, and sending again."""

from __future__ import annotations

import asyncio
import json
import socket
from operator import itemgetter
from typing import Any

import msgspec

from statesvc.backends.port import Engine
from statesvc.config import Limits
from statesvc.store.frames import ENVELOPE_BYTES
from tests.engines.addresses import address_of
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker


async def test_a_claim_by_id_replies_with_the_record_and_its_lease(daemon: Daemon):
    client = await daemon.client("c", name="agent-1")
    reply = await client.ok("claim", kind="lock", id="l", ttl=5)
    (record,) = reply["records"]
    assert record["id"] == "l"
    assert record["lease"]["holder"] == "agent-1"
    assert record["lease"]["token"] == 1
    assert "jobs" not in reply
    assert (await client.ok("claim", kind="lock", id="l"))["records"] == []


async def test_a_claim_by_filter_replies_with_jobs(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "j", "status": "QUEUED", "secretEnvironment": {"KEY": "v"}})
    await daemon.caught_up()
    (job,) = (await client.ok("claim", filter={}, holder="w"))["jobs"]
    assert (job["uuid"], job["status"], job["lease"]["holder"]) == ("j", "RUNNING", "w")
    assert job["secretEnvironment"] == {"KEY": "v"}
    assert (await client.ok("claim", filter={}))["jobs"] == []


async def test_an_agent_without_hello_may_claim_too(joblet: Talker):
    (record,) = (await joblet.ok("claim", kind="lock", id="l", holder="me"))["records"]
    assert (await joblet.ok("renew", kind="lock", id="l", token=1))["lease"]["beat"] >= 1
    released = await joblet.ok("release", kind="lock", id="l", token=record["lease"]["token"])
    assert "lease" not in released["record"]
    assert await joblet.refused("claim", kind="lock", id="m") == (
        "bad_request",
        "CLAIM_ERROR: holder is required: say who is to hold the lease, here or as name in hello",
    )


async def test_a_renewal_tells_the_lease_and_whether_the_end_is_wanted(daemon: Daemon):
    client = await daemon.client("c", name="w")
    await client.ok("create", job={"uuid": "j", "status": "QUEUED"})
    await daemon.caught_up()
    await client.ok("claim", ttl=60)
    reply = await client.ok("renew", jobId="j", token=1, ttl=90)
    assert (reply["lease"]["holder"], reply["lease"]["ttl"]) == ("w", 90.0)
    assert "cancelRequested" not in reply
    await client.ok("cancel", jobId="j")
    reply = await client.ok("renew", jobId="j", token=1, job={"progress": 50})
    assert reply["cancelRequested"] is True
    assert reply["lease"]["token"] == 1
    assert (await client.ok("get", jobId="j"))["job"]["progress"] == 50


async def test_a_stale_token_is_lease_lost_and_not_applied(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("claim", kind="lock", id="l", holder="a")
    for op, more in [("renew", {}), ("release", {}), ("update", {"record": {"x": 1}})]:
        reply = await client.ask(op, kind="lock", id="l", token=7, **more)
        assert (reply["code"], reply["outcome"]) == ("lease_lost", "not_applied")
        assert "a holds token 1" in reply["error"]


async def test_a_waiting_claim_holds_back_later_requests_of_its_connection_only(daemon: Daemon):
    waiting, other = await daemon.client("w", name="w"), await daemon.client("o")
    waiting.send({"op": "claim", "requestId": "1", "wait": 30}, {"op": "ping", "requestId": "2"})
    while not any(connection._session.waits for connection in daemon.server._connections):
        await asyncio.sleep(0)
    await other.ok("create", job={"uuid": "j", "status": "QUEUED"})
    first, second = await waiting.receive_all(2)
    assert (first["requestId"], [job["uuid"] for job in first["jobs"]]) == ("1", ["j"])
    assert second["requestId"] == "2"


async def test_a_wait_that_is_over_is_an_empty_reply(daemon: Daemon):
    client = await daemon.client("c")
    assert (await client.ok("claim", wait=0.05, holder="w"))["jobs"] == []


async def test_a_closed_connection_withdraws_its_claim(daemon: Daemon):
    gone, client = await daemon.client("g", name="gone"), await daemon.client("c", name="here")
    gone.send({"op": "claim", "wait": 60})
    await (await daemon.client("x")).ok("ping")
    while not any(connection._session.waits for connection in daemon.server._connections):
        await asyncio.sleep(0)
    await gone.close()
    while any(connection._session.waits for connection in daemon.server._connections):
        await asyncio.sleep(0)
    await client.ok("create", job={"uuid": "j", "status": "QUEUED"})
    await daemon.caught_up()
    (job,) = (await client.ok("claim"))["jobs"]
    assert job["lease"]["holder"] == "here"


async def test_a_claim_that_was_to_wait_takes_nothing_when_its_client_is_gone_before_it_is_looked_at(daemon: Daemon):
    client = await daemon.client("c", name="here")
    (held,) = (await client.ok("claim", kind="lock", id="l"))["records"]
    with socket.socket(socket.AF_UNIX) as gone:
        gone.connect(str(daemon._socket))
        await client.ok("ping")  # and both are served
        gone.sendall(b'{"op":"claim","kind":"lock","id":"l","holder":"gone","wait":60}\n')
    await client.ok("release", kind="lock", id="l", token=held["lease"]["token"])
    (again,) = (await client.ok("claim", kind="lock", id="l"))["records"]
    assert again["lease"]["holder"] == "here"


async def test_a_claim_whose_reply_was_lost_is_found_again(daemon: Daemon):
    client = await daemon.client("c", name="w")
    for name in ("a", "b"):
        await client.ok("create", job={"uuid": name, "status": "QUEUED"})
    await daemon.caught_up()
    first = await client.ok("claim", seq=1, floor=1)
    await client.close()
    again = await daemon.client("c", name="w")
    await daemon.caught_up()
    found = await again.ok("claim", seq=1, floor=1, again=True)
    assert found["duplicate"] is True
    assert found["jobs"] == first["jobs"]
    (other,) = (await again.ok("claim", seq=2, floor=2))["jobs"]
    assert other["uuid"] != first["jobs"][0]["uuid"]


SMALL_FRAMES = Limits(frame_bytes=65_536, record_bytes=65_536 - ENVELOPE_BYTES)


async def jobs_in_one_frame(client: Talker, **request: Any) -> list[dict[str, Any]]:
    """What a claim got; its reply has to keep to the frame that every reply keeps to."""
    client.send({"op": "claim", "filter": {}, "limit": 100, **request})
    line = await client.line()
    assert len(line) <= SMALL_FRAMES.frame_bytes
    reply: dict[str, Any] = json.loads(line)
    assert reply["success"], reply
    assert reply.get("duplicate", False) is request.get("again", False)
    return list(reply["jobs"])


async def test_a_claim_takes_no_more_than_its_reply_can_show(engine: Engine, start: Start):
    daemon = await start(engine, limits=SMALL_FRAMES)
    client = await daemon.client("c", name="w")
    names = [f"j{number}" for number in range(5)]
    for name in names:
        await client.ok("create", job={"uuid": name, "status": "QUEUED", "pad": "x" * 20_000})
    await daemon.caught_up()
    first = await jobs_in_one_frame(client, seq=1, floor=1)
    assert len(first) == 2
    leased = [name for name in names if "lease" in (await client.ok("get", jobId=name))["job"]]
    assert sorted(leased) == sorted(job["uuid"] for job in first)
    await daemon.caught_up()
    again = await jobs_in_one_frame(await daemon.client("c", name="w"), seq=1, floor=1, again=True)
    assert sorted(again, key=itemgetter("uuid")) == sorted(first, key=itemgetter("uuid"))
    others = await daemon.client("o")
    rest = [await jobs_in_one_frame(others, holder="o") for _ in range(3)]
    assert [len(jobs) for jobs in rest] == [2, 1, 0]
    assert sorted(job["uuid"] for jobs in (first, *rest) for job in jobs) == names


async def test_a_claim_that_is_found_again_fits_a_frame_though_its_records_have_grown(engine: Engine, start: Start):
    daemon = await start(engine, limits=SMALL_FRAMES)
    client = await daemon.client("c", name="w")
    names = [f"j{number}" for number in range(5)]
    for name in names:
        await client.ok("create", job={"uuid": name, "status": "QUEUED"})
    await daemon.caught_up()
    assert len(await jobs_in_one_frame(client, seq=1, floor=1)) == 5
    for name in names:
        await client.ok("update", jobId=name, job={"pad": "x" * 20_000})
    await daemon.caught_up()
    again = await jobs_in_one_frame(await daemon.client("c", name="w"), seq=1, floor=1, again=True)
    assert len(again) == 2


async def test_the_largest_record_there_may_be_can_be_claimed(engine: Engine, start: Start):
    daemon = await start(engine, limits=SMALL_FRAMES)
    client = await daemon.client("c", name="w")
    envelope = len(msgspec.json.encode((await client.ok("create", job={"uuid": "j", "status": "QUEUED"}))["job"]))
    # A time may take a few bytes more than another; a lease takes more than that.
    pad = "x" * (SMALL_FRAMES.record_bytes - envelope - len(',"pad":""') - 32)
    await client.ok("update", jobId="j", job={"pad": pad})
    await daemon.caught_up()
    (job,) = await jobs_in_one_frame(client)
    assert job["pad"] == pad
    assert len(msgspec.json.encode(job)) > SMALL_FRAMES.record_bytes


async def test_claims_and_silent_writes_share_a_connection(daemon: Daemon):
    client = await daemon.client("c", name="w", ack="last")
    client.send(
        {"op": "create", "seq": 1, "job": {"uuid": "j", "status": "QUEUED"}},
        {"op": "claim", "seq": 2, "kind": "lock", "id": "l", "requestId": "claim"},
        {"op": "release", "seq": 3, "kind": "lock", "id": "l", "token": 1},
    )
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1].get("acked") != 3:
        lines.append(await client.receive())
    assert [line["records"][0]["id"] for line in lines if line.get("requestId") == "claim"] == ["l"]


async def test_release_cancel_and_retry_reply_with_the_record(daemon: Daemon):
    client = await daemon.client("c", name="w")
    await client.ok("create", job={"uuid": "j", "status": "QUEUED"})
    await daemon.caught_up()
    await client.ok("claim")
    ended = await client.ok("release", jobId="j", token=1, status="failed", job={"exitCode": 3})
    assert (ended["job"]["status"], ended["job"]["exitCode"]) == ("FAILED", 3)
    assert (await client.ok("retry", jobId="j"))["job"]["status"] == "QUEUED"
    assert (await client.ok("cancel", jobId="j"))["job"]["status"] == "CANCELED"
    assert (await client.refused("cancel", jobId="nobody"))[0] == "not_found"


async def test_an_event_of_a_client_is_a_revision(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "j"})
    reply = await client.write("emit", jobId="j", event={"type": "trace", "message": "m", "data": {"a": 1}})
    assert reply["success"]
    assert reply["revision"] == 2
    assert reply["cursor"]
    again = await client.ask("emit", jobId="j", event={"type": "trace"}, seq=client.seq, again=True)
    assert (again["duplicate"], again["revision"]) == (True, 2)
    assert "cursor" not in again, "behind it, or behind something later?"
    assert (await client.refused("emit", jobId="j", event={"type": "created"}))[0] == "bad_request"
    assert (await client.refused("emit", jobId="nobody", event={"type": "x"}))[0] == "not_found"


async def test_a_claim_that_comes_again_late_does_not_make_others_happen_twice(daemon: Daemon):
    client = await daemon.client("x", name="w")
    await client.ok("create", job={"uuid": "q", "status": "PENDING", "n": 0})
    assert (await client.ok("claim", seq=1, floor=1))["jobs"] == []
    await client.ok("update", jobId="q", inc={"n": 1}, seq=2, floor=1)
    await client.ok("emit", jobId="q", event={"type": "note"}, seq=3, floor=1)
    await client.close()
    other = await daemon.client("other")
    await other.ok("update", jobId="q", job={"status": "QUEUED"})
    await daemon.caught_up()
    again = await daemon.client("x", name="w")
    assert [job["uuid"] for job in (await again.ok("claim", seq=1, floor=1, again=True))["jobs"]] == ["q"]
    for request in ({"op": "update", "inc": {"n": 1}, "seq": 2}, {"op": "emit", "event": {"type": "note"}, "seq": 3}):
        again.send({**request, "jobId": "q", "floor": 1, "again": True})
        assert (await again.receive())["duplicate"] is True
    assert (await again.ok("get", jobId="q"))["job"]["n"] == 1


async def test_a_claim_replayed_on_another_connection_takes_nothing_more(daemon: Daemon):
    client = await daemon.client("~x", name="w")
    for name in ("a", "b"):
        await client.ok("create", job={"uuid": name, "status": "QUEUED"})
    await daemon.caught_up()
    first = await client.ok("claim", seq=1, floor=1)
    await client.close()
    again = await daemon.client("~x", name="w")
    await daemon.caught_up()
    replayed = await again.ok("claim", seq=1, floor=1)
    assert (replayed["duplicate"], replayed["jobs"]) == (True, first["jobs"])


async def test_the_cursor_of_an_event_lies_right_behind_it(daemon: Daemon):
    client, other = await daemon.client("c"), await daemon.client("o")
    await client.ok("create", job={"uuid": "j"})
    other.send(*({"op": "create", "job": {"uuid": f"o{number}"}} for number in range(300)))
    reply = await client.ok("emit", jobId="j", event={"type": "mark"})
    await other.receive_all(300)
    history = (await client.ok("history", jobId="j"))["events"]
    assert history[-1]["type"] == "mark"
    assert (await client.ok("history", jobId="j", after=reply["cursor"]))["events"] == []
    if address_of(daemon.engine).one_order:
        assert reply["cursor"] == history[-1]["cursor"]
