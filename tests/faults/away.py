"""An agent whose daemon is away for a while: `python -m tests.faults.away [--seconds N] [--rounds N] [-o json]`.

Owns the play (an agent writes on while its daemon is stopped or restarted) and what is measured of it. Must not know
how the adapter does it.

    promise   a fire-and-forget write stays under a millisecond: by the processor time it takes all but one in a
              thousand, and by the clock, which on a busy machine goes on while others work, all but one in a hundred;
              the queue keeps to its bounds; everything arrives afterwards, once, in order

The one in a thousand is room for what was seen once on a busy machine and not again, 1.9 ms in some ten thousand calls:
whether the call took it, or an interrupt that was counted as its time, is not known. The most is told in any case.

That the queue keeps to its bounds where they are reached is shown in test_f06_daemon_away.py.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
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
from statesvc_client.desk import Counters
from tests.daemon.harness import SECONDS, Client, Daemon, serving
from tests.faults import program

RECORDS = 20
EVERY_SECONDS = 0.001
"""Between two writes of the agent."""

MOST_SECONDS = 0.001
"""What a call may take, by the clock and of the processor."""

DEAREST, SLOWEST = 0.001, 0.01
"""The part of the calls that may take more, of the processor and by the clock. One may, however few they are."""

MAX_RECORDS, MAX_BYTES = 100_000, 64 * 1024 * 1024
"""The bounds of the queue, as they are by default."""

FACES = ("asyncio", "blocking")
WAYS = ("stopped", "killed")


class Call(NamedTuple):
    """Seconds that a write took."""

    clock: float
    processor: float


class Outcome(NamedTuple):
    """What came of an agent's writes."""

    face: str
    way: str
    seconds: float
    calls: list[Call]
    """Those made while the daemon was away."""
    written: int
    arrived: list[int]
    """The writes in the order of the daemon's log."""
    queued: int
    queued_bytes: int
    """What waited, at most."""

    def broken(self) -> list[str]:
        """What the suite holds anywhere, on a machine however busy."""
        problems = []
        if self.arrived != list(range(self.written)):
            problems.append(f"{self.written} writes arrived as {len(self.arrived)}, or out of order")
        if not self.calls:
            problems.append("nothing was written while the daemon was away")
        if not self.queued:
            problems.append("nothing waited while the daemon was away")
        if self.queued > MAX_RECORDS or self.queued_bytes > MAX_BYTES:
            problems.append(f"{self.queued} writes with {self.queued_bytes} bytes waited, beyond the queue's bounds")
        return problems

    def slow(self) -> list[str]:
        slow = sum(call.clock >= MOST_SECONDS for call in self.calls)
        dear = sum(call.processor >= MOST_SECONDS for call in self.calls)
        told = f"of {len(self.calls)} calls took {1000 * MOST_SECONDS:g} ms or more"
        problems = [f"{slow} {told}"] if slow > max(1, SLOWEST * len(self.calls)) else []
        return problems + ([f"{dear} {told} of the processor"] if dear > max(1, DEAREST * len(self.calls)) else [])

    def figures(self) -> dict[str, float]:
        times: dict[str, float] = {}
        for what, taken in (
            ("", [call.clock for call in self.calls]),
            (" cpu", [call.processor for call in self.calls]),
        ):
            quantiles = statistics.quantiles(taken, n=100) if len(taken) > 1 else [math.nan] * 99
            measured = {"median": quantiles[49], "99 %": quantiles[98], "most": max(taken, default=math.nan)}
            times |= {f"{name}{what}, us": round(1e6 * each, 1) for name, each in measured.items()}
        waited = {"waited": self.queued, "bytes": self.queued_bytes}
        return {"seconds away": self.seconds, "written": self.written, **waited, **times}


class Absence:
    """A daemon that goes, and comes back after a while. What is done meanwhile asks it `is_over`."""

    def __init__(self, daemon: Daemon, way: str, seconds: float) -> None:
        self._daemon = daemon
        self._way = way
        daemon.signal(signal.SIGSTOP if way == "stopped" else signal.SIGKILL)
        if way == "killed":
            daemon.exit_code()
        self._until = time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def end(self) -> None:
        if self._way == "stopped":
            self._daemon.signal(signal.SIGCONT)
        else:
            self._daemon.start()


class Agent:
    """Writes that can be told apart, and what each call took."""

    def __init__(self, write: Callable[..., Any], counters: Callable[[], Counters]) -> None:
        self._write = write
        self._counters = counters
        self.written = self.most_queued = self.most_queued_bytes = 0

    def write(self) -> Call:
        number = self.written
        began, taken = time.perf_counter(), time.thread_time()
        self._write(f"job-{number % RECORDS}", n=number, upsert=True)
        call = Call(time.perf_counter() - began, time.thread_time() - taken)
        self.written += 1
        counters = self._counters()
        self.most_queued = max(self.most_queued, counters.queued)
        self.most_queued_bytes = max(self.most_queued_bytes, counters.queued_bytes)
        return call


def away(folder: Path, face: str, way: str, seconds: float) -> Outcome:
    """An agent writes before, while, and after its daemon is away."""
    with serving(folder) as daemon:
        play = _asyncio if face == "asyncio" else _blocking
        # What this program has imported is not of the agent, and the collector's way through it not of a call.
        gc.freeze()
        try:
            agent, calls = play(daemon, way, seconds)
        finally:
            gc.unfreeze()
        arrived = logged(daemon)
        waited = agent.most_queued, agent.most_queued_bytes
        return Outcome(face, way, seconds, calls, agent.written, arrived, *waited)


OPTIONS: dict[str, Any] = {"connect_seconds": SECONDS, "max_records": MAX_RECORDS, "max_bytes": MAX_BYTES}


def _asyncio(daemon: Daemon, way: str, seconds: float) -> tuple[Agent, list[Call]]:
    async def play() -> tuple[Agent, list[Call]]:
        async with AsyncStore.connect(str(daemon.socket), **OPTIONS) as state:
            agent = Agent(state.update, lambda: state.counters)
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


def _blocking(daemon: Daemon, way: str, seconds: float) -> tuple[Agent, list[Call]]:
    with StateStore.connect(str(daemon.socket), **OPTIONS) as state:
        agent = Agent(state.update, lambda: state.counters)
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
