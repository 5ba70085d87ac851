"""Create, update, get and list on one connection, in pipelines: sent at once, answered, and the next.

statesvc speaks three ways here. As said by its name alone: after `hello`, writes numbered with `seq` and `floor`, a
reply with the record for each. `ack last`: the same, a run answered by one line, as the adapter does. `plain`: without
`hello` and numbers, as Joblet's agents do. Redis takes SET for a create and for an update, which rewrites the job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.bench import frames
from benchmarks.bench.effort import OWN
from benchmarks.bench.lines import CLOCK, RECEIVE_BYTES, Talker, reach
from benchmarks.bench.redis_peer import Bare, RedisPeer
from benchmarks.bench.shape import (
    A_SECOND,
    ECHO,
    IN_PROCESS,
    MEMORY,
    REDIS,
    REDIS_ALWAYS,
    REDIS_BARE,
    SQLITE,
    Case,
    Measure,
    Reading,
    deep,
)
from benchmarks.bench.sqlite_peer import InProcess, row
from benchmarks.bench.world import World, has_redis

DEPTH = 64
DEEPER = 256
ALONE = "one at a time"
WORKS = ("create", "update", "get", "list page")


class Spoken:
    """One way to speak to one daemon. Each works on jobs of its own."""

    def __init__(self, world: World, path: str, prefix: str, ack: str = "each", *, plain: bool = False) -> None:
        self._size = world.size
        self._prefix = prefix
        self._talker = Talker(path, "" if plain else f"client-{prefix}", ack)

    def cases(self, who: str, depth: int, works: Sequence[str]) -> list[Case]:
        runs = {"create": self._create, "update": self._update, "get": self._get, "list page": self._list}
        at = {"list page": ALONE}
        return [
            Case(work, who, at.get(work, deep(depth)), functools.partial(_read, runs[work], depth)) for work in works
        ]

    def _names(self, round: int) -> list[str]:
        return frames.names(self._prefix, round, self._size.requests)

    def _create(self, round: int, depth: int) -> float:
        return self._talker.rate(self._talker.writes(frames.creates(self._names(round)), depth))

    def _update(self, round: int, depth: int) -> float:
        heads = [frames.update(id) for id in self._names(round)]
        return self._talker.rate(self._talker.writes(heads, depth))

    def _get(self, round: int, depth: int) -> float:
        return self._talker.rate(self._talker.reads([frames.get(id) for id in self._names(round)], depth))

    def _list(self, _round: int, _depth: int) -> float:
        heads = [frames.page(status="RUNNING")] * self._size.pages
        return self._talker.rate(self._talker.reads(heads, 1))


def _read(run: Callable[[int, int], float], depth: int, round: int) -> Reading:
    return Reading(run(round, depth))


class OnRedis:
    """The same through redis-py."""

    def __init__(self, world: World, path: str, prefix: str = "d", *, bare_commands: bool = False) -> None:
        self._size = world.size
        self._prefix = prefix
        self._peer = RedisPeer(path, bare_commands=bare_commands)
        self._peer.fill(frames.PAGE * len(frames.STATES))

    def cases(self, who: str, depth: int, works: Sequence[str]) -> list[Case]:
        runs = {"create": self._create, "update": self._update, "get": self._get, "list page": self._list}
        at = {"list page": ALONE}
        return [
            Case(work, who, at.get(work, deep(depth)), functools.partial(_read, runs[work], depth)) for work in works
        ]

    def _create(self, round: int, depth: int) -> float:
        ids = self._names(round, depth)
        return self._peer.rate_of_sets([(id, frames.body(id, number)) for number, id in enumerate(ids)], depth)

    def _update(self, round: int, depth: int) -> float:
        ids = self._names(round, depth)
        items = [(id, frames.body(id, number, "RUNNING", pid=4242)) for number, id in enumerate(ids)]
        return self._peer.rate_of_sets(items, depth)

    def _get(self, round: int, depth: int) -> float:
        return self._peer.rate_of_gets(self._names(round, depth), depth)

    def _names(self, round: int, depth: int) -> list[str]:
        return frames.names(f"{self._prefix}{depth}", round, self._size.requests)

    def _list(self, _round: int, _depth: int) -> float:
        return self._peer.rate_of_pages(self._size.pages)


class BareRedis:
    """The same without redis-py, on jobs of its own."""

    def __init__(self, world: World, path: str) -> None:
        self._size = world.size
        self._server = Bare(path)

    def cases(self) -> list[Case]:
        runs = {"create": self._create, "update": self._update, "get": self._get}
        return [Case(work, REDIS_BARE, deep(DEPTH), run) for work, run in runs.items()]

    def _names(self, round: int) -> list[str]:
        return frames.names("b", round, self._size.requests)

    def _create(self, round: int) -> Reading:
        items = [(id, frames.body(id, number)) for number, id in enumerate(self._names(round))]
        return Reading(self._server.rate_of_sets(items, DEPTH))

    def _update(self, round: int) -> Reading:
        items = [(id, frames.body(id, number, "RUNNING", pid=4242)) for number, id in enumerate(self._names(round))]
        return Reading(self._server.rate_of_sets(items, DEPTH))

    def _get(self, round: int) -> Reading:
        return Reading(self._server.rate_of_gets(self._names(round), DEPTH))


class InTheAgent:
    """The same in a SQLite file of the agent's own."""

    def __init__(self, world: World) -> None:
        self._size = world.size
        self._file = InProcess(world.a_folder() / "agent.db")

    def cases(self) -> list[Case]:
        batch, alone = deep(DEPTH), "a transaction each"
        few = self._size.slow_writes
        return [
            Case("create", IN_PROCESS, batch, lambda round: self._create(round, self._size.requests, DEPTH)),
            Case("create", IN_PROCESS, alone, lambda round: self._create(round, few, 1)),
            Case("update", IN_PROCESS, batch, lambda round: self._update(round, self._size.requests, DEPTH)),
            Case("update", IN_PROCESS, alone, lambda round: self._update(round, few, 1)),
            Case("get", IN_PROCESS, batch, self._get),
            Case("list page", IN_PROCESS, ALONE, self._list),
        ]

    def _create(self, round: int, count: int, depth: int) -> Reading:
        ids = frames.names(f"d{depth}", round, count)
        rows = [row(id, number, round) for number, id in enumerate(ids)]
        return Reading(self._file.rate_of_creates(rows, depth))

    def _update(self, round: int, count: int, depth: int) -> Reading:
        return Reading(self._file.rate_of_updates(frames.names(f"d{depth}", round, count), depth))

    def _get(self, round: int) -> Reading:
        return Reading(self._file.rate_of_gets(frames.names(f"d{DEPTH}", round, self._size.requests)))

    def _list(self, _round: int) -> Reading:
        return Reading(self._file.rate_of_pages(self._size.pages))


