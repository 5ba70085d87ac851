"""The two tables and their indexes: what they have to be, and how what is there differs from it.

Owns the definitions, and the words for what is wrong. Must not know what is in the items, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from statesvc_client.errors import Unavailable

from .calls import Calls, NoSuchTable
from .layout import BY_WALK, INDEXES, KEYS, PK, SK, IndexShape

if TYPE_CHECKING:
    from ...config.model import Dynamodb

JOB_KEYS = ("jobId", "job_uuid")
"""What a table of jobs may call the id: Joblet's two names. Tables made here take the first."""

PROJECTED = {BY_WALK.name: (KEYS,)}
"""What an index holds beside the keys. Rows are read from the table itself: an index lags."""

COMPANION_SUFFIX = "-statesvc"

TextKey = tuple[str, Literal["HASH", "RANGE"]]


class Wanted(NamedTuple):
    """What the configuration asks of the tables."""

    jobs: str
    companion: str
    read_capacity: int
    write_capacity: int
    ttl_attribute: str
    """Empty: items are not to be removed by their age."""

    @classmethod
    def of(cls, options: Dynamodb) -> Wanted:
        return cls(
            jobs=options.table_name,
            companion=options.companion_table or options.table_name + COMPANION_SUFFIX,
            read_capacity=options.read_capacity,
            write_capacity=options.write_capacity,
            ttl_attribute=options.ttl_attribute if options.ttl_enabled else "",
        )

    @property
    def on_demand(self) -> bool:
        return not (self.read_capacity and self.write_capacity)


class Index(NamedTuple):
    """An index as it is there."""

    name: str
    keys: tuple[TextKey, ...]
    status: str
    projection: Mapping[str, Any]

    def holds(self, attributes: tuple[str, ...]) -> bool:
        kind = self.projection.get("ProjectionType", "ALL")
        return kind == "ALL" or set(attributes) <= set(self.projection.get("NonKeyAttributes", ()))


class Table(NamedTuple):
    """A table as it is there."""

    name: str
    status: str
    keys: tuple[TextKey, ...]
    types: Mapping[str, str]
    """Of the attributes that are keys of the table or of an index."""
    indexes: Mapping[str, Index]
    read_capacity: int
    write_capacity: int
    """0: on demand."""

    @property
    def capacity(self) -> str:
        if not self.read_capacity:
            return "on demand"
        return f"capacity {self.read_capacity} to read, {self.write_capacity} to write"


class Inspected(NamedTuple):
    """Tables that can be served."""

    key: str
    """What the jobs table calls the id."""
    indexes: Mapping[str, frozenset[str]]
    """By table: the names of our indexes that are there, as they have to be."""
    lacking: tuple[str, ...]
    """What is missing or wrong and only slows things down, in words."""


async def describe(calls: Calls, name: str) -> Table | None:
    """The table of this name, if there is one."""
    try:
        reply = await calls.call("DescribeTable", {"TableName": name})
    except NoSuchTable:
        return None
    return read(reply["Table"])


def read(told: dict[str, Any]) -> Table:
    """What DescribeTable says."""
    on_demand = told.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    given = {} if on_demand else told.get("ProvisionedThroughput", {})
    return Table(
        name=told["TableName"],
        status=told["TableStatus"],
        keys=_keys(told["KeySchema"]),
        types={each["AttributeName"]: each["AttributeType"] for each in told["AttributeDefinitions"]},
        indexes={
            each["IndexName"]: Index(
                each["IndexName"], _keys(each["KeySchema"]), each.get("IndexStatus", "ACTIVE"), each["Projection"]
            )
            for each in told.get("GlobalSecondaryIndexes") or ()
        },
        read_capacity=int(given.get("ReadCapacityUnits", 0)),
        write_capacity=int(given.get("WriteCapacityUnits", 0)),
    )


def _keys(schema: list[dict[str, Any]]) -> tuple[TextKey, ...]:
    return tuple((each["AttributeName"], each["KeyType"]) for each in schema)


# --- judging ----------------------------------------------------------------------------------------------------------


def wrong_with_jobs(table: Table) -> str:
    """Why a table cannot hold jobs; "" when it can."""
    name = table.keys[0][0]
    if len(table.keys) == 1 and name in JOB_KEYS and table.types.get(name) == "S":
        return _wrong_with_status(table)
    wanted = " or ".join(JOB_KEYS)
    return f"table {table.name!r} has the key {_shown(table)}: a table of jobs has the one key {wanted}, a text"


def wrong_with_companion(table: Table) -> str:
    """Why a table cannot be the companion; "" when it can."""
    if table.keys == ((PK, "HASH"), (SK, "RANGE")) and table.types.get(PK) == table.types.get(SK) == "S":
        return _wrong_with_status(table)
    return f"table {table.name!r} has the key {_shown(table)}: the companion has the keys {PK} and {SK}, both texts"


def _wrong_with_status(table: Table) -> str:
    if table.status in {"ACTIVE", "UPDATING", "CREATING"}:
        return ""
    return f"table {table.name!r} cannot be used: it is {table.status}"


def _shown(table: Table) -> str:
    return " and ".join(f"{name} ({table.types.get(name, '?')})" for name, _ in table.keys)


