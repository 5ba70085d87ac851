"""Checking a store: everything in its two files that does not fit together.

Owns what counts as a fault, and finds it. Repairs nothing; see repairing.py. Everything here blocks, and reads from one
moment on: whoever writes meanwhile is not disturbed and disturbs nothing.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Self

import apsw
import msgspec

from ..port import REMOVED, DataCorrupt, Key, Row
from .files import DatabaseFile, Format, in_words, is_damage, open_reader
from .log import FORMAT as LOG_FORMAT
from .log import Change, End, read_batches
from .paths import Paths
from .state import FORMAT as STATE_FORMAT
from .state import decode_row
from .storing import COLUMNS, columns_of, labels_of

What = Literal["disk", "page", "index", "log", "record", "columns", "labels", "stray", "differs", "history"]
"""Something that could not be read, which says nothing of what is there; a damaged page; an index that is missing or
wrong; an entry of the log; a record's bytes; the columns and labels it is found by; something that belongs to no
record; a record that is not what the log led to; its history."""


class Fault(NamedTuple):
    """Something that does not fit."""

    what: What
    text: str
    key: Key | None = None
    place: int = 0
    """The row of the record."""


class View:
    """Both files at one moment: the log has everything the state has applied."""

    def __init__(self, paths: Paths, *files: DatabaseFile) -> None:
        """`files`: where they are open for writing, so that nobody who writes waits for the view to end."""
        self.paths = paths
        self._views_of = [file.views for file in files]
        self.state = open_reader(paths.state)
        self.log = open_reader(paths.log)

    def __enter__(self) -> Self:
        try:
            for views in self._views_of:
                views.add(self)
            for db in (self.state, self.log):
                db.execute("BEGIN")
            facts = dict(self.state.execute("SELECT name, value FROM fact"))
            self.applied = int(facts.get("applied", 0))
            """How far the log is applied to the state."""
            facts = dict(self.log.execute("SELECT name, value FROM fact"))
            self.start = End(facts["start"], facts["start_digest"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.state.close()
        self.log.close()
        for views in self._views_of:
            views.discard(self)

    def changes(self) -> Iterator[tuple[int, Change]]:
        """What the kept log says up to where the state is, with positions, checked against the chain."""
        try:
            for end, changes in read_batches(self.log, self.paths.log, self.start, self.start):
                if end.position > self.applied:
                    return
                yield from enumerate(changes, end.position - len(changes) + 1)
        except (msgspec.DecodeError, TypeError, ValueError) as problem:
            raise DataCorrupt(f"{self.paths.log.name}: an entry cannot be read: {problem}") from None
        except apsw.Error as problem:
            raise DataCorrupt(f"{self.paths.log.name}: {in_words(problem)}") from None


def problems(paths: Paths, *files: DatabaseFile) -> list[str]:
    """Everything that does not fit together, in words."""
    return [fault.text for fault in faults(paths, *files)]


def faults(paths: Paths, *files: DatabaseFile) -> list[Fault]:
    looks: tuple[Callable[[View], Iterator[Fault]], ...]
    looks = (_in_log_file, _in_state_file, _missing_indexes, _in_records, _strays, _against_the_log)
    found: list[Fault] = []
    try:
        with View(paths, *files) as view:
            for look in looks:
                found += _guarded(look, view)
    except apsw.Error as problem:
        found.append(_unread(paths.folder, problem))
    except KeyError as missing:
        found.append(Fault("page", f"{paths.folder}: the fact {missing} is missing"))
    return list(dict.fromkeys(found))


def damaged_page(faults: list[Fault]) -> str | None:
    """What is said of a damaged page, if there is one: the whole file has to be made again then."""
    return next((fault.text for fault in faults if fault.what == "page"), None)


def _guarded(look: Callable[[View], Iterator[Fault]], view: View) -> Iterator[Fault]:
    """A damaged page ends one look, not the others."""
    try:
        yield from look(view)
    except apsw.Error as problem:
        if look is _in_log_file:
            yield Fault("log", f"{view.paths.log.name}: {in_words(problem)}")
        else:
            yield _unread(view.paths.state.name, problem)
    except DataCorrupt as corrupt:
        yield Fault("log", str(corrupt))


def _unread(where: object, problem: apsw.Error) -> Fault:
    return Fault("page" if is_damage(problem) else "disk", f"{where}: {in_words(problem)}")


# --- files and indexes ---------------------------------------------------------------------------------------------


def _in_log_file(view: View) -> Iterator[Fault]:
    return _in_file(view.log, view.paths.log.name, "log")


def _in_state_file(view: View) -> Iterator[Fault]:
    return _in_file(view.state, view.paths.state.name, "page")


def _in_file(db: apsw.Connection, name: str, otherwise: What) -> Iterator[Fault]:
    for (texts,) in db.execute("PRAGMA integrity_check"):
        # What is wrong with the trees comes in one piece, a line each below a heading.
        for text in texts.splitlines():
            if text not in ("ok", "*** in database main ***"):
                yield Fault("index" if " index " in text else otherwise, f"{name}: {text}")


def _missing_indexes(view: View) -> Iterator[Fault]:
    for db, path, format_ in ((view.log, view.paths.log, LOG_FORMAT), (view.state, view.paths.state, STATE_FORMAT)):
        for name in missing_indexes(db, format_):
            yield Fault("index", f"{path.name}: its index {name} is missing")


def missing_indexes(db: apsw.Connection, format_: Format) -> dict[str, str]:
    """Indexes a file of this format has to have and has not, with the statements that make them."""
    scripts = "".join(format_.script(version) for version in range(1, format_.newest + 1))
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    wanted = re.findall(r"^(CREATE (?:UNIQUE )?INDEX (\w+) [^;]+);", scripts, re.MULTILINE)
    return {name: sql for sql, name in wanted if name not in found}


# --- records -------------------------------------------------------------------------------------------------------


def _in_records(view: View) -> Iterator[Fault]:
    name = view.paths.state.name
    met = 0
    sql = f"SELECT rowid, data, checksum, {COLUMNS} FROM record NOT INDEXED ORDER BY rowid"  # noqa: S608
    for place, data, checksum, *columns in view.state.execute(sql):
        key = (columns[0], columns[1])
        row = intact_row(data, checksum)
        if row is None:
            yield Fault("record", f"{name}: {_named(key)} does not match its checksum", key, place)
            continue
        if list(columns_of(row)[: len(columns)]) != columns:
            yield Fault("columns", f"{name}: {_named(key)}: its index columns differ from the record", row.key, place)
        if expected := [(*label, row.keys.created) for label in labels_of(row)]:
            labels = _labels(view.state, row.key)
            met += len(labels)
            if labels != expected:
                yield _mislabelled(name, row.key, place)
    if view.state.execute("SELECT count(*) FROM label").get > met:
        yield from _with_labels_they_lack(view.state, name)


def _with_labels_they_lack(db: apsw.Connection, name: str) -> Iterator[Fault]:
    """Records that are found by labels although they have none."""
    sql = "SELECT DISTINCT record.rowid, data, checksum FROM label JOIN record USING (kind, id)"
    for place, data, checksum in db.execute(sql):
        row = intact_row(data, checksum)
        if row is not None and not labels_of(row):
            yield _mislabelled(name, row.key, place)


def _mislabelled(name: str, key: Key, place: int) -> Fault:
    return Fault("labels", f"{name}: {_named(key)}: its labels differ from the record", key, place)


def intact_row(data: bytes, checksum: int) -> Row | None:
    """A row as it was stored; None when its bytes are not what they were."""
    if zlib.crc32(data) != checksum:
        return None
    try:
        return decode_row(data)
    except (msgspec.DecodeError, ValueError):
        return None


def _labels(db: apsw.Connection, key: Key) -> list[tuple[Any, ...]]:
    sql = "SELECT name, value, created FROM label WHERE kind = ? AND id = ? ORDER BY name, value"
    return db.execute(sql, key).fetchall()


def _strays(view: View) -> Iterator[Fault]:
    """What is left of records that are not there."""
    for table, join in STRAYS.items():
        sql = f"SELECT count(*) FROM {table} LEFT JOIN record {join} WHERE record.rowid IS NULL"  # noqa: S608
        if (strays := view.state.execute(sql).get) > 0:
            yield Fault("stray", f"{view.paths.state.name}: {strays} rows of {table} belong to no record")


STRAYS = {
    "label": "ON record.kind = label.kind AND record.id = label.id",
    "history": "ON record.rowid = history.record",
}
"""Tables whose rows belong to records, and how."""


def _named(key: Key) -> str:
    return f"{key[0]} {key[1]}"


# --- the log against the state -------------------------------------------------------------------------------------


class Newest:
    """The newest entry of each record in the kept log, by position, and when it was last removed.

    Keys stand here as their hashes: a log of a million records must not be in memory as a whole.
    """

    def __init__(self, changes: Iterator[tuple[int, Change]]) -> None:
        self._newest: dict[int, int] = {}
        self._removed: dict[int, int] = {}
        for position, change in changes:
            key = hash(change.row.key)
            self._newest[key] = position
            if change.row.deleted == REMOVED:
                self._removed[key] = position

    def is_at(self, key: Key, position: int) -> bool:
        return self._newest[hash(key)] == position

    def has(self, key: Key) -> bool:
        return hash(key) in self._newest

    def in_this_life(self, key: Key, position: int) -> bool:
        """Whether an entry is part of the history of the record that is there now."""
        return position > self._removed.get(hash(key), 0)


def _against_the_log(view: View) -> Iterator[Fault]:
    name = view.paths.state.name
    newest = Newest(view.changes())
    told = 0
    forgotten: set[Key] = set()
    for position, change in view.changes():
        key = change.row.key
        place, row = _stored(view.state, key)
        if newest.is_at(key, position) and row != (None if change.row.deleted == REMOVED else change.row):
            yield Fault("differs", f"{name}: {_named(key)} is not what the log says", key)
        if change.event is not None and place and newest.in_this_life(key, position):
            told += 1
            if not _is_told(view.state, place, position) and key not in forgotten:
                forgotten.add(key)
                yield Fault("history", f"{name}: {_named(key)}: its history differs from the log", key)
    sql = "SELECT count(*) FROM history WHERE position > ? AND position <= ?"
    known = view.state.execute(sql, (view.start.position, view.applied)).get
    if known > told:
        yield Fault("history", f"{name}: {known - told} rows of history name no entry of the log")


def _stored(db: apsw.Connection, key: Key) -> tuple[int, Row | None]:
    """Where a record is, and the record; one that is damaged is told elsewhere, and compares with nothing."""
    found = db.execute("SELECT rowid, data, checksum FROM record WHERE kind = ? AND id = ?", key).get
    return (0, None) if found is None else (found[0], intact_row(found[1], found[2]))


def _is_told(db: apsw.Connection, place: int, position: int) -> bool:
    return db.execute("SELECT 1 FROM history WHERE record = ? AND position = ?", (place, position)).get is not None
