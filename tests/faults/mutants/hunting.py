"""Plants a defect in a copy of the tree, runs the tests that must notice, and tells what became of it.

Owns the copies and the judgement of a test run. Must not know which defects there are. The tree itself is never
touched: every worker has a copy of its own, in which one defect at a time is planted and taken out again.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as ET

from tests.faults.mutants.planted import ROOT, Mutant

SECONDS = 480
"""What the tests of one mutant may take; those that hang must not hang us."""

ALL_SECONDS = 3600
"""What all tests together may take, on a machine that has much else to do."""

Verdict = Literal["caught", "survived", "crashed", "not run"]
"""`crashed`: the mutant is no working program, so that a test fails says nothing. `not run`: no test could tell."""

_OF_A_BROKEN_PROGRAM = re.compile(
    r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|AttributeError|UnboundLocalError)\b"
)
"""What a wrongly planted defect looks like, in the test's own words or those of a daemon it quotes."""

_OUT_OF_TIME = "Failed: Timeout (>"
"""How pytest tells that a test was cut off: on a busy machine that happens to a sound product too."""


class Failure(NamedTuple):
    """A test that failed, and why."""

    test: str
    why: str
    by_assertion: bool


class Run(NamedTuple):
    """What pytest said."""

    code: int
    passed: int
    failures: list[Failure]
    said: str


@dataclass(frozen=True)
class Fate:
    """What became of a mutant."""

    mutant: Mutant
    verdict: Verdict
    test: str
    why: str
    seconds: float


# --- copies ----------------------------------------------------------------------------------------------------------


def tree_files(root: Path = ROOT) -> list[str]:
    """What belongs to the tree, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    return sorted({name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()})


def copy_tree(into: Path, files: Iterable[str] | None = None) -> Path:
    for name in tree_files() if files is None else files:
        place = into / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)
    return into


class Planted:
    """A defect in a copy, while the block lasts."""

    def __init__(self, tree: Path, mutant: Mutant) -> None:
        self._path = tree / mutant.file
        self._mutant = mutant

    def __enter__(self) -> None:
        self._before = self._path.read_text()
        self._path.write_text(planted(self._before, self._mutant))

    def __exit__(self, *_: object) -> None:
        self._path.write_text(self._before)


def planted(text: str, mutant: Mutant) -> str:
    """The text with the defect in it; ValueError when it does not fit, or is not a program any more."""
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name}: what is to be replaced occurs {found} times in {mutant.file}, not once")
    changed = text.replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")
    return changed


# --- tests -----------------------------------------------------------------------------------------------------------


def run_tests(tree: Path, tests: Sequence[str], *options: str, seconds: float = SECONDS) -> Run:
    """Run tests in a copy; its own source is what they import, and what the daemons they start are made of."""
    report = tree / f"report-{threading.get_ident()}.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider",
        f"--timeout={SECONDS // 2}", f"--junitxml={report}", *options, *tests,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'client'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Run(-1, 0, [], f"the tests took more than {seconds:g} seconds")
    return _read(report, done)


def _read(report: Path, done: subprocess.CompletedProcess[str]) -> Run:
    said = done.stdout[-4000:] + done.stderr[-2000:]
    if not report.exists():
        return Run(done.returncode, 0, [], said)
    passed = 0
    failures: list[Failure] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
        if problem is not None:
            failures.append(_failure(name, problem))
        passed += problem is None and case.find("skipped") is None
    return Run(done.returncode, passed, failures, said)


def _failure(name: str, problem: ET.Element) -> Failure:
    message, text = problem.get("message") or "", problem.text or ""
    by_assertion = problem.tag == "failure" and not _OF_A_BROKEN_PROGRAM.search(message + text)
    return Failure(name, (message or text).strip().splitlines()[0][:160], by_assertion)


def judge(mutant: Mutant, run: Run, seconds: float) -> Fate:
    if run.failures and not run.failures[0].why.startswith(_OUT_OF_TIME):
        first = run.failures[0]
        return Fate(mutant, "caught" if first.by_assertion else "crashed", first.test, first.why, seconds)
    if run.code == 0 and run.passed:
        return Fate(mutant, "survived", "", f"{run.passed} tests passed", seconds)
    return Fate(mutant, "not run", "", (run.said.strip().splitlines() or ["nothing was said"])[-1][:160], seconds)


# --- all of them -----------------------------------------------------------------------------------------------------


def hunt(mutants: Sequence[Mutant], folder: Path, workers: int, tell: Callable[[Fate], None]) -> list[Fate]:
    """Plant each of them in turn; what became of them, in their order."""
    files = tree_files()
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    for place in enumerate(mutants):
        waiting.put(place)
    fates: dict[int, Fate] = {}

    def work(tree: Path) -> None:
        while True:
            try:
                place, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            fates[place] = try_one(tree, mutant)
            tell(fates[place])

    threads = [
        threading.Thread(target=work, args=(copy_tree(folder / f"tree-{number}", files),)) for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [fates[place] for place in sorted(fates)]


def try_one(tree: Path, mutant: Mutant) -> Fate:
    began = time.monotonic()
    with Planted(tree, mutant):
        run = run_tests(tree, mutant.tests)
    return judge(mutant, run, time.monotonic() - began)


def passes_unmutated(mutants: Sequence[Mutant], folder: Path, workers: int) -> Run:
    """The chosen tests on the tree as it is: otherwise that they fail would say nothing."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    return run_tests(copy_tree(folder / "whole"), tests, "-n", str(workers), seconds=ALL_SECONDS)
