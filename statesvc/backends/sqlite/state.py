"""state.db: the newest state of every record, its indexes, and how far the log is applied to it.

Owns the state file. Must not know commits: rows come here once the log has them. All calls block: writing belongs into
the apply thread, reading into reader threads, single rows excepted.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from statesvc_client.errors import Internal

from ..port import DataCorrupt, Key, Query, Row
from .files import DatabaseFile, Format, open_reader
from .log import End
from .wal import Tail

FORMAT = Format("state", newest=1)

_ON_DEMAND = {
    "updated": "CREATE INDEX IF NOT EXISTS record_updated ON record (kind, updated, id) WHERE deleted IS NULL",
    "started": "CREATE INDEX IF NOT EXISTS record_started ON record (kind, started, id) WHERE deleted IS NULL",
    "completed": "CREATE INDEX IF NOT EXISTS record_completed ON record (kind, completed, id) WHERE deleted IS NULL",
    "scheduled": "CREATE INDEX IF NOT EXISTS record_scheduled ON record (kind, scheduled, id) WHERE deleted IS NULL",
    "priority": "CREATE INDEX IF NOT EXISTS record_priority ON record (kind, priority, id) WHERE deleted IS NULL",
    "status": "CREATE INDEX IF NOT EXISTS record_status_id ON record (kind, status, id) WHERE deleted IS NULL",
}
"""Sort orders that get their index the first time they are asked for."""

_UPSERT = """
INSERT INTO record (kind, id, status, node, owner, created, updated, started, completed, scheduled, priority,
                    deleted, data, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET
    status = excluded.status, node = excluded.node, owner = excluded.owner, created = excluded.created,
    updated = excluded.updated, started = excluded.started, completed = excluded.completed,
    scheduled = excluded.scheduled, priority = excluded.priority, deleted = excluded.deleted,
    data = excluded.data, checksum = excluded.checksum
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Row)


class TornState(Exception):
    """Commits are missing in the middle of the state's WAL: pages of different times may have come together."""


def _judge_tail(tail: Tail) -> None:
    if tail.commits:
        raise TornState(f"{tail.commits} commits ({tail.bytes} bytes) of its WAL cannot be read")


class StateFile(DatabaseFile):
    """The state, open for applying the log to it."""

    applied: End
    """How far the log is applied."""
    indexed: set[str]
    """Sort orders that have their index."""

    def __init__(self, path: Path, epoch: str, start: End) -> None:
        self._epoch = epoch
        self._start = start
        super().__init__(path, FORMAT, "NORMAL", _judge_tail)

    def _load(self) -> None:
        self.applied = self._facts(self._epoch, self._start)
        self.indexed = self._indexed()

    def _facts(self, epoch: str, start: End) -> End:
        """How far the log is applied. A new file begins where the log does, which must be its very beginning."""
        facts = dict(self._db.execute("SELECT name, value FROM fact"))
        if not facts:
            with self._db:
                self._db.execute("INSERT INTO fact VALUES ('epoch', ?)", (epoch,))
            return End(0, start.digest) if start.position == 0 else End(0, b"")
        if facts.get("epoch") != epoch:
            raise DataCorrupt(f"{self._path} belongs to another log.db: bring back the files that belong together")
        return End(facts.get("applied", 0), facts.get("applied_digest", start.digest))

    def _indexed(self) -> set[str]:
        names = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        return {sort for sort, sql in _ON_DEMAND.items() if sql.split()[5] in names}

    def needs_index(self, query: Query) -> bool:
        return query.term is None and query.sort in _ON_DEMAND and query.sort not in self.indexed

    def make_index(self, sort: str) -> None:
        self._db.execute(_ON_DEMAND[sort])
        self.indexed.add(sort)

    def apply(self, rows: Mapping[Key, Row], relabel: Collection[Key], upto: End) -> None:
        """Take over rows and the position they bring the state to, in one transaction."""
        with self._db:
            self._db.executemany(_UPSERT, _columns(rows.values()))
            self._relabel(rows, relabel)
            self._db.executemany(
                "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [("applied", upto.position), ("applied_digest", upto.digest)],
            )
        self.applied = upto
        self._checkpoints.after_commit()

    def _relabel(self, rows: Mapping[Key, Row], keys: Collection[Key]) -> None:
        self._db.executemany("DELETE FROM label WHERE kind = ? AND id = ?", keys)
        self._db.executemany(
            "INSERT INTO label (kind, name, value, created, id) VALUES (?, ?, ?, ?, ?)",
            (
                (row.kind, name, value, row.keys.created, row.id)
                for row in (rows[key] for key in keys)
                for name, value in row.keys.labels
            ),
        )


