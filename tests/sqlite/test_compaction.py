"""The log is cut at its front and space given back while the store is served; nothing is cut that is needed."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from statesvc.backends.port import DataCorrupt, Event, LogKept, Write
from statesvc.backends.sqlite import SqliteEngine, boots, compaction
from statesvc.backends.sqlite.files import DatabaseFile, open_writer
from statesvc.backends.sqlite.log import FORMAT
from statesvc.backends.sqlite.watermark import Mark
from statesvc_client.errors import Gone, Internal, NoSpace, Unavailable
from tests.engines.rows import after, hidden, removed
from tests.sqlite.filling import EVERYTHING_OLD, compact, content, crashed, create, flip, look, opened

FRAME_BYTES = 24 + 4096
WAL_HEADER_BYTES = 32
PAGE_BYTES = 4096


async def batches(engine: SqliteEngine, times: list[int]) -> None:
    """A commit of three records at each time."""
    for number, at in enumerate(times):
        await create(engine, [f"job-{number:03d}-{each}" for each in range(3)], at)


async def kept(engine: SqliteEngine) -> list[str]:
    return [entry.cursor for entry in await engine.read_log("", 10_000)]


# --- what is cut ---------------------------------------------------------------------------------------------------


async def test_batches_that_are_wholly_older_go_and_the_chain_holds(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [10, 20, 30, 40])
        everything = await content(engine)
        await compact(engine, LogKept(since=30, most_bytes=1 << 40))
        assert await kept(engine) == [str(position) for position in range(7, 13)]
        assert await engine.check() == []
        with pytest.raises(Gone):
            await engine.read_log("5", 10)
        assert len(await engine.read_log("6", 100)) == 6
    async with opened(tmp_path / "store") as engine:
        assert await kept(engine) == [str(position) for position in range(7, 13)]
        assert await content(engine) == everything
        assert await engine.check() == []


async def test_a_batch_with_one_newer_entry_stays_as_a_whole(tmp_path):
    async with opened(tmp_path / "store") as engine:
        rows = await create(engine, ["a", "b"], 10)
        later = after(rows[0])
        await engine.commit(
            [(later._replace(event=Event("updated", 50)),), (after(rows[1])._replace(event=Event("updated", 5)),)]
        )
        await create(engine, ["c"], 60)
        await compact(engine, LogKept(since=30, most_bytes=1 << 40))
        assert await kept(engine) == ["3", "4", "5"]


async def test_the_oldest_batches_go_when_the_log_is_larger_than_it_may_be(tmp_path):
    async with opened(tmp_path / "store") as engine:
        for number in range(40):
            await create(engine, [f"job-{number}"], at=1 << 61, pad=1000)
        await compact(engine, LogKept(since=0, most_bytes=10_500))
        assert 6 <= len(await kept(engine)) <= 10
        assert await engine.check() == []
    async with opened(tmp_path / "store") as engine:
        before = await kept(engine)
        await compact(engine, LogKept(since=0, most_bytes=10_500))
        assert await kept(engine) == before, "what was cut counts towards the size after a restart"


async def test_the_newest_batch_stays_and_the_log_goes_on_behind_it(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1, 2, 3])
        await compact(engine)
        assert await kept(engine) == ["7", "8", "9"]
        await create(engine, ["later"], 4)
    async with opened(tmp_path / "store") as engine:
        assert await kept(engine) == ["7", "8", "9", "10"]
        await compact(engine)
        assert await kept(engine) == ["10"]
        assert await engine.check() == []


async def test_a_clock_that_was_ahead_for_a_while_does_not_keep_the_log_for_ever(tmp_path):
    """What was committed before an old entry is old, whatever the clock said."""
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [10, 1 << 59, 1 << 59, 20, 30, 40])
        await compact(engine, LogKept(since=25, most_bytes=1 << 40))
        assert await kept(engine) == [str(position) for position in range(13, 19)]


async def test_hidden_writes_have_no_age_of_their_own(tmp_path):
    async with opened(tmp_path / "store") as engine:
        (made,) = await create(engine, ["a"], 10)
        for token in range(1, 5):
            assert await engine.commit([(hidden(made, token=token),)]) == ["applied"]
        await create(engine, ["b"], 90)
        await compact(engine, LogKept(since=50, most_bytes=1 << 40))
        assert await kept(engine) == ["6"]
        assert (await content(engine))["job", "a"].token == 4


async def test_what_is_only_in_memory_is_applied_before_the_log_lets_go_of_it(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=60.0) as engine:
        await batches(engine, [1, 2, 3])
        assert engine._files.state.applied.position == 0
        await compact(engine)
        copy = crashed(tmp_path / "store", tmp_path / "copy")
        everything = await content(engine)
    async with opened(copy) as engine:
        assert await content(engine) == everything


async def test_the_history_of_a_record_ends_where_the_log_does_and_takes_no_space_beyond(tmp_path):
    async with opened(tmp_path / "store") as engine:
        (newest,) = await create(engine, ["a"], 1)
        for at in range(2, 50):
            write = after(newest)
            await engine.commit([(write._replace(event=Event("updated", at)),)])
            newest = write.row
        await compact(engine, LogKept(since=45, most_bytes=1 << 40))
        assert [entry.event.at for entry in await engine.history(("job", "a"), "", 100)] == [45, 46, 47, 48, 49]
    assert look(tmp_path / "store" / "state.db", "SELECT count(*) FROM history") == 5
    async with opened(tmp_path / "store") as engine:
        assert len(await engine.history(("job", "a"), "", 100)) == 5
        assert await engine.check() == []


async def test_a_history_longer_than_a_slice_is_walked_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "TRIM_ROWS", 7)
    async with opened(tmp_path / "store") as engine:
        await batches(engine, list(range(1, 31)))
        await compact(engine)
    assert look(tmp_path / "store" / "state.db", "SELECT count(*) FROM history") == 3


# --- space ---------------------------------------------------------------------------------------------------------


async def test_both_files_become_smaller_while_the_store_is_open(tmp_path):
    folder = tmp_path / "store"
    async with opened(folder) as engine:
        rows = []
        for number in range(40):
            rows += await create(engine, [f"job-{number}-{each}" for each in range(25)], at=1, pad=4000)
        await engine.check()  # everything is applied
        engine._files.state.settle()
        engine._files.log.settle()
        before = {name: (folder / name).stat().st_size for name in ("log.db", "state.db")}
        for begin in range(0, 900, 100):
            await engine.commit([(removed(each),) for each in rows[begin : begin + 100]])
        await compact(engine)
        assert engine.measures()["freeBytes"] < 3 << 20
        engine._files.state.settle()
        engine._files.log.settle()
        for name, size in before.items():
            assert (folder / name).stat().st_size < size / 2, name
        assert set(await content(engine)) == {each.key for each in rows[900:]}
        assert await engine.check() == []


async def test_a_wal_that_has_grown_long_is_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "LONG_WAL_BYTES", 100_000)
    async with opened(tmp_path / "store") as engine:
        for number in range(40):
            await create(engine, [f"job-{number}"], at=1 << 61, pad=10_000)
        await compact(engine)
        assert (tmp_path / "store" / "log.db-wal").stat().st_size == 0
        await create(engine, ["later"], at=1 << 61)
        assert len(await content(engine)) == 41


async def test_a_file_that_cannot_give_pages_back_does_not_keep_compaction_busy(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"job-{number}" for number in range(300)], at=1, pad=4000)
        await create(engine, ["last"], at=2)
    for name in ("log.db", "state.db"):
        db = open_writer(tmp_path / "store" / name)
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("VACUUM")
        assert db.pragma("auto_vacuum") == 0
        db.close()
    async with opened(tmp_path / "store") as engine:
        await compact(engine)
        assert await kept(engine) == ["301"]


# --- while serving -------------------------------------------------------------------------------------------------


async def test_commits_go_on_while_the_log_is_cut(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=0.01) as engine:
        await batches(engine, [1] * 200)
        done = asyncio.Event()

        async def write() -> int:
            number = 0
            while not done.is_set():
                await create(engine, [f"busy-{number}"], at=1 << 61)
                number += 1
            return number

        writing = asyncio.create_task(write())
        await compact(engine)
        done.set()
        written = await writing
        assert written
        assert len(await content(engine)) == 600 + written
        assert len(await kept(engine)) >= written
        assert await engine.check() == []


async def test_a_run_of_steps_comes_to_an_end_however_fast_others_write(tmp_path):
    """Everything that is written is too much at once; what comes during a run is left to the next."""
    async with opened(tmp_path / "store", durability="os") as engine:
        await batches(engine, [1] * 20)
        steps = 0
        while await engine.compact(LogKept(since=0, most_bytes=0)):
            await create(engine, [f"busy-{steps}"], at=1 << 61)
            steps += 1
            assert steps < 50
        assert int((await kept(engine))[0]) > 60


async def test_a_step_whose_caller_has_gone_does_no_harm(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1] * 50)
        for _ in range(20):
            step = asyncio.create_task(engine.compact(EVERYTHING_OLD))
            await asyncio.sleep(0)
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await create(engine, ["later"], at=5)
        await compact(engine)
        assert await kept(engine) == ["151"]


async def test_measures_tell_how_much_of_the_log_is_kept(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1, 2, 3])
        assert engine.measures()["logEntries"] == 9
        await compact(engine)
        measures = engine.measures()
        assert (measures["logEntries"], measures["entriesWaiting"]) == (3, 0)
        assert measures["logBytes"] >= (tmp_path / "store" / "log.db").stat().st_size
        assert measures["stateBytes"] > 0


# --- damage --------------------------------------------------------------------------------------------------------


def damage(path: Path, table: str, kind: str = "leaf") -> None:
    """A flipped bit in the first page of its kind that a table has."""
    sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY path LIMIT 1"
    flip(path, (look(path, sql, table, kind) - 1) * PAGE_BYTES + 2000)


@pytest.mark.parametrize(
    ("name", "table", "kind"),
    [("log.db", "batch", "leaf"), ("log.db", "batch", "overflow"), ("state.db", "history", "leaf")],
)
async def test_a_damaged_page_is_told_by_its_file_and_everything_else_goes_on(tmp_path, name, table, kind):
    """The one of an overflow is met only when what it belongs to is being deleted."""
    async with opened(tmp_path / "store") as engine:
        await create(engine, ["long"], at=1, pad=20_000)
        await batches(engine, [1] * 200)
    damage(tmp_path / "store" / name, table, kind)
    async with opened(tmp_path / "store") as engine:
        with pytest.raises(Internal, match=f"{name} is damaged: a page does not match its checksum"):
            await compact(engine)
        assert not engine._files.log.db.in_transaction
        assert not engine._files.state.db.in_transaction
        await create(engine, ["later"], at=2)
        assert len(await content(engine)) == 602


async def test_the_log_is_cut_on_and_on_though_the_history_is_damaged(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1] * 200)
    damage(tmp_path / "store" / "state.db", "history")
    async with opened(tmp_path / "store") as engine:
        for number in range(3):
            await create(engine, [f"later-{number}"], at=2)
            with pytest.raises(Internal, match=r"state\.db is damaged"):
                await compact(engine)
            assert engine.measures()["logEntries"] == 1, number


async def test_a_disk_that_fails_while_the_log_is_cut_ends_the_store(tmp_path, monkeypatch):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1, 2])
        monkeypatch.setattr(engine._files.state, "secure", fail)
        with pytest.raises(Internal, match="the disk failed"):
            await compact(engine)
        with pytest.raises(Unavailable, match="must be restarted"):
            await create(engine, ["later"], at=3)


def fail(*_: Any) -> None:
    raise apsw.IOError("disk I/O error")


# --- crashes -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cut_store(tmp_path) -> Path:
    """As it is left by a kill: the log was cut, and more was applied since the state was last put onto the disk."""
    async with opened(tmp_path / "store", apply_seconds=0.001) as engine:
        await batches(engine, [1, 2, 3, 4])
        await compact(engine)
        for number in range(20):
            await create(engine, [f"later-{number}"], at=9)
            await engine.check()
        return crashed(tmp_path / "store", tmp_path / "copy")


def mark_of(store: Path) -> Mark:
    text, _, _ = (store / "state.watermark").read_bytes().rpartition(b" ")
    return msgspec.json.decode(text, type=Mark)


def frames_in(wal: Path) -> int:
    """Frames of the WAL's present run, leftovers of an earlier one aside."""
    raw = wal.read_bytes()
    salts = raw[16:24]
    count = 0
    while raw[WAL_HEADER_BYTES + count * FRAME_BYTES :][8:16] == salts:
        count += 1
    return count


