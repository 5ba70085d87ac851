"""F11: one daemon for one socket and one folder; a second is refused by name (75), a path that is not ours with 73.

A daemon that is refused leaves the world as it was: the first one's files, its lock and its connections, and whatever
stands at a path that is not ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import SECONDS, Daemon, refused, serving, until
from tests.faults.strangers import STRANGER, needs_root

UNSAFE = 73
RUNNING = 75


def traces(path: Path) -> tuple[object, ...]:
    """What a file, folder, link or socket is, down to what is in it: equal before and after if nobody touched it."""
    found = path.lstat()
    inside: object = None
    if path.is_symlink():
        inside = os.readlink(path)
    elif path.is_dir():
        inside = {each.name: traces(each) for each in path.iterdir()}
    elif path.is_file():
        inside = path.read_bytes()
    return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_mtime_ns, inside


# --- two of a kind -------------------------------------------------------------------------------------------------


def refused_for(first: Daemon, second: Callable[[], tuple[int, str]]) -> str:
    """A second daemon is refused with 75, and the first has not noticed; returns what the second said."""
    named = f"process {first.pid} is already using it"
    lock = first.socket.with_name(first.socket.name + ".lock")
    held = [first.socket, lock, first.data / "lock"]
    with first.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        before, said_before = [traces(path) for path in held], first.stderr
        code, said = second()
        assert (code, named in said, said.count("\n")) == (RUNNING, True, 1), said
        assert [traces(path) for path in held] == before
        assert client.ask("get", jobId="job-1")["success"]
        with first.connect() as another:
            assert another.ask("update", jobId="job-1", job={"uuid": "job-1", "step": 2})["success"]
        assert first.stderr == said_before, "the first has nothing to say about it"
    assert first.stop() == 0
    return said


def test_a_second_daemon_on_the_same_socket_is_told_so_and_the_first_never_notices(folder):
    with serving(folder) as first:
        assert str(first.socket) in refused_for(first, lambda: refused(folder, data=folder / "elsewhere"))


def test_a_second_daemon_on_the_same_data_is_told_so_and_the_first_never_notices(folder, socket_folder):
    with serving(folder) as first:
        assert str(first.data / "lock") in refused_for(first, lambda: refused(socket_folder, data=first.data))
        assert not (socket_folder / "s.sock").exists()


def test_the_same_data_by_another_name_is_still_the_same_data(folder, socket_folder):
    """The lock is a file's, not a name's."""
    (socket_folder / "alias").symlink_to(folder)
    with serving(folder) as first:
        refused_for(first, lambda: refused(socket_folder, data=socket_folder / "alias" / "data"))


def test_the_same_socket_by_another_name_is_still_the_same_socket(folder, socket_folder):
    (folder / "run").mkdir(mode=0o700)
    (socket_folder / "alias").symlink_to(folder)
    alias = ("--socket", str(socket_folder / "alias" / "run" / "s.sock"))
    with Daemon(folder / "run", data=folder / "data").serving() as first:
        refused_for(first, lambda: refused(socket_folder, *alias, data=folder / "elsewhere"))


def test_a_daemon_that_hangs_is_still_the_first(folder):
    """Its kernel answers for it; nobody may take its socket because it is slow."""
    with serving(folder) as first:
        first.signal(signal.SIGSTOP)
        before = traces(first.socket)
        assert refused(folder, data=folder / "elsewhere")[0] == RUNNING
        assert refused(folder)[0] == RUNNING
        assert traces(first.socket) == before
        first.signal(signal.SIGCONT)
        with first.connect() as client:
            assert client.ask("ping")["success"]


@pytest.mark.parametrize("what", ["gone", "stale"])
def test_while_the_lock_is_held_a_socket_that_is_gone_or_answers_nobody_is_not_taken_over(folder, what):
    with serving(folder) as first:
        first.socket.unlink()
        if what == "stale":
            leave_stale_socket(first.socket)
        before = traces(folder / "s.sock") if what == "stale" else None
        code, said = refused(folder, data=folder / "elsewhere")
        assert (code, f"process {first.pid}" in said) == (RUNNING, True)
        assert (traces(folder / "s.sock") if what == "stale" else None) == before


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["socket", "data"])
def test_of_many_daemons_started_at_once_one_serves_and_the_others_give_up(folder, shared):
    """Twice: the second time on what the killed winner left behind."""
    for _ in range(2):
        with ExitStack() as stack:
            one_serves([stack.enter_context(one_of_many(folder, shared, place)) for place in range(3)])


def one_serves(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        daemon.start()
    winner = until(lambda: _last_one(daemons), "all but one to give up", 2 * SECONDS)
    losers = [daemon for daemon in daemons if daemon is not winner]
    assert [daemon.exit_code() for daemon in losers] == [RUNNING] * len(losers)
    winner.wait_for_ping()
    with winner.connect() as client:
        assert client.ask("update", jobId="j", job={"uuid": "j", "status": "RUNNING"})["success"]
    assert not [loser.socket for loser in losers if loser.socket != winner.socket and loser.socket.exists()]


def one_of_many(folder: Path, shared: str, place: int) -> Daemon:
    if shared == "socket":
        return Daemon(folder, data=folder / f"data-{place}")
    own = folder / str(place)
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(mode=0o700)
    return Daemon(own, data=folder / "data")


def _last_one(daemons: list[Daemon]) -> Daemon | None:
    alive = [daemon for daemon in daemons if daemon.process is not None and daemon.process.poll() is None]
    return alive[0] if len(alive) == 1 else None


# --- what is left of those before ----------------------------------------------------------------------------------


def test_the_socket_of_a_killed_daemon_is_taken_over(folder):
    with serving(folder) as daemon:
        daemon.kill()
        assert (folder / "s.sock").is_socket()
        with daemon.serving().connect() as client:
            assert client.ask("ping")["success"]
        assert daemon.stop() == 0
    assert not (folder / "s.sock").exists()


def test_the_temporary_name_a_killed_start_left_is_taken_over(folder):
    leave_stale_socket(folder / "s.sock~")
    with serving(folder) as daemon:
        assert not (folder / "s.sock~").exists()
        assert daemon.stop() == 0


def test_a_lock_file_that_names_a_process_of_the_past_holds_nobody_up(folder):
    (folder / "data").mkdir(mode=0o700)
    for lock in (folder / "s.sock.lock", folder / "data" / "lock"):
        lock.write_text(f"{os.getpid()}\n")
    with serving(folder) as daemon:
        assert (folder / "s.sock.lock").read_text() == f"{daemon.pid}\n"
        assert daemon.stop() == 0


def test_a_socket_somebody_else_listens_on_is_not_taken(folder):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s.sock"))
        other.listen()
        before = traces(folder / "s.sock")
        assert refused(folder)[0] == RUNNING
        assert traces(folder / "s.sock") == before


def test_a_socket_that_was_replaced_meanwhile_is_left_to_its_new_owner(folder):
    with serving(folder) as daemon:
        (folder / "s.sock").unlink()
        (folder / "s.sock").write_text("mine now")
        assert daemon.stop() == 0
    assert (folder / "s.sock").read_text() == "mine now"


# --- paths that are not ours ---------------------------------------------------------------------------------------


def a_file(path: Path) -> None:
    path.write_text("precious")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to("target")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_a_stale_socket(path: Path) -> None:
    leave_stale_socket(path.with_name("target"))
    path.symlink_to("target")


def a_link_to_a_folder(path: Path) -> None:
    path.with_name("target").mkdir(mode=0o700)
    path.symlink_to("target")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder_for_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def somebody_elses(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def made(path: Path) -> None:
        make(path)
        os.chown(path, STRANGER, STRANGER)

    made.__name__ = f"{make.__name__} of somebody else"
    return made


def refused_and_untouched(folder: Path, path: Path, make: Callable[[Path], None]) -> None:
    """With something made at the path, a daemon is refused with one line that names it, and nothing has changed."""
    make(path)
    world = [each for each in (path, path.with_name("target")) if os.path.lexists(each)]
    before = [traces(each) for each in world]
    code, said = refused(folder)
    assert (code, said.count("\n")) == (UNSAFE, 1), said
    assert str(path) in said
    assert [traces(each) for each in world] == before
    assert not path.with_name("nowhere").exists()


def in_the_long_form(*values: object) -> Any:
    """What the gate has one of already: each kind of path at the socket and at the data folder, and a link at the names
    beside the socket."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(("s.sock", make) for make in (a_file, a_folder, a_link_to_a_stale_socket, a_pipe)),
        *(in_the_long_form("s.sock", make) for make in (a_link, a_link_to_nowhere)),
        ("s.sock~", a_link_to_a_stale_socket),
        in_the_long_form("s.sock~", a_file),
        ("s.sock.lock", a_link),
        *(in_the_long_form("s.sock.lock", make) for make in (a_file, a_folder, a_pipe)),
    ],
)
def test_a_path_of_the_socket_that_is_something_else_is_refused_and_left_as_it_was(folder, name, make):
    refused_and_untouched(folder, folder / name, make)


