"""The lanes of the log: many daemons write, each record's order holds, nothing waits for the dead."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from statesvc.backends.dynamodb import following, lanes, tails
from statesvc.backends.dynamodb.cursors import write_cursor
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.registry import HOLDER
from statesvc.backends.dynamodb.slots import Place as SlotPlace
from statesvc.backends.port import Event, LogEntry, LogKept, Row, Write
from statesvc_client.errors import Gone, Unavailable
from tests.dynamodb.engines import Place, in_order, whole_log
from tests.dynamodb.servers import TroubledEndpoint
from tests.engines.rows import after, born, by_record, commit, fill, row

A = ("job", "a")
LONG = 60.0


async def race(engine: DynamodbEngine, names: list[str], writes: int, seed: int) -> int:
    """Write to records others write to as well; how many writes came through."""
    chance, won = random.Random(seed), 0
    while won < writes:
        name = chance.choice(names)
        (stored,) = await engine.get([("job", name)])
        await asyncio.sleep(0)
        step = born(name) if stored is None else (after(stored),)
        results = await engine.commit([step])
        assert results[0] in ("applied", "conflict")
        won += results == ["applied"]
    return won


# --- several daemons -------------------------------------------------------------------------------------------------


async def test_daemons_have_lanes_of_their_own_and_see_each_other(place: Place):
    async with place.opened() as one, place.opened() as two:
        cursor = await one.position()
        (a,) = await fill(two, [row("a")])
        await asyncio.wait_for(one.log_grew(cursor, LONG), LONG)
        assert [entry.row for entry in await one.read_log(cursor, 10)] == [a]
        assert await one.get([A]) == [a]
        step = after(a)
        assert await one.commit([(step,)]) == ["applied"]
        assert await two.commit([(step,)]) == ["conflict"]
        for engine in (one, two):
            await engine.position()
            assert by_record(await whole_log(engine))[A] == by_record(await engine.history(A, "", 10))[A]
            assert [entry.row.revision for entry in await engine.history(A, "", 10)] == [1, 2]


@pytest.mark.parametrize("seed", range(6))
async def test_whoever_reads_finds_every_record_in_order_whoever_wrote(place: Place, seed: int):
    """Three daemons race on few records; readers that begin anywhere never see a record go back or jump."""
    names = [f"job-{number}" for number in range(3)]
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(place.opened()) for _ in range(3)]
        cursor = await engines[0].position()
        wins = 15

        async def follow(engine: DynamodbEngine, limit: int) -> list[LogEntry]:
            read: list[LogEntry] = []
            at = cursor
            while len(read) < wins * len(engines):
                await engine.log_grew(at, LONG)
                page = await engine.read_log(at, limit)
                read += page
                at = page[-1].cursor if page else at
            return read

        readers = [asyncio.create_task(follow(engine, limit)) for engine in engines for limit in (1, 7)]
        await asyncio.gather(*(race(engine, names, wins, 10 * seed + n) for n, engine in enumerate(engines)))
        for read in await asyncio.wait_for(asyncio.gather(*readers), LONG):
            assert in_order(read)
            assert sum(len(told) for told in by_record(read).values()) == wins * len(engines)
        for engine in engines:
            await engine.position()
            log = await whole_log(engine)
            assert len(log) == wins * len(engines)
            assert in_order(log)
            for entry in log:
                assert in_order(await whole_log(engine, entry.cursor, 3))


async def test_an_entry_is_held_back_until_the_one_it_follows_was_told(place: Place):
    """Lane two is read first; its entry follows one of lane one that the reader does not know yet."""
    async with place.opened() as one, place.opened() as two, place.opened() as reader:
        cursor = await reader.position()
        (a,) = await fill(one, [row("a")])
        await two.get([A])
        assert await two.commit([(after(a),)]) == ["applied"]
        tails_ = reader._life.tails
        await tails_.extend(two._life.holding.lane.number)
        assert [entry.row.revision for entry in await reader.read_log(cursor, 10)] == [1, 2]


async def test_reopening_takes_the_lane_that_was_left(place: Place):
    numbers = []
    for _ in range(3):
        async with place.opened() as engine:
            numbers.append(engine._life.holding.lane.number)
            await fill(engine, [row(f"job-{len(numbers)}")])
    assert numbers == [1, 1, 1]


# --- numbers ---------------------------------------------------------------------------------------------------------


async def test_a_refused_unit_leaves_no_gap_and_costs_no_number(place: Place):
    async with place.opened() as engine, place.opened() as other:
        await fill(engine, [row("a"), row("b")])
        before = await engine.position()
        assert await engine.commit([born("a", uid="late")]) == ["conflict"]
        assert await engine.position() == before == await other.position()
        batch = [born("c"), born("a", uid="late"), born("d")]
        assert await engine.commit(batch) == ["applied", "conflict", "applied"]
        assert [entry.row.id for entry in await whole_log(engine, before)] == ["c", "d"]
        # That nothing stands at the number between them is told with the next word about the lane.
        async with asyncio.timeout(LONG):
            while [entry.row.id for entry in await whole_log(other, before)] != ["c", "d"]:
                await asyncio.sleep(0.01)


async def test_a_slot_that_was_made_void_keeps_its_unit_out_and_the_unit_is_tried_elsewhere(place: Place):
    """A reader has given up waiting for a number: what was to stand there cannot come any more, and comes later."""
    async with place.opened() as engine, place.opened() as reader:
        await fill(engine, [row("a")])
        lane = engine._life.holding.lane
        assert await reader._life.holding.seal(SlotPlace(lane.number, lane.end + 1)) is None
        (b,) = await fill(engine, [row("b")])
        assert await engine.get([b.key]) == [b]
        assert [entry.row.id for entry in await whole_log(engine)] == ["a", "b"]
        assert [entry.row.id for entry in await whole_log(reader)] == ["a", "b"]


async def test_a_paused_commit_whose_slot_was_made_void_is_not_applied(
    place: Place, troubled: TroubledEndpoint, monkeypatch: pytest.MonkeyPatch
):
    """The writer's call hangs on its way. A reader closes the gap, and the writer learns that nothing came of it."""
    monkeypatch.setattr(tails, "GAP_SECONDS", 0.0)
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as writer, place.opened() as reader:
        cursor = await reader.position()
        troubled.only = frozenset({"TransactWriteItems"})
        troubled.next("hang")
        paused = asyncio.create_task(writer.commit([born("a")]))
        while not troubled.faults["hang"]:
            await asyncio.sleep(0.001)
        assert await writer.commit([born("b")]) == ["applied"]
        await asyncio.wait_for(reader.log_grew(cursor, LONG), LONG)
        while not (told := await reader.read_log(cursor, 10)):
            await reader._life.tails.extend_all()
        assert [entry.row.id for entry in told] == ["b"]
        (result,) = await paused
        assert isinstance(result, Unavailable)
        assert result.outcome == "not_applied"
        assert await reader.get([A]) == [None]
        assert [entry.row.id for entry in await whole_log(reader)] == ["b"]
        assert await writer.commit([born("a")]) == ["applied"]
        assert [entry.row.id for entry in await whole_log(reader)] == ["b", "a"]


