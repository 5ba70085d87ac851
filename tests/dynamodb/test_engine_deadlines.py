"""A commit has one deadline: nothing of it is sent later, and nothing that failed can come later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from statesvc.backends.dynamodb import committing, lanes
from statesvc.backends.dynamodb import engine as engines
from statesvc.backends.dynamodb.calls import Cancelled, Failed, InvalidRequest, NoSuchTable
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.following import Following
from statesvc.backends.dynamodb.lanes import OwnLane
from statesvc.backends.dynamodb.registry import LaneState
from statesvc.backends.dynamodb.slots import MOST_PARTS
from statesvc.backends.port import Result, Row, Unit
from statesvc_client.errors import StateError, Unavailable
from tests.dynamodb.engines import Place, in_haste, whole_log
from tests.dynamodb.servers import Fault, TroubledEndpoint
from tests.engines.rows import after, born, fill, removed, row

A = ("job", "a")
LONG = 60.0
TRANSACTION = "TransactWriteItems"
HANGS: list[Fault] = ["hang"] * 30


def told(results: Sequence[Result]) -> list[str]:
    """Results as words, failures by whether they may have been applied."""
    return [result.outcome if isinstance(result, StateError) else str(result) for result in results]


class Slow:
    """Calls of an engine, of which the replies to some transactions come only when their commit's time is over."""

    def __init__(self, engine: DynamodbEngine, late: int) -> None:
        self._real = engine._calls.call
        self._late = late
        self.sent: list[float] = []
        """When each transaction had to be over, by the clock of the loop."""
        engine._calls.call = self._call  # type: ignore[method-assign]

    async def _call(self, operation: str, request: dict[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        if operation != TRANSACTION:
            return await self._real(operation, request, seconds=seconds)
        assert seconds is not None
        over = asyncio.get_running_loop().time() + seconds
        self.sent.append(over)
        reply = await self._real(operation, request)
        if len(self.sent) == self._late:
            while (left := over - asyncio.get_running_loop().time()) >= 0:
                await asyncio.sleep(left)
        return reply


def following_units(first: Row, count: int) -> list[Unit]:
    units: list[Unit] = []
    for _ in range(count):
        write = after(first)
        units.append((write,))
        first = write.row
    return units


# --- one deadline ----------------------------------------------------------------------------------------------------


async def test_units_that_follow_each_other_share_one_deadline_and_what_is_left_is_not_sent(place: Place):
    async with place.opened(timeout_seconds=2.0) as engine:
        (a,) = await fill(engine, [row("a")])
        slow = Slow(engine, late=2)
        results = told(await engine.commit(following_units(a, 5)))
        assert results[:3] == ["applied", "applied", "not_applied"]
        assert set(results[3:]) == {"conflict"}, "they build on what was not written"
        assert len(slow.sent) == 2
        (stored,) = await engine.get([A])
        assert stored is not None
        assert stored.revision == 3
        assert [entry.row.revision for entry in await whole_log(engine)] == [1, 2, 3]


async def test_a_unit_that_waited_for_a_connection_too_long_is_not_sent(place: Place):
    async with place.opened(timeout_seconds=2.0, connections=1) as engine:
        await fill(engine, [row("x")])
        slow = Slow(engine, late=1)
        assert sorted(told(await engine.commit([born("a"), born("b")]))) == ["applied", "not_applied"]
        assert len(slow.sent) == 1
        assert len(await whole_log(engine)) == 2


async def test_a_commit_for_those_who_have_waited_before_is_not_sent_when_no_time_is_left(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("x")])
        slow = Slow(engine, late=0)
        assert told(await engine.commit_within([born("a")], 0.0)) == ["not_applied"]
        assert slow.sent == []
        assert await engine.commit([born("a")]) == ["applied"]


async def test_a_unit_that_waits_for_room_in_the_log_is_refused_in_time(place: Place):
    async with place.opened(timeout_seconds=2.0) as engine:
        lane = engine._life.holding.lane
        taken = [await lane.take(1) for _ in range(lanes.WINDOW)]
        assert told(await asyncio.wait_for(engine.commit([born("a")]), LONG)) == ["not_applied"]
        for number in reversed(taken):
            lane.give_back(number, 1)
        assert await engine.commit([born("a")]) == ["applied"]


async def test_what_goes_before_a_transaction_takes_of_its_time(place: Place, troubled: TroubledEndpoint):
    """Hints there is no room for in the transaction hang: nothing is committed, and that is known."""
    labels = tuple((f"name-{number:03}", "value") for number in range(120))
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        await fill(engine, [row("x")])
        sent = troubled.counts[TRANSACTION]
        troubled.only = frozenset({"BatchWriteItem"})
        troubled.next(*HANGS)
        assert told(await asyncio.wait_for(engine.commit([born("a", labels=labels)]), LONG)) == ["not_applied"]
        assert troubled.counts[TRANSACTION] == sent
        troubled.calm()
        assert await engine.commit([born("a", labels=labels)]) == ["applied"]
        assert [entry.row.id for entry in await whole_log(engine)] == ["x", "a"]


@pytest.mark.parametrize("hanging", ["BatchGetItem", "PutItem"])
async def test_what_has_to_be_known_before_a_commit_takes_of_its_time(
    place: Place, troubled: TroubledEndpoint, hanging: str
):
    """The state a write builds on is read; a kind is named before its first record."""
    async with place.opened() as other, place.opened(endpoint=troubled.url, timeout_seconds=1.5) as engine:
        (a,) = await fill(other, [row("a")])
        troubled.only = frozenset({hanging})
        troubled.next(*HANGS)
        unit = (after(a),) if hanging == "BatchGetItem" else born("new", kind="kv")
        with pytest.raises(Unavailable) as why:
            await asyncio.wait_for(engine.commit([unit]), LONG)
        assert why.value.outcome == "not_applied"
        assert troubled.counts[TRANSACTION] == 0


def test_the_time_a_commit_may_take_is_its_deadline_and_finding_out(place: Place):
    assert place.engine(timeout_seconds=3.0).commit_seconds == 3.0 + committing.FIND_OUT_SECONDS


# --- tries that may have been applied --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refused", [InvalidRequest(TRANSACTION, "ValidationException", ""), NoSuchTable("jobs")], ids=["invalid", "gone"]
)
@pytest.mark.parametrize("came_through", [True, False])
async def test_a_refusal_after_a_try_that_may_have_been_applied_is_asked_about(
    place: Place, refused: Failed, *, came_through: bool
):
    async with place.opened() as engine:
        await fill(engine, [row("x")])
        real, number = engine._calls.call, engine._life.holding.lane.end + 1
        refused.unsure = True

        async def call(operation: str, request: dict[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
            if operation != TRANSACTION:
                return await real(operation, request, seconds=seconds)
            if came_through:
                await real(operation, request, seconds=seconds)
            raise refused

        engine._calls.call = call  # type: ignore[method-assign]
        assert told(await engine.commit([born("a")])) == ["applied" if came_through else "not_applied"]
        engine._calls.call = real  # type: ignore[method-assign]
        assert engine._life.holding.lane.end == number, "the number is not given out again"
        assert await engine.commit([born("b")]) == ["applied"]
        names = ["x", "a", "b"] if came_through else ["x", "b"]
        assert [entry.row.id for entry in await whole_log(engine)] == names


async def test_a_try_that_comes_late_cannot_undo_that_its_unit_was_refused(place: Place):
    """The first try hangs on its way, the second is refused. What was in its way goes; then the first one comes."""
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(other, [row("a")])
        real, sent = engine._calls.call, []

        async def call(operation: str, request: dict[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
            try:
                return await real(operation, request, seconds=seconds)
            except Cancelled as cancelled:
                cancelled.unsure = True
                sent.append(request)
                raise

        engine._calls.call = call  # type: ignore[method-assign]
        assert await engine.commit([born("a", uid="late")]) == ["conflict"]
        engine._calls.call = real  # type: ignore[method-assign]
        assert await other.commit([(removed(a),)]) == ["applied"]
        (late,) = sent
        with pytest.raises(Cancelled):
            await real(TRANSACTION, late)
        assert await other.get([A]) == [None]
        assert await engine.commit([born("b")]) == ["applied"]
        assert sorted(entry.row.id for entry in await whole_log(other)) == ["a", "b"]


# --- lanes -----------------------------------------------------------------------------------------------------------


async def test_no_number_is_given_out_behind_those_that_are_made_void():
    """Of a slot of many items that came to nothing only the first number may be taken, by a void one."""
    lane = OwnLane(LaneState(1, "holder", 1, 0, 0, 0, 0))
    stored = await lane.take(MOST_PARTS)
    lane.done(stored, MOST_PARTS)
    highest = stored
    for _ in range(2 * lanes.SEALED):
        taking = asyncio.create_task(lane.take(1))
        await asyncio.sleep(0)
        if not taking.done():
            taking.cancel()
            break
        highest = taking.result()
    assert lanes.WINDOW < highest <= stored + lanes.SEALED


async def test_a_slot_in_a_lane_that_was_lost_is_not_kept_twice(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a")])
        life = engine._life
        tail = life.tails.lanes[life.holding.lane.number]
        slot, kept = tail.kept(0), tail.bytes
        assert slot is not None
        lost = OwnLane(LaneState(life.holding.lane.number, "", 1, 0, 0, 0, 0))
        life._wrote(lost, slot)
        assert tail.bytes == kept > 0


# --- beginning anew --------------------------------------------------------------------------------------------------


async def nothing() -> AsyncIterator[list[Row]]:
    yield [row("loaded")]


async def holders(engine: DynamodbEngine) -> list[str]:
    seen = await engine._opened.registry.look()  # type: ignore[union-attr]
    return [lane.holder for lane in seen.lanes.values() if lane.holder]


async def test_two_that_begin_anew_at_once_begin_one_life(place: Place):
    async with place.opened() as one, place.opened() as two:
        await in_haste(two).load(nothing())
        here = one._opened
        assert here is not None
        await asyncio.gather(*(here.begin_anew() for _ in range(3)))
        assert sorted(await holders(one)) == sorted(each._life.holding.holder for each in (one, two))
        assert here.life.epoch == two.epoch


async def test_a_life_that_could_not_begin_leaves_its_lane(place: Place, monkeypatch: pytest.MonkeyPatch):
    async with place.opened() as one, place.opened() as two:
        await in_haste(two).load(nothing())
        here, begin = one._opened, Following.begin
        assert here is not None

        async def fails(_self: Following) -> None:
            raise Unavailable("away")

        monkeypatch.setattr(Following, "begin", fails)
        with pytest.raises(Unavailable):
            await here.begin_anew()
        monkeypatch.setattr(Following, "begin", begin)
        assert await holders(one) == [two._life.holding.holder]
        await here.begin_anew()
        assert len(await holders(one)) == 2


async def test_an_engine_that_loaded_and_could_not_begin_anew_serves_nothing_until_it_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engines, "FIRST_ANEW_SECONDS", 0.01)
    async with place.opened() as engine:
        here, began = engine._opened, asyncio.Event()
        assert here is not None
        engine.began_anew, real, before = began.set, here.begin_anew, engine.epoch
        failures = [Unavailable("away")] * 2

        async def begin_anew() -> None:
            if failures:
                raise failures.pop()
            await real()

        here.begin_anew = begin_anew  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="away") as raised:
            await engine.load(nothing())
        assert raised.value.outcome == "unknown"
        with pytest.raises(Unavailable, match="replaced"):
            await engine.commit([born("a")])
        await asyncio.wait_for(began.wait(), LONG)
        assert engine.epoch != before
        assert await engine.commit([born("a")]) == ["applied"]
        assert [entry.row.id for entry in await whole_log(engine)] == ["a"]
