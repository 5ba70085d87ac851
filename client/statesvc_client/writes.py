"""One fire-and-forget write: what was asked, ready to be sent, applied to a cached record, or merged with another.

Owns the shape of a write between the agent's call and the wire. Must not know queues, files or sockets.

What the caller gave is encoded inside the call (a quarter of a microsecond): the size is known, the caller may change
its objects afterwards, and what cannot be sent is refused where the mistake is. The rest of the frame is made when it
is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from . import composing, patch, spelling
from .errors import StateError, TooLarge
from .patch import Fields
from .spelling import MANAGED
from .wire import Limits, Malformed, check_size

Op = Literal["create", "update", "delete"]

# What the daemon writes itself it ignores in an update, so it is not shown here either.
_MANAGED_AT_BIRTH = MANAGED - {"createdAt", "startedAt", "completedAt"}

_JOB_NAMES = spelling.JOB.known
_PLAIN_NAMES = spelling.PLAIN.known

_JOB_STATES = frozenset(
    {
        "PENDING", "INITIALIZING", "SCHEDULED", "QUEUED", "RUNNING", "STOPPING",
        "COMPLETED", "FAILED", "STOPPED", "CANCELED", "TIMEOUT",
    }
)  # fmt: skip
_TERMINAL = frozenset({"COMPLETED", "FAILED", "STOPPED", "CANCELED", "CANCELLED", "TIMEOUT"})

# Values that encode to themselves and cannot change under us. A float may be NaN, which JSON cannot say.
_FLAT = frozenset({str, int, bool})
_PLAIN = frozenset({str, int, bool, type(None)})

ENVELOPE_BYTES = 2048
"""Room left in a frame for what is added at sending time; an id takes at most half of it."""

_SURELY_FITS = 512
"""Bytes below which no body can be nested too deep or hold too many values."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


class Unknown:
    """Neither a record nor its absence."""


UNKNOWN = Unknown()
Seen = Fields | None | Unknown


class More(Struct, omit_defaults=True, rename="camel", gc=False):
    """The rarer parts of an update or a delete, spelled as on the wire."""

    set: dict[str, Any] | None = None
    inc: dict[str, Any] | None = None
    append: dict[str, list[Any]] | None = None
    if_revision: int | None = None
    upsert: bool = False


_decode_more = msgspec.json.Decoder(More).decode


class Write(Struct, eq=False, gc=False):
    """A write on its way. `fields` is the record of a create, the merge patch of an update."""

    op: Op
    kind: str
    id: str
    body: bytes
    """The encoded `fields`, and behind them the rarer parts, as they stand in the frame."""
    fields: Fields
    more: More | None = None
    flat: bool = False
    """`fields` holds only plain values and no null: merging is one dict display."""
    seq: int = 0
    sent: bool = False
    """It left at least once, so it may be applied already: it is sent again as `again`, and never merged."""
    decided: bool = False
    doubtful: bool = False
    """The cache foresaw a refusal. If it is applied all the same, the cache knew less than it thought."""

    # The cache's own: how the record looked below this write (while it is the oldest undecided one of its record), and
    # its neighbours among the record's undecided writes.
    below: Seen = None
    revision: int | None = None
    earlier: Write | None = None
    later: Write | None = None

    @property
    def status(self) -> Any:
        return self.fields.get("status")

    def is_terminal(self) -> bool:
        return isinstance(self.status, str) and self.status.upper() in _TERMINAL

    def line(self, floor: int) -> bytes:
        """The frame as it is sent now."""
        if self.sent:
            return b'%b,"seq":%d,"floor":%d,"again":true}\n' % (self._head(), self.seq, floor)
        return b'%b,"seq":%d,"floor":%d}\n' % (self._head(), self.seq, floor)

    def frame(self) -> bytes:
        """The request without what is known at sending time."""
        return self._head() + b"}"

    def _head(self) -> bytes:
        if self.op == "delete":
            named = {"op": "delete", "jobId": self.id} if self.kind == "job" else {
                "op": "delete", "kind": self.kind, "id": self.id,
            }  # fmt: skip
            return _encode(named)[:-1] + self.body
        if self.kind == "job":
            return b'{"op":"%b","jobId":%b,"job":%b' % (self.op.encode(), _encode(self.id), self.body)
        return b'{"op":"%b","kind":%b,"id":%b,"record":%b' % (
            self.op.encode(), _encode(self.kind), _encode(self.id), self.body,
        )  # fmt: skip


