"""The daemon's socket: never stolen, never wider than asked for, never somebody else's file."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from statesvc.process.errors import AlreadyRunning, BadInheritance, UnsafePath
from statesvc.process.listener import listen, listen_on_inherited

LISTEN = """
import sys
from statesvc.process.errors import ProcessError
from statesvc.process.listener import listen
sys.stdin.readline()
try:
    listener = listen(sys.argv[1])
except ProcessError as error:
    print(error.exit_code, flush=True)
else:
    print("listening", flush=True)
    sys.stdin.read()
    listener.close()
"""

# Looks at the socket and its temporary name as fast as it can until told to stop, and once more then.
SPY = """
import json, os, socket, stat, sys, threading
path, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
connected = seen = widest = 0
def look():
    global connected, seen, widest
    for name in (path, path + "~"):
        with socket.socket(socket.AF_UNIX) as s:
            connected += s.connect_ex(name) == 0
        try:
            widest |= stat.S_IMODE(os.lstat(name).st_mode)
            seen += 1
        except FileNotFoundError:
            pass
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
print("looking", flush=True)
while not told.is_set():
    look()
look()
print(json.dumps({"connected": connected, "seen": seen, "widest": widest}), flush=True)
"""


@pytest.fixture
def path(socket_folder: Path) -> str:
    return str(socket_folder / "s.sock")


def connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def leave_stale_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


# -- what a listener is ----------------------------------------------------------------------------------


def test_a_client_connects_and_close_leaves_only_the_lock_file(path, socket_folder):
    with listen(path) as listening, connect(path) as client:
        server, _ = listening.sock.accept()
        client.sendall(b"hello")
        assert server.recv(5) == b"hello"
        server.close()
    assert names_in(socket_folder) == {"s.sock.lock"}
    listening.close()


def test_the_socket_is_not_inherited_and_does_not_block(path):
    with listen(path) as listening:
        assert not listening.sock.get_inheritable()
        assert not listening.sock.getblocking()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_mode_is_as_asked_for_under_umask_000(path, mode, umask_000):
    with listen(path, mode=mode):
        assert mode_of(path) == mode
    assert os.umask(0) == 0


def test_the_mode_is_as_asked_for_under_a_narrow_umask(path):
    before = os.umask(0o077)
    try:
        with listen(path, mode=0o660):
            assert mode_of(path) == 0o660
    finally:
        os.umask(before)


def test_the_socket_listens_with_its_final_mode_and_group_before_it_gets_its_name(path, monkeypatch, stranger):
    rename, at_rename = os.rename, []

    def look_then_rename(source: str, target: str) -> None:
        connect(source).close()
        at_rename.append((mode_of(source), os.lstat(source).st_gid, os.path.lexists(target)))
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_then_rename)
    with listen(path, mode=0o660, gid=stranger):
        assert at_rename == [(0o660, stranger, False)]


def test_the_group_is_given_before_the_mode_is_opened(path, monkeypatch, stranger, umask_000):
    chmod, at_chmod = os.chmod, []

    def look_then_chmod(name: str, mode: int) -> None:
        at_chmod.append((mode_of(name), os.lstat(name).st_gid))
        chmod(name, mode)

    monkeypatch.setattr(os, "chmod", look_then_chmod)
    with listen(path, mode=0o660, gid=stranger):
        assert at_chmod == [(0o600, stranger)]


def test_a_failed_start_leaves_nothing_but_the_lock_file_and_lets_the_next_one_in(path, socket_folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(5, "no rename today")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(OSError, match="no rename today"):
            listen(path)
    assert names_in(socket_folder) == {"s.sock.lock"}
    listen(path).close()


# -- one at a time ---------------------------------------------------------------------------------------


def test_a_second_daemon_is_refused_and_the_first_never_notices(path):
    with listen(path) as first:
        inode = os.lstat(path).st_ino
        with pytest.raises(AlreadyRunning, match=str(os.getpid())) as refused:
            listen(path)
        assert refused.value.exit_code == 75
        assert os.lstat(path).st_ino == inode
        with pytest.raises(BlockingIOError):
            first.sock.accept()


def test_of_many_starts_at_once_exactly_one_listens(path, start):
    programs = [start(LISTEN, path) for _ in range(6)]
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    answers = [program.stdout.readline().strip() for program in programs]
    assert sorted(answers) == ["75"] * 5 + ["listening"]
    connect(path).close()


def test_a_live_socket_without_our_lock_is_not_stolen(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        inode = os.lstat(path).st_ino
        with pytest.raises(AlreadyRunning, match=path):
            listen(path)
        assert os.lstat(path).st_ino == inode


def test_a_live_socket_with_a_full_backlog_is_not_stolen(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(0)
        with connect(path), pytest.raises(AlreadyRunning):
            listen(path)


def test_a_live_datagram_socket_is_not_stolen(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        with pytest.raises(UnsafePath, match="cannot be probed"):
            listen(path)


def test_a_stale_socket_is_replaced(path):
    leave_stale_socket(path)
    with listen(path):
        connect(path).close()


def test_the_socket_of_a_killed_daemon_is_taken_over(path, start):
    daemon = start(LISTEN, path)
    daemon.stdin.write("go\n")
    daemon.stdin.flush()
    assert daemon.stdout.readline() == "listening\n"
    daemon.kill()
    daemon.wait()
    assert stat.S_ISSOCK(os.lstat(path).st_mode)
    with listen(path):
        connect(path).close()


def test_the_temporary_name_left_by_a_killed_start_is_taken_over(path, socket_folder):
    leave_stale_socket(path + "~")
    with listen(path):
        assert names_in(socket_folder) == {"s.sock", "s.sock.lock"}


def test_close_leaves_a_file_that_is_no_longer_ours(path):
    with listen(path):
        os.unlink(path)
        Path(path).write_text("somebody else's")
    assert Path(path).read_text() == "somebody else's"


def test_close_survives_a_file_that_is_gone(path):
    with listen(path):
        os.unlink(path)


# -- paths that are not ours -----------------------------------------------------------------------------


def test_a_file_a_folder_a_symlink_and_a_pipe_are_refused_and_untouched(socket_folder):
    file, folder, link, pipe = (socket_folder / name for name in ("file", "folder", "link", "pipe"))
    file.write_text("precious")
    folder.mkdir()
    leave_stale_socket(str(socket_folder / "target"))
    link.symlink_to(socket_folder / "target")
    os.mkfifo(pipe)
    before = {path: os.lstat(path) for path in (file, folder, link, pipe)}
    for path, known in before.items():
        with pytest.raises(UnsafePath, match=path.name) as refused:
            listen(str(path))
        assert refused.value.exit_code == 73
        now = os.lstat(path)
        assert (now.st_ino, now.st_mode, now.st_mtime_ns) == (known.st_ino, known.st_mode, known.st_mtime_ns)
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", ["", "~"])
def test_what_somebody_puts_there_in_the_middle_of_a_start_is_refused_and_untouched(path, name, monkeypatch):
    """In a folder open to all others may be quicker than we are."""
    real = socket.socket

    def squatted(*arguments: object, **options: object) -> socket.socket:
        Path(path + name).write_text("quicker")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", squatted)
    with pytest.raises(UnsafePath) as refused:
        listen(path)
    assert refused.value.exit_code == 73
    assert Path(path + name).read_text() == "quicker"


def test_something_else_at_the_temporary_name_is_refused_and_untouched(path):
    Path(path + "~").write_text("an editor's backup")
    with pytest.raises(UnsafePath, match=r"s\.sock~"):
        listen(path)
    assert Path(path + "~").read_text() == "an editor's backup"


def test_a_stale_socket_of_another_user_is_refused(path, stranger):
    leave_stale_socket(path)
    os.chown(path, stranger, stranger)
    with pytest.raises(UnsafePath, match=f"uid {stranger}"):
        listen(path)
    assert os.lstat(path).st_uid == stranger


def test_a_folder_of_another_user_is_refused(socket_folder, path, stranger):
    os.chown(socket_folder, stranger, stranger)
    with pytest.raises(UnsafePath, match=f"belongs to uid {stranger}"):
        listen(path)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(socket_folder, path, mode):
    socket_folder.chmod(mode)
    with pytest.raises(UnsafePath, match=f"{mode:04o}"):
        listen(path)
    assert names_in(socket_folder) == set()


def test_a_sticky_folder_is_accepted(socket_folder, path):
    socket_folder.chmod(0o1777)
    with listen(path):
        connect(path).close()


def test_a_folder_that_is_a_symlink_is_refused(socket_folder):
    (socket_folder / "real").mkdir(mode=0o700)
    (socket_folder / "link").symlink_to("real")
    with pytest.raises(UnsafePath, match="symbolic link"):
        listen(str(socket_folder / "link" / "s.sock"))
    assert names_in(socket_folder / "real") == set()


def test_a_missing_folder_is_made_for_us_alone(socket_folder, umask_000):
    with listen(str(socket_folder / "new" / "s.sock")):
        assert mode_of(str(socket_folder / "new")) == 0o700


def test_only_the_last_folder_is_made(socket_folder):
    with pytest.raises(UnsafePath, match="No such file"):
        listen(str(socket_folder / "a" / "b" / "s.sock"))
    assert names_in(socket_folder) == set()


def test_a_path_too_long_for_a_unix_socket_is_explained(socket_folder):
    limit = 106 - len(str(socket_folder)) - 1
    with listen(str(socket_folder / ("x" * limit))):
        pass
    with pytest.raises(UnsafePath, match=r"107 bytes long.*at most 106"):
        listen(str(socket_folder / ("x" * (limit + 1))))


def test_a_relative_path_in_the_current_folder_works(socket_folder, monkeypatch):
    monkeypatch.chdir(socket_folder)
    with listen("s.sock"):
        connect(str(socket_folder / "s.sock")).close()
    assert names_in(socket_folder) == {"s.sock.lock"}


@pytest.mark.parametrize("path", ["", "/", "somewhere/", "a\0b"])
def test_what_is_no_name_is_refused(path):
    with pytest.raises(UnsafePath, match="not the name of a socket"):
        listen(path)


# -- strangers -------------------------------------------------------------------------------------------


def test_a_stranger_racing_a_hundred_starts_under_umask_000_never_connects(
    socket_folder, path, start, stranger, umask_000
):
    socket_folder.chmod(0o755)  # the stranger may look; only the socket's own mode protects it
    spy = start(SPY, path, stranger)
    assert spy.stdout.readline() == "looking\n"
    for _ in range(100):
        listen(path).close()
    with listen(path):
        spy.stdin.write("stop\n")
        spy.stdin.flush()
        found = json.loads(spy.stdout.readline())
    assert found["connected"] == 0
    assert found["seen"] > 0
    assert found["widest"] == 0o600


# -- sockets of a supervisor -----------------------------------------------------------------------------


def test_an_inherited_socket_keeps_its_file(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        with listen_on_inherited(sock) as listening:
            assert listening.path == path
            connect(path).close()
    assert stat.S_ISSOCK(os.lstat(path).st_mode)


def test_an_inherited_socket_of_another_sort_is_refused(path):
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as silent,
    ):
        with pytest.raises(BadInheritance, match="not a Unix stream socket"):
            listen_on_inherited(datagrams)
        with pytest.raises(BadInheritance, match="does not listen") as refused:
            listen_on_inherited(silent)
    assert refused.value.exit_code == 78
