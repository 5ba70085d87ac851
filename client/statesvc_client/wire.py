"""The wire: every message of protocol 1, its limits and its spelling. Both sides read this file.

Owns what may stand in a frame and how a frame becomes a typed request. Must not know sockets, rules or engines.
The op table in docs/PROTOCOL.md is made from the classes below: a new op is one class here and one handler.

A frame is decoded twice at most. The first try is strict and fast: keys spelled as documented. Anything else (another
case, an alias, an unknown key, a mistake) goes the slow way, which forgives spelling and names mistakes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeGuard, cast, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from . import scanning
from .errors import BadJson, BadRequest, Outcome, RequestFault, StateError, UnknownOp

PROTOCOL = 1
"""The protocol this package speaks."""

REQUEST_ID_CHARS = 256
"""A reply repeats its request's id, so the id has a bound."""

RequestId = Annotated[str, Meta(max_length=REQUEST_ID_CHARS)] | int
Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Revision = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Token = Annotated[int, Meta(ge=1, le=2**63 - 1)]
TtlSeconds = Annotated[float, Meta(ge=0.1, le=7 * 86_400)]
"""How long a lease lasts without a renewal: long enough to be renewed in time, short enough to lapse in this life."""
DelaySeconds = Annotated[float, Meta(ge=0, le=366 * 86_400)]
WaitSeconds = Annotated[float, Meta(ge=0, le=3600)]
Fields = dict[str, Any]


class Limits(Struct, rename="camel", kw_only=True, frozen=True):
    """What one frame and one client may cost. `hello` tells them; every number is a default of the configuration."""

    frame_bytes: int = 10 * 1024 * 1024
    frame_values: int = 200_000
    depth: int = 256
    id_chars: int = 256
    record_bytes: int = 8 * 1024 * 1024
    requests_in_flight: int = 4096
    list_limit: int = 1000
    marks_clients: int = 64


# --- requests ------------------------------------------------------------------------------------------------------


