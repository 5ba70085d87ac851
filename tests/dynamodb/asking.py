"""What the tests of calls share: connections to an endpoint, a table with one key, endpoints that answer as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from statesvc.backends.dynamodb.calls import Access, Calls
from tests.dynamodb.servers import REGION, InThread
from tests.dynamodb.serving import Reply, Request

ENDS_SECONDS = 30.0
"""Far more than anything here takes: a guard, not a measure."""


@asynccontextmanager
async def calling(
    url: str, *, seconds: float = 20.0, connections: int = 8, region: str = REGION
) -> AsyncIterator[Calls]:
    calls = Calls(Access(region=region, endpoint=url, timeout_seconds=seconds, connections=connections))
    await calls.open()
    try:
        yield calls
    finally:
        await calls.close()


async def until(condition: Callable[[], object]) -> None:
    """Return once it holds; the guard raises when it never does."""
    async with asyncio.timeout(ENDS_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def answering(handler: Callable[[Request], Reply | None]) -> Iterator[InThread]:
    """An endpoint whose every answer is made by `handler`."""
    endpoint = InThread(handler)
    try:
        yield endpoint
    finally:
        endpoint.end()


async def make_table(calls: Calls, name: str, key: str = "jobId", **more: Any) -> None:
    await calls.call(
        "CreateTable",
        {
            "TableName": name,
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
            **more,
        },
    )


def put(table: str, name: str, wid: str = "w") -> dict[str, Any]:
    """A write that is applied at most once, and is told from those of others."""
    return {
        "TableName": table,
        "Item": {"jobId": {"S": name}, "wid": {"S": wid}},
        "ConditionExpression": "attribute_not_exists(jobId)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def get(table: str, name: str) -> dict[str, Any]:
    return {"TableName": table, "Key": {"jobId": {"S": name}}, "ConsistentRead": True}
