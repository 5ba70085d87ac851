"""F1: the daemon on sqlite is killed at any moment under load, over and over.

    python -m tests.faults.kills --rounds 2000

Owns the rounds and what is counted in them. Must not know what the daemon does inside: where a kill hit it is read from
the trace of its failpoints.

Two loads take turns, each for as many rounds as were asked for. One is the race of tests/fleet, whose history is
checked record by record; clients in it that number nothing leave writes of unknown fate. The other pipelines numbered
writes, remembers what was acknowledged, and knows exactly what each record may look like, and which writes were sent
twice. Of each, every third store is at level `os`, which a kill must not hurt either.
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
from typing import NamedTuple

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

LEVELS = ("disk", "disk", "os")
"""Of one store after the other."""

STRETCHES = ("commit", "apply", "checkpoint")
"""What a kill may fall into, by the names of the points before and after it."""

RACED, PIPELINED, INSIDE = "of them in the race, whose histories are checked", "of them pipelined", "kills inside: {}"
"""Figures of which there must be some."""


@dataclass
class Tally:
    """What came of it."""

    rounds: Counter[str] = field(default_factory=Counter)
    """By the load they were of, and by the level."""
    answers: int = 0
    checked_operations: int = 0
    """Those in histories that went through the checker."""
    acknowledged: int = 0
    resent: int = 0
    duplicates: int = 0
    checked_files: int = 0
    """How often they were looked through."""
    inside: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.rounds["race"] + self.rounds["pipelined"]

    def took_kill(self, trace: Path, *sorts: str) -> None:
        self.rounds.update(sorts)
        counts = failpoints.reached(trace)
        self.inside.update(stretch for stretch in STRETCHES if counts[f"{stretch}.before"] > counts[f"{stretch}.after"])

    def figures(self) -> dict[str, int]:
        return {
            "rounds of SIGKILL": self.kills,
            RACED: self.rounds["race"],
            PIPELINED: self.rounds["pipelined"],
            "of them at level os": self.rounds["os"],
            "operations in checked histories": self.checked_operations,
            "requests answered": self.answers,
            "writes acknowledged to pipelining clients": self.acknowledged,
            "writes sent again": self.resent,
            "of them told to be duplicates": self.duplicates,
            **{INSIDE.format(name): self.inside[name] for name in STRETCHES},
            "times all files were checked": self.checked_files,
        }


class Session(NamedTuple):
    """The kills of one store."""

    rounds: int
    seed: int
    level: str = "disk"
    checked_rounds: int = CHECKED_ROUNDS


def trace_of(folder: Path) -> Path:
    """The file that a daemon's failpoints count in."""
    return folder / "trace"


@contextmanager
def _a_daemon(level: str) -> Iterator[Daemon]:
    """One that is not started yet, and counts what it comes by."""
    with program.scratch() as folder:
        settings = {"failpoints": f"trace={trace_of(folder)}"}
        with Daemon(folder, "--durability", level, settings=settings) as daemon:
            yield daemon


class Rounds:
    """Kills of one daemon, and its files looked at now and then."""

    def __init__(self, daemon: Daemon, load: str, tally: Tally, plan: Session) -> None:
        self._daemon, self._tally = daemon, tally
        self._sorts = (load, plan.level)
        self._checked_rounds = plan.checked_rounds
        self._trace = trace_of(daemon.folder)

    def start(self) -> None:
        self._trace.unlink(missing_ok=True)
        self._daemon.serving()

    def kill(self) -> None:
        self._daemon.kill()
        self._tally.took_kill(self._trace, *self._sorts)
        if self._tally.kills % self._checked_rounds == 0:
            found = inconsistencies(self._daemon.data, self._daemon.folder / "copy")
            self._tally.checked_files += 1
            self._tally.problems += [f"round {self._tally.kills}: {each}" for each in found]

    def end(self) -> None:
        if code := self._daemon.stop():
            self._tally.problems.append(f"it did not end well, but with {code}: {self._daemon.stderr[-1000:]}")


# --- the race, with the checker --------------------------------------------------------------------------------------


def race(session: Session, tally: Tally) -> None:
    """Kills while many clients race for the same records, leases and jobs."""
    with _a_daemon(session.level) as daemon:
        kills = Rounds(daemon, "race", tally, session)
        asyncio.run(_race(kills, daemon.socket, session, tally))
        kills.end()


async def _race(kills: Rounds, path: Path, session: Session, tally: Tally) -> None:
    chance = random.Random(session.seed)
    load = Race([path], Plan(**{**vars(RACE), "seed": session.seed}))

    async def meanwhile() -> None:
        for _ in range(session.rounds):
            await load.more(chance.randrange(1, MOST_ANSWERS))
            await asyncio.to_thread(kills.kill)
            await asyncio.to_thread(kills.start)
        await load.more(MOST_ANSWERS)
        load.end()

    await asyncio.to_thread(kills.start)
    await load.run(meanwhile)
    tally.answers += sum(load.heard.values())
    tally.checked_operations += len(load.story.ops)
    tally.resent += load.story.tries - sum(map(len, load.story.seconds.values()))
    tally.problems += faults(load)


# --- pipelined writes, with a model ----------------------------------------------------------------------------------


def pipelined(session: Session, tally: Tally) -> None:
    """Kills while clients have dozens of numbered writes under way, and send again what was not answered."""
    chance = random.Random(session.seed)
    with _a_daemon(session.level) as daemon:
        writers = [Writer(daemon.socket, f"w{n}", ack="last" if n % 2 else "each") for n in range(4)]
        kills = Rounds(daemon, "pipelined", tally, session)
        for _ in range(session.rounds):
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


class Load(NamedTuple):
    """A load, and the figure of its rounds."""

    run: Callable[[Session, Tally], None]
    figure: str


LOADS = {"race": Load(race, RACED), "pipelined": Load(pipelined, PIPELINED)}


def options() -> ArgumentParser:
    parser = program.options("kills", __doc__, seed=1)
    parser.add_argument("--rounds", type=int, default=100, help="of each load")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    return parser


def main() -> int:
    asked, tally = options().parse_args(), Tally()
    for session in sessions(asked.rounds, asked.seed):
        for load in asked.loads:
            LOADS[load].run(session, tally)
        program.say(f"{tally.kills} of {len(asked.loads) * asked.rounds} rounds, {len(tally.problems)} broken")
    least = {INSIDE.format("commit"): 1, **{LOADS[load].figure: 1 for load in asked.loads}}
    return program.ended(asked, tally.figures(), tally.problems, least=least)


def sessions(rounds: int, seed: int) -> Iterator[Session]:
    """So many rounds, in parts, for each load."""
    for number, begin in enumerate(range(0, rounds, SESSION_ROUNDS)):
        yield Session(min(SESSION_ROUNDS, rounds - begin), seed + number, LEVELS[number % len(LEVELS)])


if __name__ == "__main__":
    sys.exit(main())
