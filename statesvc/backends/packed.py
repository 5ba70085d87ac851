"""Rows in few bytes: the records of a store in memory, packed unless they are new, in use or large.

Owns how rows are kept in memory and which of them stay built. Must not know indexes, conditions or the log. A row of
Python objects takes more than twice the bytes of what it says; packing one takes half a microsecond, building it again
somewhat more. Whoever writes a row says when it has become old enough to be packed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import msgpack

from .port import Key, Row

Cell = bytes | Row
"""A row as it is kept: packed, or itself."""

LARGE_BYTES = 2048
"""With a body of this size what packing saves is small, and copying it dear: such a row is kept as it is."""

MOST_BUILT = 8_192
"""Packed rows that are kept built as well, because they were asked for: some 10 MB with small jobs."""

_SCRATCH = bytearray(2 * LARGE_BYTES)
_pack_into = msgpack.Encoder().encode_into
_build = msgpack.Decoder(Row).decode


def built(cell: Cell) -> Row:
    return _build(cell) if isinstance(cell, bytes) else cell


class PackedRows:
    """The newest row of every record."""

    def __init__(self) -> None:
        self.of_kind: defaultdict[str, dict[str, Cell]] = defaultdict(dict)
        """By kind and id, for whoever is in a hurry. A kind without rows is not there."""
        self._built: dict[Key, tuple[bytes, Row]] = {}
        """Packed rows that were asked for lately, with the very bytes they were built from: what was written since then
        is other bytes."""
        self._built_before: dict[Key, tuple[bytes, Row]] = {}
        """The same, longer ago. One goes for each that is built, so that no moment has to free them all."""

    def __len__(self) -> int:
        return sum(map(len, self.of_kind.values()))

    def get(self, key: Key) -> Row | None:
        """The newest row, which stays built for a while."""
        cells = self.of_kind.get(key[0])
        cell = None if cells is None else cells.get(key[1])
        return self.in_use(key, cell) if isinstance(cell, bytes) else cell

    def listed(self, kind: str, ids: Sequence[str]) -> list[Row]:
        """The newest rows of those records that are there, which stay built for a while."""
        cells, in_use = self.of_kind.get(kind, _NONE), self.in_use
        found = [(id, cells[id]) for id in ids if id in cells]
        return [in_use((kind, id), cell) if isinstance(cell, bytes) else cell for id, cell in found]

    def in_use(self, key: Key, cell: bytes) -> Row:
        """A packed row, which stays built for a while."""
        known = self._built.get(key)
        if known is None or known[0] is not cell:
            known = self._built_before.get(key)
            if known is None or known[0] is not cell:
                known = (cell, _build(cell))
            self._keep_built(key, known)
        return known[1]

    def _keep_built(self, key: Key, known: tuple[bytes, Row]) -> None:
        self._built[key] = known
        if len(self._built) >= MOST_BUILT:
            self._built_before, self._built = self._built, {}
        elif self._built_before:
            self._built_before.popitem()

    def look(self, key: Key) -> Row | None:
        """The newest row, for one who passes by."""
        cell = self.of_kind.get(key[0], _NONE).get(key[1])
        return _build(cell) if isinstance(cell, bytes) else cell

    def passing(self, kind: str, ids: Sequence[str]) -> list[Row | None]:
        """The same for several records."""
        found = map(self.of_kind.get(kind, _NONE).get, ids)
        return [_build(cell) if isinstance(cell, bytes) else cell for cell in found]

    def put(self, row: Row) -> None:
        """Keep a row as the newest, as it is until it is packed."""
        self.of_kind[row.kind][row.id] = row

    def pack(self, row: Row) -> None:
        """Pack a row, if it still is the newest and not large."""
        cells = self.of_kind.get(row.kind, _NONE)
        if cells.get(row.id) is row and len(row.body) < LARGE_BYTES:
            # An encoder that makes its own bytes leaves half as much again unused behind them.
            _pack_into(row, _SCRATCH)
            cells[row.id] = bytes(_SCRATCH)

    def replace_all(self, others: PackedRows) -> None:
        """Have the rows of others instead."""
        self.of_kind.clear()
        self.of_kind.update(others.of_kind)

    def remove(self, key: Key) -> None:
        cells = self.of_kind.get(key[0], {})
        cells.pop(key[1], None)
        if not cells:
            self.of_kind.pop(key[0], None)

    def cells(self) -> list[Cell]:
        """Everything as it is now."""
        return [cell for cells in self.of_kind.values() for cell in cells.values()]


_NONE: dict[str, Cell] = {}
"""The rows of a kind that has none."""
