"""A supervisor of systemd's kind starts the daemon: it is told what it needs to know and its socket is used."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, activated, environment, serving, until

needs_activation = pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="systemd-socket-activate is not installed"
)


@pytest.fixture
def supervisor(folder) -> Iterator[socket.socket]:
    """A socket that is told what a supervisor is told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(30)
        yield sock


def told(supervisor: socket.socket) -> str:
    return supervisor.recv(4096).decode()


def test_a_supervisor_is_told_that_the_daemon_serves_lives_and_stops(folder, supervisor):
    env = {"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "100000"}
    with Daemon(folder, env=env).start() as daemon:
        heard = [told(supervisor)]
        while not heard[-1].startswith("READY=1"):
            heard.append(told(supervisor))
        assert heard[-1] == "READY=1\nSTATUS=serving sqlite"
        assert [told(supervisor) for _ in range(5)] == ["WATCHDOG=1"] * 5
        daemon.signal(signal.SIGTERM)
        while not (last := told(supervisor)).startswith("STOPPING=1"):
            assert last == "WATCHDOG=1"
        assert daemon.exit_code() == 0


def test_a_supervisor_that_had_no_room_for_it_is_told_later_that_the_daemon_serves(folder, supervisor):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others, suppress(BlockingIOError):
        others.setblocking(False)
        while True:
            others.sendto(b"of another service", supervisor.getsockname())
    with serving(folder, env={"NOTIFY_SOCKET": supervisor.getsockname()}) as daemon:
        until(lambda: daemon.events("serving"), "the daemon to have said so")
        while (heard := told(supervisor)) == "of another service":
            pass
        assert heard == "READY=1\nSTATUS=serving sqlite"


def test_a_corrupt_store_is_never_ready_and_says_why_on_one_line(folder, supervisor):
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / "log.db").write_bytes(b"this is no database" * 20)
    with Daemon(folder, env={"NOTIFY_SOCKET": supervisor.getsockname()}).start() as daemon:
        assert daemon.exit_code() == 65
        assert told(supervisor).startswith("STOPPING=1")
        (line,) = daemon.events("data_corrupt")
        assert line["level"] == "error"
        assert str(folder / "data" / "log.db") in line["why"]


def test_a_daemon_whose_log_nobody_reads_serves_and_ends_all_the_same(folder):
    """The pipe is full from the first line on, as that of a supervisor that was stopped."""
    reading, writing = os.pipe()
    os.write(writing, b"x" * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
    with Daemon(folder) as daemon:
        daemon.process = subprocess.Popen(daemon.command, env=environment(), stderr=writing)
        daemon.wait_for_ping()
        with daemon.connect() as client:
            assert client.ask("create", job={"uuid": "job-1"})["success"]
        assert daemon.stop() == 0
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_daemon_started_without_standard_streams_serves_and_ends(folder, closed):
    without = " ".join(f"{number}>&-" for number in closed)
    with serving(folder, under=["sh", "-c", f'exec "$@" {without}', "sh"]) as daemon:
        assert {os.readlink(f"/proc/{daemon.pid}/fd/{number}") for number in closed} == {os.devnull}
        with daemon.connect() as client:
            assert client.ask("create", job={"uuid": "job-1"})["success"]
        assert daemon.stop() == 0


@needs_activation
def test_several_sockets_of_a_supervisor_are_refused_by_their_names(folder):
    command = activated(folder, folder / "a.sock", folder / "b.sock")
    command[1:1] = ["--fdname=agents:people"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said)
    try:
        until((folder / "b.sock").exists, "the supervisor's sockets")
        with Client(folder / "a.sock"):
            assert process.wait(30) == 78
    finally:
        process.kill()
        process.wait()
    assert "agents, people" in (folder / "said").read_text()


def is_listened_to(path: Path) -> bool:
    """The file is there a moment before anybody listens."""
    try:
        Client(path).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


@needs_activation
def test_a_daemon_takes_over_the_socket_of_its_supervisor_and_leaves_it_there(folder):
    path = folder / "activated.sock"
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(activated(folder, path), env=environment(), stdout=said, stderr=said)
    try:
        until(lambda: is_listened_to(path), "the supervisor's socket")
        with Client(path) as client:
            assert client.ask("create", job={"uuid": "job-1"})["success"]
        assert not (folder / "unused.sock").exists()
        announced = f"statesvc serves sqlite on {path}\n"
        until(lambda: announced in (folder / "said").read_text(), "the daemon to say where it serves")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
        assert path.is_socket(), "the file belongs to the supervisor"
    finally:
        process.kill()
        process.wait()
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]
