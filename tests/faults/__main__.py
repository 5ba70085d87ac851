"""Everything that attacks the promises, in one go: `python -m tests.faults`, or `make faults`.

Owns which parts there are and how large each is. Must not know what a part does: each is a program of its own, which
shows its progress, and tells what came out as program.py has it.

In minutes by default. `--full` takes the sizes the project is held to, some hours on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.engines.addresses import LONG
from tests.faults import program

SCENARIOS = "scenarios"


class Part(NamedTuple):
    """A program below tests.faults."""

    name: str
    few: str | None
    """Its arguments for some minutes; None where it has no short form."""
    many: str
    """Its arguments for the whole."""

    def command(self, *, full: bool) -> list[str]:
        arguments = self.many if full or self.few is None else self.few
        return [sys.executable, "-m", f"tests.faults.{self.name}", *arguments.split()]


PARTS = (
    Part("kills", "--rounds 100", "--rounds 2000"),
    Part("power", "--states 3000", "--states 100000"),
    Part("flips", "--store all --every 400", "--store all"),
    Part("fuzz", "--frames 250000 --socket-frames 20000", "--frames 5000000 --socket-frames 200000"),
    Part("crowds", "--seconds 0.5 --rounds 2", "--seconds 2 --rounds 5"),
    Part("away", "--seconds 2", "--seconds 10"),
    Part("raced_starts", "--starts 50", "--starts 1000"),
    Part("failovers", "--failovers 2", "--failovers 20"),
    Part("throttled", "--writes 2000", "--writes 100000"),
    Part("mutants", None, ""),
)


class Result(NamedTuple):
    """What became of a part."""

    name: str
    code: int
    seconds: float
    figures: dict[str, Any]
    broken: list[str]

    @property
    def fate(self) -> str:
        return {0: "holds", program.CANNOT: "not run"}.get(self.code, "BROKEN")

    def lines(self) -> Iterator[str]:
        yield f"{self.name:14} {self.fate:8} {self.seconds:8.0f} s"
        yield from (f"    {line}" for line in (*program.table(self.figures), *self.broken))


def scenarios(*, full: bool) -> Result:
    """F1 to F18 as tests."""
    program.say(f"--- {SCENARIOS}")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "4", "tests/faults"],
        env={**os.environ, **({LONG: "1"} if full else {})},
        stdout=sys.stderr,
        check=False,
    )
    code = int(done.returncode != 0)
    return Result(SCENARIOS, code, time.monotonic() - began, {}, ["a test failed"] * code)


def run(part: Part, *, full: bool) -> Result:
    command = part.command(full=full)
    program.say(f"--- python {' '.join(command[1:])}")
    began = time.monotonic()
    done = subprocess.run([*command, "-o", "json"], stdout=subprocess.PIPE, text=True, check=False)
    return result(part.name, done.returncode, time.monotonic() - began, done.stdout)


def result(name: str, code: int, seconds: float, said: str) -> Result:
    """Of a program that ended with this. One that did not come to its end has broken something, too."""
    if code == program.CANNOT:
        return Result(name, code, seconds, {}, [])
    try:
        told = json.loads(said)
    except ValueError:
        return Result(name, code or 1, seconds, {}, [f"it ended with {code} and without figures: {said[-500:]}"])
    return Result(name, code, seconds, told["figures"], told["broken"])


def options() -> ArgumentParser:
    parser = program.options("", __doc__)
    parser.add_argument("--full", action="store_true", help="the sizes the project is held to: hours")
    names = [SCENARIOS, *(part.name for part in PARTS)]
    parser.add_argument("--only", nargs="+", metavar="PART", choices=names, help=", ".join(names))
    return parser


def main() -> int:
    asked = options().parse_args()
    usual = [SCENARIOS, *(part.name for part in PARTS if asked.full or part.few is not None)]
    chosen = asked.only or usual
    results = [scenarios(full=asked.full)] if SCENARIOS in chosen else []
    results += [run(part, full=asked.full) for part in PARTS if part.name in chosen]
    return ended_with(asked, results)


def ended_with(asked: Namespace, results: list[Result]) -> int:
    figures = {each.name: {"fate": each.fate, "seconds": round(each.seconds), **each.figures} for each in results}
    broken = [f"{each.name}: {problem}" for each in results for problem in each.broken]
    return program.ended(asked, figures, broken, (line for each in results for line in each.lines()))


if __name__ == "__main__":
    sys.exit(main())
