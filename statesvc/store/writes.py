"""What a write does to a record: create, update, delete, emit and one element of a sync.

Owns the decisions: each function takes the newest row and returns the row that should follow, or raises why not. Must
not know engines, connections or other records; nothing here waits, and time comes in as a value. Leases and the queue
build on this file: leasing.py, ending.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Protocol

import msgspec

from statesvc_client import patch
from statesvc_client.errors import BadRequest, Conflict, Exists, InvalidTransition, LeaseLost, NotFound, StateError
from statesvc_client.spelling import MANAGED
from statesvc_client.wire import Create, Delete, Emit, Fields, Limits, Update
from statesvc_client.wire import Write as WriteRequest

from ..backends.port import LINK, Event, Keys, Row, Stamp, Was, Write
from . import clock, marks
from .frames import ENVELOPE_BYTES, OWN_BYTES
from .kinds import GIVEN_AT_BIRTH, Kind
from .queueing import Times
from .records import check_growth, encode, index_keys, is_small, may_be_deep, spelled_path, users_own, without_secrets
from .records import decode as decode_record

MOST_PATHS = 256
"""Paths an update may name: each copies the levels it walks through."""


class Caller(NamedTuple):
    """What the rules may know of who is asking."""

    said_hello: bool = False
    client: str = ""
    name: str = ""
    boot_id: str | None = None
    admin: bool = False


NOBODY = Caller(said_hello=True)
"""Who the daemon itself is, when it writes on its own account."""


class Moment(msgspec.Struct, gc=False):
    """When a decision is made, and what it may draw on."""

    now: int
    text: Callable[[int], str]
    new_uid: Callable[[], str]
    limits: Limits
    random: Callable[[], float] = random.random
    token_floor: int = 0
    """Fencing tokens given out are above it."""
    is_silent: Callable[[Row], bool] = lambda _: False
    """Whether the holder of this row's lease gave no sign of life for its ttl."""


class Subject(msgspec.Struct, gc=False):
    """The record a write is about, as it is now."""

    kind: Kind
    id: str
    row: Row | None

    @property
    def living(self) -> Row | None:
        return living(self.row)


def living(row: Row | None) -> Row | None:
    """The row unless it is a tombstone."""
    return None if row is None or row.deleted else row


class CarriesRecord(Protocol):
    """A request with fields for a record in it."""

    job: Fields | None
    record: Fields | None


def payload(request: CarriesRecord, kind: Kind) -> Fields | None:
    """The fields a write carries, in their own spelling."""
    given = request.job if request.job is not None else request.record
    return None if given is None else kind.spelling.of_fields(given)


Move = Literal["step", "whole", "forced"]
"""How a status may move: along one edge; to any state that can be reached, as a whole record may have moved several;
or as the daemon itself decides."""

OWN_EVENTS = frozenset({"created", "updated", "status", "deleted", "claimed", "released", "lapsed", "left"})
"""Types of events the daemon writes; a client's own have other names."""


# --- create --------------------------------------------------------------------------------------------------------


