"""Rows in memory: those the state does not have yet, and a bounded cache of hot ones in two generations.

Owns what is kept in memory of what is on disk. Must not know files. A look-up costs no bookkeeping; when the young
generation has taken half of the room the old one is dropped, and what is still used moves over again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..port import Key, Row

OVERHEAD_BYTES = 600
"""What a cached row costs beside its body: the objects around it, measured."""


def cost(row: Row | None) -> int:
    return OVERHEAD_BYTES if row is None else OVERHEAD_BYTES + len(row.body) + len(row.marks)


class Waiting:
    """Committed rows on their way into the state, the newest of each record."""

    __slots__ = ("bytes", "entries", "relabel", "rows", "since")

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.relabel: set[Key] = set()
        """Records whose labels changed: most writes leave them alone, and so the label index."""
        self.entries = 0
        self.bytes = 0
        self.since = 0.0

    def take(self, rows: Iterable[Row], relabel: set[Key], now: float) -> None:
        if not self.rows:
            self.since = now
        for row in rows:
            self.rows[row.key] = row
            self.bytes += cost(row)
            self.entries += 1
        self.relabel |= relabel


class RowCache:
    """Rows by key; None stands for a record that is known to be absent."""

    def __init__(self, most_bytes: int) -> None:
        self._half = max(1, most_bytes // 2)
        self._young: dict[Key, Row | None] = {}
        self._old: dict[Key, Row | None] = {}
        self._young_bytes = 0

    def find(self, key: Key) -> tuple[bool, Row | None]:
        """Whether the key is known, and its row."""
        if key in self._young:
            return True, self._young[key]
        if key in self._old:
            row = self._old[key]
            self.put(key, row)
            return True, row
        return False, None

    def put(self, key: Key, row: Row | None) -> None:
        self._young[key] = row
        self._young_bytes += cost(row)
        if self._young_bytes > self._half:
            self._turn_over({}, 0)

    def adopt(self, rows: dict[Key, Row], size: int) -> None:
        """Take over many rows at once. A whole generation is adopted as it is: nothing is copied."""
        if size * 4 < self._half:
            for key, row in rows.items():
                self.put(key, row)
        elif size <= self._half:
            self._turn_over(rows, size)
        else:
            # More than there is room for: none of them is hotter than the others, so none is kept. Older copies of
            # the same rows must go all the same.
            self._turn_over({}, 0)
            self._turn_over({}, 0)

    def _turn_over(self, rows: dict[Key, Row], size: int) -> None:
        self._old = self._young
        self._young = dict(rows) if rows else {}
        self._young_bytes = size
