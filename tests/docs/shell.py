"""Commands of documents, typed as a reader would type them, in a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.daemon.harness import environment, until


def marked(page: Path, name: str) -> str:
    """What stands between <!-- name --> and <!-- /name -->."""
    (found,) = re.findall(rf"^<!-- {name} -->\n(.*?)^<!-- /{name} -->", page.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next of the same rank or higher."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, title
    return found[2]


def table(text: str, header: str) -> dict[str, list[str]]:
    """The rows of the table whose header begins so: by their first cell, the others."""
    lines = text.splitlines()
    (begin,) = (number for number, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows: dict[str, list[str]] = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
        rows[first] = others
    return rows


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


class Shell:
    def __init__(self, folder: Path, **variables: str) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "statesvc").write_text(f'#!/bin/sh\nexec {sys.executable} -m statesvc "$@"\n')
        (folder / "bin" / "statesvc").chmod(0o755)
        self._folder = folder
        self._env = environment() | variables
        self._env["PATH"] = f"{folder / 'bin'}:{self._env['PATH']}"

    def run(self, command: str, *, code: int = 0) -> str:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self._folder, env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def start(self, command: str, socket: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"said-{Path(socket).name}").open("wb") as said:
            daemon = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=self._folder, env=self._env, stderr=said)
        until((self._folder / socket).exists, socket)
        return daemon
