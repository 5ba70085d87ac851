"""Where each engine is found in tests. An engine that is registered and not named here fails the contract suite.

Owns how an engine is made for a test and what may be expected of it. Must not know servers: places.py has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from statesvc.backends import make
from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine, Query
from statesvc.backends.sqlite import SqliteEngine
from tests.engines import places
from tests.engines.weak import STALE_QUERIES, WeakEngine, WeakStorage


@dataclass(frozen=True)
class Address:
    """One engine under test, and which of the promises that differ between engines it makes."""

    make: Callable[[Path], Callable[[], Engine]]
    """Given a folder: a function that makes the engine; called again, it makes one on the same data."""
    keeps: bool = True
    """What is committed is there after the engine was closed and opened again."""
    one_order: bool = True
    """The log has one order for all records, that of the commits."""
    stale_queries: int = 0
    """Queries that may miss a commit before one must see it."""
    sure: bool = True
    """A commit is never answered `unknown` without cause."""
    exact_dump: bool = True
    """A dump is the state at its cursor; otherwise each record may be newer."""

    def on(self, make: Callable[[Path], Callable[[], Engine]]) -> Address:
        """The same promises, kept somewhere else."""
        return replace(self, make=make)


def _memory(_: Path) -> Callable[[], Engine]:
    return MemoryEngine


def _sqlite(folder: Path) -> Callable[[], Engine]:
    # Durability is another suite's subject: here the disk need not be waited for.
    return lambda: SqliteEngine(folder / "data", durability="os")


def _weak(_: Path) -> Callable[[], Engine]:
    storage = WeakStorage(seed=20_251_026)
    return lambda: WeakEngine(storage)


def _redis(_: Path) -> Callable[[], Engine]:
    settings = places.namespace()
    return lambda: make(settings)


def _cluster(_: Path) -> Callable[[], Engine]:
    settings = places.namespace_in_a_cluster()
    return lambda: make(settings)


def _dynamodb(_: Path) -> Callable[[], Engine]:
    settings = places.tables()
    return lambda: make(settings)


ADDRESSES: dict[str, Address] = {
    "memory": Address(_memory, keeps=False),
    "sqlite": Address(_sqlite),
    "redis": Address(_redis, exact_dump=False),
    "dynamodb": Address(_dynamodb, one_order=False, exact_dump=False),
}
"""What is registered, each under its name."""

WEAK = Address(_weak, one_order=False, stale_queries=STALE_QUERIES, sure=False, exact_dump=False)

EVERY: dict[str, Address] = {**ADDRESSES, "cluster": ADDRESSES["redis"].on(_cluster), "weak": WEAK}

LONG = "STATESVC_TEST_LONG"
"""Set by `make test-long`: every engine is tried with as many examples as the quickest, and by every suite."""

IS_LONG = bool(os.environ.get(LONG))

USUAL = list(EVERY) if IS_LONG else list(ADDRESSES)
"""Engines that the socket suite is run on. What a cluster adds is below the port, and what the weak engine adds is
above it: without LONG the contract suite and the state machines are their share, so that the gate stays short."""

QUICK = list(EVERY) if IS_LONG else ["memory", "sqlite", "weak"]
"""Engines that the rules alone are run on: what belongs to this process, and what is as weak as an engine may be."""

EMBEDDED = ["memory", "sqlite"]
"""Engines whose data is this process's own; what is promised of them alone is tested on them alone."""

FLEETS = [name for name in USUAL if name not in EMBEDDED]
"""Engines that many daemons may share."""


_SHARE = {"cluster": 0.5, "dynamodb": 0.25}
"""The share of examples that the gate tries on engines that take long over each. The sequences are the same on every
engine and the rules above are tried on the quick ones; here the engine's own part is in question, of which most is
tried by the first few. A cluster runs the engine that has already been tried on one server."""


def examples(name: str, usual: int) -> int:
    """How many examples are tried on an engine."""
    return usual if os.environ.get(LONG) else max(1, int(usual * _SHARE.get(name, 1)))


def repeats(engine: Engine, usual: int) -> int:
    """How many times the same thing is done on an engine, where more of it only takes longer."""
    return examples(_innermost(engine).name, usual)


def address_of(engine: Engine) -> Address:
    """What may be expected of an engine, also of one that stands behind another."""
    return EVERY[_innermost(engine).name]


def _innermost(engine: Engine) -> Engine:
    while (behind := getattr(engine, "real", None)) is not None:
        engine = behind
    return engine


async def caught_up(engine: Engine) -> None:
    """From here on queries see everything committed so far, on the engine that may be late too."""
    for _ in range(address_of(engine).stale_queries):
        await engine.query(Query(kind="nothing", limit=1))


@dataclass
class Bench:
    """An engine on its test bench: open, on data of its own."""

    name: str
    address: Address
    engine: Engine
    again: Callable[[], Engine]

    async def caught_up(self) -> None:
        """From here on queries see everything committed so far."""
        await caught_up(self.engine)

    async def reopened(self) -> Engine:
        await self.engine.close()
        self.engine = self.again()
        await self.engine.open()
        return self.engine
