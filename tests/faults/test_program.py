"""The programs of this folder can be asked, and tell what came out in one form, whatever it was."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.daemon.harness import ROOT, SECONDS, environment
from tests.faults import __main__ as together
from tests.faults import program, raced_starts
from tests.faults.__main__ import PARTS, Result, ended_with, result

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


def test_a_program_runs_as_one():
    command = [sys.executable, "-m", "tests.faults.kills", "--rounds", "0", "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == {"figures", "broken"}
    assert told["broken"] == []
    assert told["figures"]["rounds of SIGKILL"] == 0


# --- what one tells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figures", [{}, FLAT, GROUPED])
@pytest.mark.parametrize("broken", [[], ["a write was lost"] * 50])
def test_what_came_out_is_told_in_one_form(capsys, figures, broken):
    options = program.options("any", "of a test", seed=1)
    assert program.ended(options.parse_args(["-o", "json"]), figures, broken) == (1 if broken else 0)
    told = json.loads(capsys.readouterr().out)
    assert told == {"figures": {**figures, "seconds in all": 0}, "broken": broken}
    assert program.ended(options.parse_args([]), figures, broken) == (1 if broken else 0)
    shown = capsys.readouterr().out
    assert all(name in shown for name in figures)
    assert ("every promise held" in shown) == (not broken)
    assert shown.count("a write was lost") == (program.MOST_BROKEN if broken else 0)


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
