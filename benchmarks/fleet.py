"""Several daemons on one namespace under a mixed racing load: how fast, and whether every promise held.

    python benchmarks/fleet.py [--engine redis|cluster|sentinel|dynamodb|sqlite|memory] [--daemons 4] [--seconds 60]
    python benchmarks/fleet.py --engine dynamodb --troubled [--writes 10000]

Clients make, change, count, move and delete records, contend for locks and work on a queue, some of them dying with
leases held; watchers at every daemon see it all. Afterwards every record's history is checked to be linearizable,
tokens to have grown, every job to have ended once, every watcher to have seen everything, and counters and sums to be
exact.

With `--writes`, agents and plain clients deliver so many numbered writes instead, and each must have arrived once, in
order. `--troubled` puts a proxy in front of DynamoDB that throttles half of the calls and loses one answer in twenty after
the call took effect.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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

ENGINES = ("redis", "cluster", "sentinel", "dynamodb", "sqlite", "memory")


@contextmanager
def served(engine: str, folder: Path, number: int, *, troubled: bool) -> Iterator[list[Daemon]]:
    """Daemons on an engine, with a server of its own."""
    values: dict[str, Any] = {}
    backend, env = engine, dict[str, str]()
    endpoint: dynamodb.TroubledEndpoint | None = None
    with ExitStack() as stack:
        if engine == "redis":
            server = stack.enter_context(redis.Server(appendonly="yes", appendfsync="always"))
            values = server.settings(namespace=a_namespace())
        elif engine == "cluster":
            backend, values = "redis", stack.enter_context(redis.Cluster()).settings(namespace=a_namespace())
        elif engine == "sentinel":
            pair = stack.enter_context(redis.SentinelPair())
            backend, values = "redis", pair.settings(namespace=a_namespace(), wait_replicas=1)
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
        yield daemons
        if endpoint is not None:
            print(f"{sum(endpoint.counts.values())} calls, of which in trouble: {dict(endpoint.faults)}")


def raced(daemons: list[Daemon], plan: Plan) -> list[str]:
    race = Race([daemon.socket for daemon in daemons], plan)
    uvloop.run(race.run())
    print("\n".join(figures(race)))
    print(f"histories of {len({op.key for op in race.story.ops})} records, {len(race.story.ops)} operations")
    return faults(race)


def delivered(daemons: list[Daemon], writes: int) -> list[str]:
    delivery = Delivery([daemon.socket for daemon in daemons], 0)
    delivery.writes = -(-writes // (2 * (delivery.agents + delivery.plain)))
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
    parser.add_argument("--writes", type=int, default=0, help="deliver so many instead of a mixed load")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    number = 1 if asked.engine in {"sqlite", "memory"} else asked.daemons
    others = max(2, asked.clients // 2)
    plan = Plan(seconds=asked.seconds, mixed=asked.clients, lockers=others, workers=others, seed=asked.seed)
    print(f"{asked.engine}, {number} daemons{', troubled' if asked.troubled else ''}:")
    with (
        tempfile.TemporaryDirectory() as folder,
        served(asked.engine, Path(folder), number, troubled=asked.troubled) as daemons,
    ):
        found = delivered(daemons, asked.writes) if asked.writes else raced(daemons, plan)
        memory = [daemon.peak_bytes() // 1024**2 for daemon in daemons]
        measures = [daemon.connect().ask("health")["measures"] for daemon in daemons]
    print(f"the most memory a daemon had: {max(memory)} MiB; measures of the first: {measures[0]}")
    print(f"faults: {len(found)}")
    print("\n".join(found[:20]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
