"""A store is opened with all that was in it, or refused; empty is only a first one, also if its start was cut off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pytest

from statesvc.backends.port import DataCorrupt, Query
from statesvc.backends.sqlite import opening
from statesvc.backends.sqlite.offline import check_folder, repair_folder
from statesvc.backends.sqlite.opening import SYNCHRONOUS, open_files
from statesvc.backends.sqlite.paths import Paths
from tests.sqlite.filling import content, crashed, create, opened

ENGINE = str(Path(opening.__file__).parent)

EVERYTHING = Query(kind="job", limit=100)

NAMES = [f"job-{number}" for number in range(10)]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}


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
        folder = tmp_path / f"killed-{number}"
        folder.mkdir(mode=0o700)
        for name, raw in each.items():
            (folder / name).write_bytes(raw)
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
