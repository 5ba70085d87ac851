"""Verbs run in this process, daemons run in their own: what the tests of the command line share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from statesvc.cli import cli
from statesvc.cli.session import Session
from statesvc_client.errors import Unavailable

START_SECONDS = 20.0


def plain_environment() -> dict[str, str]:
    """Ours without what would configure the daemon or the verbs."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}


@contextmanager
def daemon(path: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`statesvc serve` on `path`, answering by the time the block begins."""
    command = [sys.executable, "-m", "statesvc", "serve", "--socket", str(path), *flags]
    with subprocess.Popen(
        command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until_serving(path, process)
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=START_SECONDS)


def wait_until_serving(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with Session(path, timeout=1) as session:
                session.ask("ping")
            return
        except Unavailable:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no daemon: {process.communicate()[1]}") from None
            time.sleep(0.01)


@contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A verb in a process of its own, ended with the block if it has not ended by then."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {"env": plain_environment(), **piped, **options}
    command = [sys.executable, "-m", "statesvc", *words]
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line it prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def told_by(process: subprocess.Popen[str]) -> str:
    """The next line on its stderr."""
    assert process.stderr is not None
    return process.stderr.readline()


def ended(process: subprocess.Popen[str]) -> Answer:
    """What it came to, once it has ended by itself."""
    out, err = process.communicate(timeout=START_SECONDS)
    return Answer(process.returncode, out, err)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds; what never does is a failure."""
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def record(self) -> dict:
        return json.loads(self.out)

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words: str, stdin: str | None = None) -> Answer:
    result: Result = CliRunner().invoke(cli, list(words), input=stdin, prog_name="statesvc")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Home:
    """A daemon's places: where it listens and where it keeps its files. Nothing runs until a test starts it."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "s.sock"
        self.data = folder / "data"

    def daemon(self, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return daemon(self.socket, "--data", str(self.data), *flags)

    def ask(self, *words: str, stdin: str | None = None) -> Answer:
        """A verb that talks to the daemon."""
        return run(*words, "--socket", str(self.socket), stdin=stdin)

    def alone(self, *words: str) -> Answer:
        """A verb that does without one."""
        return run(*words, "--offline", "--data", str(self.data))


def heed_interrupts() -> None:
    """What a shell starts in the background, these tests perhaps, is deaf to SIGINT, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
