"""An engine that fails on demand: a real one behind it, and a list of faults in front.

Owns which commit fails and how. Must not know rules; what is stored and read is the real engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from statesvc.backends.port import Cursor, Dump, Engine, Key, LogEntry, LogKept, Query, Result, Row, Step, Unit
from statesvc.moving.target import SWEEPER
from statesvc.store import own
from statesvc_client.errors import StateError


class Fault(NamedTuple):
    """How a commit fails: the error, and whether the batch is applied all the same."""

    error: Exception
    applied: bool = False


class FaultyEngine(Engine):
    """Passes everything on. While `faults` holds something, each commit takes one; `hold` keeps commits waiting."""

    name = "faulty"

    def __init__(self, real: Engine) -> None:
        self.real = real
        self.immediate = real.immediate  # type: ignore[misc]  # it is what the engine behind it is
        self.side_by_side = real.side_by_side
        self.faults: list[Fault] = []
        self.commits = 0
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def durability(self) -> str:  # type: ignore[override]
        return self.real.durability

    @property
    def epoch(self) -> str:  # type: ignore[override]
        return self.real.epoch

    def fail(self, error: StateError, *, applied: bool = False) -> None:
        """The next commit fails with `error`."""
        self.faults.append(Fault(error, applied))

    def hold(self) -> None:
        """Commits wait from here on, so that a test can fill the next batch."""
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def own(self) -> None:
        self.real.own()

    async def open(self) -> None:
        """Whoever is to be told something by this engine is told it by the one behind it."""
        self.real.on_broken(self.broke)
        self.real.began_anew = self.began_anew
        self.real.adopt = self.adopt
        await self.real.open()

    async def close(self) -> None:
        await self.real.close()

    async def ping(self) -> None:
        await self.real.ping()

    async def prepare(self, *, dry_run: bool) -> list[Step]:
        return await self.real.prepare(dry_run=dry_run)

    @property
    def server(self) -> int:  # type: ignore[override]
        return self.real.server

    async def assure(self, read_from: int | None = None) -> None:
        await self.real.assure(read_from)

    def peek(self, key: Key) -> Row | None:
        return self.real.peek(key)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        return await self.real.get(keys)

    async def query(self, query: Query) -> list[Row]:
        return await self.real.query(query)

    async def count(self, query: Query) -> int:
        return await self.real.count(query)

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        if _is_the_daemons_own(batch):
            return await self.real.commit(batch)
        self.commits += 1
        await self._gate.wait()
        if not self.faults:
            return await self.real.commit(batch)
        fault = self.faults.pop(0)
        if fault.applied:
            await self.real.commit(batch)
        raise fault.error

    async def kinds(self) -> list[str]:
        return await self.real.kinds()

    async def position(self) -> Cursor:
        return await self.real.position()

    async def position_for_queries(self) -> Cursor:
        return await self.real.position_for_queries()

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        return await self.real.read_log(after, limit)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        await self.real.log_grew(after, seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        return await self.real.history(key, after, limit)

    async def compact(self, keep: LogKept) -> bool:
        return await self.real.compact(keep)

    async def dump(self) -> Dump:
        return await self.real.dump()

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        await self.real.load(rows)

    async def check(self) -> list[str]:
        return await self.real.check()

    async def repair(self) -> list[str]:
        return await self.real.repair()

    def measures(self) -> dict[str, int]:
        return self.real.measures()


def _is_the_daemons_own(batch: Sequence[Unit]) -> bool:
    """Whether nobody asked for it: a daemon on a shared engine takes up its duties when it likes."""
    return all(write.row.key == SWEEPER or write.row.kind == own.KIND for unit in batch for write in unit)
