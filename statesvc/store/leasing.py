"""Leases: who has a record, and what taking, keeping, giving back and losing it does.

Owns the decisions on leases, each from the newest row to the row that should follow. Must not know clocks that run, the
engine, or which record is the best to claim: whether a lease stood still comes in as a fact (see leases.py), candidates
come from claims.py.

A lease is at once the lock, the leader, the heartbeat and the claim on a queued record. Its token grows with every
claim of the id, over all its lives; a write that carries an older one is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from statesvc_client import patch
from statesvc_client.errors import BadRequest, LeaseLost
from statesvc_client.wire import Claim, Fields, Lease, Release, Renew
from statesvc_client.wire import Write as WriteRequest

from ..backends.port import Row, Write
from . import queueing
from .clock import SECOND
from .kinds import Kind, Queue
from .records import check_length, decode, encode, users_own
from .writes import NOBODY, Caller, Leased, Moment, Move, Subject, born, check_token, moved

# --- taking --------------------------------------------------------------------------------------------------------


def origin_of(request: WriteRequest, caller: Caller) -> str | None:
    """By which a claim whose reply was lost is found again."""
    return f"{caller.client}/{request.seq}" if caller.client and request.seq is not None else None


def lease_of(row: Row | None) -> Lease | None:
    """The lease a living record is under."""
    if row is None or not is_leased(row):
        return None
    return msgspec.convert(decode(row.body)["lease"], Lease)


def is_leased(row: Row) -> bool:
    return bool(row.keys.labels) and not row.deleted and ("", "leased") in row.keys.labels


def claim_of(row: Row) -> str | None:
    """Which claim a record is under: no other has the same origin."""
    lease = lease_of(row)
    return None if lease is None else lease.origin


def claim_by_id(
    request: Claim, fields: Fields, subject: Subject, caller: Caller, moment: Moment, *, lapsed: bool
) -> Write | None:
    """Take one record, made when absent; None when another has it."""
    row = subject.living
    if row is None:
        made = {**fields, "status": request.status} if request.status else fields
        # A claim leaves no mark: it is found again by its origin, however late it comes.
        return born(None, made, subject, caller, moment, lease=_given(request, subject.row, caller, moment))
    if is_leased(row) and not lapsed:
        return None
    return _taken(request, row, fields, subject, caller, moment, status=request.status)


def claim_ready(request: Claim, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write | None:
    """Take a record out of its queue; None when it is not, or no longer, ready."""
    row, lifecycle = subject.living, subject.kind.lifecycle
    if row is None or row.keys.ready is None or lifecycle is None:
        return None
    return _taken(request, row, fields, subject, caller, moment, status=request.status or lifecycle.claimed)


def check_claim(request: Claim, kind: Kind, caller: Caller, most_chars: int) -> str:
    """The holder a claim is for. A claim that cannot work on any record is refused before one is looked for."""
    if "" in (request.id, request.job_id):
        raise BadRequest(f"{kind.id_text} is required: name the record, or leave the id out to claim by filter")
    holder = request.holder or caller.name or caller.client
    if not holder:
        raise BadRequest("holder is required: say who is to hold the lease, here or as name in hello")
    check_length("holder", holder, most_chars)
    if request.status and kind.lifecycle is not None:
        status = kind.lifecycle.canonical(request.status)
        if status in kind.lifecycle.terminal:
            raise BadRequest(f"a claim cannot end a record: {status} is final")
    if not request.target and kind.queue is None:
        raise BadRequest(f"{kind.name} has no queue: claim it by id")
    return holder


def _taken(
    request: Claim, row: Row, fields: Fields, subject: Subject, caller: Caller, moment: Moment, *, status: str | None
) -> Write:
    lease = _given(request, row, caller, moment)
    if row.keys.ready is not None and not request.target:
        lease.lease["taken"] = True
    own = users_own(subject.kind, fields)
    after = patch.merge(decode(row.body), own)
    if status:
        after["status"] = status
    lease.put_into(after)
    return moved(None, row, after, subject, caller, moment, move="step", given=own, event="claimed", token=lease.token)


def _given(request: Claim, row: Row | None, caller: Caller, moment: Moment) -> Leased:
    token = max(moment.token_floor, 0 if row is None else row.token) + 1
    lease = Lease(
        holder=request.holder or caller.name or caller.client,
        token=token,
        ttl=request.ttl,
        # Two claims must never look the same: after a commit of unknown fate the row tells whose it is.
        origin=origin_of(request, caller) or f"~{moment.new_uid()}",
        hold=request.hold,
        boot_id=caller.boot_id,
    )
    return Leased(token, msgspec.to_builtins(lease) | {"beat": 0}, _expiry(lease.ttl, moment))


def _expiry(ttl: float, moment: Moment) -> str:
    return moment.text(moment.now + int(ttl * SECOND))


# --- keeping -------------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A lease after a renewal: as it is now, and the row that says so."""

    lease: Lease
    cancel_requested: bool
    row: Row
    other_ttl: bool
    """It is to last longer or shorter than before, which a restart must not forget."""


