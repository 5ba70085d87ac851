"""One fire-and-forget write: what was asked, ready to be sent.

Owns the shape of a write between the agent's call and the wire. Must not know queues, files or sockets. What a write
does to a record is in foresight.py, how two become one in merging.py.

What the caller gave is encoded inside the call (a quarter of a microsecond): the size is known, the caller may change
its objects afterwards, and what cannot be sent is refused where the mistake is. The rest of the frame is made when it
is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from . import spelling
from .errors import StateError, TooLarge
from .patch import Fields, shown, steps
from .scanning import check_size
from .spelling import MANAGED
from .wire import Limits

Op = Literal["create", "update", "delete", "emit", "cancel", "retry", "release"]

QUEUED_KINDS = frozenset({"job", "task"})
"""Kinds whose states are those of a job."""

# What the daemon writes itself it ignores in an update, so it is not shown here either.
_MANAGED_AT_BIRTH = MANAGED - {"createdAt", "startedAt", "completedAt"}

_JOB_OWN_NAMES = spelling.JOB.known - MANAGED
"""Known fields of a job that are its owner's to write; those beside them are looked at one by one."""
_JOB_NAMES_AT_BIRTH = spelling.JOB.known - _MANAGED_AT_BIRTH

JOB_STATES = frozenset(
    {
        "PENDING", "INITIALIZING", "SCHEDULED", "QUEUED", "RUNNING", "STOPPING",
        "COMPLETED", "FAILED", "STOPPED", "CANCELED", "TIMEOUT",
    }
)  # fmt: skip
TERMINAL = frozenset({"COMPLETED", "FAILED", "STOPPED", "CANCELED", "CANCELLED", "TIMEOUT"})

# Values that encode to themselves and cannot change under us. A float may be NaN, which JSON cannot say.
_FLAT = frozenset({str, int, bool})
_PLAIN = frozenset({str, int, bool, type(None)})

ENVELOPE_BYTES = 2048
"""Room left in a frame for what is added at sending time; an id takes at most half of it."""

_SURELY_FITS = 512
"""Bytes below which no body can be nested too deep or hold too many values."""

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # it holds the text, which may be a secret
        raise ValueError("a text with half a character (a lone surrogate) cannot be sent") from None


class Unknown:
    """Neither a record nor its absence."""


UNKNOWN = Unknown()
Seen = Fields | None | Unknown


class More(Struct, omit_defaults=True, rename="camel", gc=False):
    """What stands beside the fields of a write, spelled as on the wire."""

    set: dict[str, Any] | None = None
    inc: dict[str, Any] | None = None
    append: dict[str, list[Any]] | None = None
    if_revision: int | None = None
    upsert: bool = False
    token: int | None = None
    """The write counts only while this lease is held."""
    status: str | None = None
    """Of a release."""
    delay: float = 0.0
    event: dict[str, Any] | None = None
    """What is to be told."""

    def __repr__(self) -> str:
        given = (name for name, default in _NO_MORE.items() if getattr(self, name) != default)
        return f"More({', '.join(given)})"


_NO_MORE = {field.name: field.default for field in msgspec.structs.fields(More)}
_decode_more = msgspec.json.Decoder(More).decode


class _JobUpdate(Struct, tag="update", tag_field="op", rename="camel", omit_defaults=True, gc=False):
    """The frame of an update. `job` is the body, with what stands beside the fields behind it."""

    job_id: str
    job: msgspec.Raw
    seq: int
    floor: int
    again: bool = False


class _JobCreate(_JobUpdate, tag="create", tag_field="op", gc=False):
    """The frame of a create."""


_JOB_FRAMES: dict[str, type[_JobUpdate]] = {"update": _JobUpdate, "create": _JobCreate}


