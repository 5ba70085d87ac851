"""What the daemon will make of a write: the record as it will be, should the daemon agree.

Owns what a cache shows of writes under way. Must not know caches, queues or the wire. Where only the daemon can tell
(which state a released job goes to), the record is left as it is and `is_certain` says so: it is read anew afterwards.
"""

from __future__ import annotations

from . import patch
from .errors import StateError
from .patch import Fields
from .writes import QUEUED_KINDS, TERMINAL, Seen, Write

_BEFORE_RUNNING = frozenset({"PENDING", "INITIALIZING", "SCHEDULED", "QUEUED"})
_RETRIED = frozenset({"FAILED", "TIMEOUT"})


def foreseen(before: Seen, write: Write) -> tuple[Seen, bool]:
    """The record after a write, should the daemon agree; and whether it should not."""
    if write.flat and type(before) is dict and write.more is None:  # the common case, without calls
        after = before | write.fields
        after.pop("updatedAt", None)
        return after, False
    try:
        return _after(before, write)
    except StateError:
        return before, True


def is_certain(write: Write) -> bool:
    """Whether the record is what was foreseen once the write is applied, and has one revision more."""
    if write.op == "release":
        return write.kind not in QUEUED_KINDS or _ends(write) is not None
    return write.op not in ("cancel", "retry")


def _after(before: Seen, write: Write) -> tuple[Seen, bool]:
    if write.op == "update":
        if isinstance(before, dict):
            return changed(before, write), False
        if before is None and write.more is not None and write.more.upsert and write.more.token is None:
            return born(write), False
        return before, before is None
    if write.op == "create":
        return (before, True) if isinstance(before, dict) else (write.fields, False)
    if write.op == "delete":
        return None, before is None
    return (_moved(before, write), False) if isinstance(before, dict) else (before, before is None)


def _moved(record: Fields, write: Write) -> Fields:
    if write.op == "cancel":
        return _canceled(record)
    if write.op == "retry":
        return _retried(record)
    return _released(record, write) if write.op == "release" else record


def _canceled(record: Fields) -> Fields:
    if record.get("status") in TERMINAL or record.get("cancelRequested"):
        return record
    if "lease" not in record and record.get("status") in _BEFORE_RUNNING:
        return {**record, "status": "CANCELED"}
    return {**record, "cancelRequested": True}


def _retried(record: Fields) -> Fields:
    if record.get("status") not in _RETRIED:
        return record
    kept = {name: record[name] for name in record.keys() - {"startedAt", "completedAt", "cancelRequested"}}
    return {**kept, "status": "QUEUED", "retryCount": 0}


def _released(record: Fields, write: Write) -> Fields:
    after = changed({name: record[name] for name in record.keys() - {"lease", "expiresAt"}}, write)
    status = _ends(write)
    return after if status is None else {**after, "status": status}


def _ends(write: Write) -> str | None:
    """The state a release leads to, as far as that is certain: which failures are tried again, the daemon decides."""
    status = None if write.more is None else write.more.status
    if status is None or write.kind not in QUEUED_KINDS:
        return status
    return None if status.upper() in _RETRIED else status.upper()


def changed(record: Fields, write: Write) -> Fields:
    """The record after an update. Raises `BadRequest` where the daemon would."""
    after: Fields = {**record, **write.fields} if write.flat else patch.merge(record, write.fields)
    more = write.more
    if more is not None:
        for path, value in (more.set or {}).items():
            after = patch.assign(after, patch.steps(path), value)
        for path, amount in (more.inc or {}).items():
            after = patch.increment(after, patch.steps(path), amount)
        for path, values in (more.append or {}).items():
            after = patch.extend(after, patch.steps(path), values)
    # The daemon's clock decides on this one; an old value beside new fields would be wrong.
    after.pop("updatedAt", None)
    return after


def born(write: Write) -> Fields:
    """The record as an upsert of an absent one makes it."""
    id_field = "uuid" if write.kind == "job" else "id"
    return changed({id_field: write.id}, write)
