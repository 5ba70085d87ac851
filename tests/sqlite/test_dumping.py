"""A dump is the store at one moment, whatever is written while it is read; it lets go when it is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from statesvc.backends.port import DataCorrupt, Row
from statesvc.backends.sqlite import SqliteEngine, dumping
from statesvc.backends.sqlite.paths import Paths
from statesvc_client.errors import Internal, StateError
from tests.engines.rows import after, buried, hidden, removed
from tests.sqlite.filling import change, content, create, opened

TABLE_LEAF = 13
"""The first byte of a page that has rows of a table in it."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(dumping, "PAGE_ROWS", 10)


async def test_a_dump_read_under_load_is_the_state_at_its_cursor(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=0.002) as engine:
        rows = await create(engine, [f"job-{number:03d}" for number in range(200)])
        await engine.commit([(buried(rows[0]),)])
        dump = await engine.dump()
        assert (dump.cursor, dump.total) == (await engine.position(), 200)
        seen: dict[tuple[str, str], Row] = {}
        newest = {each.key: each for each in rows}
        async for page in dump.rows:
            seen |= {each.key: each for each in page}
            for each in rows[-20:]:
                write = after(newest[each.key])
                assert await engine.commit([(write,)]) == ["applied"]
                newest[each.key] = write.row
            await create(engine, [f"new-{len(seen)}"])
        assert seen == {each.key: each for each in rows} | {rows[0].key: buried(rows[0]).row}
        assert len(seen) == 200
        for entry in await engine.read_log(dump.cursor, 100_000):
            seen[entry.row.key] = entry.row
        assert seen == await content(engine)


async def test_a_page_in_the_place_of_another_is_noticed_though_it_matches_its_checksum(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"job-{number:03d}" for number in range(300)])
    path = tmp_path / "store" / "state.db"
    whole = path.read_bytes()
    leaves = [place for place in range(4096, len(whole), 4096) if whole[place] == TABLE_LEAF]
    assert len(leaves) > 5
    for to, source in pairwise(leaves):
        path.write_bytes(whole[:to] + whole[source : source + 4096] + whole[to + 4096 :])
        with pytest.raises((Internal, DataCorrupt)):
            async with opened(tmp_path / "store") as engine:
                assert len(await content(engine)) == 300


async def test_what_was_committed_a_moment_ago_is_in_it(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=60) as engine:
        await create(engine, ["a", "b"])
        assert engine.measures()["entriesWaiting"] == 2
        assert len(await content(engine)) == 2


async def test_its_cursor_names_the_newest_entry_that_is_told(tmp_path):
    async with opened(tmp_path / "store") as engine:
        (made,) = await create(engine, ["a"])
        assert await engine.commit([(hidden(made, token=5),)]) == ["applied"]
        dump = await engine.dump()
        assert dump.cursor == await engine.position() == "1"
        assert [each.token async for page in dump.rows for each in page] == [5]


async def test_removed_rows_are_not_in_it(tmp_path):
    async with opened(tmp_path / "store") as engine:
        rows = await create(engine, ["a", "b"])
        await engine.commit([(removed(rows[0]),)])
        assert set(await content(engine)) == {("job", "b")}


def wal_can_be_emptied(engine: SqliteEngine) -> bool:
    db = engine._files.state.db
    db.set_busy_timeout(0)
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


@pytest.mark.parametrize("read", [0, 1, 1000], ids=["not read at all", "given up", "read to its end"])
async def test_a_dump_holds_the_wal_only_until_it_is_closed(tmp_path, read):
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"job-{number:03d}" for number in range(50)])
        dump = await engine.dump()
        await create(engine, ["later"])
        await engine.check()
        assert not wal_can_be_emptied(engine)
        for _ in range(read):
            if await anext(dump.rows, None) is None:
                break
        await dump.rows.aclose()  # type: ignore[attr-defined]
        del dump
        assert wal_can_be_emptied(engine)
        assert not engine._files.state.long_readers


async def test_commits_and_checkpoints_do_not_wait_for_a_dump_nobody_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("statesvc.backends.sqlite.files.Checkpoints.PAGES", 8)
    # Waiting for readers to let go would take this long each time.
    monkeypatch.setattr("statesvc.backends.sqlite.files.BUSY_MILLISECONDS", 100_000)
    async with opened(tmp_path / "store", apply_seconds=0.001) as engine:
        await create(engine, ["first"])
        dump = await engine.dump()
        for number in range(200):
            await create(engine, [f"job-{number:03d}"], pad=2000)
            await engine.ping()
        await engine.check()
        assert [each.id async for page in dump.rows for each in page] == ["first"]


