"""Several daemons on one namespace under a mixed racing load: how fast, and whether every promise held.

    python benchmarks/fleet.py [--engine redis|cluster|sentinel|dynamodb|sqlite|memory] [--daemons 4] [--seconds 60]
    python benchmarks/fleet.py --engine redis|sentinel --kills 5
    python benchmarks/fleet.py --engine dynamodb --troubled [--writes 10000]

Clients make, change, count, move and delete records, contend for locks and work on a queue, some of them dying with
leases held; watchers at every daemon see it all. Afterwards every record's history is checked to be linearizable,
tokens to have grown, every job to have ended once, every watcher to have seen everything, and counters and sums to be
exact.

With `--writes`, agents and plain clients deliver so many numbered writes instead, and each must have arrived once, in
order. `--troubled` puts a proxy in front of DynamoDB that throttles half of the calls and loses one answer in twenty
after the call took effect. `--kills` kills Redis so often beside a mixed load and a delivery, and starts it again; with
Sentinel the replica takes over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

import os  # noqa: E402 - found only now, as all that follows

import uvloop  # noqa: E402

from tests.daemon.harness import Daemon  # noqa: E402
from tests.dynamodb import servers as dynamodb  # noqa: E402
from tests.fleet.daemons import a_namespace, dynamodb_values, fleet  # noqa: E402
from tests.fleet.delivery import Delivery  # noqa: E402
from tests.fleet.race import Plan, Race  # noqa: E402
from tests.fleet.verdicts import faults, figures  # noqa: E402
from tests.redis import servers as redis  # noqa: E402

SENDERS = 4
"""Agents with the adapter that deliver, and as many plain clients."""

DELIVERED = 500
"""Writes of each of them beside a mixed load."""

ENGINES = ("redis", "cluster", "sentinel", "dynamodb", "sqlite", "memory")


Kill = Callable[[], Awaitable[None]]


class Served(NamedTuple):
    """Daemons that serve, and how to kill what they serve from, where that can be done."""

    daemons: list[Daemon]
    kill: Kill


async def _cannot() -> None:
    raise SystemExit("--kills: only redis and sentinel are killed")


def _killing(server: redis.Server) -> Kill:
    async def kill() -> None:
        server.kill()
        await asyncio.sleep(0.5)
        server.start()

    return kill


def _failing_over(pair: redis.SentinelPair) -> Kill:
    async def kill() -> None:
        old = pair.kill_master()
        await asyncio.to_thread(pair.wait_for_failover, old)
        old.start()  # without a replica nothing can be acknowledged
        await asyncio.to_thread(pair.wait_until_watched)

    return kill


@contextmanager
def served(engine: str, folder: Path, number: int, *, troubled: bool) -> Iterator[Served]:
    """Daemons on an engine, with a server of its own."""
    kill: Kill = _cannot
    values: dict[str, Any] = {}
    backend, env = engine, dict[str, str]()
    endpoint: dynamodb.TroubledEndpoint | None = None
    with ExitStack() as stack:
        if engine == "redis":
            server = stack.enter_context(redis.Server(appendonly="yes", appendfsync="always"))
            values, kill = server.settings(namespace=a_namespace()), _killing(server)
        elif engine == "cluster":
            backend, values = "redis", stack.enter_context(redis.Cluster()).settings(namespace=a_namespace())
        elif engine == "sentinel":
            pair = stack.enter_context(redis.SentinelPair())
            backend, values = "redis", pair.settings(namespace=a_namespace(), wait_replicas=1)
            kill = _failing_over(pair)
        elif engine == "dynamodb":
            env = dynamodb.environment()
            os.environ.update(env)
            url = stack.enter_context(dynamodb.moto()).url
            values = dynamodb_values(url)
            endpoint = stack.enter_context(dynamodb.TroubledEndpoint(url)) if troubled else None
            if endpoint is not None:
                values["storage.dynamodb.endpoint"] = endpoint.url
        daemons = stack.enter_context(fleet(folder, backend, values, number, env=env))
        if endpoint is not None:
            endpoint.shares.throttle, endpoint.shares.drop = 0.5, 0.05
        yield Served(daemons, kill)
        if endpoint is not None:
            print(f"{sum(endpoint.counts.values())} calls, of which in trouble: {dict(endpoint.faults)}")


def raced(served: Served, plan: Plan, kills: int) -> list[str]:
    paths = [daemon.socket for daemon in served.daemons]
    race, delivery = Race(paths, plan), Delivery(paths, DELIVERED, agents=SENDERS, plain=SENDERS)

    async def disturb() -> None:
        delivering = asyncio.create_task(delivery.run())
        for _ in range(kills):
            await asyncio.sleep((plan.seconds or 0.0) / (kills + 1))
            await served.kill()
        await delivering

    uvloop.run(race.run(disturb if kills else None))
    print("\n".join(figures(race)))
    print(f"histories of {len({op.key for op in race.story.ops})} records, {len(race.story.ops)} operations")
    found = faults(race)
    if kills:
        print(f"killed {kills} times; {delivery.acknowledged} writes delivered beside it; {dict(race.heard)}")
        found += uvloop.run(delivery.faults()) + [f"the epoch changed: {each}" for each in delivery.epochs]
    return found


def delivered(daemons: list[Daemon], writes: int) -> list[str]:
    delivery = Delivery([daemon.socket for daemon in daemons], writes // (2 * SENDERS), agents=SENDERS, plain=SENDERS)
    began = time.perf_counter()
    uvloop.run(delivery.run())
    took = time.perf_counter() - began
    print(f"{delivery.acknowledged} writes acknowledged in {took:.1f} s: {delivery.acknowledged / took:.0f}/s")
    print(
        f"{delivery.resent} were sent again; {delivery.agents} agents with the adapter, {delivery.plain} plain clients"
    )
    return uvloop.run(delivery.faults())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="redis", choices=ENGINES)
    parser.add_argument("--daemons", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32, help="that do everything; half as many lock, and work")
    parser.add_argument("--troubled", action="store_true", help="DynamoDB throttles, and loses answers")
    parser.add_argument("--kills", type=int, default=0, help="of Redis beside the load")
    parser.add_argument("--writes", type=int, default=0, help="deliver so many instead of a mixed load")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    number = 1 if asked.engine in {"sqlite", "memory"} else asked.daemons
    others = max(2, asked.clients // 2)
    plan = Plan(seconds=asked.seconds, mixed=asked.clients, lockers=others, workers=others, seed=asked.seed)
    print(f"{asked.engine}, {number} daemons{', troubled' if asked.troubled else ''}:")
    with (
        tempfile.TemporaryDirectory() as folder,
        served(asked.engine, Path(folder), number, troubled=asked.troubled) as serving,
    ):
        daemons = serving.daemons
        found = delivered(daemons, asked.writes) if asked.writes else raced(serving, plan, asked.kills)
        memory = [daemon.peak_bytes() // 1024**2 for daemon in daemons]
        measures = [daemon.connect().ask("health")["measures"] for daemon in daemons]
    print(f"the most memory a daemon had: {max(memory)} MiB; measures of the first: {measures[0]}")
    print(f"faults: {len(found)}")
    print("\n".join(found[:20]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
