"""From exec to the first answer: with nothing stored, and with a large store."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import start_time
from benchmarks.bench.shape import MILLISECONDS, SQLITE, Case, Measure, Reading, stored
from benchmarks.bench.world import World

PING = "first ping"
RECORD = "first record"
EMPTY = "nothing stored"
WARMING = -1
"""No round: the first start reads files that later ones find in the file cache."""


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    store = world.store("sqlite", world.size.stores[1])
    store.end()
    folder, data = world.a_folder(), str(store.daemon.data)

    @functools.cache  # one start of a round times both
    def full(_round: int) -> tuple[float, float]:
        return start_time.measure(folder, "--data", data)

    @functools.cache
    def empty(_round: int) -> tuple[float, float]:
        return start_time.measure_empty(folder)

    full(WARMING)
    yield [
        Case(PING, SQLITE, EMPTY, lambda round: Reading(empty(round)[0] * 1000)),
        Case(PING, SQLITE, stored(store.jobs), lambda round: Reading(full(round)[0] * 1000)),
        Case(RECORD, SQLITE, EMPTY, lambda round: Reading(empty(round)[1] * 1000)),
        Case(RECORD, SQLITE, stored(store.jobs), lambda round: Reading(full(round)[1] * 1000)),
    ]


MEASURE = Measure(
    name="starting",
    title="start of the daemon",
    compares="milliseconds from exec until a ping is answered, and until a record is",
    unit=MILLISECONDS,
    more_is_better=False,
    prepared=prepared,
)
