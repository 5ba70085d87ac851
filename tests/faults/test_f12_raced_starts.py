"""F12: starts raced by a foreign uid with umask 000: never one connect, the mode never wider than configured.

The long form: `python -m tests.faults.raced_starts --starts 1000`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, activated, environment, until
from tests.faults import raced_starts
from tests.faults.raced_starts import SETTINGS, Place, Setting, raced
from tests.faults.strangers import STRANGER, ask_as, needs_root

pytestmark = [needs_root, pytest.mark.slow]

needs_activation = pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="systemd-socket-activate is not installed"
)


def in_the_gate(setting: Setting) -> bool:
    """Those with the most in them; what the others show, one of these shows too."""
    return setting.held or setting.squatted or setting.group is not None


@pytest.mark.parametrize(
    "setting",
    [pytest.param(each, id=each.name, marks=[] if in_the_gate(each) else [pytest.mark.long]) for each in SETTINGS],
)
def test_a_stranger_racing_starts_under_umask_000_gets_nothing(setting: Setting):
    if setting.held and not shutil.which("strace"):
        pytest.skip("strace is not installed")
    round_ = raced(setting, starts=2, seed=12)
    assert round_.breaches == []
    assert round_.served == 2
    assert round_.found.connects["connected"] == 0


def test_a_stranger_in_front_of_a_socket_that_is_open_to_all_is_noticed(monkeypatch):
    """So that the silence of the test above means something."""

    def careless(place: Place) -> Daemon:
        daemon = Daemon(place.base, "--socket", str(place.socket), data=place.data, umask=0,
                        settings={"access__socket_mode": "0666"})  # fmt: skip
        daemon.socket = place.socket
        return daemon

    monkeypatch.setattr(raced_starts.Place, "daemon", careless)
    round_ = raced(SETTINGS[0], starts=1, seed=12)
    assert round_.found.connects["connected"] > 0
    assert any("connects ended with connected" in breach for breach in round_.breaches)
    assert any("mode 0666" in breach for breach in round_.breaches)


@pytest.mark.parametrize("above", [0, 2])
def test_the_folders_a_daemon_makes_for_its_data_are_for_it_alone_up_to_the_first(folder, above):
    parts = ["made"] * above
    data = folder.joinpath(*parts, "data")
    with Daemon(folder, data=data, umask=0).serving() as daemon:
        made = [data, *data.parents[:above]]
        assert {each: stat.S_IMODE(each.stat().st_mode) for each in made} == dict.fromkeys(made, 0o700)
        assert daemon.stop() == 0


# --- the socket of a supervisor ------------------------------------------------------------------------------------


@contextmanager
def supervised(folder: Path, path: Path, mode: int) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon below a supervisor that gives its socket this mode, under the most careless umask."""
    folder.chmod(0o755)
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(activated(folder, path), env=environment(), stdout=said, stderr=said, umask=0)
    try:
        until(path.exists, "the supervisor's socket")
        path.chmod(mode)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@needs_activation
def test_at_the_socket_of_a_careless_supervisor_a_stranger_is_told_that_it_is_denied_and_nothing_else(folder):
    """The file is the supervisor's, and so is its mode: the kernel's word about the peer is what counts."""
    path = folder / "activated.sock"
    with supervised(folder, path, mode=0o666):
        for _ in range(2):
            answer = json.loads(ask_as(STRANGER, path))
            assert (answer["success"], answer["code"]) == (False, "denied")
        with Client(path) as client:
            assert client.ask("ping")["success"]


@needs_activation
def test_the_mode_a_supervisor_gave_its_socket_is_never_widened(folder):
    path = folder / "activated.sock"
    with supervised(folder, path, mode=0o600):
        assert "PermissionError" in ask_as(STRANGER, path)
        with Client(path) as client:
            assert client.ask("ping")["success"]
            assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
            assert "PermissionError" in ask_as(STRANGER, path)
