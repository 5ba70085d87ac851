"""Two writes made into one: what a full outbox does before it refuses.

Owns when two neighbouring, unsent updates of a record can be one, and what that is. Must not know queues or sockets.
"""

from __future__ import annotations

from typing import Any

from . import composing
from .errors import StateError
from .patch import Fields
from .writes import More, Write, update


def merged(first: Write, second: Write) -> Write | None:
    """One update that does what two neighbouring, unsent updates of a record do; None where no single one can."""
    if not (_mergeable(first) and _mergeable(second)):
        return None
    if None not in (first.status, second.status) and first.status != second.status:
        return None  # two steps of the lifecycle; their product may not be one
    one, two = first.more or More(), second.more or More()
    if (one.upsert, one.token) != (two.upsert, two.token):
        return None
    try:
        fields = _composed(first.fields, one, second.fields, two)
        more = More(
            set=_joined(one.set, two.set, lambda a, b: {**a, **b}),
            inc=_joined(one.inc, two.inc, composing.compose_counts),
            append=_joined(one.append, two.append, composing.compose_lists),
            upsert=one.upsert,
            token=one.token,
        )
        write = update(first.kind, first.id, fields, more if more != More() else None)
    except (composing.Incompatible, StateError):
        return None
    write.seq = first.seq
    write.doubtful = first.doubtful or second.doubtful
    return write


def _mergeable(write: Write) -> bool:
    return (
        write.op == "update"
        and not write.sent
        and not write.decided
        and write.on_decided is None
        and (
            write.more is None
            or (write.more.if_revision is None and "status" not in composing.top_names(write.more.set or {}))
        )
    )


def _composed(first: Fields, one: More, second: Fields, two: More) -> Fields:
    """The daemon applies patch, set, inc, append in this order. What the second does early must not touch what the
    first does late."""
    late: set[str] = set()
    for earlier, later in ((one.append, two.inc), (one.inc, two.set), (one.set, second)):
        late |= composing.top_names(earlier or {})
        touched = set(later or ()) if later is second else composing.top_names(later or {})
        if late & touched:
            raise composing.Incompatible("the order of the parts would change")
    return composing.compose_patches(first, second)


def _joined(first: Any, second: Any, compose: Any) -> Any:
    if not first or not second:
        return first or second or None
    composing.check_paths_apart(first, second)
    return compose(first, second)
