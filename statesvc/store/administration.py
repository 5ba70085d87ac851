"""Administration: snapshot, restore, freeze and thaw of a whole store.

Owns the order of these, and what of it outlives a restart. Must not know the snapshot's format (snapshots.py), where
its file may lie (places.py), how an engine keeps rows, or the wire.

A snapshot is taken while everybody goes on. Its work is done in threads, a block at a time, with rests in between.

A restore verifies the whole file first. Then writes are refused, those under way are waited for, and the engine takes
the rows wholly or not at all; if it does not, what was there is served on. Afterwards:

    epoch     is new. Watches end with `gone`, cursors and `asOf` of before are `gone`, the next hello tells the epoch;
              connections stay.
    leases    are as in the snapshot; each has its full time anew.
    tokens    never come again, not even those given out since the snapshot, and also where the store they were given
              out by is lost. A restore raises the floor of all tokens above whatever can have been given out: to the
              wall clock's microseconds, which no record is claimed as often as, or by 2**32, where the clock was set
              back. Rows with a token carry the floor themselves, so that a daemon beside us on a shared engine
              needs not know of it.
    marks     are as in the snapshot: a write sent again is recognised if the snapshot has it, and taken if not.

Freezing is a row of its own, so that it holds after a restart. On a shared engine it holds for this daemon at once; the
others heed it (heeding.py), and `freeze` returns when they have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from statesvc_client import __version__
from statesvc_client.errors import Busy, StateError, Unavailable
from statesvc_client.wire import Fields

from .. import logs
from ..backends.epoch_names import floor_above
from ..backends.port import DataCorrupt, Dump, Row
from . import own, places
from .batches import Bar
from .checking import Findings, Tell, check
from .heeding import FROZEN, until_heeded
from .leases import Leases
from .places import Place
from .snapshots import BLOCK_BYTES, Footer, Header, Reader, Writer
from .store import Store

log = logs.get(__name__)

REPLACED = Bar("everything is being replaced by a snapshot: send the write again in a moment", even_hidden=True)

ROW_BYTES = 200
"""About what a row takes besides its body and marks."""

MOST_REST_SECONDS = 0.25
"""Of a disk that hangs nobody gains if we rest as long as it took."""

Result = TypeVar("Result")


class Administration:
    """What is done to a store as a whole, one thing at a time."""

    def __init__(self, store: Store, data: Path) -> None:
        self._store = store
        self._data = data
        self._under_way = ""
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._changing = asyncio.Lock()
        """Held by whoever changes what may be written."""
        self.restored: list[Callable[[], None]] = []
        """Are called after a restore: nothing that was known of any record holds."""

    async def load(self) -> None:
        """Take up what an earlier life of the daemon left: call it when the engine is open, before anybody writes."""
        engine = self._store.engine
        try:
            frozen, tokens = await engine.get([own.FREEZE, own.TOKENS])
        except StateError as problem:
            if engine.immediate:
                # It was just opened: what cannot be read now is damaged, and opening it again does not help.
                raise DataCorrupt(problem.text) from None
            raise
        if own.is_ours(frozen):
            self._store.commits.bar = FROZEN
            log.warning("frozen", why="it was frozen before the restart; thaw it to have writes taken")
        if tokens is not None:
            self._store.raise_token_floor(tokens.token)

    # --- one at a time ---------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self, work: str) -> Iterator[None]:
        if self._under_way:
            raise Busy(f"a {self._under_way} is under way; send this again when it is done")
        self._go_on()
        self._under_way = work
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way = ""
            self._idle.set()

    def _go_on(self) -> None:
        if self._stopping:
            raise Unavailable("the daemon is stopping")

    def give_up(self) -> None:
        """End what is under way at its next step: the daemon stops."""
        self._stopping = True

    async def stop(self) -> None:
        """Wait until nothing is under way any more: the engine is about to be closed."""
        self.give_up()
        await self._idle.wait()

    # --- snapshot --------------------------------------------------------------------------------------------------

    async def snapshot(self, path: str | None, tell: Tell) -> Fields:
        """Write everything into a file. Returns where it is and what it holds."""
        with self._alone("snapshot"):
            place = await asyncio.to_thread(places.find, self._data, path or self._free_name(), make=True)
            try:
                return await self._written(place, tell)
            finally:
                place.close()

    def _free_name(self) -> str:
        second, nanos = divmod(self._store.clock.now(), 1_000_000_000)
        at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(second))
        return f"snapshots/{at}.{nanos // 1_000_000:03d}Z{places.SUFFIX}"

    async def _written(self, place: Place, tell: Tell) -> Fields:
        writer = await asyncio.to_thread(Writer, place)
        try:
            dump = await self._store.engine.dump()
            header = self._header(dump)
            writer.footer.highest_token = self._store.token_floor
            await asyncio.to_thread(writer.begin, header)
            await self._copy(dump, writer, tell)
            footer = await asyncio.to_thread(writer.finish)
        finally:
            writer.abandon()
        log.info("snapshot_written", path=place.shown, rows=footer.rows, bytes=writer.bytes)
        return {**_told(place.shown, header, footer), "bytes": writer.bytes}

    async def _copy(self, dump: Dump, writer: Writer, tell: Tell) -> None:
        async with aclosing(_gathered(dump)) as blocks:
            async for rows in blocks:
                self._go_on()
                await _with_rest(partial(writer.add, rows))
                tell(writer.footer.rows, max(dump.total, writer.footer.rows))

    def _header(self, dump: Dump) -> Header:
        engine, moment = self._store.engine, self._store.moment()
        return Header(
            epoch=engine.epoch,
            cursor=dump.cursor,
            created_at=moment.text(moment.now),
            backend=engine.name,
            version=__version__,
            rows=dump.total,
        )

    # --- restore ---------------------------------------------------------------------------------------------------

    async def restore(self, path: str, tell: Tell) -> Fields:
        """Replace everything by what a snapshot holds, all of it or nothing. Returns what that was."""
        with self._alone("restore"):
            reader, shown = await asyncio.to_thread(self._opened, path)
            try:
                async with aclosing(self._blocks(reader, _with_rest)) as blocks:
                    async for _ in blocks:
                        tell(reader.position, 2 * reader.size)
                await self._replace(reader, tell)
            finally:
                reader.close()
        log.warning("restored", path=shown, rows=reader.footer.rows, epoch=self._store.engine.epoch)
        return _told(shown, reader.header, reader.footer)

    def _opened(self, path: str) -> tuple[Reader, str]:
        with places.find(self._data, path, make=False) as place:
            return Reader(place.open(), place.shown), place.shown

    async def _blocks(
        self, reader: Reader, run: Callable[[Callable[[], list[Row] | None]], Any]
    ) -> AsyncGenerator[list[Row], None]:
        blocks = reader.blocks()
        while (rows := await run(partial(next, blocks, None))) is not None:
            self._go_on()
            yield rows

    async def _replace(self, reader: Reader, tell: Tell) -> None:
        store = self._store
        async with self._changing:
            before, store.commits.bar = store.commits.bar, REPLACED
            try:
                await store.commits.settled()
                floor = self._next_floor(reader.footer)
                ours = [own.row(store, own.TOKENS, token=floor)]
                if before is FROZEN:
                    ours.append(own.row(store, own.FREEZE))
                async with aclosing(self._incoming(reader, floor, ours, tell)) as rows:
                    await store.engine.load(rows)
                store.raise_token_floor(floor)
                store.leases = Leases(store.clock.steady)
            finally:
                store.commits.bar = before
        for tell_them in self.restored:
            tell_them()

    async def _incoming(
        self, reader: Reader, floor: int, ours: list[Row], tell: Tell
    ) -> AsyncGenerator[list[Row], None]:
        """The rows of a snapshot that was verified, checked once more as they come, and ours."""
        # Nobody can write meanwhile: no rests.
        async with aclosing(self._blocks(reader, asyncio.to_thread)) as blocks:
            async for rows in blocks:
                yield [msgspec.structs.replace(row, token=floor) if row.token else row for row in rows]
                tell(reader.size + reader.position, 2 * reader.size)
        yield ours

    def _next_floor(self, footer: Footer) -> int:
        known = max(footer.highest_token, self._store.token_floor)
        return floor_above(known, self._store.clock.now())

    # --- freeze and thaw -------------------------------------------------------------------------------------------

    async def freeze(self) -> None:
        """From the return of this on nothing is written that anybody would be told of."""
        async with self._changing:
            # That it was frozen when last looked says little: another daemon may have been told to thaw it since.
            if not await own.is_there(self._store, own.FREEZE):
                await own.keep(self._store, own.row(self._store, own.FREEZE))
            self._store.commits.bar = FROZEN
            await self._store.commits.settled()
            # Also where it was there already: whoever ordered it may have done so a moment ago.
            await until_heeded(self._store.engine)
        log.warning("frozen", why="by order of an admin")

    async def thaw(self) -> None:
        """From the return of this on writes are taken by every daemon that reaches the store."""
        async with self._changing:
            await own.remove(self._store, own.FREEZE)
            self._store.commits.bar = None
            await until_heeded(self._store.engine, under_way=False)
        log.info("thawed")

    # --- check -----------------------------------------------------------------------------------------------------

    async def check(self, tell: Tell, *, repair: bool = False) -> Findings:
        """What is wrong with what is stored; mended as far as it can be, when asked to."""
        with self._alone("check"):
            return await check(self._store, tell, self._go_on, repair=repair)


def _told(shown: str, header: Header, footer: Footer) -> Fields:
    return {
        "path": shown,
        "rows": footer.rows,
        "tombstones": footer.tombstones,
        "cursor": f"{header.epoch}.{header.cursor}",
        "kinds": footer.kinds,
    }


async def _gathered(dump: Dump) -> AsyncGenerator[list[Row], None]:
    """The rows of a dump in blocks of about the same size, without our own."""
    block: list[Row] = []
    room = BLOCK_BYTES
    async with aclosing(dump.rows) as pieces:  # type: ignore[type-var]  # all of them are generators
        async for rows in pieces:
            for row in rows:
                if row.kind == own.KIND:
                    continue
                block.append(row)
                room -= len(row.body) + len(row.marks) + ROW_BYTES
                if room <= 0:
                    yield block
                    block, room = [], BLOCK_BYTES
    if block:
        yield block


async def _with_rest(work: Callable[[], Result]) -> Result:
    """Work in a thread, then rest for as long: others get at least half of the processor and of the disk."""
    began = time.monotonic()
    result = await asyncio.to_thread(work)
    await asyncio.sleep(min(time.monotonic() - began, MOST_REST_SECONDS))
    return result