def renew_bare(request: Renew, subject: Subject, moment: Moment) -> Kept:
    """One more beat. The row keeps its revision: a renewal is a sign of life, not a change."""
    row = _held(subject, request.token)
    record = decode(row.body)
    ttl = (record.get("lease") or {}).get("ttl")
    lease = _beaten(row, record, request, moment)
    kept = msgspec.structs.replace(row, body=encode(record))
    return Kept(lease, bool(record.get("cancelRequested")), kept, lease.ttl != ttl)


def renew_with_progress(request: Renew, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write:
    """A renewal that brings a patch is a change like any other."""
    row = _held(subject, request.token)
    own = users_own(subject.kind, fields)
    after = patch.merge(decode(row.body), own)
    _beaten(row, after, request, moment)
    return moved(request, row, after, subject, caller, moment, move="step", given=own)


def _beaten(row: Row, record: Fields, request: Renew, moment: Moment) -> Lease:
    lease = check_token(row, record, request.token, moment)
    lease["beat"] += 1
    lease["ttl"] = request.ttl or lease["ttl"]
    record["expiresAt"] = _expiry(lease["ttl"], moment)
    return msgspec.convert(lease, Lease)


def _held(subject: Subject, token: int) -> Row:
    row = subject.living
    if row is None:
        raise LeaseLost(f"the lease with token {token} is gone with its record")
    return row


# --- giving back and losing ----------------------------------------------------------------------------------------


def release(request: Release, fields: Fields, subject: Subject, caller: Caller, moment: Moment) -> Write:
    """Give a record back: ended, to be tried again, or as if it had never been taken."""
    row, kind = _held(subject, request.token), subject.kind
    before = decode(row.body)
    check_token(row, before, request.token, moment)
    own = users_own(kind, fields)
    after = patch.merge(before, own)
    wanted = _wanted(request, kind)
    if wanted:
        after["status"] = wanted
    queue = kind.queue
    forced = False
    if queue is not None and not kind.is_terminal(row.keys.status) and (wanted is None or wanted in queue.retried):
        forced = _given_back(kind, queue, row, after, wanted, request.delay, moment)
    unlease(after)
    move: Move = "forced" if forced else "step"
    return moved(request, row, after, subject, caller, moment, move=move, given=own, event="released")


def _wanted(request: Release, kind: Kind) -> str | None:
    """The end a release names. To name the queue is to name none; anything else that is no end makes no sense."""
    if not request.status or kind.lifecycle is None:
        return request.status or None
    status = kind.lifecycle.canonical(request.status)
    if kind.queue is None or kind.is_terminal(status):
        return status
    if status in kind.queue.claimable:
        return None
    raise BadRequest(f"a release ends a {kind.name} or gives it back: status {status} is neither")


def _given_back(
    kind: Kind, queue: Queue, row: Row, after: Fields, wanted: str | None, delay: float, moment: Moment
) -> bool:
    """Decide what a released record becomes; returns whether that goes against the lifecycle's edges."""
    queueing.check_fields(after)
    status = row.keys.status or ""
    if after.get("cancelRequested"):
        after["status"] = queue.canceled
    elif not _was_run(kind, queue, row, after):
        return False
    elif status in queue.stopping:
        after["status"] = wanted or queue.stopping[status]
    elif wanted is None:
        _requeue(queue, after, int(delay * SECOND), moment)
    elif queueing.retries_left(after):
        after["retryCount"] = (after.get("retryCount") or 0) + 1
        _requeue(queue, after, max(int(delay * SECOND), queueing.back_off(after, moment.random())), moment)
    else:
        return False
    return True


def _was_run(kind: Kind, queue: Queue, row: Row, record: Fields) -> bool:
    """Whether somebody worked on a record of a queue: it was taken out of it, or is in a state that says so. One that
    was only claimed by id stays where it is."""
    lifecycle, status = kind.lifecycle, row.keys.status
    if lifecycle is None or status is None or status in queue.claimable:
        return False
    return status not in lifecycle.unstarted or bool((record.get("lease") or {}).get("taken"))


def _requeue(queue: Queue, after: Fields, delay: int, moment: Moment) -> None:
    """Back to where it can be claimed, once the delay is over. The delay is stored, nobody sleeps it."""
    if delay > 0:
        after["status"] = queue.delayed
        after["startAfter"] = moment.text(moment.now + delay)
    else:
        after["status"] = queue.waiting
        after.pop("startAfter", None)


def lapse(subject: Subject, moment: Moment, seen: Lease) -> Write | None:
    """Take a lease away from a holder that gave no sign of life since it was `seen`; None when it did, or let go."""
    row = subject.living
    lease = lease_of(row)
    if row is None or lease is None or (lease.token, lease.beat) != (seen.token, seen.beat):
        return None
    after = decode(row.body)
    _lost(subject.kind, row, after, moment)
    unlease(after)
    return moved(None, row, after, subject, NOBODY, moment, move="forced", given={}, event="lapsed")


def _lost(kind: Kind, row: Row, after: Fields, moment: Moment) -> None:
    """What becomes of a record whose holder is gone."""
    queue, status = kind.queue, row.keys.status or ""
    if queue is None or kind.is_terminal(status):
        return
    if after.get("cancelRequested"):
        after["status"] = queue.canceled
    elif not _was_run(kind, queue, row, after):
        return
    elif status in queue.stopping:
        after["status"] = queue.stopping[status]
    elif queueing.survives_a_lapse(after):
        after["retryCount"] = (after.get("retryCount") or 0) + 1
        _requeue(queue, after, 0, moment)
    else:
        after["status"] = queue.failed
        after.setdefault("error", "its holder was lost, and it may not be tried again")


def time_out(subject: Subject, moment: Moment) -> Write | None:
    """End a run that took longer than it may, by the retry policy; its holder loses the lease."""
    row, queue = subject.living, subject.kind.queue
    if row is None or queue is None or row.keys.due is None or row.keys.due > moment.now:
        return None
    status = row.keys.status
    if status is None or status in queue.claimable or subject.kind.is_terminal(status):
        return None
    after = decode(row.body)
    unlease(after)
    if after.get("cancelRequested"):
        after["status"] = queue.canceled
    elif queueing.retries_left(after) and status not in queue.stopping:
        after["retryCount"] = (after.get("retryCount") or 0) + 1
        _requeue(queue, after, queueing.back_off(after, moment.random()), moment)
    else:
        after["status"] = queue.timeout
        after.setdefault("error", f"it ran longer than its timeout of {after.get('timeout')} seconds")
    return moved(None, row, after, subject, NOBODY, moment, move="forced", given={})


def unlease(record: Fields) -> None:
    record.pop("lease", None)
    record.pop("expiresAt", None)
