"""Rows and commits for tests of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from statesvc.backends.port import REMOVED, Engine, Event, Key, Keys, LogEntry, Result, Row, Unit, Write


def row(id: str, *, kind: str = "job", uid: str = "", revision: int = 1, deleted: int = 0, **keys: Any) -> Row:
    """A row whose body tells which one it is."""
    keys = {"created": 1, "updated": 1} | keys
    body = b"" if deleted else b'{"id":"%s","revision":%d}' % (id.encode(), revision)
    return Row(kind, id, uid or f"uid-{id}", revision, Keys(**keys), body, b"marks", deleted)


def born(id: str, **keys: Any) -> Unit:
    """The unit that makes a record."""
    return (Write(row(id, **keys), None, Event("created", 1)),)


def after(before: Row, **keys: Any) -> Write:
    """The write that follows a row."""
    changed = row(before.id, kind=before.kind, uid=before.uid, revision=before.revision + 1, **keys)
    return Write(changed, before.stamp, Event("updated", 2, "a", "b"))


def buried(before: Row) -> Write:
    gone = row(before.id, kind=before.kind, uid=before.uid, revision=before.revision + 1, deleted=7)
    return Write(gone, before.stamp, Event("deleted", 3))


def hidden(before: Row, **changed: Any) -> Write:
    """A write nobody is told of: the row replaced in place, fields or index keys of it."""
    of_row = {name: changed.pop(name) for name in ("body", "marks", "token") if name in changed}
    return Write(replace(before, keys=replace(before.keys, **changed), **of_row), before.stamp, None)


def removed(before: Row) -> Write:
    """The write that takes a row out for good."""
    return Write(replace(before, deleted=REMOVED), before.stamp, None)


async def commit(engine: Engine, batch: Sequence[Unit]) -> list[Result]:
    """The true outcome of each unit: what is answered `unknown` is read back, and sent again if it is not there."""
    results = await engine.commit(batch)
    for place, unit in enumerate(batch):
        while results[place] == "unknown":
            stored = await engine.get([write.row.key for write in unit])
            if stored == [None if write.row.deleted == REMOVED else write.row for write in unit]:
                results[place] = "applied"
            else:
                [results[place]] = await engine.commit([unit])
    return results


async def fill(engine: Engine, rows: Iterable[Row]) -> list[Row]:
    """Store rows as they are."""
    kept = list(rows)
    results = await commit(engine, [(Write(each, None, Event("created", 1)),) for each in kept])
    assert set(results) <= {"applied"}
    return kept


def by_record(log: Iterable[LogEntry]) -> dict[Key, list[tuple[Event, Row]]]:
    """What the log tells of each record: the part of its order that every engine promises."""
    told: dict[Key, list[tuple[Event, Row]]] = {}
    for entry in log:
        told.setdefault(entry.row.key, []).append((entry.event, entry.row))
    return told


async def pieces(*rows: Row, most: int = 3) -> AsyncIterator[list[Row]]:
    """Rows as a load takes them, so many at a time."""
    for begin in range(0, len(rows), most):
        yield list(rows[begin : begin + most])
