"""What can be configured: every key, its type, its bounds and its default, as one tree of frozen structs.

This file must not know where values come from (files, environment, flags), and imports nothing that is slow
to import: the daemon's socket waits for it, which is also why these are structs (a dataclass takes a
millisecond to make, a struct a thirtieth of that). The texts that explain the keys: config/statesvc.yml.

No `from __future__ import annotations` here: the annotations are read at run time and must be objects.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from statesvc.addresses import is_web_address, read_endpoints
from statesvc.config.problems import shown

KNOWN_BACKENDS = ("memory", "sqlite", "redis", "dynamodb")

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_SECONDS = 86_400

# What a reply may add to the one record in it: request id, cursor and the like.
ENVELOPE_BYTES = 8 * KIB

# The name of a kind, as the rules take it.
_KIND = re.compile(r"[a-z_][a-z0-9_.-]{0,63}", re.ASCII)

# The name of a table, as DynamoDB takes it, or the whole name of one that belongs to another account.
_TABLE = re.compile(r"(arn:\S+:table/)?[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[A-Za-z0-9-]{0,63}")

# sockaddr_un holds 108 bytes: one is for the closing NUL, one for the sign behind the name it is bound under at first.
SOCKET_PATH_BYTES = 106


class Secret:
    """A text that shows itself only to a caller who says `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "[hidden]"


# Every number has both bounds: no key means "without limit".
Seconds = Annotated[float, Meta(ge=0.01, le=3650 * DAY_SECONDS)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=3650 * DAY_SECONDS)]  # 0 is "at once", never "for ever"
Bytes = Annotated[int, Meta(ge=4 * KIB, le=GIB)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000_000)]
OctalMode = Annotated[
    str, Meta(pattern=r"^0[0-7]{3}\Z", description='a file mode in octal and in quotes, such as "0600"')
]
NumberOrName = Annotated[int, Meta(ge=0, le=2**32 - 2)] | str


class Access(Struct, frozen=True):
    """Who may connect. No uids and no gids means: the daemon's own user and root."""

    uids: tuple[NumberOrName, ...] = ()
    gids: tuple[NumberOrName, ...] = ()
    admin_uids: tuple[NumberOrName, ...] = ()
    socket_mode: OctalMode = "0600"
    socket_group: NumberOrName | None = None


class Limits(Struct, frozen=True):
    """What one client, one frame and one record may cost. Each is a bound, none can be switched off."""

    # Not below what any request and any error reply need.
    frame_bytes: Annotated[int, Meta(ge=64 * KIB, le=GIB)] = 10 * MIB
    frame_values: Annotated[int, Meta(ge=512, le=1_000_000_000)] = 200_000
    depth: Annotated[int, Meta(ge=8, le=512)] = 256
    id_chars: Annotated[int, Meta(ge=1, le=1024)] = 256
    # Below frame_bytes by ENVELOPE_BYTES at least, so that any stored record fits a reply.
    record_bytes: Bytes = 8 * MIB
    # Ten thousand idle clients fit, with room; an idle one costs a descriptor and a few KiB.
    clients: Annotated[int, Meta(ge=1, le=1_000_000)] = 16_384
    requests_in_flight: Count = 4096
    output_bytes: Bytes = MIB
    partial_frame_seconds: Seconds = 30.0
    stalled_output_seconds: Seconds = 60.0
    list_limit: Count = 1000
    list_default: Count = 100
    list_examined: Count = 10_000
    marks_clients: Annotated[int, Meta(ge=1, le=4096)] = 64
    open_wait_seconds: SecondsOrNone = 5.0
    # Each costs a place in the log and a share of the encoding; the output they wait with is bounded per client.
    watches: Annotated[int, Meta(ge=1, le=100_000)] = 64
    watch_behind: Count = 10_000


class Retention(Struct, frozen=True):
    """What is kept, and for how long. Nothing that is not terminal is ever removed by age."""

    terminal_seconds: Seconds = 30.0 * DAY_SECONDS
    log_seconds: Seconds = 7.0 * DAY_SECONDS
    log_bytes: Annotated[int, Meta(ge=MIB, le=1024 * GIB)] = GIB
    interval_seconds: Seconds = 60.0


class Sqlite(Struct, frozen=True):
    """The embedded engine. `apply_*` bound how far state.db may lag behind log.db before commits wait."""

    cache_bytes: Bytes = 32 * MIB
    apply_entries: Count = 50_000
    apply_seconds: Seconds = 1.0
    idle_seconds: Seconds = 1.0


class Dynamodb(Struct, frozen=True):
    """Joblet's table and its companion. Credentials come by the usual chain: environment, profile, instance role."""

    region: str = ""
    endpoint: str = ""
    table_name: str = "joblet-jobs"
    # Empty: the name of the table with "-statesvc" behind it.
    companion_table: str = ""
    ttl_enabled: bool = True
    ttl_attribute: str = "expiresAt"
    ttl_days: CountOrZero = 30
    read_capacity: CountOrZero = 5
    write_capacity: CountOrZero = 5
    # What one request of a client may take, throttling and repeated tries included.
    timeout_seconds: Seconds = 10.0
    connections: Annotated[int, Meta(ge=1, le=1024)] = 32
    # How far a list may lag behind the newest commit; what a watch from `asOf` goes back.
    index_lag_seconds: SecondsOrNone = 5.0


class Redis(Struct, frozen=True):
    """One master, found directly, through Sentinel or in a Cluster; everything of a namespace is in one hash slot."""

    # host:port, several with commas between them (Sentinels, or nodes of a Cluster), or the path of a Unix socket.
    endpoint: str = "localhost:6379"
    username: str = ""
    password: Secret | None = None
    password_file: Path | None = None
    db: Annotated[int, Meta(ge=0, le=65_535)] = 0
    namespace: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}\Z", description="1 to 64 of A-Z a-z 0-9 _ . : -")
    ] = "statesvc"
    ttl_days: CountOrZero = 30
    tls: bool = False
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    # The name Sentinel knows the master by; empty: no Sentinel.
    sentinel_master: str = ""
    sentinel_username: str = ""
    sentinel_password_file: Path | None = None
    wait_replicas: Annotated[int, Meta(ge=0, le=100)] = 0
    wait_seconds: Seconds = 1.0
    # What the server's persistence amounts to, where it does not tell; "auto": the lowest it can be shown to be.
    durability: Literal["auto", "memory", "os", "disk", "replicated"] = "auto"
    # What one request of a client may take, repeated tries included.
    timeout_seconds: Seconds = 5.0


class Storage(Struct, frozen=True):
    sqlite: Sqlite = Sqlite()
    dynamodb: Dynamodb = Dynamodb()
    redis: Redis = Redis()


class Log(Struct, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Settings(Struct, frozen=True):
    """The whole configuration. Sections and fields are named as in the file, below its key `state:`."""

    backend: str = "sqlite"
    socket: Path = Path("/run/statesvc/statesvc.sock")
    data: Path = Path("/var/lib/statesvc")
    durability: Literal["disk", "os"] = "disk"
    require_backend: bool = False
    drain_seconds: SecondsOrNone = 10.0
    access: Access = Access()
    limits: Limits = Limits()
    retention: Retention = Retention()
    storage: Storage = Storage()
    lifecycles: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
    log: Log = Log()


class Leaf(NamedTuple):
    """One key that holds a value: what it may be and what it is when nobody sets it."""

    annotation: Any
    default: Any


def leaves(section: Struct | None = None, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every key by its dotted name, in the order of the classes above."""
    section = Settings() if section is None else section
    annotations = type(section).__annotations__
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Struct):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, Leaf(annotations[name], value)


def value_at(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def assemble(values: Mapping[str, Any]) -> Settings:
    """The defaults with `values` (dotted name -> value of the right type) put in."""
    settings = Settings()
    for key, value in values.items():
        settings = _with_value(settings, key.split("."), value)
    return settings


def _with_value(section: Any, path: list[str], value: Any) -> Any:
    name, *below = path
    return replace(section, **{name: _with_value(getattr(section, name), below, value) if below else value})


_ORDERED_LIMITS = (
    ("list_default", "list_limit"),
    ("list_limit", "list_examined"),
)


def contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    """(key, problem) for values that are well-formed one by one and cannot work as a whole."""
    if settings.backend not in KNOWN_BACKENDS:
        known = ", ".join(KNOWN_BACKENDS)
        yield "backend", f"backend {shown(settings.backend)} is not part of this version; known: {known}"
    if len(str(settings.socket).encode()) > SOCKET_PATH_BYTES:
        yield "socket", f"socket: longer than the {SOCKET_PATH_BYTES} bytes a socket's path may have here"
    if settings.storage.redis.password and settings.storage.redis.password_file:
        text = "storage.redis.password: given together with storage.redis.password_file; give one"
        yield "storage.redis.password", text
    yield from _unencrypted(settings.storage.redis)
    for kind in settings.lifecycles:
        if not _KIND.fullmatch(kind):
            allowed = "it takes 1 to 64 of a-z 0-9 _ . - and begins with a letter or _"
            yield "lifecycles", f"lifecycles: {kind!r} cannot be the name of a kind; {allowed}"
    yield from _unreachable(settings)
    yield from _contradicting_limits(settings.limits)


def _unencrypted(redis: Redis) -> Iterator[tuple[str, str]]:
    """Files that show that TLS was meant, where it is off."""
    for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        if getattr(redis, name) and not redis.tls:
            key = f"storage.redis.{name}"
            yield key, f"{key}: given while storage.redis.tls is off, so nothing would be encrypted; set it to true"


def _unreachable(settings: Settings) -> Iterator[tuple[str, str]]:
    """Where no server can be. Of an engine that is not chosen what is empty does not matter."""
    redis, dynamodb = settings.storage.redis, settings.storage.dynamodb
    if redis.endpoint or settings.backend == "redis":
        try:
            read_endpoints(redis.endpoint, default_port=1)
        except ValueError as problem:
            yield "storage.redis.endpoint", f"storage.redis.endpoint: {problem}"
    if dynamodb.endpoint and not is_web_address(dynamodb.endpoint):
        # Not shown: somebody may have put a password into it.
        text = "storage.dynamodb.endpoint: not of the form http://host:port or https://host"
        yield "storage.dynamodb.endpoint", text
    if settings.backend == "dynamodb":
        yield from _impossible_names(dynamodb)


def _impossible_names(dynamodb: Dynamodb) -> Iterator[tuple[str, str]]:
    names = {"table_name": dynamodb.table_name}
    if dynamodb.companion_table:
        names["companion_table"] = dynamodb.companion_table
    for name, table in names.items():
        if not _TABLE.fullmatch(table):
            key = f"storage.dynamodb.{name}"
            yield key, f"{key}: {shown(table)} cannot be the name of a table; it takes 3 to 255 of A-Z a-z 0-9 _ . -"
    if not _REGION.fullmatch(dynamodb.region):
        key = "storage.dynamodb.region"
        yield key, f"{key}: {shown(dynamodb.region)} cannot be the name of a region"


def _contradicting_limits(limits: Limits) -> Iterator[tuple[str, str]]:
    for lower, upper in _ORDERED_LIMITS:
        low, high = getattr(limits, lower), getattr(limits, upper)
        if low > high:
            yield f"limits.{lower}", f"limits.{lower}: {low} is above limits.{upper}, which is {high}"
    record, frame = limits.record_bytes, limits.frame_bytes
    if record + ENVELOPE_BYTES > frame:
        room = f"leaves less than the {ENVELOPE_BYTES} bytes that a reply adds to a record below limits.frame_bytes"
        yield "limits.record_bytes", f"limits.record_bytes: {record} {room}, which is {frame}"