async def test_a_number_nobody_settles_is_not_waited_for_for_ever(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tails, "GAP_SECONDS", 0.0)
    async with place.opened() as writer, place.opened() as reader:
        cursor = await reader.position()
        await writer._life.holding.lane.take(1)
        (a,) = await fill(writer, [row("a")])
        assert await writer.read_log(cursor, 10) == []
        await asyncio.wait_for(_told(reader, cursor), LONG)
        assert [entry.row for entry in await reader.read_log(cursor, 10)] == [a]


async def _told(engine: DynamodbEngine, cursor: str) -> None:
    while not await engine.read_log(cursor, 10):
        await engine._life.tails.extend_all()


# --- the dead --------------------------------------------------------------------------------------------------------


async def holders(place: Place) -> dict[str, str]:
    items = [item for item in await place.items(place.tables.companion) if item["sk"]["S"].startswith("lane#")]
    return {item["sk"]["S"].rpartition("#")[2]: item.get(HOLDER, {}).get("S", "") for item in items}


async def first_lane_freed(place: Place) -> None:
    async with asyncio.timeout(LONG):
        while (await holders(place))["000001"]:
            await asyncio.sleep(0.01)


async def silence(engine: DynamodbEngine) -> None:
    """It says nothing any more, as if it was stopped."""
    task = engine._life.holding._task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("entries", [1, 3])
