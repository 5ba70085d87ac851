"""What the daemon's socket must not wait for. By modules, not by time: a busy machine is no finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, environment

PROGRAM = """
import json, sys
import statesvc.cli
from statesvc.config import load
load({"socket": "/run/x.sock", "backend": "memory", "log.level": "debug"}, dict(STATESVC_LIMITS__CLIENTS="5"))
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""

OWN = {"click", "msgspec", "sortedcontainers", "statesvc", "statesvc_client", "structlog", "uvloop"}
"""What a daemon needs on any engine."""

TAKEN_ALONG = {"attr", "cython_runtime", "pygments", "rich", "typing_extensions"}
"""What those load in their turn, some of it only where it is installed."""

HEAVY = {"asyncore", "email", "ftplib", "http", "multiprocessing", "sqlite3", "unittest", "xml", "xmlrpc"}
"""Parts of the standard library that drivers bring along and that an embedded engine has no use for."""

TELL = """
import atexit, json, sys
atexit.register(lambda: open({path!r}, "w").write(json.dumps(sorted(sys.modules))))
"""
"""Loaded before anything else: at its end the process tells what it has loaded."""


def test_flags_and_environment_need_neither_yaml_nor_structlog_nor_pydantic():
    answer = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert {"yaml", "structlog", "pydantic", "rich", "difflib"}.isdisjoint(json.loads(answer.stdout))


def loaded_by_a_daemon(folder: Path, backend: str) -> set[str]:
    """Every module a daemon has loaded from its start to its end, with some work between them."""
    told = folder / "modules"
    (folder / "sitecustomize.py").write_text(TELL.format(path=str(told)))
    paths = f"{folder}:{environment()['PYTHONPATH']}"
    with Daemon(folder, backend=backend, env={"PYTHONPATH": paths}) as daemon:
        daemon.serving()
        with daemon.connect() as client:
            client.hello("c")
            assert client.ask("create", job={"uuid": "a", "status": "QUEUED"}, seq=1)["success"]
            assert client.ask("claim", seq=2)["success"]
            assert client.ask("list", filter={"status": "RUNNING"})["success"]
            assert client.ask("health")["success"]
        assert daemon.stop() == 0
    loaded = set(json.loads(told.read_text()))
    assert "statesvc.server" in loaded
    return loaded


@pytest.mark.parametrize(("backend", "driver"), [("sqlite", {"apsw"}), ("memory", set())])
def test_a_daemon_on_an_embedded_engine_loads_no_driver_of_another(socket_folder: Path, backend: str, driver: set[str]):
    loaded = loaded_by_a_daemon(socket_folder, backend)
    engines = {name.split(".")[2] for name in loaded if name.startswith("statesvc.backends.")}
    assert engines & {"memory", "sqlite", "redis", "dynamodb"} == {backend}
    outermost = {name.partition(".")[0] for name in loaded}
    assert {"redis", "hiredis", "botocore", "aiohttp"}.isdisjoint(outermost)
    assert outermost & HEAVY == set()
    # Whatever else is added here costs every daemon memory and time before its socket answers.
    ours = {name for name in outermost if not name.startswith("_")} - set(sys.stdlib_module_names) - TAKEN_ALONG
    assert ours <= OWN | driver | {"sitecustomize", "usercustomize"}
