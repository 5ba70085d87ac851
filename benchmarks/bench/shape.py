"""What a measurement is made of: a measure has cases, a case gives a reading a round, readings become a figure.

Owns the shapes and what best and median mean. Must not know any server or any work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .world import World

MEMORY = "statesvc memory"
SQLITE = "statesvc sqlite"
REDIS = "Redis volatile"
REDIS_ALWAYS = "Redis fsync always"
REDIS_BARE = "Redis volatile, prepared bytes"
"""Without a client: what the load generator reaches that statesvc gets."""
IN_PROCESS = "SQLite in the agent"
ECHO = "echo"

A_SECOND = "a second"
MICROSECONDS = "us"
MILLISECONDS = "ms"
MEGABYTES = "MB"


class Failed(Exception):
    """What was measured did not do its work: a number would be a lie."""


class Reading(NamedTuple):
    """What one round gave. `p99` is there where single requests were timed."""

    value: float
    p99: float | None = None
    client: float | None = None
    """How much of the time the load generator itself was at work; where a clock ran elsewhere, it is told."""


@dataclass(frozen=True)
class Case:
    """One contender at one piece of work."""

    work: str
    who: str
    at: str
    """Under what circumstances: how deep the pipeline, how many connections, how many jobs."""
    run: Callable[[int], Reading]
    """Does the work of a round, which is numbered from 0, and says how it went."""
    rounds: int | None = None
    """Where a round takes long, or gives the same each time: so many instead of the size's own."""


@dataclass(frozen=True)
class Measure:
    """Cases that are compared with each other, in one unit."""

    name: str
    title: str
    compares: str
    """What a number says, and what is done to get it."""
    unit: str
    more_is_better: bool
    prepared: Callable[[World], AbstractContextManager[Sequence[Case]]]
    """Starts what the cases need, and ends it."""


class Figure(NamedTuple):
    """What became of a case."""

    measure: str
    work: str
    who: str
    at: str
    unit: str
    more_is_better: bool
    rounds: list[float]
    p99: float | None = None
    """That of the best round."""
    client: float | None = None
    """The load generator's own share of the time, median of the rounds."""

    @property
    def best(self) -> float:
        return max(self.rounds) if self.more_is_better else min(self.rounds)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def as_json(self) -> dict[str, Any]:
        more = {} if self.p99 is None else {"p99": rounded(self.p99)}
        if self.client is not None:
            more["client"] = round(self.client, 2)
        return {
            "measure": self.measure, "work": self.work, "who": self.who, "at": self.at, "unit": self.unit,
            "moreIsBetter": self.more_is_better, "best": rounded(self.best), "median": rounded(self.median), **more,
            "rounds": [rounded(value) for value in self.rounds],
        }  # fmt: skip


def figure_from_json(read: dict[str, Any]) -> Figure:
    return Figure(
        read["measure"], read["work"], read["who"], read["at"], read["unit"], read["moreIsBetter"], read["rounds"],
        read.get("p99"), read.get("client"),
    )  # fmt: skip


def figure_of(measure: Measure, case: Case, readings: Sequence[Reading]) -> Figure:
    choose = max if measure.more_is_better else min
    best = choose(readings, key=lambda reading: reading.value)
    values = [reading.value for reading in readings]
    shares = [reading.client for reading in readings if reading.client is not None]
    return Figure(
        measure.name, case.work, case.who, case.at, measure.unit, measure.more_is_better, values, best.p99,
        statistics.median(shares) if shares else None,
    )  # fmt: skip


def rounded(value: float) -> float:
    """Four digits are more than any run can repeat."""
    return float(f"{value:.4g}")


def shown(value: float) -> str:
    """A number as people read it: three digits, thousands apart."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def deep(depth: int) -> str:
    """How the circumstance of a pipeline is called."""
    return f"pipelines of {depth}"


def stored(jobs: int) -> str:
    return f"{jobs:,} jobs"


def connected(count: int) -> str:
    return f"{count:,} connections"


def queued(jobs: int) -> str:
    return f"{jobs:,} queued"


def watched(count: int) -> str:
    return f"{count} watchers"
