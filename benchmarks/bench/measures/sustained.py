"""Durable creates without a pause, in pipelines of 256, beside SETs on Redis: what remains when caches are full.

Log entries and indexes are part of it, and right behind the last reply a query must see the last job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.lines import Talker
from benchmarks.bench.redis_peer import Bare, RedisPeer
from benchmarks.bench.shape import (
    A_SECOND,
    REDIS,
    REDIS_ALWAYS,
    REDIS_BARE,
    SQLITE,
    Case,
    Failed,
    Measure,
    Reading,
    deep,
)
from benchmarks.bench.world import World, has_redis

DEPTHS = (64, 256)
DEPTH = 256


def on_statesvc(world: World, path: str) -> Case:
    talker = Talker(path, "sustained")

    def run(round: int) -> Reading:
        ids = frames.names("s", round, world.size.sustained)
        rate = talker.rate(talker.writes(frames.creates(ids), DEPTH))
        _must_see_the_last(talker, ids)
        return Reading(rate)

    return Case("create", SQLITE, deep(DEPTH), run, world.size.long_rounds)


def _must_see_the_last(talker: Talker, ids: list[str]) -> None:
    """The newest page holds the last pipeline's end, in any order within one moment."""
    page = json.loads(talker.ask(b'{"op":"list","limit":1000}\n'))
    if ids[-1] not in {job["uuid"] for job in page["jobs"]}:
        raise Failed("a query right afterwards does not see the last job")


def on_redis(world: World, who: str, peer: RedisPeer | Bare, depth: int) -> Case:
    prefix = f"{type(peer).__name__}{depth}"

    def run(round: int) -> Reading:
        ids = frames.names(prefix, round, world.size.sustained)
        return Reading(peer.rate_of_sets([(id, frames.body(id, at)) for at, id in enumerate(ids)], depth))

    return Case("create", who, deep(depth), run, world.size.long_rounds)


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        cases = [on_statesvc(world, str(stack.enter_context(world.daemon("sqlite")).socket))]
        if has_redis():
            volatile = stack.enter_context(world.redis()).socket_path
            always = stack.enter_context(world.redis(always=True)).socket_path
            for depth in DEPTHS:
                cases.append(on_redis(world, REDIS, RedisPeer(volatile), depth))
                cases.append(on_redis(world, REDIS_ALWAYS, RedisPeer(always), depth))
            cases.append(on_redis(world, REDIS_BARE, Bare(volatile), DEPTH))
        yield cases


MEASURE = Measure(
    name="sustained",
    title="durable creates without a pause",
    compares="creates a second over a long run, indexes and log included; SETs on Redis",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
