"""Requests for a fuzzer: valid ones of every op, and what becomes of them when values are replaced by worse ones.

Owns what is worth trying. Must not know how a frame reaches the daemon or what has to be answered. Ops, filters and
their fields are read off the structs of the wire: a new op or field is tried as soon as it is there; names in `_named`
merely make it likelier that a value means something.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from statesvc.store.queries import SORTS, Filter
from statesvc_client import wire
from statesvc_client.spelling import FIELDS_OF, MANAGED, QUEUE_FIELDS

Make = Callable[[], Any]

IDS = ("a", "b", "c", "job-1", "job-2", "0", "x/y", "ü", "network-1", "10.0.0.1", "_sweeper")
KINDS = (*FIELDS_OF, "note", "my.kind-2")
SNAPSHOTS = ("one.snap", "two.snap", "snapshots/three.snap", "../out.snap", "/etc/passwd", "", "a\0b")
STATUSES = (
    "PENDING", "INITIALIZING", "SCHEDULED", "QUEUED", "RUNNING", "STOPPING", "COMPLETED", "FAILED", "STOPPED",
    "CANCELED", "CANCELLED", "TIMEOUT", "running", "idle", "paused", "draining", "",
)  # fmt: skip
TIMES = (
    "2025-10-26T00:00:00Z", "2025-10-26T00:00:00.123456789+02:00", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999Z", "2025-02-30T00:00:00Z", "2025-10-26T24:00:00Z", "2016-12-31T23:59:60Z", "soon",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
)  # fmt: skip
PATHS = (
    "x", "y", "/x", "/x/y", "/labels/a", "/a~1b/c~0d", "/x/0", "/x/-", "", "/", "//", "/~", "/~2", "/status", "status",
    "/lease/token", "revision", "/secretEnvironment/K", "/" + "n/" * 70, "uuid", "/uuid", "Status", "/dependsOn/-",
)  # fmt: skip
REGEXES = (
    "^a", "job-[0-9]+$", "(a*)*b", "(a+)+$", "(.{1,100}){1,100}", "((a{1,99}){1,99}){1,99}", "(?P<n>a)(?P<n>b)", "[",
    "(?=a)", "\\1", "\\C", "(?i)Ü", "[^\\x{0}-\\x{10FFFF}]", "a{1001}", "\\pL+", "\\Q", "(" * 200 + ")" * 200, "\\xff",
    "[ü-", "ü(", "(?P<ü>a)", "a" * 1001, "|" * 900, "\\b" * 300, "(?:" * 150 + "a" + ")?" * 150, "\\p{ü", "\0",
)  # fmt: skip
POLICIES = ("fail", "cancel", "ignore", "run", "FAIL")
CIDRS = ("10.0.0.0/29", "10.0.0.0/8", "fd00::/64", "0.0.0.0/0", "::/0", "10.0.0.1/32", "10.0.0.0/33", "x")
INTEGERS = (
    0, 1, 2, 3, -1, 255, 4096, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63),
    -(2**63) - 1, 10**30, -(10**30),
)  # fmt: skip
FLOATS = (0.0, -0.0, 0.1, 0.5, 1.5, -1.5, 30.0, 3600.0, 604800.0, 1e-320, 1.7976931348623157e308, 9007199254740993.0)
TEXTS = (
    "", " ", "text", "ü", "𝄞", "\0", "\n", "\r\n", "\u2028", "\ufeff", "\x7f", "\x1b[31m", "a" * 256, "a" * 257,
    "%s%n", "../..", "' OR 1=1 --", "null", "true", "1", "$.x", "é" * 300, "job/a", "network/network-1", "job/", "/",
)  # fmt: skip
LONG = "x" * 5000

RAW: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"-0", b"-0.0", b"01", b"1.", b".5", b"+1",
    b"9" * 400, b"9" * 5000, b"-" + b"9" * 400, b"0." + b"1" * 400,
    b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\ud83d\\ude00"',
    b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\\u0000"', b'"\x00"', b'"\t"',
    b'"\\x"', b'"\\u12"',
    b"[" * 70 + b"]" * 70, b'{"a":' * 70 + b"1" + b"}" * 70, b"[" * 300, b"tru", b"nul", b"'a'", b"", b"\xef\xbb\xbf1",
    b'{"a":1,"a":2}', b'{"":{"":{}}}', b"[" + b"[]," * 700 + b"[]]", b"/**/1", b"1 2", b'"unfinished',
)  # fmt: skip
"""Values no encoder would write."""

_MARK = "~raw~"
_MARKED = re.compile(rb'"~raw~(\d+)~"')
_TOKEN = re.compile(rb'"token":(\d+)')
_FIRST_NAMES = ("job", "record")


@cache
def _shape(struct: type[msgspec.Struct]) -> inspect.StructType:
    shape = inspect.type_info(struct)
    assert isinstance(shape, inspect.StructType)
    return shape


class Seen:
    """What replies have told that may be sent back: cursors, tokens, revisions. Bounded."""

    def __init__(self) -> None:
        self.cursors: deque[str] = deque(["0", "MTIz", "a.1"], maxlen=32)
        self.tokens: deque[int] = deque([1], maxlen=16)

    def learn(self, reply: wire.Received) -> None:
        for cursor in (reply.next_cursor, reply.as_of, reply.cursor):
            if cursor is not None:
                self.cursors.append(cursor)
        if reply.lease is not None:
            self.tokens.append(reply.lease.token)
        elif reply.jobs and (found := _TOKEN.search(reply.jobs[0])):
            self.tokens.append(int(found[1]))


class Grammar:
    """Makes requests. The same `random` makes the same ones, as long as what was seen is the same."""

    def __init__(self, random: Random, seen: Seen | None = None) -> None:
        self.random = random
        self.seen = seen or Seen()
        self._rare = frozenset({"snapshot", "restore", "check", "sweep", "feed"})
        self._named: dict[str, Make] = self._meanings()
        self._ops = {op: self._fields(cls) for op, cls in wire.OPS.items()}
        self._filter = self._fields(Filter)
        self._op_names = tuple(op for op in self._ops for _ in range(1 if op in self._rare else 12))
        self._values: tuple[Make, ...] = (
            self._text, self._integer, self._float, self._time, self._id, self._raw, self._list, self._object,
            self._bool, lambda: None, lambda: LONG,
        )  # fmt: skip

    # --- choosing --------------------------------------------------------------------------------------------------

    def one_of(self, some: Sequence[Any]) -> Any:
        return some[int(self.random.random() * len(some))]

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    # --- requests --------------------------------------------------------------------------------------------------

    def request(self, op: str | None = None) -> dict[str, Any]:
        """A request that could be meant; every field of its op may be in it."""
        name = op or self.one_of(self._op_names)
        made: dict[str, Any] = {"op": name}
        fields = self._ops[name]
        chance = 1.5 / len(fields)
        for field, needed, make in fields:
            if needed or self.random.random() < chance:
                made[field] = make()
        if "job" in made and "record" in made:
            del made[self.one_of(_FIRST_NAMES)]
        if name == "claim" and self.maybe(0.7):
            made["holder"] = "h"  # without one it needs a hello
        if self.maybe(0.8) and "id" not in made and "jobId" not in made:
            made["jobId"] = self._id()
        return made

    def worse(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with something wrong in it."""
        for _ in range(self.one_of((1, 1, 1, 2, 3))):
            self._worsen(request)
        return request

    def frame(self) -> bytes:
        """One line without its newline: a request that could be meant, or a worse one."""
        request = self.request()
        return self.encoded(request if self.maybe(0.4) else self.worse(request))

    @staticmethod
    def encoded(request: Any) -> bytes:
        line = msgspec.json.encode(request)
        if b"~raw~" not in line:
            return line
        return _MARKED.sub(lambda found: RAW[int(found[1]) % len(RAW)], line)

    def _worsen(self, within: dict[str, Any]) -> None:
        keys = list(within)
        key = self.one_of(keys) if keys else "op"
        value = within.get(key)
        what = int(self.random.random() * 7)
        if isinstance(value, dict) and value and self.maybe(0.7):
            self._worsen(value)
        elif isinstance(value, list) and value and self.maybe(0.6):
            value[int(self.random.random() * len(value))] = self.value()
        elif what <= 2:
            within[key] = self.value()
        elif what == 3 and key != "op":
            within.pop(key, None)
        elif what == 4:
            within[self._text()] = self.value()
        elif what == 5:
            within[key.upper() if self.maybe(0.5) else key.capitalize()] = self.value()
        else:
            within[self.one_of(_EVERY_KEY)] = self.value()

    # --- fields by their types -------------------------------------------------------------------------------------

    def _fields(self, struct: type[msgspec.Struct]) -> list[tuple[str, bool, Make]]:
        return [
            (field.encode_name, field.required, self._named.get(field.encode_name) or self._of_type(field.type))
            for field in _shape(struct).fields
        ]

    def _of_type(self, shape: inspect.Type) -> Make:
        """Something of that type; where a value has bounds it is also tried beyond them."""
        if isinstance(shape, inspect.UnionType):
            makers = tuple(self._of_type(one) for one in shape.types)
            return partial(self._by_one_of, makers)
        if isinstance(shape, inspect.LiteralType):
            values = shape.values
            return lambda: self.one_of(values)
        if isinstance(shape, inspect.ListType):
            item = self._of_type(shape.item_type)
            return lambda: [item() for _ in range(self.one_of((0, 1, 2, 3)))]
        if isinstance(shape, inspect.DictType):
            value = self._of_type(shape.value_type)
            return lambda: {self.one_of(PATHS): value() for _ in range(self.one_of((0, 1, 2)))}
        if isinstance(shape, inspect.StructType):
            return self._struct(shape.cls)
        return self._plain.get(type(shape), self.value)

    @property
    def _plain(self) -> dict[type[inspect.Type], Make]:
        return {
            inspect.StrType: self._text,
            inspect.IntType: self._integer,
            inspect.FloatType: self._float,
            inspect.BoolType: self._bool,
            inspect.NoneType: lambda: None,
        }

    def _by_one_of(self, makers: tuple[Make, ...]) -> Any:
        return self.one_of(makers)()

    def _struct(self, struct: type[msgspec.Struct]) -> Make:
        fields = self._fields(struct)
        tag = struct.__struct_config__.tag
        named = {} if tag is None else {str(struct.__struct_config__.tag_field): tag}
        return lambda: named | {name: make() for name, needed, make in fields if needed or self.maybe(0.3)}

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self) -> Any:
        """Anything."""
        return self.one_of(self._values)()

    def _text(self) -> str:
        return str(self.one_of(TEXTS))

    def _integer(self) -> int:
        return int(self.one_of(INTEGERS))

    def _float(self) -> float:
        return float(self.one_of(FLOATS))

    def _time(self) -> str:
        return str(self.one_of(TIMES))

    def _bool(self) -> bool:
        return self.maybe(0.5)

    def _id(self) -> str:
        return str(self.one_of(IDS)) if self.maybe(0.97) else self._text()

    def _raw(self) -> str:
        """Stands for a value that is put in after encoding."""
        return f"{_MARK}{int(self.random.random() * len(RAW))}~"

    def _list(self) -> list[Any]:
        return [self.one_of(self._values[:6])() for _ in range(self.one_of((0, 1, 3)))]

    def _object(self) -> dict[str, Any]:
        return {self.one_of(PATHS): self.one_of(self._values[:6])() for _ in range(self.one_of((0, 1, 3)))}

    # --- what names mean -------------------------------------------------------------------------------------------

    def _meanings(self) -> dict[str, Make]:
        status, cursor = lambda: self.one_of(STATUSES), self._cursor
        return {
            "id": self._id,
            "jobId": self._id,
            "requestId": lambda: self.one_of(("r1", "r2", 7, "", "w", 2**70, -1)),
            "kind": lambda: self.one_of(KINDS) if self.maybe(0.6) else "job",
            "timestamp": self._time,
            "client": lambda: self.one_of(("client-1", "client-2", "client-3", "")),
            "protocol": lambda: 1 if self.maybe(0.9) else self._integer(),
            "seq": lambda: int(self.random.random() * 40) + 1 if self.maybe(0.9) else self._integer(),
            "floor": lambda: int(self.random.random() * 40) if self.maybe(0.9) else self._integer(),
            "token": lambda: self.one_of(self.seen.tokens) if self.maybe(0.8) else self._integer(),
            "ifRevision": lambda: self.one_of((0, 1, 2, 3)),
            "job": self._record,
            "record": self._record,
            "jobs": lambda: [self._record() for _ in range(self.one_of((0, 1, 2, 5)))],
            "records": lambda: [self._record() for _ in range(self.one_of((0, 1, 2, 5)))],
            "from": lambda: self.one_of(("network-1", "a", "")),
            "filter": self._filtering,
            "status": status,
            "statuses": lambda: [status() for _ in range(self.one_of((0, 1, 2, 65)))],
            "ids": lambda: [self._id() for _ in range(self.one_of((0, 1, 3)))],
            "nodeId": lambda: self.one_of(("n1", "n2", "")),
            "owner": lambda: self.one_of(("job/a", "job/b", "volume/a", "x", "job/", "/a", "_x/y")),
            "prefix": lambda: self.one_of(("", "a", "job-", "ü")),
            "regex": lambda: self.one_of(REGEXES),
            "labels": lambda: {self.one_of("abc"): self.one_of(("1", "2", 1, None, [])) for _ in range(2)},
            "where": lambda: {self.one_of(PATHS): self.one_of(self._values)() for _ in range(self.one_of((0, 1, 2)))},
            "sortBy": lambda: self.one_of((*SORTS, "Priority", "x")),
            "limit": lambda: self.one_of((1, 2, 5, 5, 100)) if self.maybe(0.95) else self._integer(),
            "cursor": cursor,
            "after": cursor,
            "wait": lambda: 0.0 if self.maybe(0.9) else self.one_of((0.001, 3600.0, -1.0)),
            "ttl": lambda: self.one_of((0.1, 1.0, 30.0, 604800.0)),
            "path": lambda: self.one_of(SNAPSHOTS),
            "by": lambda: self.one_of(PATHS),
            **dict.fromkeys(_TIME_NAMES, self._time),
        }

    def _cursor(self) -> str:
        """One that was handed out, whole or cut."""
        known = str(self.one_of(self.seen.cursors))
        if self.maybe(0.6):
            return known
        place = int(self.random.random() * (len(known) + 1))
        return known[:place] if self.maybe(0.5) else known[:place] + self._text()[:8] + known[place:]

    def _filtering(self) -> dict[str, Any]:
        return {name: make() for name, _, make in self._filter if self.random.random() < 0.08}

    def _record(self) -> dict[str, Any]:
        made: dict[str, Any] = {"uuid" if self.maybe(0.7) else "id": self._id()}
        for _ in range(self.one_of((0, 1, 2, 3))):
            name = self.one_of(_RECORD_NAMES)
            made[name] = self._field(name)
        return made

    def _field(self, name: str) -> Any:
        meant = self._named.get(name)
        if meant is not None and self.maybe(0.8):
            return meant()
        if name == "dependsOn":
            return [self._id() for _ in range(self.one_of((0, 1, 2)))]
        if name == "onDependencyFailure":
            return self.one_of(POLICIES)
        if name in {"cidr", "gateway", "reserved", "address", "network"}:
            return self.one_of(CIDRS)
        if name in {"priority", "timeout", "maxRetries", "retryCount", "retryDelay", "startAfter"} and self.maybe(0.7):
            return self.one_of((0, 1, 5, 0.5, 3))
        return self.value()


