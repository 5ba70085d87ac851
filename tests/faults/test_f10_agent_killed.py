"""F10: the agent killed with writes waiting: what survives is a prefix, with all that was flushed; a spool keeps all.

A fork in the agent changes nothing of that: the child never sends what is the parent's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statesvc_client.blocking import StateStore
from tests.daemon.harness import ROOT, SECONDS, Client, Daemon, environment, serving, until
from tests.faults.away import logged

RECORDS = 7

AGENT = """
import asyncio, os, sys
face, path, spool, seconds, flush_at, most = sys.argv[1:]
options = dict(connect_seconds=float(seconds), spool=spool or None)

def write(state, number):
    state.update(f"job-{number % 7}", n=number, inc={"times": 1}, upsert=True)

def say(state, number):
    print(number, state.counters.queued, flush=True)

def die(state, number):
    while not (waiting := state.counters.queued):
        number += 1
        write(state, number)
    print(number, waiting, flush=True)
    os.kill(os.getpid(), 9)

def blocking():
    from statesvc_client.blocking import StateStore
    state = StateStore.connect(path, **options)
    for number in range(int(most)):
        write(state, number)
        if number == int(flush_at):
            state.flush(30)
            say(state, number)
            sys.stdin.readline()
        elif number % 100 == 0:
            say(state, number)
    die(state, number)

async def on_a_loop():
    from statesvc_client import StateStore
    async with StateStore.connect(path, **options) as state:
        for number in range(int(most)):
            write(state, number)
            if number == int(flush_at):
                await state.flush(30)
                say(state, number)
                sys.stdin.readline()
            elif number % 100 == 0:
                say(state, number)
                await asyncio.sleep(0)
        die(state, number)

asyncio.run(on_a_loop()) if face == "asyncio" else blocking()
"""
"""Writes 0, 1, 2 ..., says how far it came and how much of it waits, and is told to go on once it has flushed. If
nobody kills it before, it dies at the end, at a moment at which something waits."""


@contextmanager
def agent(
    path: Path, face: str = "blocking", *, spool: Path | str = "", seconds: float = SECONDS, flush_at: int = -1,
    most: int = 100_000,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    command = [sys.executable, "-c", AGENT, face, str(path), str(spool), str(seconds), str(flush_at), str(most)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The agent's next words: the number of a write, and how many wait."""
    assert process.stdout is not None
    number, waiting = process.stdout.readline().split()
    return int(number), int(waiting)


def flushed(process: subprocess.Popen[bytes], number: int) -> None:
    """Wait until the agent has flushed this write; it goes on when it is told to."""
    until(lambda: told(process) == (number, 0), f"write {number}, and nothing that waits")


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go on\n")
    process.stdin.flush()


def came_to(process: subprocess.Popen[bytes], number: int) -> None:
    """Wait until the agent has written so far, and something of it waits."""

    def is_there() -> bool:
        written, waiting = told(process)
        return written >= number and waiting > 0

    until(is_there, f"write {number}, and some that wait")


