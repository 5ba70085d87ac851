"""A record that is there is never taken for absent, and one that is not is no longer looked for on the disk."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from statesvc.backends.port import Event, Write
from statesvc.backends.sqlite import SqliteEngine, presence
from statesvc.backends.sqlite import engine as engine_module
from statesvc.backends.sqlite.presence import Filter
from tests.engines.rows import after, buried, commit, removed, row
from tests.sqlite.filling import change, create, opened


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """The filter is made after a few looks in vain, in small steps."""
    monkeypatch.setattr(presence, "MISSES", 4)
    monkeypatch.setattr(presence, "STEP_KEYS", 7)


def begun(engine: SqliteEngine) -> asyncio.Task[None]:
    """Look for what is not there until the filter is being made, whatever was looked for before."""
    engine._presence.forget()
    forgotten(engine)
    for number in range(presence.MISSES):
        assert engine.peek(("job", f"nobody-{number}")) is None
    walk = engine._presence._walk
    assert walk is not None
    return walk


async def made(engine: SqliteEngine) -> None:
    await begun(engine)
    assert engine._presence._filter is not None


async def settled(engine: SqliteEngine) -> Filter:
    """The filter in force, once none is in the making."""
    while engine._presence._walk is not None:
        await asyncio.wait([engine._presence._walk])
        await asyncio.sleep(0)
    assert engine._presence._filter is not None
    return engine._presence._filter


def forgotten(engine: SqliteEngine) -> None:
    """Only the disk and the filter are left to answer."""
    engine._cache.young.clear()
    engine._cache._old.clear()


def test_a_filter_knows_every_key_it_was_given_and_few_others():
    given = [("job", f"job-{number}") for number in range(20_000)]
    filter_ = Filter(presence.SMALLEST)
    filter_.add(given)
    assert not any(map(filter_.lacks, given))
    others = sum(not filter_.lacks(("job", f"other-{number}")) for number in range(20_000))
    assert others < 200


def test_a_filter_laid_over_another_has_the_keys_of_both():
    one, two = Filter(presence.SMALLEST), Filter(presence.SMALLEST)
    one.add([("job", "a")])
    two.add([("job", "b")])
    one.lay_over(two)
    assert not one.lacks(("job", "a"))
    assert not one.lacks(("job", "b"))
    assert one.keys == 2


def test_a_filter_laid_over_a_smaller_one_loses_no_key(monkeypatch):
    monkeypatch.setattr(presence, "SLICE_BYTES", 64)
    given = [("job", f"job-{number}") for number in range(500)]
    small, large = Filter(9), Filter(14)
    large.add(given)
    small.lay_over(large)
    assert not any(map(small.lacks, given))
    assert small.keys == 500
    assert any(small.lacks(("job", f"other-{number}")) for number in range(500))


async def test_what_was_there_and_what_comes_is_found_and_the_rest_not_looked_for(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        before = [f"before-{number}" for number in range(50)]
        await create(engine, before)
        await made(engine)
        await create(engine, ["since"])
        await engine.check()  # applied
        forgotten(engine)
        for name in (*before, "since"):
            assert engine.peek(("job", name)) is not None, name
        monkeypatch.setattr(engine, "_read_row", None)
        assert engine.peek(("job", "never")) is None


async def test_what_is_committed_during_the_walk_is_not_missed(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, [f"before-{number}" for number in range(50)])
        walk = begun(engine)
        names: list[str] = []
        while not walk.done():
            names.append(f"0-during-{len(names)}")  # sorts before what the walk has come to
            await create(engine, names[-1:])
        assert names
        await engine.check()
        forgotten(engine)
        assert all(engine.peek(("job", name)) is not None for name in names)


async def test_a_tombstone_is_still_found_and_a_removed_record_can_be_made_again(tmp_path):
    async with opened(tmp_path) as engine:
        first, second = await create(engine, ["first", "second"])
        await made(engine)
        await commit(engine, [(buried(first),), (removed(second),)])
        assert await engine.check() == []
        forgotten(engine)
        grave = engine.peek(first.key)
        assert grave is not None
        assert grave.deleted
        assert engine.peek(second.key) is None
        assert await commit(engine, [(Write(row("second"), None, Event("created", 1)),)]) == ["applied"]
        assert await engine.check() == []


async def test_a_full_filter_makes_way_for_a_larger_one(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "SMALLEST", 6)
    async with opened(tmp_path) as engine:
        await made(engine)
        names = [f"job-{number}" for number in range(100)]
        for start in range(0, 100, 10):
            await create(engine, names[start : start + 10])
            larger = await settled(engine)
        assert larger.size > 6
        await engine.check()
        forgotten(engine)
        assert all(engine.peek(("job", name)) is not None for name in names)


async def test_changes_of_what_is_there_do_not_fill_the_filter(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "SMALLEST", 6)
    async with opened(tmp_path) as engine:
        await made(engine)
        (newest,) = await create(engine, ["one"])
        for _ in range(100):
            write = after(newest)
            assert await commit(engine, [(write,)]) == ["applied"]
            newest = write.row
        filter_ = await settled(engine)
        assert (filter_.size, filter_.keys) == (6, 1)


async def test_records_that_came_and_went_leave_a_filter_as_small_as_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "SMALLEST", 6)
    async with opened(tmp_path) as engine:
        (stays,) = await create(engine, ["stays"])
        await made(engine)
        for number in range(200):
            (comes,) = await create(engine, [f"job-{number}"])
            assert await commit(engine, [(removed(comes),)]) == ["applied"]
            filter_ = await settled(engine)
        assert filter_.size == 6
        forgotten(engine)
        assert engine.peek(stays.key) is not None


async def test_the_largest_filter_is_made_anew_when_most_of_its_keys_came_since(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "SMALLEST", 6)
    monkeypatch.setattr(presence, "LARGEST", 6)
    async with opened(tmp_path) as engine:
        rows = await create(engine, [f"job-{number}" for number in range(400)])
        await made(engine)
        full = await settled(engine)
        await commit(engine, [(removed(each),) for each in rows[4:]])
        await create(engine, ["since"])
        assert await settled(engine) is full, "it may be full from its beginning: that alone is no reason"
        for number in range(400):
            await create(engine, [f"job-{number}-again"] if number < 4 else [f"new-{number}"])
        assert await settled(engine) is not full
        await engine.check()
        forgotten(engine)
        assert engine.peek(("job", "since")) is not None
        assert engine.peek(rows[0].key) is not None


async def test_what_a_repair_brings_back_before_it_fails_is_found(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        await create(engine, ["a", "b"])
    change(tmp_path / "state.db", "DELETE FROM record WHERE id = 'a'")
    async with opened(tmp_path) as engine:
        truly = engine_module.repaired  # type: ignore[attr-defined]
        looked, go_on = threading.Event(), threading.Event()

        def failing(*arguments: Any) -> list[str]:
            looked.set()
            assert go_on.wait(30)
            truly(*arguments)
            raise OSError("in the middle")

        monkeypatch.setattr(engine_module, "repaired", failing)
        repair = asyncio.create_task(engine.repair())
        await asyncio.to_thread(looked.wait, 30)
        await made(engine)
        assert engine.peek(("job", "a")) is None
        go_on.set()
        with pytest.raises(OSError, match="in the middle"):
            await repair
        assert engine.peek(("job", "a")) is not None


async def test_what_a_repair_brings_back_is_found(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, ["a", "b"])
    change(tmp_path / "state.db", "DELETE FROM record WHERE id = 'a'")
    async with opened(tmp_path) as engine:
        await made(engine)
        assert engine.peek(("job", "a")) is None
        assert await engine.repair()
        assert engine.peek(("job", "a")) is not None
        assert await engine.check() == []


async def test_a_store_that_takes_the_place_of_another_is_looked_at_anew(tmp_path):
    async def pages():
        yield [row("new")]

    async with opened(tmp_path) as engine:
        await create(engine, ["old"])
        await made(engine)
        await engine.load(pages())
        assert engine.peek(("job", "new")) is not None
        assert engine.peek(("job", "old")) is None


async def test_a_store_closed_during_the_walk_is_closed_at_once(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, [f"before-{number}" for number in range(50)])
        begun(engine)
    assert engine._presence._walk is None