async def test_a_record_that_is_damaged_is_told_and_not_left_out(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["a", "b"])
    change(tmp_path / "store" / "state.db", "UPDATE record SET checksum = checksum + 1 WHERE id = 'b'")
    async with opened(tmp_path / "store") as engine:
        dump = await engine.dump()
        with pytest.raises(Internal, match="checksum"):
            _ = [page async for page in dump.rows]


async def test_closing_the_store_does_not_wait_for_a_dump_that_is_being_opened(tmp_path, monkeypatch):
    opening, may_go_on = threading.Event(), threading.Event()
    look = dumping._refuse_misplaced

    def look_when_told(db: apsw.Connection) -> None:
        opening.set()
        may_go_on.wait(30)
        look(db)

    monkeypatch.setattr(dumping, "_refuse_misplaced", look_when_told)
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["a"])
        dump = asyncio.ensure_future(engine.dump())
        await asyncio.to_thread(opening.wait, 30)
        asyncio.get_running_loop().call_later(0.05, may_go_on.set)
        await engine.close()
        with pytest.raises(StateError):
            async for _ in (await dump).rows:
                pass
    assert not (tmp_path / "store" / "state.db-wal").exists()


class LongLook:
    """A look at the trees of a large store: seconds, if nobody ends it."""

    ROWS = 20_000_000

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.came_to_its_end = False

    def __call__(self, db: apsw.Connection) -> None:
        self.begun.set()
        count = "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n WHERE x < ?) SELECT max(x) FROM n"
        next(db.execute(count, (self.ROWS,)))
        self.came_to_its_end = True


@pytest.fixture
def look(monkeypatch) -> LongLook:
    look = LongLook()
    monkeypatch.setattr(dumping, "_refuse_misplaced", look)
    return look


async def test_closing_the_store_ends_a_look_at_its_trees(tmp_path, look: LongLook):
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["a"])
        dump = asyncio.ensure_future(engine.dump())
        await asyncio.to_thread(look.begun.wait, 30)
        await engine.close()
        with pytest.raises(StateError):
            await dump
    assert not look.came_to_its_end


async def test_a_store_that_closes_before_the_look_at_its_trees_does_not_wait_for_it(
    tmp_path, look: LongLook, monkeypatch
):
    """Nothing is under way then that could be interrupted."""
    newest = dumping._newest_visible

    def newest_while_it_closes(log: Path, upto: int) -> int:
        (view,) = engine._files.state.long_readers
        threading.Thread(target=view.close, daemon=True).start()
        assert view._closing.wait(30)
        return newest(log, upto)

    monkeypatch.setattr(dumping, "_newest_visible", newest_while_it_closes)
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["a"])
        with pytest.raises(StateError):
            await engine.dump()
    assert not look.came_to_its_end


async def test_a_dump_that_is_closed_before_it_begins_ends_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(dumping.OpenDump, "_begin", closed_first(dumping.OpenDump._begin))
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["a"])
        with pytest.raises(StateError):
            await engine.dump()


def closed_first(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_closed(view: dumping.OpenDump, paths: Paths) -> None:
        # As though closing had had the turn just before.
        view._turn.release()
        try:
            view.close()
        finally:
            view._turn.acquire()
        begin(view, paths)

    return begin_closed


async def test_closing_the_store_ends_a_dump_with_an_error(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"job-{number:03d}" for number in range(50)])
        dump = await engine.dump()
        await anext(dump.rows)
    with pytest.raises(StateError):
        await anext(dump.rows)
    assert (tmp_path / "store" / "log.db-wal").exists() is False, "the store was not closed cleanly"


async def test_a_reader_that_is_cancelled_lets_go(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"job-{number:03d}" for number in range(50)])

        async def read() -> None:
            dump = await engine.dump()
            async for _ in dump.rows:
                await asyncio.sleep(60)

        reading = asyncio.create_task(read())
        while not engine._files.state.long_readers:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        del reading
        while engine._files.state.long_readers:
            await asyncio.sleep(0)
        assert wal_can_be_emptied(engine)
