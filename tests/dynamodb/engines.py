"""What the tests of the engine share: tables, engines on them, and a plain look at the items."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from statesvc.backends.dynamodb.calls import Calls
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.tables import Wanted, definition
from statesvc.backends.port import Key, Keys, LogEntry, Row
from statesvc.config.model import Dynamodb
from tests.dynamodb.asking import calling
from tests.dynamodb.servers import REGION, Tables
from tests.engines.rows import by_record

PATIENCE_SECONDS = 60.0

Item = dict[str, Any]


def adopted(key: Key, body: bytes) -> Row:
    """A stand-in for the rules: what they make of a record they did not write."""
    record = msgspec.json.decode(body)
    status = record.get("status")
    keys = Keys(5, 7, status if isinstance(status, str) else None, node=record.get("nodeId"))
    return Row(*key, f"found-{key[1]}", 0, keys, body)


class Place:
    """A pair of tables, and who opens them."""

    def __init__(self, endpoint: str, tables: Tables, **options: Any) -> None:
        self.tables = tables
        self.options = Dynamodb(
            region=REGION,
            endpoint=endpoint,
            table_name=tables.jobs,
            companion_table=tables.companion,
            **{"timeout_seconds": PATIENCE_SECONDS, "index_lag_seconds": 0.0, **options},
        )
        self.calls: Calls

    def engine(self, **options: Any) -> DynamodbEngine:
        made = DynamodbEngine(msgspec.structs.replace(self.options, **options))
        made.adopt = adopted
        return made

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[DynamodbEngine]:
        engine = self.engine(**options)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()

    async def make(self) -> None:
        for name in self.tables:
            await self.calls.call("CreateTable", definition(Wanted.of(self.options), name))

    async def items(self, table: str) -> list[Item]:
        found: list[Item] = []
        request: Item = {"TableName": table, "ConsistentRead": True}
        while True:
            reply = await self.calls.call("Scan", request)
            found += reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return found
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    async def job(self, name: str, key: str = "jobId") -> Item:
        reply = await self.calls.call(
            "GetItem", {"TableName": self.tables.jobs, "Key": {key: {"S": name}}, "ConsistentRead": True}
        )
        return dict(reply["Item"])

    async def put(self, table: str, *items: Item) -> None:
        for item in items:
            await self.calls.call("PutItem", {"TableName": table, "Item": item})

    async def change(self, table: str, key: Item, **attributes: Item | None) -> None:
        """Damage an item."""
        sets = {name: value for name, value in attributes.items() if value is not None}
        gone = [name for name, value in attributes.items() if value is None]
        words = ["SET " + ", ".join(f"#{name} = :{name}" for name in sets)] if sets else []
        words += ["REMOVE " + ", ".join(f"#{name}" for name in gone)] if gone else []
        values = {"ExpressionAttributeValues": {f":{name}": value for name, value in sets.items()}} if sets else {}
        await self.calls.call(
            "UpdateItem",
            {
                "TableName": table,
                "Key": key,
                "UpdateExpression": " ".join(words),
                "ExpressionAttributeNames": {f"#{name}": name for name in attributes},
                **values,
            },
        )


@asynccontextmanager
async def place_at(endpoint: str, tables: Tables, **options: Any) -> AsyncIterator[Place]:
    place = Place(endpoint, tables, **options)
    async with calling(endpoint, seconds=PATIENCE_SECONDS) as calls:
        place.calls = calls
        yield place


def in_haste(engine: DynamodbEngine) -> DynamodbEngine:
    """Its loads do not wait until other engines have heard of them: nobody follows the log there."""
    engine._open.whole._heard_seconds = 0.0
    return engine


def binary(raw: bytes) -> Item:
    return {"B": base64.b64encode(raw).decode()}


async def whole_log(engine: DynamodbEngine, cursor: str = "", limit: int = 100) -> list[LogEntry]:
    """Everything behind a cursor; what others committed a moment ago included, which `position` looks for."""
    await engine.position()
    read: list[LogEntry] = []
    while page := await engine.read_log(cursor, limit):
        read += page
        cursor = page[-1].cursor
    return read


def in_order(log: list[LogEntry]) -> bool:
    """Whether every record's entries come in the order of its revisions, none missing and none twice."""
    return all(
        [row.revision for _, row in told] == list(range(told[0][1].revision, told[0][1].revision + len(told)))
        for told in by_record(log).values()
    )


__all__ = ["Place", "adopted", "binary", "in_haste", "in_order", "place_at", "whole_log"]
