"""snapshot save, restore and inspect, with a daemon and without one."""

from __future__ import annotations

import errno
import os
import pty
from pathlib import Path

import pytest

from tests.cli.running import ended, run, started
from tests.users import not_root


def test_what_was_saved_can_be_restored(home):
    with home.daemon():
        home.ask("create", "kept", "--status", "PENDING")
        saved = home.ask("snapshot", "save", "snapshots/a.snapshot").record
        assert (saved["path"], saved["rows"], saved["kinds"]) == ("snapshots/a.snapshot", 1, {"job": 1})
        home.ask("create", "later")
        before = home.ask("health").record["epoch"]
        restored = home.ask("snapshot", "restore", "snapshots/a.snapshot").record
        assert (restored["rows"], restored["epoch"] != before) == (1, True)
        assert [record["uuid"] for record in home.ask("list").records] == ["kept"]


def test_a_snapshot_without_a_name_gets_one(home):
    with home.daemon():
        path = home.ask("snapshot", "save").record["path"]
    assert path.startswith("snapshots/")
    assert (home.data / path).exists()


def test_inspect_tells_what_a_snapshot_holds_without_a_daemon(home):
    with home.daemon():
        home.ask("create", "a", "--kind", "kv")
        home.ask("snapshot", "save", "a.snapshot")
    told = home.data / "a.snapshot"
    answer = run("snapshot", "inspect", str(told))
    assert (answer.record["kinds"], answer.record["backend"], answer.record["bytes"]) == (
        {"kv": 1},
        "sqlite",
        told.stat().st_size,
    )
    assert run("snapshot", "inspect", "a.snapshot", "--data", str(home.data)).record == answer.record
    assert "kinds" in run("snapshot", "inspect", str(told), "-o", "table").out


def test_a_damaged_snapshot_is_refused_by_name(home):
    with home.daemon():
        home.ask("create", "a", "--kind", "kv")
        home.ask("snapshot", "save", "a.snapshot")
        flip(home.data / "a.snapshot", -40)
        refused = home.ask("snapshot", "restore", "a.snapshot")
        assert refused.code == 1
        assert "a.snapshot is damaged" in refused.err
        assert home.ask("get", "a", "--kind", "kv").code == 0
    assert "is damaged" in run("snapshot", "inspect", str(home.data / "a.snapshot")).err
    assert run("snapshot", "inspect", str(home.data / "none.snapshot")).code == 3


def test_a_snapshot_that_this_user_may_not_look_at_is_named(socket_folder):
    (socket_folder / "closed").mkdir(mode=0o000)
    socket_folder.chmod(0o755)
    with not_root():
        told = run("snapshot", "inspect", str(socket_folder / "closed" / "a.snapshot"))
    assert told.code == 1
    assert "a.snapshot cannot be opened: Permission denied" in told.err


