"""The page on moving to another engine tells the truth: its steps are taken one by one, from its own files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

from statesvc.config.sources import as_plain
from tests.daemon.harness import ROOT, SECONDS, Client, environment, until
from tests.engines import places

PAGE = ROOT / "docs" / "MIGRATING.md"


def blocks(language: str) -> list[str]:
    """Those inside a step too, without its indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


class Shell:
    """Commands as a reader would type them."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "statesvc").write_text(f'#!/bin/sh\nexec {sys.executable} -m statesvc "$@"\n')
        (folder / "bin" / "statesvc").chmod(0o755)
        self._folder = folder
        self._env = environment()
        self._env["PATH"] = f"{folder / 'bin'}:{self._env['PATH']}"

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self._folder, env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, command: str, socket: str) -> subprocess.Popen[bytes]:
        daemon = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=self._folder, env=self._env, stderr=-3)
        until((self._folder / socket).exists, socket)
        return daemon


def test_the_steps_of_the_page_lead_from_the_old_store_to_the_new_one(socket_folder):
    folder = socket_folder
    given = as_plain(places.namespace())
    for name, text in zip(("old.yml", "new.yml"), blocks("yaml"), strict=True):
        (folder / name).write_text(text)
    new = yaml.safe_load((folder / "new.yml").read_text())
    new["state"]["storage"]["redis"] = {
        key.removeprefix("storage.redis."): value
        for key, value in given.items()
        if key.startswith("storage.redis.") and value not in (None, "")
    }
    # A reader's is the usual one; that of the tests makes each freeze take ten times as long.
    new["state"]["storage"]["redis"].pop("timeout_seconds", None)
    (folder / "new.yml").write_text(json.dumps(new))
    shell = Shell(folder)
    serve_old, init, copy, cut_over, serve_new, take_back = (block.strip() for block in blocks("sh"))
    old = shell.start(serve_old, "run/old.sock")
    fresh = None
    try:
        with Client(folder / "run" / "old.sock") as client:
            assert client.ask("create", job={"uuid": "job-1", "status": "QUEUED"})["success"]
        shell.run(init)
        assert json.loads(shell.run(copy))["complete"] is False
        with Client(folder / "run" / "old.sock") as client:
            assert client.ask("create", job={"uuid": "job-2", "status": "QUEUED"})["success"]
        report = json.loads(shell.run(cut_over))
        assert (report["complete"], report["whole"]["target"]["rows"]) == (True, 2)
        fresh = shell.start(serve_new, "run/new.sock")
        with Client(folder / "run" / "new.sock") as client:
            until(lambda: client.ask("get", jobId="job-2")["success"], "the new daemon to serve")
            assert client.ask("update", jobId="job-1", job={"status": "RUNNING"})["success"]
        with Client(folder / "run" / "old.sock") as client:
            assert client.ask("create", job={"uuid": "job-3"})["code"] == "unavailable"
            shell.run(take_back)
            assert client.ask("create", job={"uuid": "job-3"})["success"]
    finally:
        for daemon in filter(None, (old, fresh)):
            daemon.terminate()
            daemon.wait(SECONDS)


def test_every_address_of_the_page_is_one():
    from statesvc.cli import ends

    table = [line.split("|")[1].strip(" `") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    examples = {"HOST": "localhost", "PORT": "6379", "DB": "0", "NAME": "a", "TABLE": "jobs"}
    examples |= {"URL": "http://localhost:1", "PATH": "folder/x"}
    assert len(table) == 5
    for address in table[1:]:
        filled = re.sub(r"\b[A-Z]{2,}\b", lambda word: examples[word[0]], address)
        assert ends.read(filled).shown