def _columns(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    encode, checksum = _encoder.encode, zlib.crc32
    for row in rows:
        keys = row.keys
        data = encode(row)
        yield (
            row.kind, row.id, keys.status, keys.node, keys.owner, keys.created, keys.updated, keys.started,
            keys.completed, keys.scheduled, keys.priority, row.deleted or None, data, checksum(data),
        )  # fmt: skip


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

    def _row(self, data: bytes, checksum: int) -> Row:
        if zlib.crc32(data) != checksum:
            raise Internal(f"a record in {self._path.name} does not match its checksum; run a check of the store")
        return _decoder.decode(data)

    def close(self) -> None:
        self._db.close()

    # --- checking --------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        for (text,) in self._db.execute("PRAGMA integrity_check"):
            if text != "ok":
                yield f"{self._path.name}: {text}"
        columns = "kind, id, status, node, owner, created, updated, started, completed, scheduled, priority, deleted"
        for *stored, data, checksum in self._db.execute(f"SELECT {columns}, data, checksum FROM record"):  # noqa: S608
            name = f"{self._path.name}: {stored[0]} {stored[1]}"
            if zlib.crc32(data) != checksum:
                yield f"{name} does not match its checksum"
                continue
            row = _decoder.decode(data)
            if list(next(_columns([row]))[:12]) != stored:
                yield f"{name}: its index columns differ from the record"
            labels = self._db.execute(
                "SELECT name, value, created FROM label WHERE kind = ? AND id = ? ORDER BY name, value",
                row.key,
            ).fetchall()
            if labels != [(name, value, row.keys.created) for name, value in row.keys.labels]:
                yield f"{name}: its labels differ from the record"


# --- queries -------------------------------------------------------------------------------------------------------


def statement(query: Query) -> tuple[str, list[Any]]:
    """The SELECT for a query: one index, walked from a place on. Column names come from here, never from outside."""
    if query.term is not None and len(query.term) != 2:
        return _several_values(query)
    if query.term is not None and query.term[0].startswith("label:"):
        return _label_statement(query)
    return _plain_statement(query, "data, checksum")


def _plain_statement(query: Query, columns: str) -> tuple[str, list[Any]]:
    where, values = ["kind = ?", "deleted IS NULL"], [query.kind]
    if query.term is not None:
        column, value = query.term
        where.append(f"{_TERM_COLUMNS[column]} = ?" if value else f"{_TERM_COLUMNS[column]} IS NULL")
        values += [value] if value else []
    _narrow(query, query.sort, where, values)
    direction = "DESC" if query.descending else "ASC"
    order = f"id {direction}" if query.missing or query.sort == "id" else f"{query.sort} {direction}, id {direction}"
    sql = f"SELECT {columns} FROM record WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"  # noqa: S608
    return sql, [*values, query.limit]


def _several_values(query: Query) -> tuple[str, list[Any]]:
    """A walk for each value, merged by SQLite in one statement: one moment, whatever moves between the values."""
    assert query.term is not None  # noqa: S101 - the caller looked
    field, *terms = query.term
    if not terms:
        return "SELECT data, checksum FROM record WHERE false", []
    walks, values = [], []
    for term in terms:
        sql, more = _plain_statement(msgspec.structs.replace(query, term=(field, term)), "created, id, rowid AS place")
        walks.append(f"SELECT created, id, place FROM ({sql})")  # noqa: S608
        values += more
    direction = "DESC" if query.descending else "ASC"
    sql = f"""
        SELECT data, checksum FROM (
            {" UNION ALL ".join(walks)} ORDER BY created {direction}, id {direction} LIMIT ?
        ) AS found CROSS JOIN record ON record.rowid = found.place
        ORDER BY found.created {direction}, found.id {direction}
    """  # noqa: S608
    return sql, [*values, query.limit]


_TERM_COLUMNS = {"status": "status", "node": "node", "owner": "owner"}


def _label_statement(query: Query) -> tuple[str, list[Any]]:
    assert query.term is not None  # noqa: S101 - the caller looked
    where = ["kind = ?", "name = ?", "value = ?"]
    values = [query.kind, query.term[0].removeprefix("label:"), query.term[1]]
    _narrow(query, "created", where, values)
    direction = "DESC" if query.descending else "ASC"
    sql = f"""
        SELECT data, checksum FROM (
            SELECT kind, id, created FROM label WHERE {" AND ".join(where)}
            ORDER BY created {direction}, id {direction} LIMIT ?
        ) AS found CROSS JOIN record USING (kind, id)
        ORDER BY found.created {direction}, found.id {direction}
    """  # noqa: S608
    return sql, [*values, query.limit]


def _narrow(query: Query, column: str, where: list[str], values: list[Any]) -> None:
    beyond = "<" if query.descending else ">"
    if query.missing:
        where.append(f"{column} IS NULL")
    elif column != "id":
        where.append(f"{column} IS NOT NULL")
    for bound, operator in ((query.low, ">="), (query.high, "<")):
        if bound is not None:
            where.append(f"{column} {operator} ?")
            values.append(bound)
    if query.after is not None:
        if query.missing or column == "id":
            where.append(f"id {beyond} ?")
            values.append(query.after.id)
        else:
            where.append(f"({column}, id) {beyond} (?, ?)")
            values += [query.after.key, query.after.id]
