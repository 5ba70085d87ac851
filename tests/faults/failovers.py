"""Redis failing over again and again under load, with `wait_replicas: 1`: nothing acknowledged is lost or comes twice.

Owns the ways in which a master goes and what is counted on the way. Must not know how the engine finds the next one. A
master, its replica and three sentinels are real servers with a network that can be cut; two daemons serve them; agents
with the adapter and plain numbered clients deliver writes whose every effect shows, and a mixed load is held against
the checker of histories.

    python -m tests.faults.failovers --failovers 20 [--seed 1] [-o json]
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults import program
from tests.fleet.daemons import a_namespace, fleet
from tests.fleet.delivery import Delivery
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures
from tests.redis.partitions import PartitionedPair
from tests.redis.servers import MASTER_NAME, Server

LOAD = Plan(until_told=True, mixed=5, lockers=2, workers=2, jobs=10, hot=4, cold=30, ttl=4.0)
"""Small: two servers, three sentinels, two daemons and all clients share the machine."""

MOST_WRITES = 20_000
"""Of each sender in one round; it is told to end long before."""

PAUSE_SECONDS = 0.01
"""Of an agent after every few writes: the machine is to have time for the failover itself."""

MORE_WRITES = 60
"""That have to be acknowledged before and after every failover."""

ROUND_SECONDS = 100.0
"""Within which a failover has to be over and writes acknowledged again."""

BLUR_SECONDS = 1.0
"""Before a master goes, a read may have shown what its replica did not have yet and never will."""

DOWN_AFTER_MS = 3_000
"""What a master may be silent for: more than a loaded machine makes it by itself."""

PERSISTENT: dict[str, Any] = {"appendonly": "yes", "appendfsync": "everysec"}


@dataclass
class Scene:
    """What a fault has at hand."""

    pair: PartitionedPair
    chance: random.Random

    async def replaced(self, old: Server) -> None:
        """Until all sentinels name another master than `old`."""
        await asyncio.to_thread(self.pair.wait_for_failover, old)

    async def whole(self) -> None:
        """Until a master and its replica are there again, and the next failover would succeed."""
        await asyncio.to_thread(self.pair.wait_until_watched)


# --- the ways a master goes ------------------------------------------------------------------------------------------


async def killed(scene: Scene, old: Server) -> None:
    """Killed, replaced, and started again on what its disk has."""
    old.kill()
    await scene.replaced(old)
    old.start()


async def emptied(scene: Scene, old: Server) -> None:
    """Killed, replaced, and started again with nothing."""
    old.kill()
    for file in (*old.folder.rglob("*.aof*"), *old.folder.rglob("*.rdb"), *old.folder.rglob("*.manifest")):
        if file.is_file():
            file.unlink()
    await scene.replaced(old)
    old.start()


async def stopped(scene: Scene, old: Server) -> None:
    """It stands still, is replaced, and goes on, still thinking that it is the master."""
    old.pause()
    try:
        await scene.replaced(old)
    finally:
        old.resume()


async def cut_off(scene: Scene, old: Server) -> None:
    """Nobody reaches it, though it is well; what was on its way arrives later, or never."""
    scene.pair.cut_off(old)
    try:
        await scene.replaced(old)
    finally:
        scene.pair.heal(old, late=scene.chance.random() < 0.5)


async def split(scene: Scene, old: Server) -> None:
    """Its replica and the sentinels do not reach it, the daemons do: for a while there are two masters."""
    scene.pair.cut_off(old, "replica", "sentinel")
    try:
        await scene.replaced(old)
        await asyncio.sleep(scene.chance.random())  # how long both are there is left to chance
    finally:
        scene.pair.heal(old, late=scene.chance.random() < 0.5)


async def told(scene: Scene, old: Server) -> None:
    """Somebody asks for it: SENTINEL FAILOVER."""
    scene.pair.sentinels[0].say("SENTINEL", "FAILOVER", MASTER_NAME)
    await scene.replaced(old)


Fault = Callable[[Scene, Server], Awaitable[None]]

FAULTS: dict[str, Fault] = {
    "killed": killed,
    "emptied": emptied,
    "stopped": stopped,
    "cut off": cut_off,
    "split": split,
    "told": told,
}

ENDS_AT_ONCE = frozenset({"killed", "emptied", "cut off"})
"""Nobody hears from the old master any more; after the others it may still be read for a while."""


# --- one after the other ---------------------------------------------------------------------------------------------


@dataclass
class Round:
    """One failover."""

    kind: str
    seconds: float
    """From the fault until there is a master with a replica again."""
    without_service: float
    """Seconds a plain client had to insist on one write, at most."""
    acknowledged: int
    resent: int


@dataclass
class Result:
    """What all of them came to."""

    seed: int
    rounds: list[Round] = field(default_factory=list)
    lost: int = 0
    twice: int = 0
    epochs: int = 0
    """Changes of the epoch that anybody was told of."""
    operations: int = 0
    """Of the mixed load, every one in a history that was checked."""
    broken: list[str] = field(default_factory=list)
    """Promises, in words."""

    def figures(self) -> dict[str, Any]:
        waits = [each.without_service for each in self.rounds]
        kinds = Counter(each.kind for each in self.rounds)
        return {
            "failovers": len(self.rounds),
            **{f"of them {kind}": times for kind, times in kinds.items()},
            "writes acknowledged": sum(each.acknowledged for each in self.rounds),
            "sent again": sum(each.resent for each in self.rounds),
            "operations in checked histories": self.operations,
            "seconds until whole, median": round(median(each.seconds for each in self.rounds), 1),
            "seconds without service, median": round(median(waits), 1),
            "seconds without service, worst": round(max(waits), 1),
            "acknowledged writes lost": self.lost,
            "writes applied twice": self.twice,
            "changes of the epoch": self.epochs,
        }


def schedule(failovers: int, chance: random.Random) -> list[str]:
    """Every kind as often as the others, as far as that goes, in an order left to chance."""
    kinds: list[str] = []
    while len(kinds) < failovers:
        some = list(FAULTS)
        chance.shuffle(some)
        kinds += some
    return kinds[:failovers]


def run(
    folder: Path, kinds: Sequence[str], *, daemons: int = 2, seed: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """So many failovers, one after the other, under load."""
    result = Result(seed)
    with PartitionedPair(down_after_ms=DOWN_AFTER_MS, **PERSISTENT) as pair:
        values = pair.settings(namespace=a_namespace(), wait_replicas=1)
        with fleet(folder, "redis", values, daemons) as served:
            paths = [each.socket for each in served]
            asyncio.run(_all(Scene(pair, random.Random(seed)), paths, kinds, result, tell))
    return result


async def _all(
    scene: Scene, paths: Sequence[Path], kinds: Sequence[str], result: Result, tell: Callable[[str], None]
) -> None:
    race = Race(paths, LOAD)

    async def meanwhile() -> None:
        try:
            for number, kind in enumerate(kinds):
                await _one(scene, race, _delivery(paths, number), kind, result)
                tell(f"{number + 1} of {len(kinds)}: {result.rounds[-1]}")
        finally:
            race.end()

    await race.run(meanwhile)
    tell("\n".join([*figures(race), str(dict(race.heard))]))
    result.operations = len(race.story.ops)
    result.broken += faults(race)


def _delivery(paths: Sequence[Path], number: int) -> Delivery:
    return Delivery(paths, MOST_WRITES, agents=2, plain=2, pause_seconds=PAUSE_SECONDS, name=f"r{number}-")


async def _one(scene: Scene, race: Race, delivery: Delivery, kind: str, result: Result) -> None:
    delivering = asyncio.create_task(delivery.run())
    try:
        await _acknowledged(delivery)
        await asyncio.sleep(0.3 * scene.chance.random())  # at any moment of what the load does
        old, fault_at = scene.pair.master, time.monotonic()
        await FAULTS[kind](scene, old)
        await scene.whole()
        whole_at = time.monotonic()
        race.blurred.append((fault_at - BLUR_SECONDS, fault_at if kind in ENDS_AT_ONCE else whole_at))
        await _acknowledged(delivery)
        await race.more(MORE_WRITES, seconds=ROUND_SECONDS)
    finally:
        delivery.end()
        await delivering
    result.broken += await delivery.faults()
    result.broken += [f"{kind}: the epoch changed: {each}" for each in delivery.epochs]
    result.lost += delivery.lost
    result.twice += delivery.twice
    result.epochs += len(delivery.epochs)
    result.rounds.append(Round(kind, whole_at - fault_at, delivery.slowest, delivery.acknowledged, delivery.resent))


async def _acknowledged(delivery: Delivery) -> None:
    """Until so many more writes were acknowledged: they are, or a promise is broken."""
    goal = delivery.acknowledged + MORE_WRITES
    async with asyncio.timeout(ROUND_SECONDS):
        while delivery.acknowledged < goal:
            await asyncio.sleep(0.01)


def options() -> ArgumentParser:
    parser = program.options("failovers", __doc__, seed=1)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--daemons", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=FAULTS, help="these alone, in this order, again and again")
    return parser


def main() -> int:
    asked = options().parse_args()
    kinds = schedule(asked.failovers, random.Random(asked.seed))
    if asked.kinds:
        kinds = (asked.kinds * asked.failovers)[: asked.failovers]
    with program.scratch() as folder:
        result = run(folder, kinds, daemons=asked.daemons, seed=asked.seed, tell=program.say)
    return program.ended(asked, result.figures(), result.broken)


if __name__ == "__main__":
    sys.exit(main())
