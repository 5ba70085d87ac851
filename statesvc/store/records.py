"""Records: from a client's fields to a row and back.

Owns spelling, ids, the managed fields and the index keys of a record. Must not know ops, engines or exactly-once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from statesvc_client.errors import BadRequest
from statesvc_client.scanning import Extent, extent_of, values_at_most
from statesvc_client.spelling import MANAGED, SECRET
from statesvc_client.wire import Fields, Limits, printable

from ..backends.port import LINK, Keys, Row
from . import clock
from .kinds import Kind
from .queueing import Times, standing

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_SECRET = SECRET.encode()

SPARE_VALUES = 64
SPARE_DEPTH = 3
"""What is kept free of a frame's values and depth for what stands around a record in any op, and for what the daemon
itself adds to one: a lease, times, why it ended."""

_ADDED_LATER = MANAGED - {"uid", "revision", "createdAt", "updatedAt"}
"""What the daemon puts into a record in the course of its life."""

_MOVING = MANAGED | {"status"}
"""What changes with every step of a record's life, whatever its size. Each is bound by itself: times by how they are
written, a status by being one of its lifecycle's."""

PRIORITIES = {"low": 1, "normal": 5, "high": 10, "critical": 15}
USUAL_PRIORITY = 1_000_000
"""Whole numbers up to here need no closer look."""

_TEXTS = frozenset({str})
"""What the values of labels are of that can all be indexed."""


def decode(body: bytes) -> Fields:
    return _decode(body)


def encode(fields: Fields) -> bytes:
    """The record as clients are sent it."""
    return _encode(fields)


def is_small(body: bytes, limits: Limits) -> bool:
    """Whether it cannot be larger than a record may be: a value takes a byte, a level of nesting two, and the least
    `record_bytes` there can be is more than that."""
    size = len(body)
    return size <= 2 * (limits.depth - SPARE_DEPTH) and size <= limits.frame_values - SPARE_VALUES


def may_be_deep(given: Fields, limits: Limits) -> bool:
    """Whether it has enough brackets for more levels than a record may have."""
    text = _encode(given)
    return text.count(b"[") + text.count(b"{") > limits.depth - SPARE_DEPTH


def check_growth(
    kind: Kind, fields: Fields, body: bytes, before: bytes, limits: Limits, *, may_be_deeper: bool
) -> None:
    """Refuse a record that a client has made larger than it may be, or than any op could carry: who reads it could not
    send it back, and no import would take it. What the daemon has added since it was made does not count. Nor does what
    was there before, when the limits were others: a write that leaves no more of it than it found is let through, and
    what only moves it on."""
    most = Extent(limits.record_bytes, limits.frame_values - SPARE_VALUES, limits.depth - SPARE_DEPTH)
    may_be_too_deep = may_be_deeper and body.count(b"[") + body.count(b"{") > most.depth
    if len(body) <= most.size and values_at_most(body) <= most.values and not may_be_too_deep:
        return
    if _is_within(extent_of(body), most):
        return
    now, was = _extent_at_birth(fields), _extent_moved_on(kind, decode(before), fields) if before else Extent(0, 0, 0)
    if now.size > max(most.size, was.size):
        raise BadRequest(f"the record would take {now.size} bytes; the limit is {most.size}")
    if now.values > max(most.values, was.values):
        raise BadRequest(f"the record would hold more than {most.values} JSON values")
    if now.depth > max(most.depth, was.depth):
        raise BadRequest(f"the record would be nested deeper than {most.depth}")


def _is_within(extent: Extent, most: Extent) -> bool:
    return extent.size <= most.size and extent.values <= most.values and extent.depth <= most.depth


def _extent_at_birth(fields: Fields) -> Extent:
    """What it would have if it were made as it is now."""
    return extent_of(_encode({name: value for name, value in fields.items() if name not in _ADDED_LATER}))


def _extent_moved_on(kind: Kind, before: Fields, now: Fields) -> Extent:
    """What it would have if nothing had changed in it but how far it is."""
    moving = MANAGED if kind.lifecycle is None else _MOVING
    return _extent_at_birth(before | {name: now[name] for name in moving & now.keys()})


def without_secrets(body: bytes) -> bytes:
    """The record for anyone but a reader: replies to writes, errors, events."""
    if _SECRET not in body:
        return body
    fields = decode(body)
    fields.pop(SECRET, None)
    return _encode(fields)


def spelled(kind: Kind, given: Fields) -> Fields:
    """The same fields with known names in their own spelling."""
    return kind.spelling.of_fields(given)


def spelled_path(kind: Kind, names: list[str]) -> list[str]:
    return [kind.spelling.of(names[0]), *names[1:]]


def users_own(kind: Kind, fields: Fields) -> Fields:
    """What a client may write: everything but the id and the managed fields. Most send nothing else."""
    if not fields.keys().isdisjoint(MANAGED):
        fields = {name: value for name, value in fields.items() if name not in MANAGED}
    if kind.id_field in fields:
        fields = fields.copy()
        del fields[kind.id_field]
    return fields


