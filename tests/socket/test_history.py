"""history: what happened to one record, oldest first, a page at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.port import Engine
from statesvc.config import Limits
from tests.engines.addresses import EVERY
from tests.socket.conftest import Start
from tests.socket.following import compact, events, shown, watching
from tests.socket.talking import Daemon, Talker, settings_for

Json = dict[str, Any]


async def changed(talker: Talker, id: str, count: int, **fields: Any) -> None:
    await talker.ok("create", job={"uuid": id, **fields})
    await talker.in_one_go({"op": "update", "jobId": id, "job": {"n": number}} for number in range(count - 1))


async def pages(talker: Talker, **request: Any) -> list[list[Json]]:
    """Page by page to the end."""
    found = []
    cursor = None
    while True:
        reply = await talker.ok("history", **request, **({} if cursor is None else {"after": cursor}))
        found.append(reply["events"])
        cursor = reply.get("nextCursor")
        if cursor is None:
            return found


async def test_a_history_tells_the_same_events_as_a_watch(daemon: Daemon):
    watcher, client = await watching(daemon), await daemon.client("worker-1")
    await client.write("create", job={"uuid": "a", "status": "QUEUED"})
    await client.write("create", job={"uuid": "b"})
    await client.write("claim", jobId="a", status="RUNNING")
    await client.write("emit", jobId="a", event={"type": "step", "message": "m", "data": [1, {"x": None}]})
    await client.write("update", jobId="a", job={"status": "FAILED"})
    told = [{**each, "cursor": ""} for each in await events(watcher, 5) if each["id"] == "a"]
    reply = await client.ok("history", jobId="a")
    assert [{**each, "cursor": ""} for each in reply["events"]] == told
    assert shown(told, "type", "from", "to") == [
        ("created", None, "QUEUED"),
        ("claimed", "QUEUED", "RUNNING"),
        ("step", None, None),
        ("status", "RUNNING", "FAILED"),
    ]
    assert "nextCursor" not in reply


async def test_a_history_is_read_in_pages_without_a_gap(daemon: Daemon):
    talker = await daemon.client(None)
    await changed(talker, "other", 5)
    await changed(talker, "a", 25)
    found = await pages(talker, jobId="a", limit=7)
    assert [len(page) for page in found] == [7, 7, 7, 4]
    assert [each["revision"] for page in found for each in page] == list(range(1, 26))
    assert {each["id"] for page in found for each in page} == {"a"}


async def test_a_history_goes_on_behind_any_event_a_watch_told(daemon: Daemon):
    watcher, talker = await watching(daemon), await daemon.client(None)
    await changed(talker, "a", 10)
    cursor = (await events(watcher, 4))[-1]["cursor"]
    reply = await talker.ok("history", jobId="a", after=cursor)
    assert [each["revision"] for each in reply["events"]] == list(range(5, 11))
    oldest = await talker.ok("history", jobId="a", after="0", limit=2)
    assert [each["revision"] for each in oldest["events"]] == [1, 2]


async def test_a_watch_goes_on_behind_the_last_event_of_a_history(daemon: Daemon):
    talker = await daemon.client(None)
    await changed(talker, "a", 5)
    cursor = (await talker.ok("history", jobId="a", limit=3))["nextCursor"]
    watcher = await watching(daemon, after=cursor, filter={"ids": ["a"]})
    assert [each["revision"] for each in await events(watcher, 2)] == [4, 5]


async def test_a_history_has_a_default_and_a_most_length(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(list_limit=120))
    talker = await daemon.client(None)
    await changed(talker, "a", 130)
    for asked, given in ((None, 100), (0, 100), (110, 110), (5000, 120)):
        reply = await talker.ok("history", jobId="a", limit=asked)
        assert len(reply["events"]) == given
        assert "nextCursor" in reply
    assert (await talker.refused("history", jobId="a", limit=-1))[0] == "bad_request"


async def test_a_page_ends_at_the_frame_limit(engine: Engine, start: Start):
    limits = Limits(frame_bytes=128 * 1024, record_bytes=64 * 1024)
    daemon = await start(engine, limits=limits)
    talker = await daemon.client(None)
    await changed(talker, "a", 12, pad="x" * 30_000)
    talker.send({"op": "history", "jobId": "a"})
    assert len(await talker.line()) <= limits.frame_bytes
    found = await pages(talker, jobId="a")
    assert len(found) > 2
    assert [each["revision"] for page in found for each in page] == list(range(1, 13))
    assert all("record" in each for page in found for each in page)


async def test_a_history_shows_what_was_sent_before_it(daemon: Daemon):
    talker = await daemon.client(None)
    talker.send(
        {"op": "create", "job": {"uuid": "a"}},
        {"op": "update", "jobId": "a", "job": {"x": 1}},
        {"op": "history", "jobId": "a"},
    )
    *_, reply = await talker.receive_all(3)
    assert [each["revision"] for each in reply["events"]] == [1, 2]


async def test_a_deleted_record_keeps_its_history_and_one_made_again_adds_to_it(daemon: Daemon):
    talker = await daemon.client(None)
    await changed(talker, "a", 2)
    await talker.ok("delete", jobId="a")
    reply = await talker.ok("history", jobId="a")
    assert [each["type"] for each in reply["events"]] == ["created", "updated", "deleted"]
    assert "record" not in reply["events"][-1]
    await talker.ok("create", job={"uuid": "a"})
    reply = await talker.ok("history", jobId="a")
    assert [each["revision"] for each in reply["events"]] == [1, 2, 3, 1]


async def test_a_record_that_never_was_has_no_history(daemon: Daemon):
    talker = await daemon.client(None)
    code, error = await talker.refused("history", jobId="never")
    assert code == "not_found"
    assert "never" in error
    assert (await talker.refused("history"))[0] == "bad_request"
    assert (await talker.refused("history", kind="kv", id="never"))[0] == "not_found"


async def test_a_known_record_whose_log_was_cut_has_an_empty_history(daemon: Daemon):
    talker = await daemon.client(None)
    await changed(talker, "a", 3)
    await changed(talker, "b", 2)
    await talker.ok("delete", jobId="b")
    await talker.ok("create", job={"uuid": "newest, which is never cut"})
    await compact(daemon.engine)
    for id in ("a", "b"):
        reply = await talker.ok("history", jobId=id)
        assert reply["events"] == []
        assert "nextCursor" not in reply
    await talker.ok("update", jobId="a", job={"x": 1})
    assert [each["revision"] for each in (await talker.ok("history", jobId="a"))["events"]] == [4]


@pytest.mark.parametrize("name", [name for name, address in EVERY.items() if address.keeps])
async def test_a_history_and_its_cursors_outlive_the_daemon(
    name: str, tmp_path: Path, socket_folder: Path, start: Start
):
    make = EVERY[name].make(tmp_path)
    first = await Daemon(make(), settings_for(socket_folder)).start()
    talker = await first.client(None)
    await changed(talker, "a", 10)
    cursor = (await talker.ok("history", jobId="a", limit=4))["nextCursor"]
    assert await first.stop() == 0
    second = await start(make())
    reply = await (await second.client(None)).ok("history", jobId="a", after=cursor)
    assert [each["revision"] for each in reply["events"]] == list(range(5, 11))


async def test_secrets_are_in_no_history(daemon: Daemon):
    talker = await daemon.client(None)
    await changed(talker, "a", 3, secretEnvironment={"KEY": "hush"})
    talker.send({"op": "history", "jobId": "a"})
    line = await talker.line()
    assert line.count(b'"record"') == 3
    assert b"hush" not in line
    assert b"secretEnvironment" not in line


@pytest.mark.parametrize("after", ["", "nonsense", "7", "zz.1"])
async def test_what_is_no_cursor_is_refused(client: Talker, after: str):
    assert (await client.refused("history", jobId="a", after=after))[0] == "bad_request"
