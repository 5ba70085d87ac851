"""Where each engine is found in tests. An engine that is registered and not named here fails the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine, Query
from statesvc.backends.sqlite import SqliteEngine
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


def _memory(_: Path) -> Callable[[], Engine]:
    return MemoryEngine


def _sqlite(folder: Path) -> Callable[[], Engine]:
    # Durability is another suite's subject: here the disk need not be waited for.
    return lambda: SqliteEngine(folder / "data", durability="os")


def _weak(_: Path) -> Callable[[], Engine]:
    storage = WeakStorage(seed=20_251_026)
    return lambda: WeakEngine(storage)


ADDRESSES: dict[str, Address] = {
    "memory": Address(_memory, keeps=False),
    "sqlite": Address(_sqlite),
}

WEAK = Address(_weak, one_order=False, stale_queries=STALE_QUERIES, sure=False, exact_dump=False)

EVERY: dict[str, Address] = {**ADDRESSES, "weak": WEAK}


@dataclass
class Bench:
    """An engine on its test bench: open, on data of its own."""

    name: str
    address: Address
    engine: Engine
    again: Callable[[], Engine]

    async def caught_up(self) -> None:
        """From here on queries see everything committed so far."""
        for _ in range(self.address.stale_queries):
            await self.engine.query(Query(kind="nothing", limit=1))

    async def reopened(self) -> Engine:
        await self.engine.close()
        self.engine = self.again()
        await self.engine.open()
        return self.engine
