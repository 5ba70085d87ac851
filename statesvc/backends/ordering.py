"""Indexes in memory: rows in the orders a query may ask for.

Owns sorted places of rows and walking along them. Must not know where rows are kept. The memory engine keeps its rows
in these; an engine on disk walks what it has not written yet with them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

from sortedcontainers import SortedList

from .port import Keys, Query, Row, SortField, sort_key

Shape = Literal["term", "sort", "missing"]
IndexName = tuple[str, Shape, str]
"""A kind, and what its index holds: records by a term's value, in a sort order, or lacking a sort key."""


def is_listed(row: Row, sort: SortField) -> bool:
    """Whether walks in this order may meet the row: tombstones have an order of their own, removed rows none."""
    return row.deleted > 0 if sort == "deleted" else row.deleted == 0


def index_name(query: Query) -> IndexName:
    if query.term is not None:
        # One index for labels of every name: names come from clients, indexes must not.
        return (query.kind, "term", "label" if query.term[0].startswith("label:") else query.term[0])
    return (query.kind, "missing" if query.missing else "sort", query.sort)


class Index:
    """Sorted places of the records of one kind, one list for each value of the term it is over."""

    def __init__(self, name: IndexName) -> None:
        _, self._shape, field = name
        self._field: Any = field
        self._lists: dict[Any, SortedList[Any]] = {}

    def add(self, row: Row) -> None:
        for value, place in self._places(row):
            self._lists.setdefault(value, SortedList()).add(place)

    def remove(self, row: Row) -> None:
        for value, place in self._places(row):
            self._lists[value].remove(place)
            if not self._lists[value]:
                del self._lists[value]

    def content(self) -> dict[Any, list[Any]]:
        return {value: list(places) for value, places in self._lists.items()}

    def walk(self, query: Query) -> Iterator[tuple[Any, ...]]:
        low, high = _ends(query)
        walks = [
            places.irange(low, high, inclusive=(False, False), reverse=query.descending)
            for places in (self._lists.get(value) for value in _wanted(query))
            if places is not None
        ]
        if len(walks) == 1:
            return iter(walks[0])
        # A record may have several of the values, and is met once.
        return (place for place, _ in groupby(heapq.merge(*walks, reverse=query.descending)))

    def _places(self, row: Row) -> list[tuple[Any, tuple[Any, ...]]]:
        """Where a row stands: the term's value, and its place in that value's order."""
        keys, field = row.keys, self._field
        if self._shape == "term":
            return [(value, (keys.created, row.id)) for value in _term_values(keys, field)] if not row.deleted else []
        if not is_listed(row, field):
            return []
        key = sort_key(row, field)
        if self._shape == "missing":
            return [("", (row.id,))] if key is None else []
        return [] if key is None else [("", (key, row.id))]


def _wanted(query: Query) -> Sequence[Any]:
    """The values whose places a query walks, as the index names them."""
    if query.term is None:
        return ("",)
    field, *values = query.term
    if not field.startswith("label:"):
        return values
    return [(field.removeprefix("label:"), value) for value in values]


def _term_values(keys: Keys, field: str) -> Sequence[Any]:
    if field == "label":
        return keys.labels
    return [getattr(keys, field) or ""]


def place_of(row: Row, query: Query) -> Any:
    """Where a row stands in the order a query asks for."""
    return (row.id if query.missing else sort_key(row, query.sort), row.id)


def _ends(query: Query) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """The open range of places a query walks. (5,) lies before every (5, id): so low takes 5 in, high leaves it out."""
    low: tuple[Any, ...] | None = None if query.low is None else (query.low,)
    high: tuple[Any, ...] | None = None if query.high is None else (query.high,)
    if query.after is not None:
        place = (query.after.id,) if query.missing else tuple(query.after)
        # A place beyond a bound does not widen it.
        if query.descending:
            high = place if high is None else min(high, place)
        else:
            low = place if low is None else max(low, place)
    return low, high
