"""What a supervisor is told and what it hands over."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from statesvc.process.errors import BadInheritance
from statesvc.process.notify import Notifier, activated_socket, watchdog_interval

ROOT = Path(__file__).parents[2]


@pytest.fixture
def supervisor(socket_folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(socket_folder / "notify"))
        sock.settimeout(10)
        yield sock


# -- telling ---------------------------------------------------------------------------------------------


def test_a_supervisor_is_told_of_each_state(supervisor):
    notifier = Notifier(supervisor.getsockname())
    assert all((notifier.ready("serving"), notifier.alive(), notifier.stopping()))
    told = [supervisor.recv(4096) for _ in range(3)]
    assert told == [b"READY=1\nSTATUS=serving", b"WATCHDOG=1", b"STOPPING=1"]


def test_an_abstract_address_works():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0statesvc-test-{os.getpid()}")
        sock.settimeout(10)
        assert Notifier(f"@statesvc-test-{os.getpid()}").ready()
        assert sock.recv(4096) == b"READY=1"


def test_a_newline_in_a_status_starts_no_assignment(supervisor):
    Notifier(supervisor.getsockname()).stopping("one\nREADY=1")
    assert supervisor.recv(4096) == b"STOPPING=1\nSTATUS=one READY=1"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "/nowhere/to/be/found"])
def test_without_a_listening_supervisor_nothing_happens(address):
    notifier = Notifier(address)
    assert not notifier.ready()
    assert not notifier.alive()


def test_a_supervisor_that_does_not_read_never_blocks_us(supervisor):
    notifier = Notifier(supervisor.getsockname())
    assert not all(notifier.alive() for _ in range(10_000))


def test_ready_is_said_again_until_it_is_taken(supervisor):
    notifier = Notifier(supervisor.getsockname())
    while notifier.alive():
        pass
    assert not notifier.ready("serving")
    notifier.ready_again()
    supervisor.setblocking(False)
    with suppress(BlockingIOError):
        while supervisor.recv(4096) == b"WATCHDOG=1":
            pass
    notifier.ready_again()
    notifier.ready_again()
    assert supervisor.recv(4096) == b"READY=1\nSTATUS=serving"
    with pytest.raises(BlockingIOError):
        supervisor.recv(4096)


def test_the_address_is_taken_out_of_the_environment(supervisor):
    environment = {"NOTIFY_SOCKET": supervisor.getsockname(), "HOME": "/"}
    assert Notifier.from_environment(environment).ready()
    assert environment == {"HOME": "/"}
    assert not Notifier.from_environment(environment).ready()


# -- the watchdog ----------------------------------------------------------------------------------------


def test_the_watchdog_is_fed_so_often_that_one_may_be_lost():
    environment = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    assert watchdog_interval(environment) == 10.0
    assert environment == {}


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}])
def test_no_watchdog_is_fed_that_is_not_ours(environment):
    assert watchdog_interval(environment) is None


def test_a_watchdog_without_a_pid_is_ours():
    assert watchdog_interval({"WATCHDOG_USEC": "3000000"}) == 1.0


def test_a_watchdog_time_that_is_no_number_is_named():
    with pytest.raises(BadInheritance, match="WATCHDOG_USEC='soon'"):
        watchdog_interval({"WATCHDOG_USEC": "soon"})


# -- socket activation -----------------------------------------------------------------------------------


def test_a_passed_on_socket_is_taken_and_the_environment_is_cleaned(socket_folder):
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(socket_folder / "s.sock"))
        given.listen()
        fd = os.dup(given.fileno())
        os.set_inheritable(fd, True)
        environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "statesvc"}
        sock = activated_socket(environment, first=fd)
        assert sock is not None
        with sock:
            assert sock.getsockname() == str(socket_folder / "s.sock")
            assert not sock.get_inheritable()
            assert environment == {}


def test_sockets_meant_for_another_process_are_left_alone():
    assert activated_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    assert activated_socket({"LISTEN_PID": "1", "LISTEN_FDS": "2"}) is None
    assert activated_socket({"LISTEN_FDS": "1"}) is None
    assert activated_socket({}) is None


def test_a_descriptor_that_is_no_socket_is_named(tmp_path):
    with open(tmp_path / "file", "w") as file:
        fd = file.fileno()
        with pytest.raises(BadInheritance, match=f"descriptor {fd}"):
            activated_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, first=fd)


@pytest.mark.parametrize(
    ("names", "told"), [("agents:people", "2 sockets (agents, people) were"), ("", "2 sockets were")]
)
def test_several_sockets_are_refused_by_their_names(names, told):
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": names}
    with pytest.raises(BadInheritance, match=f"^LISTEN_FDS=2: {re.escape(told)}"):
        activated_socket(environment)


@pytest.mark.skipif(not shutil.which("systemd-socket-activate"), reason="systemd-socket-activate is not installed")
def test_a_socket_of_systemd_socket_activate_serves_the_client_that_woke_us(socket_folder):
    path = str(socket_folder / "s.sock")
    serve_once = (
        "from statesvc.process.notify import activated_socket\n"
        "from statesvc.process.listener import listen_on_inherited\n"
        "listening = listen_on_inherited(activated_socket())\n"
        "connection, _ = listening.sock.accept()\n"
        "connection.sendall(listening.path.encode())\n"
    )
    command = ["systemd-socket-activate", "-l", path, "--fdname=statesvc", f"--setenv=PYTHONPATH={ROOT}"]
    activator = subprocess.Popen([*command, sys.executable, "-c", serve_once], stderr=subprocess.PIPE, text=True)
    try:
        assert activator.stderr
        assert "Listening on" in activator.stderr.readline()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.settimeout(30)
            assert client.recv(4096) == path.encode()
    finally:
        activator.kill()
        activator.communicate()
