"""Where everything lies: attribute names, keys of items, texts that sort.

Owns the form of what is stored in the two tables. Must not know calls, nor what is done with an item.

    jobs table        <its own key>                       one item a job
    companion table   pk r#<kind>#<id>           sk -     records of the other kinds
                      pk x#<kind>#<field>#<value> sk <created>#<id>   who has a label or an owner: hints
                      pk l#<epoch>#<lane>        sk <number>  the log: a slot for what was committed together
                      pk lanes                   sk meta | lane#<epoch>#<number> | kind#<name>
                      pk s#<epoch>               sk <number>  rows on their way in, while a snapshot is loaded
"""

from __future__ import annotations

import hashlib
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from ..port import Key, Row

Item = dict[str, Any]
"""Attributes as DynamoDB's JSON has them: name -> {"S": ...}."""

JOB = "job"

PK, SK = "pk", "sk"
STATUS, NODE, CREATED, UPDATED, COMPLETED, COMMAND, EXIT_CODE = (
    "jobStatus", "nodeId", "createdAt", "updatedAt", "completedAt", "command", "exitCode",
)  # fmt: skip
"""What Joblet calls them. Projections, for people and indexes: the truth is in `record` and `keys`."""

RECORD, RECORD_RAW, RECORD_PACKED = "record", "recordB", "recordZ"
"""The record as text; as bytes, where they are no text; compressed, where it is large."""

UID, REVISION, TOKEN, DELETED, MARKS, KEYS = "uid", "revision", "token", "deleted", "marks", "keys"
WID = "wid"
"""Made at random for each write: tells one state of an item from every other, and our write from those of others."""
TRAIL = "logAt"
"""Where the log tells of the record."""

WALK, WALK_AT = "walk", "walkAt"
READY_OF, READY_AT = "readyOf", "readyAt"
DUE_OF, DUE_AT = "dueOf", "dueAt"

NO_STATUS = "-"
"""Stands in `jobStatus` of a record without one: an index leaves out what has no key."""


class IndexShape(NamedTuple):
    """An index: its name, and the attributes it is sorted by."""

    name: str
    hash: str
    range: str


BY_STATUS = IndexShape("status-createdAt-index", STATUS, CREATED)
BY_NODE = IndexShape("nodeId-createdAt-index", NODE, CREATED)
BY_WALK = IndexShape("walk-index", WALK, WALK_AT)
BY_COMPLETED = IndexShape("completed-index", WALK, COMPLETED)
BY_READY = IndexShape("ready-index", READY_OF, READY_AT)
BY_DUE = IndexShape("due-index", DUE_OF, DUE_AT)
INDEXES = (BY_STATUS, BY_NODE, BY_WALK, BY_COMPLETED, BY_READY, BY_DUE)

REGISTRY = "lanes"
META = "meta"

MOST_SORT_BYTES = 1024
MOST_ITEM_BYTES = 400 * 1024
"""DynamoDB's own limits."""

MOST_ID_BYTES = 1024
"""Ids of this length have room in every key that holds one, beside what else is in it."""

_HINT_TEXT_BYTES = 512
"""Longer ones are told by their digest: a hint need not be read by people."""


class Tables(NamedTuple):
    """The two tables, as they were found."""

    jobs: str
    companion: str
    key: str
    """What the jobs table calls the id."""
    ttl: str
    """The attribute in which finished jobs have their time to go; "" when nobody is to look at it."""
    ttl_seconds: int
    """How long they are kept; 0: they are given no time."""
    walked: bool = True
    """Whether the jobs table has our indexes, and every job is in them."""

    def name_of(self, kind: str) -> str:
        return self.jobs if kind == JOB else self.companion

    def key_of(self, key: Key) -> Item:
        if key[0] == JOB:
            return {self.key: {"S": key[1]}}
        return {PK: {"S": f"r#{key[0]}#{key[1]}"}, SK: {"S": "-"}}

    def key_name(self, kind: str) -> str:
        return self.key if kind == JOB else PK


def record_key(pk: str) -> Key | None:
    """The record an item of the companion table holds; None when it holds something else."""
    what, _, rest = pk.partition("#")
    kind, _, name = rest.partition("#")
    return (kind, name) if what == "r" else None


def lane_key(epoch: str, lane: int) -> str:
    return f"l#{epoch}#{lane}"


def slot_key(epoch: str, lane: int, number: int) -> Item:
    return {PK: {"S": lane_key(epoch, lane)}, SK: {"S": f"{number:014}"}}


def registry_key(epoch: str, lane: int) -> Item:
    return {PK: {"S": REGISTRY}, SK: {"S": f"lane#{epoch}#{lane:06}"}}


def meta_key() -> Item:
    return {PK: {"S": REGISTRY}, SK: {"S": META}}


def kind_key(kind: str) -> Item:
    return {PK: {"S": REGISTRY}, SK: {"S": f"kind#{kind}"}}


# --- texts that sort -------------------------------------------------------------------------------------------------

LEAST_MOMENT, MOST_MOMENT = -(2**63), 2**63 - 1


def moment_text(nanoseconds: int) -> str:
    """A time as text that sorts as times do: 2025-10-26T00:00:00.000000000Z. 64 bits reach from 1677 to 2262."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{_second_text(seconds)}.{rest:09}Z"


@lru_cache(maxsize=1024)
def _second_text(seconds: int) -> str:
    """Most times are of the last few seconds."""
    day, second = divmod(seconds, 86_400)
    hour, second = divmod(second, 3600)
    return f"{date.fromordinal(_EPOCH_DAY + day).isoformat()}T{hour:02}:{second // 60:02}:{second % 60:02}"


_EPOCH_DAY = date(1970, 1, 1).toordinal()


def ready_text(ready: str) -> str:
    """A place in the queue as the index has it. A key of an index is never empty, and has an end."""
    return cut("." + ready, MOST_SORT_BYTES)


def with_id(text: str, name: str) -> str:
    """A sort key that goes on with the id, as far as there is room."""
    return cut(f"{text}#{name}", MOST_SORT_BYTES)


def cut(text: str, most: int) -> str:
    """The beginning of a text, so many bytes of UTF-8 at most."""
    raw = text.encode()
    return text if len(raw) <= most else raw[:most].decode(errors="ignore")


# --- hints -----------------------------------------------------------------------------------------------------------

Trait = tuple[str, str]
"""What a record is found by through hints: a label's name and value, or ("owner:", owner)."""

OWNER = "owner:"


def traits_of(row: Row) -> frozenset[Trait]:
    """What a living record is to be found by."""
    if row.deleted:
        return frozenset()
    found = {(f"label:{name}", value) for name, value in row.keys.labels}
    if row.keys.owner:
        found.add((OWNER, row.keys.owner))
    return frozenset(found)


def hint_partition(kind: str, trait: Trait) -> str:
    field, value = trait
    # The length keeps names and values apart, whatever is in them.
    text = f"{len(field)}#{field}={value}"
    if len(text.encode()) > _HINT_TEXT_BYTES:
        text = hashlib.sha256(text.encode()).hexdigest()
    return f"x#{kind}#{text}"


def hint_key(row: Row, trait: Trait, created: int | None = None) -> Item:
    """Where the hint is that a record has a trait; one that was made when the record had another time of creation."""
    name = row.id
    sort = f"{moment_text(row.keys.created if created is None else created)}#{name}"
    if len(sort.encode()) > MOST_SORT_BYTES:
        sort = cut(sort, MOST_SORT_BYTES - 40) + hashlib.sha256(name.encode()).hexdigest()[:32]
    return {PK: {"S": hint_partition(row.kind, trait)}, SK: {"S": sort}}