def wrong_with_index(table: Table, shape: IndexShape) -> str:
    """Why an index that is there is not the one we need; "" when it is, or when there is none of this name."""
    index = table.indexes.get(shape.name)
    if index is None:
        for name in (shape.hash, shape.range):
            if table.types.get(name, "S") != "S":
                return f"attribute {name} is a key of another index of {table.name!r}, where it is no text"
        return ""
    if index.keys != ((shape.hash, "HASH"), (shape.range, "RANGE")):
        there = " and ".join(name for name, _ in index.keys)
        return f"it is on {there}, and has to be on {shape.hash} and {shape.range}: delete it, then run init again"
    if any(table.types.get(name) != "S" for name in (shape.hash, shape.range)):
        return f"{shape.hash} and {shape.range} have to be texts: delete it, then run init again"
    if not index.holds(PROJECTED.get(shape.name, ())):
        return f"it lacks the attributes {', '.join(PROJECTED[shape.name])}: delete it, then run init again"
    return ""


def usable_indexes(table: Table) -> frozenset[str]:
    """The names of our indexes that can be read now."""
    return frozenset(
        shape.name
        for shape in INDEXES
        if shape.name in table.indexes
        and table.indexes[shape.name].status in {"ACTIVE", "UPDATING"}
        and not wrong_with_index(table, shape)
    )


async def inspect(calls: Calls, wanted: Wanted) -> Inspected:
    """Look whether the tables can be served. Raises `Unavailable` with what to do when they cannot."""
    jobs = await _there(calls, wanted.jobs)
    companion = await _there(calls, wanted.companion)
    for wrong in (wrong_with_jobs(jobs), wrong_with_companion(companion)):
        if wrong:
            raise Unavailable(wrong)
    for table in (jobs, companion):
        if table.status == "CREATING":
            raise Unavailable(f"table {table.name!r} is still being made")
    return Inspected(
        key=jobs.keys[0][0],
        indexes={table.name: usable_indexes(table) for table in (jobs, companion)},
        lacking=tuple(_lacking(jobs)) + tuple(_lacking(companion)),
    )


async def _there(calls: Calls, name: str) -> Table:
    table = await describe(calls, name)
    if table is None:
        raise Unavailable(f"there is no table {name!r}: make it with `statesvc init`")
    return table


def _lacking(table: Table) -> Iterator[str]:
    usable = usable_indexes(table)
    for shape in INDEXES:
        if shape.name not in usable:
            why = wrong_with_index(table, shape) or "it is not there, or not ready"
            yield f"index {shape.name} of {table.name}: {why}"


# --- definitions ------------------------------------------------------------------------------------------------------


def definition(wanted: Wanted, name: str) -> dict[str, Any]:
    """What CreateTable is asked for."""
    keys: tuple[TextKey, ...] = ((JOB_KEYS[0], "HASH"),) if name == wanted.jobs else ((PK, "HASH"), (SK, "RANGE"))
    names = [key for key, _ in keys] + [key for shape in INDEXES for key in (shape.hash, shape.range)]
    return {
        "TableName": name,
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in keys],
        "AttributeDefinitions": _texts(names),
        "GlobalSecondaryIndexes": [index_definition(wanted, shape, on_demand=wanted.on_demand) for shape in INDEXES],
        **(
            {"BillingMode": "PAY_PER_REQUEST"}
            if wanted.on_demand
            else {"BillingMode": "PROVISIONED", "ProvisionedThroughput": _throughput(wanted)}
        ),
    }


def index_definition(wanted: Wanted, shape: IndexShape, *, on_demand: bool) -> dict[str, Any]:
    """An index as CreateTable and UpdateTable take it; what its table pays by decides whether it has a capacity."""
    held = PROJECTED.get(shape.name)
    return {
        "IndexName": shape.name,
        "KeySchema": [
            {"AttributeName": shape.hash, "KeyType": "HASH"},
            {"AttributeName": shape.range, "KeyType": "RANGE"},
        ],
        "Projection": (
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(held)} if held else {"ProjectionType": "KEYS_ONLY"}
        ),
        **({} if on_demand else {"ProvisionedThroughput": _throughput(wanted)}),
    }


def adding(wanted: Wanted, table: Table, shape: IndexShape) -> dict[str, Any]:
    """What UpdateTable is asked for to add an index."""
    # The definitions of the attributes already in use have to be given again, and those of the new index.
    types = {**table.types, shape.hash: "S", shape.range: "S"}
    used = {name for name, _ in table.keys} | {name for each in table.indexes.values() for name, _ in each.keys}
    used |= {shape.hash, shape.range}
    return {
        "TableName": table.name,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in types.items() if name in used
        ],
        "GlobalSecondaryIndexUpdates": [{"Create": index_definition(wanted, shape, on_demand=not table.read_capacity)}],
    }


def _texts(names: list[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in dict.fromkeys(names)]


def _throughput(wanted: Wanted) -> dict[str, int]:
    # A table that was made with a capacity takes no index without one; nobody can give it none.
    return {"ReadCapacityUnits": max(1, wanted.read_capacity), "WriteCapacityUnits": max(1, wanted.write_capacity)}
