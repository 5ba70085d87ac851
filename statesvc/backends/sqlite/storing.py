"""How changes get into the tables of state.db: for each record the statement that costs least.

Owns what a record's row, its labels and its history look like in tables. Must not know files, or when it is done.

SQLite writes every index anew whose columns a statement names, changed or not. So a record that is new, one that keeps
what it is found by, and one that only moves in its queue each have a statement of their own.

The interpreter is let go of for each step of a statement and has to be taken back behind it, from a loop that is busy.
So a statement takes many rows at once: what SQLite does for them is one step, beside the loop on another core.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count, groupby
from operator import attrgetter
from typing import Any
from zlib import crc32

import apsw
import msgspec
from msgspec.structs import astuple

from ..port import Key, Keys, Row
from .cache import Waiting

COLUMNS = (
    "kind, id, status, node, owner, created, updated, started, completed, scheduled, priority, ready, due, deleted"
)

AT_ONCE = (128, 16, 1)
"""Rows that one statement takes: as many as there are, in few sizes, so that each is prepared once. A statement of 128
records has some 2,200 values, and a text short enough for apsw to keep it prepared."""

LARGE_BYTES = 32 * 1024
"""Rows of more than this on average go one by one: a statement holds a copy of all it is given."""


class _Statement:
    """A statement for any number of rows. What all of them have in common is given to it once, before them."""

    def __init__(self, before: str, columns: int, behind: str = "", common: str = "") -> None:
        self._before = before
        self._row = f"({common}{', '.join('?' * columns)})"
        self._behind = behind

    @cache  # noqa: B019 - the few statements there are live as long as the process
    def sql(self, rows: int) -> str:
        return f"{self._before} {', '.join([self._row] * rows)} {self._behind}"

    def run(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]], *common: Any) -> None:
        done = 0
        for size in AT_ONCE:
            upto = len(rows) - (len(rows) - done) % size
            for at in range(done, upto, size):
                db.execute(self.sql(size), (*common, *chain.from_iterable(rows[at : at + size])))
            done = upto


_STORE = _Statement(
    f"INSERT OR ROLLBACK INTO record ({COLUMNS}, data, checksum) VALUES",
    16,
    """
ON CONFLICT (kind, id) DO UPDATE SET
    status = excluded.status, node = excluded.node, owner = excluded.owner, created = excluded.created,
    updated = excluded.updated, started = excluded.started, completed = excluded.completed,
    scheduled = excluded.scheduled, priority = excluded.priority, ready = excluded.ready, due = excluded.due,
    deleted = excluded.deleted, data = excluded.data, checksum = excluded.checksum
""",
)

_MOVE = _Statement(
    """
UPDATE OR ROLLBACK record INDEXED BY record_key SET
    status = column1, ready = column2, due = column3, updated = column4, started = column5, completed = column6,
    data = column7, checksum = column8
