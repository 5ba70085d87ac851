"""Reading the log: a stream whose entries are numbered without gaps.

Owns cursors, pages and what is no longer kept. Must not know how entries get there.
What this daemon has just written itself it need not read back: recent.py has it.
Where replicas are waited for, an entry that a failover could still undo is told nobody: another would get its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..numbered import beyond_the_end, no_longer_kept, position_of
from ..port import Cursor, Key, LogEntry
from . import rows
from .commits import Told
from .following import Follower
from .meta import Meta
from .names import Names
from .namespace import Namespace
from .recent import Recent
from .replicas import Replicas
from .scripting import Command
from .steps import REPLY_BYTES, Steps

FIRST_ENTRIES = 64
MOST_ENTRIES = 4096
"""Entries read at a time: at first, until it is known how large they are, and at most."""


class Log:
    """The log of one namespace."""

    def __init__(self, namespace: Namespace, replicas: Replicas) -> None:
        self._namespace = namespace
        self._replicas = replicas
        self._follower = Follower(namespace)
        self._recent = Recent()
        self._steps = Steps(FIRST_ENTRIES, MOST_ENTRIES)
        self._safe = 0
        """The newest entry that may be told."""

    async def close(self) -> None:
        await self._follower.close()

    def reached(self, number: int, *, safe: bool) -> None:
        """The log is known to reach so far; `safe` when replicas have it, or need not."""
        if safe:
            self._safe = max(self._safe, number)
        self._follower.reached(number)

    def found(self, meta: Meta) -> None:
        """It is the same log, on a server that may be another."""
        self._follower.found(meta.seq)

    def replaced(self, meta: Meta) -> None:
        """It is another log by now."""
        self._safe = 0
        self._recent.clear()
        self._follower.replaced(meta)

    def was_cut(self) -> None:
        """Entries may be gone: whoever asks for them is to be told."""
        self._recent.clear()

    def took(self, told: Sequence[Told]) -> None:
        """These entries were made here, and are safe."""
        for entries in told:
            self._recent.add(entries)

    async def position(self) -> Cursor:
        meta = await self._namespace.look()
        if self._replicas.wait and meta.seq > self._safe:
            meta = await self._namespace.look(self._replicas.ask)
            self._safe = max(self._safe, meta.seq)
        return str(meta.seq)

    async def read(self, after: Cursor, limit: int) -> list[LogEntry]:
        position = position_of(after)
        if position is not None and position >= self._namespace.known.start:
            own = self._recent.behind(position, limit)
            if own:
                return own
        begin = "-" if position is None else f"({position}-0"
        meta, found = await self._page(begin, min(limit, self._steps.count))
        if position is not None and position < meta.start:
            raise no_longer_kept(after)
        if position is not None and position > meta.seq:
            raise beyond_the_end(after)
        self._follower.reached(meta.seq)
        self._steps.note(sum(map(len, parts)) for _, parts in found)
        return [rows.read_entry(entry) for entry in found]

    async def _page(self, begin: str, most: int) -> tuple[Meta, Sequence[Any]]:
        def make(names: Names) -> list[Command]:
            return [("XRANGE", names.log, begin, "+", "COUNT", most)]

        meta, [found] = await self._namespace.read(make)
        if self._replicas.wait and found and rows.number_of(found[-1]) > self._safe:
            meta, [found] = await self._namespace.read(make, self._replicas.ask)
            self._safe = max([self._safe, *map(rows.number_of, found[-1:])])
        return meta, found

    async def grew(self, after: Cursor, seconds: float) -> None:
        position = position_of(after)
        if position is None or position != self._follower.end:
            meta = await self._follower.look()
            if (meta.start if position is None else position) != self._follower.end:
                return
        await self._follower.wait(seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        found = await self._namespace.run("history", *key, position_of(after) or 0, limit, REPLY_BYTES)
        return [rows.read_entry(entry) for entry in found]
