"""Rows in memory: those the state does not have yet, and a bounded cache of hot ones in two generations.

Owns what is kept in memory of what is on disk. Must not know files. A look-up costs no bookkeeping; when the young
generation has taken half of the room the old one is dropped, and what is still used moves over again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from operator import attrgetter
from typing import Final

from ..port import REMOVED, Key, Keys, LogEntry, Row
from .log import Change

_event_of = attrgetter("event")

OVERHEAD_BYTES = 900
"""What a cached row costs beside its body: the objects around it, measured."""


def cost(row: Row | None) -> int:
    return OVERHEAD_BYTES if row is None else OVERHEAD_BYTES + len(row.body) + len(row.marks)


def present(row: Row | None) -> Row | None:
    """The row, unless it says that it was removed."""
    return None if row is None or row.deleted == REMOVED else row


class Waiting:
    """Committed changes on their way into the state: the newest row of each record, and where the log has the rest."""

    __slots__ = ("_batches", "before", "bytes", "entries", "removed", "rows")

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        """Those that are to be removed stand here as such."""
        self.removed: dict[Key, int] = {}
        """Records that were removed, some of them made again since, and the position of that."""
        self.before: dict[Key, Keys | None] = {}
        """What the state finds each record by, where that is known; None for one it does not have."""
        self.entries = 0
        self.bytes = 0
        self._batches: list[tuple[int, Sequence[Change], Sequence[Key]]] = []

    def know(self, keys: Sequence[Key], stored: Sequence[Row | None]) -> None:
        """What the batch that is taken next replaces: the state is then spared what stays the same."""
        rows, before = self.rows, self.before
        if stored.count(None) == len(stored):
            # None of them is in the state, and none is here but as removed: then that is known of it already.
            before.update(dict.fromkeys(keys))
            return
        # Of a record that the batch changes more than once the state has what the first change replaces.
        for key, row in dict(zip(reversed(keys), reversed(stored), strict=True)).items():
            if key not in rows and key not in before and (row is None or not row.deleted):
                before[key] = None if row is None else row.keys

    def take(self, first: int, changes: Sequence[Change], keys: Sequence[Key] | None = None) -> int:
        """Take over a batch whose first entry has this position; returns what it costs in bytes."""
        if keys is None:
            keys = [change.row.key for change in changes]
        taken = [change.row for change in changes]
        self.rows.update(zip(keys, taken, strict=True))
        size = OVERHEAD_BYTES * len(taken)
        for place, row in enumerate(taken):
            size += len(row.body) + len(row.marks)
            if row.deleted == REMOVED:
                self.removed[keys[place]] = first + place
                self.before[keys[place]] = None
        self.bytes += size
        self.entries += len(changes)
        self._batches.append((first, changes, keys))
        return size

    def present(self) -> dict[Key, Row]:
        """The newest rows, without those that are to be removed."""
        return {key: row for key, row in self.rows.items() if row.deleted != REMOVED} if self.removed else self.rows

    def as_one_run(self) -> range | None:
        """Where in the log all of it is, when each record was changed once, nothing is hidden and nothing lies between:
        then the rows are in the order of their entries."""
        begin = self._batches[0][0]
        run = range(begin, begin + self.entries)
        last, changes, _ = self._batches[-1]
        is_whole = len(self.rows) == self.entries and last + len(changes) == run.stop
        return run if is_whole and all(None not in map(_event_of, each) for _, each, _ in self._batches) else None

    def told(self) -> Iterator[tuple[int, Key]]:
        """Where in the log the entries are that make up the history of records."""
        removed = self.removed
        for first, changes, keys in self._batches:
            for position, key, change in zip(count(first), keys, changes, strict=False):
                if change.event is not None and (not removed or position > removed.get(key, 0)):
                    yield position, key

    def entries_of(self, key: Key) -> Iterator[LogEntry]:
        """What is told of one record since it was last removed."""
        removed = self.removed.get(key, 0)
        for first, changes, keys in self._batches:
            for position, each, change in zip(count(first), keys, changes, strict=False):
                if each == key and change.event is not None and position > removed:
                    yield LogEntry(str(position), change.event, change.row)


class Unknown(Enum):
    """What a look-up finds that finds nothing."""

    UNKNOWN = 0


UNKNOWN: Final = Unknown.UNKNOWN


class RowCache:
    """Rows by key; None stands for a record that is known to be absent."""

    def __init__(self, most_bytes: int) -> None:
        self._half = max(1, most_bytes // 2)
        self.young: dict[Key, Row | None] = {}
        self._old: dict[Key, Row | None] = {}
        self._young_bytes = 0

    def find(self, key: Key) -> Row | Unknown | None:
        """Look for a row; whoever is in a hurry looks into `young` first."""
        row = self.young.get(key, UNKNOWN)
        if row is UNKNOWN and self._old:
            row = self._old.get(key, UNKNOWN)
            if row is not UNKNOWN:
                self.put(key, row)
        return row

    def put(self, key: Key, row: Row | None) -> None:
        self.young[key] = row
        self._young_bytes += cost(row)
        if self._young_bytes > self._half:
            self._turn_over({}, 0)

    def adopt(self, rows: Mapping[Key, Row | None], size: int) -> None:
        """Take over many rows at once, from the oldest to the newest."""
        if self._young_bytes + size <= self._half:
            self.young.update(rows)
            self._young_bytes += size
        elif size <= self._half:
            self._turn_over(rows, size)
        else:
            # More than there is room for: the newest are kept. Older copies of all of them must go.
            self._turn_over({}, 0)
            self._turn_over(*self._newest(rows))

    def _newest(self, rows: Mapping[Key, Row | None]) -> tuple[dict[Key, Row | None], int]:
        kept: dict[Key, Row | None] = {}
        size = 0
        for key in reversed(list(rows)):
            more = cost(rows[key])
            if size + more > self._half:
                break
            kept[key] = rows[key]
            size += more
        return kept, size

    def _turn_over(self, rows: Mapping[Key, Row | None], size: int) -> None:
        self._old = self.young
        self.young = dict(rows) if rows else {}
        self._young_bytes = size
