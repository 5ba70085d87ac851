"""Claiming the best of a queue, one at a time, from a short queue and from a long one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from benchmarks.bench import frames
from benchmarks.bench.effort import OWN
from benchmarks.bench.lines import CLOCK_NS, RECEIVE_BYTES, Batch, Talker
from benchmarks.bench.shape import MEMORY, MICROSECONDS, SQLITE, Case, Failed, Measure, Reading, queued
from benchmarks.bench.world import FILL_CHUNK, FILL_DEPTH, World

from .single import reading

PRIORITIES = (1, 5, 10, 15)
CLAIM = b'{"op":"claim","filter":{},"holder":"worker-1","ttl":60'


def fill(path: str, jobs: int) -> None:
    with Talker(path, "filler") as talker:
        for first in range(0, jobs, FILL_CHUNK):
            numbers = range(first, min(jobs, first + FILL_CHUNK))
            heads = [_queued(number) for number in numbers]
            talker.seconds(talker.writes(heads, FILL_DEPTH))


def _queued(number: int) -> bytes:
    priority = PRIORITIES[number % len(PRIORITIES)]
    return frames.create(f"job-{number}", number, "QUEUED", priority=priority)


def case(world: World, who: str, path: str, jobs: int) -> Case:
    talker = Talker(path, "worker")

    def run(_round: int) -> Reading:
        taken, held = [], []
        for batch in talker.writes([CLAIM] * world.size.claims, 1):
            took, reply = _timed(talker, batch)
            taken.append(took)
            held += msgspec.json.decode(reply)["jobs"]
        if len(held) != world.size.claims:
            raise Failed(f"{len(held)} jobs for {world.size.claims} claims")
        found = reading(taken)._replace(client=OWN.taken())
        back = [b'{"op":"release","id":"%b","token":%d' % (job["uuid"].encode(), job["lease"]["token"]) for job in held]
        talker.seconds(talker.writes(back, FILL_DEPTH))  # as if nothing had been: the next round finds them again
        return found

    return Case("claim", who, queued(jobs), run)


def _timed(talker: Talker, batch: Batch) -> tuple[int, bytes]:
    with OWN:
        began = CLOCK_NS()
        talker.sock.sendall(batch.data)
        reply = talker.sock.recv(RECEIVE_BYTES)
        took = CLOCK_NS() - began
    while not reply.endswith(b"\n"):
        reply += talker.sock.recv(RECEIVE_BYTES)
    return took, reply


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        cases = []
        for who, backend in ((MEMORY, "memory"), (SQLITE, "sqlite")):
            for jobs in world.size.queues:
                path = str(stack.enter_context(world.daemon(backend)).socket)
                world.tell(f"queueing {jobs:,} jobs on {backend}")
                fill(path, jobs)
                cases.append(case(world, who, path, jobs))
        yield cases


MEASURE = Measure(
    name="claiming",
    title="the best job of a queue",
    compares="microseconds a claim, one at a time; what was claimed is given back between rounds",
    unit=MICROSECONDS,
    more_is_better=False,
    prepared=prepared,
)
