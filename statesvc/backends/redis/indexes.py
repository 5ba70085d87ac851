"""The indexes of a kind, by name.

Owns these names and what a member of each looks like. Must not know rows, queries, or how members are stored.

    c u s e w q d         by created, updated, started, completed (ended), scheduled (waits until), due, deleted
    p t r                 by priority, by status (text), by ready
    m0 ... mv             by id: the rows that lack the same of the sort keys a row may lack, one bit for each
    =s =n =o =l           by created: the rows with one status, node, owner or label

The rows that lack a key are those of all `m` with its bit, all living rows are those of all `m`: so one place of a row
serves every walk by id. A row without node or owner has no place for that: nobody on the wire can ask for such rows.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from . import encoding

SORTED: dict[str, bytes] = {
    "created": b"c",
    "updated": b"u",
    "started": b"s",
    "completed": b"e",
    "scheduled": b"w",
    "priority": b"p",
    "status": b"t",
    "ready": b"r",
    "due": b"q",
    "deleted": b"d",
}
"""By sort key."""

TERMS: dict[str, bytes] = {"status": b"=s", "node": b"=n", "owner": b"=o"}
"""How the names of a field's terms begin; labels have names of their own before the value."""

MISSING_BITS: dict[str, int] = {"started": 1, "completed": 2, "scheduled": 4, "priority": 8, "status": 16}

BY_ID: list[bytes] = [b"m" + digit.encode() for digit in "0123456789abcdefghijklmnopqrstuv"]
"""By the bits of the keys that are missing."""

ALWAYS: list[bytes] = [*SORTED.values(), *BY_ID]
"""All but those of terms, which come from clients."""

LONGEST_VALUE = 64
"""Bytes of a term's value within a name; what is longer is named by its digest."""

_ENCODINGS: dict[str, Callable[[Any], bytes]] = {
    "id": encoding.of_id,
    "priority": encoding.of_number,
    "status": encoding.of_text,
    "ready": encoding.of_text,
}
_TEXTS = frozenset(SORTED[sort] for sort in ("priority", "status", "ready"))


def encoder(sort: str) -> Callable[[Any], bytes]:
    """What makes the key of a member from a value."""
    return _ENCODINGS.get(sort, encoding.of_time)


def before_id(name: bytes) -> str:
    """How many bytes of a member stand before the id; "t" for a text that ends with a zero byte."""
    if name in _TEXTS:
        return "t"
    return "0" if name.startswith(b"m") else str(encoding.TIME_BYTES)


def of_term(field: str, value: str) -> bytes:
    return TERMS[field] + _bounded(value)


def of_label(name: str, value: str) -> bytes:
    first = _bounded(name)
    return b"=l%d:%b%b" % (len(first), first, _bounded(value))


def _bounded(text: str) -> bytes:
    """A text of bounded length that no other text shares. The first byte tells texts from digests."""
    raw = encoding.of_id(text)
    return b":" + raw if len(raw) <= LONGEST_VALUE else b"#" + blake2b(raw, digest_size=32).digest()


_SHOWN = {name: f"by {sort}" for sort, name in SORTED.items()} | dict.fromkeys(BY_ID, "by id")
_SHOWN_TERMS = {begin: field for field, begin in TERMS.items()} | {b"=l": "label"}


def shown(name: bytes) -> str:
    """The name of an index for people."""
    if name in _SHOWN:
        return _SHOWN[name]
    return f"of the {_SHOWN_TERMS[name[:2]]} {name[2:].decode('utf-8', 'backslashreplace')}"
