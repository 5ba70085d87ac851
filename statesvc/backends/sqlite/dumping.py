"""Everything in the state at one moment, read out while it goes on changing.

Owns a connection of its own with one long read transaction, and the thread that reads. Must not know what the rows are
for.

The price of a steady view: as long as the transaction is open, nothing written to the state since can leave its WAL, so
the WAL grows by what is written meanwhile. Whoever reads a dump should read it without pauses, and close it when giving
up; space is given back afterwards.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw

from ..port import Row
from .files import DatabaseFile, open_reader, unreadable
from .paths import Paths
from .state import decoded_row

PAGE_ROWS = 500
PAGE_BYTES = 4 * 1024 * 1024
"""Rows handed over at once, whichever comes first, but at least one."""

LOOK_STEPS = 20_000
"""Steps of SQLite's between two looks at whether the view is to be let go of: some milliseconds. More often would make
it slow, as each look waits for its turn among the interpreter's threads."""


class OpenDump:
    """A view of the state, held until it is closed."""

    def __init__(self, paths: Paths, state: DatabaseFile) -> None:
        self._path = paths.state
        self._readers = state.long_readers
        # Only one thread at a time is in here, and closing waits for it.
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._db: apsw.Connection | None = open_reader(paths.state)
        # Looked at in the midst of every statement: an interrupt is lost on a thread that is just between two.
        self._db.set_progress_handler(self._closing.is_set, LOOK_STEPS)
        self._rows: apsw.Cursor | None = None
        self._readers.add(self)  # before it reads: nobody may wait for it to end by itself
        try:
            with self._turn:
                self._begin(paths)
        except BaseException:
            self.close()
            raise

    def _begin(self, paths: Paths) -> None:
        db = self._db
        if db is None:
            raise _closed()
        db.execute("BEGIN")
        applied = int(db.execute("SELECT value FROM fact WHERE name = 'applied'").get or 0)
        self.position = _newest_visible(paths.log, applied)
        """The newest entry that is not hidden, of those the state had applied."""
        _refuse_misplaced(db)
        self.total = int(db.execute("SELECT count(*) FROM record").get)
        self._rows = db.execute("SELECT data, checksum FROM record NOT INDEXED ORDER BY rowid")

    async def pages(self) -> AsyncIterator[list[Row]]:
        """All rows, a few hundred at a time; closes the view at the end, however that comes."""
        try:
            while page := await asyncio.to_thread(self._page):
                yield page
        except apsw.Error as problem:
            raise unreadable(self._path, problem) from None
        finally:
            self.close()

    def _page(self) -> list[Row]:
        page: list[Row] = []
        size = 0
        with self._turn:
            if self._rows is None:
                raise _closed()
            for data, checksum in self._rows:
                page.append(decoded_row(self._path, data, checksum))
                size += len(data)
                if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
                    break
        return page

    def close(self) -> None:
        """Let go of the view, also while it is read; twice does no harm."""
        self._closing.set()
        with self._turn:
            db, self._db, rows, self._rows = self._db, None, self._rows, None
            if rows is not None:
                rows.close(force=True)
            if db is not None:
                db.close()
        self._readers.discard(self)


def _closed() -> apsw.InterruptError:
    return apsw.InterruptError("the store was closed while it was being read")


def _refuse_misplaced(db: apsw.Connection) -> None:
    """A page may match its checksum, and lie in the place of another: rows would be missing without a word from what is
    to be everything. A look at the trees takes about as long as reading it all."""
    (told,) = next(db.execute("PRAGMA integrity_check('record')"))
    if told != "ok":
        raise apsw.CorruptError(told.splitlines()[-1])


def _newest_visible(log: Path, upto: int) -> int:
    db = open_reader(log)
    try:
        found = db.execute("SELECT visible FROM batch WHERE first <= ? ORDER BY first DESC LIMIT 1", (upto,)).get
        return int(found or db.execute("SELECT value FROM fact WHERE name = 'start_visible'").get or 0)
    finally:
        db.close()
