"""What a soak came to: slopes with their intervals, what was found, which goals were met; as a table and as JSON.

Owns the goals and the words. Must not know how the load was made.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any, NamedTuple

from tests.faults.soak.running import Sample, Soak
from tests.faults.soak.slopes import Point, Slope, medians, theil_sen
from tests.faults.soak.troubles import TROUBLES

MEMORY_MIB_AN_HOUR = 1.0
"""What the memory may grow by, the upper end of the interval included."""

HOUR = 3600.0
MINUTE = 60.0

FEWEST_POINTS = 5
"""Below this a slope says nothing."""

LEAST_PART = 0.5
"""Of the load and of the faults there is time for, that must have come about: a run in which less happened shows less
than it is asked for. A busy machine is slow, and a fault under way puts off the next."""

KILLED = "second daemon killed"
"""A fault that is not done to the daemon that is measured."""


class Goal(NamedTuple):
    """Something that must be, and whether it is."""

    name: str
    met: bool
    found: str


class Report:
    """Of a run that has ended."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self.warm = [sample for sample in soak.samples if sample.at >= MINUTE * soak.size.warm_up]

    def points(self, name: str) -> list[Point]:
        """One a minute, or more where the whole run is shorter than that."""
        width = min(MINUTE, self._soak.size.minutes * MINUTE / 12)
        return medians(((sample.at, getattr(sample, name)) for sample in self.warm), width)

    def slope(self, name: str) -> Slope | None:
        """In an hour, after the warm-up."""
        points = self.points(name)
        return theil_sen(points) * HOUR if len(points) >= FEWEST_POINTS else None

    # --- goals -------------------------------------------------------------------------------------------------------

    def goals(self) -> list[Goal]:
        return [self._memory(), self._flat("descriptors"), self._flat("threads"), *self._findings(), *self._done()]

    def _memory(self) -> Goal:
        slope = self.slope("rss")
        met = slope is not None and slope.high < MEMORY_MIB_AN_HOUR
        return Goal(f"memory grows by less than {MEMORY_MIB_AN_HOUR:g} MiB an hour", met, _told(slope, "MiB/h"))

    def _flat(self, name: str) -> Goal:
        """Whole numbers whose median moves by less than one in an hour do not move."""
        slope = self.slope(name)
        met = slope is not None and slope.value < 1.0 and slope.low <= 0.0
        return Goal(f"{name} stay as they are", met, _told(slope, "/h"))

    def _findings(self) -> list[Goal]:
        tally = self._soak.tally
        return [
            Goal("nothing lost", not tally.lost, str(tally.lost)),
            Goal("nothing applied twice", not tally.twice, str(tally.twice)),
            Goal("nothing wrong besides", not tally.wrong, str(tally.wrong)),
        ]

    def _done(self) -> list[Goal]:
        """That there was something to be found."""
        soak, size, faults = self._soak, self._soak.size, self._soak.tally.faults
        fewest = max(1, round(LEAST_PART * size.faults))
        troubles = sum(at >= self.warm_up_seconds for at, _ in soak.happened)
        kinds = len({what for _, what in soak.happened})
        rate = soak.turns / soak.worked_seconds if soak.worked_seconds else 0.0
        goals = [
            _at_least("faults done to it after the warm-up", troubles, fewest),
            _at_least("kinds of faults", kinds, len(TROUBLES)),
            _at_least("kills of the second daemon", faults[KILLED], fewest),
            _at_least("writes it acknowledged", soak.victim_acknowledged, max(1, faults[KILLED])),
            _at_least("steady requests a second", round(rate, 1), LEAST_PART * size.rate),
            _at_least("events followed", soak.followed, 1),
        ]
        return [*goals, _at_least("races judged", soak.races, max(1, len(soak.happened)))] if size.raced else goals

    @property
    def is_good(self) -> bool:
        return all(goal.met for goal in self.goals())

    # --- for people --------------------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        soak, tally = self._soak, self._soak.tally
        return [
            *(f"{'ok  ' if goal.met else 'MISSED'} {goal.name}: {goal.found}" for goal in self.goals()),
            *(f"  {words}" for words in tally.words),
            "",
            *(f"{name:24} {self._range(name)}" for name in ("rss", "anonymous", "disk")),
            *(f"{name:24} {self._range(name)}" for name in ("descriptors", "threads", "cpu", "requests", "p50", "p99")),
            "",
            f"{sum(tally.operations.values())} operations: {_counted(tally.operations)}",
            f"answers: {_counted(tally.heard)}",
            f"{sum(tally.faults.values())} faults: {_counted(tally.faults)}",
            (
                f"{soak.races} races judged; {soak.followed} events followed, resumed {soak.resumed} times; the second "
                f"daemon acknowledged {soak.victim_acknowledged} writes, {soak.victim_resent} were sent again"
            ),
        ]

    def _range(self, name: str) -> str:
        values = [value for sample in self.warm if (value := getattr(sample, name)) is not None]
        if not values:
            return "not measured"
        slope = self.slope(name) if len(values) == len(self.warm) else None
        unit = {"rss": "MiB", "anonymous": "MiB", "disk": "MiB", "p50": "ms", "p99": "ms", "requests": "/s"}.get(
            name, ""
        )
        least, median, most = min(values), statistics.median(values), max(values)
        return f"{least:8.2f} {median:8.2f} {most:8.2f} {unit:3}  {_told(slope, f'{unit}/h')}"

    # --- for programs ------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        soak, tally = self._soak, self._soak.tally
        slopes = {name: self.slope(name) for name in ("rss", "anonymous", "disk", "descriptors", "threads")}
        return {
            "good": self.is_good,
            "goals": [goal._asdict() for goal in self.goals()],
            "size": asdict(soak.size),
            "slopes": {name: None if slope is None else slope._asdict() for name, slope in slopes.items()},
            "operations": dict(tally.operations.most_common()),
            "answers": dict(tally.heard.most_common()),
            "faults": dict(tally.faults.most_common()),
            "lost": tally.lost,
            "twice": tally.twice,
            "wrong": tally.wrong,
            "words": tally.words,
            "races": soak.races,
            "turns": soak.turns,
            "worked": round(soak.worked_seconds, 1),
            "followed": soak.followed,
            "resumed": soak.resumed,
            "victim": {"acknowledged": soak.victim_acknowledged, "resent": soak.victim_resent},
        }

    def samples_as_json(self) -> dict[str, Any]:
        happened = [{"at": round(at, 1), "what": what} for at, what in self._soak.happened]
        return {**self.as_json(), "happened": happened, "samples": [asdict(sample) for sample in self._soak.samples]}

    @property
    def samples(self) -> list[Sample]:
        return self._soak.samples

    @property
    def warm_up_seconds(self) -> float:
        return MINUTE * self._soak.size.warm_up

    @property
    def happened(self) -> list[tuple[float, str]]:
        return self._soak.happened


def _at_least(what: str, found: float, fewest: float) -> Goal:
    return Goal(f"{what}: {fewest:g} at least", found >= fewest, f"{found:g}")


def _told(slope: Slope | None, unit: str) -> str:
    if slope is None:
        return "too few samples for a slope"
    return f"{slope.value:+.3f} {unit} (95 %: {slope.low:+.3f} to {slope.high:+.3f})"


def _counted(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