async def assert_whole(store: Path) -> None:
    async with opened(store) as engine:
        assert len(await content(engine)) == 12 + 20
        assert await engine.check() == []
        await create(engine, ["after the crash"], at=10)


async def test_a_cut_store_that_was_killed_has_everything(cut_store):
    await assert_whole(cut_store)


async def test_after_a_power_loss_the_state_is_what_was_put_onto_the_disk_and_the_log_has_the_rest(cut_store):
    wal, mark = cut_store / "state.db-wal", mark_of(cut_store)
    assert mark.frames < frames_in(wal), "nothing here could have been lost"
    with wal.open("r+b") as file:
        file.truncate(WAL_HEADER_BYTES + mark.frames * FRAME_BYTES)
    (cut_store / "state.db-shm").unlink(missing_ok=True)
    await assert_whole(cut_store)


async def test_after_a_power_loss_that_tore_the_states_wal_in_its_middle_nothing_is_missing(cut_store):
    wal, mark = cut_store / "state.db-wal", mark_of(cut_store)
    assert frames_in(wal) > mark.frames + 4
    flip(wal, WAL_HEADER_BYTES + (mark.frames + 1) * FRAME_BYTES + 100)
    (cut_store / "state.db-shm").unlink(missing_ok=True)
    await assert_whole(cut_store)


