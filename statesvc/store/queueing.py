"""Where a record stands in its kind's queue: ready, waiting for a time, or held back by others.

Owns the queue fields of a record, the order of claims and the retry policy. Must not know leases, engines or requests;
nothing here looks at another record. Whether dependencies are met is judged in dependencies.py.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import msgspec

from statesvc_client.errors import BadRequest
from statesvc_client.spelling import QUEUE_FIELDS
from statesvc_client.wire import Fields, printable

from ..backends.port import LINK, Row
from . import clock
from .kinds import Queue

MOST_DEPENDENCIES = 100
"""Records one may depend on: each is an index entry while it waits, and is read to judge it."""

MOST_TEXT_CHARS = 256
"""Of an id that is depended on, or a key: both are found by an index."""

NORMAL_PRIORITY = 5
"""Where a record without a priority stands."""

RETRY_SECONDS = 1.0
"""Before the first retry of a record that does not say."""

MOST_RETRY_SECONDS = 3600.0
"""Where doubling ends, unless the record itself asks for longer."""

JITTER = 0.25
"""Part of a delay that is added at random, so that what failed together does not come back together."""

BLOCKED = "blocked"

_HOLDING_FIELDS = frozenset(QUEUE_FIELDS) - {"priority"}
"""Fields that make more of a record's standing than its place in the order."""


class Times(msgspec.Struct, gc=False):
    """The managed times of a record, as nanoseconds."""

    created: int
    updated: int
    started: int | None = None
    completed: int | None = None


class Standing(NamedTuple):
    """What the queue makes of a record."""

    ready: str | None = None
    due: int | None = None
    links: tuple[str, ...] = ()


NOT_QUEUED = Standing()


def standing(
    queue: Queue, fields: Fields, times: Times, priority: float | None, before: Row | None, now: int
) -> Standing:
    """Where the record stands. One that depends on others is held back until they are found to have completed."""
    status = fields.get("status")
    if fields.keys().isdisjoint(_HOLDING_FIELDS):
        if status in queue.claimable and "lease" not in fields:
            return Standing(ready=_place(priority, times.created, times.created))
        return NOT_QUEUED
    check_fields(fields)
    needed = dependencies(fields)
    met = _met_link(needed) if needed else None
    links = (met,) if met is not None and times.completed is None and _was_met(before, met) else ()
    if status not in queue.claimable or "lease" in fields:
        return Standing(due=deadline(fields, times) if _runs(times) else None, links=links)
    if needed and not links:
        return Standing(links=(BLOCKED, *(f"after={name}" for name in needed)))
    begins = earliest(fields)
    if begins is not None and begins > now:
        return Standing(due=begins, links=links)
    scheduled = fields.get("scheduledAt")
    at = clock.parse(scheduled, "scheduledAt") if clock.given(scheduled) else times.created
    return Standing(ready=_place(priority, at, times.created), links=links)


def _runs(times: Times) -> bool:
    return times.started is not None and times.completed is None


def _place(priority: float | None, scheduled: int, created: int) -> str:
    """Priority, highest first, then the time it is for, then age: as text that sorts."""
    rank = struct.unpack(">Q", struct.pack(">d", 0.0 - float(NORMAL_PRIORITY if priority is None else priority)))[0]
    rank = rank ^ (2**64 - 1) if rank >> 63 else rank | 1 << 63
    return f"{rank:016x}{scheduled + 2**63:016x}{created + 2**63:016x}"


def deadline(fields: Fields, times: Times) -> int | None:
    """When a running record has taken too long."""
    timeout = fields.get("timeout")
    if not timeout or times.started is None:
        return None
    return clock.clamp(times.started + int(timeout * clock.SECOND))


def earliest(fields: Fields) -> int | None:
    """Before this it is not to be started."""
    given = [clock.parse(fields[name], name) for name in ("scheduledAt", "startAfter") if clock.given(fields.get(name))]
    return max(given, default=None)


# --- dependencies --------------------------------------------------------------------------------------------------


def dependencies(fields: Fields) -> list[str]:
    return list(dict.fromkeys(fields.get("dependsOn") or ()))


def met(fields: Fields) -> str:
    """The link that says: what the record depends on, as it stands, has completed."""
    return _met_link(dependencies(fields))


def _met_link(needed: list[str]) -> str:
    return f"met={zlib.crc32(chr(0).join(needed).encode()):08x}.{len(needed)}"


def _was_met(before: Row | None, link: str) -> bool:
    return before is not None and (LINK, link) in before.keys.labels


# --- the retry policy ----------------------------------------------------------------------------------------------


def retries_left(fields: Fields) -> bool:
    """Whether a failed run may be followed by another."""
    return (fields.get("retryCount") or 0) < (fields.get("maxRetries") or 0)


def survives_a_lapse(fields: Fields) -> bool:
    """Whether a record whose holder was lost goes back to the queue. One that does not say how often always does: it is
    the holder that failed, not the record."""
    return fields.get("maxRetries") is None or retries_left(fields)


def back_off(fields: Fields, random: float) -> int:
    """Nanoseconds before the next run, which is retry number `retryCount`: doubled each time."""
    given = fields.get("retryDelay")
    first = RETRY_SECONDS if given is None else float(given)
    doubled = first * 2.0 ** min((fields.get("retryCount") or 1) - 1, 62)
    seconds = min(doubled, max(first, MOST_RETRY_SECONDS))
    return int(seconds * (1 + JITTER * random) * clock.SECOND)


# --- what the queue fields may hold --------------------------------------------------------------------------------


def check_fields(fields: Fields) -> None:
    """Refuse a queue field that cannot mean anything, by name."""
    for name in ("timeout", "retryDelay"):
        _check(fields, name, _is_seconds, "a number of seconds")
    for name in ("maxRetries", "retryCount"):
        _check(fields, name, _is_count, "a whole number, 0 or more")
    _check(fields, "dependsOn", _is_list_of_ids, f"a list of at most {MOST_DEPENDENCIES} ids")
    _check(fields, "onDependencyFailure", _is_reaction, "fail or cancel")
    _check(fields, "dedupeKey", _is_text, f"a text of at most {MOST_TEXT_CHARS} characters")
    for name in ("scheduledAt", "startAfter"):
        if clock.given(fields.get(name)):
            clock.parse(fields[name], name)


def _check(fields: Fields, name: str, allowed: Any, described: str) -> None:
    value = fields.get(name)
    if value is not None and not allowed(value):
        shown = printable(value) if isinstance(value, str) else msgspec.json.encode(value)[:64].decode(errors="replace")
        raise BadRequest(f"{name} must be {described}, not {shown}")


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 10 * 366 * 86_400


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000_000


def _is_list_of_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_DEPENDENCIES and all(_is_text(name) for name in value)


def _is_reaction(value: Any) -> bool:
    return value in ("fail", "cancel")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT_CHARS
