"""The feed: everything a store holds, rows and log as an engine keeps them, for a move to another engine.

Owns how much one piece holds, and how long a copy that nobody asks on about is kept open. Must not know the wire, nor
who takes the pieces. Others are served meanwhile: a piece is small, and one copy is open at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec

from statesvc_client.errors import Busy, Gone

from ..backends.port import Dump, LogEntry, Row
from .following import read_bookmark
from .store import Store

PIECE_BYTES = 1024 * 1024
"""What one piece holds, or one row more: a few milliseconds of work."""

PIECE_ENTRIES = 1000

ROW_BYTES = 200
"""About what a row takes besides its body and marks."""

IDLE_SECONDS = 60.0
"""How long an open copy waits to be asked for its next piece. On sqlite a WAL cannot shrink while one is open."""

_encode = msgspec.msgpack.Encoder().encode
_rows = msgspec.msgpack.Decoder(list[Row])
_entries = msgspec.msgpack.Decoder(list[LogEntry])

Item = TypeVar("Item")


def unpacked_rows(piece: bytes) -> list[Row]:
    """What a piece of a copy holds."""
    return _rows.decode(piece)


def unpacked_entries(piece: bytes) -> list[LogEntry]:
    """What a piece of the log holds."""
    return _entries.decode(piece)


class Entries(NamedTuple):
    """A piece of the log, and where to read on."""

    piece: bytes
    cursor: str


class Feeding:
    """Hands out a store, to one who asks at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._copy: Copy | None = None
        self._opening = False

    async def begin(self) -> Copy:
        """A copy of everything, at one place in the log or newer."""
        if self._copy is not None or self._opening:
            raise Busy("everything is being copied for another caller; send this again when that is done")
        self._opening = True
        try:
            dump = await self._store.engine.dump()
            self._copy = Copy(dump, self._store, self._ended)
        finally:
            self._opening = False
        return self._copy

    def _ended(self) -> None:
        self._copy = None

    def under_way(self, name: str) -> Copy:
        if self._copy is None or self._copy.name != name:
            raise Gone("that copy is over: begin a new one")
        return self._copy

    async def entries(self, after: str) -> Entries:
        """The entries behind a place, as many as one piece holds; none when there are no more for now."""
        bookmark = read_bookmark(after, self._store.engine.epoch)
        found = await self._store.engine.read_log(bookmark.cursor, PIECE_ENTRIES)
        some = found[: _fitting(entry.row for entry in found)]
        last = bookmark._replace(cursor=some[-1].cursor) if some else bookmark
        return Entries(_encode(some), last.text)


class Copy:
    """One copy on its way out. It ends with its last piece, with its connection, or when nobody asks on."""

    def __init__(self, dump: Dump, store: Store, ended: Callable[[], None]) -> None:
        self.name = os.urandom(8).hex()
        self.total = dump.total
        self.epoch = store.engine.epoch
        self.cursor = f"{self.epoch}.{dump.cursor}"
        self.ended: list[Callable[[], None]] = [ended]
        """Are told when it is over."""
        self._store = store
        self._pages = dump.rows
        self._left: list[Row] = []
        self._over = self._reading = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(IDLE_SECONDS, self.end)

    async def piece(self) -> tuple[bytes, bool]:
        """The next rows, and whether there are more behind them."""
        if self._reading:
            raise Busy("the piece before this one is still being read")
        self._timer.cancel()
        self._reading = True
        try:
            rows = await self._next()
        except BaseException:
            self._reading = False
            self.end()
            raise
        self._reading = False
        if self._over:
            await self._close()
            raise Gone("that copy is over: begin a new one")
        if not rows:
            self.end()
        else:
            self._timer = self._loop.call_later(IDLE_SECONDS, self.end)
        return _encode(rows), bool(rows)

    async def _next(self) -> list[Row]:
        if self._store.engine.epoch != self.epoch:
            raise Gone("everything was replaced while it was being copied: begin a new copy")
        while not self._left:
            page = await anext(self._pages, None)
            if page is None:
                return []
            self._left = page
        fitting = _fitting(self._left)
        rows, self._left = self._left[:fitting], self._left[fitting:]
        return rows

    def end(self) -> None:
        """Let go of what it reads from; told again, nothing changes."""
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        for tell in self.ended:
            tell()
        if not self._reading:
            self._closing = self._loop.create_task(self._close())

    async def _close(self) -> None:
        async with aclosing(self._pages):  # type: ignore[type-var]  # all of them are generators
            pass


def _fitting(rows: Iterable[Row]) -> int:
    """How many of these fit one piece; one does always."""
    count = size = 0
    for row in rows:
        count += 1
        size += len(row.body) + len(row.marks) + ROW_BYTES
        if size >= PIECE_BYTES:
            break
    return count
