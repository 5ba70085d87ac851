"""What connections cost that say nothing: the daemon's memory before and after they came."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from benchmarks.bench.lines import reach
from benchmarks.bench.shape import MEGABYTES, MEMORY, Case, Failed, Measure, Reading
from benchmarks.bench.world import World

SPARE_DESCRIPTORS = 200
PER = 10_000
"""Connections the number is told for."""

WORK = f"{PER:,} idle connections"


def room_for(wanted: int) -> int:
    """As many connections as we may have, after asking for more descriptors. The daemon inherits what we get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE_DESCRIPTORS:
        soft = min(hard, wanted + SPARE_DESCRIPTORS) if hard != resource.RLIM_INFINITY else wanted + SPARE_DESCRIPTORS
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft - SPARE_DESCRIPTORS)


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    count = room_for(world.size.idle)

    def run(_round: int) -> Reading:
        with world.daemon("memory") as daemon, ExitStack() as stack:
            path = str(daemon.socket)
            before = daemon.rss_bytes()
            for _ in range(count):
                sock = stack.enter_context(closing(reach(path)))
                sock.sendall(b'{"op":"ping"}\n')
                if b'"success":true' not in sock.recv(4096):
                    raise Failed("a connection was refused")
            grown = daemon.rss_bytes() - before
        return Reading(grown / count * PER / 1e6)

    yield [Case(WORK, MEMORY, f"measured with {count:,}", run, 1)]


MEASURE = Measure(
    name="idle",
    title="connections that say nothing",
    compares="megabytes the daemon grows by, told for 10,000 connections that pinged once",
    unit=MEGABYTES,
    more_is_better=False,
    prepared=prepared,
)
