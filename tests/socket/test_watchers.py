"""Watchers: many at once, slow ones, several on a connection, and how each of them ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.backends.port import Engine
from statesvc.config import Limits
from statesvc_client.errors import Unavailable
from tests.engines.addresses import EMBEDDED, EVERY, IS_LONG, address_of, repeats
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.following import (
    compact,
    event,
    events,
    nothing,
    read_on,
    stop_reading,
    until,
    watching,
    with_watches,
)
from tests.socket.talking import PATIENCE, Daemon, Talker, settings_for

Json = dict[str, Any]


# --- many, and slow ones -------------------------------------------------------------------------------------------


async def test_ten_watchers_each_see_every_change_once_and_in_the_order_of_each_record(daemon: Daemon):
    watchers = [await watching(daemon) for _ in range(10)]
    writers = [await daemon.client(None) for _ in range(4)]
    many = repeats(daemon.engine, 50)

    async def write(number: int, writer: Talker) -> None:
        ids = [f"j{number}-{place}" for place in range(many)]
        await writer.in_one_go({"op": "create", "job": {"uuid": id}} for id in ids)
        for turn in range(9):
            await writer.in_one_go({"op": "update", "jobId": id, "job": {"turn": turn}} for id in ids)

    writing = asyncio.gather(*(write(number, writer) for number, writer in enumerate(writers)))
    told = await asyncio.gather(*(events(watcher, 40 * many) for watcher in watchers))
    await writing
    for seen in told:
        revisions: dict[str, list[int]] = {}
        for each in seen:
            revisions.setdefault(each["id"], []).append(each["revision"])
        assert len(revisions) == 4 * many
        assert all(of_one == list(range(1, 11)) for of_one in revisions.values())
        if address_of(daemon.engine).one_order:
            assert seen == told[0]


CHANGES = 50_000 if IS_LONG else 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "sqlite"])
async def test_ten_watchers_on_many_thousand_changes_each_see_all_of_them(name: str, tmp_path: Path, start: Start):
    daemon = await start(EVERY[name].make(tmp_path)())
    watchers = [await watching(daemon) for _ in range(10)]
    writers = [await daemon.client(None) for _ in range(5)]

    async def write(number: int, writer: Talker) -> None:
        for batch in range(CHANGES // 1000):
            await writer.in_one_go({"op": "create", "job": {"uuid": f"{number}-{batch}-{n}"}} for n in range(200))

    async def follow(watcher: Talker) -> bytes:
        parts: list[bytes] = []
        lines = 0
        while lines < CHANGES:
            parts.append(await watcher._reader.read(1 << 20))
            assert parts[-1], "the connection ended"
            lines += parts[-1].count(b"\n")
        return b"".join(parts)

    writing = asyncio.gather(*(write(number, writer) for number, writer in enumerate(writers)))
    first, *others = await asyncio.gather(*(follow(watcher) for watcher in watchers))
    await writing
    assert len({json.loads(line)["event"]["id"] for line in first.splitlines()}) == CHANGES
    assert first.count(b"\n") == CHANGES
    assert all(seen == first for seen in others)


SMALL = Limits(output_bytes=4096, watch_behind=50)


async def _changes(talker: Talker, id: str, count: int) -> None:
    """Changes of some kilobytes, one after the other."""
    await talker.ok("create", job={"uuid": id})
    for number in range(count - 1):
        await talker.ok("update", jobId=id, job={"pad": "x" * 8000, "n": number})


async def test_a_watcher_that_takes_nothing_is_cut_off_and_costs_its_bound_while_the_others_go_on(
    engine: Engine, start: Start
):
    daemon = await start(engine, limits=SMALL)
    deaf, other, talker = await watching(daemon), await watching(daemon), await daemon.client(None)
    connections = with_watches(daemon)
    stop_reading(deaf)
    most = 0

    async def look() -> None:
        nonlocal most
        while len(with_watches(daemon)) == 2:
            most = max(most, *(each._transport.get_write_buffer_size() for each in connections))
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    following = asyncio.create_task(events(other, 300))
    await _changes(talker, "a", 300)
    assert [each["revision"] for each in await following] == list(range(1, 301))
    await looking
    assert most < 4096 + 3 * 64 * 1024
    read_on(deaf)
    told: list[Json] = []
    while "event" in (line := await deaf.receive()):
        told.append(line["event"])
    assert (line["requestId"], line["success"], line["code"]) == ("w", False, "busy")
    assert "50 changes" in line["error"]
    assert [each["revision"] for each in told] == list(range(1, len(told) + 1))
    assert (await deaf.ok("ping", requestId="p"))["requestId"] == "p"
    await deaf.ok("watch", requestId="w", after=told[-1]["cursor"])
    rest = await events(deaf, 300 - len(told))
    assert [each["revision"] for each in told + rest] == list(range(1, 301))


async def test_a_watcher_that_reads_nothing_of_what_is_kept_costs_its_bound(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096))
    talker, deaf = await daemon.client(None), await daemon.client(None)
    await _changes(talker, "a", 200)
    stop_reading(deaf)
    deaf.send({"op": "watch", "requestId": "w", "after": "0"})
    await until(lambda: any(not each._writable for each in with_watches(daemon)))
    (connection,) = with_watches(daemon)
    for _ in range(100):
        assert connection._transport.get_write_buffer_size() < 4096 + 2 * 64 * 1024
        await asyncio.sleep(0)
    read_on(deaf)
    assert (await deaf.receive())["cursor"] == "0"
    assert [each["revision"] for each in await events(deaf, 200)] == list(range(1, 201))


async def test_a_watcher_that_pauses_and_reads_on_misses_nothing(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096))
    slow, talker = await watching(daemon), await daemon.client(None)
    stop_reading(slow)
    await _changes(talker, "a", 200)
    read_on(slow)
    assert [each["revision"] for each in await events(slow, 200)] == list(range(1, 201))


async def test_a_stalled_watcher_whose_log_is_cut_is_told_that_it_is_gone(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096))
    slow, talker = await watching(daemon), await daemon.client(None)
    stop_reading(slow)
    await _changes(talker, "a", 200)
    await compact(daemon.engine)
    read_on(slow)
    lines = [await slow.receive()]
    while "event" in lines[-1]:
        lines.append(await slow.receive())
    assert lines[-1]["code"] == "gone"
    assert (await slow.ok("ping"))["success"]


async def test_a_connection_that_never_reads_is_closed_in_the_end(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096, stalled_output_seconds=0.2))
    deaf, talker = await watching(daemon), await daemon.client(None)
    stop_reading(deaf)
    await _changes(talker, "a", 100)
    await until(lambda: not with_watches(daemon))
    read_on(deaf)
    while await deaf.line():
        pass


@pytest.mark.parametrize(
    ("problem", "code", "text"),
    [
        (Unavailable("the log is away"), "unavailable", "the log is away"),
        (asyncio.CancelledError(), "unavailable", "watch again"),
        (RuntimeError("a bug"), "internal", "RuntimeError"),
    ],
)
async def test_a_failing_engine_ends_the_watch_with_its_code(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: str, text: str
):
    watcher, talker = await watching(daemon), await daemon.client(None)

    async def fail(*_: Any) -> Any:
        raise problem

    monkeypatch.setattr(daemon.engine, "read_log", fail)
    await talker.ok("create", job={"uuid": "a"})
    end = await watcher.receive()
    assert (end["requestId"], end["success"], end["code"]) == ("w", False, code)
    assert end["error"].startswith("WATCH_ERROR: ")
    assert text in end["error"]
    assert with_watches(daemon) == []
    assert (await watcher.ok("ping"))["success"]


async def test_a_watch_that_was_ended_says_nothing_whatever_its_engine_makes_of_that(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    watcher, talker = await watching(daemon), await daemon.client(None)
    begun, called_off, may_fail = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def fail_later(*_: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            called_off.set()
            await may_fail.wait()
            raise Unavailable("called off") from None

    async with asyncio.timeout(PATIENCE):
        with monkeypatch.context() as patched:
            patched.setattr(daemon.engine, "read_log", fail_later)
            await talker.ok("create", job={"uuid": "a"})
            await begun.wait()
        await watcher.ok("unwatch", watch="w")
        await called_off.wait()
    await watcher.ok("watch", requestId="w")
    may_fail.set()
    await talker.ok("create", job={"uuid": "b"})
    assert (await event(watcher))["id"] == "b"


# --- several on one connection, and their end ----------------------------------------------------------------------


async def test_a_connection_has_a_bounded_number_of_watches_each_with_its_own_id(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(watches=2))
    talker = await daemon.client(None)
    for id in ("one", "two"):
        await talker.ok("watch", requestId=id)
    code, error = await talker.refused("watch", requestId="three")
    assert code == "busy"
    assert "2 watches" in error
    assert (await talker.refused("watch", requestId="one"))[0] == "bad_request"
    await talker.ok("unwatch", watch="one")
    await talker.ok("watch", requestId="three")
    await (await daemon.talker()).ok("create", job={"uuid": "a"})
    assert {line["requestId"] for line in await talker.receive_all(2)} == {"two", "three"}


async def test_the_filters_of_a_connections_watches_have_a_bound_together(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096))
    talker, other, writer = [await daemon.client(None) for _ in range(3)]
    large = {"where": {"/x": "y" * 1500}}
    for id in ("one", "two"):
        await talker.ok("watch", requestId=id, filter=large)
    code, error = await talker.refused("watch", requestId="three", filter=large)
    assert code == "busy"
    assert "the limit is 4096: end one first" in error
    await talker.ok("watch", requestId="small", filter={"ids": ["a"]})
    await other.ok("watch", requestId="of another", filter=large)
    await writer.ok("create", job={"uuid": "a", "x": "y" * 1500})
    assert {line["requestId"] for line in await talker.receive_all(3)} == {"one", "two", "small"}
    assert (await other.receive())["requestId"] == "of another"
    await talker.ok("unwatch", watch="one")
    await talker.ok("watch", requestId="three", filter=large)


@pytest.mark.parametrize("value", ["y" * 4096, [[]] * 100], ids=["long", "many"])
async def test_a_filter_that_no_connection_may_keep_is_refused(engine: Engine, start: Start, value: Any):
    daemon = await start(engine, limits=Limits(output_bytes=4096))
    talker = await daemon.client(None)
    code, error = await talker.refused("watch", filter={"where": {"/x": value}})
    assert code == "bad_request"
    assert "the limit is 4096" in error
    assert with_watches(daemon) == []
    assert (await talker.ok("list", filter={"where": {"/x": value}}))["jobs"] == []


async def test_more_watches_than_take_their_turn_at_once_are_all_served(daemon: Daemon):
    talker, writer = await daemon.client(None), await daemon.client(None)
    for id in range(60):
        await talker.ok("watch", requestId=id)
    await writer.in_one_go({"op": "create", "job": {"uuid": f"j{number}"}} for number in range(20))
    told = [(line["requestId"], line["event"]["id"]) for line in await talker.receive_all(60 * 20)]
    assert sorted(told) == sorted((id, f"j{number}") for id in range(60) for number in range(20))


async def test_the_reply_to_unwatch_comes_behind_the_last_event(daemon: Daemon):
    watcher, talker = await watching(daemon), await daemon.client(None)
    writing = asyncio.create_task(
        talker.in_one_go({"op": "create", "job": {"uuid": f"j{number}"}} for number in range(500))
    )
    assert (await event(watcher))["type"] == "created"
    watcher.send({"op": "unwatch", "watch": "w", "requestId": "u"})
    while (line := await watcher.receive())["requestId"] != "u":
        assert line["requestId"] == "w"
    assert line == {"requestId": "u", "success": True}
    await writing
    await talker.ok("create", job={"uuid": "later"})
    assert await watcher.ask("ping", requestId="p") == {"requestId": "p", "success": True}


async def test_unwatch_ends_the_one_that_is_named_its_own_id_or_all(daemon: Daemon):
    talker = await daemon.client(None)
    for id in (1, 2, 3, 4):
        await talker.ok("watch", requestId=id)
    assert await talker.refused("unwatch", watch=9, requestId="u") == (
        "not_found",
        "UNWATCH_ERROR: no watch of this connection has the requestId 9",
    )
    await talker.ok("unwatch", watch=1, requestId="u")
    await talker.ok("unwatch", requestId=2)
    (connection,) = with_watches(daemon)
    assert list(connection._session.watches) == [3, 4]
    await talker.ok("unwatch", requestId="u")
    assert with_watches(daemon) == []
    assert (await talker.ok("unwatch"))["success"]


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_a_watch_that_is_ended_before_its_reply_is_sent_tells_nothing(faulty: FaultyEngine, start: Start):
    """On a shared engine a request begins when the one before it is answered: it cannot come to this."""
    daemon = await start(faulty)
    talker = await daemon.client(None)
    await talker.ok("create", job={"uuid": "a"})
    faulty.hold()
    talker.send(
        {"op": "update", "jobId": "a", "job": {"x": 1}, "requestId": 1},
        {"op": "watch", "requestId": "w", "after": "0"},
        {"op": "unwatch", "watch": "w", "requestId": 2},
        {"op": "ping", "requestId": 3},
    )
    await until(lambda: any(len(each._line) == 4 for each in daemon.server._connections))
    faulty.let_go()
    assert [line["requestId"] for line in await talker.receive_all(4)] == [1, "w", 2, 3]
    assert await talker.ask("ping", requestId="p") == {"requestId": "p", "success": True}


async def test_a_client_with_one_line_for_a_run_of_writes_can_watch_its_own(daemon: Daemon):
    client = await daemon.client("c", ack="last")
    await client.ok("watch", requestId="w")
    client.send(*({"op": "create", "job": {"uuid": f"j{seq}"}, "seq": seq} for seq in range(1, 101)))
    lines: list[Json] = []
    while sum("event" in line for line in lines) < 100 or not any(line.get("acked") == 100 for line in lines):
        lines.append(await client.receive())
    assert sorted(line["event"]["id"] for line in lines if "event" in line) == sorted(
        f"j{seq}" for seq in range(1, 101)
    )
    acked = [line["acked"] for line in lines if "acked" in line]
    assert acked == sorted(set(acked))


async def test_a_second_hello_of_the_same_client_ends_the_watches_of_the_first(daemon: Daemon):
    first = await daemon.client("c")
    await first.ok("watch", requestId="w")
    await daemon.client("c")
    assert await first.line() == b""
    assert with_watches(daemon) == []


async def test_a_connection_that_says_hello_again_keeps_its_watches(daemon: Daemon):
    talker = await daemon.client("c")
    await talker.ok("watch", requestId="w")
    await talker.hello("d")
    await (await daemon.talker()).ok("create", job={"uuid": "a"})
    assert (await event(talker))["id"] == "a"


async def test_a_client_that_stopped_sending_still_gets_its_events(daemon: Daemon):
    watcher, talker = await watching(daemon), await daemon.client(None)
    watcher._writer.write_eof()
    (connection,) = with_watches(daemon)
    await until(lambda: connection._ending)
    for id in ("a", "b"):
        await talker.ok("create", job={"uuid": id})
    assert {each["id"] for each in await events(watcher, 2)} == {"a", "b"}


async def test_a_half_closed_connection_ends_with_its_last_watch(engine: Engine, start: Start):
    daemon = await start(engine)
    watcher, talker = await watching(daemon), await daemon.client(None)
    watcher._writer.write_eof()
    await daemon.store.commits.settled()
    await daemon.engine.load(nothing())
    await talker.ok("create", job={"uuid": "a"})
    assert not (await watcher.receive())["success"]
    assert await watcher.line() == b""


async def test_a_client_that_stopped_sending_and_then_went_away_is_noticed(daemon: Daemon):
    watcher = await watching(daemon)
    watcher._writer.write_eof()
    (connection,) = with_watches(daemon)
    await until(lambda: connection._ending)
    assert with_watches(daemon) == [connection]
    await watcher.close()
    await until(lambda: connection not in daemon.server._connections)


async def test_the_watches_of_a_client_that_went_away_end(daemon: Daemon):
    watcher = await watching(daemon)
    (connection,) = with_watches(daemon)
    await watcher.close()
    await until(lambda: connection not in daemon.server._connections)
    assert connection._session.watches == {}


async def test_watches_end_quietly_and_hold_nothing_up_when_the_daemon_stops(
    engine: Engine, socket_folder: Path, start: Start
):
    # A drain that waits for the watch, or for the claim, would outlast the patience of the test.
    daemon = await Daemon(engine, replace(settings_for(socket_folder), drain_seconds=3000.0)).start()
    watcher, waiter = await watching(daemon), await daemon.client(None)
    waiter.send(*({"op": "claim", "filter": {}, "holder": "h", "wait": 3000, "requestId": n} for n in range(3)))
    await until(lambda: any(each._session.waits for each in daemon.server._connections))
    daemon.server._signalled("the test")
    assert daemon._task is not None
    assert await asyncio.wait_for(asyncio.shield(daemon._task), 60) == 0
    assert await watcher.line() == b""
    assert [line["jobs"] for line in await waiter.receive_all(3)] == [[], [], []]
    await daemon.stop()


# --- claims that wait ----------------------------------------------------------------------------------------------


async def test_a_claim_waits_on_for_a_client_that_only_stopped_sending(daemon: Daemon):
    waiter, talker = await daemon.client(None), await daemon.client(None)
    waiter.send({"op": "claim", "filter": {}, "holder": "h", "wait": 60, "requestId": "c"})
    waiter._writer.write_eof()
    await until(lambda: any(each._ending and each._session.waits for each in daemon.server._connections))
    await talker.ok("create", job={"uuid": "a", "status": "QUEUED"})
    assert (await waiter.receive())["jobs"][0]["uuid"] == "a"
    assert await waiter.line() == b""


@pytest.mark.parametrize("behind", [0, 5])
async def test_a_claim_is_withdrawn_when_its_client_went_away(daemon: Daemon, behind: int):
    """Also when more requests wait behind it, so that nothing more is read."""
    waiter, talker = await daemon.client(None), await daemon.client(None)
    waiter.send({"op": "claim", "filter": {}, "holder": "h", "wait": 3000, "requestId": "c"})
    waiter.send(*({"op": "create", "job": {"uuid": f"behind-{number}"}} for number in range(behind)))
    await until(lambda: any(each._session.waits for each in daemon.server._connections))
    (connection,) = (each for each in daemon.server._connections if each._session.waits)
    await waiter.close()
    await until(lambda: connection not in daemon.server._connections)
    await talker.ok("create", job={"uuid": "a", "status": "QUEUED"})
    assert "lease" not in (await talker.ok("get", jobId="a"))["job"]
