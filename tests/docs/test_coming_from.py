"""The pages for those who come from elsewhere tell the truth: their rows lead to ops and tests, their examples run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from statesvc.config.model import leaves
from statesvc_client.wire import OPS
from tests.daemon.harness import ROOT, environment, serving
from tests.docs.conversing import Conversation, blocks

FOLDER = ROOT / "docs" / "coming-from"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
SEED_TESTS = ROOT / "tests" / "seeds"
NAMES = ROOT / "tests" / "testdata" / "names"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
every_backend = pytest.mark.parametrize("backend", ["memory", "sqlite"])


class Feature(NamedTuple):
    """One row of a page."""

    there: str
    here: str
    shown_by: str


def features(page: Path) -> list[Feature]:
    text = page.read_text()
    table = text[text.index("## Features") : text.index("## Not state")]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [line.strip("|").split(" | ") for line in lines[2:]]
    assert all(len(row) == 3 for row in rows), [row for row in rows if len(row) != 3]
    return [Feature(*row) for row in rows]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def named_tests(page: Path) -> list[tuple[Path, str]]:
    """Every test a page names, by file and name; a file without a folder is one of the seeds'."""
    found = [span.partition("::") for feature in features(page) for span in spans(feature.shown_by)]
    return [(ROOT / file if "/" in file else SEED_TESTS / file, name) for file, _, name in found]


@cache
def names_of_tests(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    functions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@every_page
def test_every_row_names_tests_that_exist(page: Path):
    for feature in features(page):
        assert spans(feature.shown_by), f"no test shows: {feature.there}"
    for file, name in named_tests(page):
        assert file.exists(), file
        assert name in names_of_tests(file), f"{file.name} has no test {name}"


@every_page
def test_every_row_names_an_op_or_a_setting(page: Path):
    settings = {key for key, _ in leaves()}
    for feature in features(page):
        words = {re.split(r"[ :]", span)[0] for span in spans(feature.here)}
        of_settings = words & settings if "config" in feature.here else set()
        assert words & OPS.keys() or of_settings or "config:" in feature.here, feature


def test_every_test_of_the_seeds_stands_in_a_row():
    named = {test for page in PAGES for test in named_tests(page)}
    there = {(file, name) for file in SEED_TESTS.glob("test_*.py") for name in names_of_tests(file)}
    assert there <= named, sorted(name for _, name in there - named)


@every_page
def test_every_name_of_the_system_is_accounted_for(page: Path):
    """Its types, fields, methods, states, events and keys, as its own document has them, stand on the page."""
    words = set(re.findall(r"[\w.:-]+", page.read_text())) | set(re.findall(r"\w+", page.read_text()))
    missing = [name for name in (NAMES / f"{page.stem}.txt").read_text().split() if name not in words]
    assert missing == []


def test_the_index_leads_to_every_page():
    index = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == {page.name for page in PAGES}


@every_page
def test_every_page_has_an_example(page: Path):
    assert blocks(page, "json") + blocks(page, "python")


@every_page
@every_backend
def test_the_lines_of_a_page_are_answered_as_the_page_says(page: Path, backend: str, socket_folder: Path):
    for number, block in enumerate(blocks(page, "json")):
        folder = socket_folder / str(number)
        folder.mkdir(mode=0o700)
        with serving(folder, backend=backend) as daemon:
            conversation = Conversation(daemon.socket)
            conversation.play(block)
            conversation.close()


@every_page
def test_the_python_of_a_page_prints_what_the_page_says(page: Path, socket_folder: Path):
    programs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(programs) == len(blocks(page, "python")), "a program without the text it prints"
    for code, printed in programs:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=socket_folder, env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == printed