def died(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait until the agent has died by itself; how many writes it made, and how many of them waited then."""
    assert process.stdout is not None
    number, waiting = map(int, process.stdout.read().splitlines()[-1].split())
    assert process.wait(SECONDS) == -signal.SIGKILL
    assert waiting > 0
    return number + 1, waiting


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL


def assert_each_record_has_its_prefix(daemon: Daemon, writes: int) -> None:
    with Client(daemon.socket) as client:
        for place in range(min(RECORDS, writes)):
            job: dict[str, Any] = client.ask("get", jobId=f"job-{place}")["job"]
            mine = range(place, writes, RECORDS)
            assert (job["n"], job["times"], job["revision"]) == (mine[-1], len(mine), len(mine))


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
@pytest.mark.parametrize("moment", [300, 2000])
def test_what_survives_a_killed_agent_is_a_prefix_with_all_that_was_flushed(folder, face, moment):
    with serving(folder) as daemon:
        with agent(daemon.socket, face, flush_at=moment) as process:
            flushed(process, moment)
            go_on(process)
            came_to(process, moment + 100)
            kill(process)
        seen = logged(daemon)
        assert seen == list(range(len(seen))), "a gap, or out of order"
        assert len(seen) > moment, "flushed, and lost"
        assert_each_record_has_its_prefix(daemon, len(seen))


def test_an_agent_killed_while_its_daemon_hangs_loses_the_tail_alone(folder):
    with serving(folder) as daemon:
        with agent(daemon.socket, flush_at=500, most=3000) as process:
            flushed(process, 500)
            daemon.signal(signal.SIGSTOP)
            try:
                go_on(process)
                written, waiting = died(process)
                assert (written, waiting) == (3000, 3000 - 501), "nothing was answered any more"
            finally:
                daemon.signal(signal.SIGCONT)
        seen = logged(daemon)
        assert seen == list(range(len(seen)))
        assert len(seen) > 500
        assert_each_record_has_its_prefix(daemon, len(seen))


# --- with the spool ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_with_the_spool_the_next_agent_sends_what_the_killed_one_could_not(folder, face):
    spool = folder / "spool"
    with serving(folder) as daemon:
        with agent(daemon.socket, face, spool=spool, most=1500) as process:
            written, _ = died(process)
        with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, spool=spool) as state:
            state.flush(SECONDS)
            assert state.counters.rejected == 0
        assert logged(daemon) == list(range(written))
        assert_each_record_has_its_prefix(daemon, written)


def test_with_the_spool_an_agent_killed_at_any_moment_loses_nothing_it_was_told_is_taken(folder):
    spool = folder / "spool"
    with serving(folder) as daemon:
        with agent(daemon.socket, spool=spool) as process:
            came_to(process, 700)
            kill(process)
        with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, spool=spool) as state:
            state.flush(SECONDS)
        seen = logged(daemon)
        assert seen == list(range(len(seen)))
        assert len(seen) > 700


def test_with_the_spool_an_agent_killed_while_the_daemon_was_away_loses_nothing(folder):
    spool, daemon = folder / "spool", Daemon(folder)
    with agent(daemon.socket, spool=spool, seconds=0, most=1000) as process:
        assert died(process) == (1000, 1000)
    with daemon.serving():
        with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, spool=spool) as state:
            assert state.counters.restored == 1000
            state.flush(SECONDS)
        assert logged(daemon) == list(range(1000))
        assert spool.stat().st_size < 1000


def test_with_the_spool_agents_killed_one_after_the_other_lose_and_double_nothing(folder):
    """Each takes over what the one before left, and is killed in its turn."""
    spool = folder / "spool"
    with serving(folder) as daemon:
        lives = []
        for _ in range(3):
            with agent(daemon.socket, spool=spool, most=400) as process:
                written, _ = died(process)
                lives.append(written)
        with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, spool=spool) as state:
            state.flush(SECONDS)
            assert state.counters.rejected == 0
        assert logged(daemon) == [number for written in lives for number in range(written)]
        with Client(daemon.socket) as client:
            times = [client.ask("get", jobId=f"job-{place}")["job"]["times"] for place in range(RECORDS)]
        assert sum(times) == sum(lives)


# --- a fork in the agent -------------------------------------------------------------------------------------------

FORKING = """
import os, signal, sys
from statesvc_client.blocking import StateStore
path, spool = sys.argv[1:]
state = StateStore.connect(path, connect_seconds=30, spool=spool or None)
state.update("parents", n=0, upsert=True)
state.flush(30)
print("ready", flush=True)
sys.stdin.readline()                  # the daemon hangs from here on
for number in range(1, 201):
    state.update("parents", n=number, inc={"times": 1})
child = os.fork()
if child == 0:
    assert state.counters.queued == 0
    state.update("childs", inc={"times": 1}, upsert=True)
    print("forked", flush=True)
    state.flush(60)
    print("flushed", flush=True)
    os._exit(0)
sys.stdin.readline()
assert state.counters.queued == 200   # everything is still waiting
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("with_spool", [False, True], ids=["alone", "spool"])
def test_a_child_of_a_killed_agent_sends_its_own_writes_and_none_of_the_parents(folder, with_spool):
    spool = folder / "spool" if with_spool else ""
    with serving(folder) as daemon:
        command = [sys.executable, "-W", "ignore", "-c", FORKING, str(daemon.socket), str(spool)]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            daemon.signal(signal.SIGSTOP)
            try:
                for told in (b"forked\n", b""):
                    process.stdin.write(b"go on\n")
                    process.stdin.flush()
                    if told:
                        assert process.stdout.readline() == told
                assert process.wait(SECONDS) == -signal.SIGKILL
            finally:
                daemon.signal(signal.SIGCONT)
            assert process.stdout.readline() == b"flushed\n"
        with Client(daemon.socket) as client:
            assert client.ask("get", jobId="childs")["job"]["times"] == 1
        seen = [number for number in survivors_of(daemon, "parents") if number]
        assert seen == list(range(1, len(seen) + 1)), "what left before the kill is a prefix"
        if with_spool:
            with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, spool=spool) as state:
                state.flush(SECONDS)
                assert state.counters.rejected == 0
            assert survivors_of(daemon, "parents") == list(range(201))


def survivors_of(daemon: Daemon, name: str) -> list[int]:
    with Client(daemon.socket) as client:
        client.hello()
        return [event["record"]["n"] for event in client.ask("history", jobId=name, limit=1000)["events"]]
