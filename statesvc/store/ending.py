"""Cancelling, retrying and being held back: what moves a queued record besides its holder.

Owns the decisions of `cancel` and `retry`, of a record whose time has come and of one that depends on others. Must not
know the engine or how other records are found: what they are comes in as facts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from statesvc_client.errors import BadRequest, InvalidTransition, NotFound
from statesvc_client.wire import Cancel, Fields, Retry

from ..backends.port import LINK, Row, Write
from . import queueing
from .kinds import Kind, Lifecycle, Queue
from .leasing import is_leased, unlease
from .queueing import Times
from .records import decode, index_keys
from .writes import NOBODY, Caller, Moment, Subject, moved


def cancel(request: Cancel, subject: Subject, caller: Caller, moment: Moment) -> Write | None:
    """End a record that waits; ask for the end of one that runs. None when there is nothing left to do."""
    row, lifecycle, queue = _queued(subject)
    if row.keys.status == queue.canceled:
        return None
    if subject.kind.is_terminal(row.keys.status):
        raise InvalidTransition(f"{row.keys.status} is final; it does not become {queue.canceled}")
    after = decode(row.body)
    if not is_leased(row) and (row.keys.status is None or row.keys.status in lifecycle.unstarted):
        after["status"] = queue.canceled
    elif after.get("cancelRequested"):
        return None
    else:
        after["cancelRequested"] = True
    return moved(request, row, after, subject, caller, moment, move="forced", given={})


def retry(request: Retry, subject: Subject, caller: Caller, moment: Moment) -> Write:
    """Back into the queue, with all its retries."""
    row, _, queue = _queued(subject)
    if row.keys.status not in queue.retried:
        retried = " and ".join(sorted(queue.retried))
        raise InvalidTransition(f"only {retried} can be tried again; this is {row.keys.status or 'without a status'}")
    after = decode(row.body)
    after["status"] = queue.waiting
    unlease(after)
    for name in ("cancelRequested", "startAfter"):
        after.pop(name, None)
    if after.get("retryCount"):
        after["retryCount"] = 0
    return moved(request, row, after, subject, caller, moment, move="forced", given={})


def _queued(subject: Subject) -> tuple[Row, Lifecycle, Queue]:
    kind = subject.kind
    if kind.lifecycle is None or kind.queue is None:
        raise BadRequest(f"{kind.name} has no queue: it cannot be cancelled or tried again")
    if subject.living is None:
        raise NotFound(f"{kind.name} not found")
    return subject.living, kind.lifecycle, kind.queue


# --- held back -----------------------------------------------------------------------------------------------------


def promote(subject: Subject, moment: Moment) -> Write | None:
    """Put a record whose time has come among the ready ones. Nobody is told: nothing of the record changes."""
    row = subject.living
    queue = subject.kind.queue
    if row is None or queue is None or row.keys.due is None or row.keys.due > moment.now:
        return None
    if row.keys.status not in queue.claimable:
        return None
    return _reindexed(subject, row, row, moment)


def _reindexed(subject: Subject, row: Row, before: Row, moment: Moment) -> Write | None:
    """The same record with its index keys made anew."""
    keys = row.keys
    times = Times(keys.created, keys.updated, keys.started, keys.completed)
    made = index_keys(subject.kind, decode(row.body), times, before, moment.now)
    return None if made == keys else Write(msgspec.structs.replace(row, keys=made), row.stamp, None)


def is_blocked(row: Row) -> bool:
    return bool(row.keys.labels) and not row.deleted and (LINK, queueing.BLOCKED) in row.keys.labels


def judge(subject: Subject, others: Mapping[str, Row | None], moment: Moment) -> Write | None:
    """What those a record depends on, by id, make of it: ready, failed, or as it is."""
    row, queue = subject.living, subject.kind.queue
    if row is None or queue is None or not is_blocked(row):
        return None
    record = decode(row.body)
    needed = queueing.dependencies(record)
    failed = [name for name in needed if name == row.id or has_failed(subject.kind, queue, others.get(name))]
    if failed:
        return _failed_with(record, failed[0], others[failed[0]], row, subject, queue, moment)
    if any((found := others.get(name)) is None or found.keys.status != queue.completed for name in needed):
        return None
    met = (*row.keys.labels, (LINK, queueing.met(record)))
    unblocked = msgspec.structs.replace(row, keys=msgspec.structs.replace(row.keys, labels=met))
    return _reindexed(subject, row, unblocked, moment)


def has_failed(kind: Kind, queue: Queue, other: Row | None) -> bool:
    """Whether a record will never complete: it ended otherwise, or is gone before it completed."""
    if other is None or other.keys.status == queue.completed:
        return False
    return bool(other.deleted) or kind.is_terminal(other.keys.status)


def _failed_with(
    record: Fields, name: str, other: Row | None, row: Row, subject: Subject, queue: Queue, moment: Moment
) -> Write:
    cancelled = record.get("onDependencyFailure") == "cancel"
    record["status"] = queue.canceled if cancelled else queue.failed
    if name == row.id:
        fate = "is itself"
    else:
        fate = "was deleted" if other is None or other.deleted else f"is {other.keys.status}"
    record.setdefault("error", f"it depends on {name}, which {fate}")
    return moved(None, row, record, subject, NOBODY, moment, move="forced", given={})