_TIME_NAMES = (
    *(name for name in Filter.__struct_encode_fields__ if name.endswith(("After", "Before"))),
    "createdAt", "updatedAt", "startedAt", "completedAt", "scheduledAt", "startTime", "endTime", "expiresAt",
)  # fmt: skip
_RECORD_NAMES = (
    "status", "status", "status", "nodeId", "owner", "labels", "x", "y", "secretEnvironment", "cidr", "gateway",
    "reserved", *QUEUE_FIELDS, *MANAGED, "startTime", "endTime", "data", "value",
)  # fmt: skip
_EVERY_KEY = tuple(sorted({name for cls in wire.OPS.values() for name in cls.__struct_encode_fields__}))


# --- bytes ---------------------------------------------------------------------------------------------------------

TOKENS: tuple[bytes, ...] = (
    *RAW, b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b" ", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\",
    b"{}", b"null",
    b'"op":"get",', b'"jobId":"a",', b'"requestId":{},', b'{"op":"ping"}', b"\\u0000", b"/*", b"//", b"[],[],[],",
)  # fmt: skip


class Mangling:
    """Changes bytes without looking at what they mean."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def mangled(self, line: bytes, other: bytes) -> bytes:
        """The line with one to four changes; `other` is what may be spliced in."""
        for _ in range(1 + int(self._random.random() * 4)):
            line = self._changed(line, other)
        return line

    def _changed(self, line: bytes, other: bytes) -> bytes:
        random = self._random.random
        begin = int(random() * (len(line) + 1))
        end = min(len(line), begin + int(random() * 12))
        what = int(random() * 9)
        if what == 0:
            return line[:begin]
        if what == 1:
            return line[:begin] + line[end:]
        if what == 2:
            return line[:end] + line[begin:]
        if what == 3:
            return line[:begin] + bytes((int(random() * 256),)) + line[begin + 1 :]
        if what == 4:
            return line[:begin] + other[int(random() * len(other)) :] if other else line
        if what == 5:
            return line + other
        return line[:begin] + TOKENS[int(random() * len(TOKENS))] + line[end if what == 6 else begin :]
