"""state.db: the newest state of every record, its indexes, and how far the log is applied to it.

Owns the state file. Must not know commits: rows come here once the log has them. All calls block: writing belongs into
the apply thread, reading into reader threads, single rows excepted.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from statesvc_client.errors import Internal

from ... import failpoints, logs
from ..port import DataCorrupt, Key, Query, Row
from . import watermark
from .cache import Waiting
from .files import DatabaseFile, Format, open_reader, transaction
from .log import End
from .storing import store
from .wal import Salts, Tail
from .walks import statement
from .watermark import Mark

log = logs.get(__name__)

FORMAT = Format("state", newest=1)

CACHE_KIB = 8 * 1024
"""Pages the apply thread keeps: all that some thousands of new records touch, wherever in the indexes they belong."""

MARK_SUFFIX = ".watermark"
"""What is known to be safe stands in a file of the state's name with this suffix."""

_ON_DEMAND = {
    "updated": "CREATE INDEX IF NOT EXISTS record_updated ON record (kind, updated, id) WHERE deleted IS NULL",
    "started": "CREATE INDEX IF NOT EXISTS record_started ON record (kind, started, id) WHERE deleted IS NULL",
    "completed": "CREATE INDEX IF NOT EXISTS record_completed ON record (kind, completed, id) WHERE deleted IS NULL",
    "scheduled": "CREATE INDEX IF NOT EXISTS record_scheduled ON record (kind, scheduled, id) WHERE deleted IS NULL",
    "priority": "CREATE INDEX IF NOT EXISTS record_priority ON record (kind, priority, id) WHERE deleted IS NULL",
    "status": "CREATE INDEX IF NOT EXISTS record_status_id ON record (kind, status, id) WHERE deleted IS NULL",
}
"""Sort orders that get their index the first time they are asked for."""

KINDS = """
WITH RECURSIVE found (kind) AS (
    SELECT min(kind) FROM record
    UNION ALL SELECT (SELECT min(kind) FROM record WHERE kind > found.kind) FROM found WHERE kind IS NOT NULL
)
SELECT kind FROM found WHERE kind IS NOT NULL
"""
"""From one kind to the next along the index: what it costs is the number of kinds, not of records."""

HISTORY = """
SELECT position FROM history
WHERE record = (SELECT rowid FROM record WHERE kind = ? AND id = ?) AND position > ?
ORDER BY position LIMIT ?
"""

KEYS_BEHIND = "SELECT kind, id FROM record WHERE (kind, id) > (?, ?) ORDER BY kind, id LIMIT ?"
"""All keys there are, tombstones included, a part at a time."""

decode_row = msgspec.msgpack.Decoder(Row).decode


class TornState(Exception):
    """Commits are missing in the middle of the state's WAL: pages of different times may have come together."""


