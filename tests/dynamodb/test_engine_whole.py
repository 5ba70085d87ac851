"""The store as a whole: replaced by a load, under other daemons' hands; formats; the companion table."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import msgspec
import pytest

from statesvc.backends.dynamodb import calls, fetching, whole
from statesvc.backends.dynamodb import engine as engines
from statesvc.backends.dynamodb.calls import ConditionFailed, Lost
from statesvc.backends.dynamodb.clock import elapsed
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.layout import meta_key
from statesvc.backends.dynamodb.opening import meta_of
from statesvc.backends.dynamodb.registry import Overtaken, Seen
from statesvc.backends.dynamodb.tables import describe
from statesvc.backends.dynamodb.whole import Whole
from statesvc.backends.port import Query, Row
from statesvc_client.errors import Gone, StateError, Unavailable
from tests.dynamodb.asking import make_table
from tests.dynamodb.engines import Place, in_haste, place_at, whole_log
from tests.dynamodb.servers import Call, Fault, Tables, TroubledEndpoint
from tests.engines.rows import after, born, commit, fill, row

LONG = 60.0


async def pieces(*rows: Row) -> AsyncIterator[list[Row]]:
    for each in rows:
        yield [each]


@asynccontextmanager
async def hearing(engine: DynamodbEngine) -> AsyncIterator[None]:
    """Follow the log meanwhile, as a daemon does: so the engine hears of what others do."""

    async def follow() -> None:
        while True:
            with suppress(StateError):
                await engine.log_grew(await engine.position(), LONG)
            await asyncio.sleep(0.01)

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def is_barred(engine: DynamodbEngine) -> bool:
    try:
        await engine.get([("job", "any")])
    except Unavailable:
        return True
    return False


async def rows_of(engine: DynamodbEngine) -> list[Row]:
    found = [each async for some in (await engine.dump()).rows for each in some]
    return sorted(found, key=lambda each: each.key)


# --- loading ---------------------------------------------------------------------------------------------------------


async def test_another_daemon_notices_that_everything_was_replaced_and_goes_on(place: Place):
    fresh = [row("a", uid="loaded", revision=7, labels=(("x", "y"),)), row("kv-1", kind="kv")]
    async with place.opened() as one, place.opened() as two:
        told = asyncio.Event()
        two.began_anew = told.set
        await fill(one, [row("old"), row("a")])
        before, cursor = two.epoch, await two.position()
        waiting = asyncio.create_task(two.log_grew(cursor, LONG))
        await one.load(pieces(*fresh))
        await asyncio.wait_for(told.wait(), LONG)
        await asyncio.gather(waiting, return_exceptions=True)
        assert two.epoch == one.epoch != before
        for engine in (one, two):
            assert await rows_of(engine) == fresh
            assert await whole_log(engine) == []
        (a,) = await two.get([("job", "a")])
        assert a == fresh[0]
        step = after(a)
        assert await two.commit([(step,)]) == ["applied"]
        assert [entry.row for entry in await whole_log(one)] == [step.row]
        assert await one.check() == await two.check() == []


async def test_while_everything_is_replaced_other_daemons_serve_nothing(place: Place):
    async with place.opened() as one, place.opened() as two:
        await fill(one, [row("old")])
        going, go_on = asyncio.Event(), asyncio.Event()
        finish = Whole.finish

        async def slowly(self: Whole, meta):
            going.set()
            await go_on.wait()
            return await finish(self, meta)

        Whole.finish = slowly  # type: ignore[method-assign]
        try:
            loading = asyncio.create_task(one.load(pieces(row("new"))))
            await going.wait()
            with pytest.raises(Unavailable, match="replaced"):
                await two.position()
            with pytest.raises(Unavailable, match="replaced"):
                await two.get([("job", "old")])
            with pytest.raises(Unavailable, match="replaced"):
                await two.commit([(after(row("old")),)])
            go_on.set()
            await loading
        finally:
            Whole.finish = finish  # type: ignore[method-assign]
        async with asyncio.timeout(LONG):
            while two.epoch != one.epoch:
                await asyncio.sleep(0.01)
        assert await two.get([("job", "old"), ("job", "new")]) == [None, row("new")]


@pytest.mark.parametrize("done", [0, 1, 2])
async def test_a_load_that_was_begun_is_finished_by_whoever_opens_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, done: int
):
    """The daemon dies after it said that a load is to happen: with nothing done, all deleted, or half of it put."""
    fresh = [row(f"job-{number:02}", labels=(("x", "y"),)) for number in range(30)]
    steps = iter(range(3))
    empty, put = Whole._empty, Whole._put

    async def dies(_: Whole, *args: object) -> None:
        if next(steps) == done:
            raise ConnectionError("the daemon is gone")
        await (put if len(args) > 1 else empty)(_, *args)  # type: ignore[arg-type]

    async with place.opened() as engine:
        await fill(engine, [row("old"), row("job-01", uid="before")])
        with monkeypatch.context() as patched:
            patched.setattr(Whole, "_empty", dies)
            patched.setattr(Whole, "_put", dies)
            if done < 2:
                with pytest.raises(ConnectionError):
                    await engine.load(pieces(*fresh))
            else:
                await engine.load(pieces(*fresh))
    with pytest.raises(Unavailable, match="replaced") if done < 2 else nullcontext():
        # While somebody may still be at it, nobody else comes in between.
        async with place.opened():
            pass
    monkeypatch.setattr(whole, "ABANDONED_SECONDS", 0.0)
    async with place.opened() as again:
        assert await rows_of(again) == fresh
        assert await whole_log(again) == []
        assert len(await again.query(Query(kind="job", limit=99, term=("label:x", "y")))) == 30
        assert await commit(again, [(after(fresh[0]),)]) == ["applied"]
        assert await again.check() == []
    left = [item["pk"]["S"] for item in await place.items(place.tables.companion)]
    assert not [pk for pk in left if pk.startswith("s#")]


@pytest.mark.parametrize("begun_by", ["itself", "another that is gone"])
async def test_a_load_that_failed_half_way_is_finished_by_a_daemon_that_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, begun_by: str
):
    fresh = [row("new"), row("kv-1", kind="kv")]
    monkeypatch.setattr(engines, "FIRST_ANEW_SECONDS", 0.01)
    failures, put = [ConnectionError("the network is gone")], Whole._put

    async def fails_once(self: Whole, *args: Any) -> None:
        if failures:
            raise failures.pop()
        await put(self, *args)

    monkeypatch.setattr(Whole, "_put", fails_once)
    async with place.opened() as running, hearing(running):
        told = asyncio.Event()
        running.began_anew = told.set
        await fill(running, [row("old")])
        async with nullcontext(running) if begun_by == "itself" else place.opened() as loader:
            with pytest.raises(ConnectionError):
                await loader.load(pieces(*fresh))
        monkeypatch.setattr(whole, "ABANDONED_SECONDS", 0.0)
        await asyncio.wait_for(told.wait(), LONG)
        assert await rows_of(running) == fresh
        assert await commit(running, [(after(fresh[0]),)]) == ["applied"]
        assert await running.check() == []


@pytest.mark.parametrize(
    ("operation", "trouble"), [("BatchWriteItem", "throttled"), ("PutItem", "throttled"), ("PutItem", "lost")]
)
async def test_a_step_of_a_load_that_is_throttled_for_long_is_tried_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, operation: str, trouble: str
):
    """Each one, of those that put and delete and of those that tell others."""
    monkeypatch.setattr(whole, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(whole, "STEP_SECONDS", 0.0)
    tries: Counter[bytes] = Counter()
    async with place.opened() as engine:
        await fill(engine, [row("old")])
        here = in_haste(engine)._open
        call = here.fetcher.call

        async def reluctantly(asked: str, request: dict[str, Any], **how: Any) -> dict[str, Any]:
            step = msgspec.json.encode(request)
            if asked != operation or here.whole._under_way is None or tries[step] == 2:
                return await call(asked, request, **how)
            tries[step] += 1
            if trouble == "lost":
                with suppress(ConditionFailed):
                    await call(asked, request, **how)
                raise Lost("no reply came")
            raise Unavailable("DynamoDB throttles writes")

        monkeypatch.setattr(here.fetcher, "call", reluctantly)
        await engine.load(pieces(row("new"), row("new", kind="kv")))
        assert len(tries) >= 3
        assert set(tries.values()) == {2}
        assert await rows_of(engine) == [row("new"), row("new", kind="kv")]


@asynccontextmanager
async def cut_off_in_a_load(
    place: Place, endpoint: str, monkeypatch: pytest.MonkeyPatch, lost: int
) -> AsyncIterator[tuple[TroubledEndpoint, DynamodbEngine]]:
    """An engine whose loads lose so many requests when they begin to delete. Its own time for a call is long."""
    monkeypatch.setattr(whole, "PAUSE_SECONDS", 0.01)
    troubles: list[Fault] = ["lose"] * lost
    empty = Whole._empty
    with TroubledEndpoint(endpoint) as proxy:
        async with place.opened(endpoint=proxy.url, timeout_seconds=10 * LONG) as engine:

            async def cut_off(self: Whole, epoch: str) -> None:
                if self is here.whole:
                    proxy.only = frozenset({"BatchWriteItem"})
                    proxy.next(*troubles)
                    proxy.calls.clear()
                await empty(self, epoch)

            here = in_haste(engine)._open
            monkeypatch.setattr(Whole, "_empty", cut_off)
            yield proxy, engine


async def test_nothing_of_a_load_is_sent_when_another_may_have_taken_it_over(
    place: Place, endpoint: str, monkeypatch: pytest.MonkeyPatch
):
    fresh = [row(f"job-{number}", uid="loaded", revision=5) for number in range(3)]
    async with cut_off_in_a_load(place, endpoint, monkeypatch, 10_000) as (proxy, loader):
        await fill(loader, [row(each.id) for each in fresh])
        with monkeypatch.context() as patched:
            patched.setattr(whole, "SENT_SECONDS", 0.5)
            loading = asyncio.create_task(loader.load(pieces(*fresh)))
            async with asyncio.timeout(LONG):
                while Call("BatchWriteItem", "lose") not in proxy.calls:
                    await asyncio.sleep(0.01)
                proxy.only = None
                while Call("PutItem", "lose") not in proxy.calls:
                    await asyncio.sleep(0.01)
        with monkeypatch.context() as patched:
            patched.setattr(whole, "ABANDONED_SECONDS", 0.0)
            other = place.engine()
            await other.open()
        proxy.calm()
        with pytest.raises(Overtaken):
            await loading
        assert await rows_of(other) == fresh
        await other.close()


async def test_nothing_of_a_load_is_sent_after_a_sleep_until_it_was_said_that_it_goes_on(
    place: Place, endpoint: str, monkeypatch: pytest.MonkeyPatch
):
    async with cut_off_in_a_load(place, endpoint, monkeypatch, 1) as (proxy, loader):
        await fill(loader, [row("old")])
        for module in (calls, fetching, whole):
            # The machine sleeps for an hour while a request is lost.
            monkeypatch.setattr(module, "elapsed", lambda: elapsed() + 3600.0 * proxy.faults["lose"])
        await loader.load(pieces(row("new")))
        told = [call for call in proxy.calls if call.operation in {"BatchWriteItem", "PutItem"}]
        lost = told.index(Call("BatchWriteItem", "lose"))
        assert [call.operation for call in told[lost + 1 :]][:2] == ["PutItem", "BatchWriteItem"]
        assert await rows_of(loader) == [row("new")]


async def test_nothing_is_deleted_while_another_daemon_still_commits_or_anybody_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    order, send, empty = [], asyncio.Event(), Whole._empty
    async with place.opened() as one, place.opened() as two, hearing(two):
        await fill(one, [row("old")])
        call = two._calls.call

        async def held_up(operation: str, request: dict[str, Any], **how: Any) -> dict[str, Any]:
            if operation == "TransactWriteItems":
                await send.wait()
                order.append("committed")
            return await call(operation, request, **how)

        async def noted(self: Whole, epoch: str) -> None:
            order.append("deleted")
            for engine in (one, two):
                with pytest.raises(Unavailable, match="replaced"):
                    await engine.get([("job", "old")])
            await empty(self, epoch)

        two._calls.call = held_up  # type: ignore[method-assign]
        monkeypatch.setattr(Whole, "_empty", noted)
        under_way = asyncio.create_task(two.commit([born("late")]))
        loading = asyncio.create_task(one.load(pieces(row("new"))))
        async with asyncio.timeout(LONG):
            while not await is_barred(two):
                await asyncio.sleep(0.01)
        send.set()
        assert await under_way == ["applied"]
        await loading
        assert order == ["committed", "deleted"]
        assert await rows_of(one) == [row("new")]


async def test_a_lane_is_left_when_what_has_no_place_in_it_yet_was_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    order, reading, go_on = [], asyncio.Event(), asyncio.Event()
    async with place.opened() as one, place.opened() as two:
        (old,) = await fill(one, [row("old")])
        call, here, end = two._calls.call, two._open, two._life.holding.end

        async def held_up(operation: str, request: dict[str, Any], **how: Any) -> dict[str, Any]:
            if operation == "BatchGetItem":
                reading.set()
                await go_on.wait()
            reply = await call(operation, request, **how)
            if operation == "TransactWriteItems":
                order.append("committed")
            return reply

        async def noted() -> None:
            order.append("left")
            await end()

        two._calls.call = held_up  # type: ignore[method-assign]
        monkeypatch.setattr(two._life.holding, "end", noted)
        under_way = asyncio.create_task(two.commit([(after(old),)]))
        await reading.wait()
        leaving = asyncio.create_task(here.leave())
        await one.get([old.key])  # meanwhile it would have left
        go_on.set()
        assert await under_way == ["applied"]
        await leaving
        assert order[:2] == ["committed", "left"]


async def test_a_daemon_that_stood_still_while_everything_was_replaced_commits_nothing(place: Place):
    async with place.opened() as one, place.opened() as two:
        await fill(two, [row("old")])
        await in_haste(one).load(pieces(row("new")))
        two._life.tails.looked_at = float("-inf")
        with pytest.raises(Unavailable, match="replaced"):
            await two.commit([born("late")])
        assert await rows_of(one) == [row("new")]


@pytest.mark.parametrize("how_far", ["begun", "done"])
async def test_rows_that_are_being_read_are_gone_when_others_take_their_place(place: Place, how_far: str):
    async with place.opened() as one, place.opened() as two:
        await fill(one, [row("old"), row("old", kind="kv")])
        pages = (await two.dump()).rows
        assert await anext(pages) == [row("old")]
        here, fresh = in_haste(one)._open, pieces(row("new"), row("new", kind="kv"))
        if how_far == "begun":
            await here.whole.begin(fresh, meta_of(await here.registry.look()))
        else:
            await one.load(fresh)
        with pytest.raises(Gone, match="replaced while it was being read"):
            await anext(pages)


async def test_what_another_put_aside_and_never_loaded_goes_with_the_next_load(place: Place):
    await place.put(place.tables.companion, {"pk": {"S": "s#left"}, "sk": {"S": "1"}, "rows": {"B": "c2VjcmV0"}})
    async with place.opened() as engine:
        await engine.load(pieces(row("new")))
    left = [item["pk"]["S"] for item in await place.items(place.tables.companion)]
    assert not [pk for pk in left if pk.startswith("s#")]


async def test_kinds_are_named_anew_when_everything_was_replaced(place: Place):
    async with place.opened() as one, place.opened() as two, hearing(two):
        await fill(two, [row("before", kind="kv")])
        told = asyncio.Event()
        two.began_anew = told.set
        await one.load(pieces(row("new")))
        await asyncio.wait_for(told.wait(), LONG)
        await fill(two, [row("since", kind="kv")])
        async with place.opened() as third:
            assert await third.kinds() == ["job", "kv"]


@pytest.mark.parametrize("who", ["following the log", "listing kinds"])
async def test_a_look_that_lags_behind_a_load_does_not_bring_kinds_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, who: str
):
    async with place.opened() as engine:
        await fill(engine, [row("old"), row("old", kind="kv")])
        registry = engine._open.registry
        before, look = await registry.look(), registry.look
        await in_haste(engine).load(pieces(row("new")))

        async def lags(*, consistent: bool = True) -> Seen:
            return await look() if consistent else before

        with monkeypatch.context() as patched:
            patched.setattr(registry, "look", lags)
            if who == "listing kinds":
                assert await engine.kinds() == ["job"]
            else:
                with pytest.raises(Unavailable, match="replaced"):
                    await engine._life.tails.look(consistent=False)
        async with asyncio.timeout(LONG):
            while await is_barred(engine):
                await asyncio.sleep(0.01)
        await fill(engine, [row("since", kind="kv")])
        async with place.opened() as other:
            assert await other.kinds() == ["job", "kv"]


# --- formats ---------------------------------------------------------------------------------------------------------


async def test_tables_for_newer_versions_are_refused_at_the_start_and_later(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a")])
        await place.change(place.tables.companion, meta_key(), format={"N": "9"}, oldest={"N": "9"})
        with pytest.raises(Unavailable, match="format 9, and this version writes 1; they take 9 or newer"):
            await place.engine().open()
        # One that is open learns of it with its next look, and writes no more.
        await asyncio.gather(engine.position(), return_exceptions=True)
        with pytest.raises(Unavailable, match="format 9"):
            await engine.commit([(after(row("a")),)])
        await place.change(place.tables.companion, meta_key(), oldest={"N": "1"})
    async with place.opened() as again:
        assert await again.get([("job", "a")]) == [row("a")]


# --- the companion ---------------------------------------------------------------------------------------------------


async def test_a_table_of_jobs_is_given_the_companion_that_goes_with_its_name(endpoint: str, tables: Tables):
    async with place_at(endpoint, tables) as place:
        await make_table(place.calls, tables.jobs)
        await place.put(tables.jobs, {"jobId": {"S": "a"}, "jobStatus": {"S": "RUNNING"}})
        with pytest.raises(Unavailable, match=f"no table '{tables.jobs}-mine'"):
            await place.engine(companion_table=f"{tables.jobs}-mine").open()
        assert await describe(place.calls, f"{tables.jobs}-statesvc") is None
        async with place.opened(companion_table="") as engine:
            (a,) = await engine.get([("job", "a")])
            assert a is not None
            assert a.keys.status == "RUNNING"
            await fill(engine, [row("b"), row("c", kind="kv")])
        assert await describe(place.calls, f"{tables.jobs}-statesvc") is not None
        with pytest.raises(Unavailable, match="no table 'elsewhere'"):
            await place.engine(table_name="elsewhere", companion_table="").open()
        assert await describe(place.calls, "elsewhere-statesvc") is None
