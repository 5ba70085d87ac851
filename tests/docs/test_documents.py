"""The documents tell the truth: what they generate is current, what they show runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.talking import connect

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    return {**os.environ, "PYTHONPATH": path, "HOME": str(folder)}


def test_the_tables_of_the_protocol_page_are_those_of_the_wire_module():
    done = subprocess.run(
        [sys.executable, "docs/make_protocol.py", "--check"], check=False, cwd=ROOT, env=_environment(ROOT)
    )
    assert done.returncode == 0


def test_the_ten_lines_of_the_readme_run(tmp_path):
    (code,) = _blocks(ROOT / "README.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["RUNNING", "2"]


def test_the_readme_names_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


@pytest.fixture
def daemon_socket(socket_folder):
    socket = socket_folder / "s.sock"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "statesvc", "serve", "--socket", str(socket), "--backend", "memory"],
        env=_environment(socket_folder),
    )
    with connect(socket):
        yield socket
    daemon.terminate()
    daemon.wait(10)


def test_the_frames_of_the_protocol_page_are_answered_with_success(daemon_socket):
    (block,) = _blocks(ROOT / "docs" / "PROTOCOL.md", "json")
    frames = block.splitlines()
    replies = _converse(daemon_socket, frames)
    assert [reply["success"] for reply in replies] == [True] * len(frames)
    assert [reply["requestId"] for reply in replies] == [json.loads(frame)["requestId"] for frame in frames]


def test_the_line_of_the_readme_that_needs_no_client_is_answered_with_success(daemon_socket):
    (frame,) = re.findall(r"^echo '(.*)' \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert _converse(daemon_socket, [frame])[0]["success"]


def test_the_commands_of_the_readme_run_as_they_stand_beside_make_run(socket_folder):
    """In a folder as `make run` leaves it: the command in .venv, the daemon on the socket below var."""
    (block,) = [block for block in _blocks(ROOT / "README.md", "sh") if "statesvc create" in block]
    command = socket_folder / ".venv" / "bin" / "statesvc"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m statesvc "$@"\n')
    command.chmod(0o755)
    (socket_folder / "var").mkdir(mode=0o700)
    socket = _made_by_make("SOCKET")
    environment = {name: text for name, text in _environment(socket_folder).items() if "STATESVC" not in name}
    daemon = subprocess.Popen(
        [command, "serve", "--socket", socket, "--data", _made_by_make("DATA")], cwd=socket_folder, env=environment
    )
    try:
        connect(socket_folder / socket).close()
        done = subprocess.run(
            ["sh", "-e"], input=block, check=False, cwd=socket_folder, env=environment, capture_output=True, text=True
        )
    finally:
        daemon.terminate()
        daemon.wait(30)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["PENDING", "RUNNING", "RUNNING"]


def _made_by_make(name: str) -> str:
    (value,) = re.findall(rf"^{name} *:= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    return value


def _converse(path: Path, frames: list[str]) -> list[dict]:
    with connect(path) as connection, connection.makefile("rwb") as stream:
        stream.write("".join(frame + "\n" for frame in frames).encode())
        stream.flush()
        return [json.loads(stream.readline()) for _ in frames]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_lifecycle_in_the_protocol_page_is_the_one_in_force():
    from statesvc.store.kinds import JOB

    assert JOB.lifecycle is not None
    page = (ROOT / "docs" / "PROTOCOL.md").read_text()
    drawn = {state: set(after.split()) for state, after in re.findall(r"^([A-Z]+) +-> (.*)$", page, flags=re.MULTILINE)}
    (final,) = re.findall(r"^final: (.*)$", page, flags=re.MULTILINE)
    assert drawn == {state: set(after) for state, after in JOB.lifecycle.edges.items() if after}
    assert set(final.split()) == JOB.lifecycle.terminal
