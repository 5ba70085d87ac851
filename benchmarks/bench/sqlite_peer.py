"""Plain SQLite through the standard library, inside the agent's own process: no daemon, no socket, no log.

Owns what the same work is in SQL. Must not know statesvc. WAL and synchronous=FULL: what is committed is on the disk.
One table with three indexes, as an agent would write it down on an afternoon.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from . import frames
from .lines import CLOCK, CLOCK_NS
from .shape import Failed

_SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE job (id TEXT PRIMARY KEY, body BLOB, status TEXT, node TEXT, created INTEGER);
    CREATE INDEX by_status ON job (status, created);
    CREATE INDEX by_node ON job (node, created);
    CREATE INDEX by_created ON job (created);
"""

Row = tuple[str, bytes, str, str, int]


def row(id: str, number: int, round: int) -> Row:
    body = frames.body(id, number)
    return id, body, "PENDING", f"node-{number % frames.NODES}", round * 10_000_000 + number


class InProcess:
    """One file, one connection."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.executescript(_SCHEMA)

    def rate_of_creates(self, rows: Sequence[Row], depth: int) -> float:
        """Rows a second, `depth` in a transaction."""
        return self._rate("INSERT INTO job VALUES (?, ?, ?, ?, ?)", rows, depth)

    def rate_of_updates(self, ids: Sequence[str], depth: int) -> float:
        changes = [("RUNNING", frames.body(id, 1, "RUNNING"), id) for id in ids]
        return self._rate("UPDATE job SET status = ?, body = ? WHERE id = ?", changes, depth)

    def _rate(self, statement: str, rows: Sequence[tuple[object, ...]], depth: int) -> float:
        run, run_all = self._db.execute, self._db.executemany
        before = self._db.total_changes
        began = CLOCK()
        for start in range(0, len(rows), depth):
            run("BEGIN")
            run_all(statement, rows[start : start + depth])
            run("COMMIT")
        took = CLOCK() - began
        if self._db.total_changes - before != len(rows):
            raise Failed("SQLite changed other than what it was told to")
        return len(rows) / took

    def rate_of_gets(self, ids: Sequence[str]) -> float:
        return len(ids) * 1e9 / sum(self.times_of_gets(ids))

    def times_of_gets(self, ids: Sequence[str]) -> list[int]:
        """Nanoseconds of each."""
        run, taken = self._db.execute, []
        for id in ids:
            began = CLOCK_NS()
            found = run("SELECT body FROM job WHERE id = ?", (id,)).fetchone()
            taken.append(CLOCK_NS() - began)
            if found is None:
                raise Failed(f"SQLite has no {id}")
        return taken

    def times_of_creates(self, rows: Sequence[Row]) -> list[int]:
        """Nanoseconds of each, in a transaction of its own."""
        run, taken = self._db.execute, []
        for values in rows:
            began = CLOCK_NS()
            run("INSERT INTO job VALUES (?, ?, ?, ?, ?)", values)
            taken.append(CLOCK_NS() - began)
        return taken

    def rate_of_pages(self, count: int) -> float:
        query = "SELECT body FROM job WHERE status = ? ORDER BY created DESC LIMIT ?"
        began = CLOCK()
        for _ in range(count):
            found = self._db.execute(query, ("RUNNING", frames.PAGE)).fetchall()
            if len(found) != frames.PAGE:
                raise Failed(f"a page had {len(found)} jobs")
        return count / (CLOCK() - began)

    def close(self) -> None:
        self._db.close()
