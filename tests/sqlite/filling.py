"""Stores for tests of the files as a whole: filled in small commits, copied as a crash leaves them, looked at closely.

Owns what such tests share. Must not know what they hold.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw

from statesvc.backends.port import Event, LogKept, Row, Write
from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import open_writer
from tests.engines.rows import row

PAGE_BYTES = 4096

EVERYTHING_OLD = LogKept(since=1 << 60, most_bytes=1 << 40)


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(folder, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def create(engine: SqliteEngine, names: Iterable[str], at: int = 1, pad: int = 0, **keys: Any) -> list[Row]:
    """New records, in one commit that was made at a given time."""
    rows = [padded(row(name, **keys), pad) for name in names]
    results = await engine.commit([(Write(each, None, Event("created", at)),) for each in rows])
    assert set(results) == {"applied"}
    return rows


def padded(plain: Row, pad: int) -> Row:
    body = plain.body[:-1] + b',"pad":"%s"}' % (b"x" * pad)
    return Row(plain.kind, plain.id, plain.uid, plain.revision, plain.keys, body, plain.marks)


async def compact(engine: SqliteEngine, keep: LogKept = EVERYTHING_OLD) -> int:
    """Until there is nothing more to do; returns the number of steps."""
    for steps in range(10_000):
        if not await engine.compact(keep):
            return steps
    raise AssertionError("compaction does not come to an end")


async def content(engine: SqliteEngine) -> dict[tuple[str, str], Row]:
    dump = await engine.dump()
    return {each.key: each async for page in dump.rows for each in page}


def crashed(folder: Path, copy: Path) -> Path:
    """What a process that is killed now would leave behind."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("lock"))
    return copy


def change(path: Path, sql: str, *values: Any) -> None:
    """Do something to a file that nobody has open, page checksums kept."""
    with closing(open_writer(path)) as db:
        db.execute("BEGIN")
        db.execute(sql, values or None)
        db.execute("COMMIT")


def look(path: Path, sql: str, *values: Any) -> Any:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return db.execute(sql, values or None).get


def pages_of(path: Path, name: str) -> list[int]:
    """Leaf pages of a table or an index."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return [
            page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (name,))
        ]


def damage(path: Path, name: str, which: int = 0) -> None:
    flip(path, (pages_of(path, name)[which] - 1) * PAGE_BYTES + 2000)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
