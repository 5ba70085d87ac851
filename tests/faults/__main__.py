"""Everything that attacks the promises, in one go: `python -m tests.faults`, or `make faults`.

Owns which parts there are and how large each is. Must not know what a part does: each is a program of its own, which
shows its progress, and tells what came out as program.py has it.

In minutes by default. `--full` takes the sizes the project is held to, some hours on two cores. What cannot be run on
this machine is named; with `--full` it counts as broken, for nothing was shown of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

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
    Part("recoveries", "--stores redis dynamodb --seconds 3 --rounds 1", "--seconds 15 --rounds 5"),
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
    not_run: Sequence[str] = ()
    """What this machine lacks something for."""

    @property
    def fate(self) -> str:
        held = "in part" if self.not_run else "holds"
        return {0: held, program.CANNOT: "not run"}.get(self.code, "BROKEN")

    def lines(self) -> Iterator[str]:
        yield f"{self.name:14} {self.fate:8} {self.seconds:8.0f} s"
        not_run = [f"not run: {what}" for what in self.not_run]
        yield from (f"    {line}" for line in (*program.table(self.figures), *self.broken, *not_run))


def scenarios(*, full: bool) -> Result:
    """F1 to F18 as tests."""
    program.say(f"--- {SCENARIOS}")
    began = time.monotonic()
    with program.scratch() as folder:
        report = folder / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "4", f"--junitxml={report}", "tests/faults"],
            env={**os.environ, **({LONG: "1"} if full else {})},
            stdout=sys.stderr,
            check=False,
        )
        return of_tests(report, done.returncode, time.monotonic() - began)


def of_tests(report: Path, code: int, seconds: float) -> Result:
    """Of tests that ended with this, and left this report behind. A test that was left out has shown nothing."""
    cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [left_out for case in cases if case not in failed and (left_out := case.find("skipped")) is not None]
    passed = len(cases) - len(failed) - len(skipped)
    figures = {"passed": passed, "failed": len(failed), "skipped": len(skipped)}
    broken = [f"{case.get('classname')}::{case.get('name')} failed" for case in failed]
    if code and not failed:
        broken.append(f"the tests ended with {code}")
    broken += program.too_little(figures, {"passed": 1})
    reasons = Counter(left_out.get("message", "") for left_out in skipped)
    not_run = [f"{times} tests: {reason}" for reason, times in reasons.most_common()]
    return Result(SCENARIOS, int(bool(broken)), seconds, figures, broken, not_run)


def run(part: Part, *, full: bool) -> Result:
    command = part.command(full=full)
    program.say(f"--- python {' '.join(command[1:])}")
    began = time.monotonic()
    done = subprocess.run([*command, "-o", "json"], stdout=subprocess.PIPE, text=True, check=False)
    return result(part.name, done.returncode, time.monotonic() - began, done.stdout)


def result(name: str, code: int, seconds: float, said: str) -> Result:
    """Of a program that ended with this. One that did not come to its end has broken something, too."""
    if code == program.CANNOT:
        return Result(name, code, seconds, {}, [], ["it lacks something here"])
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
    not_run = [f"{each.name}: {what}" for each in results for what in each.not_run]
    if asked.full:
        broken += [f"{what}, and nothing was shown of it" for what in not_run]
    return program.ended(asked, figures, broken, (line for each in results for line in each.lines()), not_run=not_run)


if __name__ == "__main__":
    sys.exit(main())
