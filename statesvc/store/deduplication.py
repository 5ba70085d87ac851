"""De-duplication: at most one live record of a queue for each `dedupeKey`.

Owns the guard, a record of the daemon's own that names who has a key, and when a key is free. Must not know engines or
other writes of a transaction: what is stored comes in as facts.

A guard is written in the same unit as the record it names, so two creates with one key cannot both pass. It is owned by
that record: once the record has ended, the ordinary clean-up of owned records removes it.
"""

from __future__ import annotations

import hashlib
from itertools import product

from statesvc_client.errors import BadRequest, Exists
from statesvc_client.wire import Fields, printable

from ..backends.port import Key, Row, Write
from . import writes
from .kinds import Kind
from .records import decode, without_secrets
from .writes import NOBODY, Moment, Subject, living

OWN = "_"
"""Kinds whose names begin with this are the daemon's own: clients neither write nor see them."""

GUARD = Kind(f"{OWN}dedupe")

MOST_LITERAL_CHARS = 128
"""Keys up to this length stand in the guard's id as they are, longer ones as a digest."""

FIELD = "dedupeKey"
_SPELLINGS = frozenset("".join(letters) for letters in product(*((each.lower(), each.upper()) for each in FIELD)))
"""The field's name in every case. A look-up, not a loop: this is asked for every create."""


def check_not_own(kind: str) -> None:
    """Refuse what a client must not name."""
    if kind.startswith(OWN):
        raise BadRequest(f"kinds that begin with {OWN} are the daemon's own: {printable(kind)}")


def may_be_guarded(given: Fields | None) -> bool:
    """Whether fields, as a client spelled them, hold a key."""
    return given is not None and not _SPELLINGS.isdisjoint(given)


def guard_of(kind: Kind, fields: Fields) -> Key | None:
    """The guard of the key a new record brings, if it brings one that counts."""
    key = fields.get(FIELD)
    if kind.queue is None or not isinstance(key, str) or not key:
        return None
    if len(key) <= MOST_LITERAL_CHARS and key.isprintable():
        return (GUARD.name, f"{kind.name}/={key}")
    return (GUARD.name, f"{kind.name}/#{hashlib.sha256(key.encode()).hexdigest()}")


def named_by(guard: Row | None) -> Key | None:
    """Who has the key, as the guard says."""
    row = living(guard)
    kind, slash, name = ("" if row is None else row.keys.owner or "").partition("/")
    return (kind, name) if slash else None


def check_free(kind: Kind, fields: Fields, holder: Row | None) -> None:
    """Refuse a key whose holder still lives and still has it."""
    row, key = living(holder), fields[FIELD]
    if row is None or kind.is_terminal(row.keys.status) or decode(row.body).get(FIELD) != key:
        return
    state = f", which is {row.keys.status}" if row.keys.status else ""
    raise Exists(
        f"{kind.name} already exists: {FIELD} {printable(key)} is that of {printable(row.id)}{state}",
        record=without_secrets(row.body),
    )


def guarded(guard: Key, row: Row | None, holder: Key, moment: Moment) -> Write:
    """The guard, from now on naming this holder."""
    subject, owner = Subject(GUARD, guard[1], row), "/".join(holder)
    before = subject.living
    if before is None:
        return writes.born(None, {"owner": owner}, subject, NOBODY, moment)
    after = {**decode(before.body), "owner": owner}
    return writes.moved(None, before, after, subject, NOBODY, moment, move="step", given={})
