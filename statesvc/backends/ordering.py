"""Indexes in memory: rows in the orders a query may ask for.

Owns sorted places of rows and walking along them. Must not know where rows are kept. The memory engine keeps its rows
in these; an engine on disk walks what it has not written yet with them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from .port import LINK, Keys, Query, Row, SortField, sort_key
from .sorted_places import Place, SortedPlaces

Shape = Literal["term", "sort", "missing"]
IndexName = tuple[str, Shape, str]
"""A kind, and what its index holds: records by a term's value, in a sort order, or lacking a sort key."""


def is_listed(row: Row, sort: SortField) -> bool:
    """Whether walks in this order may meet the row: tombstones have an order of their own, removed rows none."""
    return row.deleted > 0 if sort == "deleted" else row.deleted == 0


def index_name(query: Query) -> IndexName:
    if query.term is not None:
        return (query.kind, "term", _term_name(query.term[0]))
    return (query.kind, "missing" if query.missing else "sort", query.sort)


def _term_name(field: str) -> str:
    """One index for labels of every name, because names come from clients and indexes must not; and one for the rules'
    own links, which are always asked for, while labels may never be."""
    if not field.startswith("label:"):
        return field
    return "link" if field == f"label:{LINK}" else "label"


BY_CREATION = "created"


def spine_of(name: IndexName) -> IndexName | None:
    """The index by creation that shares its places with this one; None where it has places of its own, or few."""
    kind, shape, field = name
    return (kind, "sort", BY_CREATION) if shape == "term" and field != "link" else None


Change = tuple[Row | None, Row | None, Place]
"""A record before and after, None where there is none, and its place by creation then, which all indexes share."""


def change(before: Row | None, after: Row | None) -> Change:
    return (before, after, () if after is None else (after.keys.created, after.id))


class Index:
    """Sorted places of the records of one kind, one list for each value of the term it is over.

    It can be filled little by little, while records go on changing: `early` has those that changed meanwhile, which are
    in it as they are now, whether the walk that fills it has come to them or not.
    """

    def __init__(self, name: IndexName) -> None:
        _, shape, field = name
        self._many_valued = field in ("label", "link")
        self._lists: dict[Any, SortedPlaces] = {}
        self._places = _places(shape, field)
        """Where a row stands, given its place by creation: a value, and the place in that value's order; as often as it
        has values."""
        self._heeded = _heeded(shape, field)
        self._early: set[str] = set()

    def add(self, row: Row) -> None:
        self._add(row, (row.keys.created, row.id))

    def fill(self, rows: Iterable[tuple[Row, Place]]) -> None:
        """Add rows with their places by creation, but for those that have changed since the filling began."""
        for row, place in rows:
            if row.id not in self._early:
                self._add(row, place)

    def _add(self, row: Row, place: Place) -> None:
        for value, own in self._places(row, place):
            places = self._lists.get(value)
            if places is None:
                places = self._lists[value] = SortedPlaces()
            places.add(own)

    def replace(self, changes: Sequence[Change], *, filling: bool = False) -> None:
        """Put rows in the place of what they were before."""
        heeded = self._heeded
        for before, after, place in changes:
            if before is None:
                if after is not None:
                    self._add(after, place)
            elif after is None:
                self._take(before)
            elif filling or before.deleted != after.deleted or heeded(before.keys) != heeded(after.keys):
                self._add(after, _shared(self._take(before), place))
        if filling:
            self._early.update(row.id for before, after, _ in changes if (row := after or before) is not None)

    def _take(self, row: Row) -> Place | None:
        """Take a row out; returns its place, as it was kept."""
        taken = None
        for value, place in self._places(row, (row.keys.created, row.id)):
            places = self._lists.get(value)
            if places is not None:
                taken = places.take(place)
                if not places:
                    del self._lists[value]
        return taken

    def filled(self) -> None:
        """Nothing is missing any more."""
        self._early = set()

    def content(self) -> dict[Any, list[Place]]:
        return {value: list(places) for value, places in self._lists.items()}

    def in_order(self) -> list[Place]:
        """All places of an index without values."""
        return list(self._lists.get("", ()))

    def walk(self, query: Query) -> Iterator[Place]:
        low, high = _ends(query)
        walks = [places.between(low, high, descending=query.descending) for places in self._walked(query)]
        if len(walks) == 1:
            return walks[0]
        # A record may have several of the values, and is met once.
        return (place for place, _ in groupby(heapq.merge(*walks, reverse=query.descending)))

    def count(self, query: Query) -> int:
        """How many places the walk would meet."""
        lists = self._walked(query)
        if len(lists) > 1 and self._many_valued:
            return sum(1 for _ in self.walk(query))
        low, high = _ends(query)
        return sum(places.count(low, high) for places in lists)

    def _walked(self, query: Query) -> list[SortedPlaces]:
        found = (self._lists.get(value) for value in dict.fromkeys(_wanted(query)))
        return [places for places in found if places is not None]


def _shared(taken: Place | None, place: Place) -> Place:
    """A place made of the very objects that other indexes hold, as far as they say the same."""
    if taken is None:
        return place
    return taken if taken == place else (place[0], taken[-1])


def _wanted(query: Query) -> Sequence[Any]:
    """The values whose places a query walks, as the index names them."""
    if query.term is None:
        return ("",)
    field, *values = query.term
    if not field.startswith("label:"):
        return values
    return [(field.removeprefix("label:"), value) for value in values]


Placing = Callable[[Row, Place], Sequence[tuple[Any, Place]]]


def _places(shape: Shape, field: Any) -> Placing:
    """Where rows stand in an index."""
    if shape == "term":
        return _by_value(_VALUES[field])
    if shape == "missing":
        return lambda row, place: (
            (("", (place[-1],)),) if is_listed(row, field) and sort_key(row, field) is None else ()
        )
    if field == BY_CREATION:
        return lambda row, place: () if row.deleted else (("", place),)
    if field in ("id", "deleted"):
        return lambda row, place: (("", (sort_key(row, field), place[-1])),) if is_listed(row, field) else ()
    return _by_key(attrgetter(field))


def _by_value(values: Callable[[Keys], Sequence[Any]]) -> Placing:
    return lambda row, place: () if row.deleted else [(value, place) for value in values(row.keys)]


def _by_key(key_of: Callable[[Keys], Any]) -> Placing:
    def places(row: Row, place: Place) -> Sequence[tuple[Any, Place]]:
        key = key_of(row.keys)
        return () if key is None or row.deleted else (("", (key, place[-1])),)

    return places


def _labels(keys: Keys) -> Sequence[Any]:
    labels = keys.labels
    # They are sorted, and the name of links comes before all others.
    return labels if not labels or labels[0][0] != LINK else [label for label in labels if label[0] != LINK]


def _links(keys: Keys) -> Sequence[Any]:
    labels = keys.labels
    return () if not labels or labels[0][0] != LINK else [label for label in labels if label[0] == LINK]


_VALUES: dict[str, Callable[[Keys], Sequence[Any]]] = {
    "status": lambda keys: (keys.status or "",),
    "node": lambda keys: (keys.node or "",),
    "owner": lambda keys: (keys.owner or "",),
    "label": _labels,
    "link": _links,
}
"""The values of a term that a record has."""


def _heeded(shape: Shape, field: str) -> Callable[[Keys], Any]:
    """What of a row decides where it stands in an index, beside its id and when it was deleted."""
    if shape == "term":
        return attrgetter(BY_CREATION, "labels" if field in ("label", "link") else field)
    return attrgetter(BY_CREATION if field in ("id", "deleted") else field)


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
