"""How changes get into the tables of state.db: for each record the statement that costs least.

Owns what a record's row, its labels and its history look like in tables. Must not know files, or when it is done.

SQLite writes every index anew whose columns a statement names, changed or not. So a record that is new, one that keeps
what it is found by, and one that only moves in its queue each have a statement of their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import apsw
import msgspec

from ..port import DataCorrupt, Key, Keys, Row
from .cache import Waiting

COLUMNS = (
    "kind, id, status, node, owner, created, updated, started, completed, scheduled, priority, ready, due, deleted"
)

_INSERT = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_STORE = """
INSERT INTO record (kind, id, status, node, owner, created, updated, started, completed, scheduled, priority,
                    ready, due, deleted, data, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET
    status = excluded.status, node = excluded.node, owner = excluded.owner, created = excluded.created,
    updated = excluded.updated, started = excluded.started, completed = excluded.completed,
    scheduled = excluded.scheduled, priority = excluded.priority, ready = excluded.ready, due = excluded.due,
    deleted = excluded.deleted, data = excluded.data, checksum = excluded.checksum
"""

_MOVE = (
    "UPDATE record SET status = ?, ready = ?, due = ?, updated = ?, started = ?, completed = ?, data = ?, checksum = ? "
    "WHERE kind = ? AND id = ?"
)

_TOUCH = "UPDATE record SET updated = ?, started = ?, completed = ?, data = ?, checksum = ? WHERE kind = ? AND id = ?"

_NOTE_NEW = "INSERT INTO history VALUES (?, ?)"
_NOTE = "INSERT INTO history SELECT rowid, ? FROM record WHERE kind = ? AND id = ?"
"""An entry of a record. RETURNING would tell where the record is, and cost every upsert more than looking."""

_encode = msgspec.msgpack.Encoder().encode


class _Sorted:
    """Records by the statement that stores them."""

    def __init__(self, rows: Mapping[Key, Row], before: Mapping[Key, Keys | None]) -> None:
        self.new: dict[Key, Row] = {}
        self.touched: list[Row] = []
        """They keep what they are found by."""
        self.moved: list[Row] = []
        """They only move in their queue."""
        self.others: list[Row] = []
        self.relabelled: list[Row] = []
        """Their labels are not what they were, or that is not known: most writes leave the label index alone."""
        for key, row in rows.items():
            if key not in before:
                self.others.append(row)
                self.relabelled.append(row)
            elif (old := before[key]) is None:
                self.new[key] = row
                if row.keys.labels:
                    self.relabelled.append(row)
            else:
                self._sort(row, old)

    def _sort(self, row: Row, old: Keys) -> None:
        new = row.keys
        if row.deleted or new.created != old.created:
            self.others.append(row)
            self.relabelled.append(row)
            return
        if new.labels != old.labels:
            self.relabelled.append(row)
        if (
            new.node != old.node
            or new.owner != old.owner
            or new.scheduled != old.scheduled
            or new.priority != old.priority
        ):
            self.others.append(row)
        elif new.status != old.status or new.ready != old.ready or new.due != old.due:
            self.moved.append(row)
        else:
            self.touched.append(row)


def store(db: apsw.Connection, waiting: Waiting) -> None:
    """Bring the tables to where the changes lead. Belongs into a transaction."""
    for key in waiting.removed:
        _remove(db, key)
    rows = _Sorted(waiting.present(), waiting.before)
    places = _store_rows(db, rows)
    _note_history(db, waiting, places)
    _relabel(db, rows.relabelled)


def _remove(db: apsw.Connection, key: Key) -> None:
    place = db.execute("DELETE FROM record WHERE kind = ? AND id = ? RETURNING rowid", key).get
    if place is not None:
        db.execute("DELETE FROM history WHERE record = ?", (place,))
        db.execute("DELETE FROM label WHERE kind = ? AND id = ?", key)


# --- records -------------------------------------------------------------------------------------------------------


def _store_rows(db: apsw.Connection, rows: _Sorted) -> dict[Key, int]:
    """Returns where the new ones are."""
    db.executemany(_STORE, _columns(rows.others))
    first = (db.execute("SELECT max(rowid) FROM record").get or 0) + 1
    places = dict(zip(rows.new, count(first), strict=False))
    db.executemany(_INSERT, map(_placed, places.values(), _columns(rows.new.values())))
    known = db.total_changes()
    db.executemany(_TOUCH, _touching(rows.touched))
    db.executemany(_MOVE, _moving(rows.moved))
    if db.total_changes() - known != len(rows.touched) + len(rows.moved):
        raise DataCorrupt("it lacks records that were in it; run a check with repair")
    return places


def _placed(place: int, columns: tuple[Any, ...]) -> tuple[Any, ...]:
    return (place, *columns)


def _touching(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        keys, data = row.keys, _encode(row)
        yield keys.updated, keys.started, keys.completed, data, zlib.crc32(data), row.kind, row.id


def _moving(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        keys, data = row.keys, _encode(row)
        yield (
            keys.status, keys.ready, keys.due, keys.updated, keys.started, keys.completed, data, zlib.crc32(data),
            row.kind, row.id,
        )  # fmt: skip


def _columns(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        keys, data = row.keys, _encode(row)
        yield (
            row.kind, row.id, keys.status, keys.node, keys.owner, keys.created, keys.updated, keys.started,
            keys.completed, keys.scheduled, keys.priority, keys.ready, keys.due, row.deleted or None, data,
            zlib.crc32(data),
        )  # fmt: skip


def columns_of(row: Row) -> tuple[Any, ...]:
    """What the columns of a record's row hold: `COLUMNS`, then its data and their checksum."""
    return next(_columns([row]))


# --- labels and history --------------------------------------------------------------------------------------------


def labels_of(row: Row) -> tuple[tuple[str, str], ...]:
    """The labels a record is found by: those of a tombstone lead nowhere."""
    return () if row.deleted else row.keys.labels


def _relabel(db: apsw.Connection, rows: list[Row]) -> None:
    db.executemany("DELETE FROM label WHERE kind = ? AND id = ?", [row.key for row in rows])
    db.executemany(
        "INSERT INTO label (kind, name, value, created, id) VALUES (?, ?, ?, ?, ?)",
        ((row.kind, name, value, row.keys.created, row.id) for row in rows for name, value in labels_of(row)),
    )


def _note_history(db: apsw.Connection, waiting: Waiting, places: Mapping[Key, int]) -> None:
    of_new: list[tuple[int, int]] = []
    of_others: list[tuple[int, str, str]] = []
    for position, key in waiting.told():
        if (place := places.get(key)) is not None:
            of_new.append((place, position))
        else:
            of_others.append((position, *key))
    db.executemany(_NOTE_NEW, of_new)
    db.executemany(_NOTE, of_others)
