"""What was read since the epoch changed: only on that may be decided what is committed then.

Owns which stamps were seen. Must not know how rows are read or committed.
Under a new epoch a record may carry the stamp it had under the old one, and be another: what was lost may have been
made again in another way. Whatever was decided on rows of the old epoch and is handed over after the change is
therefore decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ..port import Key, Row, Stamp
from .commits import Part

WATCH_SECONDS = 60.0
"""How long after a change there may be decisions made before it. Between reading and handing over lie some commits."""

MOST_STAMPS = 50_000
"""Beyond it the oldest are forgotten: what was decided on those is decided once more."""


class Seen:
    """Watches for a while after each change of the epoch."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._stamps: dict[tuple[Key, Stamp], None] = {}

    def began_anew(self) -> None:
        self._until = asyncio.get_running_loop().time() + WATCH_SECONDS
        self._stamps.clear()

    def note(self, rows: Iterable[Row | None]) -> None:
        """These rows hold under the epoch that is known now."""
        if not self._watching():
            return
        for row in rows:
            if row is not None:
                self._stamps[row.key, row.stamp] = None
        while len(self._stamps) > MOST_STAMPS:
            del self._stamps[next(iter(self._stamps))]

    def unfounded(self, parts: Sequence[Part]) -> list[Part]:
        """Units that expect what nobody has seen since the change, and what no unit before them makes."""
        if not self._watching():
            return []
        found: list[Part] = []
        made: set[tuple[Key, Stamp]] = set()
        for part in parts:
            expected = [(write.row.key, write.expects) for write in part.unit if write.expects is not None]
            if all(each in self._stamps or each in made for each in expected):
                made.update((write.row.key, write.row.stamp) for write in part.unit)
            else:
                found.append(part)
        return found

    def _watching(self) -> bool:
        if self._until is not None and asyncio.get_running_loop().time() > self._until:
            self._until = None
            self._stamps.clear()
        return self._until is not None
