"""The store as a whole: replaced by a load, under other daemons' hands; formats; the companion table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from statesvc.backends.dynamodb import whole
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.layout import meta_key
from statesvc.backends.dynamodb.tables import describe
from statesvc.backends.dynamodb.whole import Whole
from statesvc.backends.port import Query, Row
from statesvc_client.errors import Unavailable
from tests.dynamodb.asking import make_table
from tests.dynamodb.engines import Place, place_at, whole_log
from tests.dynamodb.servers import Tables
from tests.engines.rows import after, commit, fill, row

LONG = 60.0


async def pieces(*rows: Row) -> AsyncIterator[list[Row]]:
    for each in rows:
        yield [each]


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
        await (put if args else empty)(_, *args)  # type: ignore[arg-type]

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
