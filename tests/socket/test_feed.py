"""feed: everything as it is stored, in pieces, and the log behind it; nobody else notices."""

from __future__ import annotations

import asyncio
import base64

import pytest

from statesvc.backends.port import Row
from statesvc.store import feeding
from statesvc.store.feeding import unpacked_entries, unpacked_rows
from tests.socket.talking import Daemon, Json, Talker

RECORDS = 30


@pytest.fixture
async def admin(daemon: Daemon) -> Talker:
    return await daemon.client(None)


async def fill(client: Talker) -> None:
    frames = [{"op": "create", "job": {"uuid": f"job-{n}", "pad": "x" * 100}} for n in range(RECORDS)]
    assert all(reply["success"] for reply in await client.in_one_go(frames))
    await client.ok("create", kind="kv", id="k", record={"value": 1})
    await client.ok("delete", jobId="job-0")


def rows_in(reply: Json) -> list[Row]:
    return unpacked_rows(base64.b64decode(reply["feed"]))


async def everything(admin: Talker) -> tuple[Json, list[Row]]:
    first = reply = await admin.ok("feed")
    rows = rows_in(reply)
    while "nextCursor" in reply:
        reply = await admin.ok("feed", cursor=reply["nextCursor"])
        rows += rows_in(reply)
    return first, rows


async def stored(daemon: Daemon) -> list[Row]:
    dump = await daemon.engine.dump()
    return [row async for page in dump.rows for row in page]


def by_key(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.key)


async def test_all_rows_come_as_they_are_stored_tombstones_too(daemon, client, admin):
    await fill(client)
    first, rows = await everything(admin)
    ours = [row for row in rows if row.kind in {"job", "kv"}]
    assert by_key(ours) == by_key([row for row in await stored(daemon) if row.kind in {"job", "kv"}])
    assert len(ours) == RECORDS + 1
    assert [row.id for row in ours if row.deleted] == ["job-0"]
    assert first["total"] >= len(ours)


async def test_a_piece_is_bounded_and_a_large_row_comes_alone(daemon, client, admin, monkeypatch):
    await fill(client)
    await client.ok("create", kind="kv", id="large", record={"value": "y" * 20_000})
    monkeypatch.setattr(feeding, "PIECE_BYTES", 2_000)
    sizes = []
    reply = await admin.ok("feed")
    while "nextCursor" in reply:
        sizes.append(sum(len(row.body) + feeding.ROW_BYTES for row in rows_in(reply)))
        reply = await admin.ok("feed", cursor=reply["nextCursor"])
    assert len(sizes) > 5
    assert all(size < 3_000 or size > 20_000 for size in sizes)


async def test_the_log_behind_a_copy_leads_to_what_was_written_since(daemon, client, admin):
    await fill(client)
    first, _ = await everything(admin)
    await client.ok("update", jobId="job-1", job={"x": 1})
    await client.ok("create", job={"uuid": "later"})
    cursor, told = first["cursor"], []
    while entries := unpacked_entries(base64.b64decode((reply := await admin.ok("feed", after=cursor))["feed"])):
        told += [(entry.event.type, entry.row.id) for entry in entries if entry.row.kind == "job"]
        cursor = reply["cursor"]
    assert {("updated", "job-1"), ("created", "later")} <= set(told)
    assert reply["cursor"] == cursor


async def test_a_cursor_of_another_life_is_gone(daemon, client, admin):
    await fill(client)
    first, _ = await everything(admin)
    await admin.ok("snapshot", path="s.snapshot")
    await admin.ok("restore", path="s.snapshot")
    assert (await admin.refused("feed", after=first["cursor"]))[0] == "gone"


async def test_a_copy_ends_when_everything_is_replaced(daemon, client, admin, monkeypatch):
    await fill(client)
    monkeypatch.setattr(feeding, "PIECE_BYTES", 1_000)
    reply = await admin.ok("feed")
    await admin.ok("snapshot", path="s.snapshot")
    await admin.ok("restore", path="s.snapshot")
    assert (await admin.refused("feed", cursor=reply["nextCursor"]))[0] in {"gone", "unavailable"}
    await everything(admin)


async def test_one_copy_is_open_at_a_time_and_ends_with_its_connection(daemon, client, admin, monkeypatch):
    await fill(client)
    monkeypatch.setattr(feeding, "PIECE_BYTES", 1_000)
    other = await daemon.client(None)
    reply = await other.ok("feed")
    assert (await admin.refused("feed"))[0] == "busy"
    await other.close()
    await no_copy_is_open(daemon)
    await everything(admin)
    assert (await admin.refused("feed", cursor=reply["nextCursor"]))[0] == "gone"


async def test_a_copy_nobody_asks_on_about_ends_by_itself(daemon, client, admin, monkeypatch):
    await fill(client)
    monkeypatch.setattr(feeding, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(feeding, "IDLE_SECONDS", 0.01)
    reply = await admin.ok("feed")
    await no_copy_is_open(daemon)
    assert (await admin.refused("feed", cursor=reply["nextCursor"]))[0] == "gone"


async def no_copy_is_open(daemon: Daemon) -> None:
    async with asyncio.timeout(30):
        while feeding_of(daemon)._copy is not None:
            await asyncio.sleep(0.005)


def feeding_of(daemon: Daemon) -> feeding.Feeding:
    handler = next(
        handler for request, handler in daemon.server._dispatcher._handlers.items() if request.__name__ == "Feed"
    )
    return handler.__self__._feeding  # type: ignore[attr-defined]


async def test_others_go_on_writing_while_a_copy_is_open(daemon, client, admin, monkeypatch):
    await fill(client)
    monkeypatch.setattr(feeding, "PIECE_BYTES", 1_000)
    reply = await admin.ok("feed")
    written = 0
    while "nextCursor" in reply:
        await client.ok("update", jobId="job-5", job={"n": written})
        written += 1
        reply = await admin.ok("feed", cursor=reply["nextCursor"])
    assert written > 3
    assert (await client.ok("get", jobId="job-5"))["job"]["n"] == written - 1
