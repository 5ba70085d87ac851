"""The instance lock: one holder, never stale, and no file harmed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from statesvc.process.errors import AlreadyRunning, UnsafePath
from statesvc.process.locks import InstanceLock

HOLD = """
import sys
from statesvc.process.locks import InstanceLock
with InstanceLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data.lock")


def test_a_second_holder_is_refused_with_the_path_and_the_pid_of_the_first(path, start):
    holder = start(HOLD, path)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(AlreadyRunning) as refused:
        InstanceLock(path).acquire()
    assert path in str(refused.value)
    assert f"process {holder.pid}" in str(refused.value)
    assert (refused.value.pid, refused.value.exit_code) == (holder.pid, 75)


def test_the_lock_of_a_killed_holder_is_free_at_once(path, start):
    holder = start(HOLD, path)
    holder.stdout.readline()
    holder.kill()
    holder.wait()
    with InstanceLock(path):
        assert int(Path(path).read_text()) == os.getpid()


def test_two_locks_in_one_process_exclude_each_other(path):
    with InstanceLock(path), pytest.raises(AlreadyRunning):
        InstanceLock(path).acquire()


def test_a_lock_is_given_back_also_where_its_file_can_no_longer_be_written(path, monkeypatch):
    def fails(_fd: int, _length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    lock = InstanceLock(path).acquire()
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", fails)
        lock.release()
    with InstanceLock(path) as again:
        assert again.held


def test_a_released_lock_can_be_taken_again_and_its_file_stays(path):
    lock = InstanceLock(path).acquire()
    inode = os.stat(path).st_ino
    lock.release()
    lock.release()
    assert not lock.held
    assert Path(path).read_bytes() == b""
    with InstanceLock(path):
        assert os.stat(path).st_ino == inode


def test_the_file_is_for_us_alone_whatever_the_umask(path, umask_000):
    with InstanceLock(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_no_child_inherits_the_lock(path):
    with InstanceLock(path) as lock:
        assert not os.get_inheritable(lock._fd)


def test_a_longer_pid_of_the_past_leaves_no_digits_behind(path):
    Path(path).write_text("4194304999\n")
    with InstanceLock(path):
        assert Path(path).read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("torn", [b"41", b"\0\0\0\0\0\0\0\0", b"412\0\0\0\n"])
def test_a_pid_that_a_power_loss_tore_keeps_nobody_out(path, torn):
    Path(path).write_bytes(torn)
    with InstanceLock(path):
        assert Path(path).read_text() == f"{os.getpid()}\n"


def test_a_file_replaced_between_open_and_flock_is_noticed(path, monkeypatch):
    flock = fcntl.flock
    replaced: list[int] = []

    def replace_once_then_flock(fd: int, how: int) -> None:
        if not replaced:
            replaced.append(os.fstat(fd).st_ino)
            os.rename(path, path + ".old")
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", replace_once_then_flock)
    with InstanceLock(path) as lock:
        assert os.path.samestat(os.stat(path), os.fstat(lock._fd))
        assert os.stat(path).st_ino != replaced[0]


def test_a_file_replaced_again_and_again_is_given_up(path, monkeypatch):
    flock = fcntl.flock

    def replace_then_flock(fd: int, how: int) -> None:
        os.unlink(path)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", replace_then_flock)
    with pytest.raises(UnsafePath, match="replaced again and again"):
        InstanceLock(path).acquire()


def test_what_is_no_lock_file_is_refused_and_left_as_it_was(tmp_path):
    link, folder, pipe, text = (tmp_path / name for name in ("link", "folder", "pipe", "poetry.lock"))
    link.symlink_to(tmp_path / "elsewhere")
    folder.mkdir()
    os.mkfifo(pipe)
    text.write_text("# somebody's file\n")
    for path in (link, folder, pipe, text):
        with pytest.raises(UnsafePath, match=path.name) as refused:
            InstanceLock(str(path)).acquire()
        assert refused.value.exit_code == 73
    assert text.read_text() == "# somebody's file\n"
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_with_a_second_name_is_refused(path, tmp_path):
    Path(path).touch()
    os.link(path, tmp_path / "other-name")
    with pytest.raises(UnsafePath, match="hard link"):
        InstanceLock(path).acquire()


def test_a_disk_that_fails_is_told_with_the_name_of_the_file(path, monkeypatch):
    def fails(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "ftruncate", fails)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        InstanceLock(path).acquire()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UnsafePath, match="folder does not exist"):
        InstanceLock(str(tmp_path / "missing" / "data.lock")).acquire()


def test_a_file_of_another_user_is_refused(path, stranger):
    Path(path).touch()
    os.chown(path, stranger, stranger)
    with pytest.raises(UnsafePath, match=f"uid {stranger}"):
        InstanceLock(path).acquire()
