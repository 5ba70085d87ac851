"""Whether a series grows: the slope of Theil and Sen, with the interval that Kendall's test gives it.

Owns the arithmetic. Must not know what was measured. The slope is the median of the slopes between all pairs of points,
so a third of the points may be anything at all (a fault under way, a sample in a bad moment) and it hardly moves. The
interval takes points to be independent of each other; samples some seconds apart are not, and are drawn together into
one median for each stretch of time first.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

Point = tuple[float, float]
"""When, and how much."""

NORMAL_95 = statistics.NormalDist().inv_cdf(0.975)


class Slope(NamedTuple):
    """Growth in one unit of time; the true one is between `low` and `high` with a probability of 95 %."""

    value: float
    low: float
    high: float

    def __mul__(self, factor: float) -> Slope:  # type: ignore[override]
        return Slope(self.value * factor, self.low * factor, self.high * factor)


def theil_sen(points: Sequence[Point]) -> Slope:
    """Of at least three points at different times."""
    slopes = sorted((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(sorted(points), 2) if x1 != x2)
    if len(points) < 3 or not slopes:
        raise ValueError("a slope needs three points at different times")
    spread = NORMAL_95 * math.sqrt(_variance([value for _, value in points]))
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Slope(statistics.median(slopes), slopes[low], slopes[high])


def _variance(values: Sequence[float]) -> float:
    """Of Kendall's S, where equal values say nothing about the order."""
    ties = sum(_term(count) for count in Counter(values).values())
    return (_term(len(values)) - ties) / 18


def _term(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def medians(points: Iterable[Point], width: float) -> list[Point]:
    """One point for each stretch of `width`: at its middle, with the median of what was measured in it."""
    stretches: defaultdict[int, list[float]] = defaultdict(list)
    for when, value in points:
        stretches[math.floor(when / width)].append(value)
    return [((number + 0.5) * width, statistics.median(values)) for number, values in sorted(stretches.items())]