@pytest.mark.parametrize("make", [a_file, in_the_long_form(a_link_to_nowhere), a_link_to_a_folder, a_folder_for_all])
def test_a_data_path_that_is_no_folder_of_ours_is_refused_and_left_as_it_was(folder, make):
    refused_and_untouched(folder, folder / "data", make)


FILES = [
    "log.db",
    "log.db-wal",
    "state.db",
    "state.db-wal",
    "watermark",
    "state.watermark",
    "unsynced",
    "watermark.new",
]
FOLDERS = ["incoming"]

SOMETHING_ELSE: list[tuple[str, Callable[[Path], None]]] = [
    *(("log.db", make) for make in (a_link, a_folder, a_pipe)),
    ("log.db-wal", a_link),
    ("watermark", a_pipe),
    ("incoming", a_file),
]
EVERYTHING_ELSE = [
    *((name, make) for name in FILES for make in (a_link, a_link_to_nowhere, a_folder, a_pipe)),
    *((name, make) for name in FOLDERS for make in (a_file, a_link, a_pipe)),
]


@pytest.mark.parametrize(
    ("name", "make"),
    [*SOMETHING_ELSE, *(in_the_long_form(*each) for each in EVERYTHING_ELSE if each not in SOMETHING_ELSE)],
)
def test_a_file_of_the_store_that_is_something_else_is_refused_and_left_as_it_was(folder, name, make):
    """SQLite would follow a link, and keep what belongs to it where nobody looks; who opens a pipe waits for ever."""
    (folder / "data").mkdir(mode=0o700)
    refused_and_untouched(folder, folder / "data" / name, make)


