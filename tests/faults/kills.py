"""F1: the daemon on sqlite is killed at any moment under load, over and over.

    python -m tests.faults.kills --rounds 2000

Owns the rounds and what is counted in them. Must not know what the daemon does inside: where a kill hit it is read from
the trace of its failpoints.

Two loads take turns. One is the race of tests/fleet, whose history is checked record by record; clients in it that
number nothing leave writes of unknown fate. The other pipelines numbered writes, remembers what was acknowledged, and
knows exactly what each record may look like, and which writes were sent twice.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from statesvc import failpoints
from statesvc.backends.sqlite import SqliteEngine
from tests.daemon.harness import Daemon
from tests.daemon.load import Writer, counts, writing
from tests.faults import program
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults

SESSION_ROUNDS = 50
"""Kills of one store; then a new one begins, so that a history stays short enough to be checked."""

CHECKED_ROUNDS = 10
"""One in so many times the files are checked as the kill left them."""

RACE = Plan(until_told=True, mixed=12, lockers=3, workers=3, jobs=15, hot=4, cold=30, ttl=2.0)
MOST_ANSWERS = 200
"""Before a kill in the race; as many acknowledgements of one writer in the pipelined load are three times that."""

STRETCHES = ("commit", "apply", "checkpoint")
"""What a kill may fall into, by the names of the points before and after it."""


@dataclass
class Tally:
    """What came of it."""

    rounds: int = 0
    answers: int = 0
    acknowledged: int = 0
    resent: int = 0
    duplicates: int = 0
    checked: int = 0
    """How often the files were looked through."""
    inside: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def took_kill(self, trace: Path) -> None:
        self.rounds += 1
        counts = failpoints.reached(trace)
        self.inside.update(stretch for stretch in STRETCHES if counts[f"{stretch}.before"] > counts[f"{stretch}.after"])

    def figures(self) -> dict[str, int]:
        return {
            "rounds of SIGKILL": self.rounds,
            "requests answered": self.answers,
            "writes acknowledged to pipelining clients": self.acknowledged,
            "writes sent again": self.resent,
            "of them told to be duplicates": self.duplicates,
            **{f"kills inside a{'n' if name == 'apply' else ''} {name}": self.inside[name] for name in STRETCHES},
            "times all files were checked": self.checked,
        }


@contextmanager
def _a_daemon() -> Iterator[tuple[Daemon, Path]]:
    """One that is not started yet, and the file its failpoints count in."""
    with program.scratch() as folder:
        trace = folder / "trace"
        with Daemon(folder, settings={"failpoints": f"trace={trace}"}) as daemon:
            yield daemon, trace


class Rounds:
    """Kills of one daemon, and its files looked at now and then."""

    def __init__(self, daemon: Daemon, trace: Path, tally: Tally, checked_rounds: int) -> None:
        self._daemon, self._trace, self._tally = daemon, trace, tally
        self._checked_rounds = checked_rounds

    def start(self) -> None:
        self._trace.unlink(missing_ok=True)
        self._daemon.serving()

    def kill(self) -> None:
        self._daemon.kill()
        self._tally.took_kill(self._trace)
        if self._tally.rounds % self._checked_rounds == 0:
            found = inconsistencies(self._daemon.data, self._daemon.folder / "copy")
            self._tally.checked += 1
            self._tally.problems += [f"round {self._tally.rounds}: {each}" for each in found]

    def end(self) -> None:
        if code := self._daemon.stop():
            self._tally.problems.append(f"it did not end well, but with {code}: {self._daemon.stderr[-1000:]}")


# --- the race, with the checker --------------------------------------------------------------------------------------


def race(rounds: int, seed: int, tally: Tally, checked_rounds: int = CHECKED_ROUNDS) -> None:
    """So many kills while many clients race for the same records, leases and jobs."""
    with _a_daemon() as (daemon, trace):
        kills = Rounds(daemon, trace, tally, checked_rounds)
        asyncio.run(_race(kills, daemon.socket, rounds, seed, tally))
        kills.end()


async def _race(kills: Rounds, path: Path, rounds: int, seed: int, tally: Tally) -> None:
    chance = random.Random(seed)
    load = Race([path], Plan(**{**vars(RACE), "seed": seed}))

    async def meanwhile() -> None:
        for _ in range(rounds):
            await load.more(chance.randrange(1, MOST_ANSWERS))
            await asyncio.to_thread(kills.kill)
            await asyncio.to_thread(kills.start)
        await load.more(1)
        load.end()

    await asyncio.to_thread(kills.start)
    await load.run(meanwhile)
    tally.answers += sum(load.heard.values())
    tally.resent += load.story.tries - sum(map(len, load.story.seconds.values()))
    tally.problems += faults(load)


# --- pipelined writes, with a model ----------------------------------------------------------------------------------


def pipelined(rounds: int, seed: int, tally: Tally, checked_rounds: int = CHECKED_ROUNDS) -> None:
    """So many kills while clients have dozens of numbered writes under way, and send again what was not answered."""
    chance = random.Random(seed)
    with _a_daemon() as (daemon, trace):
        writers = [Writer(daemon.socket, f"w{n}", ack="last" if n % 2 else "each") for n in range(4)]
        kills = Rounds(daemon, trace, tally, checked_rounds)
        for _ in range(rounds):
            kills.start()
            tally.problems += _missing(daemon, writers)
            # When one of them has come to its goal, the daemon is in the middle of it.
            with writing(writers, chance.randrange(1, 3 * MOST_ANSWERS), wait_for=writers[:1]):
                kills.kill()
        kills.start()
        for writer in writers:
            writer.finish()
        tally.problems += _missing(daemon, writers)
        for writer in writers:
            tally.problems += writer.problems
            tally.acknowledged += writer.acknowledged
            tally.answers += writer.acknowledged
            tally.resent += writer.resent
            tally.duplicates += writer.duplicates
        kills.end()


def _missing(daemon: Daemon, writers: list[Writer]) -> list[str]:
    """What is not there though it was acknowledged, is there by halves, or was counted too often."""
    with daemon.connect() as client:
        found = [problem for writer in writers for problem in writer.missing_or_torn(client)]
        for name, total, acked, sent in counts(client, writers):
            if not acked <= total <= sent:
                found.append(f"{name} is {total}: {acked} were acknowledged, {sent} sent")
    return found


# --- the files -------------------------------------------------------------------------------------------------------


def inconsistencies(data: Path, copy: Path) -> list[str]:
    """What a store's own check finds after replay, in a copy, so that the daemon starts from what the kill left."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)

    async def check() -> list[str]:
        engine = SqliteEngine(copy)
        await engine.open()
        try:
            return [*await engine.check(), *await _revisions_out_of_order(engine)]
        finally:
            await engine.close()

    return asyncio.run(check())


