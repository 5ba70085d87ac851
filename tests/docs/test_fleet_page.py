"""The page on fleets tells the truth: its commands run on two daemons, its figures are those that are measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from statesvc.backends.dynamodb import from_settings as dynamodb_engine
from statesvc.backends.redis import from_settings as redis_engine
from statesvc.backends.redis import link
from statesvc.config.model import Settings
from statesvc.store import duties, heeding, leases, racing
from tests.daemon.harness import ROOT, Client, environment, until
from tests.docs.conversing import blocks
from tests.docs.shell import Shell, marked
from tests.redis import servers as redis

PAGE = ROOT / "docs" / "FLEET.md"
TEXT = PAGE.read_text()

PROGRAM = ROOT / "benchmarks" / "capacity.py"
FEW_JOBS = {"redis": 300, "dynamodb": 40}
"""Enough to tell a figure that is right from one that is not."""

SHARE, SLACK = 0.35, 1.0
"""How far what is measured with a few jobs, on a busy machine, may be from what is on the page."""


def test_the_commands_of_the_page_run_on_two_daemons(socket_folder: Path):
    commands = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    with redis.Server() as server:
        for name in ("one", "two"):
            storage = {"redis": {"endpoint": server.address, "namespace": "agents"}}
            settings = {"backend": "redis", "socket": f"run/{name}.sock", "data": f"data-{name}", "storage": storage}
            (socket_folder / f"{name}.yml").write_text(json.dumps({"state": settings}))
        shell = Shell(socket_folder)
        daemons = [shell.start(f"statesvc serve --config {name}.yml", f"run/{name}.sock") for name in ("one", "two")]
        try:
            with Client(socket_folder / "run" / "one.sock") as client:
                until(
                    lambda: client.ask("get", kind="lock", id="_sweeper")["success"], "somebody to take up the duties"
                )
            said = {command: shell.run(command) for command in commands}
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait(30)
    holder, frozen, listed = (said[command] for command in commands if re.search("_sweeper|health|list", command))
    assert json.loads(holder)["lease"]["holder"].startswith("statesvc-")
    assert '"ready":false' in frozen.replace(" ", "")
    assert json.loads(listed)["uuid"] == "job-1"


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (r"up to (\S+) times", racing.ATTEMPTS),
        (r"a lease of (\S+) seconds", duties.SWEEPER_TTL),
        (r"`busy` beyond\s(\S+) calls", link.WAITING_CALLS),
        (r"calls or (\S+) MiB", link.WAITING_BYTES // 1024**2),
    ],
)
def test_a_bound_on_the_page_is_the_one_in_force(words: str, number: float):
    (shown,) = re.findall(words, TEXT)
    assert float(shown.replace(",", "")) == number


def test_what_the_page_says_in_words_is_so():
    assert (heeding.LOOK_SECONDS, heeding.TRUST_SECONDS) == (0.5, 1.5)
    frozen_after = [
        heeding.TRUST_SECONDS + made.commit_seconds for made in (redis_engine(Settings()), dynamodb_engine(Settings()))
    ]
    assert frozen_after == [6.5, 16.5]
    assert leases.LOOKS_PER_TTL == 8


# --- figures ---------------------------------------------------------------------------------------------------------


def tables(text: str) -> dict[str, dict[str, list[float]]]:
    """By header and first cell: the numbers of each row."""
    found: dict[str, dict[str, list[float]]] = {}
    header = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = ""
        elif not header:
            header = line
            found[header] = {}
        elif set(line) - set("|-"):
            numbers = [cell.replace(",", "") for cell in cells[1:]]
            found[header][cells[0]] = [float(each) for each in numbers if re.fullmatch(r"-?[\d.]+", each)]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["redis", pytest.param("dynamodb", marks=pytest.mark.long)])
def test_the_figures_of_the_page_are_those_that_are_measured(engine: str):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--engine", engine, "--jobs", str(FEW_JOBS[engine]), "--idle", "5"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured, shown = tables(done.stdout), tables(marked(PAGE, engine))
    assert {header: list(rows) for header, rows in measured.items()} == {
        header: list(rows) for header, rows in shown.items()
    }
    differ = [
        f"{row}: {theirs} on the page, {ours} measured"
        for header, rows in shown.items()
        for row, theirs in rows.items()
        if not all(map(is_near, theirs, ours := measured[header][row]))
    ]
    assert differ == []


def is_near(shown: float, measured: float) -> bool:
    return abs(shown - measured) <= max(SLACK, SHARE * max(shown, measured))


def test_the_life_of_a_job_on_the_page_adds_up():
    """The sum in the text, from the figures above it."""
    ops = {row: numbers for rows in tables(marked(PAGE, "dynamodb")).values() for row, numbers in rows.items()}
    wrote = {name: numbers[2] for name, numbers in ops.items() if len(numbers) == 3}
    sentence = TEXT[TEXT.index("A job over its life") :].replace("\n", " ")
    parts = [float(each) for each in re.findall(r"\((\d+)\)", sentence)][:5]
    assert parts == [
        wrote["create, with a label"], wrote["claim"], 3 * wrote["update"], 60 * wrote["renew"], wrote["release"],
    ]  # fmt: skip
    assert f"about {sum(parts):.0f} units to write" in sentence
