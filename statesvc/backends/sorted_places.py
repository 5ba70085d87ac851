"""Places in order: a sorted list that stays quick to change when it is long.

Owns the order of values that can be compared. Must not know what they stand for. It is a list of short lists, called
runs, like the SortedList of sortedcontainers; it takes a fraction of the bytes while it is short, which most are, and
hands back the very object it held, so that several lists can share one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

Place = tuple[Any, ...]

RUN_PLACES = 1_000
"""Places of one run at most. Longer ones cost more to insert into, shorter ones more to find."""


class SortedPlaces:
    """Each of them at most once."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[Place]] = []
        """None of them is empty."""
        self._lasts: list[Place] = []
        """The last place of each run."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[Place]:
        return chain.from_iterable(self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, place: Place) -> None:
        """Put a place where it belongs, unless it is there."""
        lasts = self._lasts
        if not lasts or place > lasts[-1]:
            self._append(place)
            return
        number = bisect_left(lasts, place)
        run = self._runs[number]
        spot = bisect_left(run, place)
        if run[spot] != place:
            run.insert(spot, place)
            if len(run) > RUN_PLACES:
                self._split(number)

    def _append(self, place: Place) -> None:
        """What comes in order leaves full runs behind."""
        if self._runs and len(self._runs[-1]) < RUN_PLACES:
            self._runs[-1].append(place)
            self._lasts[-1] = place
        else:
            self._runs.append([place])
            self._lasts.append(place)

    def _split(self, number: int) -> None:
        run = self._runs[number]
        half = len(run) // 2
        self._runs[number : number + 1] = [run[:half], run[half:]]
        self._lasts.insert(number, run[half - 1])

    def take(self, place: Place) -> Place | None:
        """Take a place out, and return it as it was put in; None when it is not there."""
        number = bisect_left(self._lasts, place)
        if number == len(self._lasts):
            return None
        run = self._runs[number]
        spot = bisect_left(run, place)
        if run[spot] != place:
            return None
        taken = run.pop(spot)
        if not run:
            del self._runs[number], self._lasts[number]
        elif spot == len(run):
            self._lasts[number] = run[-1]
        return taken

    def between(self, low: Place | None, high: Place | None, *, descending: bool = False) -> Iterator[Place]:
        """The places behind `low` and before `high`, neither included; None is no bound."""
        return chain.from_iterable(self._pieces(low, high, descending=descending))

    def _pieces(self, low: Place | None, high: Place | None, *, descending: bool) -> Iterator[Iterable[Place]]:
        (first, begin), (last, end) = self._begin(low), self._end(high)
        numbers = range(first, min(last + 1, len(self._runs)))
        for number in reversed(numbers) if descending else numbers:
            piece = self._runs[number][begin if number == first else 0 : end if number == last else None]
            yield reversed(piece) if descending else piece

    def count(self, low: Place | None, high: Place | None) -> int:
        """How many there are between the two."""
        (first, begin), (last, end) = self._begin(low), self._end(high)
        if (first, begin) >= (last, end):
            return 0
        return sum(map(len, self._runs[first:last])) - begin + end

    def _begin(self, low: Place | None) -> tuple[int, int]:
        """The run and the spot in it of the first place behind `low`."""
        return (0, 0) if low is None else self._spot(bisect_right, low)

    def _end(self, high: Place | None) -> tuple[int, int]:
        """The run and the spot in it of the first place that is not before `high`."""
        return (len(self._runs), 0) if high is None else self._spot(bisect_left, high)

    def _spot(self, bisect: Callable[[list[Place], Place], int], place: Place) -> tuple[int, int]:
        number = bisect(self._lasts, place)
        return (number, 0 if number == len(self._runs) else bisect(self._runs[number], place))
