"""What the client's tests share: a scripted daemon, a real one, and waiting without sleeping for luck."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statesvc_client.face import Face
from tests.client.scripted import ScriptedDaemon

ROOT = Path(__file__).parents[2]


def plain_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    return {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}


def until(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for: {what}"
        time.sleep(0.005)


async def until_soon(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for: {what}"
        await asyncio.sleep(0.005)


def held(state: Face, id: str) -> dict[str, Any]:
    """The record the cache holds; not to hold one is a failure."""
    record = state.get(id)
    assert record is not None
    return record


class RealDaemon:
    """`statesvc serve` on sqlite, killed and started again at will."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "state.sock")
        self._data = folder / "data"
        self._log = folder / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, backend: str = "sqlite") -> None:
        command = [sys.executable, "-m", "statesvc", "serve", "--socket", self.path, "--backend", backend]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(self._data)], stdout=log, stderr=log, env=plain_environment()
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(30)


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("STATESVC_", "JOBLET_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", plain_environment()["PYTHONPATH"])


@pytest.fixture
async def scripted(socket_folder: Path) -> AsyncIterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(socket_folder / "state.sock")
    await daemon.start()
    yield daemon
    await daemon.stop()


@pytest.fixture
def daemon(socket_folder: Path) -> Iterator[RealDaemon]:
    running = RealDaemon(socket_folder)
    running.start()
    yield running
    running.stop()
