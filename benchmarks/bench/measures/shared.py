"""Shared engines: what one daemon reaches on Redis and on DynamoDB.

On Redis, redis-py does the same without a daemon: it runs the daemon's own commit script, a call for each write, with
arguments made beforehand (benchmarks/redis_engine.py). It decides nothing. DynamoDB is an endpoint on this machine that
takes every write and answers at once, so that the daemon is what is measured; no more connections write to it than have
each write in a call of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from benchmarks.bench import frames
from benchmarks.bench.effort import OWN
from benchmarks.bench.lines import CLOCK, Talker, check, drive
from benchmarks.bench.shape import A_SECOND, Case, Failed, Measure, Reading, connected, deep
from benchmarks.bench.world import World, has_redis

from .connections import dealt

if TYPE_CHECKING:
    from benchmarks import redis_engine

ON_REDIS = "statesvc redis"
SAME_SCRIPT = "redis-py, the same script"
ON_DYNAMODB = "statesvc dynamodb"
DEPTH = 64
WRITERS = 7
"""Writes that come together are sent in one call from eight on: so many are a call each."""

WORKS = ("create", "update")


def on_redis(world: World, stack: ExitStack) -> list[Case]:
    from benchmarks import redis_engine
    from tests.fleet.daemons import daemon

    server = stack.enter_context(world.redis())
    served = stack.enter_context(daemon(world.a_folder(), "redis", server.settings(namespace="daemon"))).serving()
    place = redis_engine.place_of(server, "redis-py")
    sides: dict[str, redis_engine.Side] = {
        ON_REDIS: redis_engine.Daemon(served.socket, DEPTH, numbered=True),
        SAME_SCRIPT: redis_engine.RedisPy(server.port, place, DEPTH, 1, numbered=True),
    }
    seqs = itertools.count(1)

    @functools.cache  # both do the same work, made once a round
    def prepare(round: int) -> None:
        work = redis_engine.work_of(round, world.size.requests, seqs)
        for side in sides.values():
            side.prepare(work)

    def run(who: str, work: str, round: int) -> Reading:
        prepare(round)
        return Reading(world.size.requests / _taken(sides[who], work))

    return [Case(work, who, deep(DEPTH), functools.partial(run, who, work)) for work in WORKS for who in sides]


def _taken(side: redis_engine.Side, work: str) -> float:
    turns = side.turns(work)
    try:
        with OWN:
            began = CLOCK()
            for turn in turns:
                turn()
            return CLOCK() - began
    except SystemExit as refused:  # how a program says it that runs alone
        raise Failed(str(refused)) from refused


def on_dynamodb(world: World, stack: ExitStack) -> list[Case]:
    from tests.dynamodb.servers import MADE_UP, REGION, Program, own_tables
    from tests.fleet.daemons import daemon

    endpoint = Program("tests.dynamodb.canned")
    stack.callback(endpoint.end)
    given = {"endpoint": endpoint.url, "region": REGION, "table_name": own_tables().jobs}
    values = {f"storage.dynamodb.{name}": value for name, value in given.items()}
    served = stack.enter_context(daemon(world.a_folder(), "dynamodb", values, env=MADE_UP)).serving()
    talkers = [stack.enter_context(Talker(str(served.socket), f"writer-{number}")) for number in range(WRITERS)]
    count = world.size.requests // 4

    def heads_of(work: str, prefix: str, round: int) -> list[bytes]:
        ids = frames.names(prefix, round, count)
        return frames.creates(ids) if work == "create" else [frames.update(id) for id in ids]

    def together(work: str, round: int) -> Reading:
        return Reading(talkers[0].rate(talkers[0].writes(heads_of(work, "t", round), DEPTH)))

    def a_call_each(work: str, round: int) -> Reading:
        some = dealt(heads_of(work, "e", round), WRITERS)
        batches = [talker.writes(mine, 1) for talker, mine in zip(talkers, some, strict=True)]
        took, heard = drive([talker.sock for talker in talkers], [[each.data for each in mine] for mine in batches])
        check(heard, count)
        return Reading(count / took)

    runs = ((deep(DEPTH), together), (connected(WRITERS), a_call_each))
    return [Case(work, ON_DYNAMODB, how, functools.partial(run, work)) for work in WORKS for how, run in runs]


@contextmanager
def prepared(world: World) -> Iterator[list[Case]]:
    with ExitStack() as stack:
        cases = on_redis(world, stack) if has_redis() else []
        cases += on_dynamodb(world, stack)
        yield sorted(cases, key=lambda case: WORKS.index(case.work))


MEASURE = Measure(
    name="shared",
    title="one daemon on a shared engine",
    compares="writes a second; redis-py runs the same script itself, DynamoDB is an endpoint that answers at once",
    unit=A_SECOND,
    more_is_better=True,
    prepared=prepared,
)
