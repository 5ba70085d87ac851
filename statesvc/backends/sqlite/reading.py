"""Reading the log while it grows: its newest entries from memory, older ones from log.db.

Owns where an entry is found, and who waits for the next. Must not know how entries come to be there. What is read from
the file is checked against the chain of digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from statesvc_client.errors import Internal

from ..numbered import Growth, beyond_the_end, no_longer_kept, position_of
from ..port import Cursor, Key, LogEntry
from .files import open_reader
from .log import Change, chained
from .recent import RecentLog
from .workers import ReaderPool

PAGE_BYTES = 8 * 1024 * 1024
"""A page from the file ends when its rows are this large: a thousand large records must not be in memory at once."""

_split = msgspec.msgpack.Decoder(list[msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(Change)


class _Batch(NamedTuple):
    """A batch, its entries still encoded; none when all of them are hidden."""

    first: int
    entries: Sequence[msgspec.Raw]

    def visible(self, position: int) -> LogEntry | None:
        change = _decoder.decode(self.entries[position - self.first])
        return None if change.event is None else LogEntry(str(position), change.event, change.row)


class LogReader:
    """Reads log.db; one for each thread that does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_reader(path)

    def close(self) -> None:
        self._db.close()

    def behind(self, cursor: Cursor, upto: int, limit: int) -> list[LogEntry]:
        """Entries behind a cursor and not behind a position, oldest first."""
        # What is cut meanwhile is cut for the next one who reads.
        with _one_moment(self._db):
            after, kept = position_of(cursor), self._kept_from()
            if after is not None and after < kept:
                raise no_longer_kept(cursor)
            return _page(self._entries(max(after or 0, kept), upto), limit)

    def at(self, key: Key, positions: Sequence[int]) -> tuple[list[LogEntry], bool]:
        """The entries of a record at these positions, in ascending order, and whether that is all: a page has its
        bound. What was cut is left out."""
        with _one_moment(self._db):
            entries = self._picked(key, positions)
            found = _page(entries, len(positions))
            return found, next(entries, None) is None

    def _kept_from(self) -> int:
        """The newest entry that was cut and not hidden."""
        return int(self._db.execute("SELECT value FROM fact WHERE name = 'start_visible'").get or 0)

    def _entries(self, after: int, upto: int) -> Iterator[LogEntry]:
        for batch in self._batches(after + 1, upto):
            for position in range(max(batch.first, after + 1), batch.first + len(batch.entries)):
                if (entry := batch.visible(position)) is not None:
                    yield entry

    def _picked(self, key: Key, positions: Sequence[int]) -> Iterator[LogEntry]:
        batch = _Batch(0, ())
        for position in positions:
            if not batch.first <= position < batch.first + len(batch.entries):
                batch = next(self._batches(position, position), _Batch(0, ()))
            entry = None
            if batch.first <= position < batch.first + len(batch.entries):
                entry = batch.visible(position)
            if entry is not None and entry.row.key == key:
                yield entry
            elif position > self._cut_upto():
                # Every page may match its checksum, and lie in the place of another.
                raise apsw.CorruptError(f"entry {position} is not what the history in state.db says it is")

    def _cut_upto(self) -> int:
        return int(self._db.execute("SELECT value FROM fact WHERE name = 'start'").get or 0)

    def _batches(self, position: int, upto: int) -> Iterator[_Batch]:
        """Batches from the one that holds a position on, each one checked against the digest before it."""
        begin = self._db.execute("SELECT max(first) FROM batch WHERE first <= ?", (position,)).get or 0
        before = self._digest_before(begin)
        for first, entries, digest, payload in self._db.execute(
            "SELECT first, entries, digest, CASE WHEN visible >= first THEN payload END FROM batch "
            "WHERE first BETWEEN ? AND ? ORDER BY first",
            (begin, upto),
        ):
            if payload is not None:
                yield _Batch(first, self._split(first, entries, payload, digest == chained(before, first, payload)))
            before = digest

    def _digest_before(self, first: int) -> Any:
        before = self._db.execute("SELECT digest FROM batch WHERE first < ? ORDER BY first DESC LIMIT 1", (first,)).get
        return before or self._db.execute("SELECT value FROM fact WHERE name = 'start_digest'").get

    def _split(self, first: int, entries: int, payload: bytes, is_true: bool) -> list[msgspec.Raw]:
        if is_true:
            split = _split.decode(payload)
            if len(split) == entries:
                return split
        raise Internal(
            f"{self._path.name}: the batch at entry {first} does not match its checksum; run a check of the store"
        )


@contextmanager
def _one_moment(db: apsw.Connection) -> Iterator[None]:
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _page(entries: Iterator[LogEntry], limit: int) -> list[LogEntry]:
    found: list[LogEntry] = []
    size = 0
    for entry in entries:
        found.append(entry)
        size += len(entry.row.body) + len(entry.row.marks)
        if len(found) >= limit or size >= PAGE_BYTES:
            break
    return found


class ReadableLog:
    """The log as its readers see it."""

    def __init__(self, path: Path, end: int, visible: int) -> None:
        self._end = end
        self._visible = visible
        """The newest entry that is not hidden."""
        self._recent = RecentLog(end)
        self._growth = Growth()
        self._readers = ReaderPool(path, LogReader)

    @property
    def position(self) -> Cursor:
        return str(self._visible)

    def take(self, first: int, changes: Sequence[Change], size: int, visible: int) -> None:
        """A batch was committed."""
        self._recent.add(first, changes, size)
        self._end = first + len(changes) - 1
        if visible > self._visible:
            self._visible = visible
            self._growth.tell()

    def cut(self, upto: int) -> None:
        """Entries up to this position are no longer kept."""
        self._recent.cut(upto)

    async def read(self, after: Cursor, limit: int) -> list[LogEntry]:
        position = position_of(after)
        if position is not None and position > self._end:
            raise beyond_the_end(after)
        if position is not None and position >= min(self._visible, self._recent.start):
            return self._recent.behind(position, limit) if position < self._visible else []
        upto = self._end
        return await self._readers.run(lambda reader: reader.behind(after, upto, limit))

    async def grew(self, after: Cursor, seconds: float) -> None:
        position, known = position_of(after), self._visible
        if position is None and not await self.read(after, 1):
            position = known
        if position is not None and self._visible <= position <= self._end:
            await self._growth.wait(seconds)

    async def at(self, key: Key, positions: Sequence[int]) -> list[LogEntry]:
        """The entries of a record at these positions, in ascending order; what was cut is left out."""
        newer = {
            position: entry
            for position, entry in zip(positions, map(self._recent.at, positions), strict=True)
            if entry is not None and entry.row.key == key
        }
        older = [position for position in positions if position not in newer]
        if not older:
            return [*newer.values()]
        found, is_all = await self._readers.run(lambda reader: reader.at(key, older))
        return [*found, *newer.values()] if is_all else found

    def let_go(self) -> None:
        """Wake those who wait: there will be nothing more."""
        self._growth.tell()

    async def close(self) -> None:
        self.let_go()
        await self._readers.close()
