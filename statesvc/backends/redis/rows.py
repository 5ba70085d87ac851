"""The stored form of rows and events.

Owns how a row becomes bytes and is read back, in the hash of its kind and in the log. Must not know keys or scripts.
scripts/prelude.lua reads the first two parts of a stored row; the third is the row itself, without kind and id.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from ..port import DataCorrupt, Event, Keys, LogEntry, Row, Stamp
from .standing import places

_encode = msgspec.msgpack.Encoder().encode
_sizes = struct.Struct(">II")


class _Inner(msgspec.Struct, array_like=True, frozen=True, gc=False):
    uid: str
    revision: int
    keys: Keys
    body: bytes
    marks: bytes
    deleted: int
    token: int


_decode = msgspec.msgpack.Decoder(_Inner).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode


def stamp(expected: Stamp | None) -> bytes:
    """A stamp as scripts compare it; empty where no row is expected."""
    return b"" if expected is None else b"%d:%b" % (expected[1], expected[0].encode())


def pack(row: Row) -> bytes:
    uid, revision = row.uid, row.revision
    mark, where = b"%d:%b" % (revision, uid.encode()), places(row)
    inner = _encode((uid, revision, row.keys, row.body, row.marks, row.deleted, row.token))
    return b"".join((_sizes.pack(len(mark), len(where)), mark, where, inner))


def unpack(kind: str, id: str, stored: bytes) -> Row:
    try:
        mark, where = _sizes.unpack_from(stored)
        return _row(kind, id, memoryview(stored)[_sizes.size + mark + where :])
    except (struct.error, msgspec.MsgspecError):
        raise DataCorrupt(f"redis: the stored row of {kind} {id} cannot be read; restore a snapshot") from None


def stored_places(stored: bytes) -> bytes:
    mark, where = _sizes.unpack_from(stored)
    begin: int = _sizes.size + mark
    return stored[begin : begin + where]


def _row(kind: str, id: str, raw: bytes | memoryview) -> Row:
    inner = _decode(raw)
    return Row(kind, id, inner.uid, inner.revision, inner.keys, inner.body, inner.marks, inner.deleted, inner.token)


def pack_event(event: Event) -> bytes:
    return _encode(event)


def number_of(entry: Sequence[Any]) -> int:
    """The number of an entry as XRANGE gives it."""
    return int(entry[0].partition(b"-")[0])


def read_entry(reply: Sequence[Any]) -> LogEntry:
    """An entry as XRANGE gives it: its id, and the fields k, i, t, e, r with their values."""
    number, fields = reply
    try:
        _, kind, _, id, _, _, _, event, _, row = fields
        cursor = number.partition(b"-")[0].decode()
        return LogEntry(cursor, _decode_event(event), _row(kind.decode(), id.decode(), row))
    except (ValueError, msgspec.MsgspecError):
        raise DataCorrupt(f"redis: entry {number!r} of the log cannot be read; restore a snapshot") from None
