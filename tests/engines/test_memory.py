"""What only the memory engine does: its log is bounded by itself, rows that leave it are packed, and its indexes are
made while others write, and can be made again."""

from __future__ import annotations

import asyncio
import random

import pytest

from statesvc.backends import memory, packed, sorted_places
from statesvc.backends.memory import MemoryEngine
from statesvc.backends.ordering import change
from statesvc.backends.port import LogKept, Query, Row, Unit
from statesvc_client.errors import Gone
from tests.engines.rows import after, born, buried, fill, hidden, removed, row


async def changed(engine: MemoryEngine, name: str, times: int) -> None:
    (last,) = await fill(engine, [row(name)])
    for _ in range(times - 1):
        step = after(last)
        assert await engine.commit([(step,)]) == ["applied"]
        last = step.row


async def test_the_log_keeps_so_many_entries_and_the_history_with_it(monkeypatch):
    monkeypatch.setattr(memory, "LOG_ENTRIES", 10)
    engine = MemoryEngine()
    await changed(engine, "a", 25)
    await changed(engine, "b", 4)
    log = await engine.read_log("", 100)
    assert [(entry.row.id, entry.row.revision) for entry in log] == [
        *(("a", number) for number in range(20, 26)),
        *(("b", number) for number in range(1, 5)),
    ]
    assert await engine.history(("job", "a"), "", 100) == log[:6]
    assert await engine.read_log("19", 100) == log
    with pytest.raises(Gone):
        await engine.read_log("18", 100)
    assert await engine.check() == []
    await changed(engine, "c", 10)
    assert await engine.history(("job", "a"), "", 100) == []
    assert len(engine._log._of_record) == 1
    assert await engine.check() == []


async def test_the_log_keeps_so_many_bytes(monkeypatch):
    monkeypatch.setattr(memory, "LOG_BYTES", 1000)
    engine = MemoryEngine()
    await changed(engine, "a", 100)
    assert 0 < engine.measures()["logBytes"] <= 1000
    assert engine.measures()["logEntries"] == len(await engine.read_log("", 1000)) < 50
    assert await engine.check() == []


async def test_a_record_that_changes_all_the_time_does_not_pile_up(monkeypatch):
    monkeypatch.setattr(memory, "LOG_ENTRIES", 10)
    engine = MemoryEngine()
    (last,) = await fill(engine, [row("a")])
    for number in range(500):
        step = after(last)
        await engine.commit([(step,)])
        last = step.row
        assert len(await engine.history(("job", "a"), "", 100)) == min(number + 2, 10)
    assert len(engine._log._of_record["job", "a"]) <= 2 * 10 + 1


async def test_what_was_removed_before_anybody_asked_is_nobodys_history():
    engine = MemoryEngine()
    await changed(engine, "a", 3)
    (stored,) = await engine.get([("job", "a")])
    assert stored is not None
    await engine.commit([(removed(stored),)])
    await engine.commit([born("a")])
    assert len(await engine.history(("job", "a"), "", 100)) == 1
    assert await engine.check() == []


async def test_histories_are_brought_up_to_date_in_pieces_while_others_write(monkeypatch):
    monkeypatch.setattr(memory, "MOST_UNINDEXED", 5)
    engine = MemoryEngine()
    await changed(engine, "a", 40)
    asking = asyncio.create_task(engine.history(("job", "a"), "", 100))
    await asyncio.sleep(0)
    assert not asking.done()
    assert 0 < engine._log._noted < engine._log.end
    (stored,) = await engine.get([("job", "a")])
    assert stored is not None
    await engine.commit([(removed(stored),)])
    await changed(engine, "a", 30)
    assert [entry.row.revision for entry in await asking] == list(range(1, 31))
    assert await engine.check() == []
    await changed(engine, "b", 60)
    assert engine._log.end - engine._log._noted <= 2 * 5
    assert len(await engine.history(("job", "b"), "", 100)) == 60


async def test_more_changes_than_may_wait_are_put_into_the_indexes(monkeypatch):
    monkeypatch.setattr(memory, "MOST_UNINDEXED", 5)
    engine = MemoryEngine()
    every = Query(kind="job", limit=100)
    assert await engine.query(every) == []
    for number in range(12):
        await engine.commit([born(f"n{number}")])
        assert len(engine._unindexed) <= 5 + 1
    assert len(await engine.query(every)) == 12
    assert await engine.check() == []


async def test_cutting_takes_small_steps(monkeypatch):
    monkeypatch.setattr(memory, "CUT_ENTRIES", 7)
    engine = MemoryEngine()
    await changed(engine, "a", 30)
    steps = 1
    while await engine.compact(LogKept(since=1 << 62, most_bytes=1 << 40)):
        steps += 1
    assert steps == 5
    assert await engine.read_log("", 10) == []