def flip(path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def test_a_terminal_sees_a_bar_while_a_snapshot_is_saved(home):
    parent, child = pty.openpty()
    with home.daemon():
        home.ask("create", "a")
        with started("snapshot", "save", "--socket", str(home.socket), stderr=child) as saving:
            os.close(child)
            shown = everything_from(parent)
            assert ended(saving).code == 0
    assert b"saving  [##############################]  100%  1 of 1 rows, " in shown
    assert shown.endswith(b"\r\x1b[K")


def everything_from(terminal: int) -> bytes:
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(terminal)
    return shown


def test_elsewhere_a_short_work_says_nothing_on_the_way(home):
    with home.daemon():
        home.ask("create", "a")
        assert home.ask("snapshot", "save").err == ""


# --- without a daemon ----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(home):
    """A store with a snapshot in it, and a log that can no longer be opened."""
    with home.daemon():
        home.ask("create", "kept", "--kind", "kv", "value=1")
        home.ask("claim", "leader", "--kind", "lock")
        home.ask("snapshot", "save", "a.snapshot")
        home.ask("create", "later")
    (home.data / "log.db").write_bytes(b"not a database any more" * 1000)
    return home


def test_a_store_that_no_longer_opens_is_restored_and_its_files_are_kept(damaged):
    home = damaged
    old = {name: (home.data / name).read_bytes() for name in ("log.db", "state.db")}
    answer = home.alone("snapshot", "restore", "a.snapshot")
    assert answer.code == 0
    assert answer.record["rows"] == 2
    aside = home.data / answer.record["earlierFiles"]
    assert aside.parent == home.data
    assert aside.name.startswith("damaged-")
    assert {name: (aside / name).read_bytes() for name in old} == old
    with home.daemon():
        assert home.ask("get", "kept", "--kind", "kv").record["value"] == 1
        assert home.ask("get", "later").code == 3
        assert home.ask("check").record["problems"] == []
        home.ask("delete", "leader", "--kind", "lock")
        # A token that was given out before never comes again, whatever is restored.
        assert home.ask("claim", "leader", "--kind", "lock").record["lease"]["token"] > 2


def test_the_old_files_are_on_the_disk_under_their_second_names_before_the_first_are_taken(damaged, monkeypatch):
    kept_in_time: list[bool] = []
    fsync = os.fsync

    def and_look(descriptor: int) -> None:
        fsync(descriptor)
        folder = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if folder.name.startswith("damaged-"):
            names = ("log.db", "state.db")
            kept_in_time.append(all((folder / name).samefile(damaged.data / name) for name in names))

    monkeypatch.setattr(os, "fsync", and_look)
    assert damaged.alone("snapshot", "restore", "a.snapshot").code == 0
    assert kept_in_time == [True]


def test_what_was_noted_about_the_lost_store_is_not_taken_for_the_restored_one(damaged):
    """As a start leaves it that went on without damaged commits, and was refused for another reason."""
    (damaged.data / "unsynced").touch()
    answer = damaged.alone("snapshot", "restore", "a.snapshot")
    assert (damaged.data / answer.record["earlierFiles"] / "unsynced").exists()
    assert not (damaged.data / "unsynced").exists()


def test_a_snapshot_from_elsewhere_fills_a_new_folder(damaged, tmp_path):
    away = tmp_path / "backup"
    away.mkdir(mode=0o700)
    os.rename(damaged.data / "a.snapshot", away / "a.snapshot")
    damaged.data = tmp_path / "new"
    answer = damaged.alone("snapshot", "restore", str(away / "a.snapshot"))
    assert (answer.code, "earlierFiles" in answer.record) == (0, False)
    with damaged.daemon():
        assert damaged.ask("get", "kept", "--kind", "kv").code == 0


@pytest.mark.parametrize("file", ["log.db", "complete.new"])
def test_a_disk_that_fails_is_named_in_one_line_and_the_old_files_stay(damaged, file, monkeypatch):
    before, fsync = everything_in(damaged.data), os.fsync

    def fails(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"incoming/{file}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    answer = damaged.alone("snapshot", "restore", "a.snapshot")
    assert answer.code == 74
    assert "Input/output error" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert everything_in(damaged.data) == before


def test_a_bad_snapshot_leaves_the_folder_as_it_was(damaged):
    flip(damaged.data / "a.snapshot", -40)
    before = everything_in(damaged.data)
    answer = damaged.alone("snapshot", "restore", "a.snapshot")
    assert answer.code == 1
    assert "a.snapshot is damaged" in answer.err
    assert everything_in(damaged.data) == before


def everything_in(folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_a_daemon_has_is_left_alone(home):
    with home.daemon():
        home.ask("create", "a")
        home.ask("snapshot", "save", "a.snapshot")
        answer = home.alone("snapshot", "restore", "a.snapshot")
        assert answer.code == 75
        assert len(answer.err.splitlines()) == 1
        assert home.ask("get", "a").code == 0


def test_a_data_folder_is_named_only_when_no_daemon_is_asked(home):
    answer = home.ask("snapshot", "restore", "a.snapshot", "--data", str(home.data))
    assert answer.code == 2
    assert "--data goes with --offline" in answer.err
