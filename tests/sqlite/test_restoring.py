"""A loaded store takes the place of the old one wholly or not at all, wherever the process ends."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from statesvc.backends.epoch_names import token_floor
from statesvc.backends.port import DataCorrupt, Query, Row
from statesvc.backends.sqlite import SqliteEngine, restoring
from statesvc.backends.sqlite.paths import Paths
from statesvc.backends.sqlite.restoring import NewStore, declare_complete, finish, put_in_place
from statesvc_client.errors import Internal, NoSpace, Unavailable
from tests.engines.rows import row
from tests.sqlite.filling import compact, content, crashed, create, flip, opened, padded
from tests.sqlite.loading import RECORDS, pages

ROOT = Path(__file__).parents[2]

OLD = 30


@pytest.fixture
async def store(tmp_path) -> Path:
    """A store with something in every file."""
    async with opened(tmp_path / "store") as engine:
        await create(engine, [f"old-{number:02d}" for number in range(OLD)], labels=(("old", "yes"),))
    return tmp_path / "store"


async def which(folder: Path) -> str:
    """Whether a folder holds the old store or the new one, each of them whole."""
    async with opened(folder) as engine:
        assert await engine.check() == []
        names = {name for _, name in await content(engine)}
        labels = [
            len(await engine.query(Query(kind="job", limit=100, term=(f"label:{n}", "yes")))) for n in ("old", "new")
        ]
        await create(engine, ["afterwards"])
    assert not (folder / "incoming").exists()
    if names == {f"old-{number:02d}" for number in range(OLD)}:
        assert labels == [OLD, 0]
        return "old"
    assert names == {f"new-{number:02d}" for number in range(RECORDS)}
    assert labels == [0, RECORDS]
    return "new"


async def test_a_loaded_store_is_served_at_once_and_after_a_restart(store):
    async with opened(store) as engine:
        epoch = engine.epoch
        assert engine.peek(("job", "old-01")) is not None
        await engine.load(pages())
        assert engine.epoch != epoch
        assert engine.peek(("job", "old-01")) is None
        assert engine.peek(("job", "new-01")) is not None
        epoch = engine.epoch
    async with opened(store) as engine:
        assert engine.epoch == epoch
    assert await which(store) == "new"


async def test_the_epoch_of_a_loaded_store_is_above_the_tokens_in_it(store, monkeypatch):
    """Also where the clock is behind them: a loss may take the row that told of them."""
    monkeypatch.setattr(time, "time_ns", lambda: 0)

    async def rows():
        yield [replace(row("a"), token=7), replace(row("b"), token=9)]
        yield [row("c")]

    async with opened(store) as engine:
        await engine.load(rows())
        assert token_floor(engine.epoch) > 9
        epoch = engine.epoch
    async with opened(store) as engine:
        assert engine.epoch == epoch


async def test_a_store_can_be_loaded_again_and_again(store):
    async with opened(store) as engine:
        epochs = set()
        for _ in range(3):
            await create(engine, ["between"])
            await engine.load(pages())
            epochs.add(engine.epoch)
        assert len(epochs) == 3
    assert await which(store) == "new"


async def test_what_was_committed_and_not_applied_yet_is_gone_with_the_old_store(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=60) as engine:
        await create(engine, ["old"])
        await engine.load(pages())
        assert engine.peek(("job", "old")) is None
        assert len(await content(engine)) == RECORDS


async def test_a_dump_loaded_elsewhere_is_the_same_store(store, tmp_path):
    async with opened(store) as one, opened(tmp_path / "other") as other:
        dump = await one.dump()
        await other.load(dump.rows)
        assert await content(other) == await content(one)
        assert await other.check() == []


async def test_a_loaded_store_whose_state_is_lost_is_refused_and_not_begun_anew(store):
    """Its log is empty and young, but nothing can be made again from it."""
    async with opened(store) as engine:
        await engine.load(pages())
    (store / "state.db").unlink()
    with pytest.raises(DataCorrupt, match="restore a snapshot"):
        await SqliteEngine(store).open()


async def test_the_log_of_a_loaded_store_can_be_cut(store):
    async with opened(store) as engine:
        await engine.load(pages())
        for number in range(5):
            await create(engine, [f"more-{number}"])
        await compact(engine)
        assert len(await engine.read_log("", 100)) == 1
    async with opened(store) as engine:
        assert len(await content(engine)) == RECORDS + 5
        assert await engine.check() == []


async def test_rows_that_end_in_an_error_leave_the_old_store_served(store):
    async def broken() -> AsyncIterator[list[Row]]:
        yield [row("new-00")]
        raise RuntimeError("the file ends here")

    async with opened(store) as engine:
        with pytest.raises(RuntimeError, match="ends here"):
            await engine.load(broken())
        assert not (store / "incoming").exists()
        assert engine.peek(("job", "old-01")) is not None
    assert await which(store) == "old"


async def test_a_load_that_is_cancelled_leaves_the_old_store_served(store):
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[list[Row]]:
        yield [row("new-00")]
        waiting.set()
        await asyncio.sleep(60)

    async with opened(store) as engine:
        loading = asyncio.create_task(engine.load(endless()))
        await waiting.wait()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert not (store / "incoming").exists()
    assert await which(store) == "old"


async def test_a_disk_that_fails_just_when_the_new_store_is_complete_leaves_the_old_one(store, monkeypatch):
    """What is said to be complete must not come into its place later, when the old one has gone on."""

    def declared_and_failed(paths: Paths, *files: Path) -> None:
        declare_complete(paths, *files)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(restoring, "declare_complete", declared_and_failed)
    async with opened(store) as engine:
        with pytest.raises(Internal, match="cannot be written"):
            await engine.load(pages())
        assert not (store / "incoming").exists()
        assert engine.peek(("job", "old-01")) is not None
    assert await which(store) == "old"


async def test_two_loads_at_once_come_one_after_the_other(store):
    async with opened(store) as engine:
        await asyncio.gather(engine.load(pages()), engine.load(pages()))
        assert len(await content(engine)) == RECORDS
    assert await which(store) == "new"


async def test_a_loaded_store_survives_a_power_loss_that_tears_the_wal_of_its_state(store):
    async with opened(store, apply_seconds=0.001) as engine:
        await engine.load(pages())
        for number in range(10):
            await create(engine, [f"more-{number}"])
            await engine.check()
        copy = crashed(store, store.with_name("copy"))
    flip(copy / "state.db-wal", 32 + 2 * 4120 + 100)
    (copy / "state.db-shm").unlink()
    async with opened(copy) as engine:
        assert len(await content(engine)) == RECORDS + 10
        assert await engine.check() == []


async def test_readers_are_told_to_come_again_while_files_change_places(store):
    async with opened(store) as engine:
        answers: list[str] = []
        done = asyncio.Event()

        async def read() -> None:
            while not done.is_set():
                try:
                    rows = await engine.query(Query(kind="job", limit=100))
                    answers.append(rows[0].id[:3])
                    await engine.read_log("", 10)
                except Unavailable:
                    answers.append("unavailable")
                await asyncio.sleep(0)

        reading = [asyncio.create_task(read()) for _ in range(3)]
        await engine.load(pages())
        done.set()
        await asyncio.gather(*reading)
        assert (await engine.query(Query(kind="job", limit=1)))[0].id.startswith("new")
    assert set(answers) <= {"old", "new", "unavailable"}
    assert "old" in answers


async def test_memory_stays_bounded_however_much_is_loaded(tmp_path):
    """Forty megabytes of rows, given out five hundred at a time."""

    async def many() -> AsyncIterator[list[Row]]:
        for begin in range(0, 20_000, 500):
            yield [padded(row(f"job-{number:06d}"), 2000) for number in range(begin, begin + 500)]

    async with opened(tmp_path / "store") as engine:
        tracemalloc.start()
        try:
            await engine.load(many())
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(await engine.query(Query(kind="job", limit=1))) == 1
    assert most < 30_000_000


# --- crashes, made by hand -------------------------------------------------------------------------------------------


async def filled(paths: Paths) -> None:
    new = NewStore(paths)
    async for page in pages():
        new.add(page)
    new.close()


def half_filled(paths: Paths) -> None:
    new = NewStore(paths)
    new.add([row("new-00")])
    new._state.abandon()
    new._log.abandon()


def nothing(_: Paths) -> None:
    pass


def named_but_not_declared(paths: Paths) -> None:
    (paths.incoming / "complete.new").write_text("log.db\nstate.db")


def declared(paths: Paths) -> None:
    declare_complete(paths, paths.log, paths.state)


def old_sides_gone(paths: Paths) -> None:
    declared(paths)
    for name in ("log.db-wal", "log.db-shm", "watermark"):
        (paths.folder / name).unlink(missing_ok=True)


def log_in_place(paths: Paths) -> None:
    old_sides_gone(paths)
    os.replace(paths.incoming / "log.db", paths.log)


def both_in_place(paths: Paths) -> None:
    log_in_place(paths)
    for name in ("state.db-wal", "state.db-shm", "state.watermark"):
        (paths.folder / name).unlink(missing_ok=True)
    os.replace(paths.incoming / "state.db", paths.state)


def no_longer_declared(paths: Paths) -> None:
    both_in_place(paths)
    (paths.incoming / "complete").unlink()


def all_done(paths: Paths) -> None:
    declared(paths)
    put_in_place(paths)


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (nothing, "old"),
        (named_but_not_declared, "old"),
        (declared, "new"),
        (old_sides_gone, "new"),
        (log_in_place, "new"),
        (both_in_place, "new"),
        (no_longer_declared, "new"),
        (all_done, "new"),
    ],
)
async def test_a_process_that_ends_after_any_step_leaves_one_of_the_two_stores(
    store, step: Callable[[Paths], None], outcome
):
    paths = Paths.below(store)
    await filled(paths)
    step(paths)
    assert await which(store) == outcome


async def test_a_store_half_filled_is_cleared_away(store):
    half_filled(Paths.below(store))
    assert await which(store) == "old"


async def test_only_folders_that_a_restore_names_are_cleared_away(store):
    gone = store / "restoring-20261118T024904Z"
    gone.mkdir()
    half_filled(Paths.below(gone))
    link, file, folder = (store / f"restoring-{name}" for name in ("20261118T024905Z", "20261118T024906Z", "notes"))
    link.symlink_to(store.parent)
    file.write_text("precious")
    folder.mkdir()
    assert await which(store) == "old"
    assert not gone.exists()
    assert (link.is_symlink(), file.read_text(), folder.is_dir()) == (True, "precious", True)


async def test_an_old_wal_never_meets_a_new_file(store):
    """A daemon that was killed leaves its WAL; what it holds belongs to the old file alone."""
    async with opened(store) as engine:
        await create(engine, ["in the wal"])
        shutil.copytree(store, store.with_name("copy"), ignore=shutil.ignore_patterns("lock"))
    paths = Paths.below(store.with_name("copy"))
    assert (paths.folder / "log.db-wal").stat().st_size > 0
    await filled(paths)
    declared(paths)
    finish(paths)
    assert not (paths.folder / "log.db-wal").exists()
    assert await which(paths.folder) == "new"


async def test_nobody_else_may_look_into_what_is_being_filled(store):
    half_filled(Paths.below(store))
    assert (store / "incoming").stat().st_mode & 0o077 == 0
    assert (store / "incoming" / "state.db").stat().st_mode & 0o077 == 0


# --- crashes, real ones ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)  # some fifty processes, one after the other
async def test_a_kill_at_any_change_of_names_or_sync_leaves_one_of_the_two_stores(store, tmp_path):
    outcomes: list[str] = []
    for number in range(1, 200):
        copy = tmp_path / f"killed-{number}"
        shutil.copytree(store, copy)
        if not load_and_die(copy, number):
            break
        outcomes.append(await which(copy))
        shutil.rmtree(copy)
    print(outcomes)
    assert outcomes[0] == "old"
    assert outcomes[-1] == "new"
    assert outcomes == sorted(outcomes, reverse=True), "once there is only the way forward, nothing goes back"
    assert min(outcomes.count("old"), outcomes.count("new")) > 5


def load_and_die(folder: Path, calls: int) -> bool:
    """Whether there were so many calls to die at."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sqlite.loading", str(folder), str(calls)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode != 0


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system can be mounted by root only")
async def test_a_disk_too_small_for_both_keeps_the_old_store(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")

    async def many() -> AsyncIterator[list[Row]]:
        for number in range(100):
            yield [padded(row(f"job-{number}-{each}"), 4000) for each in range(100)]

    try:
        async with opened(place / "store") as engine:
            await create(engine, ["old"])
            with pytest.raises(NoSpace, match="nothing was changed"):
                await engine.load(many())
            assert engine.peek(("job", "old")) is not None
            assert not (place / "store" / "incoming").exists()
            await create(engine, ["later"])
        async with opened(place / "store") as engine:
            assert len(await content(engine)) == 2
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
