"""watch: the reply first, then a line for every event, from a cursor, through a filter, once and in order."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statesvc.backends.port import Engine
from statesvc.config import Limits
from tests.engines.addresses import EMBEDDED, EVERY, address_of
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.following import (
    compact,
    event,
    events,
    nothing,
    shown,
    until,
    watching,
)
from tests.socket.talking import Daemon, Talker, settings_for

Json = dict[str, Any]


# --- what is told --------------------------------------------------------------------------------------------------


async def test_the_reply_comes_first_and_events_between_other_replies(daemon: Daemon):
    talker = await daemon.client(None)
    talker.send(
        {"op": "watch", "requestId": "w", "after": "0"},
        *({"op": "create", "job": {"uuid": f"j{number}"}, "requestId": number} for number in range(20)),
    )
    lines = await talker.receive_all(41)
    assert (lines[0]["requestId"], lines[0]["success"], lines[0]["cursor"]) == ("w", True, "0")
    told = [line["event"] for line in lines[1:] if line["requestId"] == "w"]
    assert sorted(shown(told, "type", "id")) == sorted(("created", f"j{number}") for number in range(20))
    assert [line["requestId"] for line in lines[1:] if line["requestId"] != "w"] == list(range(20))


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_no_event_comes_before_a_reply_that_waits_for_others(faulty: FaultyEngine, start: Start):
    """On a shared engine a request begins when the one before it is answered: it cannot come to this."""
    daemon = await start(faulty)
    talker = await daemon.client(None)
    await talker.ok("create", job={"uuid": "a"})
    faulty.hold()
    talker.send(
        {"op": "update", "jobId": "a", "job": {"x": 1}, "requestId": 1},
        {"op": "watch", "requestId": "w", "after": "0"},
        {"op": "ping", "requestId": 2},
    )
    await until(lambda: any(len(each._line) == 3 for each in daemon.server._connections))
    faulty.let_go()
    lines = await talker.receive_all(5)
    assert [(line["requestId"], line.get("event", {}).get("revision")) for line in lines] == [
        (1, None),
        ("w", None),
        (2, None),
        ("w", 1),
        ("w", 2),
    ]


async def test_every_kind_of_change_is_told_with_the_record_as_it_is_afterwards(daemon: Daemon):
    watcher, client = await watching(daemon), await daemon.client("worker-1")
    await client.write("create", job={"uuid": "a", "status": "QUEUED", "nodeId": "n"})
    await client.write("update", jobId="a", job={"pid": 7})
    claimed = (await client.write("claim", jobId="a", ttl=60, status="RUNNING"))["jobs"][0]
    emitted = await client.write("emit", jobId="a", event={"type": "step", "message": "one", "data": {"n": [1]}})
    await client.write("update", jobId="a", job={"status": "STOPPING"})
    await client.write("release", jobId="a", token=claimed["lease"]["token"], status="STOPPED")
    await client.write("delete", jobId="a")
    told = await events(watcher, 7)
    assert shown(told, "type", "from", "to", "revision") == [
        ("created", None, "QUEUED", 1),
        ("updated", None, None, 2),
        ("claimed", "QUEUED", "RUNNING", 3),
        ("step", None, None, 4),
        ("status", "RUNNING", "STOPPING", 5),
        ("released", "STOPPING", "STOPPED", 6),
        ("deleted", "STOPPED", None, 7),
    ]
    assert {each["kind"] for each in told} == {"job"}
    assert {each["id"] for each in told} == {"a"}
    assert {each["uid"] for each in told} == {claimed["uid"]}
    assert [each["record"]["revision"] for each in told[:-1]] == [1, 2, 3, 4, 5, 6]
    assert told[2]["record"] == claimed
    assert "record" not in told[6]
    assert (told[3]["message"], told[3]["data"]) == ("one", {"n": [1]})
    assert emitted["revision"] == 4
    assert [each["at"] for each in told] == sorted(each["at"] for each in told)


async def test_a_lapsed_lease_is_told(daemon: Daemon):
    watcher, client = await watching(daemon), await daemon.client("worker-1")
    await client.write("create", job={"uuid": "a", "status": "QUEUED"})
    await daemon.caught_up()
    await client.write("claim", filter={}, ttl=0.1)
    told = await events(watcher, 3)
    assert shown(told, "type", "from", "to")[2] == ("lapsed", "RUNNING", "QUEUED")


async def test_a_record_made_again_is_another_with_the_same_id(daemon: Daemon):
    watcher, talker = await watching(daemon), await daemon.client(None)
    for op in ("create", "delete", "create"):
        await talker.ok(op, **({"job": {"uuid": "a"}} if op == "create" else {"jobId": "a"}))
    told = await events(watcher, 3)
    assert shown(told, "type", "revision") == [("created", 1), ("deleted", 2), ("created", 1)]
    assert told[0]["uid"] == told[1]["uid"] != told[2]["uid"]


async def test_a_watch_is_for_one_kind(daemon: Daemon):
    talker = await daemon.client(None)
    of_kv, of_jobs = await watching(daemon, kind="kv"), await watching(daemon)
    await talker.ok("create", job={"uuid": "a"})
    await talker.ok("create", kind="kv", record={"id": "b", "value": 1})
    assert (await event(of_jobs))["record"]["uuid"] == "a"
    told = await event(of_kv)
    assert (told["kind"], told["id"], told["record"]["value"]) == ("kv", "b", 1)


async def test_secrets_are_in_no_event(daemon: Daemon):
    watcher, talker = await watching(daemon), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a", "status": "QUEUED", "secretEnvironment": {"KEY": "hush"}})
    await talker.ok("update", jobId="a", job={"x": 1})
    await talker.ok("emit", jobId="a", event={"type": "step"})
    await talker.ok("claim", jobId="a", holder="w")
    await talker.ok("delete", jobId="a")
    for _ in range(5):
        line = await watcher.line()
        assert b'"event"' in line
        assert b"secretEnvironment" not in line
        assert b"hush" not in line


async def test_a_request_id_of_any_kind_is_repeated(daemon: Daemon):
    talker = await daemon.client(None)
    ids = [7, "", 'a "quoted" \u2603 one', "7"]
    for id in ids:
        assert (await talker.ok("watch", requestId=id))["requestId"] == id
    await (await daemon.talker()).ok("create", job={"uuid": "a"})
    lines = await talker.receive_all(len(ids))
    assert {(type(line["requestId"]), line["requestId"]) for line in lines} == {(type(id), id) for id in ids}


async def test_an_event_and_its_record_that_are_too_large_together_fit_a_frame_without_the_record(
    engine: Engine, start: Start
):
    limits = Limits(frame_bytes=64 * 1024, record_bytes=56 * 1024)
    daemon = await start(engine, limits=limits)
    watcher, talker = await watching(daemon), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a", "pad": "x" * 54_000})
    await talker.ok("update", jobId="a", job={"y": 1})
    assert len((await events(watcher, 2))[1]["record"]["pad"]) == 54_000
    await talker.ok("emit", jobId="a", event={"type": "step", "data": "y" * 2_000})
    small = await event(watcher)
    assert (small["data"], "record" in small) == ("y" * 2_000, True)
    await talker.ok("emit", jobId="a", event={"type": "step", "data": "y" * 7_000})
    line = await watcher.line()
    assert len(line) <= limits.frame_bytes
    large = json.loads(line)["event"]
    assert (large["data"], "record" in large) == ("y" * 7_000, False)


@pytest.mark.parametrize("sign", ["x", "\x01", "☃", '"'], ids=["plain", "control", "snowman", "quote"])
async def test_whatever_may_be_emitted_is_told_and_what_is_larger_is_refused(engine: Engine, start: Start, sign: str):
    limits = Limits(frame_bytes=64 * 1024, record_bytes=56 * 1024)
    most, each = limits.record_bytes // 8, len(msgspec.json.encode(sign)) - 2
    daemon = await start(engine, limits=limits)
    watcher, talker = await watching(daemon, after="0"), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a"})
    message = sign * ((most - 100) // each)
    await talker.ok("emit", jobId="a", event={"type": "step", "message": message, "data": {"n": 1}})
    for told in ((await events(watcher, 2))[1], (await talker.ok("history", jobId="a"))["events"][1]):
        assert (told["message"], told["data"], told["record"]["revision"]) == (message, {"n": 1}, 2)
    for larger in ({"message": sign * (most // each + 1)}, {"message": message, "data": sign * (200 // each)}):
        code, error = await talker.refused("emit", jobId="a", event={"type": "step", **larger})
        assert code == "bad_request"
        assert f"the limit is {most}" in error
    assert (await talker.ok("get", jobId="a"))["job"]["revision"] == 2


# --- filters -------------------------------------------------------------------------------------------------------


async def test_a_change_that_leaves_the_filter_is_told_without_the_record(daemon: Daemon):
    watcher, talker = await watching(daemon, filter={"status": "running"}), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a", "status": "QUEUED"})
    for status in ("RUNNING", "STOPPING", "STOPPED"):
        await talker.ok("update", jobId="a", job={"status": status})
    await talker.ok("create", job={"uuid": "b", "status": "RUNNING"})
    await talker.ok("delete", jobId="a")
    await talker.ok("delete", jobId="b")
    told = await events(watcher, 4)
    of_a = [each for each in told if each["id"] == "a"]
    assert shown(of_a, "type", "from", "to", "revision") == [
        ("status", "QUEUED", "RUNNING", 2),
        ("left", "RUNNING", "STOPPING", 3),
    ]
    assert of_a[0]["record"]["status"] == "RUNNING"
    assert "record" not in of_a[1]
    assert shown([each for each in told if each["id"] == "b"], "type") == [("created",), ("deleted",)]


@pytest.mark.parametrize(
    ("filter_", "inside", "outside"),
    [
        ({"nodeId": "n1"}, {"nodeId": "n1"}, {"nodeId": "n2"}),
        ({"owner": "worker/1"}, {"owner": "worker/1"}, {"owner": None}),
        ({"labels": {"team": "a"}}, {"labels": {"team": "a"}}, {"labels": {"team": "b"}}),
        ({"labels": {"size": 1}}, {"labels": {"size": 1}}, {"labels": {"size": 2}}),
        ({"where": {"/meta/stage": "x"}}, {"meta": {"stage": "x"}}, {"meta": {"stage": "y"}}),
        ({"statuses": ["PENDING", "QUEUED"]}, {"status": "PENDING"}, {"status": "RUNNING"}),
    ],
)
async def test_a_record_is_followed_into_the_filter_and_out_of_it(
    daemon: Daemon, filter_: Json, inside: Json, outside: Json
):
    watcher, talker = await watching(daemon, filter=filter_), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a", **inside})
    await talker.ok("update", jobId="a", job={"touched": 1})
    await talker.ok("update", jobId="a", job=outside)
    await talker.ok("create", job={"uuid": "other", **outside})
    await talker.ok("create", job={"uuid": "b", **inside})
    await talker.ok("delete", jobId="b")
    told = await events(watcher, 5)
    of = {id: shown([each for each in told if each["id"] == id], "type") for id in ("a", "b")}
    assert [type for (type,) in of["a"]] == ["created", "updated", "left"]
    assert [type for (type,) in of["b"]] == ["created", "deleted"]


async def test_ids_prefix_and_regex_choose_records_by_name(daemon: Daemon):
    filters = [{"ids": ["a1", "b2"]}, {"prefix": "a"}, {"regex": "2$"}]
    watchers = [await watching(daemon, filter=filter_) for filter_ in filters]
    talker = await daemon.client(None)
    for id in ("a1", "a2", "b1", "b2", "z"):
        await talker.ok("create", job={"uuid": id})
    expected = [{"a1", "b2"}, {"a1", "a2"}, {"a2", "b2"}]
    for watcher, ids in zip(watchers, expected, strict=True):
        assert {each["id"] for each in await events(watcher, 2)} == ids


async def test_an_event_of_a_clients_own_passes_when_its_record_does_and_never_as_left(daemon: Daemon):
    filter_ = {"where": {"x": 1}}
    watcher, talker = await watching(daemon, filter=filter_), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a", "x": 1})
    await talker.ok("create", job={"uuid": "b", "x": 2})
    for id in ("b", "a"):
        await talker.ok("emit", jobId=id, event={"type": "step"})
    await talker.ok("create", job={"uuid": "end", "x": 1})
    told = await events(watcher, 3)
    assert sorted(shown(told, "id", "type")) == [("a", "created"), ("a", "step"), ("end", "created")]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"filter": {"limit": 5}}, "limit"),
        ({"filter": {"sortBy": "createdAt"}}, "sortBy"),
        ({"filter": {"sortDesc": False}}, "sortDesc"),
        ({"filter": {"colour": "red"}}, "colour"),
        ({"filter": {"regex": "("}}, "regex"),
        ({"filter": {"status": "NOWHERE"}}, "NOWHERE"),
        ({"filter": {"ids": [str(number) for number in range(2000)]}}, "ids"),
        ({"jobId": "a"}, "ids"),
        ({"kind": "No Kind"}, "No Kind"),
    ],
)
async def test_a_watch_that_makes_no_sense_is_refused_by_name(client: Talker, request_: Json, text: str):
    code, error = await client.refused("watch", **request_)
    assert code == "bad_request"
    assert text in error


# --- cursors -------------------------------------------------------------------------------------------------------


async def test_a_watch_starts_now_behind_what_was_written_before_it(daemon: Daemon):
    talker = await daemon.client(None)
    talker.send(
        {"op": "create", "job": {"uuid": "before"}, "requestId": 1},
        {"op": "watch", "requestId": "w"},
        {"op": "create", "job": {"uuid": "after"}, "requestId": 2},
    )
    lines = await talker.receive_all(4)
    assert [line["event"]["id"] for line in lines if "event" in line] == ["after"]


async def test_a_watch_from_the_oldest_kept_sees_everything(daemon: Daemon):
    talker = await daemon.client(None)
    for number in range(300):
        talker.send({"op": "create", "job": {"uuid": f"j{number}"}})
    await talker.receive_all(300)
    watcher = await watching(daemon, after="0")
    assert {each["id"] for each in await events(watcher, 300)} == {f"j{number}" for number in range(300)}


async def test_a_watch_from_a_lists_as_of_misses_nothing_and_repeats_nothing_before_it(daemon: Daemon):
    writer, reader = await daemon.talker(), await daemon.client(None)
    await writer.in_one_go({"op": "create", "job": {"uuid": f"old-{number}"}} for number in range(50))
    await daemon.caught_up()
    writer.send(*({"op": "create", "job": {"uuid": f"new-{number}"}} for number in range(300)))
    page = await reader.ok("list", limit=1000)
    known = {job["uuid"] for job in page["jobs"]}
    await writer.receive_all(300)
    watcher = await watching(daemon, after=page["asOf"], filter={"regex": "^(old|new)"})
    behind = await daemon.engine.read_log(page["asOf"].partition(".")[2], 1000)
    expected = [entry.row.id for entry in behind if entry.row.kind == "job"]
    told = [each["id"] for each in await events(watcher, len(expected))]
    assert sorted(told) == sorted(expected)
    assert not any(id.startswith("old") for id in told)
    if not address_of(daemon.engine).stale_queries:
        assert len(known | set(told)) == 350


async def test_a_watcher_that_comes_back_again_and_again_sees_every_change_once_and_in_order(daemon: Daemon):
    names = [f"j{number}" for number in range(8)]
    writer = await daemon.client(None)
    watcher = await watching(daemon)
    cursor = ""

    async def change() -> None:
        await writer.in_one_go({"op": "create", "job": {"uuid": name}} for name in names)
        for number in range(1, 40):
            await writer.in_one_go({"op": "update", "jobId": name, "job": {"n": number}} for name in names)

    changing = asyncio.create_task(change())
    seen: dict[str, list[int]] = {name: [] for name in names}
    count = 0
    while count < 8 * 40:
        told = await event(watcher)
        seen[told["id"]].append(told["revision"])
        count += 1
        cursor = told["cursor"]
        if count % 7 == 0:
            await watcher.close()
            watcher = await watching(daemon, after=cursor)
    await changing
    assert seen == {name: list(range(1, 41)) for name in names}


@pytest.mark.parametrize("name", [name for name, address in EVERY.items() if address.keeps])
async def test_a_watcher_goes_on_from_its_cursor_after_the_daemon_was_started_again(
    name: str, tmp_path: Path, socket_folder: Path, start: Start
):
    make = EVERY[name].make(tmp_path)
    first = await Daemon(make(), settings_for(socket_folder)).start()
    talker, watcher = await first.client(None), await watching(first)
    for number in range(20):
        await talker.ok("create", job={"uuid": f"j{number}"})
    told = await events(watcher, 11)
    assert await first.stop() == 0
    second = await start(make())
    talker, watcher = await second.client(None), await watching(second, after=told[-1]["cursor"])
    await talker.ok("create", job={"uuid": "after"})
    told += await events(watcher, 10)
    assert sorted(each["id"] for each in told) == sorted([*(f"j{number}" for number in range(20)), "after"])


async def test_a_cursor_of_another_epoch_is_gone(tmp_path: Path, start: Start):
    first = await start(EVERY["memory"].make(tmp_path)())
    cursor = (await (await first.client(None)).ok("watch"))["cursor"]
    second = await start(EVERY["memory"].make(tmp_path)())
    talker = await second.client(None)
    code, error = await talker.refused("watch", after=cursor)
    assert code == "gone"
    assert "asOf" in error
    assert (await talker.refused("history", jobId="a", after=cursor))[0] == "gone"


@pytest.mark.parametrize("after", ["", "nonsense", "5", "12345678.", ".5", "zz.zz", "1234567890abcdef", "\x00" * 5000])
async def test_what_is_no_cursor_is_refused(client: Talker, after: str):
    code, error = await client.refused("watch", after=after)
    assert code == "bad_request"
    assert len(error) < 500


async def test_a_cursor_of_this_epoch_that_no_engine_gave_is_refused(client: Talker):
    epoch = (await client.ok("hello"))["epoch"]
    for inner in ("x", "-1", "1" * 50, "a1.b2", "1 "):
        assert (await client.refused("watch", after=f"{epoch}.{inner}"))[0] in ("bad_request", "gone"), inner


async def test_a_cursor_beyond_the_end_is_not_called_too_old(daemon: Daemon):
    talker = await daemon.client(None)
    await talker.ok("create", job={"uuid": "a"})
    beyond = re.sub(r"\d+$", "999999", (await talker.ok("list"))["asOf"])
    code, error = await talker.refused("watch", after=beyond)
    assert code == "gone"
    assert "no longer kept" not in error
    assert "list again" in error
    if daemon.engine.immediate:
        assert "cursor 999999 is not of this log: it is beyond its end" in error


async def test_a_cursor_whose_entries_were_cut_is_gone_and_a_list_leads_back(daemon: Daemon):
    await daemon.at_rest()
    talker = await daemon.client(None)
    old = (await talker.ok("list"))["asOf"]
    await talker.in_one_go({"op": "create", "job": {"uuid": f"j{number}"}} for number in range(50))
    await talker.ok("create", job={"uuid": "newest, which is never cut"})
    await daemon.caught_up()
    new = (await talker.ok("list"))["asOf"]
    await compact(daemon.engine)
    code, error = await talker.refused("watch", after=old)
    assert code == "gone"
    assert "kept" in error
    assert "list again" in error
    watcher = await watching(daemon, after=new)
    await talker.ok("create", job={"uuid": "next"})
    assert (await event(watcher))["id"] == "next"


async def test_a_watch_ends_when_the_log_begins_anew_under_it(daemon: Daemon):
    await daemon.at_rest()
    watcher, talker = await watching(daemon), await daemon.client(None)
    await talker.ok("create", job={"uuid": "a"})
    told = await event(watcher)
    await daemon.store.commits.settled()
    await daemon.engine.load(nothing())
    await talker.ok("create", kind="kv", record={"id": "wakes the log"})
    end = await watcher.receive()
    # An engine that is closed for the moment says so.
    assert (end["requestId"], end["success"], end["code"] in ("gone", "unavailable")) == ("w", False, True)
    assert (await watcher.refused("watch", requestId="w", after=told["cursor"]))[0] == "gone"
    assert (await watcher.ok("watch", requestId="w"))["success"]
