"""The newest entries of the log, kept in memory: those who follow it closely never touch the file.

Owns a bounded run of committed batches. Must not know files or threads. Taking a batch in costs the same whatever its
size; entries are made when somebody reads them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ..port import LogEntry
from .log import Change

MOST_ENTRIES = 20_000
MOST_BYTES = 16 * 1024 * 1024
"""What is kept, whichever comes first; the rows in it are mostly those the row cache holds as well."""


class RecentLog:
    """Batches behind a position, without a gap."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Everything behind this position is here."""
        self._firsts: list[int] = []
        self._batches: list[Sequence[Change]] = []
        self._sizes: list[int] = []
        self._gone = 0
        """Batches at the front that were dropped; the lists are shortened now and then, not at every drop."""
        self._entries = 0
        self._bytes = 0

    def add(self, first: int, changes: Sequence[Change], size: int) -> None:
        self._firsts.append(first)
        self._batches.append(changes)
        self._sizes.append(size)
        self._entries += len(changes)
        self._bytes += size
        while self._entries > MOST_ENTRIES or self._bytes > MOST_BYTES:
            self._drop_oldest()

    def cut(self, upto: int) -> None:
        """Drop what the log itself no longer has."""
        while self._gone < len(self._batches) and self._firsts[self._gone] <= upto:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._batches[self._gone]
        self.start = self._firsts[self._gone] + len(oldest) - 1
        self._entries -= len(oldest)
        self._bytes -= self._sizes[self._gone]
        self._batches[self._gone] = ()
        self._gone += 1
        if self._gone > 64 and self._gone * 2 > len(self._firsts):
            del self._firsts[: self._gone], self._batches[: self._gone], self._sizes[: self._gone]
            self._gone = 0

    def behind(self, after: int, limit: int) -> list[LogEntry]:
        """Entries behind a position that is not before `start`, hidden ones left out."""
        found: list[LogEntry] = []
        for position, change in self._from(after + 1):
            if change.event is not None:
                if len(found) == limit:
                    break
                found.append(LogEntry(str(position), change.event, change.row))
        return found

    def at(self, position: int) -> LogEntry | None:
        """One entry; None when it is not here, or hidden."""
        found, change = next(self._from(position), (0, None))
        if found != position or change is None or change.event is None:
            return None
        return LogEntry(str(position), change.event, change.row)

    def _from(self, position: int) -> Iterator[tuple[int, Change]]:
        begin = max(self._gone, bisect_right(self._firsts, position) - 1)
        for number in range(begin, len(self._batches)):
            first, changes = self._firsts[number], self._batches[number]
            for place in range(max(0, position - first), len(changes)):
                yield first + place, changes[place]
