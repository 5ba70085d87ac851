"""Which indexes a query walks, and between which bounds.

Owns that translation. Must not know how an index is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..port import Query
from . import encoding, indexes


class Walk(NamedTuple):
    """What a query asks of the indexes."""

    names: Sequence[bytes]
    """The rows of all of them, merged."""
    low: bytes
    high: bytes
    """As BYLEX wants them."""
    before_id: str
    disjoint: bool = True
    """No row is in two of them."""


def walk(query: Query) -> Walk | None:
    """How to answer a query; None when no index can: it asks for rows without a node or owner."""
    if query.term is not None:
        return _by_term(query, query.term)
    if query.missing or query.sort == "id":
        return Walk(_by_id(query), *_bounds(query, encoding.of_id), indexes.before_id(indexes.BY_ID[0]))
    name = indexes.SORTED[query.sort]
    return Walk([name], *_bounds(query, indexes.encoder(query.sort)), indexes.before_id(name))


def _by_term(query: Query, term: tuple[str, ...]) -> Walk | None:
    field, *values = term
    unique = list(dict.fromkeys(values))
    is_label = field.startswith("label:")
    if is_label:
        names = [indexes.of_label(field.removeprefix("label:"), value) for value in unique]
    elif field != "status" and "" in unique:
        return None
    else:
        names = [indexes.of_term(field, value) for value in unique]
    # A record has one status, node and owner, but may have several labels of one name.
    bounds = _bounds(query, encoding.of_time)
    return Walk(names, *bounds, indexes.before_id(indexes.SORTED["created"]), not is_label or len(names) == 1)


def _by_id(query: Query) -> list[bytes]:
    if not query.missing:
        return indexes.BY_ID
    bit = indexes.MISSING_BITS.get(query.sort)
    return [] if bit is None else [name for mask, name in enumerate(indexes.BY_ID) if mask & bit]


def _bounds(query: Query, encode: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
    """An encoded key lies before every member that begins with it: so low takes a key in, high leaves it out."""
    low = b"" if query.low is None or query.missing else encode(query.low)
    high = None if query.high is None or query.missing else encode(query.high)
    if query.after is not None:
        key = b"" if query.missing or query.sort == "id" else encode(query.after.key)
        place = key + encoding.of_id(query.after.id)
        # A place beyond a bound does not widen it. A zero byte takes the place itself out at the lower end.
        if query.descending:
            high = place if high is None else min(high, place)
        else:
            low = max(low, place + b"\0")
    return b"[" + low, b"+" if high is None else b"(" + high
