"""Adopting records that came into a shared table by another hand, such as the jobs of an agent's earlier store.

Owns what such a record is to the rules before anybody has written to it here: revision 0, and a uid that follows from
its id, so that every daemon sees the same. Must not know how an engine keeps it. It is taken as it is: what is missing
stays missing, and what cannot be indexed is not indexed.
"""

from __future__ import annotations

import hashlib

import msgspec

from statesvc_client.errors import BadRequest
from statesvc_client.wire import Fields

from ..backends.port import Key, Keys, Row
from . import clock
from .kinds import Kind
from .queueing import Times
from .records import decode, index_keys, spelled
from .store import Store

_TIMES = ("createdAt", "updatedAt", "startedAt", "completedAt")


def adopted(store: Store, key: Key, body: bytes) -> Row:
    """The row of a record that has none."""
    kind = store.kinds[key[0]]
    uid = f"found-{hashlib.sha256('/'.join(key).encode()).hexdigest()[:16]}"
    record = {**spelled(kind, decode(body)), kind.id_field: key[1], "uid": uid, "revision": 0}
    _name_status(kind, record)
    return Row(*key, uid, 0, _keys(kind, record), msgspec.json.encode(record))


def _name_status(kind: Kind, record: Fields) -> None:
    """A status that is known by another spelling gets its own."""
    status = record.get("status")
    if kind.lifecycle is not None and isinstance(status, str):
        try:
            record["status"] = kind.lifecycle.canonical(status)
        except BadRequest:
            pass


def _keys(kind: Kind, record: Fields) -> Keys:
    times = {name: at for name in _TIMES if (at := _time(record.get(name))) is not None}
    created = times.get("createdAt", times.get("updatedAt", times.get("completedAt", 0)))
    known = Times(created, times.get("updatedAt", created))
    known.started, known.completed = times.get("startedAt"), times.get("completedAt")
    indexed = {name: value for name, value in record.items() if _may_be_indexed(name, value)}
    try:
        # At the beginning of time: what waits for a moment is promoted when it is first looked at.
        return index_keys(kind, indexed, known, None, 0)
    except (BadRequest, TypeError, AttributeError, ValueError):
        status = record.get("status")
        return Keys(created, known.updated, status=status if isinstance(status, str) else None)


def _may_be_indexed(name: str, value: object) -> bool:
    """Fields of the wrong type would be refused from a client; here they are only not found by."""
    if name in ("status", "owner", "nodeId"):
        return value is None or isinstance(value, str)
    return name != "scheduledAt" or _time(value) is not None


def _time(value: object) -> int | None:
    try:
        return clock.parse(value, "time") if clock.given(value) else None
    except BadRequest:
        return None
