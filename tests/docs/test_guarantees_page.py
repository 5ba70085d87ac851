"""The page on guarantees tells the truth: its levels are those in force, every scenario has tests, commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import get_args, get_type_hints

from statesvc.config.model import Redis
from tests.daemon.harness import ROOT
from tests.faults.__main__ import PARTS

PAGE = ROOT / "docs" / "GUARANTEES.md"
TEXT = PAGE.read_text()
SCENARIOS = [f"F{number}" for number in range(1, 19)]


def rows(heading: str) -> list[list[str]]:
    """The cells of every table below a heading."""
    part = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]


def test_every_level_is_explained():
    levels = set(get_args(get_type_hints(Redis)["durability"])) - {"auto"}
    assert {row[0].strip("`") for row in rows("Levels")} >= levels


def links(row: list[str]) -> list[Path]:
    return [ROOT / path for path in re.findall(r"\]\(\.\./(tests/[^)]+)\)", row[-1])]


def test_every_scenario_names_the_files_that_show_it():
    shown = rows("How it is shown")
    assert [row[0] for row in shown if row[0].startswith("F") and links(row)] == SCENARIOS
    named = {path for row in shown for path in links(row)}
    assert [path for path in named if not path.exists()] == []
    tests = (ROOT / "tests" / "faults").rglob("test_*.py")
    assert [path for path in tests if not {path, path.parent} & named] == []


def test_every_scenario_names_its_own_files():
    for row in rows("How it is shown"):
        numbers = {found[1] for path in links(row) if (found := re.match(r"test_f0?(\d+)_", path.name))}
        assert numbers == ({row[0].removeprefix("F")} if row[0].startswith("F") else set()), row


def test_every_program_is_named():
    shown = " ".join(row[-1] for row in rows("How it is shown"))
    for name in (*(part.name for part in PARTS), "soak"):
        assert f"`python -m tests.faults.{name}`" in shown or f"`make {name}`" in shown, name


def test_every_program_and_target_that_is_named_exists():
    for module in re.findall(r"python -m ([\w.]+)", TEXT):
        assert importlib.util.find_spec(module), module
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= set(targets)