def echoed(world: World, path: str) -> Case:
    """The frames of a create, sent back as they are."""
    sock = reach(path)

    def run(round: int) -> Reading:
        batches = Talker.reads(frames.creates(frames.names("e", round, world.size.requests)), DEPTH)
        with OWN:
            began = CLOCK()
            for data, count, _ in batches:
                sock.sendall(data)
                missing = count
                while missing > 0:
                    missing -= sock.recv(RECEIVE_BYTES).count(b"\n")
            return Reading(world.size.requests / (CLOCK() - began))

    return Case("create", ECHO, deep(DEPTH), run)


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    writes = ("create", "update")
    with ExitStack() as stack:
        memory = str(stack.enter_context(world.daemon("memory")).socket)
        sqlite = str(stack.enter_context(world.daemon("sqlite")).socket)
        cases = [
            *Spoken(world, memory, "n").cases(MEMORY, DEPTH, WORKS),
            *Spoken(world, memory, "l", "last").cases(f"{MEMORY}, ack last", DEPTH, writes),
            *Spoken(world, memory, "p", plain=True).cases(f"{MEMORY}, plain", DEPTH, writes),
            *Spoken(world, sqlite, "n").cases(SQLITE, DEPTH, WORKS),
            *Spoken(world, sqlite, "d").cases(SQLITE, DEEPER, writes),
            *Spoken(world, sqlite, "l", "last").cases(f"{SQLITE}, ack last", DEEPER, writes),
            *Spoken(world, sqlite, "p", plain=True).cases(f"{SQLITE}, plain", DEEPER, writes),
        ]
        if has_redis():
            path = stack.enter_context(world.redis()).socket_path
            volatile = OnRedis(world, path)
            always = OnRedis(world, stack.enter_context(world.redis(always=True)).socket_path)
            cases += volatile.cases(REDIS, DEPTH, WORKS) + volatile.cases(REDIS, DEEPER, WORKS[:3])
            cases += always.cases(REDIS_ALWAYS, DEPTH, writes) + always.cases(REDIS_ALWAYS, DEEPER, writes)
            commands = OnRedis(world, path, "c", bare_commands=True)
            cases += commands.cases(f"{REDIS}, execute_command", DEPTH, WORKS[:3])
            cases += BareRedis(world, path).cases()
        cases += InTheAgent(world).cases()
        cases.append(echoed(world, stack.enter_context(world.echo())))
        yield sorted(cases, key=lambda case: WORKS.index(case.work))


MEASURE = Measure(
    name="pipelined",
    title="requests in pipelines on one connection",
    compares="requests a second; a list page has 100 jobs, by status, and is asked for one at a time",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
