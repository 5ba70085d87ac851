"""Every measure, in the order they are run. Each file has one, and can be run alone: `--only NAME`."""

from __future__ import annotations

from benchmarks.bench.shape import Measure

from . import (
    adapter,
    calls,
    claiming,
    connections,
    growth,
    idle,
    memory,
    pipelined,
    shared,
    single,
    starting,
    sustained,
    watching,
)

MEASURES: tuple[Measure, ...] = (
    pipelined.MEASURE,
    sustained.MEASURE,
    single.MEASURE,
    connections.MEASURE,
    idle.MEASURE,
    adapter.MEASURE,
    calls.MEASURE,
    watching.MEASURE,
    claiming.MEASURE,
    shared.MEASURE,
    memory.MEASURE,
    growth.MEASURE,
    starting.MEASURE,  # last of those with a large store, because it ends the daemon that has it
)

BY_NAME = {measure.name: measure for measure in MEASURES}
