"""What one request may cost, and that nothing else suffers from it."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

import pytest

from statesvc.config import Limits
from statesvc.connection import AHEAD_BYTES, Connection
from statesvc.dispatch import LARGE_BYTES
from statesvc.store.batches import FULL_BYTES
from tests.engines.addresses import EMBEDDED, EVERY, address_of
from tests.socket.talking import Daemon, Talker

Job = dict[str, Any]

LARGE: Job = {"uuid": "a", "x": "x" * (2 * LARGE_BYTES)}
"""Makes a frame that has to wait for its turn."""


async def test_an_update_names_a_bounded_number_of_paths(client: Talker):
    await client.write("create", job={"uuid": "a"})
    reply = await client.ask("update", jobId="a", set={f"k{number}": 1 for number in range(300)})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert (await client.ok("get", jobId="a"))["job"]["revision"] == 1


async def test_a_path_has_a_bounded_number_of_steps_and_places(client: Talker):
    await client.write("create", job={"uuid": "a", "l": [1]})
    for path in ("/a" * 100, "/l/" + "9" * 5000, "/l/\u0663"):
        reply = await client.ask("update", jobId="a", set={path: 1})
        assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied"), path
    assert (await client.ok("list", filter={"where": {"/l/" + "9" * 5000: 1}}))["jobs"] == []


async def test_a_count_beyond_the_range_of_numbers_is_refused(client: Talker):
    await client.write("create", job={"uuid": "a", "n": 10**400})
    reply = await client.ask("update", jobId="a", inc={"n": 1})
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")


async def test_a_request_id_has_a_bound(client: Talker):
    reply = await client.ask("ping", requestId="x" * 10_000)
    assert (reply["code"], reply["requestId"]) == ("bad_request", "")
    assert (await client.ok("ping"))["success"]


async def test_the_report_of_a_sync_fits_one_frame(start, engine):
    limits = Limits(frame_bytes=256 * 1024, record_bytes=64 * 1024)
    daemon = await start(engine, limits=limits)
    talker = await daemon.talker()
    names = [f"{'n' * 240}-{number:05}" for number in range(1200)]
    for part in range(0, len(names), 600):
        await talker.ok("sync", jobs=[{"uuid": name, "nodeId": "n1"} for name in names[part : part + 600]])
    talker.send({"op": "sync", "jobs": [{"uuid": "other"}], "scope": {"nodeId": "n1"}})
    line = await talker.line()
    assert len(line) <= limits.frame_bytes
    assert b'"truncated":true' in line


async def test_writes_that_were_numbered_under_one_hello_are_acknowledged_before_the_next(daemon: Daemon):
    talker = await daemon.talker()
    talker.send(
        {"op": "hello", "client": "c", "ack": "last"},
        *({"op": "create", "job": {"uuid": f"j{seq}"}, "seq": seq} for seq in (1, 2)),
        {"op": "hello", "client": "c", "ack": "each"},
        {"op": "ping", "requestId": "p"},
    )
    replies = [await talker.receive()]
    while replies[-1].get("requestId") != "p":
        replies.append(await talker.receive())
    assert "epoch" in replies[0]
    assert "epoch" in replies[-2]
    assert [reply["acked"] for reply in replies[1:-2]][-1] == 2


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_records_waiting_for_a_commit_are_bounded_by_their_bytes_over_all_connections(start, faulty):
    """Twelve clients with large records while the disk is slow: frames wait in their sockets, not in memory.

    On a shared engine a connection has one write under way: clients times record bytes is the bound.
    """
    daemon = await start(faulty)
    talkers = [await daemon.talker() for _ in range(12)]
    faulty.hold()
    for number, talker in enumerate(talkers):
        job = {"uuid": f"big-{number}", "pad": "x" * 7_000_000}
        talker.send({"op": "create", "job": job}, {"op": "create", "job": {**job, "uuid": f"{number}-too"}})
    seen = 0
    for _ in range(200):
        await asyncio.sleep(0.005)
        seen = max(seen, daemon.store.commits._filling.bytes)
    faulty.let_go()
    assert seen <= FULL_BYTES + 8 * 1024 * 1024
    for talker in talkers:
        assert [reply["success"] for reply in await talker.receive_all(2)] == [True, True]


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_small_requests_that_make_large_rows_wait_for_their_commit(start, faulty):
    """What they are answered is small as well, because secrets are not told: only the rows are large."""
    daemon = await start(faulty)
    talker = await daemon.talker()
    await talker.ok("create", job={"uuid": "a", "secretEnvironment": {"pad": "x" * 4_000_000}})
    faulty.hold()
    talker.send(*({"op": "update", "jobId": "a", "job": {"n": number}} for number in range(32)))
    seen, commits = 0, daemon.store.commits
    for _ in range(100):
        await asyncio.sleep(0.005)
        batches = [commits._filling, *([] if commits._under_way is None else [commits._under_way])]
        seen = max(seen, *(batch.bytes for batch in batches))
    faulty.let_go()
    assert 0 < seen <= FULL_BYTES + 8 * 1024 * 1024
    assert all(reply["success"] for reply in await talker.receive_all(32))


async def test_a_replacing_sync_sent_again_leaves_alone_what_its_client_wrote_since(daemon: Daemon):
    first = await daemon.client("y")
    sync = {"jobs": [{"uuid": "k1", "nodeId": "n1"}], "scope": {"nodeId": "n1"}, "mode": "replace"}
    await first.ok("sync", **sync, seq=1)
    await first.ok("create", job={"uuid": "k2", "nodeId": "n1"}, seq=2)
    await daemon.caught_up()
    again = await daemon.client("y")
    reply = await again.ok("sync", **sync, seq=1, again=True)
    assert (reply["applied"], reply.get("missing")) == (0, None)
    assert (await again.ok("create", job={"uuid": "k3"}, seq=3))["success"]
    assert (await again.ok("get", jobId="k2"))["success"]


async def test_a_sync_brings_a_time_that_was_not_known(daemon: Daemon):
    talker = await daemon.talker()
    await talker.ok("create", job={"uuid": "a", "status": "PENDING"})
    at = "2025-01-01T00:00:00Z"
    assert (await talker.ok("sync", jobs=[{"uuid": "a", "startedAt": at}]))["applied"] == 1
    assert (await talker.ok("get", jobId="a"))["job"]["startedAt"] == at


async def test_only_a_job_is_made_by_an_update_that_overtook_its_create(daemon: Daemon):
    talker = await daemon.talker()
    reply = await talker.ask("update", kind="kv", record={"id": "never", "status": "x"})
    assert reply["code"] == "not_found"


async def test_lists_of_several_states_show_a_job_that_moves_between_them_once(daemon: Daemon):
    reader, writer = await daemon.client(None), await daemon.talker()
    names = [f"j{number:04}" for number in range(600)]
    await writer.ok("sync", jobs=[{"uuid": name, "status": "PENDING"} for name in names])
    await daemon.caught_up()
    for status in ("RUNNING", "COMPLETED"):
        moves = ({"op": "update", "job": {"uuid": name, "status": status}} for name in names)
        shown: list[str] = []
        cursor = None
        while True:
            page = await reader.ok(
                "list", filter={"statuses": ["PENDING", "RUNNING", "COMPLETED"]}, limit=50, cursor=cursor
            )
            shown += [job["uuid"] for job in page["jobs"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
            writer.send(*(move for move, _ in zip(moves, range(60), strict=False)))
        if not address_of(daemon.engine).stale_queries:
            assert sorted(shown) == names
        await daemon.caught_up()


async def test_an_agents_whole_list_shows_a_job_once_while_it_ends(daemon: Daemon):
    reader, writer = await daemon.talker(), await daemon.talker()
    names = [f"j{number:04}" for number in range(400)]
    await writer.ok("sync", jobs=[{"uuid": name, "status": "RUNNING"} for name in names])
    await daemon.caught_up()
    for start in range(0, len(names), 40):
        frames = ({"op": "update", "job": {"uuid": name, "status": "FAILED"}} for name in names[start : start + 40])
        writer.send(*frames)
        shown = [job["uuid"] for job in (await reader.ok("list"))["jobs"]]
        assert len(shown) == len(set(shown))
        if not address_of(daemon.engine).stale_queries:
            assert sorted(shown) == names


async def test_a_large_frame_of_a_connection_that_is_gone_is_not_begun(start, tmp_path):
    """It waits in line with those of others. Nobody counts it any more, so nothing may be done with it."""
    daemon = await start(EVERY["memory"].make(tmp_path)())
    gone, other = await daemon.talker(), await daemon.talker()
    async with asyncio.timeout(30):
        waiting = await waiting_with_a_large_frame(daemon, gone)
        waiting._transport.abort()
        while waiting in daemon.server._connections:
            await asyncio.sleep(0.001)
    daemon.server._dispatcher._large.give_back()
    await other.ok("create", job={**LARGE, "uuid": "b"})  # those behind it have their turn
    assert (await other.ask("get", jobId="a"))["code"] == "not_found"


async def test_a_large_frame_whose_connection_goes_in_the_moment_its_turn_comes_is_not_begun(start, tmp_path):
    daemon = await start(EVERY["memory"].make(tmp_path)())
    gone, other = await daemon.talker(), await daemon.talker()
    async with asyncio.timeout(30):
        session = (await waiting_with_a_large_frame(daemon, gone))._session
        turn = session._awaited
        assert turn is not None
        daemon.server._dispatcher._large.give_back()
        while not turn.done():
            await asyncio.sleep(0)  # so that we come before whoever waits for it
        session.lose()
        await other.ok("create", job={**LARGE, "uuid": "b"})
    assert (await other.ask("get", jobId="a"))["code"] == "not_found"


async def test_a_client_that_comes_back_does_not_wait_for_the_large_frame_of_its_old_connection(start, tmp_path):
    daemon = await start(EVERY["memory"].make(tmp_path)())
    old, new = await daemon.talker(), await daemon.talker()
    await old.ok("hello", client="c")
    await daemon.server._dispatcher._large.take()  # somebody else's turn, which does not end
    old.send({"op": "create", "job": LARGE, "seq": 1, "floor": 1})
    await asyncio.wait_for(waiting_connection(daemon), 30)
    await asyncio.wait_for(new.ok("hello", client="c"), 30)
    daemon.server._dispatcher._large.give_back()


async def test_behind_a_large_frame_that_waits_for_its_turn_little_is_read(start, tmp_path):
    daemon = await start(EVERY["memory"].make(tmp_path)())
    talker = await daemon.talker()
    line = daemon.server._dispatcher._large
    await line.take()
    frames = [{"op": "create", "job": {"uuid": name, "x": "x" * (16 * LARGE_BYTES)}} for name in "ab"]
    talker.send(*frames)
    async with asyncio.timeout(30):
        waiting = await waiting_connection(daemon)
        while waiting._reading:
            await asyncio.sleep(0.001)
    assert not waiting._frames
    assert waiting._splitter.held < 2 * AHEAD_BYTES
    line.give_back()
    assert [(await talker.receive())["success"] for _ in frames] == [True, True]


@pytest.mark.parametrize("op", ["list", "stats", "stuck", "watch"])
async def test_a_request_that_changes_nothing_ends_with_its_connection(daemon: Daemon, monkeypatch, op: str):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def without_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(30):
        with monkeypatch.context() as patched:
            patched.setattr(daemon.store.commits, "settled", without_end)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(daemon._socket))
                client.sendall(b'{"op":"ping"}\n{"op":"%s"}\n' % op.encode())
                await begun.wait()
                (reading,) = (each for each in daemon.server._connections if each._task is not None)
                while not select.select([client], [], [], 0)[0]:
                    await asyncio.sleep(0.001)
            # Closed on a reply that was not read: the daemon hears of it at once.
            await ended.wait()
            while reading in daemon.server._connections:
                await asyncio.sleep(0.001)
    assert reading._session.watches == {}


@pytest.mark.parametrize("op", ["list", "stats", "stuck"])
async def test_a_request_that_changes_nothing_ends_when_its_client_hangs_up(daemon: Daemon, monkeypatch, op: str):
    """One that only stopped sending is answered; what was sent before is taken all the same."""
    begun, ended, until_then = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settled = daemon.store.commits.settled

    async def after_a_while() -> None:
        begun.set()
        try:
            await until_then.wait()
        finally:
            ended.set()
        await settled()

    frames = b'{"op":"%s"}\n{"op":"create","job":{"uuid":"%s"}}\n'
    other = await daemon.talker()
    async with asyncio.timeout(30):
        with monkeypatch.context() as patched:
            patched.setattr(daemon.store.commits, "settled", after_a_while)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(daemon._socket))
                client.sendall(frames % (op.encode(), b"one"))
                await begun.wait()
            await ended.wait()
            begun.clear()
            asker = await daemon.talker()
            asker.send_raw(frames % (op.encode(), b"other"))
            asker._writer.write_eof()
            await begun.wait()
            until_then.set()
            assert [(await asker.receive())["success"] for _ in range(2)] == [True, True]
        for name in ("one", "other"):
            while not (await other.ask("get", jobId=name))["success"]:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_a_lost_connection_counts_until_what_it_wrote_has_come_about(start, faulty):
    daemon = await start(faulty)
    lost, other = await daemon.talker(), await daemon.talker()
    faulty.hold()
    lost.send({"op": "sync", "jobs": [{"uuid": "a"}]})
    async with asyncio.timeout(30):
        writing = await waiting_connection(daemon)
        while not faulty.commits:
            await asyncio.sleep(0.001)
        writing.abort()
        assert await lost.line() == b""
        await other.ok("ping")
        counts, why_ended = writing in daemon.server._connections, writing.end_if_stuck(float("inf"))
        faulty.let_go()
        assert counts
        assert why_ended is None
        while writing in daemon.server._connections:
            await asyncio.sleep(0.001)
    assert (await other.ok("get", jobId="a"))["success"]


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_a_lost_connection_lets_go_of_its_unfinished_frame_while_its_write_goes_on(start, faulty):
    daemon = await start(faulty)
    lost = await daemon.talker()
    faulty.hold()
    lost.send({"op": "sync", "jobs": [{"uuid": "a"}]})
    lost.send_raw(b"x" * 1000)
    async with asyncio.timeout(30):
        writing = await waiting_connection(daemon)
        while writing._splitter.held < 1000:
            await asyncio.sleep(0.001)
        writing.abort()
        while not writing._lost:
            await asyncio.sleep(0)
        counts, held = writing in daemon.server._connections, writing._splitter.held
        faulty.let_go()
    assert counts
    assert held == 0


async def waiting_with_a_large_frame(daemon: Daemon, talker: Talker) -> Connection:
    """The connection whose large frame waits behind somebody else's turn, which does not end by itself."""
    await daemon.server._dispatcher._large.take()
    talker.send({"op": "create", "job": LARGE})
    return await waiting_connection(daemon)


async def waiting_connection(daemon: Daemon) -> Connection:
    """One whose request keeps those behind it waiting, once there is one."""
    while not (waiting := [each for each in daemon.server._connections if each._task is not None]):
        await asyncio.sleep(0.001)
    return waiting[0]
