"""docs/OPERATING.md tells the truth: its commands run, its tables name what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from statesvc.backends.sqlite.paths import Paths
from statesvc.config.model import leaves
from tests.daemon.harness import ROOT, environment, until

PAGE = ROOT / "docs" / "OPERATING.md"
TEXT = PAGE.read_text()

COPY = "cp -a data data.backup"


def section(title: str) -> str:
    """The text below a heading, up to the next of the same rank or higher."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[2]


def first_column(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")][2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row) or [row.strip()]}


def test_every_event_of_the_source_is_on_the_page_and_no_other():
    source = "\n".join(path.read_text() for path in (ROOT / "statesvc").rglob("*.py"))
    logged = re.findall(r'(?:log|get\(__name__\))\.(?:debug|info|warning|error|exception)\(\s*"([^"]+)"', source)
    given_up = re.findall(r'_give_up\([A-Z_]+, "(\w+)"', source)
    assert first_column(section("The log")) == {*logged, *given_up}


def test_every_exit_code_of_the_source_is_on_the_page():
    sources = [ROOT / "statesvc" / "server.py", ROOT / "statesvc" / "process" / "errors.py"]
    text = "\n".join(path.read_text() for path in sources)
    codes = {code for code in re.findall(r"(?:EXIT_\w+|exit_code) = (\d+)", text) if code != "70"}
    assert codes | {"78"} == first_column(section("Exit codes"))


def test_every_limit_on_the_page_is_a_key_of_the_configuration():
    known = {key for key, _ in leaves()}
    for name in first_column(section("Limits, and how to size them")):
        assert {name, f"limits.{name}", f"storage.sqlite.{name}"} & known, name


def test_every_key_named_in_the_text_is_a_key_of_the_configuration():
    known = {key for key, _ in leaves()}
    named = set(re.findall(r"`((?:access|limits|storage|log)\.\w[\w.]*)`", TEXT))
    named -= {"log.db"}
    assert named <= known | {"limits"}, named - known


def test_every_file_of_a_store_is_on_the_page():
    listed = first_column(section("The data folder"))
    paths = Paths.below(Path("folder"))
    assert {paths.log.name, paths.state.name, paths.watermark.name, "lock"} <= listed


@pytest.mark.parametrize(
    "words",
    [words for words in sorted(first_column(section("The data is corrupt"))) if " " in words],
)
def test_every_refusal_on_the_page_is_one_the_source_makes(words):
    source = "".join(path.read_text() for path in (ROOT / "statesvc" / "backends" / "sqlite").glob("*.py"))
    pattern = r"\{[^}]+\}".join(re.escape(part) for part in re.split(r"\blog\.db\b|\bN\b", words))
    assert re.search(pattern, source) or words in source, words


def test_the_commands_of_the_page_run(folder):
    """One after the other in one folder, with the daemon in the background; the copy is made while it is stopped."""
    blocks = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    serve, *others = commands
    assert serve.startswith("statesvc serve")
    assert COPY in others
    (folder / "bin").mkdir()
    (folder / "bin" / "statesvc").write_text(f'#!/bin/sh\nexec {sys.executable} -m statesvc "$@"\n')
    (folder / "bin" / "statesvc").chmod(0o755)
    env = environment()
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    before, after = others[: others.index(COPY)], others[others.index(COPY) + 1 :]
    with _in_the_background(serve, folder, env):
        _run_each(before, folder, env)
    _run_each([COPY], folder, env)
    with _in_the_background(serve, folder, env):
        _run_each(after, folder, env)
    _run_each(["statesvc check --offline --data data.backup"], folder, env)


@contextmanager
def _in_the_background(serve: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    with (folder / "said").open("ab") as said:
        daemon = subprocess.Popen(["sh", "-c", f"exec {serve}"], cwd=folder, env=env, stderr=said)
    try:
        until((folder / "run" / "state.sock").exists, "the socket")
        yield
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()


def _run_each(commands: Sequence[str], folder: Path, env: dict[str, str]) -> None:
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
