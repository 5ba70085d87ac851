"""Many writes through a DynamoDB that throttles half of the calls and loses one reply in twenty: none lost, none twice.

Owns the load, the trouble and what is counted. Must not know how the engine repeats calls. The endpoint is moto, one
request at a time, behind a proxy that refuses every second call in all the ways DynamoDB has for it, cuts the
connection behind one call in twenty that was applied, and besides delays replies, holds some back for good, does
batches in part and delivers requests a second time later on. Agents with the adapter and plain numbered clients write
at two daemons on one store; every effect shows in the records, and counters are shared by all. A mixed load before it
is held against the checker of histories.

    python -m tests.faults.throttled --writes 100000 [--seed 1] [-o json]
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.dynamodb import servers
from tests.faults import program
from tests.fleet.daemons import dynamodb_values, fleet
from tests.fleet.delivery import Delivery
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures

SHARES = {"throttle": 0.5, "drop": 0.05, "slow": 0.02, "twice": 0.02, "partial": 0.05, "hang_after": 0.004}

TIMEOUT_SECONDS = 5.0
"""What a call may take, repeated tries included: short, so that some are not answered by then and have to be found out
about."""

AGENTS, PLAIN = 8, 8
RECORDS = 256
"""Of an agent, at most. It hands over one write to each at a time: then transactions hold as many as they may."""

LEAST_WRITES = 8
"""To each record."""

PLAIN_SHARE = 0.05
"""Of all writes: each of theirs is a transaction of its own."""

COUNTED = 64

FEWEST_WRITES = 100
"""Those that set up the counters are there in any case, and show nothing."""

LEAST_SHARES = {"throttle": 0.45, "drop": 0.04}
"""Of all calls, that the trouble must have come to."""

FEWEST_CALLS = 5_000
"""From so many on chance keeps to those shares."""

MIXED = Plan(operations=300, mixed=6, lockers=2, workers=2, jobs=10, hot=3, cold=20, ttl=5.0)


@dataclass
class Result:
    """What it came to."""

    seed: int
    acknowledged: int = 0
    expected: int = 0
    resent: int = 0
    lost: int = 0
    twice: int = 0
    calls: int = 0
    troubled: dict[str, int] = field(default_factory=dict)
    operations: int = 0
    """Of the mixed load, every one in a history that was checked."""
    peak_mib: int = 0
    """The most memory a daemon had."""
    seconds: float = 0.0
    """Of the writes alone."""
    broken: list[str] = field(default_factory=list)
    """Promises, in words."""

    def too_calm(self) -> list[str]:
        """Trouble that there was too little of: every kind must have been, and in a large run in its share."""
        counts = {name: self.troubled.get(name, 0) for name in SHARES}
        least: dict[str, float] = dict.fromkeys(LEAST_SHARES, 1)
        if self.calls >= FEWEST_CALLS:
            least = dict.fromkeys(SHARES, 1) | {name: share * self.calls for name, share in LEAST_SHARES.items()}
        return program.too_little(counts, least)

    def figures(self) -> dict[str, Any]:
        return {
            "writes": self.expected,
            "writes acknowledged": self.acknowledged,
            "sent again by clients": self.resent,
            "calls to DynamoDB": self.calls,
            **{f"of them with {name}": times for name, times in self.troubled.items()},
            "operations in checked histories": self.operations,
            "writes lost": self.lost,
            "writes applied twice": self.twice,
            "most memory of a daemon, MiB": self.peak_mib,
            "writes a second": round(self.acknowledged / max(self.seconds, 0.001)),
        }


def run(
    folder: Path, writes: int, *, mixed: Plan = MIXED, seed: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """About so many writes through trouble, after a mixed load through the same."""
    result = Result(seed)
    # The tables are made by this process, the daemons have the same in their environment.
    os.environ.update(servers.environment())
    with servers.TroubledEndpoint(servers.endpoint(), seed=seed) as endpoint:
        values = dynamodb_values(servers.endpoint(), timeout_seconds=TIMEOUT_SECONDS)
        values["storage.dynamodb.endpoint"] = endpoint.url
        with fleet(folder, "dynamodb", values, 2, env=servers.environment()) as daemons:
            endpoint.shares = servers.Shares(**SHARES)
            paths = [each.socket for each in daemons]
            if mixed.operations:
                asyncio.run(_mixed(Race(paths, mixed), result, tell))
            asyncio.run(_delivered(_deliveries(paths, writes), endpoint, result, tell))
            result.peak_mib = max(each.peak_bytes() for each in daemons) // 1024**2
    return result


def _deliveries(paths: list[Path], writes: int) -> list[Delivery]:
    """By agents that hand over many at a time, and beside them by plain clients, one write after the other."""
    plain = int(writes * PLAIN_SHARE)
    agents = min(AGENTS, max(2, writes // 2_500))
    many = -(-(writes - plain) // agents)
    records = min(RECORDS, -(-many // LEAST_WRITES))
    return [
        Delivery(paths, many, agents, 0, records=records, counted=COUNTED, run_writes=records, pause_seconds=0.0),
        Delivery(paths, -(-plain // PLAIN), 0, PLAIN, name="one-by-one-"),
    ]


async def _mixed(race: Race, result: Result, tell: Callable[[str], None]) -> None:
    await race.run()
    tell("\n".join([*figures(race), str(dict(race.heard))]))
    result.operations = len(race.story.ops)
    result.broken += faults(race)


async def _delivered(
    deliveries: list[Delivery], endpoint: servers.TroubledEndpoint, result: Result, tell: Callable[[str], None]
) -> None:
    began = time.monotonic()
    delivering = {asyncio.create_task(each.run()) for each in deliveries}
    while (await asyncio.wait(delivering, timeout=10.0))[1]:
        sent = sum(each.sent for each in deliveries)
        tell(f"{time.monotonic() - began:.0f} s: {sent} writes handed over; {dict(endpoint.counts)}")
    await asyncio.gather(*delivering)
    result.seconds = time.monotonic() - began
    result.calls = sum(endpoint.counts.values())
    result.troubled = {str(fault): times for fault, times in endpoint.faults.most_common()}
    endpoint.calm()
    for each in deliveries:
        result.broken += await each.faults()
        result.broken += [f"the epoch changed: {change}" for change in each.epochs]
        result.acknowledged += each.acknowledged
        result.expected += each.expected
        result.resent += each.resent
        result.lost += each.lost
        result.twice += each.twice
    if result.acknowledged != result.expected:
        result.broken.append(f"{result.acknowledged} of {result.expected} writes were acknowledged")


def options() -> ArgumentParser:
    parser = program.options("throttled", __doc__, seed=1)
    parser.add_argument("--writes", type=int, default=100_000)
    return parser


def main() -> int:
    asked = options().parse_args()
    with program.scratch() as folder:
        result = run(folder, asked.writes, seed=asked.seed, tell=program.say)
    least = {"writes": max(FEWEST_WRITES, asked.writes), "operations in checked histories": MIXED.operations}
    return program.ended(asked, result.figures(), [*result.broken, *result.too_calm()], least=least)


if __name__ == "__main__":
    sys.exit(main())