class Request(Struct, tag_field="op", rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every request may carry. `timestamp` is accepted from agents that send one, and not used."""

    purpose: ClassVar[str] = ""
    admin: ClassVar[bool] = False
    reply_fields: ClassVar[tuple[str, ...]] = ()
    codes: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[bool] = False

    request_id: RequestId = ""
    kind: str = "job"
    id: str | None = None
    job_id: str | None = None
    timestamp: Any = None

    @property
    def target(self) -> str:
        """The record named in the envelope: `jobId` for jobs, `id` for every kind."""
        if self.job_id and self.id and self.job_id != self.id:
            raise BadRequest(f"the request names {printable(self.job_id)} and {printable(self.id)}: send one id")
        return self.job_id or self.id or ""

    @property
    def op(self) -> str:
        return str(self.__struct_config__.tag)


class Write(Request):
    """A request that changes state. After `hello`, `seq` and `floor` make it happen exactly once."""

    writes: ClassVar[bool] = True

    seq: Seq | None = None
    floor: Annotated[int, Meta(ge=0)] = 0
    again: bool = False


class Ping(Request, tag="ping"):
    purpose = "Is anybody there?"


class Hello(Request, tag="hello"):
    purpose = "Say who is calling. From here on updates are merge patches, writes are numbered, lists are paged."
    reply_fields = ("protocol", "version", "backend", "durability", "epoch", "limits")
    codes = ("bad_request",)

    client: str | None = None
    name: str | None = None
    node_id: str | None = None
    boot_id: str | None = None
    ack: Literal["each", "last"] = "each"
    protocol: int = PROTOCOL


class Create(Write, tag="create"):
    purpose = "Make a record that is not there yet. `from` takes the id from a pool: an `ip` from a `network`."
    reply_fields = ("job",)
    codes = ("bad_request", "exists", "conflict", "not_found")

    job: Fields | None = None
    record: Fields | None = None
    from_: str | None = msgspec.field(default=None, name="from")


class Update(Write, tag="update"):
    purpose = (
        "Change a record: `job` is a merge patch after `hello` and assigns without it; `set` assigns, `inc` adds, "
        "`append` extends; paths are a top-level name or a JSON Pointer."
    )
    reply_fields = ("job",)
    codes = ("bad_request", "not_found", "conflict", "invalid_transition", "lease_lost")

    job: Fields | None = None
    record: Fields | None = None
    set: Fields | None = None
    inc: dict[str, int | float] | None = None
    append: dict[str, list[Any]] | None = None
    if_revision: Revision | None = None
    token: Token | None = None
    upsert: bool = False


class Delete(Write, tag="delete"):
    purpose = "Remove a record; a tombstone keeps late writes from reviving it."
    codes = ("bad_request", "not_found", "conflict", "lease_lost")

    if_revision: Revision | None = None
    token: Token | None = None


class Get(Request, tag="get"):
    purpose = "Read one record."
    reply_fields = ("job",)
    codes = ("bad_request", "not_found")


class List(Request, tag="list"):
    purpose = "Read records by filter, a page at a time."
    reply_fields = ("jobs", "nextCursor", "asOf", "truncated", "total")
    codes = ("bad_request",)

    filter: Fields | None = None
    sort_by: str | None = None
    sort_desc: bool | None = None
    limit: int | None = None
    cursor: str | None = None
    count: bool = False


class Scope(Struct, rename="camel", forbid_unknown_fields=True):
    """What a replacing `sync` may delete from."""

    node_id: Annotated[str, Meta(min_length=1)]
    """Nobody is a node without a name: it would stand for all of them."""


class Sync(Write, tag="sync"):
    purpose = (
        "Bring many records forward at once: create what is missing, move what moved, report the rest. "
        "`mode: replace` also deletes unleased records inside `scope` that were not sent."
    )
    reply_fields = ("applied", "unchanged", "rejected", "missing", "truncated")
    codes = ("bad_request",)

    jobs: list[Fields] | None = None
    records: list[Fields] | None = None
    mode: Literal["merge", "replace"] = "merge"
    scope: Scope | None = None


MOST_TXN_OPS = 32
"""Writes of one transaction: what every engine takes at once."""

TxnOp = Create | Update | Delete


class Txn(Write, tag="txn", kw_only=True):
    purpose = "Several writes, all or nothing, each on a record of its own; `create`, `update` and `delete`."
    reply_fields = ("results",)
    codes = ("bad_request", "exists", "not_found", "conflict", "invalid_transition", "lease_lost")

    ops: Annotated[list[TxnOp], Meta(min_length=1, max_length=MOST_TXN_OPS)]


class Claim(Write, tag="claim"):
    purpose = (
        "Take a lease: on one record by `id`, which is made when absent; or by `filter` on the best ready records of a "
        "queue, which move to their claimed state. Nothing ready is an empty reply, after `wait` seconds at most."
    )
    reply_fields = ("jobs", "duplicate", "epoch")
    codes = ("bad_request", "invalid_transition")

    filter: Fields | None = None
    holder: str | None = None
    ttl: TtlSeconds = 30.0
    status: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 1
    wait: WaitSeconds = 0.0
    hold: DelaySeconds = 0.0
    job: Fields | None = None
    record: Fields | None = None


class Renew(Write, tag="renew", kw_only=True):
    purpose = "Keep a lease, and report progress: `record` is a patch."
    reply_fields = ("lease", "cancelRequested", "revision", "epoch")
    codes = ("bad_request", "lease_lost", "invalid_transition")

    token: Token
    ttl: TtlSeconds | None = None
    job: Fields | None = None
    record: Fields | None = None


class Release(Write, tag="release", kw_only=True):
    purpose = (
        "Give a lease back. A terminal `status` ends the record, FAILED and TIMEOUT by its retry policy; without one "
        "it goes back to its queue, after `delay` seconds."
    )
    reply_fields = ("job",)
    codes = ("bad_request", "lease_lost", "invalid_transition")

    token: Token
    status: str | None = None
    delay: DelaySeconds = 0.0
    job: Fields | None = None
    record: Fields | None = None


class Cancel(Write, tag="cancel"):
    purpose = "End a record that waits; ask the holder of a running one to end it, which stays asked."
    reply_fields = ("job",)
    codes = ("bad_request", "not_found", "invalid_transition")


class Retry(Write, tag="retry"):
    purpose = "Put a failed record back into its queue."
    reply_fields = ("job",)
    codes = ("bad_request", "not_found", "invalid_transition")


class Told(Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """An event as a client gives it."""

    type: Annotated[str, Meta(min_length=1, max_length=64)]
    message: str | None = None
    data: Any = None


class Emit(Write, tag="emit", kw_only=True):
    purpose = "Add an event to a record's history; watchers see it."
    reply_fields = ("cursor", "revision")
    codes = ("bad_request", "not_found", "lease_lost")

    event: Told
    token: Token | None = None


class History(Request, tag="history"):
    purpose = "Read what happened to one record, oldest first."
    reply_fields = ("events", "nextCursor")
    codes = ("bad_request", "not_found", "gone")

    after: str | None = None
    limit: int | None = None


class Watch(Request, tag="watch"):
    purpose = (
        "Follow what happens to records of a kind. The reply comes first, then a line for every event. Without `after` "
        'from now on, with `"0"` from the oldest kept event.'
    )
    reply_fields = ("cursor",)
    codes = ("bad_request", "gone", "busy")

    filter: Fields | None = None
    after: str | None = None


class Unwatch(Request, tag="unwatch"):
    purpose = (
        "End a watch: the one whose request had the id `watch`, or this request's own id; without such a one, all of "
        "this connection."
    )
    codes = ("not_found",)

    watch: RequestId | None = None


class Stats(Request, tag="stats"):
    purpose = "Count records by any field, and measure how long they waited and ran. Kind `*` counts records by kind."
    reply_fields = ("total", "counts", "durations", "truncated")
    codes = ("bad_request",)

    filter: Fields | None = None
    by: str | None = None


class Stuck(Request, tag="stuck"):
    purpose = (
        "Name live records that do not move: a lapsed lease, a deadline that has passed, a failed or missing "
        "dependency, no update for `seconds`."
    )
    reply_fields = ("stuck", "truncated")
    codes = ("bad_request",)

    filter: Fields | None = None
    seconds: DelaySeconds | None = None
    limit: int | None = None


class Health(Request, tag="health"):
    purpose = "How the daemon is: whether it lives, whether it is ready to serve, and every check by name."
    reply_fields = ("live", "ready", "checks", "version", "backend", "durability", "epoch", "measures")


class Admin(Request):
    """A request for the admin uids only. With `progress` lines that tell how far the work is come before the reply."""

    admin: ClassVar[bool] = True

    progress: bool = False


class Snapshot(Admin, tag="snapshot"):
    purpose = "Write everything into one file below the data folder, as it is at one place in the log."
    reply_fields = ("done",)
    codes = ("bad_request", "denied", "exists", "no_space")

    path: str | None = None


class Restore(Admin, tag="restore", kw_only=True):
    purpose = "Replace everything by what a snapshot holds; the epoch changes."
    reply_fields = ("done", "epoch")
    codes = ("bad_request", "denied", "not_found", "no_space")
    writes = True

    path: str


class Check(Admin, tag="check"):
    purpose = "Verify what is stored: checksums, indexes against records, references. `repair` mends what can be."
    reply_fields = ("problems", "repaired", "done")
    codes = ("denied",)

    repair: bool = False


class Sweep(Admin, tag="sweep"):
    purpose = "Do the background duties now: lapsed leases, due records, ownership, retention, space."
    reply_fields = ("done",)
    codes = ("denied",)


class Freeze(Admin, tag="freeze"):
    purpose = "Refuse writes with `unavailable, not_applied` until `thaw`."
    codes = ("denied",)


class Thaw(Admin, tag="thaw"):
    purpose = "Take writes again."
    codes = ("denied",)


class Feed(Admin, tag="feed"):
    purpose = (
        "Hand out what is stored as it is stored, for `statesvc migrate`: all rows, a piece a reply, the next one with "
        "`cursor`; or with `after` the entries of the log behind that place."
    )
    reply_fields = ("feed", "cursor", "nextCursor", "total")
    codes = ("bad_request", "denied", "gone", "busy")

    cursor: str | None = None
    after: str | None = None


AnyRequest = (
    Ping | Hello | Create | Update | Delete | Get | List | Sync | Txn | Claim | Renew | Release | Cancel | Retry
    | Emit | History | Watch | Unwatch | Stats | Stuck | Health | Snapshot | Restore | Check | Sweep | Freeze | Thaw
    | Feed
)  # fmt: skip
OPS: dict[str, type[Request]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyRequest)}


# --- replies -------------------------------------------------------------------------------------------------------


class Rejected(Struct, rename="camel", omit_defaults=True):
    """One record of a `sync` that the rules refused."""

    code: str
    error: str
    job_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Lease(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Who has a record, and until when without a sign of life."""

    holder: str
    token: int
    """Grows with every claim of the record: a write guarded by an older one is refused."""
    ttl: float
    beat: int = 0
    """Counts renewals. Whoever sees token and beat stand still for `ttl` calls the lease lapsed."""
    origin: str | None = None
    """`client/seq` of the claim, by which a claim whose reply was lost is found again; one that had none gets a name of
    its own, after a `~`."""
    taken: bool = False
    """The claim took the record out of its queue: if it is not ended it goes back there."""
    hold: float = 0.0
    """Seconds behind `ttl` before another may take the record."""
    boot_id: str | None = None


class Happening(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """An event as watchers and `history` see it."""

    cursor: str
    type: str
    kind: str
    id: str
    revision: int
    at: str
    uid: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    message: str | None = None
    data: Raw | UnsetType = UNSET
    record: Raw | UnsetType = UNSET
    """The record after the change; absent once it is deleted."""


class Verdict(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One check of `health`."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str = ""


class Duration(Struct, rename="camel", kw_only=True):
    """How long records took, in seconds; percentiles are within one percent."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Unmoved(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A record that does not move, and why it is thought so."""

    id: str
    status: str | None = None
    reasons: list[str]
    updated_at: str | None = None


class Progress(Struct, rename="camel"):
    """How far long work is."""

    done: int
    total: int


class ProgressLine(Struct, rename="camel"):
    """A line before the reply of a request that asked for progress."""

    request_id: RequestId
    progress: Progress


class EventLine(Struct, rename="camel"):
    """A line of a watch."""

    request_id: RequestId
    event: Happening


class Result(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What one write of a transaction made."""

    job: Raw | UnsetType = UNSET
    record: Raw | UnsetType = UNSET
    revision: int | None = None


class Reply(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The answer to one request. What does not apply is left out."""

    request_id: RequestId
    success: bool
    error: str | None = None
    code: str | None = None
    outcome: Outcome | None = None
    seq: int | None = None
    job: Raw | UnsetType = UNSET
    record: Raw | UnsetType = UNSET
    jobs: list[Raw] | UnsetType = UNSET
    records: list[Raw] | UnsetType = UNSET
    revision: int | None = None
    duplicate: bool = False
    next_cursor: str | None = None
    as_of: str | None = None
    truncated: bool = False
    total: int | None = None
    applied: int | None = None
    unchanged: int | None = None
    rejected: list[Rejected] | None = None
    missing: list[str] | None = None
    protocol: int | None = None
    version: str | None = None
    backend: str | None = None
    durability: str | None = None
    epoch: str | None = None
    limits: Limits | None = None
    results: list[Result] | None = None
    lease: Lease | None = None
    cancel_requested: bool = False
    cursor: str | None = None
    events: list[Happening] | UnsetType = UNSET
    counts: dict[str, int] | None = None
    durations: dict[str, Duration] | None = None
    stuck: list[Unmoved] | UnsetType = UNSET
    live: bool | None = None
    ready: bool | None = None
    checks: list[Verdict] | None = None
    measures: dict[str, int] | None = None
    problems: list[str] | UnsetType = UNSET
    repaired: list[str] | None = None
    done: dict[str, Any] | None = None
    feed: bytes | UnsetType = UNSET
    """Rows or entries of the log, packed as the daemon keeps them: for `statesvc migrate` of the same version alone."""


class Acked(Struct):
    """With `ack: last`: every write up to `acked` is decided, and applied unless a failure line came before."""

    acked: int
    success: bool = True


class Received(Reply, kw_only=True):
    """Any line a client may read: a reply, the acknowledgement of a run of writes, an event, or how far work is."""

    request_id: RequestId = ""
    success: bool = True
    acked: int | None = None
    event: Happening | None = None
    progress: Progress | None = None


_encode = msgspec.json.Encoder().encode
_strict: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_loose = msgspec.json.Decoder()
_received = msgspec.json.Decoder(Received)

_QUOTE, _BACKSLASH = b'"\\'


def encode_line(message: Any) -> bytes:
    """One frame, newline included."""
    return _encode(message) + b"\n"


def record_line(request_id: RequestId, kind: str, body: bytes) -> bytes:
    """The frame of a `Reply` that went well and shows one record: most replies are one, so it is put together."""
    shown = b"job" if kind == "job" else b"record"
    return b'{"requestId":%b,"success":true,"%b":%b}\n' % (_encode(request_id), shown, body)


def decode_reply(line: bytes) -> Received:
    """What a client reads."""
    return _received.decode(line)


# --- from a frame to a request -------------------------------------------------------------------------------------


class Malformed(Exception):
    """A frame that is no request: the error to answer with, and what could still be read of the envelope."""

    def __init__(self, error: StateError, envelope: Fields | None = None) -> None:
        super().__init__(error.text)
        self.error = error
        given = envelope or {}
        request_id, op, seq = given.get("requestId"), given.get("op"), given.get("seq")
        self.request_id: RequestId = request_id if _is_request_id(request_id) else ""
        self.op = op if isinstance(op, str) else ""
        self.seq = seq if type(seq) is int else None


def _is_request_id(value: Any) -> TypeGuard[RequestId]:
    if isinstance(value, str):
        return len(value) <= REQUEST_ID_CHARS
    return type(value) is int


def decode_request(frame: bytes, limits: Limits) -> AnyRequest:
    """The request a frame holds, or `Malformed`."""
    if len(frame) > 2 * limits.depth:
        try:
            scanning.check_size(frame, limits.frame_values, limits.depth)
        except StateError as error:
            raise Malformed(error) from None
    try:
        request = _strict.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_forgiving(frame)
    # In doubt, as for a key given with its default or a quote spelled in hex, the exact count tells.
    if frame.count(_QUOTE) != _encode(request).count(_QUOTE) or (_BACKSLASH in frame and b"\\u0022" in frame):
        _check_keys(frame, _decode_object(frame))
    return request


def _decode_forgiving(frame: bytes) -> AnyRequest:
    """The slow way: spelling forgiven, mistakes named."""
    given = _decode_object(frame)
    _check_keys(frame, given)
    envelope = {_envelope_key(key): part for key, part in given.items()}
    try:
        return _read(given, envelope)
    except RequestFault as error:
        raise Malformed(error, envelope) from None


def _read(given: Fields, envelope: Fields) -> AnyRequest:
    op = envelope.get("op", "")
    if not isinstance(op, str):
        raise BadRequest("op must be a string")
    cls = OPS.get(op)
    if cls is None:
        raise UnknownOp(f"unknown operation: {printable(op)}")
    if not _is_request_id(envelope.get("requestId", "")):
        raise BadRequest(f"requestId must be a string of at most {REQUEST_ID_CHARS} characters or an integer")
    _check_given_once(given, envelope)
    known = {key: value for key, value in envelope.items() if key in _KEYS_OF[op]}
    if op == "txn" and isinstance(known.get("ops"), list):
        known["ops"] = [_spelled_op(place, part) for place, part in enumerate(known["ops"])]
    try:
        return cast(AnyRequest, msgspec.convert(known, cls))
    except msgspec.ValidationError as problem:
        raise BadRequest(str(problem)) from None


def _check_given_once(given: Fields, named: Fields, where: str = "") -> None:
    """Refuse a key whose spellings do not say the same: nobody can tell which of them is meant."""
    for key, part in given.items():
        if named[_envelope_key(key)] != part:
            raise BadRequest(f"{where}{_envelope_key(key)} is given twice, in two spellings")


def _spelled_op(place: int, part: Any) -> Any:
    """One op of a transaction, with its keys in their own spelling and unknown ones left out, like any envelope's."""
    if not isinstance(part, dict):
        return part
    named = {_envelope_key(key): value for key, value in part.items()}
    _check_given_once(part, named, f"op {place}: ")
    keys = _KEYS_OF.get(named["op"]) if isinstance(named.get("op"), str) else None
    return named if keys is None else {key: value for key, value in named.items() if key in keys}


def _decode_object(frame: bytes) -> Fields:
    try:
        value = _loose.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Malformed(BadJson(f"INVALID_JSON: {_why(problem)}")) from None
    if not isinstance(value, dict):
        raise Malformed(BadJson("INVALID_JSON: a frame must be one JSON object"))
    return value


def _envelope_key(key: str) -> str:
    return _ENVELOPE.get(key.lower(), key)


def _why(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    if isinstance(problem, UnicodeDecodeError):
        return f"not UTF-8 at byte {problem.start} of a string"
    return str(problem)


def printable(text: str, most: int = 64) -> str:
    """A caller's value fit for an error text: bounded, control characters escaped."""
    shown = text if len(text) <= most else text[:most] + "…"
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def _keys(cls: type[Request]) -> frozenset[str]:
    return frozenset({"op", *cls.__struct_encode_fields__})


_KEYS_OF = {op: _keys(cls) for op, cls in OPS.items()}
_ENVELOPE: dict[str, str] = {key.lower(): key for keys in _KEYS_OF.values() for key in keys} | {"job_uuid": "jobId"}
"""Every envelope key by its lower case, and the aliases."""


# --- keys that are given twice -------------------------------------------------------------------------------------


def _check_keys(frame: bytes, given: Fields) -> None:
    """Refuse a frame in which an object has a key twice: some take the first, others the last, and nobody knows what is
    meant. What was decoded has one of them left, and thus, encoded again, fewer quotes than its frame."""
    if scanning.quotes_in(frame) != scanning.quotes_in(_encode(given)):
        # Not even the names in `secretEnvironment` stand in an error, and nobody knows here where the key is.
        may_be_secret = b"secretenvironment" in frame.lower() or b"\\u" in frame
        named = None if may_be_secret else scanning.key_given_twice(frame)
        which = "a key" if named is None else f"key {printable(named)}"
        raise Malformed(BadRequest(f"{which} is given twice in one object"), given)
