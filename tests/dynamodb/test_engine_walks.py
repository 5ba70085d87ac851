"""Walks: through the indexes, to the end, with as few calls as can be; and right although indexes lag."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from time import time_ns
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.port import Event, Query, Row, Write, sort_key
from statesvc.backends.port import Place as SortPlace
from tests.dynamodb import servers
from tests.dynamodb.engines import Place, place_at
from tests.dynamodb.servers import Moto, Tables
from tests.engines.rows import after, born, buried, fill, hidden, row
from tests.engines.weak import walk

MANY = 5_000
STATUSES = ("QUEUED", "RUNNING", "COMPLETED", "FAILED")


@pytest.fixture(scope="module")
def lagging() -> Iterator[Moto]:
    with servers.moto() as server:
        yield server


def calls_of(engine: DynamodbEngine) -> dict[str, int]:
    return dict(engine._calls.made)


def since(engine: DynamodbEngine, before: dict[str, int], *besides: str) -> dict[str, int]:
    """Calls made since then, those of the background left out."""
    made = {name: count - before.get(name, 0) for name, count in engine._calls.made.items()}
    return {name: count for name, count in made.items() if count and name not in ("UpdateItem", *besides)}


async def paged(engine: DynamodbEngine, query: Query, limit: int) -> list[Row]:
    found: list[Row] = []
    while True:
        page = await engine.query(replace(query, limit=limit, after=query.after))
        found += page
        if len(page) < limit:
            return found
        query = replace(query, after=SortPlace(sort_key(page[-1], query.sort), page[-1].id))


async def test_a_list_by_status_of_five_thousand_jobs_goes_through_the_index(place: Place):
    chance = random.Random(7)
    rows = [
        row(
            f"job-{number:05}", created=chance.randint(0, 2_000), node=f"n{number % 4}",
            status=STATUSES[0 if number % 50 == 0 else 1 + number % 3],
        )
        for number in range(MANY)
    ]  # fmt: skip
    async with place.opened() as engine:
        for start in range(0, MANY, 500):
            await fill(engine, rows[start : start + 500])
    async with place.opened() as engine:
        for query, page in (
            (Query(kind="job", limit=1, term=("status", "QUEUED")), 100),
            (Query(kind="job", limit=1, term=("status", "RUNNING", "QUEUED"), descending=False), 256),
            (Query(kind="job", limit=1, term=("node", "n3")), 256),
            (Query(kind="job", limit=1), 256),
        ):
            before = calls_of(engine)
            found = await paged(engine, query, page)
            expected = walk(rows, Query(kind="job", limit=MANY, term=query.term, descending=query.descending))
            assert found == expected
            made = since(engine, before)
            values = max(1, len(query.term or ()) - 1)
            pages = len(expected) // page + 1
            assert set(made) == {"Query", "BatchGetItem"}, "no list may scan"
            assert made["BatchGetItem"] <= pages * -(-page // 100) + pages
            assert made["Query"] <= pages * values * 2
            print(query.term, len(found), "jobs in pages of", page, made)
        before = calls_of(engine)
        assert await engine.count(Query(kind="job", limit=100, term=("status", "QUEUED"))) == 100
        assert since(engine, before) == {"Query": 1}
        for sort in ("id", "updated", "status"):
            before = calls_of(engine)
            expected = walk(rows, Query(kind="job", limit=100, sort=sort))
            assert await engine.query(Query(kind="job", limit=100, sort=sort)) == expected
            assert since(engine, before) == {"Query": 1, "BatchGetItem": 1}


async def test_each_operation_costs_the_calls_that_are_promised(place: Place):
    async with place.opened() as engine:
        rows = await fill(
            engine,
            [row(f"job-{number:03}", created=number, ready=f"{number:03}", status="QUEUED") for number in range(120)],
        )

        async def cost(coroutine: Any) -> dict[str, int]:
            before = calls_of(engine)
            await coroutine
            return since(engine, before)

        assert await cost(engine.get([rows[0].key])) == {"BatchGetItem": 1}
        assert await cost(engine.commit([(after(rows[0], labels=(("a", "b"),)),)])) == {"TransactWriteItems": 1}
        assert await cost(engine.commit([(after(row("new")),)])) == {"BatchGetItem": 1}
        assert await cost(engine.commit([born("new")])) == {"TransactWriteItems": 1}
        assert await cost(engine.commit([(hidden(row("new"), token=1),)])) == {"PutItem": 1}
        assert await cost(engine.query(Query(kind="job", limit=100))) == {"Query": 1, "BatchGetItem": 1}
        assert await cost(engine.query(Query(kind="job", limit=16, sort="ready", descending=False))) == {
            "Query": 1,
            "BatchGetItem": 1,
        }
        assert await cost(engine.history(rows[0].key, "", 10)) == {"BatchGetItem": 1}
        cursor = await engine.position()
        assert await cost(engine.read_log(cursor, 10)) == {}, "a look around was just made"
        engine._life.tails.looked_at -= 1
        assert await cost(engine.read_log(cursor, 10)) == {"Query": 1}
        assert await cost(engine.read_log("", 1000)) == {}
        assert await cost(engine.position_for_queries()) == {}
        assert await cost(engine.kinds()) == {"Query": 2, "BatchGetItem": 1}
        assert await cost(engine.kinds()) == {"Query": 1, "BatchGetItem": 1}


async def test_what_a_daemon_committed_is_found_by_its_own_queries_before_the_indexes_show_it(
    lagging: Moto, tables: Tables
):
    lagging.settings(index_lag=30.0)
    try:
        async with place_at(lagging.url, tables, index_lag_seconds=60.0) as place:
            await place.make()
            async with place.opened() as engine, place.opened() as other:
                rows = await fill(engine, [
                    row(
                        f"job-{number}", created=number, status="QUEUED", node="n", owner="o",
                        ready=str(number), due=number, labels=(("x", "y"),),
                    )
                    for number in range(9)
                ])  # fmt: skip
                step, gone = after(rows[0], status="DONE", created=0), buried(rows[1])
                assert await engine.commit([(step,), (gone,)]) == ["applied"] * 2
                now = [step.row, gone.row, *rows[2:]]
                cursor = await other.position()
                await other.get([rows[2].key])
                late = after(rows[2], status="DONE", created=2)
                assert await other.commit([(late,)]) == ["applied"]
                await asyncio.wait_for(engine.log_grew(cursor, 60), 60)
                await engine.read_log(cursor, 10)
                now[2] = late.row
                sorts: tuple[Any, ...] = ("created", "id", "ready", "due", "deleted", "status")
                terms = (
                    ("status", "QUEUED"), ("status", "DONE"), ("status", "DONE", "QUEUED"), ("node", "n"),
                    ("owner", "o"), ("label:x", "y"),
                )  # fmt: skip
                for query in (
                    *[Query(kind="job", limit=99, sort=sort) for sort in sorts],
                    *[Query(kind="job", limit=99, term=term) for term in terms],
                ):
                    assert await engine.query(query) == walk(now, query), query
                    assert await engine.count(query) == len(walk(now, query)), query
                assert await engine.kinds() == ["job"]
                # Where the list may lag, a watch from its place tells what it missed.
                behind = {entry.row.key for entry in await engine.read_log(await engine.position_for_queries(), 100)}
                assert behind == {each.key for each in rows}
    finally:
        lagging.settings()


async def test_a_watch_from_a_list_after_a_start_tells_what_the_list_may_have_missed(lagging: Moto, tables: Tables):
    """The daemon was started a moment after a commit that its indexes do not show yet."""
    async with place_at(lagging.url, tables, index_lag_seconds=60.0) as place:
        await place.make()
        async with place.opened() as engine:
            old = Write(row("old"), None, Event("created", 5))
            fresh = Write(row("fresh"), None, Event("created", time_ns()))
            for write in (old, fresh):
                assert await engine.commit([(write,)]) == ["applied"]
        async with place.opened() as started:
            cursor = await started.position_for_queries()
            assert [entry.row.id for entry in await started.read_log(cursor, 10)] == ["fresh"]
