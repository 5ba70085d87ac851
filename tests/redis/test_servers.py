"""The servers of the tests: they end with whoever started them, and keep their data over a restart if told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis.servers import Server, eventually, settings_from_url, shared_server, shared_settings

ROOT = Path(__file__).parents[2]


def test_a_server_ends_with_the_process_that_started_it():
    program = "from tests.redis.servers import *; s = Server().start(); print(s.pid, s.folder, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        server, folder = process.stdout.readline().decode().split()
        assert _runs(int(server))
        assert Path(folder).is_dir()
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not _runs(int(server)), "the end of the server")
        eventually(lambda: not Path(folder).exists(), "the end of its folder")


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_server_that_keeps_its_data_has_it_after_it_was_killed():
    with Server(appendonly="yes", appendfsync="always") as server:
        server.say("SET", "k", "v")
        server.kill()
        assert server.start().say("GET", "k") == b"v"


def test_a_server_of_the_environment_is_preferred(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("STATESVC_TEST_REDIS_URL", raising=False)
    assert shared_settings("n")["storage.redis.endpoint"] == shared_server().address
    monkeypatch.setenv("STATESVC_TEST_REDIS_URL", "rediss://u:p@host:1/2")
    expected = settings_from_url("rediss://u:p@host:1/2") | {"storage.redis.namespace": "n"}
    assert shared_settings("n") == expected