class Write(Struct, eq=False, gc=False):
    """A write on its way. `fields` is the record of a create, the merge patch of an update or a release."""

    op: Op
    kind: str
    id: str
    body: bytes
    """The encoded `fields`, and behind them what stands beside them, as in the frame."""
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
    misled: bool = False
    """What it was put on was wrong: an earlier write was applied against what had been foreseen."""

    # The cache's own: how the record looked below this write (while it is the oldest undecided one of its record), and
    # its neighbours among the record's undecided writes.
    below: Seen = None
    revision: int | None = None
    earlier: Write | None = None
    later: Write | None = None

    on_decided: Callable[[StateError | None], object] | None = None
    """Called on the sender's thread once the daemon has decided: with its error, or with None."""

    def __repr__(self) -> str:
        # Nothing that was written: it may hold secrets, and a repr ends up in logs.
        return f"Write({self.op} {self.kind} {self.id!r}, seq {self.seq})"

    @property
    def status(self) -> Any:
        return self.fields.get("status")

    def is_last_word(self) -> bool:
        """Whether nothing of weight follows about the record: it ends, or is given back."""
        return self.op == "release" or (isinstance(self.status, str) and self.status.upper() in TERMINAL)

    def line(self, floor: int) -> bytes:
        """The frame as it is sent now."""
        if self.sent:
            return b'%b,"seq":%d,"floor":%d,"again":true}\n' % (self._head(), self.seq, floor)
        return b'%b,"seq":%d,"floor":%d}\n' % (self._head(), self.seq, floor)

    def frame(self) -> bytes:
        """The request without what is known at sending time."""
        return self._head() + b"}"

    def _head(self) -> bytes:
        if self.op not in ("create", "update"):
            return _encode({"op": self.op, **named(self.kind, self.id)})[:-1] + self.body
        if self.kind == "job":
            return b'{"op":"%b","jobId":%b,"job":%b' % (self.op.encode(), _encode(self.id), self.body)
        return b'{"op":"%b","kind":%b,"id":%b,"record":%b' % (
            self.op.encode(), _encode(self.kind), _encode(self.id), self.body,
        )  # fmt: skip


def lines(made: list[Write], floor: int) -> bytes:
    """The frames of writes as they are sent now, encoded in one call: most are creates and updates of jobs."""
    frames: list[Any] = []
    for write in made:
        frame = _JOB_FRAMES.get(write.op) if write.kind == "job" else None
        if frame is not None:
            frames.append(frame(write.id, msgspec.Raw(write.body), write.seq, floor, write.sent))
        else:
            frames.append(msgspec.Raw(write.line(floor)[:-1]))
    return _encoder.encode_lines(frames)


def named(kind: str, id: str) -> Fields:
    """A record, named as in an envelope."""
    return {"jobId": id} if kind == "job" else {"kind": kind, "id": id}


