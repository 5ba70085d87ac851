"""DynamoDB that throttles half of the calls and loses answers after they took effect: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import Daemon
from tests.dynamodb import servers
from tests.fleet.daemons import dynamodb_values, fleet
from tests.fleet.delivery import Delivery
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures

WRITES = 32
"""Of each of four senders, to a record of its own and to a counter that all share: with the first ones about 300."""

LOAD = Plan(operations=250, mixed=6, lockers=2, workers=2, jobs=10, hot=3, cold=20, ttl=5.0)


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.TroubledEndpoint]:
    """In front of an endpoint that is well. Calls are troubled from when `begin` is called."""
    for name, value in servers.environment().items():
        monkeypatch.setenv(name, value)
    with servers.TroubledEndpoint(servers.endpoint(), seed=17) as endpoint:
        yield endpoint


def begin(endpoint: servers.TroubledEndpoint) -> None:
    endpoint.shares.throttle, endpoint.shares.drop = 0.5, 0.05


def values_for(endpoint: servers.TroubledEndpoint, **more: Any) -> dict[str, Any]:
    values = dynamodb_values(servers.endpoint(), timeout_seconds=20.0, **more)
    return values | {"storage.dynamodb.endpoint": endpoint.url}


def paths(daemons: list[Daemon]) -> list[Path]:
    return [each.socket for each in daemons]


@pytest.mark.slow
def test_agents_and_plain_clients_deliver_everything_once(folder: Path, troubled: servers.TroubledEndpoint):
    with fleet(folder, "dynamodb", values_for(troubled), 2, env=servers.environment()) as daemons:
        begin(troubled)
        delivery = Delivery(paths(daemons), WRITES)
        asyncio.run(delivery.run())
        assert troubled.faults["throttle"] > 100
        assert troubled.faults["drop"] > 10
        troubled.calm()
        assert asyncio.run(delivery.faults()) == []
        assert delivery.acknowledged == delivery.expected


@pytest.mark.slow
def test_histories_under_a_mixed_load_are_linearizable(folder: Path, troubled: servers.TroubledEndpoint):
    with fleet(folder, "dynamodb", values_for(troubled), 2, env=servers.environment()) as daemons:
        begin(troubled)
        race = Race(paths(daemons), LOAD)
        asyncio.run(race.run())
        print("\n".join(figures(race)), dict(race.heard), dict(troubled.faults))
        assert faults(race) == []
        assert troubled.faults["drop"] > 10