async def test_damage_to_what_was_on_the_disk_is_refused_once_the_log_is_cut(cut_store):
    """The state can no longer be made again; what SQLite would show might be a mixture."""
    wal, mark = cut_store / "state.db-wal", mark_of(cut_store)
    assert mark.frames > 2
    flip(wal, WAL_HEADER_BYTES + 1 * FRAME_BYTES + 100)
    (cut_store / "state.db-shm").unlink(missing_ok=True)
    before = wal.read_bytes()
    with pytest.raises(DataCorrupt, match=r"state\.db is damaged.*snapshot"):
        await SqliteEngine(cut_store).open()
    assert wal.read_bytes() == before


@pytest.mark.parametrize("gone", [["state.db", "state.db-wal"], ["state.db-wal"]])
async def test_a_state_that_is_missing_is_refused_once_the_log_is_cut(cut_store, gone):
    for name in [*gone, "state.db-shm"]:
        (cut_store / name).unlink(missing_ok=True)
    with pytest.raises(DataCorrupt, match="restore a snapshot"):
        await SqliteEngine(cut_store).open()


async def test_a_watermark_older_than_the_kept_log_is_no_reason_to_refuse(tmp_path):
    async with opened(tmp_path / "store") as engine:
        await batches(engine, [1, 2])
    mark = (tmp_path / "store" / "watermark").read_bytes()
    async with opened(tmp_path / "store", idle_seconds=60) as engine:
        for at in range(3, 9):
            await create(engine, [f"later-{at}"], at)
        await compact(engine)
        copy = crashed(tmp_path / "store", tmp_path / "copy")
    assert (copy / "watermark").read_bytes() == mark
    async with opened(copy) as engine:
        assert len(await content(engine)) == 12