# --- from a call to a write ----------------------------------------------------------------------------------------


def create(kind: str, given: Mapping[str, Any]) -> Write:
    record = spelling.of_kind(kind).of_fields(dict(checked_names(given)))
    id = _id_of(kind, record)
    body = _encode(record)
    if len(body) > _SURELY_FITS:
        _check_size_of(body)
    fields = record if _PLAIN.issuperset(map(type, record.values())) else _as_sent(body, record)
    if not _MANAGED_AT_BIRTH.isdisjoint(fields):
        fields = {name: value for name, value in fields.items() if name not in _MANAGED_AT_BIRTH}
    if kind == "job" and fields.get("status") not in _JOB_STATES:
        fields = _with_known_status(fields)
    return Write("create", kind, id, body, fields)


def update(kind: str, id: str, fields: Fields, more: More | None) -> Write:
    """`fields` must not be used by the caller afterwards."""
    if type(id) is not str or not id:
        _check_id(kind, id)
    if not (_JOB_NAMES if kind == "job" else _PLAIN_NAMES).issuperset(fields):
        fields = spelling.of_kind(kind).of_fields(fields)
    body = _encode(fields)
    flat = True
    for value in fields.values():
        if type(value) not in _FLAT:
            flat = False
            if not _PLAIN.issuperset(map(type, fields.values())):
                fields = _as_sent(body, fields)
            break
    if more is not None:
        body, more = _with_more(body, _spelled(kind, more))
    if len(body) > _SURELY_FITS:
        _check_size_of(body)
    if not MANAGED.isdisjoint(fields):
        fields = {name: value for name, value in fields.items() if name not in MANAGED}
    if kind == "job" and "status" in fields and fields["status"] not in _JOB_STATES:
        fields = _with_known_status(fields)
    return Write("update", kind, id, body, fields, more, flat)


def delete(kind: str, id: str, if_revision: int | None) -> Write:
    _check_id(kind, id)
    if if_revision is None:
        return Write("delete", kind, id, b"", {})
    body, more = _with_more(b"", More(if_revision=if_revision))
    return Write("delete", kind, id, body, {}, more)


def restored(frame: bytes, seq: int) -> Write:
    """A write that comes back from the spool. Nobody knows whether it was sent, so it counts as sent."""
    message = _decode(frame)
    op, kind = message["op"], message.get("kind", "job")
    fields = message.get("job" if kind == "job" else "record") or {}
    if op == "create":
        write = create(kind, fields)
    elif op == "delete":
        write = delete(kind, message.get("jobId") or message["id"], message.get("ifRevision"))
    else:
        more = msgspec.convert(message, More)
        write = update(kind, message.get("jobId") or message["id"], fields, more if more != More() else None)
    write.seq, write.sent = seq, True
    return write


def checked_more(
    set: Mapping[str, Any] | None,
    inc: Mapping[str, float] | None,
    append: Mapping[str, Any] | None,
    if_revision: int | None,
    upsert: bool,
) -> More:
    """The rarer parts, with mistakes named at once: a field that is called like one of them goes into the patch."""
    for name, given in (("set", set), ("inc", inc), ("append", append)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{name}= takes a mapping of paths to values, not {type(given).__name__}; "
                f"a field of that name goes into the patch: update(id, {{{name!r}: ...}})"
            )
    for path, amount in (inc or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise TypeError(f"inc: {path} takes a number, not {type(amount).__name__}")
    for path, values in (append or {}).items():
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"append: {path} takes a list of values, not {type(values).__name__}")
    return More(
        set=None if set is None else dict(set),
        inc=None if inc is None else dict(inc),
        append=None if append is None else {path: list(values) for path, values in append.items()},
        if_revision=if_revision,
        upsert=upsert,
    )


