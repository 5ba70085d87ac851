"""Verbs run in this process, daemons run in their own: what the tests of the command line share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