async def _revisions_out_of_order(engine: SqliteEngine) -> list[str]:
    """Entries of the log that do not follow the one before them of the same record."""
    newest: dict[tuple[str, str], tuple[str, int]] = {}
    found: list[str] = []
    for _, _, row in await engine.read_log("", 10_000_000):
        before = newest.get(row.key)
        follows = row.revision == 1 if before is None or before[0] != row.uid else row.revision == before[1] + 1
        if not follows:
            found.append(f"{row.key}: {before} is followed by {row.stamp}")
        newest[row.key] = row.stamp
    return found


# --- the program -----------------------------------------------------------------------------------------------------


def options() -> ArgumentParser:
    parser = program.options("kills", __doc__, seed=1)
    parser.add_argument("--rounds", type=int, default=100)
    return parser


def main() -> int:
    asked, tally = options().parse_args(), Tally()
    for session, load in _sessions(asked.rounds):
        load(min(SESSION_ROUNDS, asked.rounds - tally.rounds), asked.seed + session, tally)
        program.say(f"{tally.rounds} of {asked.rounds} rounds, {len(tally.problems)} broken")
    return program.ended(asked, tally.figures(), tally.problems)


def _sessions(rounds: int) -> Iterator[tuple[int, Callable[[int, int, Tally], None]]]:
    for session in range(-(-rounds // SESSION_ROUNDS)):
        yield session, (race, pipelined)[session % 2]


if __name__ == "__main__":
    sys.exit(main())
