"""Lost replies, throttling, what was left unprocessed: nothing is lost, nothing comes twice, every answer is true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from statesvc.backends.dynamodb import committing
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.port import Query, Result, Row
from statesvc_client.errors import Unavailable
from tests.dynamodb.engines import Place, in_order, whole_log
from tests.dynamodb.servers import Fault, TroubledEndpoint
from tests.engines.rows import after, born, by_record, fill, hidden, removed, row

A = ("job", "a")
WRITES = frozenset({"TransactWriteItems", "PutItem", "DeleteItem"})


@pytest.fixture
def troubled(endpoint: str) -> Iterator[TroubledEndpoint]:
    proxy = TroubledEndpoint(endpoint, seed=4)
    proxy.only = WRITES
    yield proxy
    proxy.end()


def many(fault: Fault, count: int) -> list[Fault]:
    return [fault] * count


def told(results: Sequence[Result]) -> list[str]:
    """Results as words, failures by whether they may have been applied."""
    return [result.outcome if isinstance(result, Unavailable) else str(result) for result in results]


# --- one call --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", "fail_after", "lose", "fail", "throttle", "conflict", "garble"])
async def test_a_write_whose_first_try_failed_is_applied_once(place: Place, troubled: TroubledEndpoint, fault: Fault):
    async with place.opened(endpoint=troubled.url) as engine:
        (a,) = await fill(engine, [row("a", labels=(("x", "y"),))])
        troubled.next(fault)
        step = after(a, labels=(("x", "z"),))
        assert await engine.commit([(step,)]) == ["applied"]
        troubled.next(fault)
        assert await engine.commit([born("b")]) == ["applied"]
        assert troubled.faults[fault] == 2
        assert await engine.get([A]) == [step.row]
        assert [entry.row for entry in await whole_log(engine)] == [a, step.row, row("b")]
        assert await engine.check() == []


@pytest.mark.parametrize("fault", ["drop", "fail_after", "lose"])
async def test_a_hidden_write_whose_reply_was_lost_is_known_again(
    place: Place, troubled: TroubledEndpoint, fault: Fault
):
    async with place.opened(endpoint=troubled.url) as engine:
        (a,) = await fill(engine, [row("a")])
        troubled.next(fault)
        step = hidden(a, token=7)
        assert await engine.commit([(step,)]) == ["applied"]
        assert await engine.get([A]) == [step.row]
        troubled.next(fault)
        assert (await engine.commit([(removed(step.row),)]))[0] in ("applied", "unknown")
        assert await engine.get([A]) == [None]


async def test_a_request_that_arrives_a_second_time_long_after_its_answer_changes_nothing(
    place: Place, troubled: TroubledEndpoint
):
    async with place.opened(endpoint=troubled.url) as engine:
        (a,) = await fill(engine, [row("a", labels=(("x", "y"),))])
        troubled.next("twice", "twice", "twice")
        step = after(a, labels=(("x", "z"),))
        for unit in ((step,), (hidden(step.row, token=7),), born("b")):
            assert await engine.commit([unit]) == ["applied"]
        newest = after(hidden(step.row, token=7).row)
        assert await engine.commit([(newest,)]) == ["applied"]
        async with asyncio.timeout(60):
            while troubled.late:
                await asyncio.sleep(0.01)
        assert troubled.faults["twice"] == 3
        assert await engine.get([A, ("job", "b")]) == [newest.row, row("b")]
        assert [entry.row for entry in await whole_log(engine)] == [a, step.row, row("b"), newest.row]
        assert await engine.check() == []


async def test_our_own_write_overtaken_by_another_before_its_reply_is_still_ours(
    place: Place, troubled: TroubledEndpoint
):
    """The reply is lost; another daemon writes the record; then the write is sent again."""
    async with place.opened(endpoint=troubled.url) as engine, place.opened() as other:
        (a,) = await fill(engine, [row("a")])
        troubled.next("drop", *many("throttle", 6))
        step = after(a)
        under_way = asyncio.create_task(engine.commit([(step,)]))
        async with asyncio.timeout(60):
            while await other.get([A]) != [step.row]:
                await asyncio.sleep(0.001)
        assert await other.commit([(after(step.row),)]) == ["applied"]
        assert await under_way == ["applied"]
        assert [entry.row.revision for entry in await whole_log(engine)] == [1, 2, 3]


async def test_a_commit_that_cannot_be_asked_about_in_time_is_settled_by_its_slot(
    place: Place, troubled: TroubledEndpoint
):
    """Replies of the transaction hang; what stands in its slot tells."""
    troubled.only = frozenset({"TransactWriteItems"})
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        await fill(engine, [row("a")])
        troubled.next(*many("hang_after", 30))
        assert await engine.commit([born("b")]) == ["applied"]
        troubled.calm()
        troubled.next(*many("hang", 30))
        assert told(await engine.commit([born("c")])) == ["not_applied"]
        troubled.calm()
        assert await engine.get([("job", "b"), ("job", "c")]) == [row("b"), None]
        assert [entry.row.id for entry in await whole_log(engine)] == ["a", "b"]
        assert await engine.commit([born("c")]) == ["applied"]
        assert [entry.row.id for entry in await whole_log(engine)] == ["a", "b", "c"]


async def test_what_cannot_be_found_out_is_called_unknown_and_found_out_later(
    place: Place, troubled: TroubledEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(committing, "LATER_SECONDS", 0.01)
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        await fill(engine, [row("a")])
        troubled.next("hang_after", *many("hang", 30))
        assert told(await engine.commit([born("b")])) == ["unknown"]
        troubled.calm()
        async with asyncio.timeout(60):
            while len(await whole_log(engine)) < 2:
                await asyncio.sleep(0.01)
        assert await engine.get([("job", "b")]) == [row("b")]
        assert await engine.commit([born("c")]) == ["applied"]
        assert [entry.row.id for entry in await whole_log(engine)] == ["a", "b", "c"]


async def test_an_endpoint_that_is_away_is_unavailable_and_nothing_was_applied(
    place: Place, troubled: TroubledEndpoint
):
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        (a,) = await fill(engine, [row("a")])
        troubled.go_away()
        assert told(await engine.commit([(after(a),)])) == ["not_applied"]
        for refused in (
            engine.get([A]),
            engine.ping(),
            engine.query(Query(kind="job", limit=1)),
        ):
            with pytest.raises(Unavailable) as why:
                await refused
            assert why.value.outcome == "not_applied"
        troubled.come_back()
        assert await engine.get([A]) == [a]
        assert await engine.commit([(after(a),)]) == ["applied"]
        assert [entry.row.revision for entry in await whole_log(engine)] == [1, 2]


async def test_units_that_came_through_are_told_apart_from_those_that_did_not(place: Place, troubled: TroubledEndpoint):
    """Of three commits side by side one finds no room in time: the others are applied, and it surely is not."""
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        a, b, c = await fill(engine, [row("a"), row("b"), row("c")])
        troubled.only = frozenset({"TransactWriteItems"})
        troubled.next("hang", None, None, "hang", "hang", "hang")
        results = told(await engine.commit([(after(each),) for each in (a, b, c)]))
        assert sorted(results) == ["applied", "applied", "not_applied"]
        stored = await engine.get([A, ("job", "b"), ("job", "c")])
        assert [each.revision for each in stored if each] == [1 if each == "not_applied" else 2 for each in results]


async def test_nothing_is_sent_for_a_commit_whose_time_is_over(place: Place, troubled: TroubledEndpoint):
    """The first of three writes to a record takes all the time there is: the others are not even tried."""
    troubled.only = frozenset({"TransactWriteItems"})
    async with place.opened(endpoint=troubled.url, timeout_seconds=1.0) as engine:
        (a,) = await fill(engine, [row("a")])
        steps = [after(a), after(after(a).row), *born("b")]
        troubled.next(*many("hang", 2))
        sent = troubled.counts["TransactWriteItems"]
        results = told(await engine.commit([(step,) for step in steps]))
        assert results[:2] == ["not_applied", "conflict"]
        assert troubled.counts["TransactWriteItems"] - sent == 2
        assert await engine.get([A]) == [a]


# --- much of it ------------------------------------------------------------------------------------------------------


async def write_through(engine: DynamodbEngine, name: str, writes: int) -> Row:
    """Write a record again and again, as the rules would: read, write, and read again after `unknown`."""
    (last,) = [row(name, kind="kv")]
    unit = born(name, kind="kv")
    for revision in range(1, writes + 1):
        while True:
            [result] = told(await engine.commit([unit]))
            (stored,) = await engine.get([("kv", name)])
            if stored is not None and stored.revision == revision:
                break
            assert result != "applied"
        assert stored == unit[0].row
        last, unit = stored, (after(stored),)
    return last


async def test_half_of_the_calls_throttled_and_replies_dropped_loses_and_repeats_nothing(place: Place, endpoint: str):
    proxy = TroubledEndpoint(endpoint, seed=17, throttle=0.4, drop=0.05, fail_after=0.03, lose=0.03, partial=0.05)
    names = [f"kv-{number}" for number in range(6)]
    try:
        async with place.opened(endpoint=proxy.url) as one, place.opened(endpoint=proxy.url) as two:
            engines = [one, two] * 3
            written = await asyncio.gather(
                *(write_through(engine, name, 12) for engine, name in zip(engines, names, strict=True))
            )
            proxy.calm()
            for engine in (one, two):
                assert await engine.get([("kv", name) for name in names]) == written
                log = await whole_log(engine)
                assert in_order(log)
                assert {key: len(told) for key, told in by_record(log).items()} == {("kv", name): 12 for name in names}
                assert await engine.check() == []
            assert {"throttle", "drop"} <= set(proxy.faults)
    finally:
        proxy.end()


async def test_what_was_left_unprocessed_is_asked_for_again(place: Place, endpoint: str):
    proxy = TroubledEndpoint(endpoint, seed=5)
    try:
        async with place.opened(endpoint=proxy.url) as engine:
            rows = await fill(engine, [row(f"job-{number:03}") for number in range(130)])
            proxy.only = frozenset({"BatchGetItem"})
            proxy.next(*many("partial", 6))
            assert await engine.get([each.key for each in rows]) == rows
            assert proxy.faults["partial"] == 6
    finally:
        proxy.end()


async def test_many_new_records_cost_a_call_for_every_twenty_five(place: Place, troubled: TroubledEndpoint):
    async with place.opened(endpoint=troubled.url) as engine:
        before = troubled.counts["TransactWriteItems"]
        names = [f"job-{number:03}" for number in range(200)]
        assert set(await engine.commit([born(name) for name in names])) == {"applied"}
        assert troubled.counts["TransactWriteItems"] - before == 8
        # Some are there already: they are refused, the others come through.
        batch = [born(f"job-{number:03}", uid="late") for number in range(190, 215)]
        assert await engine.commit(batch) == ["conflict"] * 10 + ["applied"] * 15
        assert len(await whole_log(engine)) == 215
        assert await engine.check() == []