def checked_names(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"a record or patch is a mapping of fields, not {type(given).__name__}")
    for name in given:
        if type(name) is not str:
            raise TypeError(f"a field's name is a string, not {name!r}")
    return given


def _spelled(kind: str, more: More) -> More:
    """The rarer parts with known names in their own spelling."""
    of_path = spelling.of_kind(kind).of_path
    parts = (more.set, more.inc, more.append)
    if all(of_path(path) == path for part in parts for path in part or ()):
        return more
    set, inc, append = ({of_path(path): value for path, value in (part or {}).items()} or None for part in parts)
    return msgspec.structs.replace(more, set=set, inc=inc, append=append)


def _with_more(body: bytes, more: More) -> tuple[bytes, More]:
    """The body with the rarer parts behind it, and those as the daemon will read them."""
    encoded = _encode(more)
    if b"null" in encoded:
        _refuse_nan(msgspec.to_builtins(more), "")
    return b"%b,%b" % (body, encoded[1:-1]), _decode_more(encoded)


def _id_of(kind: str, record: Fields) -> str:
    usual = "uuid" if kind == "job" else "id"
    _check_id(kind, record.get(usual))
    return str(record[usual])


def _check_id(kind: str, id: Any) -> None:
    if type(id) is not str or not id:
        name = "uuid" if kind == "job" else "id"
        raise ValueError(f"a {kind} needs an {name}: a string that is not empty, not {id!r}")


def _check_size_of(body: bytes) -> None:
    """What the daemon would end the connection for is refused here, where the mistake is."""
    limits = Limits()
    if len(body) + ENVELOPE_BYTES > limits.frame_bytes:
        raise TooLarge(f"the write takes {len(body)} bytes; a frame holds {limits.frame_bytes}")
    try:
        check_size(body, limits)
    except Malformed as bad:
        raise bad.error from None


def fits(write: Write, limits: Limits) -> StateError | None:
    """Why this daemon, whose limits are known now, would not even read the frame."""
    if len(write.body) + ENVELOPE_BYTES > limits.frame_bytes:
        return TooLarge(f"the write takes {len(write.body)} bytes; this daemon's frames hold {limits.frame_bytes}")
    return None


def _as_sent(body: bytes, given: Fields) -> Fields:
    """The fields as the daemon will read them: nothing of the caller's is kept, and times are text."""
    if b"null" in body:
        _refuse_nan(given, "")
    return _decode_fields(body)


def _refuse_nan(value: Any, path: str) -> None:
    """NaN and infinities would silently become null, and null removes a field."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path or 'the value'} is {value}: JSON has no such number")
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_nan(part, f"{path}/{name}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            _refuse_nan(part, f"{path}/{place}")


def _with_known_status(fields: Fields) -> Fields:
    """Jobs' states are told apart without regard to case; an empty one counts as absent."""
    status = fields.get("status")
    if isinstance(status, str) and status:
        known = status.upper()
        return {**fields, "status": "CANCELED" if known == "CANCELLED" else known}
    return {name: value for name, value in fields.items() if name != "status"}


# --- what a write does to a record ---------------------------------------------------------------------------------


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


# --- two writes made into one --------------------------------------------------------------------------------------


def merged(first: Write, second: Write) -> Write | None:
    """One update that does what two neighbouring, unsent updates of a record do; None where no single one can."""
    if not (_mergeable(first) and _mergeable(second)):
        return None
    if None not in (first.status, second.status) and first.status != second.status:
        return None  # two steps of the lifecycle; their product may not be one
    one, two = first.more or More(), second.more or More()
    if one.upsert != two.upsert:
        return None
    try:
        fields = _composed(first.fields, one, second.fields, two)
        more = More(
            set=_joined(one.set, two.set, lambda a, b: {**a, **b}),
            inc=_joined(one.inc, two.inc, composing.compose_counts),
            append=_joined(one.append, two.append, composing.compose_lists),
            upsert=one.upsert,
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