def create(request: Create, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write:
    row = subject.row
    if row is not None and not row.deleted:
        raise Exists(f"{subject.kind.name} already exists")
    return born(request, fields, subject, caller, moment)


def born(
    request: WriteRequest | None,
    fields: Fields,
    subject: Subject,
    caller: Caller,
    moment: Moment,
    *,
    lease: Leased | None = None,
) -> Write:
    """A new record. Its uid is new even where a tombstone lies; marks of the earlier life stay with the id."""
    kind, now = subject.kind, moment.now
    record: Fields = {kind.id_field: subject.id, **users_own(kind, fields)}
    if lease is not None:
        lease.put_into(record)
    status = _status_of(kind, record)
    shown = moment.text(now)
    times = Times(now, now)
    record["uid"] = moment.new_uid()
    record["revision"] = 1
    record["createdAt"] = shown
    # Nearly all are made with no times of their own, in a state that notes none.
    if not fields.keys().isdisjoint(GIVEN_AT_BIRTH) or (kind.lifecycle is not None and status in kind.lifecycle.timed):
        _put_birth_times(record, times, kind, fields, status, moment)
    record["updatedAt"] = shown
    happened = Event("created", now, None, status)
    token = lease.token if lease else None
    return written(request, subject, record, times, happened, caller, moment, given=fields, token=token)


def _put_birth_times(
    record: Fields, times: Times, kind: Kind, fields: Fields, status: str | None, moment: Moment
) -> None:
    """The times a client gave, and those of the state a record begins in."""
    if not fields.keys().isdisjoint(GIVEN_AT_BIRTH):
        given = {name: clock.parse(fields[name], name) for name in GIVEN_AT_BIRTH if clock.given(fields.get(name))}
        times.created = given.get("createdAt", moment.now)
        times.started, times.completed = given.get("startedAt"), given.get("completedAt")
    if kind.lifecycle is not None and status in kind.lifecycle.timed:
        _enter(kind, status, fields, times, moment)
    record["createdAt"] = _shown(fields, "createdAt", times.created, moment)
    if times.started is not None:
        record["startedAt"] = _shown(fields, "startedAt", times.started, moment)
    if times.completed is not None:
        record["completedAt"] = _shown(fields, "completedAt", times.completed, moment)


# --- update --------------------------------------------------------------------------------------------------------


def update(request: Update, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write:
    row = subject.living
    if row is None:
        return _update_absent(request, fields, subject, caller, moment)
    if request.if_revision is not None and request.if_revision != row.revision:
        raise conflict(row, f"revision is {row.revision}, not {request.if_revision}")
    if request.upsert and request.if_revision == 0:
        # A record of another's making has revision 0; whoever wants to make one must not change it.
        raise conflict(row, f"{subject.kind.name} is there already")
    own = users_own(subject.kind, fields)
    after = decode_record(row.body)
    if request.token is not None:
        check_token(row, after, request.token, moment)
    if request.set is None and request.inc is None and request.append is None and _is_flat(own):
        after.update(own)
    else:
        after = _patched(request, own, after, subject.kind, caller)
    return moved(request, row, after, subject, caller, moment, move="step" if caller.said_hello else "whole", given=own)


_FLAT = frozenset({str, int, float, bool})
"""Types of values that no patch looks into. None is not among them: it takes a field away."""


def _is_flat(fields: Fields) -> bool:
    """Whether they only put plain values in the place of others: then every way to patch comes to the same."""
    return _FLAT.issuperset(map(type, fields.values()))


def check_token(row: Row, record: Fields, token: int, moment: Moment) -> Fields:
    """The lease a token stands for; one that is gone, another's or past its time is lost to whoever sent the token."""
    lease: Fields | None = record.get("lease")
    if lease is None:
        raise LeaseLost(f"the lease with token {token} is gone: it was released, or it lapsed")
    if lease["token"] != token:
        raise LeaseLost(f"token {token} is not the newest: {lease['holder']} holds token {lease['token']}")
    if moment.is_silent(row):
        raise LeaseLost(f"the lease with token {token} lapsed: nothing was heard for {lease['ttl']:g} seconds")
    return lease


def _update_absent(request: Update, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write:
    """An upsert makes the record; so does an agent without hello whose create is still on its way."""
    with_status = subject.kind.lifecycle is not None and fields.get("status")
    overtook_its_create = not caller.said_hello and subject.row is None and with_status
    if request.token is not None:
        raise LeaseLost(f"the lease with token {request.token} is gone with its record")
    if request.if_revision or not (request.upsert or overtook_its_create):
        raise NotFound(f"{subject.kind.name} not found")
    made = _patched(request, users_own(subject.kind, fields), {}, subject.kind, caller)
    return born(request, {**made, **_birth_fields(fields)}, subject, caller, moment)


def _birth_fields(fields: Fields) -> Fields:
    return {name: fields[name] for name in GIVEN_AT_BIRTH if name in fields}


def _patched(request: Update, own: Fields, before: Fields, kind: Kind, caller: Caller) -> Fields:
    after = patch.merge(before, own) if caller.said_hello else {**before, **own}
    if request.set is None and request.inc is None and request.append is None:
        return after
    if sum(len(changes or ()) for changes in (request.set, request.inc, request.append)) > MOST_PATHS:
        raise BadRequest(f"an update changes at most {MOST_PATHS} paths; put more into its record")
    for changes, change in (
        (request.set, patch.assign),
        (request.inc, patch.increment),
        (request.append, patch.extend),
    ):
        for path, value in (changes or {}).items():
            names = spelled_path(kind, patch.steps(path))
            if names[0] not in MANAGED and names[0] != kind.id_field:
                after = change(after, names, value)  # type: ignore[arg-type]
    return after


class Leased(NamedTuple):
    """A lease just given out, on its way into a record."""

    token: int
    lease: Fields
    expires_at: str

    def put_into(self, record: Fields) -> None:
        record["lease"], record["expiresAt"] = self.lease, self.expires_at


def moved(
    request: WriteRequest | None,
    row: Row,
    after: Fields,
    subject: Subject,
    caller: Caller,
    moment: Moment,
    *,
    move: Move,
    given: Fields,
    event: str | None = None,
    token: int | None = None,
) -> Write:
    """The next revision of a living record, its status checked against the lifecycle. `event` says what to call it,
    `token` is a fencing token just given out."""
    kind, keys = subject.kind, row.keys
    old = keys.status
    # A status that nobody touches may be one of another's making.
    new = old if old is not None and after.get("status") == old else _status_of(kind, after)
    if new is None and old is not None and kind.lifecycle is not None:
        new = after["status"] = old
    now = moment.now
    times = Times(keys.created, max(now, keys.updated), keys.started, keys.completed)
    if "startedAt" in given:
        times.started = _first_given(times.started, given, "startedAt")
    if "completedAt" in given:
        times.completed = _first_given(times.completed, given, "completedAt")
    if new == old:
        happened = Event(event or "updated", now)
    else:
        happened = Event(event or "status", now, old, new)
        lifecycle = kind.lifecycle
        if lifecycle is not None:
            if (old, new) not in lifecycle.onward:
                _check_transition(kind, old, new, move)
                _leave(kind, old, new, times)
            if new in lifecycle.timed:
                _enter(kind, new, given, times, moment)
    after["revision"] = row.revision + 1
    after["updatedAt"] = moment.text(times.updated)
    if times.started != keys.started or (times.started is None and "startedAt" in after):
        _show_time(after, "startedAt", keys.started, times.started, given, moment)
    if times.completed != keys.completed or (times.completed is None and "completedAt" in after):
        _show_time(after, "completedAt", keys.completed, times.completed, given, moment)
    return written(request, subject, after, times, happened, caller, moment, given=given, token=token)


def _show_time(after: Fields, name: str, known: int | None, at: int | None, given: Fields, moment: Moment) -> None:
    """Put a time into the record as text, where it is not there as it is; take it out where it no longer holds."""
    if at is None:
        after.pop(name, None)
    elif at != known:
        after[name] = _shown(given, name, at, moment)


def _shown(given: Fields, name: str, at: int, moment: Moment) -> str:
    """A time as text: as it was given, where it was."""
    text: str = given[name] if clock.given(given.get(name)) else moment.text(at)
    return text


def _first_given(known: int | None, given: Fields, name: str) -> int | None:
    """A time once set stays; a sync may give one that is not."""
    return clock.parse(given[name], name) if known is None and clock.given(given.get(name)) else known


# --- the lifecycle -------------------------------------------------------------------------------------------------


def _status_of(kind: Kind, record: Fields) -> str | None:
    """The record's status in its own spelling, put back into it; an empty one counts as absent."""
    status = record.get("status")
    if kind.lifecycle is None:
        return status if isinstance(status, str) else None
    if type(status) is str and status in kind.lifecycle.edges:
        return status
    if status is None or status == "":
        record.pop("status", None)
        return None
    record["status"] = known = kind.lifecycle.canonical(status)
    return known


def _check_transition(kind: Kind, old: str | None, new: str | None, move: Move) -> None:
    """A step follows the lifecycle's edges; a whole record may have moved several of them."""
    lifecycle = kind.lifecycle
    if lifecycle is None or old is None or new is None or move == "forced":
        return
    if old not in lifecycle.edges:
        return  # a state of another's making, or of an earlier configuration: any known one is better
    ahead = lifecycle.edges[old] if move == "step" else lifecycle.reachable[old]
    if new in ahead:
        return
    if not ahead:
        raise InvalidTransition(f"{old} is final; it does not become {new}")
    raise InvalidTransition(f"{old} does not become {new}; from {old}: {' '.join(sorted(ahead))}")


def _leave(kind: Kind, old: str | None, new: str | None, times: Times) -> None:
    """A record that begins anew, or goes back to its queue, forgets when it started and ended."""
    lifecycle = kind.lifecycle
    if lifecycle is None or new is None:
        return
    if old in lifecycle.terminal and new not in lifecycle.terminal:
        times.started = times.completed = None
    elif lifecycle.queue is not None and new in lifecycle.queue.claimable and old not in (None, *lifecycle.unstarted):
        times.started = None


def _enter(kind: Kind, status: str | None, given: Fields, times: Times, moment: Moment) -> None:
    """Set the times that belong to a state just entered. Joblet's agents tell them as startTime and endTime."""
    if kind.lifecycle is None or status is None:
        return
    if status == kind.lifecycle.claimed and times.started is None:
        times.started = _told(given, "startTime", moment.now)
    if status in kind.lifecycle.terminal and times.completed is None:
        times.completed = _told(given, "endTime", moment.now)


def _told(given: Fields, name: str, otherwise: int) -> int:
    """The user's own field where it holds a time; it is theirs, so anything else in it is no error."""
    value = given.get(name)
    if not clock.given(value):
        return otherwise
    try:
        return clock.parse(value, name)
    except BadRequest:
        return otherwise


# --- delete and sync -----------------------------------------------------------------------------------------------


def delete(request: Delete, subject: Subject, caller: Caller, moment: Moment) -> Write:
    row = subject.living
    if row is None:
        raise NotFound(f"{subject.kind.name} not found")
    if request.if_revision is not None and request.if_revision != row.revision:
        raise conflict(row, f"revision is {row.revision}, not {request.if_revision}")
    if request.token is not None:
        check_token(row, decode_record(row.body), request.token, moment)
    return bury(request, row, caller, moment)


def bury(request: WriteRequest | None, row: Row, caller: Caller, moment: Moment) -> Write:
    """Leave a tombstone, so that a late write is recognised as one. It keeps its last status for those that depend on
    it, and its token for those that claim the id again."""
    revision = row.revision + 1
    tombstone = Row(
        kind=row.kind,
        id=row.id,
        uid=row.uid,
        revision=revision,
        keys=Keys(created=row.keys.created, updated=max(moment.now, row.keys.updated), status=row.keys.status),
        body=b"",
        marks=_marked(request, row, revision, caller, moment),
        deleted=moment.now,
        token=row.token,
    )
    was = Was(row.keys.node, row.keys.owner, _users_labels(row.keys))
    return Write(tombstone, row.stamp, Event("deleted", moment.now, row.keys.status, None, was))


def sync(request: WriteRequest, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write | None:
    """One element of a sync: the write that brings the record forward, or None when it is already there."""
    row = subject.living
    if row is None:
        if subject.row is not None:
            raise NotFound(f"{subject.kind.name} was deleted; create it to have it again")
        return born(request, fields, subject, caller, moment)
    seen = fields.get("revision")
    before = decode_record(row.body)
    after = {**before, **users_own(subject.kind, fields)}
    _status_of(subject.kind, after)
    if "status" in before:
        after.setdefault("status", before["status"])
    if patch.same(before, after) and not _brings_times(row, fields):
        return None
    if isinstance(seen, int) and seen < row.revision and fields.get("uid") == row.uid:
        raise conflict(row, f"revision is {row.revision}, the one sent is older: {seen}")
    return moved(request, row, after, subject, caller, moment, move="whole", given=fields)


def _brings_times(row: Row, fields: Fields) -> bool:
    """Whether a sync tells when a record started or ended, which was not known yet."""
    started = row.keys.started is None and clock.given(fields.get("startedAt"))
    return started or (row.keys.completed is None and clock.given(fields.get("completedAt")))


# --- emit ----------------------------------------------------------------------------------------------------------


def emit(request: Emit, subject: Subject, caller: Caller, moment: Moment) -> Write:
    """An event of the client's own, committed like a change: the record's next revision."""
    row = subject.living
    if row is None:
        raise NotFound(f"{subject.kind.name} not found")
    told = request.event
    if request.token is not None:
        check_token(row, decode_record(row.body), request.token, moment)
    if told.type in OWN_EVENTS:
        raise BadRequest(f"events of type {told.type} are written by the daemon; choose another type")
    data = None if told.data is None else msgspec.json.encode(told.data)
    size, most = len(data or b"") + len(msgspec.json.encode(told.message or "")), moment.limits.record_bytes // 8
    if size > most:
        raise BadRequest(f"message and data of the event take {size} bytes; the limit is {most}")
    write = moved(
        request, row, decode_record(row.body), subject, caller, moment, move="step", given={}, event=told.type
    )
    happened = Event(told.type, moment.now, message=told.message, data=data)
    return write._replace(event=happened)


# --- rows ----------------------------------------------------------------------------------------------------------


def conflict(row: Row, text: str) -> StateError:
    return Conflict(text, record=without_secrets(row.body))


def written(
    request: WriteRequest | None,
    subject: Subject,
    record: Fields,
    times: Times,
    happened: Event,
    caller: Caller,
    moment: Moment,
    *,
    given: Fields,
    token: int | None = None,
) -> Write:
    """The write that makes `record` the newest revision. `given` is what a client puts into it, `token` a fencing token
    just given out."""
    kind, before, revision = subject.kind, subject.row, record["revision"]
    body = encode(record)
    if not is_small(body, moment.limits):
        _check_size(request, kind, record, body, before, moment.limits, given=given, leased=token is not None)
    row = Row(
        kind.name,
        subject.id,
        record["uid"],
        revision,
        index_keys(kind, record, times, before, moment.now),
        body,
        _marked(request, before, revision, caller, moment),
        0,
        token or (0 if before is None else before.token),
    )
    if before is None:
        return _write((row, None, happened, None))
    old, new = before.keys, row.keys
    if not before.deleted and (old.node != new.node or old.owner != new.owner or old.labels != new.labels):
        happened = _with_what_was(happened, old, new)
    return _write((row, (before.uid, before.revision), happened, None))


def _check_size(
    request: WriteRequest | None,
    kind: Kind,
    record: Fields,
    body: bytes,
    before: Row | None,
    limits: Limits,
    *,
    given: Fields,
    leased: bool,
) -> None:
    """Only what a client puts in is bound: what the daemon does is never refused for what clients made of a record,
    unless nobody could be told of the lease."""
    by_paths = type(request) is Update and bool(request.set or request.inc or request.append)
    was = b"" if before is None else before.body
    if given or by_paths:
        # What is given is nowhere deeper than in itself; a path leads on from wherever others have led.
        check_growth(kind, record, body, was, limits, may_be_deeper=by_paths or may_be_deep(given, limits))
    most = limits.frame_bytes - ENVELOPE_BYTES + OWN_BYTES
    if (given or by_paths or leased) and len(body) > max(most, len(was)):
        raise BadRequest(f"with its lease the record would take {len(body)} bytes; a reply has room for {most}")


_write: Callable[[tuple[Row, Stamp | None, Event, None]], Write] = partial(tuple.__new__, Write)
"""Makes a write, in a third of the time that calling its class takes."""


def _with_what_was(happened: Event, old: Keys, new: Keys) -> Event:
    """Whoever follows through a filter must be told when a record leaves it."""
    if old.node == new.node and old.owner == new.owner and _users_labels(old) == _users_labels(new):
        return happened
    return msgspec.structs.replace(happened, was=Was(old.node, old.owner, _users_labels(old)))


def _users_labels(keys: Keys) -> tuple[tuple[str, str], ...]:
    return tuple(label for label in keys.labels if label[0] != LINK) if keys.labels else ()


def _marked(request: WriteRequest | None, row: Row | None, revision: int, caller: Caller, moment: Moment) -> bytes:
    stored = b"" if row is None else row.marks
    if request is None or not caller.client:
        return stored
    return marks.with_write(stored, caller.client, request, revision, moment.limits.marks_clients)
