"""The units pass systemd's own judges: hardened, and without a wrong word."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from statesvc.config import Settings
from statesvc.server import CLOSE_SECONDS

UNITS = Path(__file__).parents[2] / "systemd"

# The most exposure that is tolerated, of 10 (systemd-analyze security).
MAX_EXPOSURE = 0.5
MAX_EXPOSURE_WITH_NETWORK = 1.2

UNIT_KINDS = ("service", "socket")

needs_systemd_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


def settings(unit: str) -> dict[str, str]:
    lines = (UNITS / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.fixture
def machine(tmp_path) -> Path:
    """The root of a machine on which the units are installed."""
    installed = tmp_path / "etc" / "systemd" / "system"
    installed.mkdir(parents=True)
    for unit in ("statesvc.service", "statesvc.socket"):
        shutil.copy(UNITS / unit, installed)
    return tmp_path


def give_network(machine: Path) -> None:
    """As the drop-in says at its top that it is done."""
    (named,) = re.findall(r"Install as (/\S+)", (UNITS / "statesvc-network.conf").read_text())
    target = machine / named.lstrip("/")
    target.parent.mkdir()
    shutil.copy(UNITS / "statesvc-network.conf", target)


def exposure(machine: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", f"--root={machine}", "--no-pager", "statesvc.service"]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"Overall exposure level for statesvc\.service: ([0-9.]+)", report.stdout)
    assert match, report.stdout + report.stderr
    return float(match[1])


@needs_systemd_analyze
def test_the_service_is_hardly_exposed(machine):
    assert exposure(machine) <= MAX_EXPOSURE


@needs_systemd_analyze
def test_the_service_with_network_is_little_exposed(machine):
    without = exposure(machine)
    give_network(machine)
    assert without < exposure(machine) <= MAX_EXPOSURE_WITH_NETWORK


@needs_systemd_analyze
def test_the_units_verify_without_a_complaint(tmp_path):
    for unit in ("statesvc.service", "statesvc.socket"):
        shutil.copy(UNITS / unit, tmp_path)
    for drop_in in (False, True):
        if drop_in:
            (tmp_path / "statesvc.service.d").mkdir()
            shutil.copy(UNITS / "statesvc-network.conf", tmp_path / "statesvc.service.d" / "network.conf")
        command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / f"statesvc.{of}") for of in UNIT_KINDS)]
        report = subprocess.run(command, capture_output=True, text=True, check=False)
        complaints = [line for line in report.stderr.splitlines() if "statesvc" in line or "network.conf" in line]
        assert (report.returncode, complaints) == (0, []), report.stderr


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="systemd-sysusers is not installed")
def test_the_sysusers_file_makes_the_user_the_service_runs_as(tmp_path):
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(UNITS / "statesvc.sysusers")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    made = [line.split(":") for line in (tmp_path / "etc" / "passwd").read_text().splitlines()]
    assert [user[0] for user in made] == [settings("statesvc.service")["User"]]
    assert made[0][6] == "/usr/sbin/nologin"


def test_service_and_socket_agree_on_the_path_and_the_user():
    service, sock = settings("statesvc.service"), settings("statesvc.socket")
    assert f"--socket {sock['ListenStream']}" in service["ExecStart"]
    assert sock["ListenStream"] == f"/run/{service['RuntimeDirectory']}/statesvc.sock"
    assert f"--data /var/lib/{service['StateDirectory']}" in service["ExecStart"]
    assert sock["SocketUser"] == service["User"]


def test_the_sockets_file_outlives_a_restart_of_the_daemon():
    assert settings("statesvc.service")["RuntimeDirectoryPreserve"] == "yes"


def test_a_long_replay_is_not_cut_off_by_the_supervisor():
    """It is ready only after the replay; killed in the middle of one, it would begin again, and again."""
    service = settings("statesvc.service")
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity"


def test_the_supervisor_waits_longer_for_the_end_than_the_daemon_does():
    longest_end = Settings().drain_seconds + max(Settings().drain_seconds, CLOSE_SECONDS)
    assert float(settings("statesvc.service")["TimeoutStopSec"].removesuffix("s")) > longest_end
