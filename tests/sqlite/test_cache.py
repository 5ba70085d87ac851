"""The row cache stays within its bound, and never shows an older copy of a row it was given anew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statesvc.backends.port import Key, Row
from statesvc.backends.sqlite.cache import OVERHEAD_BYTES, UNKNOWN, RowCache, cost
from tests.engines.rows import after, commit, removed, row
from tests.sqlite.filling import create, opened

ROWS = 40
"""That a generation has room for."""


@pytest.fixture
def cache() -> RowCache:
    return RowCache(2 * ROWS * cost(row("job-0000")))


def batch(begin: int, end: int, revision: int = 1) -> dict[Key, Row | None]:
    rows = [replace(row(f"job-{number:04}"), revision=revision) for number in range(begin, end)]
    return {each.key: each for each in rows}


def adopt(cache: RowCache, rows: dict[Key, Row | None]) -> None:
    cache.adopt(rows, sum(map(cost, rows.values())))


def held(cache: RowCache) -> int:
    return sum(cost(each) for generation in (cache.young, cache._old) for each in generation.values())


@pytest.mark.parametrize("size", [1, 5, ROWS // 2, ROWS, ROWS + 1, 5 * ROWS])
def test_however_many_rows_come_at_once_the_newest_are_found_and_the_bound_holds(cache, size):
    for begin in range(0, 10 * size, size):
        rows = batch(begin, begin + size)
        adopt(cache, rows)
        newest = list(rows)[-1]
        assert cache.find(newest) == rows[newest]
        assert held(cache) <= 2 * ROWS * cost(row("job-0000"))


@pytest.mark.parametrize("size", [1, ROWS // 2, ROWS, ROWS + 1, 5 * ROWS])
def test_no_older_copy_is_found_once_a_row_came_anew(cache, size):
    for key, each in batch(0, ROWS).items():
        cache.put(key, each)
    anew = batch(0, size, revision=2)
    adopt(cache, anew)
    for key, each in anew.items():
        assert cache.find(key) in (each, UNKNOWN)


def test_what_is_known_to_be_absent_is_told_apart_from_what_is_not_known(cache):
    adopt(cache, {("job", "gone"): None})
    assert cache.find(("job", "gone")) is None
    assert cache.find(("job", "never seen")) is UNKNOWN
    assert cost(None) == OVERHEAD_BYTES


async def test_a_row_the_cache_has_dropped_is_found_where_it_waits_and_then_on_the_disk(tmp_path):
    async with opened(tmp_path, cache_bytes=1, apply_seconds=60) as engine:
        stays, changes, goes = await create(engine, ["stays", "changes", "goes"])
        change = after(changes)
        assert await commit(engine, [(change,), (removed(goes),)]) == ["applied", "applied"]
        assert engine._applying.entries == 5
        assert [engine.peek(each.key) for each in (stays, changes, goes)] == [stays, change.row, None]
        assert await engine.check() == []
        assert engine._applying.entries == 0
        assert [engine.peek(each.key) for each in (stays, changes, goes)] == [stays, change.row, None]


async def test_what_is_committed_is_found_at_once_and_a_removed_record_is_known_to_be_absent(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        stays, goes = await create(engine, ["stays", "goes"])
        change = after(stays)
        assert await commit(engine, [(change,), (removed(goes),)]) == ["applied", "applied"]
        monkeypatch.setattr(engine, "_read_row", None)
        assert [engine.peek(each.key) for each in (stays, goes)] == [change.row, None]
        assert await engine.check() == []
        assert [engine.peek(each.key) for each in (stays, goes)] == [change.row, None]