async def test_a_wrong_index_is_named_and_made_again():
    engine = MemoryEngine()
    rows = await fill(engine, [row("a"), row("b")])
    whole = Query(kind="job", limit=9, sort="id", descending=False)
    assert await engine.query(whole) == rows
    engine._indexes["job", "sort", "id"].replace([change(rows[0], None)])
    assert await engine.check() == ["the index job sort id differs from the records"]
    assert await engine.repair() == ["made the index job sort id again"]
    assert await engine.query(whole) == rows
    assert await engine.check() == []


async def test_cursors_of_before_a_load_are_gone():
    engine = MemoryEngine()
    await changed(engine, "a", 3)
    old = await engine.position()

    async def nothing():
        yield [row("x")]

    await engine.load(nothing())
    with pytest.raises(Gone):
        await engine.read_log(old, 10)


async def test_a_removed_record_leaves_nothing_behind():
    engine = MemoryEngine()
    (a,) = await fill(engine, [row("a")])
    await engine.query(Query(kind="job", limit=9))
    assert await engine.commit([(removed(a),)]) == ["applied"]
    assert not engine._rows.of_kind
    assert not engine._log._of_record
    assert await engine.query(Query(kind="job", limit=9)) == []
    assert not any(index.content() for index in engine._indexes.values())


# --- rows that have left the log -------------------------------------------------------------------------------------


async def test_a_row_that_leaves_the_log_is_packed_and_reads_the_same(monkeypatch):
    monkeypatch.setattr(memory, "LOG_ENTRIES", 3)
    engine = MemoryEngine()
    rows = await fill(engine, [row(f"n{number}", status="a", labels=(("k", "v"),)) for number in range(10)])
    kept = engine._rows.of_kind["job"]
    assert [isinstance(kept[each.id], bytes) for each in rows] == [True] * 7 + [False] * 3
    assert [engine.peek(each.key) for each in rows] == rows == await engine.get([each.key for each in rows])
    assert await engine.query(Query(kind="job", sort="id", descending=False, limit=100)) == rows
    assert [each async for some in (await engine.dump()).rows for each in some] == rows
    step = after(rows[0], status="b")
    assert await engine.commit([(after(rows[0]),), (after(rows[0]),)]) == ["applied", "conflict"]
    assert engine.peek(("job", "n0")) != step.row
    assert await engine.check() == []


async def test_a_log_that_is_cut_packs_what_it_held():
    engine = MemoryEngine()
    (a,) = await fill(engine, [row("a")])
    assert engine.peek(a.key) is a
    assert not await engine.compact(LogKept(since=1 << 62, most_bytes=1 << 40))
    assert isinstance(engine._rows.of_kind["job"]["a"], bytes)
    assert engine.peek(a.key) == a


# --- indexes that are made while others write ------------------------------------------------------------------------

