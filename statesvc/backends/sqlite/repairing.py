"""Repairing a store: what can be made again from what is intact is made again, the rest is named.

Owns what follows from each fault that checking.py finds. Must not know how work reaches the state's own thread, where
all of this belongs. A record's own bytes are checksummed, so what is derived from them follows them; and what the kept
log says of a record goes before what the state says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import apsw

from ..port import DataCorrupt, Key
from .cache import Waiting
from .checking import STRAYS, Fault, Newest, View, intact_row, missing_indexes
from .files import in_words, is_failing_disk, open_writer, transaction
from .log import FORMAT as LOG_FORMAT
from .log import Change
from .opening import Files
from .paths import Paths
from .state import FORMAT as STATE_FORMAT
from .storing import COLUMNS, columns_of, labels_of

CHUNK = 1000
"""Records written in one transaction."""


def repaired(files: Files, paths: Paths, faults: list[Fault]) -> list[str]:
    """Do what can be done about faults; each thing done, or found impossible, is one sentence.

    Raises `apsw.IOError` when it is the disk that fails: nothing may be built on the files then, or synced again.
    """
    repair = _Repair(files, paths, faults)
    steps = (
        repair.indexes,
        repair.columns,
        repair.labels,
        repair.records,
        repair.strays,
        repair.history,
        repair.impossible,
    )
    done: list[str] = []
    for step in steps:
        try:
            done += step()
        except apsw.Error as problem:
            if is_failing_disk(problem):
                raise
            done.append(f"{paths.state.name} cannot be repaired any further: {in_words(problem)}")
            break
    return done


class _Repair:
    def __init__(self, files: Files, paths: Paths, faults: list[Fault]) -> None:
        self._files = files
        self._state = files.state
        self._db = files.state.db
        self._paths = paths
        self._faults = faults

    def _of(self, *whats: str) -> Iterator[Fault]:
        return (fault for fault in self._faults if fault.what in whats)

    # --- indexes, and what they are made of ------------------------------------------------------------------------

    def indexes(self) -> Iterator[str]:
        if not any(self._of("index")):
            return
        yield from _made(self._db, missing_indexes(self._db, STATE_FORMAT), self._paths.state.name)
        self._db.execute("REINDEX")
        yield f"{self._paths.state.name}: its indexes were made again"
        log = open_writer(self._paths.log)
        try:
            yield from _made(log, missing_indexes(log, LOG_FORMAT), self._paths.log.name)
        finally:
            log.close()

    def columns(self) -> Iterator[str]:
        names = COLUMNS.split(", ")
        assign = ", ".join(f"{name} = ?" for name in names)
        for fault in self._of("columns"):
            found = self._db.execute("SELECT data, checksum FROM record WHERE rowid = ?", (fault.place,)).get
            row = None if found is None else intact_row(*found)
            if row is not None:
                values = (*columns_of(row)[: len(names)], fault.place)
                with transaction(self._db):
                    self._db.execute(f"UPDATE record SET {assign} WHERE rowid = ?", values)  # noqa: S608
                yield f"{_named(row.key)}: its index columns were written again from the record"

    def labels(self) -> Iterator[str]:
        for fault in self._of("labels"):
            found = self._db.execute("SELECT data, checksum FROM record WHERE rowid = ?", (fault.place,)).get
            row = None if found is None else intact_row(*found)
            if row is not None:
                labels = [(row.kind, name, value, row.keys.created, row.id) for name, value in labels_of(row)]
                with transaction(self._db):
                    self._db.execute("DELETE FROM label WHERE kind = ? AND id = ?", row.key)
                    self._db.executemany("INSERT INTO label VALUES (?, ?, ?, ?, ?)", labels)
                yield f"{_named(row.key)}: its labels were written again from the record"

    def strays(self) -> Iterator[str]:
        for table, join in STRAYS.items() if any(self._of("stray")) else ():
            with transaction(self._db):
                self._db.execute(
                    f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM record WHERE {join.removeprefix('ON ')})"  # noqa: S608
                )
                if removed := self._db.changes():
                    yield f"{self._paths.state.name}: {removed} rows of {table} that belonged to no record were removed"

    # --- records ---------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[str]:
        """Records that are damaged, or not what the log says, as the log has them."""
        damaged = {fault.key for fault in self._of("record") if fault.key is not None}
        differing = {fault.key for fault in self._of("differs") if fault.key is not None} - damaged
        taken: set[Key] = set()
        if damaged or differing:
            taken = self._taken_from_the_log(damaged | differing)
        for key in sorted(damaged):
            if key in taken:
                yield f"{_named(key)}: its record was damaged and was taken from the log again"
            else:
                yield f"{_named(key)}: its record is damaged and the log no longer has it: restore it from a snapshot"
        for key in sorted(differing & taken):
            yield f"{_named(key)}: its record was not what the log says and was taken from the log again"

    def _taken_from_the_log(self, keys: set[Key]) -> set[Key]:
        taken: set[Key] = set()
        try:
            with View(self._paths, *self._files) as view:
                newest = Newest(view.changes())
                wanted = (
                    (position, change)
                    for position, change in view.changes()
                    if change.row.key in keys and newest.is_at(change.row.key, position)
                )
                while chunk := list(islice(wanted, CHUNK)):
                    self._take(chunk)
                    taken |= {change.row.key for _, change in chunk}
        except DataCorrupt:
            pass  # a log that cannot be read to its end tells nothing for sure; that it is so is told elsewhere
        return taken

    def _take(self, chunk: list[tuple[int, Change]]) -> None:
        waiting = Waiting()
        for position, change in chunk:
            # Hidden: the history knows of it already, or is made again below.
            waiting.take(position, [Change(None, change.row)])
        self._state.apply(waiting, self._state.applied)

    # --- history ---------------------------------------------------------------------------------------------------

    def history(self) -> Iterator[str]:
        if not any(self._of("history")):
            return
        try:
            with View(self._paths, *self._files) as view:
                newest = Newest(view.changes())
                self._write_history(self._told(view.changes(), newest))
        except DataCorrupt:
            yield "the history of records cannot be made again, because the log cannot be read to its end"
        else:
            yield "the history of all records was made again from the log"

    def _told(self, changes: Iterable[tuple[int, Change]], newest: Newest) -> Iterator[tuple[int, int]]:
        for position, change in changes:
            if change.event is not None and newest.in_this_life(change.row.key, position):
                place = self._db.execute("SELECT rowid FROM record WHERE kind = ? AND id = ?", change.row.key).get
                if place is not None:
                    yield place, position

    def _write_history(self, rows: Iterator[tuple[int, int]]) -> None:
        # In one piece, whatever ends it: half a history would be told as if it were all. What does not fit into the
        # cache waits in the WAL.
        with transaction(self._db):
            self._db.execute("DELETE FROM history")
            self._db.executemany("INSERT INTO history VALUES (?, ?)", rows)
        self._state.written()

    # --- the rest --------------------------------------------------------------------------------------------------

    def impossible(self) -> Iterator[str]:
        cures = {
            "disk": "check the disk, then try again",
            "log": "it cannot be made again; bring back a copy of all its files, or restore a snapshot",
        }
        return (f"{fault.text}: {cures[fault.what]}" for fault in chain(*map(self._of, cures)))


def _made(db: apsw.Connection, missing: dict[str, str], file: str) -> Iterator[str]:
    for name, sql in missing.items():
        db.execute(sql)
        yield f"{file}: its index {name} was missing and was made again"


def _named(key: Key) -> str:
    return f"{key[0]} {key[1]}"
