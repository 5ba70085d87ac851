"""What only the memory engine does: its log is bounded by itself, and its indexes can be made again."""

from __future__ import annotations

import pytest

from statesvc.backends import memory
from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import LogKept, Query
from statesvc_client.errors import Gone
from tests.engines.rows import after, fill, removed, row


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
    await changed(engine, "a", 500)
    assert len(engine._log._of_record["job", "a"]) <= 2 * 10 + 1


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
    engine._indexes["job", "sort", "id"].remove(rows[0])
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
    assert not engine._rows
    assert not engine._log._of_record
    assert not any(index.content() for index in engine._indexes.values())
