"""Rows as items, and items as rows; Joblet's own items among them.

Owns which attribute holds what, and how large an item is. Must not know calls, conditions or the log.

The record is kept as it came, as text. Numbers never become DynamoDB's numbers, which have 38 digits. What Joblet
calls jobStatus, command, createdAt and so on is written beside it, for people and for indexes. An item without
`revision` is Joblet's own. Its record is made from its attributes, and whoever knows the rules makes the row of it:
revision 0, until it is first written here.
"""

from __future__ import annotations

import base64
import re
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from statesvc_client.errors import BadRequest, Internal, TooLarge
from statesvc_client.wire import printable

from ..port import Key, Keys, Row
from .layout import (
    COMMAND,
    COMPLETED,
    CREATED,
    DELETED,
    DUE_AT,
    DUE_OF,
    EXIT_CODE,
    JOB,
    KEYS,
    MARKS,
    MOST_ID_BYTES,
    MOST_ITEM_BYTES,
    NO_STATUS,
    NODE,
    PK,
    READY_AT,
    READY_OF,
    RECORD,
    RECORD_PACKED,
    RECORD_RAW,
    REVISION,
    STATUS,
    TOKEN,
    TRAIL,
    UID,
    UPDATED,
    WALK,
    WALK_AT,
    WID,
    Item,
    Tables,
    moment_text,
    ready_text,
    record_key,
    with_id,
)  # fmt: skip

PACKED_BYTES = 32 * 1024
"""Records above this are kept compressed. A KiB written costs a unit of capacity; people read what is smaller."""

SURE_BYTES = 64 * 1024
"""What is smaller fits an item, whatever is put beside it."""

WID_CHARS, TRAIL_BYTES = 18, 400
"""What goes into every item beside its row, at most."""

COMMAND_BYTES = 2048
"""A command longer than this is in the record alone."""

Adopt = Callable[[Key, bytes], Row]


class _Told(Struct, rename="camel"):
    """The two fields of Joblet's that no index key holds."""

    command: Any = None
    exit_code: Any = None


_INDEX_ATTRIBUTES = (WALK, WALK_AT, READY_OF, READY_AT, DUE_OF, DUE_AT)
_keys = msgspec.msgpack.Decoder(Keys)
_packed_keys = msgspec.msgpack.Encoder().encode
_told = msgspec.json.Decoder(_Told)


def binary(value: Item) -> bytes:
    """A binary attribute, as replies have it."""
    raw = value["B"]
    return raw if isinstance(raw, bytes) else base64.b64decode(raw)


def number(item: Item, name: str, default: int = 0) -> int:
    value = item.get(name)
    return default if value is None else int(value["N"])


def text(item: Item, name: str, default: str = "") -> str:
    value = item.get(name)
    return default if value is None else str(value["S"])


# --- rows as items ---------------------------------------------------------------------------------------------------


def item_of(row: Row, tables: Tables, *, wid: str, trail: bytes, now: int) -> Item:
    """The whole item of a row. `now` is the time it is written at, in seconds."""
    item = projections(row)
    item |= tables.key_of(row.key)
    item[UID] = {"S": row.uid}
    item[REVISION] = {"N": str(row.revision)}
    item[KEYS] = {"B": _packed_keys(row.keys)}
    item[WID] = {"S": wid}
    item |= _record(row.body)
    if row.marks:
        item[MARKS] = {"B": row.marks}
    if row.deleted:
        item[DELETED] = {"N": str(row.deleted)}
    if row.token:
        item[TOKEN] = {"N": str(row.token)}
    if trail:
        item[TRAIL] = {"B": trail}
    goes_at = time_to_go(row, tables, now)
    if goes_at:
        item[tables.ttl] = {"N": str(goes_at)}
    return item


def _record(body: bytes) -> Item:
    if len(body) > PACKED_BYTES:
        packed = zlib.compress(body)
        if len(packed) < len(body):
            return {RECORD_PACKED: {"B": packed}}
    try:
        return {RECORD: {"S": body.decode()}} if body else {}
    except UnicodeDecodeError:
        return {RECORD_RAW: {"B": body}}


def projections(row: Row) -> Item:
    """What indexes sort by, and what people look for."""
    keys = row.keys
    found = index_attributes(row)
    created = moment_text(keys.created)
    found[CREATED] = {"S": created}
    found[UPDATED] = {"S": created if keys.updated == keys.created else moment_text(keys.updated)}
    if keys.completed is not None:
        found[COMPLETED] = {"S": moment_text(keys.completed)}
    if row.kind == JOB:
        found |= _told_by_the_record(row.body)
    return found


def index_attributes(row: Row) -> Item:
    """The attributes that put a row into the indexes, status and node among them."""
    keys, prefix = row.keys, "" if row.kind == JOB else f"{row.kind}#"
    if row.deleted:
        return {DUE_OF: {"S": f"{row.kind}#deleted"}, DUE_AT: {"S": moment_text(row.deleted)}}
    found: Item = {
        STATUS: {"S": prefix + (keys.status or NO_STATUS)},
        WALK: {"S": row.kind},
        WALK_AT: {"S": with_id(moment_text(keys.created), row.id)},
    }
    if keys.node:
        found[NODE] = {"S": prefix + keys.node}
    if keys.ready is not None:
        found |= {READY_OF: {"S": row.kind}, READY_AT: {"S": ready_text(keys.ready)}}
    if keys.due is not None:
        found |= {DUE_OF: {"S": f"{row.kind}#due"}, DUE_AT: {"S": moment_text(keys.due)}}
    return found


