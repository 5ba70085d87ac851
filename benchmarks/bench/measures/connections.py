"""Many connections with one request in flight on each, all driven by one process with epoll."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.lines import Talker, check, drive, reach
from benchmarks.bench.redis_peer import get_command, set_command
from benchmarks.bench.shape import (
    A_SECOND,
    ECHO,
    MEMORY,
    REDIS,
    SQLITE,
    Case,
    Failed,
    Measure,
    Reading,
    connected,
)
from benchmarks.bench.world import World, has_redis

JOBS = 500

Frames = list[list[bytes]]


def dealt(lines: Sequence[bytes], count: int) -> Frames:
    """One after the other to each of so many connections."""
    return [list(lines[at::count]) for at in range(count)]


def _ids(total: int) -> list[str]:
    return [f"job-{number % JOBS}" for number in range(total)]


def on_statesvc(world: World, who: str, path: str, count: int, stack: ExitStack) -> list[Case]:
    """Each connection says hello and numbers its own writes."""
    talkers = [stack.enter_context(Talker(path, f"many-{count}-{number}")) for number in range(count)]
    socks = [talker.sock for talker in talkers]
    total = world.size.requests

    def timed(lines: Frames) -> Reading:
        took, heard = drive(socks, lines)
        check(heard, total)
        return Reading(total / took)

    def get(_round: int) -> Reading:
        return timed(dealt([frames.get(id) + b"}\n" for id in _ids(total)], count))

    def update(round: int) -> Reading:
        heads = dealt([frames.progress(id, round) for id in _ids(total)], count)
        batches = (talker.writes(some, 1) for talker, some in zip(talkers, heads, strict=True))
        return timed([[batch.data for batch in some] for some in batches])

    return [Case("get", who, connected(count), get), Case("update", who, connected(count), update)]


def on_redis(world: World, path: str, count: int, stack: ExitStack) -> list[Case]:
    """The protocol's own bytes, so that the server is measured and not a client."""
    socks = _reached(path, count, stack)
    total = world.size.requests

    def get(_round: int) -> Reading:
        took, heard = drive(socks, dealt([get_command(id) for id in _ids(total)], count), newlines=2)
        _all(heard.count(b'"uuid"') == total)
        return Reading(total / took)

    def update(round: int) -> Reading:
        lines = [set_command(id, frames.body(id, 1, "RUNNING", progress=round)) for id in _ids(total)]
        took, heard = drive(socks, dealt(lines, count))
        _all(heard.count(b"+OK") == total)
        return Reading(total / took)

    return [Case("get", REDIS, connected(count), get), Case("update", REDIS, connected(count), update)]


def on_echo(world: World, path: str, count: int, stack: ExitStack) -> Case:
    socks = _reached(path, count, stack)
    total = world.size.requests

    def get(_round: int) -> Reading:
        took, heard = drive(socks, dealt([frames.get(id) + b"}\n" for id in _ids(total)], count))
        _all(heard.count(b"\n") == total)
        return Reading(total / took)

    return Case("get", ECHO, connected(count), get)


def _reached(path: str, count: int, stack: ExitStack) -> list[socket.socket]:
    return [stack.enter_context(closing(reach(path))) for _ in range(count)]


def _all(good: bool) -> None:
    if not good:
        raise Failed("not every request was answered as it should be")


def _with_jobs(path: str) -> str:
    with Talker(path, "filler") as talker:
        talker.seconds(talker.writes([frames.create(id, at) for at, id in enumerate(_ids(JOBS))], 250))
    return path


def _redis_with_jobs(path: str) -> str:
    with closing(reach(path)) as sock:
        drive([sock], [[set_command(id, frames.body(id, at)) for at, id in enumerate(_ids(JOBS))]])
    return path


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        paths = {
            MEMORY: _with_jobs(str(stack.enter_context(world.daemon("memory")).socket)),
            SQLITE: _with_jobs(str(stack.enter_context(world.daemon("sqlite")).socket)),
        }
        echo = stack.enter_context(world.echo())
        redis = _redis_with_jobs(stack.enter_context(world.redis()).socket_path) if has_redis() else ""
        cases: list[Case] = []
        more: Callable[[list[Case]], None] = cases.extend
        for count in world.size.connections:
            for who, path in paths.items():
                more(on_statesvc(world, who, path, count, stack))
            more([on_echo(world, echo, count, stack)])
            if redis:
                more(on_redis(world, redis, count, stack))
        yield sorted(cases, key=lambda case: case.work)


MEASURE = Measure(
    name="connections",
    title="many connections, one request in flight on each",
    compares="requests a second over all of them; Redis gets prepared bytes as well",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
