"""What a power loss, or a kill before one, leaves: told of by another boot of the machine, synced, or made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statesvc.backends.epoch_names import token_floor
from statesvc.backends.sqlite import boots
from statesvc.backends.sqlite.files import CHECKSUM_BYTES
from statesvc.config.sources import BOOT_ID
from tests.daemon.harness import ROOT
from tests.sqlite.filling import compact, content, crashed, create, opened


@pytest.fixture
def machine(monkeypatch):
    """Starts the machine anew."""

    def start(boot: str) -> None:
        monkeypatch.setattr(boots, "boot_id", lambda: boot)

    start("first")
    return start


async def written(folder, durability="os"):
    """A store of three records, as it is found when its process, or the power, is suddenly gone; and its epoch."""
    async with opened(folder / "store", durability=durability, apply_seconds=60, idle_seconds=60) as engine:
        await create(engine, ["kept"])
        engine._files.log.settle()
        early = crashed(folder / "store", folder / "early")
        await create(engine, ["told", "told too"])
        late = crashed(folder / "store", folder / "late")
        return early, late, engine.epoch


async def found(folder, durability="os"):
    async with opened(folder, durability=durability) as engine:
        assert await engine.check() == []
        return {name for _, name in await content(engine)}, engine.epoch


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_tail_that_went_without_a_trace_changes_the_epoch(tmp_path, machine, durability):
    early, _, epoch = await written(tmp_path)
    machine("second")
    names, now = await found(early, durability)
    assert names == {"kept"}
    assert now != epoch
    assert token_floor(now) > token_floor(epoch) == 0
    machine("third")
    assert await found(early, durability) == (names, now)  # it was closed: nothing was lost since


async def test_in_the_same_boot_only_the_daemon_has_died(tmp_path, machine):
    _, late, epoch = await written(tmp_path)
    assert await found(late) == ({"kept", "told", "told too"}, epoch)


async def test_a_store_that_was_closed_outlives_the_machine(tmp_path, machine):
    await written(tmp_path)
    names, epoch = await found(tmp_path / "store")
    machine("second")
    assert await found(tmp_path / "store") == (names, epoch)


async def test_where_the_boot_cannot_be_told_the_worst_is_assumed(tmp_path, machine):
    machine("")
    _, late, epoch = await written(tmp_path)
    names, now = await found(late)
    assert names == {"kept", "told", "told too"}
    assert now != epoch


async def test_a_level_that_syncs_needs_no_note(tmp_path, machine):
    _, late, epoch = await written(tmp_path, "disk")
    assert not (late / "unsynced").exists()
    machine("second")
    assert await found(late, "disk") == ({"kept", "told", "told too"}, epoch)


async def test_the_note_goes_with_the_level_that_wrote_it(tmp_path, machine):
    _, late, epoch = await written(tmp_path)
    async with opened(late, durability="disk") as engine:
        assert engine.epoch == epoch
        assert not (late / "unsynced").exists()


async def test_a_log_that_was_cut_goes_on_in_a_new_epoch(tmp_path, machine):
    async with opened(tmp_path / "store", durability="os", idle_seconds=60) as engine:
        for number in range(5):
            await create(engine, [f"r{number}"])
        await compact(engine)
        epoch, left = engine.epoch, crashed(tmp_path / "store", tmp_path / "left")
    machine("second")
    names, now = await found(left)
    assert len(names) == 5
    assert now != epoch
    assert token_floor(now) > token_floor(epoch) == 0


async def test_what_a_killed_process_left_is_on_the_disk_before_anything_is_built_on_it(tmp_path, monkeypatch):
    _, late, _ = await written(tmp_path, "disk")
    synced, fsync = [], os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    await found(late, "disk")
    assert synced[0] == "log.db-wal"


@pytest.mark.parametrize("name", ["log.db", "state.db"])
async def test_a_file_that_was_being_made_when_the_power_was_lost_is_made_again(tmp_path, name):
    """It has another name until it is whole; what there is of it may be anything."""
    folder = tmp_path / "store"
    if name == "state.db":
        async with opened(folder):
            pass
        (folder / "state.db").unlink()
        (folder / "state.watermark").unlink()
        (folder / "state.db-wal").write_bytes(bytes(4096))  # a log has none before it has its name
    folder.mkdir(mode=0o700, exist_ok=True)
    for left in (f"{name}.new", f"{name}.new-wal"):
        (folder / left).write_bytes(bytes(4096))
    async with opened(folder) as engine:
        await create(engine, ["new"])
    assert await found(folder, "disk") == ({"new"}, engine.epoch)
    assert (folder / name).read_bytes()[20] == CHECKSUM_BYTES
    assert not list(folder.glob("*.new*"))


def test_a_service_that_cannot_look_it_up_is_told_the_boot(monkeypatch):
    monkeypatch.setenv(BOOT_ID, "told")
    assert boots.boot_id() == "told"
    assert f"Environment={BOOT_ID}=%b" in (ROOT / "systemd" / "statesvc.service").read_text()