WALKS = [
    Query(kind="job", limit=1000),
    Query(kind="job", limit=1000, descending=False, term=("status", "a", "b")),
    Query(kind="job", limit=1000, term=("node", "")),
    Query(kind="job", limit=1000, term=("label:k", "x", "y")),
    Query(kind="job", limit=1000, term=("label:", "leased", "owned")),
    Query(kind="job", limit=1000, sort="priority"),
    Query(kind="job", limit=1000, sort="priority", missing=True, descending=False),
    Query(kind="job", limit=1000, sort="deleted"),
    Query(kind="job", limit=1000, sort="id", low="n2", high="n6"),
]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound so low that a few records reach it."""
    monkeypatch.setattr(memory, "LOG_ENTRIES", 5)
    monkeypatch.setattr(memory, "FILL_ROWS", 3)
    monkeypatch.setattr(memory, "MOST_UNINDEXED", 4)
    monkeypatch.setattr(packed, "MOST_BUILT", 3)
    monkeypatch.setattr(sorted_places, "RUN_PLACES", 3)


class AnyWrites:
    """Units that follow what is stored, each another way."""

    def __init__(self, engine: MemoryEngine, chance: random.Random) -> None:
        self._engine, self._chance = engine, chance

    def unit(self) -> Unit:
        chance, id = self._chance, f"n{self._chance.randrange(40)}"
        stored = self._engine.peek(("job", id))
        if stored is None:
            return born(id, **self._keys())
        if stored.deleted:
            return (removed(stored) if chance.random() < 0.5 else after(stored, **self._keys()),)
        return (chance.choice([after(stored, **self._keys()), buried(stored), hidden(stored, **self._keys())]),)

    def _keys(self) -> dict[str, object]:
        some = self._chance.choice
        return {
            "created": some([1, 2, 3]), "status": some(["a", "b", None]), "node": some(["m", None]),
            "priority": some([None, 1, 2.5]),
            "labels": some([(), (("k", "x"),), (("", "leased"), ("", "owned"), ("k", "y"))]),
        }  # fmt: skip

    async def some(self, count: int) -> None:
        for _ in range(count):
            assert await self._engine.commit([self.unit()]) == ["applied"]


async def as_if_new(engine: MemoryEngine, query: Query) -> list[Row]:
    """What an engine answers that was given the rows just now."""
    fresh = MemoryEngine()
    await fresh.load((await engine.dump()).rows)
    return await fresh.query(query)


@pytest.mark.parametrize("seed", range(12))
async def test_an_index_made_while_others_write_has_everything_once(monkeypatch, seed):
    small(monkeypatch)
    engine, chance = MemoryEngine(), random.Random(seed)
    writes = AnyWrites(engine, chance)
    await writes.some(80)
    for query in chance.sample(WALKS, len(WALKS)):
        asked = asyncio.create_task(engine.query(query))
        turns = 0
        while not asked.done():
            await writes.some(chance.randrange(6))
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2 or query.sort == "created"
        assert await engine.query(query) == await as_if_new(engine, query)
        assert await engine.count(query) == len(await engine.query(query))
        assert {each.id for each in await asked} <= {f"n{number}" for number in range(40)}
    await writes.some(50)
    for query in WALKS:
        assert await engine.query(query) == await as_if_new(engine, query)
        assert await engine.count(query) == len(await engine.query(query))
    assert await engine.check() == []


async def test_a_query_sees_what_was_committed_while_it_waited_for_its_index(monkeypatch):
    monkeypatch.setattr(memory, "FILL_ROWS", 3)
    engine = MemoryEngine()
    await fill(engine, [row(f"n{number}", status="a") for number in range(20)])
    asked = asyncio.create_task(engine.query(Query(kind="job", limit=100, term=("status", "a"))))
    await asyncio.sleep(0)
    await engine.commit([born("new", status="a")])
    assert "new" in {each.id for each in await asked}


async def test_an_index_is_made_once_for_all_who_ask(monkeypatch):
    monkeypatch.setattr(memory, "FILL_ROWS", 3)
    engine = MemoryEngine()
    await fill(engine, [row(f"n{number}", status="a") for number in range(20)])
    query = Query(kind="job", limit=100, term=("status", "a"))
    asked = [asyncio.create_task(engine.query(query)) for _ in range(5)]
    await asyncio.sleep(0)
    asked[0].cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [len(rows) for rows in found[1:] if isinstance(rows, list)] == [20] * 4
    assert engine._filling is None
    assert await engine.check() == []


async def test_an_index_is_finished_though_writing_never_ends(monkeypatch):
    monkeypatch.setattr(memory, "FILL_ROWS", 3)
    engine = MemoryEngine()
    await fill(engine, [row(f"n{number}", created=1) for number in range(20)])
    asked = asyncio.create_task(engine.query(Query(kind="job", limit=10_000, term=("node", ""))))
    made = 0
    while not asked.done():
        await engine.commit([born(f"m{made + each}", created=2 + made + each) for each in range(10)])
        made += 10
        assert made < 1000
        await asyncio.sleep(0)
    assert await engine.check() == []


async def test_rows_replaced_while_an_index_is_made_are_those_it_has(monkeypatch):
    monkeypatch.setattr(memory, "FILL_ROWS", 3)
    engine = MemoryEngine()
    await fill(engine, [row(f"n{number}", status="a") for number in range(20)])

    async def others():
        yield [row(f"other{number}", status="a") for number in range(7)]

    asked = asyncio.create_task(engine.query(Query(kind="job", limit=100, term=("status", "a"))))
    await asyncio.sleep(0)
    await engine.load(others())
    assert {each.id for each in await asked} == {f"other{number}" for number in range(7)}
    assert await engine.check() == []


async def test_the_indexes_of_a_record_share_its_place(monkeypatch):
    monkeypatch.setattr(memory, "LOG_ENTRIES", 3)
    engine = MemoryEngine()
    old = await fill(engine, [row(f"n{number}", created=1000 + number, status="a", node="m") for number in range(8)])
    shared = [
        Query(kind="job", limit=9),
        *(Query(kind="job", limit=9, term=term) for term in (("status", "a"), ("node", "m"))),
    ]
    for query in shared:
        await engine.query(query)
    new = await fill(engine, [row("new", created=2000, status="a", node="m")])
    moved = after(old[0], created=1000, status="b", node="m")
    await engine.commit([(moved,)])
    for query in shared:
        await engine.query(query)
    for each in [*old, *new]:
        places = [
            place
            for index in engine._indexes.values()
            for found in index.content().values()
            for place in found
            if place[-1] == each.id
        ]
        assert len(places) == 3
        assert len({id(place) for place in places}) == 1