FROM (VALUES""",
    10,
    ") WHERE record.kind = column9 AND record.id = column10",
)

_TOUCH = _Statement(
    """
UPDATE OR ROLLBACK record INDEXED BY record_key SET
    updated = column1, started = column2, completed = column3, data = column4, checksum = column5
FROM (VALUES""",
    7,
    ") WHERE record.kind = column6 AND record.id = column7",
)

_NOTE_RUN = """
WITH RECURSIVE step (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM step WHERE n + 1 < ?3)
INSERT OR ROLLBACK INTO history SELECT ?1 + n, ?2 + n FROM step
"""
"""New records, one behind the other, made by entries that are one behind the other: no value has to be handed over."""

_NOTE_NEW = _Statement("INSERT OR ROLLBACK INTO history VALUES", 2)
_NOTE = _Statement(
    "INSERT OR ROLLBACK INTO history SELECT record.rowid, column1 FROM (VALUES",
    3,
    ") CROSS JOIN record ON record.kind = column2 AND record.id = column3",
)
"""An entry of a record. RETURNING would tell where the record is, and cost every upsert more than looking."""

_UNLABEL = _Statement("DELETE FROM label INDEXED BY label_record WHERE (kind, id) IN (VALUES", 2, ")")
_LABEL = _Statement("INSERT OR ROLLBACK INTO label (kind, created, id, name, value) VALUES", 4, common="?1, ")

_encode = msgspec.msgpack.Encoder().encode
_kind_of = attrgetter("kind")
_body_of = attrgetter("body")


class _Sorted:
    """Records by the statement that stores them."""

    def __init__(self, rows: dict[Key, Row], before: Mapping[Key, Keys | None]) -> None:
        self.new: dict[Key, Row] = {}
        """One kind behind the other."""
        self.touched: list[Row] = []
        """They keep what they are found by."""
        self.moved: list[Row] = []
        """They only move in their queue."""
        self.others: list[Row] = []
        self.relabelled: list[Row] = []
        """Their labels are not what they were, or that is not known: most writes leave the label index alone."""
        self.labelled: list[Row] = []
        """They are new and have labels: there are no others to take away first."""
        if not any(before.values()) and before.keys() == rows.keys():
            # Nothing but new records: the same as below, without a step for each.
            self.new = rows
            self.labelled = [row for row in rows.values() if row.keys.labels]
        else:
            self._sort_all(rows, before)
        if len({kind for kind, _ in self.new}) > 1:
            self.new = dict(sorted(self.new.items(), key=lambda item: item[0][0]))

    def _sort_all(self, rows: Mapping[Key, Row], before: Mapping[Key, Keys | None]) -> None:
        for key, row in rows.items():
            if key not in before:
                self.others.append(row)
                self.relabelled.append(row)
            elif (old := before[key]) is None:
                self.new[key] = row
                if row.keys.labels:
                    self.labelled.append(row)
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
    first = _store_rows(db, rows)
    _note_history(db, waiting, rows, first)
    _relabel(db, rows)


def _remove(db: apsw.Connection, key: Key) -> None:
    place = db.execute("DELETE FROM record WHERE kind = ? AND id = ? RETURNING rowid", key).get
    if place is not None:
        db.execute("DELETE FROM history WHERE record = ?", (place,))
        db.execute("DELETE FROM label WHERE kind = ? AND id = ?", key)


# --- records -------------------------------------------------------------------------------------------------------


def _store_rows(db: apsw.Connection, rows: _Sorted) -> int:
    """Returns where the first of the new ones is; the others follow it."""
    _run(_STORE, db, rows.others, columns_of)
    first = (db.execute("SELECT max(rowid) FROM record").get or 0) + 1
    place = first
    for kind, new in groupby(rows.new.values(), _kind_of):
        place = _insert(db, kind, list(new), place)
    known = db.total_changes()
    _run(_TOUCH, db, rows.touched, _touching)
    _run(_MOVE, db, rows.moved, _moving)
    if db.total_changes() - known != len(rows.touched) + len(rows.moved):
        raise apsw.CorruptError("it lacks records that were in it")
    return first


def _stretches(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows a statement at a time: what is made of them is never all in memory at once."""
    begin = 0
    while begin < len(rows):
        stretch = rows[begin : begin + next(size for size in AT_ONCE if size <= len(rows) - begin)]
        if sum(map(len, map(_body_of, stretch))) > LARGE_BYTES * len(stretch):
            stretch = stretch[:1]
        yield stretch
        begin += len(stretch)


def _run(
    statement: _Statement, db: apsw.Connection, rows: list[Row], columns: Callable[[Row], tuple[Any, ...]]
) -> None:
    for stretch in _stretches(rows):
        statement.run(db, list(map(columns, stretch)))


def _insert(db: apsw.Connection, kind: str, rows: list[Row], place: int) -> int:
    """New records of one kind, from a place on; returns the place behind them."""
    for stretch in _stretches(rows):
        columns = _filled_columns(stretch)
        values = chain.from_iterable(zip(*columns.values(), strict=True))
        db.execute(_insertion(tuple(columns), len(stretch)), (place, kind, *values))
        place += len(stretch)
    return place


@cache
def _insertion(columns: tuple[str, ...], rows: int) -> str:
    """Its first value is the place of the first row, the second the kind of all."""
    values = ", ".join("?" * len(columns))
    placed = ", ".join(f"(?1 + {number}, ?2, {values})" for number in range(rows))
    return f"INSERT OR ROLLBACK INTO record (rowid, kind, {', '.join(columns)}) VALUES {placed}"  # noqa: S608


def _filled_columns(rows: list[Row]) -> dict[str, Sequence[Any]]:
    """What any of the rows has: every value costs, even none. Column by column, because that is done without a step of
    the interpreter for each value."""
    fields = dict(zip(Row.__struct_fields__, zip(*map(astuple, rows), strict=True), strict=True))
    data = list(map(_encode, rows))
    columns: dict[str, Sequence[Any]] = {"id": fields["id"], "data": data, "checksum": list(map(crc32, data))}
    columns |= zip(Keys.__struct_fields__, zip(*map(astuple, fields["keys"]), strict=True), strict=True)
    del columns["labels"]  # they have a table of their own
    columns["deleted"] = [deleted or None for deleted in fields["deleted"]]
    return {name: each for name, each in columns.items() if each[0] is not None or each.count(None) < len(rows)}


def _touching(row: Row) -> tuple[Any, ...]:
    keys, data = row.keys, _encode(row)
    return keys.updated, keys.started, keys.completed, data, crc32(data), row.kind, row.id


def _moving(row: Row) -> tuple[Any, ...]:
    keys, data = row.keys, _encode(row)
    return (
        keys.status, keys.ready, keys.due, keys.updated, keys.started, keys.completed, data, crc32(data), row.kind,
        row.id,
    )  # fmt: skip


def columns_of(row: Row) -> tuple[Any, ...]:
    """What the columns of a record's row hold: `COLUMNS`, then its data and their checksum."""
    keys, data = row.keys, _encode(row)
    return (
        row.kind, row.id, keys.status, keys.node, keys.owner, keys.created, keys.updated, keys.started,
        keys.completed, keys.scheduled, keys.priority, keys.ready, keys.due, row.deleted or None, data, crc32(data),
    )  # fmt: skip


# --- labels and history --------------------------------------------------------------------------------------------


def labels_of(row: Row) -> tuple[tuple[str, str], ...]:
    """The labels a record is found by: those of a tombstone lead nowhere."""
    return () if row.deleted else row.keys.labels


def _relabel(db: apsw.Connection, rows: _Sorted) -> None:
    _UNLABEL.run(db, [row.key for row in rows.relabelled])
    of_kind: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in chain(rows.relabelled, rows.labelled):
        for label in labels_of(row):
            of_kind[row.kind].append((row.keys.created, row.id, *label))
    for kind, labels in of_kind.items():
        _LABEL.run(db, labels, kind)


def _note_history(db: apsw.Connection, waiting: Waiting, rows: _Sorted, first: int) -> None:
    """`first` is where the first of the new records is."""
    if waiting.entries and rows.new is waiting.rows and (run := waiting.as_one_run()) is not None:
        db.execute(_NOTE_RUN, (first, run.start, len(run)))
        return
    places = dict(zip(rows.new, count(first), strict=False))
    of_new: list[tuple[int, int]] = []
    of_others: list[tuple[int, str, str]] = []
    for position, key in waiting.told():
        if (place := places.get(key)) is not None:
            of_new.append((place, position))
        else:
            of_others.append((position, *key))
    _NOTE_NEW.run(db, of_new)
    _NOTE.run(db, of_others)