@pytest.mark.parametrize("applied", [True, False], ids=["state ahead of the log", "state behind the log"])
async def test_without_syncing_a_log_that_lost_its_tail_goes_on_under_a_new_epoch(tmp_path, applied, monkeypatch):
    """At level `os` a power loss may take acknowledged writes: clients are told, the store stays."""
    async with opened(tmp_path / "store", durability="os", apply_seconds=60, idle_seconds=60) as engine:
        await batches(engine, [1, 2, 3])
        await compact(engine)
        epoch = engine.epoch
        early = crashed(tmp_path / "store", tmp_path / "early")
        await create(engine, ["late"], at=4)
        if applied:
            await engine.check()
            engine._files.state.secure()
        late = crashed(tmp_path / "store", tmp_path / "late")
    for name in ("log.db", "log.db-wal", "watermark"):
        (late / name).unlink(missing_ok=True)
        if (early / name).exists():
            (early / name).rename(late / name)
    (late / "log.db-shm").unlink(missing_ok=True)
    if not applied:
        tear(late / "log.db-wal")
    monkeypatch.setattr(boots, "boot_id", lambda: "the next one")
    async with opened(late, durability="os") as engine:
        assert engine.epoch != epoch
        assert len(await content(engine)) == (10 if applied else 9)
        assert await engine.check() == []
        await create(engine, ["afterwards"], at=5)
    async with opened(late, durability="os") as engine:
        assert engine.peek(("job", "afterwards")) is not None
        assert await engine.check() == []


