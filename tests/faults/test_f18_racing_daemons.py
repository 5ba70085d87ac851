"""F18: several daemons on one store race for the same records and leases, and some of them are killed or stand still
on the way: no update is lost, a lease has one holder at a time by its token, and clients go to another daemon."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon
from tests.engines.addresses import IS_LONG
from tests.fleet.daemons import a_namespace, fleet
from tests.fleet.places import PLACES, Place
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures
from tests.redis import servers as redis

TURNS = 3 if IS_LONG else 1
LOAD = Plan(until_told=True, mixed=9, lockers=3, workers=3, jobs=15, hot=4, cold=30, ttl=3.0)

SHORT = Plan(operations=1500, jobs=60, cold=40, ttl=1.0)
SLOW = Plan(operations=300, mixed=8, lockers=3, workers=3, jobs=15, hot=4, cold=20, ttl=3.0)
"""For engines that take long over each call."""


@pytest.fixture(params=["redis", "dynamodb"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as place:
        yield place


@pytest.fixture
def pair(folder: Path, place: Place) -> Iterator[list[Daemon]]:
    """Two daemons on one namespace."""
    with fleet(folder, place.backend, place.values, 2, env=place.env) as daemons:
        yield daemons


def judge(race: Race) -> None:
    print("\n".join(figures(race)), dict(race.heard))
    assert faults(race) == []
    assert race.story.completed


# --- all of them well ------------------------------------------------------------------------------------------------


Shared = Callable[[], AbstractContextManager[Place]]


@contextmanager
def on_a_cluster() -> Iterator[Place]:
    with redis.Cluster() as cluster:
        first = cluster.servers[0]
        values = cluster.settings(namespace=a_namespace())
        yield Place("redis", values, first.kill, first.start, first.pause, first.resume)


@pytest.mark.parametrize(
    ("shared", "plan"),
    [(PLACES["redis"], SHORT), (on_a_cluster, SHORT), (PLACES["dynamodb"], SLOW)],
    ids=["redis", "cluster", "dynamodb"],
)
def test_three_daemons_keep_every_promise_under_a_mixed_load(folder: Path, shared: Shared, plan: Plan):
    with shared() as place, fleet(folder, place.backend, place.values, 3, env=place.env) as daemons:
        race = Race([each.socket for each in daemons], plan)
        asyncio.run(race.run())
        judge(race)
        assert race.story.claims


# --- some of them not ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_daemon_that_is_killed_under_load_costs_nothing_but_a_moment(pair: list[Daemon]):
    race = Race([each.socket for each in pair], LOAD)

    async def meanwhile() -> None:
        for victim in [*pair, pair[0]][:TURNS]:
            await race.more(60)
            victim.kill()
            await race.more(60)
            victim.start()
        await race.more(60)
        race.end()

    asyncio.run(race.run(meanwhile))
    judge(race)


@pytest.mark.slow
def test_a_daemon_that_stood_still_under_load_does_no_harm_when_it_goes_on(pair: list[Daemon]):
    """What it had decided before is refused by the store; what it thought to hold, it looks at again."""
    race = Race([each.socket for each in pair], LOAD)

    async def meanwhile() -> None:
        for victim in pair[:TURNS]:
            await race.more(60)
            victim.signal(signal.SIGSTOP)
            try:
                await race.more(60)
                await asyncio.sleep(LOAD.ttl)  # leases that were renewed through it lapse
                await race.more(20)
            finally:
                victim.signal(signal.SIGCONT)
        await race.more(60)
        race.end()

    asyncio.run(race.run(meanwhile))
    judge(race)
