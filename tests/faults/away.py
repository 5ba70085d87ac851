"""An agent whose daemon is away for a while: `python -m tests.faults.away [--seconds N] [--rounds N] [-o json]`.

Owns the play (an agent writes on while its daemon is stopped or restarted) and what is measured of it. Must not know
how the adapter does it.

    promise   a fire-and-forget write stays under a millisecond, all but one in a hundred; everything arrives
              afterwards, once, in order

That the queue keeps to its bound is shown where it is reached: test_f06_daemon_away.py.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from statesvc_client import StateStore as AsyncStore
from statesvc_client.blocking import StateStore
from tests.daemon.harness import SECONDS, Client, Daemon, serving
from tests.faults import program

RECORDS = 20
EVERY_SECONDS = 0.001
"""Between two writes of the agent."""

MOST_SECONDS = 0.001
"""What a call may take, all but one in a hundred."""

FACES = ("asyncio", "blocking")
WAYS = ("stopped", "killed")


class Outcome(NamedTuple):
    """What came of an agent's writes."""

    face: str
    way: str
    seconds: float
    calls: list[float]
    """Seconds that each call took while the daemon was away."""
    written: int
    arrived: list[int]
    """The writes in the order of the daemon's log."""
    queued: int
    """Writes that waited, at most."""

    def broken(self) -> list[str]:
        """What the suite holds anywhere, on a machine however busy."""
        problems = []
        if self.arrived != list(range(self.written)):
            problems.append(f"{self.written} writes arrived as {len(self.arrived)}, or out of order")
        if not self.calls:
            problems.append("nothing was written while the daemon was away")
        return problems

    def slow(self) -> list[str]:
        slowest = statistics.quantiles(self.calls, n=100)[98]
        return [] if slowest < MOST_SECONDS else [f"one call in a hundred took more than {1000 * slowest:.2f} ms"]

    def figures(self) -> dict[str, float]:
        quantiles = [round(1e6 * each) for each in statistics.quantiles(self.calls, n=1000)]
        times = {"median, us": quantiles[499], "99 %": quantiles[989], "99.9 %": quantiles[998]}
        return {"seconds away": self.seconds, "written": self.written, "waited": self.queued, **times}


class Absence:
    """A daemon that goes, and comes back after a while. What is done meanwhile asks it `is_over`."""

    def __init__(self, daemon: Daemon, way: str, seconds: float) -> None:
        self._daemon = daemon
        self._way = way
        self._until = time.monotonic() + seconds
        daemon.signal(signal.SIGSTOP if way == "stopped" else signal.SIGKILL)
        if way == "killed":
            daemon.exit_code()

    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def end(self) -> None:
        if self._way == "stopped":
            self._daemon.signal(signal.SIGCONT)
        else:
            self._daemon.start()


class Agent:
    """Writes that can be told apart, and what each call took."""

    def __init__(self, write: Callable[..., Any], queued: Callable[[], int]) -> None:
        self._write = write
        self._queued = queued
        self.written = self.most_queued = 0

    def write(self) -> float:
        number = self.written
        began = time.perf_counter()
        self._write(f"job-{number % RECORDS}", n=number, upsert=True)
        took = time.perf_counter() - began
        self.written += 1
        self.most_queued = max(self.most_queued, self._queued())
        return took


def away(folder: Path, face: str, way: str, seconds: float) -> Outcome:
    """An agent writes before, while, and after its daemon is away."""
    with serving(folder) as daemon:
        play = _asyncio if face == "asyncio" else _blocking
        agent, calls = play(daemon, way, seconds)
        arrived = logged(daemon)
        return Outcome(face, way, seconds, calls, agent.written, arrived, agent.most_queued)


def _asyncio(daemon: Daemon, way: str, seconds: float) -> tuple[Agent, list[float]]:
    async def play() -> tuple[Agent, list[float]]:
        async with AsyncStore.connect(str(daemon.socket), connect_seconds=SECONDS) as state:
            agent = Agent(state.update, lambda: state.counters.queued)
            agent.write()
            await state.flush(SECONDS)
            absence, calls = Absence(daemon, way, seconds), []
            while not absence.is_over():
                calls.append(agent.write())
                await asyncio.sleep(EVERY_SECONDS)
            absence.end()
            agent.write()
            await state.flush(2 * SECONDS)
            return agent, calls

    return asyncio.run(play())


def _blocking(daemon: Daemon, way: str, seconds: float) -> tuple[Agent, list[float]]:
    with StateStore.connect(str(daemon.socket), connect_seconds=SECONDS) as state:
        agent = Agent(state.update, lambda: state.counters.queued)
        agent.write()
        state.flush(SECONDS)
        absence, calls = Absence(daemon, way, seconds), []
        while not absence.is_over():
            calls.append(agent.write())
            time.sleep(EVERY_SECONDS)
        absence.end()
        agent.write()
        state.flush(2 * SECONDS)
        return agent, calls


def logged(daemon: Daemon) -> list[int]:
    """The writes in the order of the log, once nothing of a client that is gone is under way any more."""
    with Client(daemon.socket) as client:
        client.hello()
        assert client.ask("watch", kind="job", after="0")["success"]
        client.send({"op": "create", "job": {"uuid": "last"}})
        seen: list[int] = []
        while True:
            event = client.reply().get("event")
            if event is not None:
                if event["id"] == "last":
                    return seen
                seen.append(event["record"]["n"])


# --- the program ---------------------------------------------------------------------------------------------------


def options() -> ArgumentParser:
    parser = program.options("away", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="that the daemon is away")
    parser.add_argument("--rounds", type=int, default=1)
    return parser


def main() -> int:
    asked = options().parse_args()
    figures, broken = {}, []
    for round_, face, way in itertools.product(range(asked.rounds), FACES, WAYS):
        name = f"{face}, {way}" + (f", round {round_ + 1}" if asked.rounds > 1 else "")
        program.say(f"{name} ...")
        with program.scratch() as folder:
            outcome = away(folder, face, way, asked.seconds)
        figures[name] = outcome.figures()
        broken += [f"{name}: {problem}" for problem in (*outcome.broken(), *outcome.slow())]
    return program.ended(asked, figures, broken)


if __name__ == "__main__":
    sys.exit(main())
