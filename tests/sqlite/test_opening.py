"""A store is opened with all that was in it, or refused; empty is only a first one, also if its start was cut off."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.backends.port import DataCorrupt, Query
from statesvc.backends.sqlite import boots, opening, watermark
from statesvc.backends.sqlite.offline import check_folder, repair_folder
from statesvc.backends.sqlite.opening import SYNCHRONOUS, open_files
from statesvc.backends.sqlite.paths import Paths
from statesvc.backends.sqlite.watermark import LogMark, Mark
from tests.sqlite.filling import content, crashed, create, flip, opened

ENGINE = str(Path(opening.__file__).parent)

EVERYTHING = Query(kind="job", limit=100)

NAMES = [f"job-{number}" for number in range(10)]
LATER = [f"later-{number}" for number in range(5)]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(mode=0o700)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def assert_refused(folder: Path, why: str, level: str = "disk") -> None:
    with pytest.raises(DataCorrupt, match=why):
        open_files(Paths.below(folder), SYNCHRONOUS[level], Event())


# --- a first start ---------------------------------------------------------------------------------------------------


@contextmanager
def at_every_line(then: Callable[[], None]) -> Iterator[None]:
    """Do something between any two lines of the engine's."""

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        then()
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("level", ["disk", "os"])
async def test_a_first_start_that_was_killed_anywhere_is_taken_up(tmp_path, level):
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    left: list[dict[str, bytes]] = [{}]

    def keep() -> None:
        if (now := bytes_in(store)) != left[-1]:
            left.append(now)

    with at_every_line(keep):
        files = open_files(Paths.below(store), SYNCHRONOUS[level], Event())
    files.abandon()
    assert {"log.db.new", "log.db-wal", "state.db.new", "state.db-wal"} <= {name for each in left for name in each}
    for number, each in enumerate(left):
        folder = laid_out(tmp_path / f"killed-{number}", each)
        async with opened(folder, durability=level) as engine:
            await create(engine, NAMES)
            assert await engine.check() == []


# --- files that are missing ------------------------------------------------------------------------------------------


@pytest.fixture
async def killed(tmp_path) -> Path:
    """What is left of a store that was killed when it had come to rest: of every file there is something."""
    async with opened(tmp_path / "store", durability="os") as engine:
        await create(engine, NAMES)
        await engine.query(EVERYTHING)
        engine._files.state.settle()
        engine._files.log.settle()
        left = crashed(tmp_path / "store", tmp_path / "killed")
    assert all(file.stat().st_size for file in Paths.below(left).files)
    return left


LEFT = [file.name for file in Paths.below(Path()).files if file.name != "log.db"]


@pytest.mark.parametrize("name", LEFT)
def test_whatever_is_left_of_a_store_tells_that_its_log_is_missing(killed, name):
    for file in killed.iterdir():
        if file.name != name:
            file.unlink()
    before = bytes_in(killed)
    for _ in range(2):
        assert_refused(killed, r"log\.db is missing, but other files of the store are there")
    assert "log.db is missing" in check_folder(killed)[0]
    with pytest.raises(DataCorrupt, match=r"log\.db is missing"):
        repair_folder(killed)
    assert bytes_in(killed) == before


def test_an_emptied_log_whose_commits_are_in_its_wal_is_refused(killed):
    for file in killed.iterdir():
        if file.name != "log.db-wal":
            file.unlink()
    (killed / "log.db").touch()
    before = bytes_in(killed)
    assert_refused(killed, "it is empty")
    assert bytes_in(killed) == before


@pytest.mark.parametrize("name", ["log.db-wal", "state.db-wal"])
async def test_a_wal_with_nothing_in_it_tells_of_no_store(tmp_path, name):
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / name).touch()
    async with opened(store) as engine:
        assert await content(engine) == {}


# --- files of different moments --------------------------------------------------------------------------------------


@pytest.fixture
async def set_back(tmp_path) -> Path:
    """A closed store whose log was brought back, with its watermark, from a copy of an earlier moment."""
    store = tmp_path / "store"
    async with opened(store) as engine:
        await create(engine, NAMES)
        await engine.query(EVERYTHING)
        shutil.copy(store / "state.db-wal", tmp_path)
    early = {name: (store / name).read_bytes() for name in ("log.db", "watermark")}
    async with opened(store) as engine:
        for name in LATER:
            await create(engine, [name])
    for name, raw in early.items():
        (store / name).write_bytes(raw)
    return store


def without_state(store: Path) -> None:
    (store / "state.db").unlink()


def with_a_wal_of_before(store: Path) -> None:
    """SQLite puts what is in it over what is newer."""
    shutil.copy(store.with_name("state.db-wal"), store)


def torn_without_a_mark(store: Path) -> None:
    """Only what had come into the file tells how far it was."""
    with_a_wal_of_before(store)
    flip(store / "state.db-wal", 100)
    (store / "state.watermark").unlink()


@pytest.mark.parametrize("become", [without_state, with_a_wal_of_before, torn_without_a_mark])
def test_no_state_is_made_again_from_a_log_that_ends_before_what_was_applied(set_back, become):
    become(set_back)
    before = bytes_in(set_back)
    assert_refused(set_back, r"has applied entry 15, but .*log\.db ends at 10: the log's tail is lost")
    assert "tail is lost" in check_folder(set_back)[0]
    with pytest.raises(DataCorrupt, match="tail is lost"):
        repair_folder(set_back)
    after = bytes_in(set_back)
    assert {name: after.get(name) for name in before if not name.endswith("-shm")} == before


async def test_a_mark_of_another_epoch_is_not_held_against_a_log(set_back):
    without_state(set_back)
    mark = watermark.read(set_back / "state.watermark", Mark)
    assert mark is not None
    watermark.write(set_back / "state.watermark", replace(mark, epoch="another"))
    async with opened(set_back) as engine:
        assert {name for _, name in await content(engine)} == set(NAMES)


@pytest.mark.parametrize("become", [lambda _: None, without_state], ids=["ahead", "gone"])
@pytest.mark.parametrize("boot", ["this", "another"])
async def test_a_log_that_lost_its_tail_without_syncing_is_told_also_if_that_start_is_killed_anywhere(
    set_back, tmp_path, become, boot
):
    """The power may take it then. From the first that is changed on, the next start knows of it, at either level."""
    become(set_back)
    (set_back / "unsynced").write_text(boots.boot_id() if boot == "this" else "another")
    mark = watermark.read(set_back / "watermark", LogMark)
    assert mark is not None
    left = [bytes_in(set_back)]
    with at_every_line(lambda: left.append(now) if (now := bytes_in(set_back)) != left[-1] else None):
        files = open_files(Paths.below(set_back), SYNCHRONOUS["os"], Event())
    files.abandon()
    assert files.log.epoch != mark.epoch
    noted = next(number for number, each in enumerate(left) if each.get("unsynced") != left[0]["unsynced"])
    for number, each in enumerate(left):
        folder = laid_out(tmp_path / f"killed-{number}", each)
        level = "os" if number < noted and boot == "this" else "disk"
        async with opened(folder, durability=level) as engine:
            assert engine.epoch != mark.epoch
            assert {name for _, name in await content(engine)} == set(NAMES)
            assert await engine.check() == []
