"""What a large store takes: resident memory of the process that serves it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bench.shape import MEGABYTES, MEMORY, REDIS, SQLITE, Case, Measure, Reading, stored
from benchmarks.bench.world import World, has_redis

WORK = "resident"


def resident(pid: int, _round: int) -> Reading:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return Reading(int(line.split()[1]) * 1024 / 1e6)


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    jobs = world.size.stores[1]
    with ExitStack() as stack:
        pids = {}
        for who, backend in ((MEMORY, "memory"), (SQLITE, "sqlite")):
            store = world.store(backend, jobs)
            store.again()
            pids[who] = store.daemon.pid
        if has_redis():
            pids[REDIS] = stack.enter_context(world.redis_store(jobs)).pid
        yield [Case(WORK, who, stored(jobs), functools.partial(resident, pid), 1) for who, pid in pids.items()]


MEASURE = Measure(
    name="memory",
    title="memory with a large store",
    compares="megabytes resident; Redis has the same jobs and sorted sets by status, node, label and createdAt",
    unit=MEGABYTES,
    more_is_better=False,
    prepared=prepared,
)
