"""A daemon of a fleet is killed, or stands still for a while: clients go to another, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.daemon.harness import Daemon
from tests.engines.addresses import IS_LONG
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures

TURNS = 3 if IS_LONG else 1
LOAD = Plan(until_told=True, mixed=9, lockers=3, workers=3, jobs=15, hot=4, cold=30, ttl=3.0)


def judge(race: Race) -> None:
    print("\n".join(figures(race)), dict(race.heard))
    assert faults(race) == []
    assert race.story.completed


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
