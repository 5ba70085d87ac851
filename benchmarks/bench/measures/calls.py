"""What one call of the adapter costs the agent: the time until it returns, with a durable daemon behind it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench.shape import MICROSECONDS, SQLITE, Case, Measure
from benchmarks.bench.world import World

from .single import reading

AT = "one call"


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with world.daemon("sqlite") as daemon, world.agent(str(daemon.socket), "follow") as agent:

        @functools.cache  # one run of a round times all three, each call beside the others
        def timed(round: int) -> dict[str, list[int]]:
            taken: dict[str, list[int]] = agent.told(do="call", round=round, count=world.size.calls)
            return taken

        yield [
            Case("update", SQLITE, AT, lambda round: reading(timed(round)["update"])),
            Case("cached get", SQLITE, AT, lambda round: reading(timed(round)["get"])),
            Case("empty call", SQLITE, AT, lambda round: reading(timed(round)["empty"])),
        ]


MEASURE = Measure(
    name="calls",
    title="one call of the adapter in the agent",
    compares="microseconds until a call returns, the clock's own included, which is what an empty call shows",
    unit=MICROSECONDS,
    more_is_better=False,
    prepared=prepared,
)
