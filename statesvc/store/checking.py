"""Checking a whole store: what its engine finds, every row against itself, every reference.

Owns the walk over all rows while others go on, and what a check reports and mends. Must not know what is wrong with a
row (consistency.py) or a reference (references.py).

Rows come from a dump and references are read later, so that what looks wrong may only have changed in between. It is
looked at once more before it is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from msgspec import Struct

from statesvc_client.errors import Internal, StateError
from statesvc_client.wire import printable

from ..backends.port import DataCorrupt, Key, Row, Unit, Write
from . import own
from .consistency import faults, key_faults, keys_of, record_of, tombstone_faults
from .references import Reference, references
from .store import Store
from .turns import Turns
from .writes import living

MOST_TOLD = 1000
"""Problems, and repairs, named in one report."""

MOST_NOTES = 100

GET_KEYS = 100
"""Records read at once."""

Tell = Callable[[int, int], None]
"""Is told how far the work is: done, of how much."""


class Findings(Struct):
    """What a check found."""

    problems: list[str] = []
    repaired: list[str] = []
    notes: list[str] = []
    """What may well be meant so."""
    truncated: bool = False
    records: int = 0
    tombstones: int = 0
    references: int = 0

    def problem(self, text: str) -> None:
        self._put(self.problems, text, MOST_TOLD)

    def repair(self, text: str) -> None:
        self._put(self.repaired, text, MOST_TOLD)

    def note(self, text: str) -> None:
        self._put(self.notes, text, MOST_NOTES)

    def _put(self, texts: list[str], text: str, most: int) -> None:
        if len(texts) < most:
            texts.append(text)
        else:
            self.truncated = True


class _Named(NamedTuple):
    """A reference, and the record that makes it."""

    by: Key
    reference: Reference


async def check(store: Store, tell: Tell, go_on: Callable[[], None], *, repair: bool) -> Findings:
    """Look at everything; `go_on` raises when the daemon stops."""
    found = Findings()
    if repair:
        for text in await store.engine.repair():
            found.repair(text)
    for text in await store.engine.check():
        found.problem(text)
    try:
        await _Walk(store, found, repair=repair).run(tell, go_on)
    except (Internal, DataCorrupt) as damage:
        # It ends the walk, not the check: whoever asked for one wants to know what is damaged.
        found.problem(f"not all records could be looked at: {damage}")
    return found


class _Walk:
    """One walk over all rows."""

    def __init__(self, store: Store, found: Findings, *, repair: bool) -> None:
        self._store = store
        self._found = found
        self._repair = repair
        self._turns = Turns()

    async def run(self, tell: Tell, go_on: Callable[[], None]) -> None:
        found = self._found
        dump = await self._store.engine.dump()
        async with aclosing(dump.rows) as pieces:  # type: ignore[type-var]  # all of them are generators
            async for rows in pieces:
                go_on()
                await self._look_at(rows)
                seen = found.records + found.tombstones
                tell(seen, max(dump.total, seen))

    async def _look_at(self, rows: Iterable[Row]) -> None:
        named: list[_Named] = []
        for row in rows:
            if row.kind == own.KIND:
                continue
            if row.deleted:
                self._found.tombstones += 1
                self._say(row.key, tombstone_faults(row))
            else:
                self._found.records += 1
                named += await self._look_at_living(row)
            await self._turns.pause()
        await self._follow(named)

    async def _look_at_living(self, row: Row) -> list[_Named]:
        """Say what is wrong with a row; returns what it refers to."""
        record = record_of(row)
        if record is None:
            self._say(row.key, ["has a record that cannot be read: delete it, or restore a snapshot"])
            return []
        kind = self._store.kinds[row.kind]
        self._say(row.key, faults(row, record, kind))
        wrong = key_faults(row, record, kind)
        if wrong is not None:
            await self._misindexed(row.key, wrong)
        return [_Named(row.key, reference) for reference in references(row, record)]

    def _say(self, key: Key, texts: Iterable[str]) -> None:
        for text in texts:
            self._found.problem(f"{_shown(key)} {text}")

    # --- index keys ------------------------------------------------------------------------------------------------

    async def _misindexed(self, key: Key, wrong: str) -> None:
        try:
            mended = self._repair and await self._index_again(key)
        except StateError as problem:
            wrong, mended = f"{wrong}; it cannot be mended now: {problem.text}", False
        if mended:
            self._found.repair(f"{_shown(key)} {wrong}: made its index keys again")
        else:
            self._say(key, [wrong])

    async def _index_again(self, key: Key) -> bool:
        kind, now = self._store.kinds[key[0]], self._store.clock.now()

        def decide(rows: list[Row | None]) -> Unit | None:
            row = living(rows[0])
            record = None if row is None else record_of(row)
            if row is None or record is None or key_faults(row, record, kind) is None:
                return None
            keys = keys_of(row, record, kind, now)
            return (Write(msgspec.structs.replace(row, keys=keys), row.stamp, None),)

        return await self._store.attempt([key], decide) is not None

    # --- references ------------------------------------------------------------------------------------------------

    async def _follow(self, named: list[_Named]) -> None:
        self._found.references += len(named)
        for begin in range(0, len(named), GET_KEYS):
            some = named[begin : begin + GET_KEYS]
            rows = await self._store.engine.get([each.reference.to for each in some])
            for each, row in zip(some, rows, strict=True):
                if each.reference.wrong(row) is not None:
                    await self._confirm(each)
            await asyncio.sleep(0)

    async def _confirm(self, named: _Named) -> None:
        """Both may have changed since: look at them together."""
        to, is_note = named.reference.to, named.reference.is_note
        by, row = await self._store.engine.get([named.by, to])
        record = None if by is None or by.deleted else record_of(by)
        if by is None or record is None:
            return
        for reference in references(by, record):
            text = reference.wrong(row) if (reference.to, reference.is_note) == (to, is_note) else None
            if text is not None:
                tell = self._found.note if is_note else self._found.problem
                tell(f"{_shown(named.by)} {text}")


def _shown(key: Key) -> str:
    kind, name = key
    return f"{kind} {printable(name, 256)}"
