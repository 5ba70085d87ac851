"""Where a row stands: its places in the indexes of its kind, in the form they are stored in beside the row.

Owns that form; scripts/prelude.lua reads it. Must not know how indexes are stored or walked.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from ..port import Keys, Row
from . import encoding, indexes

_size = struct.Struct(">I").pack
_head = struct.Struct(">8sI")


def _named(name: bytes) -> bytes:
    return bytes((len(name),)) + name


_TIME_SIZE = _size(encoding.TIME_BYTES)
_SORTED = {sort: _named(name) for sort, name in indexes.SORTED.items()}
_UPDATED, _STARTED, _COMPLETED, _SCHEDULED, _DUE, _DELETED = (
    _SORTED[sort] + _TIME_SIZE for sort in ("updated", "started", "completed", "scheduled", "due", "deleted")
)
_CREATED, _PRIORITY, _STATUS, _READY = (_SORTED[sort] for sort in ("created", "priority", "status", "ready"))
_NO_START, _NO_END, _NO_SCHEDULE, _NO_PRIORITY, _NO_STATUS = (
    indexes.MISSING_BITS[sort] for sort in ("started", "completed", "scheduled", "priority", "status")
)
_BY_ID = [_named(name) + _size(0) for name in indexes.BY_ID]


def places(row: Row) -> bytes:
    keys = row.keys
    created = encoding.of_time(keys.created)
    if row.deleted:
        return _head.pack(created, 0) + _DELETED + encoding.of_time(row.deleted)
    by_creation = _by_creation(keys)
    parts = [_head.pack(created, len(by_creation)), *by_creation, _UPDATED, encoding.of_time(keys.updated)]
    lacking = _add_times(keys, parts) + _add_others(keys, parts)
    parts.append(_BY_ID[lacking])
    return b"".join(parts)


def _by_creation(keys: Keys) -> list[bytes]:
    """The names alone: the key is the same in all of them."""
    found = [_CREATED, _of_term("status", keys.status or "")]
    if keys.node:
        found.append(_of_term("node", keys.node))
    if keys.owner:
        found.append(_of_term("owner", keys.owner))
    if keys.labels:
        found += [_of_label(name, value) for name, value in dict.fromkeys(keys.labels)]
    return found


MOST_REMEMBERED_CHARS = 64
"""Names made of longer texts are made anew each time: what is remembered has its bound."""


def _of_term(field: str, value: str) -> bytes:
    return _remembered_term(field, value) if len(value) <= MOST_REMEMBERED_CHARS else _term(field, value)


def _of_label(name: str, value: str) -> bytes:
    short = len(name) + len(value) <= MOST_REMEMBERED_CHARS
    return _remembered_label(name, value) if short else _label(name, value)


def _term(field: str, value: str) -> bytes:
    return _named(indexes.of_term(field, value))


def _label(name: str, value: str) -> bytes:
    return _named(indexes.of_label(name, value))


# Records share their states, nodes and labels with many others.
_remembered_term = lru_cache(maxsize=4096)(_term)
_remembered_label = lru_cache(maxsize=4096)(_label)


def _add_times(keys: Keys, parts: list[bytes]) -> int:
    """Which bits are lacking."""
    lacking = 0
    if keys.started is None:
        lacking |= _NO_START
    else:
        parts += (_STARTED, encoding.of_time(keys.started))
    if keys.completed is None:
        lacking |= _NO_END
    else:
        parts += (_COMPLETED, encoding.of_time(keys.completed))
    if keys.scheduled is None:
        lacking |= _NO_SCHEDULE
    else:
        parts += (_SCHEDULED, encoding.of_time(keys.scheduled))
    if keys.due is not None:
        parts += (_DUE, encoding.of_time(keys.due))
    return lacking


def _add_others(keys: Keys, parts: list[bytes]) -> int:
    lacking = 0
    if keys.priority is None:
        lacking |= _NO_PRIORITY
    else:
        parts += _keyed(_PRIORITY, encoding.of_number(keys.priority))
    if keys.status is None:
        lacking |= _NO_STATUS
    else:
        status = keys.status
        short = len(status) <= MOST_REMEMBERED_CHARS
        parts += _keyed(_STATUS, encoding.of_word(status) if short else encoding.of_text(status))
    if keys.ready is not None:
        parts += _keyed(_READY, encoding.of_text(keys.ready))
    return lacking


def _keyed(name: bytes, key: bytes) -> tuple[bytes, bytes, bytes]:
    return name, _size(len(key)), key


def read_places(stored: bytes) -> dict[bytes, bytes]:
    """The name of each index, and the row's key in it."""
    created, count = _head.unpack_from(stored)
    names = read_names(stored[_head.size :], count)
    found = dict.fromkeys(names, created)
    at = _head.size + sum(1 + len(name) for name in names)
    while at < len(stored):
        [name] = read_names(stored[at:], 1)
        at += 1 + len(name)
        (size,) = struct.unpack_from(">I", stored, at)
        found[name] = stored[at + 4 : at + 4 + size]
        at += 4 + size
    return found


def read_names(packed: bytes, most: int | None = None) -> list[bytes]:
    """Names of indexes, each with its length before it."""
    found: list[bytes] = []
    at = 0
    while at < len(packed) and (most is None or len(found) < most):
        size = packed[at]
        found.append(packed[at + 1 : at + 1 + size])
        at += 1 + size
    return found
