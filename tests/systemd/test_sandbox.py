"""The daemon lives its whole life inside what its unit leaves it, and never tries anything else."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import folder
from tests.daemon.harness import ROOT, Client, Daemon, environment, until
from tests.dynamodb import servers as dynamodb
from tests.redis.servers import Server

__all__ = ["folder"]

SERVICE = ROOT / "systemd" / "statesvc.service"
NETWORK = ROOT / "systemd" / "statesvc-network.conf"


def sandbox(*units: Path) -> list[str]:
    return [sys.executable, "-m", "tests.systemd.sandbox", *map(str, units), "--"]


def _can_be_had() -> bool:
    if os.geteuid() != 0 or not shutil.which("systemd-analyze") or not ctypes.util.find_library("seccomp"):
        return False
    return (
        subprocess.run([*sandbox(SERVICE), "true"], env=environment(), check=False, capture_output=True).returncode == 0
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _can_be_had(), reason="it takes root, libseccomp, systemd-analyze and namespaces"),
]


@pytest.mark.parametrize(
    ("attempt", "fate"),
    [
        ("import os; os.chown('/nowhere', 0, 0)", -signal.SIGSYS),
        ("import os; os.chroot('/')", -signal.SIGSYS),
        ("import os; os.setpriority(0, 0, 5)", -signal.SIGSYS),
        ("import mmap as m; m.mmap(-1, 4096, prot=m.PROT_WRITE | m.PROT_EXEC)", -signal.SIGSYS),
        ("import socket; socket.socket(socket.AF_INET)", 1),
        ("open('/proc/sys/kernel/hostname')", 1),
        ("import os; os.kill(os.getppid(), 0); open('/proc/self/status')", 0),
    ],
)
def test_the_sandbox_holds(attempt, fate):
    """So that a life inside of it means something."""
    command = [*sandbox(SERVICE), sys.executable, "-c", attempt]
    assert subprocess.run(command, env=environment(), check=False, capture_output=True).returncode == fate


def lived_through(client: Client, *, everything: bool = True) -> None:
    """All that a daemon can be asked."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("hello", {"client": "c"}),
        ("create", {"job": {"uuid": "job-1", "status": "QUEUED", "pad": "x" * 200_000}, "seq": 1}),
        ("update", {"jobId": "job-1", "job": {"step": 1}, "seq": 2}),
        ("list", {"filter": {"regex": "^job-[0-9]+$"}, "count": True}),
        ("claim", {"filter": {"status": "QUEUED"}, "holder": "h", "ttl": 60, "seq": 3}),
        ("emit", {"jobId": "job-1", "event": {"type": "note"}, "seq": 4}),
        ("history", {"jobId": "job-1"}),
        ("stats", {}),
        ("health", {}),
        ("stuck", {}),
        ("create", {"kind": "network", "record": {"id": "net", "cidr": "10.0.0.0/24"}, "seq": 5}),
        ("create", {"kind": "ip", "from": "net", "record": {}, "seq": 6}),
        ("watch", {"kind": "job"}),
    ]
    if everything:
        asked += [
            ("check", {"repair": True}),
            ("sweep", {}),
            ("snapshot", {"path": "snapshots/one"}),
            ("freeze", {}),
            ("thaw", {}),
            ("restore", {"path": "snapshots/one"}),
        ]
    for number, (op, fields) in enumerate(asked):
        client.send({"op": op, "requestId": str(number), **fields})
        reply = client.reply()
        while reply["requestId"] != str(number) or "event" in reply:
            reply = client.reply()
        assert reply["success"], (op, reply)


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_daemon_on_its_embedded_engine_never_leaves_its_sandbox(folder, durability):
    with Daemon(folder, "--durability", durability, under=sandbox(SERVICE)).serving() as daemon:
        with daemon.connect() as client:
            lived_through(client)
        daemon.kill()
    with Daemon(folder, under=sandbox(SERVICE)).serving() as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]
        assert daemon.stop() == 0


def test_a_daemon_on_redis_never_leaves_its_sandbox(folder):
    with Server() as server:
        settings = {"storage__redis__endpoint": f"localhost:{server.port}"}
        inside = sandbox(SERVICE, NETWORK)
        with Daemon(
            folder, "--data", str(folder / "data"), backend="redis", settings=settings, under=inside
        ).serving() as daemon:
            with daemon.connect() as client:
                lived_through(client)
            assert daemon.stop() == 0


def test_a_daemon_on_dynamodb_never_leaves_its_sandbox(folder):
    tables = dynamodb.own_tables()
    settings = {
        "storage__dynamodb__endpoint": dynamodb.endpoint(), "storage__dynamodb__region": "eu-west-1",
        "storage__dynamodb__table_name": tables.jobs, "storage__dynamodb__companion_table": tables.companion,
    }  # fmt: skip
    env = dynamodb.environment()
    variables = {**environment(**settings), **env}
    made = subprocess.run(
        [*sandbox(SERVICE, NETWORK), sys.executable, "-m", "statesvc", "init", "--backend", "dynamodb"],
        env=variables, check=False, capture_output=True, timeout=100,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    inside = sandbox(SERVICE, NETWORK)
    with Daemon(folder, backend="dynamodb", settings=settings, env=env, under=inside).start() as daemon:
        until(lambda: daemon.events("serving"), "the tables to be served", 60)
        with daemon.connect() as client:
            lived_through(client, everything=False)
        assert daemon.stop() == 0
