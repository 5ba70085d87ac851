"""Whether a stored row agrees with itself: its record, its index keys, its lease.

Owns what must hold within one row, and making index keys again. Must not know other rows, engines or requests.

What depends on the time is not judged by the clock: a record whose time has come is ready as soon as somebody promotes
it, and waits until then. Either is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from statesvc_client.errors import BadRequest
from statesvc_client.wire import Fields, Lease

from ..backends.port import Keys, Row
from . import clock
from .kinds import Kind
from .queueing import Times
from .records import decode, index_keys
from .retention import SLACK_SECONDS

_written = clock.Stamper().text
_EARLIEST, _LATEST = -(2**63), 2**63 - 1


def record_of(row: Row) -> Fields | None:
    """The record of a living row; None when it cannot be read."""
    try:
        return decode(row.body)
    except msgspec.MsgspecError:
        return None


def tombstone_faults(row: Row) -> Iterator[str]:
    keys = row.keys
    if row.body:
        yield "is deleted and still has a record"
    if keys != Keys(created=keys.created, updated=keys.updated, status=keys.status):
        yield "is deleted and still indexed like a living record"


def faults(row: Row, record: Fields, kind: Kind) -> Iterator[str]:
    """What is wrong with a living row besides its index keys; each to be read behind the record's name."""
    for field, stored in ((kind.id_field, row.id), ("uid", row.uid), ("revision", row.revision)):
        if record.get(field) != stored:
            yield f"is stored with another {field} than the record has"
    yield from _lease_faults(row, record)


def _lease_faults(row: Row, record: Fields) -> Iterator[str]:
    if record.get("lease") is None:
        return
    try:
        lease = msgspec.convert(record["lease"], Lease)
    except msgspec.ValidationError as problem:
        yield f"has a lease that cannot be read: {problem}"
        return
    if lease.token > row.token:
        yield f"is leased with token {lease.token}, which was never given out: the newest is {row.token}"


# --- index keys ----------------------------------------------------------------------------------------------------


def key_faults(row: Row, record: Fields, kind: Kind) -> str | None:
    """What is wrong with the index keys of a living row: which of them do not follow from its record."""
    try:
        due = keys_of(row, record, kind, _LATEST)
        if row.keys == due:
            return None
        possible = (due, keys_of(row, record, kind, _EARLIEST))
    except (BadRequest, AttributeError, TypeError) as problem:
        return f"has a field that cannot be indexed: {problem}"
    if row.keys == possible[1]:
        return None
    wrong = [name for name in Keys.__struct_fields__ if all(_differ(name, row.keys, keys) for keys in possible)]
    return f"is indexed otherwise than its record says, by {', '.join(wrong) or 'ready and due'}"


def _differ(name: str, stored: Keys, made: Keys) -> bool:
    return bool(getattr(stored, name) != getattr(made, name))


def keys_of(row: Row, record: Fields, kind: Kind, now: int) -> Keys:
    """The index keys, made again from the record. Whether those it depends on have completed only the row knows."""
    stored = row.keys
    times = Times(
        _parsed(record.get("createdAt"), "createdAt", stored.created),
        _parsed(record.get("updatedAt"), "updatedAt", stored.updated),
        _time(record, "startedAt", stored.started),
        _completed(record, stored.completed),
    )
    return index_keys(kind, record, times, row, now)


def _completed(record: Fields, stored: int | None) -> int | None:
    """Retention counts an end that lies ahead as the moment it came across it; the record says what it was told."""
    told = _time(record, "completedAt", stored)
    was_ahead = told is not None and stored is not None and told - stored >= SLACK_SECONDS * clock.SECOND
    return stored if was_ahead else told


def _time(record: Fields, name: str, stored: int | None) -> int | None:
    return _parsed(record[name], name, stored) if clock.given(record.get(name)) else None


def _parsed(text: object, name: str, stored: int | None) -> int:
    # Nearly always it is the stored time as we write it, and writing is quicker than reading.
    return stored if stored is not None and _written(stored) == text else clock.parse(text, name)