def _told_by_the_record(body: bytes) -> Item:
    """The two fields of Joblet's that no index key holds."""
    try:
        told = _told.decode(body)
    except (msgspec.MsgspecError, ValueError):
        return {}
    found: Item = {}
    if isinstance(told.command, str) and told.command and len(told.command.encode()) <= COMMAND_BYTES:
        found[COMMAND] = {"S": told.command}
    if type(told.exit_code) is int and abs(told.exit_code) < 2**63:
        found[EXIT_CODE] = {"N": str(told.exit_code)}
    return found


def time_to_go(row: Row, tables: Tables, now: int) -> int:
    """When DynamoDB may remove a finished job, in seconds; 0 for never.

    Counted from this write, by the service's clock: a job that ended long ago and is written only now must not be gone
    before anybody read it, and the time at which it ended is told by clocks that may be wrong.
    """
    if row.kind != JOB or row.deleted or row.keys.completed is None or not (tables.ttl and tables.ttl_seconds):
        return 0
    return now + tables.ttl_seconds


# --- items as rows ---------------------------------------------------------------------------------------------------


def is_expired(item: Item, tables: Tables, now: float) -> bool:
    """Whether its time has come: DynamoDB removes such items within days, and until then they count as not there."""
    goes_at = item.get(tables.ttl) if tables.ttl else None
    if goes_at is None or "N" not in goes_at:
        return False
    return float(goes_at["N"]) <= now


def key_of(item: Item, tables: Tables) -> Key | None:
    """Which record an item holds; None when it holds something else."""
    job = item.get(tables.key)
    if job is not None and PK not in item:
        return (JOB, job["S"])
    return record_key(text(item, PK))


def row_of(item: Item, key: Key, tables: Tables, adopt: Adopt) -> Row:
    if REVISION not in item and key[0] == JOB:
        return adopt(key, joblet_record(item, tables))
    try:
        return Row(
            key[0], key[1], item[UID]["S"], int(item[REVISION]["N"]), _keys.decode(binary(item[KEYS])), _body(item),
            binary(item[MARKS]) if MARKS in item else b"", number(item, DELETED), number(item, TOKEN),
        )  # fmt: skip
    except (KeyError, ValueError, zlib.error, msgspec.MsgspecError) as problem:
        why = f"the item of {key[0]} {printable(key[1])} cannot be read ({type(problem).__name__}): run a check"
        raise Internal(why) from None


def _body(item: Item) -> bytes:
    if RECORD in item:
        return str(item[RECORD]["S"]).encode()
    if RECORD_PACKED in item:
        return zlib.decompress(binary(item[RECORD_PACKED]))
    return binary(item[RECORD_RAW]) if RECORD_RAW in item else b""


# --- Joblet's items --------------------------------------------------------------------------------------------------

_NAMES = {STATUS: "status"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def joblet_record(item: Item, tables: Tables) -> bytes:
    """The record an item of Joblet's stands for, as JSON: every attribute, numbers as they are written."""
    left_out = {tables.key, tables.ttl, KEYS, *_INDEX_ATTRIBUTES}
    record: dict[str, Any] = {"uuid": item[tables.key]["S"]}
    for name, value in item.items():
        if name not in left_out and not (name == STATUS and value.get("S") in ("", NO_STATUS)):
            record[_NAMES.get(name, name)] = _plain(value)
    return msgspec.json.encode(record)


def _plain(value: Item) -> Any:
    ((kind, held),) = value.items()
    match kind:
        case "N":
            return _number(held)
        case "NS":
            return [_number(each) for each in held]
        case "M":
            return {name: _plain(each) for name, each in held.items()}
        case "L":
            return [_plain(each) for each in held]
        case "NULL":
            return None
    return held  # texts, their sets and booleans as they are; bytes as base64, which is how they travel


def _number(written: str) -> Any:
    return msgspec.Raw(written.encode()) if _JSON_NUMBER.fullmatch(written) else written


# --- size ------------------------------------------------------------------------------------------------------------


def size_of(item: Item) -> int:
    """Bytes as DynamoDB counts them: names and values, numbers by two digits a byte."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Item) -> int:
    ((kind, held),) = value.items()
    if kind == "S":
        return len(held.encode())
    if kind == "N":
        return len(held) // 2 + 2
    return len(held)


def check_fits(row: Row, tables: Tables) -> None:
    """Refuse what no item can hold, before anything is written. Never is anything cut off."""
    if len(row.id.encode()) > MOST_ID_BYTES:
        raise BadRequest(f"the id of a record is {len(row.id.encode())} bytes long; DynamoDB takes {MOST_ID_BYTES}")
    if len(row.body) + len(row.marks) + sum(len(name) + len(value) for name, value in row.keys.labels) < SURE_BYTES:
        return
    size = size_of(item_of(row, tables, wid="-" * WID_CHARS, trail=b"-" * TRAIL_BYTES, now=int(time.time())))
    if size > MOST_ITEM_BYTES:
        takes = f"{row.kind} {printable(row.id)} takes {size} bytes when compressed"
        raise TooLarge(f"{takes}; DynamoDB holds {MOST_ITEM_BYTES} in one item: make the record smaller")


def fits_a_key(keys: Iterable[Key]) -> list[Key]:
    """Those that can be stored at all: an id that is too long for a key is nobody's."""
    return [key for key in keys if key[1] and len(key[1].encode()) <= MOST_ID_BYTES]