@needs_root
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("log.db", Path.touch),
        *(in_the_long_form(name, Path.touch) for name in FILES[1:]),
        in_the_long_form("incoming", a_folder),
    ],
)
def test_a_file_of_the_store_that_belongs_to_somebody_else_is_refused_and_left_as_it_was(folder, name, make):
    (folder / "data").mkdir(mode=0o700)
    refused_and_untouched(folder, folder / "data" / name, somebody_elses(make))


@needs_root
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("s.sock", leave_stale_socket),
        in_the_long_form("s.sock~", leave_stale_socket),
        in_the_long_form("s.sock.lock", Path.touch),
        ("data", a_folder),
    ],
)
def test_what_belongs_to_somebody_else_is_refused_and_left_as_it_was(folder, name, make):
    refused_and_untouched(folder, folder / name, somebody_elses(make))


def test_a_data_folder_below_a_file_is_refused_in_one_line(folder):
    (folder / "file").write_text("")
    code, said = refused(folder, data=folder / "file" / "data")
    assert (code, said.count("\n")) == (UNSAFE, 1), said


def test_a_socket_folder_that_others_may_write_to_is_refused(folder):
    folder.chmod(0o777)
    code, said = refused(folder)
    assert code == UNSAFE
    assert "0777" in said


@needs_root
def test_a_socket_folder_of_somebody_else_is_refused(folder):
    os.chown(folder, STRANGER, STRANGER)
    code, said = refused(folder)
    assert (code, f"belongs to uid {STRANGER}" in said) == (UNSAFE, True), said
