"""log.db: every committed change, appended, checksummed and chained.

Owns the log file and its chain of digests. Must not know the state the entries lead to. All calls block: they belong
into the commit thread, or into `open`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import Struct

from ... import logs
from ..port import DataCorrupt, Event, LogEntry, Row
from .files import DatabaseFile, Format, open_reader
from .wal import Tail

log = logs.get(__name__)

FORMAT = Format("log", newest=1)


class Change(Struct, array_like=True, frozen=True, gc=False):
    """One entry, as it is stored."""

    event: Event
    row: Row


class End(NamedTuple):
    """The last entry of a batch: how far the log goes, and the digest of everything up to there."""

    position: int
    digest: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Change])


def _chained(before: bytes, first: int, payload: bytes) -> bytes:
    link = hashlib.blake2b(before, digest_size=16)
    link.update(first.to_bytes(8, "big"))
    link.update(payload)
    return link.digest()


def _first_facts() -> dict[str, Any]:
    epoch = os.urandom(8).hex()
    return {"epoch": epoch, "start": 0, "start_digest": hashlib.blake2b(epoch.encode(), digest_size=16).digest()}


class LogFile(DatabaseFile):
    """The log, open for appending."""

    epoch: str
    start: End
    """Where the kept part begins."""
    end: End

    def __init__(self, path: Path, synchronous: str, *, new: bool) -> None:
        self._new = new
        self.synced = synchronous == "FULL"
        self.torn = False
        """The file ended in something that could not be read."""
        super().__init__(path, FORMAT, synchronous, self._judge_tail)

    def _load(self) -> None:
        self.epoch, self.start = self._origin()
        self.end = self._last()

    def _judge_tail(self, tail: Tail) -> None:
        """A crash tears the last commit at most; without syncing, a power loss may tear any."""
        if tail.commits > 1 and self.synced:
            raise DataCorrupt(
                f"{self._path}-wal is damaged in the middle: {tail.commits} commits ({tail.bytes} bytes) behind the "
                "damage were safely in it; bring back a copy, or go on without them by starting once with "
                "durability os"
            )
        self.torn = tail.bytes > 0
        if tail.bytes:
            log.warning("torn_tail", file=self._path.name, bytes=tail.bytes, commits=tail.commits)

    def _origin(self) -> tuple[str, End]:
        """The epoch, and where the kept part of the log begins; made up for a new store."""
        facts = dict(self._db.execute("SELECT name, value FROM fact"))
        if not facts and self._new:
            facts = _first_facts()
            with self._db:
                self._db.executemany("INSERT INTO fact VALUES (?, ?)", facts.items())
            # On the disk before anything is built on it, whatever the level: an epoch must not be forgotten.
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        try:
            return facts["epoch"], End(facts["start"], facts["start_digest"])
        except KeyError as missing:
            raise DataCorrupt(f"{self._path} lacks the fact {missing}; bring back a copy") from None

    def begin_new_epoch(self) -> None:
        """Say that acknowledged entries may be gone."""
        self.epoch = os.urandom(8).hex()
        with self._db:
            self._db.execute("UPDATE fact SET value = ? WHERE name = 'epoch'", (self.epoch,))
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _last(self) -> End:
        row = self._db.execute("SELECT first, entries, digest FROM batch ORDER BY first DESC LIMIT 1").get
        return self.start if row is None else End(row[0] + row[1] - 1, row[2])

    def append(self, changes: Sequence[Change]) -> End:
        """Commit one batch. When this returns the batch is as safe as `synchronous` makes it."""
        first = self.end.position + 1
        payload = _encoder.encode(changes)
        digest = _chained(self.end.digest, first, payload)
        with self._db:
            self._db.execute("INSERT INTO batch VALUES (?, ?, ?, ?)", (first, len(changes), payload, digest))
        self.end = End(first + len(changes) - 1, digest)
        self._checkpoints.after_commit()
        return self.end

    def batches(self, after: End) -> Iterator[tuple[End, list[Change]]]:
        """The batches behind `after`, each checked against the chain."""
        yield from read_batches(self._db, self._path, after, self.start)


def read_batches(db: apsw.Connection, path: Path, after: End, start: End) -> Iterator[tuple[End, list[Change]]]:
    end = after
    if after.position < start.position:
        raise DataCorrupt(
            f"{path} is kept from entry {start.position + 1} on, but entry {after.position + 1} is needed: "
            "restore state.db from a snapshot or a copy"
        )
    for first, entries, payload, digest in db.execute(
        "SELECT first, entries, payload, digest FROM batch WHERE first > ? ORDER BY first", (after.position,)
    ):
        if first != end.position + 1:
            raise DataCorrupt(f"{path}: entries {end.position + 1} to {first - 1} are missing")
        if _chained(end.digest, first, payload) != digest:
            raise DataCorrupt(f"{path}: the batch at entry {first} does not match its checksum")
        changes = _decoder.decode(payload)
        if len(changes) != entries:
            raise DataCorrupt(f"{path}: the batch at entry {first} holds {len(changes)} entries, not {entries}")
        end = End(first + entries - 1, digest)
        yield end, changes


def digest_at(db: apsw.Connection, position: int, start: End) -> bytes | None:
    """The digest of the chain at the end of a batch; None when no batch ends there."""
    if position == start.position:
        return start.digest
    row = db.execute(
        "SELECT first, entries, digest FROM batch WHERE first <= ? ORDER BY first DESC LIMIT 1", (position,)
    ).get
    return row[2] if row is not None and row[0] + row[1] - 1 == position else None


def read_entries(path: Path, after: int, limit: int) -> list[LogEntry]:
    """Entries behind a position, oldest first."""
    db = open_reader(path)
    try:
        return _entries(db, after, limit)
    finally:
        db.close()


def _entries(db: apsw.Connection, after: int, limit: int) -> list[LogEntry]:
    found: list[LogEntry] = []
    # The batch that holds the entry behind `after` may begin at or before it.
    begin = db.execute("SELECT max(first) FROM batch WHERE first <= ?", (after + 1,)).get
    for first, payload in db.execute("SELECT first, payload FROM batch WHERE first >= ? ORDER BY first", (begin or 0,)):
        for position, change in enumerate(_decoder.decode(payload), start=first):
            if position > after:
                found.append(LogEntry(position, change.event, change.row))
                if len(found) == limit:
                    return found
    return found
