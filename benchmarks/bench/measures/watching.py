"""Fan-out: how fast changes are made until every watcher has all of them, beside nobody watching.

Redis is told by redis-py to SET and to PUBLISH the job, in one pipeline; its subscribers get the same job. What a
subscriber of Redis misses while it is away is gone; a watcher of statesvc goes on from its cursor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.lines import CLOCK, Talker
from benchmarks.bench.listening import CHANNEL, OF_REDIS, OF_STATESVC, Asked, listeners
from benchmarks.bench.redis_peer import RedisPeer
from benchmarks.bench.shape import A_SECOND, MEMORY, REDIS, SQLITE, Case, Measure, Reading, watched
from benchmarks.bench.world import World, has_redis

DEPTH = 64


Writer = Callable[[list[str]], Callable[[], object]]
"""Prepares to write jobs of these ids; what it gives writes them."""


def case(world: World, who: str, path: str, asked: Asked, count: int, writer: Writer) -> Case:
    def run(round: int) -> Reading:
        ids = frames.names(f"w{count}", round, world.size.changes)
        write = writer(ids)
        with listeners(path, asked, count, len(ids)) as all_had:
            began = CLOCK()
            write()
            took = max(CLOCK(), all_had()) - began
        return Reading(len(ids) / took)

    return Case("change", who, watched(count), run, world.size.long_rounds)


def on_statesvc(path: str) -> Writer:
    talker = Talker(path, "writer")

    def prepare(ids: list[str]) -> Callable[[], object]:
        return functools.partial(talker.seconds, talker.writes(frames.creates(ids), DEPTH))

    return prepare


def on_redis(path: str) -> Writer:
    peer = RedisPeer(path)

    def prepare(ids: list[str]) -> Callable[[], object]:
        return functools.partial(peer.publish, [(id, frames.body(id, at)) for at, id in enumerate(ids)], CHANNEL, DEPTH)

    return prepare


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        cases = []
        for who, backend in ((MEMORY, "memory"), (SQLITE, "sqlite")):
            path = str(stack.enter_context(world.daemon(backend)).socket)
            writer = on_statesvc(path)
            cases += [case(world, who, path, OF_STATESVC, count, writer) for count in (0, world.size.watchers)]
        if has_redis():
            path = stack.enter_context(world.redis()).socket_path
            writer = on_redis(path)
            cases += [case(world, REDIS, path, OF_REDIS, count, writer) for count in (0, world.size.watchers)]
        yield cases


MEASURE = Measure(
    name="watching",
    title="changes that watchers are told of",
    compares="creates a second until every watcher has all of them; SET and PUBLISH on Redis",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
