"""Real processes for these tests: Python programs run beside the test, as we are or as a stranger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A uid and gid that nobody has.
STRANGER = 54321

Program = subprocess.Popen[str]
Start = Callable[..., Program]


@pytest.fixture
def stranger() -> int:
    """The uid and gid of somebody else. Becoming that one takes root."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    return STRANGER


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `python -c code arguments...` with pipes on its stdin and stdout; whatever is left is killed."""
    started: list[Program] = []

    def start_program(code: str, *arguments: object, **options: object) -> Program:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
        program = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(program)
        return program

    yield start_program
    for program in started:
        program.kill()
        program.communicate()


@pytest.fixture
def umask_000() -> Iterator[None]:
    """The most careless umask there is."""
    before = os.umask(0)
    yield
    os.umask(before)
