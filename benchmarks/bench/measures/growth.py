"""Whether cost grows with the store: the same pages and writes on a small store and on a large one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.bench import frames
from benchmarks.bench.lines import Talker
from benchmarks.bench.shape import MEMORY, MICROSECONDS, SQLITE, Case, Measure, Reading, stored
from benchmarks.bench.world import Store, World

from .single import reading

DEPTH = 64
BY_STATUS = "list page by status"
BY_LABEL = "list page by label"
CREATE = "create"
UPDATE = "update anywhere"
WORKS = (BY_STATUS, BY_LABEL, CREATE, UPDATE)


class Grown:
    """One store of one size."""

    def __init__(self, world: World, store: Store) -> None:
        store.again()
        self._size = world.size
        self._jobs = store.jobs
        self._talker = Talker(store.path, "grown")
        self._random = random.Random(store.jobs)

    def cases(self, who: str) -> list[Case]:
        runs: dict[str, Callable[[int], Reading]] = {
            BY_STATUS: lambda _: self._pages([{"status": status} for status in frames.STATES]),
            BY_LABEL: lambda _: self._pages([{"labels": {"team": f"t{team}"}} for team in range(frames.TEAMS)]),
            CREATE: self._create,
            UPDATE: self._update,
        }
        return [Case(work, who, stored(self._jobs), run) for work, run in runs.items()]

    def _pages(self, filters: list[dict[str, object]]) -> Reading:
        heads = [frames.page(**filters[number % len(filters)]) for number in range(self._size.pages)]
        return reading(self._talker.times(self._talker.reads(heads, 1)))

    def _create(self, round: int) -> Reading:
        return self._written(frames.creates(frames.names("g", round, self._size.grown_writes)))

    def _update(self, round: int) -> Reading:
        """Jobs from all over the store: on sqlite most of a large one are not in its cache."""
        numbers = self._random.choices(range(self._jobs), k=self._size.grown_writes)
        return self._written([frames.progress(f"job-{number}", round) for number in numbers])

    def _written(self, heads: list[bytes]) -> Reading:
        """Microseconds a write, in pipelines."""
        return Reading(1e6 / self._talker.rate(self._talker.writes(heads, DEPTH)))


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    cases = []
    for who, backend in ((MEMORY, "memory"), (SQLITE, "sqlite")):
        for jobs in world.size.stores:
            cases += Grown(world, world.store(backend, jobs)).cases(who)
    yield sorted(cases, key=lambda case: WORKS.index(case.work))


MEASURE = Measure(
    name="growth",
    title="cost in a small store and in a large one",
    compares="microseconds a request: pages one at a time, writes in pipelines of 64",
    unit=MICROSECONDS,
    more_is_better=False,
    prepared=prepared,
)
