"""The state follows the log while commits go on: nothing is looked for that is not there yet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from statesvc.backends.port import DataCorrupt, EngineBroken, Event, Query, Write
from statesvc.backends.sqlite import SqliteEngine, applying
from statesvc.backends.sqlite.cache import cost
from statesvc.backends.sqlite.files import Checkpoints
from statesvc.backends.sqlite.log import PAGE_BYTES, PAGES_BESIDE, Change, LogFile
from statesvc.backends.sqlite.wal import frames
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import Internal, NoSpace, Unavailable
from statesvc_client.wire import Create
from tests.engines.rows import after, buried, commit, fill, row
from tests.sqlite.filling import change, flip, look, opened

AGENT = Caller(said_hello=True)


def create(store: Store, number: int):
    job = {"uuid": f"job-{number:04d}", "labels": {"place": str(number % 5)}}
    return store.write_now(Create(job=job), AGENT)


@pytest.fixture
async def engine(tmp_path):
    """An engine that begins to apply at every opportunity."""
    engine = SqliteEngine(tmp_path / "store", apply_seconds=0.002)
    await engine.open()
    yield engine
    assert engine._broken is None
    await engine.close()


async def test_labels_of_records_whose_commit_is_under_way_wait_for_it(engine):
    store = Store(engine)
    store.start()
    for number in range(400):
        decided = create(store, number)
        if number % 3 == 0:
            await decided.after.wait()
            await asyncio.sleep(0)
    await store.stop()
    for place in range(5):
        rows = await engine.query(Query(kind="job", limit=1000, term=("label:place", str(place)), descending=False))
        assert [row.id for row in rows] == [f"job-{number:04d}" for number in range(place, 400, 5)]
    assert await engine.check() == []


async def test_labels_of_a_record_that_was_refused_leave_nothing_behind(engine, monkeypatch):
    store = Store(engine)
    store.start()

    def full(_changes):
        raise apsw.FullError

    with monkeypatch.context() as disk:
        disk.setattr(engine._files.log, "append", full)
        refused = create(store, 1)
        await refused.after.wait()
        assert isinstance(refused.after.failure, NoSpace)
    decided = create(store, 2)
    await decided.after.wait()
    assert decided.after.failure is None
    assert [row.id for row in await engine.query(Query(kind="job", limit=10, term=("label:place", "2")))] == [
        "job-0002"
    ]
    assert await engine.query(Query(kind="job", limit=10, term=("label:place", "1"))) == []
    await store.stop()


async def test_a_long_wal_is_moved_into_its_file_while_commits_go_on(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(Checkpoints, "PAGES", 50)
    store = Store(engine)
    store.start()
    wal = tmp_path / "store" / "log.db-wal"
    longest = 0
    for number in range(600):
        await create(store, number).after.wait()
        longest = max(longest, wal.stat().st_size)
    await store.stop()
    assert longest < 4 * 50 * 4120, "the WAL grows although nothing holds it"


@pytest.fixture
async def unhurried(tmp_path, monkeypatch):
    """An engine that applies only what somebody waits for, five records at the latest."""
    monkeypatch.setattr(applying, "PACE_BYTES", 5 * cost(row("a0")))
    monkeypatch.setattr(applying, "RETRY_SECONDS", 0.01)
    async with opened(tmp_path, apply_seconds=600) as engine:
        yield engine


async def test_commits_wait_for_the_state_once_much_waits_to_be_applied(unhurried, monkeypatch):
    state, go_on = unhurried._files.state, threading.Event()
    truly = state.apply

    def held_up(*arguments: Any) -> None:
        assert go_on.wait(30)
        truly(*arguments)

    monkeypatch.setattr(state, "apply", held_up)
    await fill(unhurried, [row(f"a{number}") for number in range(5)])
    late = asyncio.create_task(fill(unhurried, [row("late")]))
    while not unhurried._applying._waiters:
        await asyncio.sleep(0)
    assert unhurried.peek(("job", "late")) is None
    go_on.set()
    await late
    assert unhurried._applying.entries == 1


async def test_commits_do_not_wait_for_a_state_that_cannot_follow(unhurried, monkeypatch):
    def full(*_: Any) -> None:
        raise apsw.FullError("disk full")

    with monkeypatch.context() as disk:
        disk.setattr(unhurried._files.state, "apply", full)
        for begin in (0, 5, 10):
            await fill(unhurried, [row(f"a{number}") for number in range(begin, begin + 5)])
        assert unhurried._applying.stuck
        assert unhurried._applying.entries == 15
    while unhurried._applying.stuck:
        await asyncio.sleep(0.001)
    assert await unhurried.check() == []


def test_a_commit_writes_no_more_pages_than_are_reckoned_for_it(tmp_path):
    log = LogFile(tmp_path / "log.db", "FULL", new=True)
    try:
        for number in range(300):
            known, total = frames(log.db), log.total
            body = b"x" * (0, 1, 4100, 50_000, 1_000_000)[number % 5 if number % 50 == 4 else number % 4]
            log.append([Change(Event("created", number), replace(row(f"job-{number}"), body=body))])
            written = frames(log.db) - known
            assert written <= (log.total - total) // PAGE_BYTES + PAGES_BESIDE, len(body)
            if number % 100 == 99:
                log.shorten_wal()
    finally:
        log.close()


async def test_a_record_made_again_and_changed_in_one_batch_leaves_its_tombstone_behind(engine):
    first = row("a", status="QUEUED", ready="1")
    await fill(engine, [first])
    grave = buried(first)
    await commit(engine, [(grave,)])
    assert await engine.check() == []  # applied, too
    reborn = row("a", uid="another", status="RUNNING")
    await commit(engine, [(Write(reborn, grave.row.stamp, Event("created", 1)),), (after(reborn, status="RUNNING"),)])
    assert await engine.check() == []
    assert [found.id for found in await engine.query(Query(kind="job", limit=9, term=("status", "RUNNING")))] == ["a"]


# --- a commit that is cut off --------------------------------------------------------------------------------------


def out_of_memory(*_: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("part", "step"),
    [
        pytest.param(lambda engine: engine._files.log._checkpoints, "after_commit", id="appended"),
        pytest.param(lambda engine: engine._presence, "add", id="nothing-taken"),
        pytest.param(lambda engine: engine._log, "take", id="almost-all-taken"),
    ],
)
async def test_a_commit_cut_off_behind_its_append_is_unknown_and_nothing_is_taken_behind_it(
    tmp_path, monkeypatch, part, step
):
    """The state would be noted as having all up to the next commit, and lack this one for ever."""
    async with opened(tmp_path) as engine:
        store = Store(engine)
        store.start()
        await create(store, 1).after.wait()
        with monkeypatch.context() as machine:
            machine.setattr(part(engine), step, out_of_memory)
            cut_off = create(store, 2)
            await cut_off.after.wait()
            assert cut_off.after.failure.outcome == "unknown"
        with pytest.raises(Unavailable, match="must be restarted"):
            await fill(engine, [row("next")])
        await store.stop()
    async with opened(tmp_path) as engine:
        assert {row.id for row in await engine.query(Query(kind="job", limit=9))} == {"job-0001", "job-0002"}
        assert await engine.check() == []


# --- a disk that fails ---------------------------------------------------------------------------------------------


def fail(*_: Any) -> None:
    raise apsw.IOError("disk I/O error")


async def by_update(engine: SqliteEngine) -> None:
    await engine.query(Query(kind="job", sort="updated", limit=9))


async def test_an_index_that_cannot_be_written_ends_the_store(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        await fill(engine, [row("a")])
        monkeypatch.setattr(engine._files.state, "make_index", fail)
        with pytest.raises(Internal, match="the disk failed"):
            await by_update(engine)
        with pytest.raises(Unavailable, match="must be restarted"):
            await fill(engine, [row("b")])


async def test_an_index_that_cannot_be_written_ends_the_store_though_whoever_wanted_it_is_gone(tmp_path, monkeypatch):
    begun, gone, broken = asyncio.Event(), threading.Event(), asyncio.Event()
    async with opened(tmp_path) as engine:
        await fill(engine, [row("a")])
        loop = asyncio.get_running_loop()

        def fail_late(*_: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert gone.wait(30)
            fail()

        engine.on_broken(lambda _: broken.set())
        monkeypatch.setattr(engine._files.state, "make_index", fail_late)
        asking = asyncio.create_task(by_update(engine))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        gone.set()
        await asyncio.wait_for(broken.wait(), 30)


async def test_a_repair_that_cannot_be_written_ends_the_store(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        await fill(engine, [row("a")])
    change(tmp_path / "state.db", "DROP INDEX record_node")
    monkeypatch.setattr("statesvc.backends.sqlite.engine.repaired", fail)
    async with opened(tmp_path) as engine:
        with pytest.raises(Internal, match="the disk failed"):
            await engine.repair()
        with pytest.raises(Unavailable, match="must be restarted"):
            await fill(engine, [row("b")])


# --- damage --------------------------------------------------------------------------------------------------------


def come_upon_damage(*_: Any) -> None:
    """As SQLite tells of a page that does not match its checksum."""
    problem = apsw.IOError("disk I/O error")
    problem.extendedresult = apsw.SQLITE_IOERR_DATA  # type: ignore[attr-defined]  # as apsw sets it
    raise problem


async def ending(engine: SqliteEngine) -> EngineBroken | DataCorrupt:
    """What ends the store."""
    end = asyncio.get_running_loop().create_future()
    engine.on_broken(end.set_result)
    return await asyncio.wait_for(end, 30)


async def test_damage_to_the_log_that_a_commit_comes_upon_is_not_taken_for_a_failing_disk(tmp_path, monkeypatch):
    async with opened(tmp_path) as engine:
        end = asyncio.create_task(ending(engine))
        await asyncio.sleep(0)
        monkeypatch.setattr(engine._files.log, "append", come_upon_damage)
        with pytest.raises(Internal, match=r"log\.db is damaged; whether the write was taken is not known") as refused:
            await fill(engine, [row("a")])
        assert refused.value.outcome == "unknown"
        assert isinstance(await end, DataCorrupt)
        assert f"{tmp_path / 'log.db'} is damaged: a page does not match its checksum; bring back" in str(await end)
        with pytest.raises(Unavailable, match="must be repaired"):
            await fill(engine, [row("b")])


@pytest.mark.parametrize(("file", "work", "cure"), [("log", "settle", "bring"), ("state", "apply", "remove state.db")])
async def test_damage_that_is_met_behind_a_commit_is_not_taken_for_a_failing_disk(
    tmp_path, monkeypatch, file, work, cure
):
    async with opened(tmp_path, idle_seconds=0.001, apply_seconds=0.001) as engine:
        end = asyncio.create_task(ending(engine))
        await asyncio.sleep(0)
        monkeypatch.setattr(getattr(engine._files, file), work, come_upon_damage)
        await fill(engine, [row("a")])
        assert isinstance(await end, DataCorrupt)
        assert f"{file}.db is damaged: a page does not match its checksum; {cure}" in str(await end)


async def test_an_index_over_damaged_records_is_refused_and_everything_else_goes_on(tmp_path):
    async with opened(tmp_path) as engine:
        await fill(engine, [row(f"a{number}") for number in range(50)])
    page = look(tmp_path / "state.db", "SELECT pageno FROM dbstat WHERE name = 'record' AND pagetype = 'leaf' LIMIT 1")
    flip(tmp_path / "state.db", (page - 1) * 4096 + 2000)
    async with opened(tmp_path) as engine:
        with pytest.raises(Internal, match=r"state\.db is damaged: a page does not match its checksum"):
            await by_update(engine)
        await fill(engine, [row("b")])
