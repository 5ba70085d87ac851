"""Walks: queries along indexes, in the order that was asked for.

Owns which index a query walks, merging several, and what is in an order no index has. Must not know commits or the log.

    created                   walk index
    created, with a status    status-createdAt-index;  with a node: nodeId-createdAt-index
    created, with a label     hints, as with an owner; what has none of these is looked for along the walk index
    completed                 completed index: those who sweep look there once a minute
    ready, due, deleted       indexes of their own, which hold nothing else
    all others                the index keys of the whole kind are read and sorted in memory

Indexes of DynamoDB follow their table with a delay. What they show is a candidate: its row is read, as it is now, and
counts only if it stands where the index has it. What was committed lately is looked for in memory besides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ..port import Keys, Query, Row, sort_key
from .fetching import Fetcher
from .hints import Hint, Hints
from .items import binary, text
from .known import Recent
from .layout import (
    BY_COMPLETED,
    BY_DUE,
    BY_NODE,
    BY_READY,
    BY_STATUS,
    BY_WALK,
    JOB,
    KEYS,
    LEAST_MOMENT,
    MOST_MOMENT,
    NO_STATUS,
    OWNER,
    PK,
    IndexShape,
    Item,
    Tables,
    Trait,
    moment_text,
    ready_text,
    record_key,
)  # fmt: skip

PAGE = 1000
"""Candidates read by one query of an index, at most."""

SPARE = 8
"""Candidates read beyond what is wanted: some will not stand where the index has them."""

_keys = msgspec.msgpack.Decoder(Keys)

Form = Callable[[Any], Any]
"""A sort key in the form a walk compares."""


class Candidate(NamedTuple):
    """A record that may stand at a place."""

    at: Any
    id: str
    hint: Hint | None = None
    """What led to it, if it was a hint."""


class Range(NamedTuple):
    """The part of an order a query asks for, in the form of its walk; both ends included."""

    low: Any
    high: Any

    @property
    def is_empty(self) -> bool:
        return bool(self.low > self.high)


class Piece(NamedTuple):
    """Candidates in order, and whether these are the last."""

    candidates: list[Candidate]
    is_last: bool


class Source:
    """Candidates in order, a page at a time."""

    def __init__(self, pieces: AsyncIterator[Piece]) -> None:
        self._pieces = pieces
        self.waiting: list[Candidate] = []
        self.is_over = False

    async def fill(self) -> None:
        piece = await anext(self._pieces)
        self.waiting += piece.candidates
        self.is_over = piece.is_last


class Walks:
    """Queries on the two tables."""

    def __init__(self, fetcher: Fetcher, hints: Hints, recent: Recent) -> None:
        self._fetcher = fetcher
        self._hints = hints
        self._recent = recent

    @property
    def _tables(self) -> Tables:
        return self._fetcher.tables

    async def query(self, query: Query) -> list[Row]:
        found: dict[str, Row] = {}
        async for group in self._groups(query, query.limit):
            left = group
            while left and len(found) < query.limit:
                some, left = left[: query.limit - len(found)], left[query.limit - len(found) :]
                rows = await self._standing(query, [each for each in some if each.id not in found])
                found |= {row.id: row for row in rows}
            if len(found) >= query.limit:
                break
        return list(found.values())

    async def count(self, query: Query) -> int:
        """Without fetching rows where an index is to be believed; what changed lately is looked at."""
        met: set[str] = set()
        unsure: set[str] = {row.id for row in self._recent.of_kind(query.kind)}
        doubtful = _is_hinted(query)
        async for group in self._groups(query, PAGE):
            sure = [] if doubtful else [each for each in group if each.id not in unsure]
            met.update(each.id for each in sure)
            rows = await self._standing(query, [each for each in group if doubtful or each.id in unsure])
            met.update(row.id for row in rows)
        return len(met)

    async def _standing(self, query: Query, candidates: Sequence[Candidate]) -> list[Row]:
        """The rows of candidates that stand where they are expected, in their order."""
        if not candidates:
            return []
        form = _form(query)
        stored = await self._fetcher.records([(query.kind, each.id) for each in candidates])
        found: list[Row] = []
        for each in candidates:
            there = stored.get((query.kind, each.id))
            row = None if there is None else there.row
            if row is not None and matches(row, query) and form(_place(row, query)) == each.at:
                found.append(row)
            elif each.hint is not None:
                await self._hints.did_not_help(each.hint, row)
        return found

    # --- candidates in order -----------------------------------------------------------------------------------------

    async def _groups(self, query: Query, wanted: int) -> AsyncIterator[list[Candidate]]:
        """Candidates, in pieces that are complete: what stands at one place is in one piece, and none comes later."""
        bounds = _range(query)
        if bounds.is_empty:
            return
        sources = [Source(pieces) for pieces in self._sources(query, bounds, wanted)]
        sources.append(Source(self._changed_lately(query)))
        while True:
            for source in sources:
                while not source.is_over and not source.waiting:
                    await source.fill()
            ready = _complete(sources, descending=query.descending)
            if ready:
                yield [each for each in ready if _may_be_behind(each, query)]
            elif all(source.is_over for source in sources):
                return
            else:
                # All that waits may have more beside it at the same place.
                for source in sources:
                    if not source.is_over:
                        await source.fill()

    def _sources(self, query: Query, bounds: Range, wanted: int) -> Iterable[AsyncIterator[Piece]]:
        page = min(PAGE, wanted + SPARE)
        if query.kind == JOB and not self._tables.walked:
            return [self._sorted(query, self._scanned(query))]
        if query.term is not None:
            return [self._of_term(query, bounds, page, value) for value in dict.fromkeys(query.term[1:])]
        if query.sort == "created":
            return [self._indexed(query, bounds, page, BY_WALK, query.kind)]
        if query.sort == "completed" and not query.missing:
            return [self._indexed(query, bounds, page, BY_COMPLETED, query.kind)]
        if query.sort == "ready":
            return [self._indexed(query, bounds, page, BY_READY, query.kind)]
        if query.sort in ("due", "deleted"):
            return [self._indexed(query, bounds, page, BY_DUE, f"{query.kind}#{query.sort}")]
        return [self._sorted(query, self._all_keys(query.kind))]

    def _of_term(self, query: Query, bounds: Range, page: int, value: str) -> AsyncIterator[Piece]:
        field = (query.term or ("",))[0]
        prefix = "" if query.kind == JOB else f"{query.kind}#"
        if field == "status":
            return self._indexed(query, bounds, page, BY_STATUS, prefix + (value or NO_STATUS))
        if field.startswith("label:"):
            return self._hinted(query, bounds, (field, value), page)
        if not value:
            return self._indexed(query, bounds, page, BY_WALK, query.kind, lambda keys: not getattr(keys, field))
        if field == "owner":
            return self._hinted(query, bounds, (OWNER, value), page)
        return self._indexed(query, bounds, page, BY_NODE, prefix + value)

    async def _indexed(
        self,
        query: Query,
        bounds: Range,
        page: int,
        index: IndexShape,
        partition: str,
        only: Callable[[Keys], bool] | None = None,
    ) -> AsyncIterator[Piece]:
        request: dict[str, Any] = {
            "TableName": self._tables.name_of(query.kind),
            "IndexName": index.name,
            "KeyConditionExpression": "#hash = :hash AND #range BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#hash": index.hash, "#range": index.range},
            "ExpressionAttributeValues": {
                ":hash": {"S": partition},
                ":low": {"S": bounds.low},
                # Behind every id that may follow.
                ":high": {"S": bounds.high + "\U0010ffff"},
            },
            "ScanIndexForward": not query.descending,
        }
        start: Item | None = None
        while True:
            items, start = await self._fetcher.page("Query", request | {"Limit": page}, start)
            kept = [item for item in items if only is None or only(_keys.decode(binary(item[KEYS])))]
            found = [
                Candidate(_sort_text(item[index.range]["S"], index), self._id_of(item, query.kind)) for item in kept
            ]
            yield Piece(found, start is None)
            # Where many stand at one place all of them are read.
            page = min(PAGE, 2 * page)

    def _id_of(self, item: Item, kind: str) -> str:
        if kind == JOB:
            return text(item, self._tables.key)
        key = record_key(text(item, PK))
        return "" if key is None else key[1]

    async def _hinted(self, query: Query, bounds: Range, trait: Trait, page: int) -> AsyncIterator[Piece]:
        walk = self._hints.walk(query.kind, trait, (bounds.low, bounds.high), page, descending=query.descending)
        async for hints, is_last in walk:
            yield Piece([Candidate(hint.created, hint.id, hint) for hint in hints], is_last)

    async def _changed_lately(self, query: Query) -> AsyncIterator[Piece]:
        form = _form(query)
        rows = [row for row in self._recent.for_query(query) if matches(row, query)]
        found = [Candidate(form(_place(row, query)), row.id) for row in rows]
        yield Piece(sorted(found, reverse=query.descending), is_last=True)

    # --- orders no index has -----------------------------------------------------------------------------------------

    async def _sorted(self, query: Query, rows: AsyncIterator[list[Row]]) -> AsyncIterator[Piece]:
        form = _form(query)
        found: list[Candidate] = []
        async for some in rows:
            found += [Candidate(form(_place(row, query)), row.id) for row in some if matches(row, query)]
        found.sort(reverse=query.descending)
        yield Piece(found, is_last=True)

    async def _all_keys(self, kind: str) -> AsyncIterator[list[Row]]:
        """Every living record of a kind, as far as its index keys tell."""
        request = {
            "TableName": self._tables.name_of(kind),
            "IndexName": BY_WALK.name,
            "KeyConditionExpression": "#hash = :hash",
            "ExpressionAttributeNames": {"#hash": BY_WALK.hash},
            "ExpressionAttributeValues": {":hash": {"S": kind}},
        }
        async for items in self._fetcher.pages("Query", request):
            yield [
                Row(kind, self._id_of(item, kind), "", 0, _keys.decode(binary(item[KEYS])), b"")
                for item in items
                if KEYS in item
            ]

    async def _scanned(self, query: Query) -> AsyncIterator[list[Row]]:
        """Every job there is. For a table whose items are not all in the indexes."""
        async for rows in self._fetcher.scanned(self._tables.jobs):
            yield [row for row, _ in rows if row.kind == query.kind]


# --- what a query asks for -------------------------------------------------------------------------------------------


def matches(row: Row, query: Query) -> bool:
    """Whether a row is one that a walk meets."""
    if row.kind != query.kind or not (row.deleted > 0 if query.sort == "deleted" else row.deleted == 0):
        return False
    key = sort_key(row, query.sort)
    if query.missing:
        return key is None and _is_behind(row, query)
    return key is not None and _has_term(row, query) and _is_within(key, query) and _is_behind(row, query)


def _is_within(key: Any, query: Query) -> bool:
    return (query.low is None or key >= query.low) and (query.high is None or key < query.high)


def _has_term(row: Row, query: Query) -> bool:
    if query.term is None:
        return True
    field, *values = query.term
    if field.startswith("label:"):
        return any((field.removeprefix("label:"), value) in row.keys.labels for value in values)
    return (getattr(row.keys, field) or "") in values


def _is_behind(row: Row, query: Query) -> bool:
    if query.after is None:
        return True
    last = (query.after.id if query.missing else query.after.key, query.after.id)
    mine = (_place(row, query), row.id)
    return mine < last if query.descending else mine > last


def _may_be_behind(candidate: Candidate, query: Query) -> bool:
    """Whether a candidate is one that is yet to be met; what comes before it need not be read."""
    if query.after is None:
        return True
    last = (query.after.id if query.missing else _form(query)(query.after.key), query.after.id)
    return candidate[:2] < last if query.descending else candidate[:2] > last


def _place(row: Row, query: Query) -> Any:
    return row.id if query.missing else sort_key(row, query.sort)


def _form(query: Query) -> Form:
    if query.missing:
        return _as_it_is
    if query.sort in ("created", "completed", "due", "deleted"):
        return moment_text
    return ready_text if query.sort == "ready" else _as_it_is


def _as_it_is(key: Any) -> Any:
    return key


def _range(query: Query) -> Range:
    """From the bounds and the place behind which to go on. What lies at the ends is looked at more closely later."""
    form = _form(query)
    if form is _as_it_is:
        return Range(0, 0)
    least: Any = LEAST_MOMENT if form is moment_text else ""
    most: Any = MOST_MOMENT if form is moment_text else "\U0010ffff"
    low, high = query.low if query.low is not None else least, query.high if query.high is not None else most
    if query.after is not None and query.after.key is not None:
        low, high = (low, min(high, query.after.key)) if query.descending else (max(low, query.after.key), high)
    return Range(form(low), form(high))


def _is_hinted(query: Query) -> bool:
    field = query.term[0] if query.term else ""
    return field.startswith("label:") or field == "owner"


def _sort_text(stored: str, index: IndexShape) -> str:
    """The sort key without the id that may follow it."""
    return stored.partition("#")[0] if index is BY_WALK else stored


# --- merging ---------------------------------------------------------------------------------------------------------


def _complete(sources: Sequence[Source], *, descending: bool) -> list[Candidate]:
    """Takes out the candidates that no source can add to: those before the last place of each that has more."""
    ends = [source.waiting[-1].at for source in sources if not source.is_over]
    horizon = None if not ends else max(ends) if descending else min(ends)
    taken: list[list[Candidate]] = []
    for source in sources:
        if horizon is None:
            ready = len(source.waiting)
        else:
            ready = sum(1 for each in source.waiting if (each.at > horizon if descending else each.at < horizon))
        taken.append(source.waiting[:ready])
        del source.waiting[:ready]
    found: dict[tuple[Any, str], Candidate] = {}
    for each in (each for some in taken for each in some):
        if found.setdefault(each[:2], each).hint is None:
            found[each[:2]] = each  # one that a hint led to is known for it
    return [found[place] for place in sorted(found, reverse=descending)]
