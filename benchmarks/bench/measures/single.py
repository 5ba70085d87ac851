"""One request at a time: how long an answer takes, beside a bare echo of the same frame."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.effort import OWN
from benchmarks.bench.lines import CLOCK_NS, RECEIVE_BYTES, Talker, reach
from benchmarks.bench.redis_peer import RedisPeer
from benchmarks.bench.shape import (
    ECHO,
    IN_PROCESS,
    MEMORY,
    MICROSECONDS,
    REDIS,
    REDIS_ALWAYS,
    SQLITE,
    Case,
    Measure,
    Reading,
)
from benchmarks.bench.sqlite_peer import InProcess, row
from benchmarks.bench.world import World, has_redis

AT = "one at a time"
HOT = 64
"""Jobs that are read again and again."""


def reading(nanoseconds: Sequence[int]) -> Reading:
    """Microseconds: the median, and what one in a hundred takes longer than."""
    ordered = sorted(nanoseconds)
    return Reading(statistics.median(ordered) / 1000, ordered[int(len(ordered) * 0.99)] / 1000)


def _hot(count: int) -> list[str]:
    return [f"job-{number % HOT}" for number in range(count)]


def on_statesvc(world: World, who: str, path: str, writes: int) -> list[Case]:
    talker = Talker(path, f"single-{who}")
    heads = [frames.create(f"job-{number}", number) for number in range(HOT)]
    talker.seconds(talker.writes(heads, HOT))

    def get(_round: int) -> Reading:
        return reading(talker.times(talker.reads([frames.get(id) for id in _hot(world.size.singles)], 1)))

    def create(round: int) -> Reading:
        return reading(talker.times(talker.writes(frames.creates(frames.names("w", round, writes)), 1)))

    return [Case("get", who, AT, get), Case("create", who, AT, create)]


def on_echo(world: World, path: str, writes: int) -> list[Case]:
    sock = reach(path)

    def times(lines: Sequence[bytes]) -> Reading:
        taken = []
        with OWN:
            for line in lines:
                began = CLOCK_NS()
                sock.sendall(line)
                heard = sock.recv(RECEIVE_BYTES)
                taken.append(CLOCK_NS() - began)
                assert heard == line
        return reading(taken)

    def get(_round: int) -> Reading:
        return times([frames.get(id) + b"}\n" for id in _hot(world.size.singles)])

    def create(round: int) -> Reading:
        return times([head + b"}\n" for head in frames.creates(frames.names("w", round, writes))])

    return [Case("get", ECHO, AT, get), Case("create", ECHO, AT, create)]


def on_redis(world: World, who: str, path: str, writes: int) -> list[Case]:
    peer = RedisPeer(path)
    peer.rate_of_sets([(f"job-{number}", frames.body(f"job-{number}", number)) for number in range(HOT)], HOT)

    def get(_round: int) -> Reading:
        return reading(peer.times_of_gets(_hot(world.size.singles)))

    def create(round: int) -> Reading:
        ids = frames.names("w", round, writes)
        return reading(peer.times_of_sets([(id, frames.body(id, at)) for at, id in enumerate(ids)]))

    return [Case("get", who, AT, get), Case("create", who, AT, create)]


def in_the_agent(world: World, writes: int) -> list[Case]:
    file = InProcess(world.a_folder() / "agent.db")
    file.rate_of_creates([row(f"job-{number}", number, 0) for number in range(HOT)], HOT)

    def get(_round: int) -> Reading:
        return reading(file.times_of_gets(_hot(world.size.singles)))

    def create(round: int) -> Reading:
        ids = frames.names("w", round, writes)
        return reading(file.times_of_creates([row(id, at, round) for at, id in enumerate(ids)]))

    return [Case("get", IN_PROCESS, AT, get), Case("create", IN_PROCESS, AT, create)]


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    many, few = world.size.singles, world.size.slow_writes
    with ExitStack() as stack:
        cases = [
            *on_echo(world, stack.enter_context(world.echo()), many),
            *on_statesvc(world, MEMORY, str(stack.enter_context(world.daemon("memory")).socket), many),
            *on_statesvc(world, SQLITE, str(stack.enter_context(world.daemon("sqlite")).socket), few),
            *in_the_agent(world, few),
        ]
        if has_redis():
            cases += on_redis(world, REDIS, stack.enter_context(world.redis()).socket_path, many)
            cases += on_redis(world, REDIS_ALWAYS, stack.enter_context(world.redis(always=True)).socket_path, few)
        yield sorted(cases, key=lambda case: case.work, reverse=True)


MEASURE = Measure(
    name="single",
    title="one request at a time",
    compares="microseconds a request, median of a round; SQLite in the agent has no way to go",
    unit=MICROSECONDS,
    more_is_better=False,
    prepared=prepared,
)
