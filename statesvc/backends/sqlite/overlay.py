"""While the disk is full: what the state has, with what it could not take laid over it.

Owns how the two come together. Must not know files.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from msgspec.structs import replace

from ..ordering import Index, index_name, place_of
from ..port import Key, LogEntry, Query, Row


def widened(query: Query, waiting: Mapping[Key, Row]) -> Query:
    """The query to ask the state: any of those that wait may have to be left out of its answer."""
    return replace(query, limit=query.limit + len(waiting))


def laid_over(query: Query, waiting: Mapping[Key, Row], stored: list[Row]) -> list[Row]:
    index = Index(index_name(query))
    for row in waiting.values():
        if row.kind == query.kind:
            index.add(row)
    ahead = [waiting[query.kind, place[-1]] for place in islice(index.walk(query), query.limit)]
    rows = [row for row in stored if row.key not in waiting] + ahead
    rows.sort(key=lambda row: place_of(row, query), reverse=query.descending)
    return rows[: query.limit]


def continued(stored: list[LogEntry], ahead: list[LogEntry], limit: int) -> list[LogEntry]:
    """A history; what could be applied meanwhile is in both parts."""
    known = {entry.cursor for entry in ahead}
    return ([entry for entry in stored if entry.cursor not in known] + ahead)[:limit]
