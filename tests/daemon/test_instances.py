"""One daemon for one socket and one folder; what is not its own it leaves alone, and who is not let in stays out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, environment, refused, serving, until

UNSAFE = 73
RUNNING = 75
BAD_CONFIGURATION = 78

STRANGER = 54321

CONNECT_AS = """
import json, os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
try:
    sock.connect(sys.argv[1])
except OSError as refused:
    print(json.dumps({"refused": type(refused).__name__}))
    sys.exit()
try:
    sock.sendall(b'{"op":"get","jobId":"job-1"}\\n')
except BrokenPipeError:
    pass  # already answered and closed
print(sock.makefile().readline() or "{}")
"""


def ask_as(uid: int, path: Path) -> str:
    """What a process of that user hears."""
    command = [sys.executable, "-c", CONNECT_AS, str(path), str(uid)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


# --- two of a kind -------------------------------------------------------------------------------------------------


def test_a_second_daemon_on_the_same_socket_is_told_so_and_the_first_never_notices(folder):
    with serving(folder) as first, first.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        code, said = refused(folder, data=folder / "elsewhere")
        assert code == RUNNING
        assert f"process {first.pid} is already using it" in said
        assert client.ask("get", jobId="job-1")["success"]
        with first.connect() as another:
            assert another.ask("get", jobId="job-1")["success"]
        assert first.stderr.count("\n") == 2, "the first has nothing to say about it"
        assert first.stop() == 0


def test_a_second_daemon_on_the_same_data_is_told_so_and_the_first_never_notices(folder, socket_folder):
    with serving(folder) as first, first.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        code, said = refused(socket_folder, data=first.data)
        assert code == RUNNING
        assert str(first.data / "lock") in said
        assert not (socket_folder / "s.sock").exists()
        assert client.ask("update", jobId="job-1", job={"uuid": "job-1", "step": 2})["success"]
        assert first.stop() == 0


def test_of_many_daemons_started_at_once_one_serves_and_the_others_give_up(folder):
    daemons = [Daemon(folder).start() for _ in range(5)]
    try:
        winner = until(lambda: _last_one(daemons), "all but one to give up")
        codes = [daemon.exit_code() for daemon in daemons if daemon is not winner]
        assert codes == [RUNNING] * 4
        winner.wait_for_ping()
    finally:
        for daemon in daemons:
            daemon.kill()


def _last_one(daemons: list[Daemon]) -> Daemon | None:
    alive = [daemon for daemon in daemons if daemon.process is not None and daemon.process.poll() is None]
    return alive[0] if len(alive) == 1 else None


def test_the_socket_of_a_killed_daemon_is_taken_over(folder):
    with serving(folder) as daemon:
        daemon.kill()
        assert (folder / "s.sock").is_socket()
        with daemon.serving().connect() as client:
            assert client.ask("ping")["success"]
        assert daemon.stop() == 0
    assert not (folder / "s.sock").exists()


def test_a_socket_somebody_else_listens_on_is_not_taken(folder):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s.sock"))
        other.listen()
        assert refused(folder)[0] == RUNNING
        assert (folder / "s.sock").is_socket()


def test_a_socket_that_was_replaced_meanwhile_is_left_to_its_new_owner(folder):
    with serving(folder) as daemon:
        (folder / "s.sock").unlink()
        (folder / "s.sock").write_text("mine now")
        assert daemon.stop() == 0
    assert (folder / "s.sock").read_text() == "mine now"


# --- paths that are not ours ---------------------------------------------------------------------------------------


def make_file(path: Path) -> None:
    path.write_text("precious")


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to("target")


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [make_file, make_folder, make_link, make_dangling_link])
def test_a_socket_path_that_is_something_else_is_refused_and_left_as_it_was(folder, make):
    path = folder / "s.sock"
    make(path)
    before = path.lstat()
    code, said = refused(folder)
    assert code == UNSAFE
    assert str(path) in said
    after = path.lstat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("make", [make_file, make_link, make_dangling_link])
def test_a_data_path_that_is_no_folder_is_refused_and_left_as_it_was(folder, make):
    make(folder / "data")
    before = (folder / "data").lstat()
    code, said = refused(folder)
    assert (code, "Traceback" in said) == (UNSAFE, False), said
    assert str(folder / "data") in said
    assert (folder / "data").lstat().st_ino == before.st_ino


def test_a_link_to_a_data_folder_is_refused(folder):
    (folder / "real").mkdir(mode=0o700)
    (folder / "data").symlink_to("real")
    assert refused(folder)[0] == UNSAFE
    assert list((folder / "real").iterdir()) == []


def test_a_data_folder_below_a_file_is_refused_in_one_line(folder):
    (folder / "file").write_text("")
    code, said = refused(folder, data=folder / "file" / "data")
    assert (code, said.count("\n")) == (UNSAFE, 1), said


def test_a_socket_folder_that_others_may_write_to_is_refused(folder):
    folder.chmod(0o777)
    code, said = refused(folder)
    assert code == UNSAFE
    assert "0777" in said


# --- strangers -----------------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@needs_root
def test_a_foreign_user_cannot_connect(folder):
    folder.chmod(0o755)
    with serving(folder, backend="memory") as daemon:
        assert "PermissionError" in ask_as(STRANGER, daemon.socket)


@needs_root
def test_a_foreign_user_is_denied_even_when_the_socket_is_open_to_all(folder):
    folder.chmod(0o755)
    with serving(folder, backend="memory", settings={"access__socket_mode": "0666"}) as daemon:
        answer = ask_as(STRANGER, daemon.socket)
        assert '"code":"denied"' in answer
        assert f"uid {STRANGER}" in answer
        assert daemon.events("peer_denied")[0]["uid"] == STRANGER
        with daemon.connect() as client:
            assert client.ask("ping")["success"]


@needs_root
def test_a_user_who_is_listed_may_connect(folder):
    folder.chmod(0o755)
    settings = {"access__socket_mode": "0666", "access__uids": f"0,{STRANGER}"}
    with serving(folder, backend="memory", settings=settings) as daemon:
        assert '"code":"not_found"' in ask_as(STRANGER, daemon.socket)
        assert '"code":"denied"' in ask_as(STRANGER + 1, daemon.socket)


@needs_root
def test_the_overflow_user_is_denied_even_when_it_is_listed(folder):
    folder.chmod(0o755)
    settings = {"access__socket_mode": "0666", "access__uids": "0,65534"}
    with serving(folder, backend="memory", settings=settings) as daemon:
        assert '"code":"denied"' in ask_as(65534, daemon.socket)


def test_the_files_of_a_store_are_for_its_owner_alone(folder):
    with serving(folder, umask=0) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        modes = {path.name: path.stat().st_mode & 0o777 for path in (daemon.data, *daemon.data.iterdir())}
        assert modes.pop("data") == 0o700
        assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
        assert daemon.socket.stat().st_mode & 0o777 == 0o600


# --- configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--durability", "maybe"), "durability"),
        (("--drain-seconds", "-1"), "drain_seconds"),
        (("--config", "/nowhere/statesvc.yml"), "/nowhere/statesvc.yml"),
        (("--log-level", "loud"), "log.level"),
    ],
)
def test_a_bad_configuration_is_named_before_anything_is_touched(folder, flags, word):
    code, said = refused(folder, *flags)
    assert code == BAD_CONFIGURATION
    assert word in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("stderr")) == []


def test_an_unknown_setting_in_the_environment_is_named(folder):
    code, said = refused(folder, settings={"limits__clientz": 3})
    assert code == BAD_CONFIGURATION
    assert "limits.clientz" in said


def test_an_unknown_engine_is_named(folder):
    code, said = refused(folder, backend="etcd")
    assert code == BAD_CONFIGURATION
    assert "etcd" in said


def test_a_parent_descriptor_that_is_not_open_is_a_bad_configuration(folder):
    command = [sys.executable, "-m", "statesvc", "serve", "--socket", str(folder / "s.sock"), "--backend", "memory"]
    run = subprocess.run(
        [*command, "--parent-fd", "77"], env=environment(), capture_output=True, text=True, check=False
    )
    assert run.returncode == BAD_CONFIGURATION
    assert "descriptor 77" in run.stderr
    assert not (folder / "s.sock").exists()
