"""What this daemon knows of records without asking: the state an item was last seen in, and what changed lately.

Owns two bounded memories. Must not know calls.

`Known` says which state of an item a write is built on: `wid` names that state, so that the write is made on that very
state or not at all, and what follows from it (hints to take away, the trail to go on with) is exact. It need not be
the newest: a write on an outdated one fails, and is told the newest. So the row is kept as well, as a guess: whoever
writes a record again need not read it first. Nobody is ever told of it.
`Recent` are the index keys of what was committed in the last seconds. An index may not show it yet; a walk looks here
as well.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from ..port import Key, Query, Row, Stamp
from .fetching import Found
from .items import binary, text
from .layout import REVISION, TRAIL, WID, Trait, traits_of
from .slots import Trail, read_trail

MOST_KNOWN = 20_000
"""Items remembered: some ten megabytes at most, without their rows."""

MOST_ROWS_BYTES = 16 * 1024 * 1024
"""Of the rows remembered with them, all in all."""

MOST_ROW_BYTES = 16 * 1024
"""Of one of them: a larger one is read again, lest a few take the place of many."""

MOST_RECENT = 10_000
"""Changes remembered of one kind."""


class Known(NamedTuple):
    """A state of an item."""

    wid: str
    """"" for an item of Joblet's own."""
    stamp: Stamp
    traits: frozenset[Trait]
    trail: Trail
    created: int
    row: Row | None
    """What is stored in that state, where it is kept."""

    @classmethod
    def of(cls, found: Found) -> Known:
        row, item = found
        wid = text(item, WID) if REVISION in item else ""
        trail = read_trail(binary(item[TRAIL])) if TRAIL in item else ()
        return cls.made(row, wid, trail)

    @classmethod
    def made(cls, row: Row, wid: str, trail: Trail) -> Known:
        # Joblet changes its items without a new `wid`: a row of such a state may be any age, and nothing would tell.
        kept = row if wid and len(row.body) + len(row.marks) <= MOST_ROW_BYTES else None
        return cls(wid, row.stamp, traits_of(row), trail, row.keys.created, kept)

    @property
    def bytes(self) -> int:
        """Of its row."""
        return 0 if self.row is None else len(self.row.body) + len(self.row.marks)


class _Kept(NamedTuple):
    known: Known
    at: int


class Memory:
    """The states items were last seen in, those that were used longest ago forgotten first.

    A read and a commit of our own may cross: what was read before the commit is not newer than it, although it comes
    later. So whoever reads takes the time before, which counts our commits.
    """

    def __init__(self) -> None:
        self.time = 0
        self.bytes = 0
        """Of all rows that are kept."""
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()

    def get(self, key: Key) -> Known | None:
        kept = self._kept.get(key)
        return None if kept is None else kept.known

    def made(self, key: Key, known: Known) -> None:
        """A commit of ours led to this state."""
        self.time += 1
        self._keep(key, _Kept(known, self.time))

    def saw(self, key: Key, known: Known | None, time: int) -> None:
        """A read that began at that time showed this state; None: nothing is there."""
        kept = self._kept.get(key)
        if kept is not None and kept.at > time:
            return
        if known is None:
            self.forget(key)
        else:
            self._keep(key, _Kept(known, time))

    def overtaken(self, row: Row) -> None:
        """The log tells of a row another daemon committed: to build on an older one would be in vain."""
        known = self.get(row.key)
        if known is not None and (known.stamp[0] != row.uid or known.stamp[1] < row.revision):
            self.forget(row.key)

    def forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= kept.known.bytes

    def _keep(self, key: Key, kept: _Kept) -> None:
        self.forget(key)
        self._kept[key] = kept
        self.bytes += kept.known.bytes
        while len(self._kept) > MOST_KNOWN or self.bytes > MOST_ROWS_BYTES:
            self.forget(next(iter(self._kept)))

    def __len__(self) -> int:
        return len(self._kept)


class _Changed(NamedTuple):
    row: Row
    until: float


class _OfKind:
    """What changed of one kind, and those that a queue or a status leads to."""

    def __init__(self) -> None:
        self.rows: OrderedDict[str, _Changed] = OrderedDict()
        self.ready: dict[str, Row] = {}
        self.by_status: dict[str, dict[str, Row]] = {}

    def put(self, row: Row, until: float) -> None:
        self.drop(row.id)
        self.rows[row.id] = _Changed(row, until)
        if row.keys.ready is not None:
            self.ready[row.id] = row
        self.by_status.setdefault(row.keys.status or "", {})[row.id] = row
        if len(self.rows) > MOST_RECENT:
            self.drop(next(iter(self.rows)))

    def drop(self, name: str) -> None:
        changed = self.rows.pop(name, None)
        if changed is not None:
            self.ready.pop(name, None)
            del self.by_status[changed.row.keys.status or ""][name]

    def drop_old(self) -> None:
        now = time.monotonic()
        while self.rows and next(iter(self.rows.values())).until <= now:
            self.drop(next(iter(self.rows)))


class Recent:
    """Rows committed lately, by this daemon or, as far as it follows the log, by others. Bodies are left out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._of_kind: dict[str, _OfKind] = {}

    def committed(self, row: Row) -> None:
        """This daemon committed a row; one that is removed, too: an index may still show it."""
        slim = Row(row.kind, row.id, row.uid, row.revision, row.keys, b"", b"", row.deleted)
        self._of_kind.setdefault(row.kind, _OfKind()).put(slim, time.monotonic() + self._seconds)

    def told(self, row: Row) -> None:
        """The log tells of a row another daemon committed. What is known already may be newer, by a hidden write."""
        kind = self._of_kind.get(row.kind)
        before = None if kind is None else kind.rows.get(row.id)
        if before is None or before.row.uid != row.uid or before.row.revision < row.revision:
            self.committed(row)

    def of_kind(self, kind: str) -> list[Row]:
        """What changed of a kind."""
        changed = self._of_kind.get(kind)
        if changed is None:
            return []
        changed.drop_old()
        return [each.row for each in changed.rows.values()]

    def for_query(self, query: Query) -> list[Row]:
        """What a query may have to do with."""
        changed = self._of_kind.get(query.kind)
        if changed is None:
            return []
        changed.drop_old()
        if query.sort == "ready":
            return list(changed.ready.values())
        if query.term is not None and query.term[0] == "status":
            return [row for value in set(query.term[1:]) for row in changed.by_status.get(value, {}).values()]
        return [each.row for each in changed.rows.values()]

    def clear(self) -> None:
        self._of_kind.clear()