def pointer(*names: str) -> str:
    """The JSON Pointer that walks through these names."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


# --- from a call to a write ----------------------------------------------------------------------------------------


def create(kind: str, given: Mapping[str, Any]) -> Write:
    plain = kind == "job" and type(given) is dict and _JOB_NAMES_AT_BIRTH.issuperset(given)
    record = dict(given) if plain else spelling.of_kind(kind).of_fields(dict(checked_names(given)))
    id = _id_of(kind, record)
    body = _encode(record)
    if len(body) > _SURELY_FITS:
        _check_size_of(body)
    fields = record if _PLAIN.issuperset(map(type, record.values())) else _as_sent(body, record)
    if not plain and not _MANAGED_AT_BIRTH.isdisjoint(fields):
        fields = {name: value for name, value in fields.items() if name not in _MANAGED_AT_BIRTH}
    if kind in QUEUED_KINDS and fields.get("status") not in JOB_STATES:
        fields = _with_known_status(fields)
    return Write("create", kind, id, body, fields)


def update(kind: str, id: str, fields: Fields, more: More | None) -> Write:
    """`fields` must not be used by the caller afterwards."""
    if kind != "job" or type(id) is not str or not id or not id.isascii():
        _check_id(kind, id)
    plain = kind == "job" and more is None and _JOB_OWN_NAMES.issuperset(fields)
    flat = True
    for value in fields.values():  # half the cost of a set's method
        if type(value) not in _FLAT:
            flat = False
            break
    if plain and flat and ("status" not in fields or fields["status"] in JOB_STATES):
        body = _encode(fields)
        if len(body) <= _SURELY_FITS:
            return Write("update", "job", id, body, fields, None, True)  # the common case
    if not plain:
        fields = spelling.of_kind(kind).of_fields(fields)
    body = _encode(fields)
    if not flat and not _PLAIN.issuperset(map(type, fields.values())):
        fields = _as_sent(body, fields)
    if more is not None:
        body, more = _with_more(body, _spelled(kind, more))
    if len(body) > _SURELY_FITS:
        _check_size_of(body)
    if not MANAGED.isdisjoint(fields):
        fields = {name: value for name, value in fields.items() if name not in MANAGED}
    if kind in QUEUED_KINDS and "status" in fields and fields["status"] not in JOB_STATES:
        fields = _with_known_status(fields)
    return Write("update", kind, id, body, fields, more, flat)


def delete(kind: str, id: str, if_revision: int | None) -> Write:
    return _beside("delete", kind, id, More(if_revision=if_revision))


def emit(kind: str, id: str, event: Fields) -> Write:
    return _beside("emit", kind, id, More(event=event))


def cancel(kind: str, id: str) -> Write:
    return _beside("cancel", kind, id, More())


def retry(kind: str, id: str) -> Write:
    return _beside("retry", kind, id, More())


def release(kind: str, id: str, fields: Fields, more: More) -> Write:
    """Give a lease back, with a last patch. `fields` must not be used by the caller afterwards."""
    fields = spelling.of_kind(kind).of_fields(dict(checked_names(fields)))
    write = _beside("release", kind, id, more)
    if fields:
        body = _encode(fields)
        write.fields = {name: value for name, value in _as_sent(body, fields).items() if name not in MANAGED}
        write.body += b',"%b":%b' % (b"job" if kind == "job" else b"record", body)
        if len(write.body) > _SURELY_FITS:
            _check_size_of(write.body)
    return write


def _beside(op: Op, kind: str, id: str, more: More) -> Write:
    """A write with nothing but what stands beside the fields."""
    _check_id(kind, id)
    if more == More():
        return Write(op, kind, id, b"", {})
    body, more = _with_more(b"", more)
    if len(body) > _SURELY_FITS:
        _check_size_of(body)
    return Write(op, kind, id, body, {}, more)


def restored(frame: bytes, seq: int) -> Write:
    """A write that comes back from the spool. Nobody knows whether it was sent, so it counts as sent."""
    message = _decode(frame)
    write = _rebuilt(message, message["op"], message.get("kind", "job"))
    write.seq, write.sent = seq, True
    return write


def _rebuilt(message: Fields, op: Op, kind: str) -> Write:
    fields = message.get("job" if kind == "job" else "record") or {}
    if op == "create":
        return create(kind, fields)
    id = message.get("jobId") or message["id"]
    more = msgspec.convert(message, More)
    if op == "update":
        return update(kind, id, fields, more if more != More() else None)
    return release(kind, id, fields, more) if op == "release" else _beside(op, kind, id, more)


def checked_more(
    set: Mapping[str, Any] | None,
    inc: Mapping[str, float] | None,
    append: Mapping[str, Any] | None,
    if_revision: int | None,
    upsert: bool,
    token: int | None = None,
) -> More:
    """What stands beside an update's fields. Mistakes are named at once: a field that is called like one of these goes
    into the patch."""
    for name, given in (("set", set), ("inc", inc), ("append", append)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{name}= takes a mapping of paths to values, not {type(given).__name__}; "
                f"a field of that name goes into the patch: update(id, {{{name!r}: ...}})"
            )
        for path in checked_names(given or {}):
            steps(path)
    for path, amount in (inc or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise TypeError(f"inc: {shown(steps(path))} takes a number, not {type(amount).__name__}")
    for path, values in (append or {}).items():
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"append: {shown(steps(path))} takes a list of values, not {type(values).__name__}")
    return More(
        set=None if set is None else dict(set),
        inc=None if inc is None else dict(inc),
        append=None if append is None else {path: list(values) for path, values in append.items()},
        if_revision=if_revision,
        upsert=upsert,
        token=token,
    )


def checked_names(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"a record or patch is a mapping of fields, not {type(given).__name__}")
    for name in given:
        if type(name) is not str:
            raise TypeError(f"a field's name is a string, not {name!r}")
    return given


def _spelled(kind: str, more: More) -> More:
    """The same with known names in their own spelling."""
    of_path = spelling.of_kind(kind).of_path
    parts = (more.set, more.inc, more.append)
    if all(of_path(path) == path for part in parts for path in part or ()):
        return more
    set, inc, append = ({of_path(path): value for path, value in (part or {}).items()} or None for part in parts)
    return msgspec.structs.replace(more, set=set, inc=inc, append=append)


def _with_more(body: bytes, more: More) -> tuple[bytes, More]:
    """The body with the rest behind it, and that as the daemon will read it."""
    encoded = _encode(more)
    if b"null" in encoded:
        given = msgspec.to_builtins(more)
        for part in ("set", "inc", "append"):
            for path, value in given.pop(part, {}).items():
                _refuse_nan(value, steps(path))
        _refuse_nan(given, [])
    return b"%b,%b" % (body, encoded[1:-1]), _decode_more(encoded)


def _id_of(kind: str, record: Fields) -> str:
    usual = "uuid" if kind == "job" else "id"
    _check_id(kind, record.get(usual))
    return str(record[usual])


def _check_id(kind: str, id: Any) -> None:
    if type(id) is not str or not id:
        name = "uuid" if kind == "job" else "id"
        raise ValueError(f"a {kind} needs an {name}: a string that is not empty, not {id!r}")
    if type(kind) is not str:
        raise TypeError(f"a kind is a string, not {kind!r}")
    if not (id.isascii() and kind.isascii()):
        _encode((kind, id))  # half a character cannot be sent, and those that leave with it would not be either


def _check_size_of(body: bytes) -> None:
    """What the daemon would end the connection for is refused here, where the mistake is."""
    limits = Limits()
    if len(body) + ENVELOPE_BYTES > limits.frame_bytes:
        raise TooLarge(f"the write takes {len(body)} bytes; a frame holds {limits.frame_bytes}")
    check_size(body, limits.frame_values, limits.depth)


def fits(write: Write, limits: Limits) -> StateError | None:
    """Why this daemon, whose limits are known now, would not even read the frame."""
    if len(write.body) + ENVELOPE_BYTES > limits.frame_bytes:
        return TooLarge(f"the write takes {len(write.body)} bytes; this daemon's frames hold {limits.frame_bytes}")
    return None


def _as_sent(body: bytes, given: Fields) -> Fields:
    """The fields as the daemon will read them: nothing of the caller's is kept, and times are text."""
    if b"null" in body:
        _refuse_nan(given, [])
    return _decode_fields(body)


def _refuse_nan(value: Any, path: list[str]) -> None:
    """NaN and infinities would silently become null, and null removes a field."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{shown(path) if path else 'the value'} is {value}: JSON has no such number")
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_nan(part, [*path, str(name)])
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            _refuse_nan(part, [*path, str(place)])


def _with_known_status(fields: Fields) -> Fields:
    """Jobs' states are told apart without regard to case; an empty one counts as absent."""
    status = fields.get("status")
    if isinstance(status, str) and status:
        known = status.upper()
        return {**fields, "status": "CANCELED" if known == "CANCELLED" else known}
    return {name: value for name, value in fields.items() if name != "status"}
