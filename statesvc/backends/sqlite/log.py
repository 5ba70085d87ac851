"""log.db: every committed change, appended, checksummed and chained.

Owns the log file and its chain of digests. Must not know the state the entries lead to. All calls block: they belong
into the commit thread, or into `open`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import Struct

from ... import failpoints, logs
from .. import epoch_names
from ..port import DataCorrupt, Event, Row
from . import boots, watermark
from .files import DatabaseFile, Format, transaction
from .paths import MARK_NAME, UNSYNCED_NAME
from .wal import Salts, Tail, frames
from .watermark import LogMark

log = logs.get(__name__)

FORMAT = Format("log", newest=1)

PAGE_BYTES = 4000
PAGES_BESIDE = 16
"""Of a payload a page holds so much at least, and so many pages change at most beside those: the way down the tables,
the map of pages, the header."""


class Change(Struct, array_like=True, frozen=True, gc=False):
    """One entry, as it is stored. Without an event it is hidden: only the state takes it in."""

    event: Event | None
    row: Row


class End(NamedTuple):
    """The last entry of a batch: how far the log goes, and the digest of everything up to there."""

    position: int
    digest: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Change])


def chained(before: bytes, first: int, payload: bytes) -> bytes:
    link = hashlib.blake2b(before, digest_size=16)
    link.update(first.to_bytes(8, "big"))
    link.update(payload)
    return link.digest()


def _first_facts() -> dict[str, Any]:
    """What a new log knows. Whoever cuts it moves all that begins with `start`, to what the last batch cut said."""
    epoch = epoch_names.first()
    digest = hashlib.blake2b(epoch.encode(), digest_size=16).digest()
    return {"epoch": epoch, "start": 0, "start_digest": digest, "start_total": 0, "start_visible": 0}


class LogFile(DatabaseFile):
    """The log, open for appending."""

    checkpoint_part = 3
    """Commits wait for checkpoints, and the log hardly ever writes a page twice: rather short than few."""
    epoch: str
    start: End
    """Where the kept part begins."""
    end: End
    visible: int
    """The newest entry that is not hidden, those cut off included."""
    newest: int
    """Time of the newest event."""
    total: int
    """Bytes of payload since the log began, those cut off included."""

    def __init__(self, path: Path, synchronous: str, *, new: bool) -> None:
        self._new = new
        self.synced = synchronous == "FULL"
        self._note_path = path.with_name(UNSYNCED_NAME)
        self.may_have_lost = boots.may_have_lost(self._note_path)
        """The power was lost while it was written without syncing, or it is damaged and taken all the same."""
        mark_path = path.with_name(MARK_NAME)
        self._mark = watermark.read(mark_path, LogMark)
        super().__init__(path, mark_path, FORMAT, synchronous, self._judge_tail, new=new)

    def _load(self) -> None:
        self._read_ends()
        if self._mark is not None:
            self._check_against(self._mark)
        if self.synced and frames(self._db):
            # What a killed process wrote may not be on the disk. Before it is, nobody hears of it.
            self.secure()

    def _read_ends(self) -> None:
        self.epoch, self.start = self._origin()
        self.end, self.newest, self.total, self.visible = self._last()

    def _check_against(self, mark: LogMark) -> None:
        """What the watermark names must still be there."""
        if mark.epoch != self.epoch:
            raise DataCorrupt(f"{self._path} and the watermark beside it belong to different stores")
        if mark.position > self.end.position:
            raise DataCorrupt(
                f"{self._path} ends at entry {self.end.position}, but entry {mark.position} was safely in it: "
                "its tail is lost; bring back a copy"
            )
        known = self.digest_at(mark.position)
        if mark.position >= self.start.position and (known is None or known.hex() != mark.digest):
            raise DataCorrupt(f"{self._path}: entry {mark.position} is not the one the watermark names")

    def digest_at(self, position: int) -> bytes | None:
        """The digest of the chain at the end of a batch; None when no batch ends there."""
        return digest_at(self._db, position, self.start)

    def note_level(self) -> None:
        """Note whether a power loss may take what is told from now on. That one did, if so, is told by now."""
        if self.synced:
            boots.forget(self._note_path)
        else:
            boots.note(self._note_path)

    def note_loss(self) -> None:
        """Note that acknowledged entries are gone, before this start writes over what tells of it."""
        boots.note_loss(self._note_path)
        self.may_have_lost = True

    def close(self) -> None:
        super().close()
        boots.forget(self._note_path)

    def _mark_of(self, salts: Salts | None, frames: int) -> LogMark:
        return LogMark(self.epoch, self.end.position, salts, frames, digest=self.end.digest.hex())

    def _judge_tail(self, tail: Tail) -> None:
        """A crash tears the last commit at most; without syncing, a power loss may tear any."""
        if self._mark is not None and self._mark.is_cut_short(tail):
            # Some of it has been moved into the file: what SQLite would show is a mixture.
            raise DataCorrupt(
                f"{self._path}-wal is damaged: {tail.taken} pages of it can be read, but {self._mark.frames} were "
                "safely in it; bring back a copy of all files, or restore a snapshot into an empty folder"
            )
        if tail.commits > 1 and self.synced and not self.may_have_lost:
            raise DataCorrupt(
                f"{self._path}-wal is damaged in the middle: {tail.commits} commits ({tail.bytes} bytes) behind the "
                "damage were safely in it; bring back a copy, or go on without them by starting once with "
                "durability os"
            )
        if tail.commits > 1 and not self.may_have_lost:
            self.note_loss()
        if tail.bytes:
            log.warning("torn_tail", file=self._path.name, bytes=tail.bytes, commits=tail.commits)

    def _origin(self) -> tuple[str, End]:
        """The epoch, and where the kept part of the log begins; made up for a new store."""
        facts = dict(self._db.execute("SELECT name, value FROM fact"))
        if not facts and self._new:
            facts = _first_facts()
            with transaction(self._db):
                self._db.executemany("INSERT INTO fact VALUES (?, ?)", facts.items())
            # On the disk before anything is built on it, whatever the level: an epoch must not be forgotten.
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        try:
            return facts["epoch"], End(facts["start"], facts["start_digest"])
        except KeyError as missing:
            raise DataCorrupt(f"{self._path} lacks the fact {missing}; bring back a copy") from None

    def begin_new_epoch(self, epoch: str, after: End | None = None) -> None:
        """Say that acknowledged entries may be gone. With `after`, no entry is kept and the log goes on behind it."""
        facts: dict[str, Any] = {"epoch": epoch}
        with transaction(self._db):
            if after is not None:
                self._db.execute("DELETE FROM batch")
                facts |= {"start": after.position, "start_digest": after.digest}
                facts |= {"start_total": self.total, "start_visible": after.position}
            self._db.executemany("UPDATE fact SET value = ? WHERE name = ?", [(v, k) for k, v in facts.items()])
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._read_ends()

    def _last(self) -> tuple[End, int, int, int]:
        sql = "SELECT first, entries, digest, at, total, visible FROM batch ORDER BY first DESC LIMIT 1"
        row = self._db.execute(sql).get
        if row is None:
            facts = dict(self._db.execute("SELECT name, value FROM fact"))
            return self.start, 0, facts.get("start_total", 0), facts.get("start_visible", 0)
        first, entries, digest, newest, total, visible = row
        return End(first + entries - 1, digest), newest, total, visible

    def append(self, changes: Sequence[Change]) -> End:
        """Commit one batch. When this returns the batch is as safe as `synchronous` makes it."""
        first = self.end.position + 1
        payload = _encoder.encode(changes)
        digest = chained(self.end.digest, first, payload)
        newest = max([change.event.at for change in changes if change.event is not None], default=self.newest)
        total = self.total + len(payload)
        visible = newest_visible(first, changes) or self.visible
        row = (first, len(changes), visible, newest, newest < self.newest, total, digest, payload)
        # A transaction of its own, in a single step: a busy loop is asked for the interpreter once, not three times.
        if failpoints.armed:
            failpoints.reach("commit.before")
        self._db.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        if failpoints.armed:
            failpoints.reach("commit.after")
        self.end, self.newest, self.total, self.visible = End(first + len(changes) - 1, digest), newest, total, visible
        self._checkpoints.after_commit(len(payload) // PAGE_BYTES + PAGES_BESIDE)
        return self.end

    def batches(self, after: End) -> Iterator[tuple[End, list[Change]]]:
        """The batches behind `after`, each checked against the chain."""
        yield from read_batches(self._db, self._path, after, self.start)


def newest_visible(first: int, changes: Sequence[Change]) -> int | None:
    """The position of the newest entry in a batch that is not hidden; None when all are."""
    for back in range(len(changes) - 1, -1, -1):
        if changes[back].event is not None:
            return first + back
    return None


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
        if chained(end.digest, first, payload) != digest:
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
