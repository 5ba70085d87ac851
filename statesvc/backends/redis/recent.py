"""What this daemon has put into the log lately, so that it need not be read back from the server.

Owns a bounded run of entries without gaps. Must not know how entries are stored or who reads them. Others write to the
log as well: where their entries come between, the run begins anew behind them, and what lies before it is read from the
server like everything else.
"""

from __future__ import annotations

from collections import deque

from ..port import LogEntry
from .commits import Told

MOST_BYTES = 8 * 1024 * 1024
"""Records held, about."""

OVERHEAD_BYTES = 600
"""What an entry takes beside its record."""


class Recent:
    """Entries with numbers in a row, the newest ones that were made here."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[Told, int]] = deque()
        """Each with what it takes in bytes."""
        self._bytes = 0
        self._end = 0

    def clear(self) -> None:
        self._pieces.clear()
        self._bytes = 0

    def add(self, told: Told) -> None:
        if self._pieces and told.first != self._end + 1:
            self.clear()
        size = sum(
            OVERHEAD_BYTES + len(row.body) + len(row.marks) + len(event.data or b"") for event, row in told.entries
        )
        self._pieces.append((told, size))
        self._bytes += size
        self._end = told.first + len(told.entries) - 1
        while self._bytes > MOST_BYTES:
            self._bytes -= self._pieces.popleft()[1]

    def behind(self, position: int, limit: int) -> list[LogEntry]:
        """Entries that follow right behind this number; none when the first of them is not held."""
        found: list[LogEntry] = []
        if not self._pieces or not self._pieces[0][0].first <= position + 1 <= self._end:
            return found
        for told, _ in self._pieces:
            skipped = max(0, position + 1 - told.first)
            for number, (event, row) in enumerate(told.entries[skipped:], told.first + skipped):
                if len(found) == limit:
                    return found
                found.append(LogEntry(str(number), event, row))
        return found
