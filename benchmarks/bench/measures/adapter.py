"""The adapter end to end: updates made and forgotten, until a flush says that all of them are durable.

The adapter does what it always does: it keeps order, follows the daemon's log for its cache, checks what it is given.
`not following` is an agent that nobody else writes beside (`follow=False`). Redis is told the same by redis-py in
pipelines, as whole jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.redis_peer import RedisPeer
from benchmarks.bench.shape import A_SECOND, MEMORY, REDIS, SQLITE, Case, Measure, Reading, deep
from benchmarks.bench.world import World, has_redis

AT = "until flushed"
DEPTHS = (64, 256)


def through(world: World, who: str, backend: str, stack: ExitStack, *words: str) -> Case:
    """An agent and its daemon. Each has one of its own: one that follows would see what others write."""
    daemon = stack.enter_context(world.daemon(backend))
    agent = stack.enter_context(world.agent(str(daemon.socket), *words))

    def run(round: int) -> Reading:
        told = agent.told(do="update", prefix="a", round=round, count=world.size.updates)
        return Reading(told["rate"], client=told["client"])

    return Case("update", who, AT, run)


def on_redis(world: World, peer: RedisPeer, depth: int) -> Case:
    def run(round: int) -> Reading:
        ids = frames.names(f"d{depth}", round, world.size.updates)
        peer.rate_of_sets([(id, frames.body(id, at)) for at, id in enumerate(ids)], depth)
        changed = [(id, frames.body(id, at, "RUNNING", pid=4242)) for at, id in enumerate(ids)]
        return Reading(peer.rate_of_sets(changed, depth))

    return Case("update", REDIS, deep(depth), run)


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        cases = [
            through(world, SQLITE, "sqlite", stack, "follow"),
            through(world, f"{SQLITE}, agent on uvloop", "sqlite", stack, "follow", "uvloop"),
            through(world, f"{SQLITE}, not following", "sqlite", stack),
            through(world, MEMORY, "memory", stack, "follow"),
        ]
        if has_redis():
            peer = RedisPeer(stack.enter_context(world.redis()).socket_path)
            cases += [on_redis(world, peer, depth) for depth in DEPTHS]
        yield cases


MEASURE = Measure(
    name="adapter",
    title="the adapter, fire-and-forget until flushed",
    compares="updates a second from the first call until all are acknowledged; SETs in pipelines on Redis",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
