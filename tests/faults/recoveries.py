"""How soon a daemon serves again once its store is back: `python -m tests.faults.recoveries [--rounds N] [-o json]`.

Owns the ways in which a store is not there, and what is measured of the daemon behind it. Must not know how an engine
looks for its store. The stores are those of tests/fleet/places.py with the settings a daemon has by default; agents and
plain clients deliver numbered writes all the time, and beside them one client writes, again and again, whose answers
are the clock.

    promise   a write is acknowledged within seconds of the store's return; meanwhile the daemon's memory grows by a
              bounded amount; everything arrives, once, in order
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
import threading
import time
from argparse import ArgumentParser
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.daemon.harness import Daemon
from tests.faults import program
from tests.fleet.daemons import daemon
from tests.fleet.delivery import Delivery
from tests.fleet.places import PLACES, Place

MOST_SECONDS = 6.0
"""From the store's return to an acknowledged write. A try that was made in vain just before, on a connection nobody
answers on, may take 3.3 (DynamoDB: a third of a call's ten; Redis: 2 for a connection), the pause behind it 1, and
where the engine has never been open, the pause before it is opened again 1 more. The rest is for the work itself."""

MOST_GROWN_BYTES = 64 * 1024 * 1024
"""By which the daemon's memory may grow: what may wait for a store at once. An engine that opens late loads its driver
within it, too."""

GIVE_UP_SECONDS = 60.0
"""After which a store that is back counts as lost to the daemon."""

EVERY_SECONDS = 0.01
"""Between two writes of the client that is the clock."""

MOST_WRITES = 100_000
"""Of each sender; it is told to end long before."""

FIRST_WRITES = 50
"""Acknowledged before a store goes, and once more when it is back."""

MIB = 1024 * 1024


class Fault(NamedTuple):
    """A way in which a store is not there for a while."""

    begins: Callable[[Place], object]
    ends: Callable[[Place], object]
    at_start: bool = False
    """The daemon is started into it."""
    times: int = 1


FAULTS = {
    "away at the start": Fault(methodcaller("go_away"), methodcaller("come_back"), at_start=True),
    "hung at the start": Fault(methodcaller("hang"), methodcaller("resume"), at_start=True),
    "away": Fault(methodcaller("go_away"), methodcaller("come_back")),
    "flapping": Fault(methodcaller("go_away"), methodcaller("come_back"), times=5),
    "hung": Fault(methodcaller("hang"), methodcaller("resume")),
}


class Outcome(NamedTuple):
    """What came of one fault."""

    seconds: float
    """From the store's return until a write was acknowledged; infinite when none was, 0 when that was seen first."""
    unserved: float
    """Seconds without an acknowledged write, all in all."""
    grown: int
    """Bytes by which the daemon's memory grew at most."""
    acknowledged: int
    """Writes delivered."""
    faults: list[str]
    """What was lost, doubled, out of order, refused for good, or acknowledged without a store."""

    def broken(self) -> list[str]:
        """What the suite holds anywhere, on a machine however busy."""
        problems = list(self.faults)
        if math.isinf(self.seconds):
            problems.append(f"nothing was acknowledged for {GIVE_UP_SECONDS:g} s after the store's return")
        if self.grown >= MOST_GROWN_BYTES:
            problems.append(f"the daemon's memory grew by {self.grown / MIB:.0f} MiB")
        return problems

    def slow(self, most: float = MOST_SECONDS) -> list[str]:
        late = most < self.seconds < math.inf
        return [f"a write was acknowledged {self.seconds:.1f} s after the store's return"] if late else []


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Of one fault, in all its rounds."""
    return {
        "recovered, s": round(median(each.seconds for each in outcomes), 2),
        "worst": round(max(each.seconds for each in outcomes), 2),
        "without service, s": round(max(each.unserved for each in outcomes), 1),
        "grown, MiB": round(max(each.grown for each in outcomes) / MIB, 1),
        "writes": sum(each.acknowledged for each in outcomes),
    }


class Absence(NamedTuple):
    """When a store was not there for the last time, by the steady clock."""

    began: float
    ending: float
    """It is about to return: where a server is started, that takes a while."""
    over: float


class Clock:
    """A client that writes again and again, and when it was told that a write is stored.

    In a thread of its own: whatever is done meanwhile must not hold it up. A connection for each write, for it is not
    meant to show what clients do when theirs is lost.
    """

    def __init__(self, of: Daemon) -> None:
        self._daemon = of
        self._is_over = threading.Event()
        self._told: list[float] = []

    def run(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            with self._daemon.connect() as client:
                reply = client.ask("update", jobId="clock", inc={"n": 1}, upsert=True)
            if reply["success"]:
                self._told.append(time.monotonic())

    def end(self) -> None:
        self._is_over.set()

    def last_before(self, moment: float, *, or_else: float) -> float:
        place = bisect_left(self._told, moment)
        return self._told[place - 1] if place else or_else

    async def first_after(self, moment: float) -> float:
        """Infinite when there was none for far too long."""
        while time.monotonic() < moment + GIVE_UP_SECONDS:
            place = bisect_left(self._told, moment)
            if place < len(self._told):
                return self._told[place]
            await asyncio.sleep(EVERY_SECONDS)
        return math.inf


# --- one fault -------------------------------------------------------------------------------------------------------


def recovered(folder: Path, store: str, name: str, seconds: float, chance: random.Random) -> Outcome:
    """A daemon under load whose store is not there for about so long."""
    fault = FAULTS[name]
    with PLACES[store]() as place:
        values = {key: value for key, value in place.values.items() if not key.endswith(".timeout_seconds")}
        if fault.at_start:
            fault.begins(place)
        with daemon(folder, place.backend, values, env=place.env) as one:
            if fault.at_start:
                one.start().wait_for_ping()
            else:
                one.serving()
            return asyncio.run(_under_load(one, place, fault, seconds, chance))


async def _under_load(one: Daemon, place: Place, fault: Fault, seconds: float, chance: random.Random) -> Outcome:
    clock, delivery = Clock(one), Delivery([one.socket], MOST_WRITES, pause_seconds=0.01)
    running = asyncio.gather(asyncio.to_thread(clock.run), delivery.run())
    try:
        if not fault.at_start:
            await _more_of(delivery)
        one.reset_peak()
        before = one.peak_bytes()
        absence = await _suffered(place, fault, seconds, chance)
        served = await clock.first_after(absence.ending)
        if math.isinf(served):
            running.cancel()
            return Outcome(math.inf, math.inf, one.peak_bytes() - before, 0, [])
        await _more_of(delivery)
    finally:
        clock.end()
        delivery.end()
    await running
    grown = one.peak_bytes() - before
    last = clock.last_before(absence.ending, or_else=absence.began)
    faults = [*await delivery.faults(), *(f"the epoch changed: {change}" for change in delivery.epochs)]
    if fault.times == 1 and last > (absence.began + absence.ending) / 2:  # not one that was on its way to the client
        faults.append("a write was acknowledged while the store was not there")
    return Outcome(max(0.0, served - absence.over), served - last, grown, delivery.acknowledged, faults)


async def _suffered(place: Place, fault: Fault, seconds: float, chance: random.Random) -> Absence:
    """Let it happen, all in the main thread, because servers are started in it."""
    turn = seconds / fault.times
    for number in range(fault.times):
        if number:
            await asyncio.sleep(turn * chance.uniform(0.1, 0.5))  # there for a moment, and gone again
        began = time.monotonic()
        if number or not fault.at_start:
            fault.begins(place)
        await asyncio.sleep(turn * chance.uniform(0.5, 1.0))  # to any moment of what the daemon does about it
        ending = time.monotonic()
        fault.ends(place)
    return Absence(began, ending, time.monotonic())


async def _more_of(delivery: Delivery) -> None:
    goal = delivery.acknowledged + FIRST_WRITES
    async with asyncio.timeout(GIVE_UP_SECONDS):
        while delivery.acknowledged < goal:
            await asyncio.sleep(EVERY_SECONDS)


# --- the program -----------------------------------------------------------------------------------------------------


def options() -> ArgumentParser:
    parser = program.options("recoveries", __doc__, seed=1)
    parser.add_argument("--seconds", type=float, default=15.0, help="that a store is away, at most")
    parser.add_argument("--rounds", type=int, default=5, help="of every fault")
    parser.add_argument("--stores", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--within", type=float, default=MOST_SECONDS, help="seconds that a recovery may take")
    return parser


def main() -> int:
    asked = options().parse_args()
    chance = random.Random(asked.seed)
    told: dict[str, Any] = {}
    broken: list[str] = []
    for store, fault in itertools.product(asked.stores, asked.faults):
        outcomes = []
        for round_ in range(asked.rounds):
            program.say(f"{store}, {fault}, round {round_ + 1} ...")
            with program.scratch() as folder:
                outcome = recovered(folder, store, fault, asked.seconds, chance)
            outcomes.append(outcome)
            broken += [f"{store}, {fault}: {problem}" for problem in (*outcome.broken(), *outcome.slow(asked.within))]
        if outcomes:
            told[f"{store}, {fault}"] = figures(outcomes)
    return program.ended(asked, told, broken)


if __name__ == "__main__":
    sys.exit(main())
