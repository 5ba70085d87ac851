"""Runs measures: their cases in turn, round by round, so that what disturbs the machine disturbs all of them.

Owns the order. Must not know what any case does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from .effort import OWN
from .progress import Progress
from .shape import Case, Figure, Measure, Reading, figure_of
from .sizes import Size
from .world import World


class Ran(NamedTuple):
    """What became of a run: the figures, and what could not be measured."""

    figures: list[Figure]
    failures: list[str]


def run(measures: Sequence[Measure], world: World, progress: Progress) -> Ran:
    """Every measure; what it started has ended when the next begins. One that fails does not take the others along."""
    ran = Ran([], [])
    gc.freeze()  # modules are no garbage: collecting between cases need not look at them
    for number, measure in enumerate(measures):
        progress.begin(number + 1, len(measures), measure)
        try:
            with measure.prepared(world) as cases:
                run_one(measure, cases, world.size, progress, ran)
        except Exception as failed:  # noqa: BLE001 - whatever it is, the other measures are still worth having
            ran.failures.append(f"{measure.name}: {_told(failed)}")
            progress.tell_failure(ran.failures[-1])
        progress.end()
    return ran


def run_one(measure: Measure, cases: Sequence[Case], size: Size, progress: Progress, ran: Ran) -> None:
    """A case that fails once is not asked again, and has no figure."""
    readings: dict[Case, list[Reading]] = {case: [] for case in cases}
    end = time.monotonic() + size.seconds
    for round in range(max(case.rounds or size.rounds for case in cases)):
        if round >= size.least_rounds and time.monotonic() > end:
            break
        for case in in_turn(cases, round):
            if case not in readings or round >= (case.rounds or size.rounds):
                continue
            progress.step(round + 1, case)
            gc.collect()  # what the case before left is not this one's to clear away
            try:
                readings[case].append(_read(case, round))
            except Exception as failed:  # noqa: BLE001 - the same for the other cases
                del readings[case]
                ran.failures.append(f"{measure.name}: {case.work}, {case.who}, {case.at}: {_told(failed)}")
                progress.tell_failure(ran.failures[-1])
    ran.figures.extend(figure_of(measure, case, some) for case, some in readings.items())


def _read(case: Case, round: int) -> Reading:
    OWN.taken()  # what ran before, to prepare, is not of this round
    reading = case.run(round)
    return reading if reading.client is not None else reading._replace(client=OWN.taken())


def _told(failed: Exception) -> str:
    return f"{type(failed).__name__}: {failed}"[:300]


def in_turn(cases: Sequence[Case], round: int) -> Iterator[Case]:
    """Work after work, because an update needs its create; within one, another contender begins each round."""
    for _, group in groupby(cases, key=lambda case: case.work):
        some = list(group)
        first = round % len(some)
        yield from some[first:] + some[:first]