def identify(kind: Kind, envelope_id: str, fields: Fields, most: int) -> str:
    """The id a write means: in the envelope, in the record, or the same in both."""
    inner = fields.get(kind.id_field)
    if inner is None or inner == envelope_id:
        return checked_id(kind, envelope_id, most)
    if inner is not None and not isinstance(inner, str):
        raise BadRequest(f"{kind.id_field} must be a string, not a {type(inner).__name__}")
    if envelope_id and inner and envelope_id != inner:
        raise BadRequest(f"the request names {printable(envelope_id)} and its record {printable(inner)}: send one id")
    return checked_id(kind, envelope_id or inner or "", most)


def checked_id(kind: Kind, name: str, most: int) -> str:
    if 0 < len(name) <= most and name.isprintable():
        return name
    if not name:
        raise BadRequest(f"{kind.id_text} is required")
    check_length(kind.id_text, name, most)
    if _CONTROL.search(name):
        raise BadRequest(f"{kind.id_text} must not hold control characters: {printable(name)}")
    return name


def check_length(what: str, word: str | None, most: int) -> None:
    """For whatever is a name: it is kept beside records, or for as long as a connection lasts."""
    if word is not None and len(word) > most:
        raise BadRequest(f"{what} is {len(word)} characters long; the limit is {most}")


def index_keys(kind: Kind, fields: Fields, times: Times, before: Row | None, now: int) -> Keys:
    """What the engines index. A known field of the wrong type is refused here, by name."""
    get = fields.get
    status, node, owner = get("status"), get("nodeId"), get("owner")
    scheduled, priority, labels = get("scheduledAt"), get("priority"), get("labels")
    if type(status) is not str:
        status = _text(status, "status")
    if type(node) is not str:
        node = _text(node, "nodeId")
    if type(owner) is not str:
        owner = _text(owner, "owner")
    if priority is not None and (type(priority) is not int or not 0 <= priority <= USUAL_PRIORITY):
        priority = _priority(priority)
    links: tuple[str, ...] = ()
    if owner or kind.indexed or "lease" in fields or (before is not None and has_links(before.keys)):
        links = _links(kind, fields, owner, before)
    ready: str | None = None
    due: int | None = None
    if kind.queue is not None:
        ready, due, held_by = standing(kind.queue, fields, times, priority, before, now)
        if get("dependsOn"):
            _check_not_on_itself(kind, fields, before)
        if held_by:
            links = (*links, *held_by)
    return Keys(
        times.created,
        times.updated,
        status or None,
        node or None,
        owner or None,
        times.started,
        times.completed,
        clock.parse(scheduled, "scheduledAt") if scheduled is not None and clock.given(scheduled) else None,
        priority,
        () if labels is None and not links else _labels(labels, links),
        ready,
        due,
    )


def _check_not_on_itself(kind: Kind, fields: Fields, before: Row | None) -> None:
    """Refuse a record that would wait for itself once it waits, whatever it does now. One that is stored all the same
    must stay movable."""
    name = fields[kind.id_field]
    if name not in fields["dependsOn"]:
        return
    if before is None or before.deleted or name not in (decode(before.body).get("dependsOn") or ()):
        raise BadRequest("dependsOn must not name the record itself: it would wait for ever")


MADE = "made="
"""Link of a record whose id was allocated: by which client's write."""

LEASED = "leased"
OWNED = "owned"


def has_links(keys: Keys) -> bool:
    """Whether any of its labels are the rules' own: those sort before all others."""
    return bool(keys.labels) and keys.labels[0][0] == LINK


def _links(kind: Kind, fields: Fields, owner: str | None, before: Row | None) -> tuple[str, ...]:
    """What the rules look records up by, beside the queue's."""
    links = []
    lease = fields.get("lease")
    if lease is not None:
        links.append(LEASED)
        if "/" in lease["origin"]:
            links.append(f"origin={lease['origin']}")
    if owner and kind.swept_with_owner and "/" in owner:
        links.append(OWNED)
    links += [f"{name}={fields[name]}" for name in kind.indexed if isinstance(fields.get(name), str)]
    if before is not None and not before.deleted:
        links += [value for name, value in before.keys.labels if name == LINK and value.startswith(MADE)]
    return tuple(links)


def _text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(f"{name} must be a string, not a {type(value).__name__}")


def _priority(value: Any) -> int | float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return clock.clamp(value) if isinstance(value, int) else value
    if isinstance(value, str) and value.lower() in PRIORITIES:
        return PRIORITIES[value.lower()]
    raise BadRequest(f"priority must be a number or one of {' '.join(PRIORITIES)}")


def _labels(value: Any, links: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Labels with text values are indexed; others can still be filtered by. Links are the rules' own."""
    if not value and (value is None or isinstance(value, dict)):
        return tuple([(LINK, link) for link in sorted(links)]) if links else ()
    if not isinstance(value, dict):
        raise BadRequest(f"labels must be an object, not a {type(value).__name__}")
    if not links and LINK not in value and _TEXTS.issuperset(map(type, value.values())):
        return tuple(sorted(value.items()))
    given = [label for label in value.items() if type(label[1]) is str and label[0] != LINK]
    given += [(LINK, link) for link in links]
    given.sort()
    return tuple(given)
