"""ack: last. One line for a run of writes, before any other reply, and at the end of each commit."""

from __future__ import annotations

from typing import Any

import pytest

from statesvc_client.errors import NoSpace
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker

Json = dict[str, Any]


def create(seq: int, name: str | None = None, **more: Any) -> Json:
    return {"op": "create", "job": {"uuid": name or f"j{seq}"}, "seq": seq, "floor": 1, "requestId": f"r{seq}", **more}


async def until_acked(talker: Talker, seq: int) -> list[Json]:
    """Every line up to the one that acknowledges `seq`."""
    lines: list[Json] = []
    while not lines or lines[-1].get("acked", 0) < seq:
        lines.append(await talker.receive())
    return lines


async def test_a_run_of_writes_is_acknowledged_without_a_line_for_each(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send(*(create(seq) for seq in range(1, 501)))
    lines = await until_acked(client, 500)
    acked = [line["acked"] for line in lines]
    assert all(line == {"acked": line["acked"], "success": True} for line in lines)
    assert acked == sorted(set(acked))
    if daemon.engine.immediate:
        assert len(lines) < 100
    for seq in (1, 250, 500):
        assert (await client.ok("get", jobId=f"j{seq}"))["job"]["revision"] == 1


async def test_an_acknowledgement_comes_before_any_other_reply(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send(
        create(1), create(2), {"op": "get", "jobId": "j2", "requestId": "g"}, create(3), {"op": "ping"}, create(4)
    )
    lines = await until_acked(client, 4)
    shown = [line.get("acked", line.get("requestId")) for line in lines]
    assert shown.index("g") > shown.index(2)
    assert shown.index("") > shown.index(3)
    assert shown.index("g") < shown.index(3)
    assert lines[shown.index("g")]["job"]["uuid"] == "j2"


async def test_a_refused_write_has_its_line_before_the_acknowledgement_that_covers_it(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send(create(1, "a"), create(2, "a"), create(3, "b"), create(4, "b"), create(5, "c"))
    lines = await until_acked(client, 5)
    failures = {line["seq"]: place for place, line in enumerate(lines) if not line["success"]}
    acks = {line["acked"]: place for place, line in enumerate(lines) if "acked" in line}
    assert sorted(failures) == [2, 4]
    for seq, place in failures.items():
        assert lines[place]["requestId"] == f"r{seq}"
        assert lines[place]["code"] == "exists"
        assert lines[place]["outcome"] == "not_applied"
        assert all(at > place for acked, at in acks.items() if acked >= seq)
        assert all(at < place for acked, at in acks.items() if acked < seq)


async def test_a_write_without_a_number_is_answered_as_usual(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    assert (await client.ok("create", job={"uuid": "a"}))["job"]["uuid"] == "a"


async def test_a_duplicate_is_acknowledged_like_any_other(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send(create(1))
    await until_acked(client, 1)
    client = await daemon.client("c", ack="last")
    client.send(create(1, again=True), create(2))
    assert all(line["success"] for line in await until_acked(client, 2))
    assert (await client.ok("get", jobId="j1"))["job"]["revision"] == 1


async def test_a_sync_is_acknowledged_and_one_with_rejections_reports_them(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send({"op": "sync", "jobs": [{"uuid": "a", "status": "FAILED"}], "seq": 1})
    assert await until_acked(client, 1) == [{"acked": 1, "success": True}]
    client.send({"op": "sync", "jobs": [{"uuid": "a", "status": "RUNNING"}], "seq": 2, "requestId": "s"})
    report, ack = await until_acked(client, 2)
    assert report["rejected"][0]["code"] == "invalid_transition"
    assert ack == {"acked": 2, "success": True}


async def test_bad_frames_between_are_answered_and_do_not_disturb_the_run(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    client.send(create(1))
    client.send_raw(b"nonsense\n")
    client.send(create(2), {"op": "fly", "requestId": "f"}, create(3))
    lines = await until_acked(client, 3)
    assert [line.get("code", line.get("acked")) for line in lines] == [1, "bad_json", 2, "unknown_op", 3]


@pytest.mark.parametrize("count", [5, 300])
async def test_nothing_from_a_failed_write_on_is_acknowledged(faulty: FaultyEngine, start: Start, count: int):
    daemon = await start(faulty)
    client = await daemon.client("c", ack="last")
    client.send(create(1))
    await until_acked(client, 1)
    faulty.fail(NoSpace("full"))
    client.send(*(create(seq) for seq in range(2, count + 2)))
    lines = await client.receive_all(count)
    assert not any("acked" in line for line in lines)
    assert [line["seq"] for line in lines] == list(range(2, count + 2))
    assert {line["outcome"] for line in lines} == {"not_applied"}
    client.send(*(create(seq, again=True) for seq in range(2, count + 2)))
    assert all(line["success"] for line in await until_acked(client, count + 1))


async def test_each_acknowledges_one_by_one(daemon: Daemon):
    client = await daemon.client("c", ack="each")
    replies = await client.in_one_go(create(seq) for seq in range(1, 30))
    assert [reply["requestId"] for reply in replies] == [f"r{seq}" for seq in range(1, 30)]
    assert all("job" in reply for reply in replies)
