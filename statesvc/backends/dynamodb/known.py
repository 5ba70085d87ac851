"""What this daemon knows of records without asking: the state an item was last seen in, and what changed lately.

Owns two bounded memories. Must not know calls.

`Known` says which state of an item a write is built on: `wid` names that state, so that the write is made on that very
state or not at all, and what follows from it (hints to take away, the trail to go on with) is exact. It need not be
the newest: a write on an outdated one fails, and is told the newest.
`Recent` are the index keys of what was committed in the last seconds. An index may not show it yet; a walk looks here
as well.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from ..port import Key, Row, Stamp
from .fetching import Found
from .items import binary, text
from .layout import REVISION, TRAIL, WID, Trait, traits_of
from .slots import Trail, read_trail

MOST_KNOWN = 20_000
"""Items remembered: some ten megabytes at most."""

MOST_RECENT = 20_000
"""Changes remembered of one kind."""


class Known(NamedTuple):
    """A state of an item."""

    wid: str
    """"" for an item of Joblet's own."""
    stamp: Stamp
    traits: frozenset[Trait]
    trail: Trail
    created: int

    @classmethod
    def of(cls, found: Found) -> Known:
        row, item = found
        wid = text(item, WID) if REVISION in item else ""
        trail = read_trail(binary(item[TRAIL])) if TRAIL in item else ()
        return cls(wid, row.stamp, traits_of(row), trail, row.keys.created)

    @classmethod
    def made(cls, row: Row, wid: str, trail: Trail) -> Known:
        return cls(wid, row.stamp, traits_of(row), trail, row.keys.created)


class Memory:
    """The states items were last seen in, those that were used longest ago forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Known] = OrderedDict()

    def get(self, key: Key) -> Known | None:
        return self._known.get(key)

    def keep(self, key: Key, known: Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    def clear(self) -> None:
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)


class _Changed(NamedTuple):
    row: Row
    until: float


class Recent:
    """Rows committed lately, by this daemon or, as far as it follows the log, by others. Bodies are left out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._of_kind: dict[str, OrderedDict[str, _Changed]] = {}

    def committed(self, row: Row) -> None:
        """This daemon committed a row; one that is removed, too: an index may still show it."""
        slim = Row(row.kind, row.id, row.uid, row.revision, row.keys, b"", b"", row.deleted)
        rows = self._of_kind.setdefault(row.kind, OrderedDict())
        rows[row.id] = _Changed(slim, time.monotonic() + self._seconds)
        rows.move_to_end(row.id)
        if len(rows) > MOST_RECENT:
            rows.popitem(last=False)

    def told(self, row: Row) -> None:
        """The log tells of a row another daemon committed. What is known already may be newer, by a hidden write."""
        rows = self._of_kind.get(row.kind)
        before = None if rows is None else rows.get(row.id)
        if before is None or before.row.uid != row.uid or before.row.revision < row.revision:
            self.committed(row)

    def of_kind(self, kind: str) -> list[Row]:
        """What changed of a kind."""
        rows = self._of_kind.get(kind)
        if not rows:
            return []
        now = time.monotonic()
        while rows and next(iter(rows.values())).until <= now:
            rows.popitem(last=False)
        return [changed.row for changed in rows.values()]

    def clear(self) -> None:
        self._of_kind.clear()