async def test_a_cursor_of_a_daemon_that_died_before_it_told_how_far_its_lane_is_holds(place: Place, entries: int):
    """Between what it wrote there is a number it gave up, and nobody else knows that nothing will ever stand there."""
    async with place.opened() as writer, place.opened() as reader:
        await silence(writer)
        await fill(writer, [row("first")])
        batch = [born("a"), born("first", uid="late"), *(born(f"b{number}") for number in range(entries))]
        assert (await writer.commit(batch))[1] == "conflict"
        log = await whole_log(writer)
        behind = [log[-1].cursor, await writer.position()]
        for cursor in behind:
            assert await reader.read_log(cursor, 10) == []
        assert [entry.row.id for entry in await whole_log(reader)] == [entry.row.id for entry in log]
        assert await reader.check() == []


async def test_a_cursor_nobody_can_have_given_out_is_gone(place: Place):
    async with place.opened() as writer, place.opened() as reader:
        await fill(writer, [row("a")])
        (entry,) = await whole_log(writer)
        lane, number = writer._life.holding.lane.number, writer._life.holding.lane.end
        far = write_cursor({lane: (number + lanes.SEALED + 1, 0)})
        with pytest.raises(Gone):
            await reader.read_log(far, 10)
        assert [each.row for each in await whole_log(reader)] == [entry.row]


async def test_the_lane_of_a_silent_daemon_is_freed_and_taken(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following, "SILENT_SECONDS", 0.0)
    dead = place.engine()
    await dead.open()
    (a,) = await fill(dead, [row("a")])
    await silence(dead)
    async with place.opened() as watching:
        cursor = await watching.position()
        waiting = asyncio.create_task(watching.log_grew(cursor, LONG))
        await first_lane_freed(place)
        async with place.opened() as heir:
            assert heir._life.holding.lane.number == 1
            step = after(a)
            await heir.get([A])
            assert await heir.commit([(step,)]) == ["applied"]
            await asyncio.wait_for(waiting, LONG)
            assert [entry.row for entry in await whole_log(watching, cursor)] == [step.row]
            # The one that was taken for dead goes on: its lane is not its own any more, and it takes another.
            late = after(step.row)
            assert await dead.get([A]) == [step.row]
            assert await dead.commit([(late,)]) == ["applied"]
            assert dead._life.holding.lane.number not in (1, watching._life.holding.lane.number)
            for engine in (heir, watching, dead):
                assert [entry.row.revision for entry in await whole_log(engine)] == [1, 2, 3]
            await dead.close()


async def test_what_was_open_when_a_daemon_closed_can_never_come_once_its_lane_is_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """A number below the last slot stayed open: its commit may be on its way for hours."""
    monkeypatch.setattr(following, "SILENT_SECONDS", 0.0)
    async with place.opened() as closing:
        await fill(closing, [row("a")])
        lane = closing._life.holding.lane
        open_number = await lane.take(1)
        await fill(closing, [row("b")])
    assert (await holders(place))["000001"], "a lane with something open is not left free"
    async with place.opened() as watching:
        cursor = await watching.position()
        waiting = asyncio.create_task(watching.log_grew(cursor, LONG))
        await first_lane_freed(place)
        assert await watching._life.holding.seal(SlotPlace(1, open_number)) == lanes.VOID
        async with place.opened() as heir:
            assert heir._life.holding.lane.number == 1
            await fill(heir, [row("c")])
            await asyncio.wait_for(waiting, LONG)
            assert [entry.row.id for entry in await whole_log(watching)] == ["a", "b", "c"]


