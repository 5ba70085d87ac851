"""Stores to move from and to: each on its engine, opened as often as a test likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from statesvc.backends.port import Engine, Event, Row, Write
from statesvc.moving.holdings import Holding
from statesvc.moving.migration import Migration, Report, Tell
from statesvc.moving.sources import OpenedSource
from statesvc.moving.target import LeftOut, Target, is_moved
from statesvc.store.kinds import Kinds
from tests.engines.rows import commit


class Place:
    """Where a store is. What an engine there wrote, the next one finds."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.make = make

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Engine]:
        engine = self.make()
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()

    async def holding(self) -> Holding:
        return await Holding(self.make(), Kinds(), Path("nowhere")).open()

    async def rows(self) -> dict[tuple[str, str], Row]:
        """Everything that is moved."""
        async with self.open() as engine:
            return await rows_of(engine)


async def rows_of(engine: Engine) -> dict[tuple[str, str], Row]:
    dump = await engine.dump()
    return {row.key: row async for page in dump.rows for row in page if is_moved(row)}


async def put(engine: Engine, *rows: Row) -> None:
    """Store rows whatever is there, telling the log."""
    found = await engine.get([row.key for row in rows])
    stamps = [None if before is None else before.stamp for before in found]
    units = [
        (Write(row, stamp, Event("created" if stamp is None else "updated", 1)),)
        for row, stamp in zip(rows, stamps, strict=True)
    ]
    assert set(await commit(engine, units)) <= {"applied"}


async def moved(
    source: Place,
    target: Place,
    *,
    cut_over: bool = True,
    replace: bool = False,
    tell: Tell = lambda _what, _done, _total: None,
    left_out: LeftOut = lambda _: False,
) -> Report:
    """One run, both ends opened for it and closed after it, however it ends."""
    read = OpenedSource(await source.holding())
    try:
        written = Target(await target.holding(), left_out)
        try:
            return await Migration(read, written, tell).run(cut_over=cut_over, replace=replace)
        finally:
            await written.close()
    finally:
        await read.close()
