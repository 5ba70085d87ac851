"""The programs of this folder can be asked, and tell what came out in one form, whatever it was."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.daemon.harness import ROOT, SECONDS, environment, until
from tests.faults import __main__ as together
from tests.faults import program, raced_starts
from tests.faults.__main__ import PARTS, Result, ended_with, of_tests, result

NAMES = [*(part.name for part in PARTS), "soak"]
FLAT = {"rounds": 2000, "share": 0.25, "kinds": "killed 3, split 4"}
GROUPED = {"writes": {"alone": 0.1, "attack": 1234.5}, "reads": {"alone": 2}, "in all": 3}


def module(name: str) -> ModuleType:
    package = (ROOT / "tests" / "faults" / name).is_dir()
    return importlib.import_module(f"tests.faults.{name}" + (".__main__" if package else ""))


@pytest.mark.parametrize("name", NAMES)
def test_every_program_has_the_options_that_all_have(name):
    assert callable(module(name).main)
    options = module(name).options()
    assert options.prog == f"python -m tests.faults.{name}"
    assert name in options.format_help()
    assert options.parse_args(["-o", "json"]).output == "json"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_takes_what_it_is_given(part, full):
    module(part.name).options().parse_args([*part.command(full=full)[3:], "-o", "json"])


def test_a_program_runs_as_one_and_one_that_does_nothing_has_shown_nothing():
    command = [sys.executable, "-m", "tests.faults.away", "--rounds", "0", "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == {"figures", "broken"}
    assert told["broken"] == ["nothing was done"]
    assert told["figures"].keys() == {"seconds in all"}


# --- what one tells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figures", [FLAT, GROUPED])
@pytest.mark.parametrize("broken", [[], ["a write was lost"] * 50])
def test_what_came_out_is_told_in_one_form(capsys, figures, broken):
    options = program.options("any", "of a test", seed=1)
    assert program.ended(options.parse_args(["-o", "json"]), figures, broken) == (1 if broken else 0)
    told = json.loads(capsys.readouterr().out)
    assert told["figures"].pop("seconds in all") >= 0
    assert told == {"figures": figures, "broken": broken}
    assert program.ended(options.parse_args([]), figures, broken) == (1 if broken else 0)
    shown = capsys.readouterr().out
    assert all(name in shown for name in figures)
    assert ("every promise held" in shown) == (not broken)
    assert shown.count("a write was lost") == (program.MOST_BROKEN if broken else 0)


@pytest.mark.parametrize(
    ("figures", "least", "broken"),
    [
        ({}, {}, ["nothing was done"]),
        ({"rounds": 0}, {}, []),
        ({"rounds": 0}, {"rounds": 1}, ["rounds: 0, and less than 1 shows nothing"]),
        ({"rounds": 1}, {"rounds": 1}, []),
        ({"rounds": 1}, {"kills": 1000}, ["kills: 0, and less than 1,000 shows nothing"]),
        ({"share": float("nan")}, {"share": 0.5}, ["share: nan, and less than 0.5 shows nothing"]),
    ],
)
def test_what_was_not_done_is_broken(capsys, figures, least, broken):
    asked = program.options("any", "of a test").parse_args(["-o", "json"])
    assert program.ended(asked, figures, [], least=least) == bool(broken)
    assert json.loads(capsys.readouterr().out)["broken"] == broken


WORKER = """
import sys
from tests.faults import program
program.end_with_parent()
print("ready", flush=True)
sys.stdin.read()
"""

PARENT = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert worker.stdout.readline() == b"ready\\n"
print(worker.pid, flush=True)
sys.stdin.read()
"""


def test_a_worker_does_not_outlive_its_program(tmp_path):
    (tmp_path / "parent").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent"), WORKER]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as parent:
        try:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
        finally:
            parent.kill()
    until(lambda: has_ended(worker), "the worker to end")


def has_ended(pid: int) -> bool:
    """Gone, or there for nobody but who should look after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_table_has_a_line_for_each_figure_and_for_each_group_of_them():
    assert program.table(GROUPED) == [
        "        alone   attack",
        "writes    0.1  1,234.5",
        "reads       2",
        "in all  3",
    ]


def test_a_program_that_lacks_something_says_so(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["raced_starts"])
    assert raced_starts.main() == program.CANNOT
    assert "root" in capsys.readouterr().err


# --- what all of them tell together ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "said", "fate", "broken"),
    [
        (0, json.dumps({"figures": FLAT, "broken": []}), "holds", 0),
        (1, json.dumps({"figures": GROUPED, "broken": ["lost"]}), "BROKEN", 1),
        (1, "", "BROKEN", 1),
        (0, "no JSON", "BROKEN", 1),
        (-9, "", "BROKEN", 1),
        (program.CANNOT, "", "not run", 0),
    ],
)
def test_whatever_a_part_came_to_is_shown(capsys, code, said, fate, broken):
    part = result("kills", code, 1.0, said)
    assert (part.fate, len(part.broken)) == (fate, broken)
    for form in ("table", "json"):
        asked = together.options().parse_args(["-o", form])
        assert ended_with(asked, [Result("scenarios", 0, 1.0, {}, []), part]) == broken
        assert fate in capsys.readouterr().out


NOT_RUN = [
    result("power", program.CANNOT, 1.0, ""),
    Result("scenarios", 0, 1.0, {"passed": 3}, [], ["2 tests: strace"]),
]


@pytest.mark.parametrize("part", NOT_RUN, ids=lambda part: part.name)
def test_what_was_not_run_is_named_and_in_the_full_form_it_is_broken(capsys, part):
    assert ended_with(together.options().parse_args([]), [part]) == 0
    shown = capsys.readouterr().out
    assert "every promise held that could be asked; not run:" in shown
    assert f"{part.name}: {part.not_run[0]}" in shown
    assert ended_with(together.options().parse_args(["--full"]), [part]) == 1
    assert f"{part.name}: {part.not_run[0]}, and nothing was shown of it" in capsys.readouterr().out


TESTS = """
import pytest

def test_that_passes(): pass
@pytest.mark.skipif(True, reason="strace is not installed")
def test_that_is_left_out(): pass
@pytest.mark.parametrize("_", range(2))
def test_of_another_user(_): pytest.skip("only root can act as another user")
"""
FAILING = "def test_that_fails(): assert False\n"


@pytest.mark.parametrize(
    ("source", "figures", "broken", "fate"),
    [
        (TESTS, (1, 0, 3), 0, "in part"),
        (TESTS + FAILING, (1, 1, 3), 1, "BROKEN"),
        ("def test_that_passes(): pass", (1, 0, 0), 0, "holds"),
        ("", (0, 0, 0), 2, "BROKEN"),
        ("syntax error", (0, 1, 0), 2, "BROKEN"),
    ],
    ids=["skipped", "failed", "passed", "no tests", "not to be collected"],
)
def test_tests_are_told_as_figures_and_those_left_out_by_their_reason(tmp_path, source, figures, broken, fate):
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=SECONDS, check=False)
    part = of_tests(report, done.returncode, 1.0)
    assert tuple(part.figures.values()) == figures
    assert (part.fate, len(part.broken)) == (fate, broken)
    left_out = ["2 tests: only root can act as another user", "1 tests: strace is not installed"]
    assert list(part.not_run) == (left_out if figures[2] else [])


def test_tests_that_leave_no_report_have_shown_nothing(tmp_path):
    part = of_tests(tmp_path / "none.xml", -9, 1.0)
    assert part.fate == "BROKEN"
    assert part.broken[0] == "the tests ended with -9"