async def test_a_daemon_that_says_something_in_time_keeps_its_lane(place: Place):
    async with place.opened() as one, place.opened() as two:
        seen = await two._open.registry.look()
        silent = seen.lanes[one._life.holding.lane.number]
        assert await one._life.holding._say()
        assert not await two._life.holding.bury(silent)
        (a,) = await fill(one, [row("a")])
        assert [entry.row for entry in await whole_log(two)] == [a]
        assert one._life.holding.lane.number == 1


async def test_a_lane_numbers_no_more_than_may_be_made_void(place: Place):
    async with place.opened() as engine:
        lane = engine._life.holding.lane
        for _ in range(lanes.WINDOW):
            await lane.take(1)
        waiting = asyncio.create_task(lane.take(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        lane.done(1, 1)
        assert await asyncio.wait_for(waiting, LONG) == lanes.WINDOW + 1
        for number in range(2, lanes.WINDOW + 2):
            lane.done(number, 1)
        engine._life.tails.lanes[1].grown(lane.end)


# --- cutting ---------------------------------------------------------------------------------------------------------


async def test_cutting_several_lanes_takes_the_oldest_first_and_every_daemon_learns_of_it(place: Place):
    async with place.opened() as one, place.opened() as two:
        last: Row | None = None
        cursors = []
        for at in range(1, 11):
            engine = one if at % 2 else two
            await engine.get([A])
            step = born("a")[0] if last is None else after(last)
            assert await engine.commit([(Write(step.row, step.expects, Event("updated", at)),)]) == ["applied"]
            last = step.row
            cursors.append(await one.position())
        while await one.compact(LogKept(since=6, most_bytes=1 << 40)):
            pass
        for engine in (one, two):
            assert [entry.event.at for entry in await whole_log(engine)] == [6, 7, 8, 9, 10]
            assert [entry.event.at for entry in await engine.history(A, "", 100)] == [6, 7, 8, 9, 10]
            with pytest.raises(Gone):
                await engine.read_log(cursors[1], 10)
            assert [entry.event.at for entry in await whole_log(engine, cursors[4])] == [6, 7, 8, 9, 10]
        assert await one.check() == []


async def test_a_reader_that_did_not_hear_of_a_cut_does_not_take_what_is_gone_for_void(place: Place):
    async with place.opened() as one, place.opened() as two:
        await fill(one, [row("x")])
        cursor = await two.position()
        for number in range(5):
            await fill(one, [row(f"job-{number}")])
        await two.position()
        two._life.tails.lanes[1].restart(two._life.tails.lanes[1].end)  # it has forgotten what it read
        while await one.compact(LogKept(since=1 << 62, most_bytes=1 << 40)):
            pass
        with pytest.raises(Gone):
            await two.read_log(cursor, 10)


async def test_the_history_of_a_record_that_changed_often_is_whole(place: Place):
    """Its trail was put away into the log, more than once."""
    async with place.opened() as one, place.opened() as two:
        (last,) = await fill(one, [row("a")])
        for number in range(80):
            engine = (one, two)[number % 3 == 0]
            await engine.get([A])
            step = after(last)
            assert await commit(engine, [(step,)]) == ["applied"]
            last = step.row
        for engine in (one, two):
            assert [entry.row.revision for entry in await engine.history(A, "", 1000)] == list(range(1, 82))
            read, cursor = [], ""
            while page := await engine.history(A, cursor, 7):
                read += [entry.row.revision for entry in page]
                cursor = page[-1].cursor
            assert read == list(range(1, 82))
        assert await one.check() == []


async def test_a_history_read_one_by_one_goes_on_behind_a_unit_of_several_records(place: Place):
    async with place.opened() as engine:
        assert await engine.commit([(*born("a"), *born("b"), *born("c"))]) == ["applied"]
        step = after(row("b"))
        assert await engine.commit([(step,)]) == ["applied"]
        read, cursor = [], ""
        while page := await engine.history(("job", "b"), cursor, 1):
            read += [entry.row.revision for entry in page]
            cursor = page[-1].cursor
        assert read == [1, 2]