class StateFile(DatabaseFile):
    """The state, open for applying the log to it."""

    applied: End
    """How far the log is applied."""
    secured: int
    """How much of that is known to be on the disk: the log may be cut up to here."""
    indexed: set[str]
    """Sort orders that have their index."""

    def __init__(self, path: Path, epoch: str, start: End, *, new: bool, take_torn: bool = False) -> None:
        """`take_torn`: go on without commits at the end of the WAL, if none of them has reached the file yet."""
        self._epoch = epoch
        self._start = start
        self._take_torn = take_torn
        mark_path = path.with_suffix(MARK_SUFFIX)
        self._mark = watermark.read(mark_path, Mark)
        if self._mark is not None and self._mark.epoch != epoch:
            self._mark = None
        super().__init__(path, mark_path, FORMAT, "NORMAL", self._judge_tail, new=new)

    def _judge_tail(self, tail: Tail) -> None:
        known = self._mark
        if (known is not None and known.is_cut_short(tail)) or (
            tail.commits and not (self._take_torn and known is not None)
        ):
            raise TornState(f"{tail.commits} commits ({tail.bytes} bytes) of its WAL cannot be read")
        if tail.commits:
            log.warning("torn_tail", file=self._path.name, bytes=tail.bytes, commits=tail.commits)

    def _load(self) -> None:
        # A transaction holds its pages in here; what does not fit is written to the WAL more than once.
        self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        # A statement of many rows notes how to undo itself: in memory, it is never more than the pages it changes.
        self._db.execute("PRAGMA temp_store = MEMORY")
        self.applied = self._facts(self._epoch, self._start)
        self.secured = 0 if self._mark is None else self._mark.position
        if self.applied.position < self.secured:
            raise TornState(f"it has applied entry {self.applied.position}, but {self.secured} was safely in it")
        self.indexed = self._indexed()

    def secure(self) -> None:
        super().secure()
        self.secured = self.applied.position

    def _mark_of(self, salts: Salts | None, frames: int) -> Mark:
        return Mark(self._epoch, self.applied.position, salts, frames)

    def _facts(self, epoch: str, start: End) -> End:
        """How far the log is applied. A new file begins where the log does, which must be its very beginning."""
        facts = dict(self._db.execute("SELECT name, value FROM fact"))
        if not facts:
            with transaction(self._db):
                self._db.execute("INSERT INTO fact VALUES ('epoch', ?)", (epoch,))
            return End(0, start.digest) if start.position == 0 else End(0, b"")
        if facts.get("epoch") != epoch and facts.get("next_epoch") != epoch:
            raise DataCorrupt(f"{self._path} belongs to another log.db: bring back the files that belong together")
        return End(facts.get("applied", 0), facts.get("applied_digest", start.digest))

    def expect_epoch(self, epoch: str) -> None:
        """Belong to a log of this epoch too, should it be found beside this file."""
        with transaction(self._db):
            self._db.executemany(
                "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [("epoch", self._epoch), ("next_epoch", epoch)],
            )
        self.settle()
        self._epoch = epoch

    def _indexed(self) -> set[str]:
        names = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        return {sort for sort, sql in _ON_DEMAND.items() if sql.split()[5] in names}

    def needs_index(self, query: Query) -> bool:
        return query.term is None and query.sort in _ON_DEMAND and query.sort not in self.indexed

    def make_index(self, sort: str) -> None:
        self._db.execute(_ON_DEMAND[sort])
        self.indexed.add(sort)

    def apply(self, waiting: Waiting, upto: End) -> None:
        """Take over what waits and the position it brings the state to, in one transaction."""
        if failpoints.armed:
            failpoints.reach("apply.before")
        with transaction(self._db):
            store(self._db, waiting)
            self._db.executemany(
                "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [("applied", upto.position), ("applied_digest", upto.digest)],
            )
            if failpoints.armed:
                failpoints.reach("apply.inside")
        self.applied = upto
        if failpoints.armed:
            failpoints.reach("apply.after")
        self._checkpoints.after_commit()


def decoded_row(path: Path, data: bytes, checksum: int) -> Row:
    if zlib.crc32(data) != checksum:
        raise Internal(f"a record in {path.name} does not match its checksum; run a check of the store")
    return decode_row(data)


class StateReader:
    """Reads rows; one for each thread that does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_reader(path)

    def row(self, key: Key) -> Row | None:
        found = self._db.execute("SELECT data, checksum FROM record WHERE kind = ? AND id = ?", key).get
        return None if found is None else self._row(*found)

    def query(self, query: Query) -> list[Row]:
        sql, values = statement(query)
        return [self._row(data, checksum) for data, checksum in self._db.execute(sql, values)]

    def count(self, query: Query) -> int:
        sql, values = statement(msgspec.structs.replace(query, limit=-1))
        return int(self._db.execute(f"SELECT count(*) FROM ({sql})", values).get)  # noqa: S608

    def keys_behind(self, place: Key, limit: int) -> list[Key]:
        return [(kind, name) for kind, name in self._db.execute(KEYS_BEHIND, (*place, limit))]

    def most_records(self) -> int:
        """A number that the records are not more than."""
        return int(self._db.execute("SELECT max(rowid) FROM record").get or 0)

    def kinds(self) -> list[str]:
        return [kind for (kind,) in self._db.execute(KINDS)]

    def history(self, key: Key, after: int, limit: int) -> list[int]:
        """Positions of a record's entries behind a position, oldest first."""
        return [position for (position,) in self._db.execute(HISTORY, (*key, after, limit))]

    def _row(self, data: bytes, checksum: int) -> Row:
        return decoded_row(self._path, data, checksum)

    def close(self) -> None:
        self._db.close()