def tear(wal: Path) -> None:
    """Leave the beginning of a frame behind the last one."""
    raw = wal.read_bytes()
    frame = raw[WAL_HEADER_BYTES : WAL_HEADER_BYTES + 24]
    end = WAL_HEADER_BYTES + frames_in(wal) * FRAME_BYTES
    wal.write_bytes(raw[:end] + struct.pack(">II", 1, 0) + frame[8:16] + b"\0" * 8 + b"\0" * 100)


def test_the_front_of_the_log_is_found_without_walking_it(tmp_path):
    db = apsw.Connection(":memory:")
    db.execute(FORMAT.script(1))
    sql = "SELECT first FROM batch WHERE back AND at < ? ORDER BY at DESC LIMIT 1"
    (plan,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", (1,))]
    assert "batch_back" in plan


async def test_writes_that_are_not_told_still_count_as_writes(tmp_path):
    """A log of nothing but hidden writes is cut by size."""
    async with opened(tmp_path / "store") as engine:
        (made,) = await create(engine, ["a"], at=1 << 61)
        for token in range(1, 60):
            assert await engine.commit([(Write(hidden(made, token=token).row, made.stamp, None),)]) == ["applied"]
        await compact(engine, LogKept(since=0, most_bytes=1000))
        assert engine.measures()["logEntries"] < 30
        assert await engine.check() == []


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR_SHMSIZE])
async def test_a_state_that_has_no_room_to_shrink_is_served_as_before(tmp_path, monkeypatch, code: int):
    real = compaction.shrink

    def without_room(file: DatabaseFile, path: Path) -> bool:
        if path.name == "state.db":
            raise apsw.exception_for(code)
        return real(file, path)

    async with opened(tmp_path / "store") as engine:
        await batches(engine, [10, 20, 30])
        with monkeypatch.context() as full:
            full.setattr(compaction, "shrink", without_room)
            with pytest.raises(NoSpace, match="the disk is full: the log cannot be cut"):
                await compact(engine)
        await create(engine, ["later"])
        await compact(engine)
