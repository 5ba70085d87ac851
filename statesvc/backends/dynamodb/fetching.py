"""Items in and out of the two tables: several at once, page by page, to the end.

Owns paging, unprocessed keys and items, and the moment a call counts as failed for good. Must not know what items mean.
This is the one place where a failed call becomes an error a client may see.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from statesvc_client.errors import Internal, Outcome, Unavailable

from ... import logs
from ..port import Key, Row
from .calls import Calls, ConditionFailed, Failed, InvalidRequest, Lost, NoSuchTable
from .clock import elapsed
from .items import Adopt, fits_a_key, is_expired, key_of, row_of
from .layout import PK, SK, Item, Tables

log = logs.get(__name__)

GET_KEYS = 100
"""Keys in one BatchGetItem: DynamoDB's limit."""

WRITE_ITEMS = 25
"""Items in one BatchWriteItem: DynamoDB's limit."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before what was left unprocessed is sent again, at most; twice as many each time, up to the second figure."""


class Found(NamedTuple):
    """A record as it is stored: its row, and the item it was read from."""

    row: Row
    item: Item


class Page(NamedTuple):
    """Items, and the key to go on from; None when these are the last."""

    items: list[Item]
    more: Item | None


class Fetcher:
    """The two tables, through one set of connections."""

    def __init__(self, calls: Calls, tables: Tables, adopt: Adopt, seconds: float) -> None:
        self.calls = calls
        self.tables = tables
        self._adopt = adopt
        self._seconds = seconds
        """What may be spent on what was left unprocessed."""

    def now(self) -> float:
        """What times to go are compared with, and counted from: the time of day at the service."""
        return self.calls.now()

    async def call(self, operation: str, request: dict[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """One call whose refusal would be a mistake of ours; conditions and lost replies are the caller's to judge."""
        try:
            return await self.calls.call(operation, request, seconds=seconds)
        except NoSuchTable as gone:
            why = f"{gone}: it was there when the daemon started; run `statesvc init`"
            raise Unavailable(why, outcome=_outcome(gone)) from None
        except InvalidRequest as refused:
            raise _ours(operation, refused) from None

    async def read(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.call(operation, request)
        except Failed as failed:
            raise Internal(f"DynamoDB did not answer a {operation} as it should: {type(failed).__name__}") from None

    # --- records -----------------------------------------------------------------------------------------------------

    async def records(self, keys: Sequence[Key]) -> dict[Key, Found]:
        """The newest stored records; those whose time has come count as not there."""
        wanted = list(dict.fromkeys(fits_a_key(keys)))
        tables = self.tables
        asked = [(tables.name_of(key[0]), tables.key_of(key)) for key in wanted]
        found: dict[Key, Found] = {}
        items = await self.items(asked)
        now = self.now()
        for item in items:
            key = key_of(item, tables)
            if key is not None and not is_expired(item, tables, now):
                found[key] = Found(self.row_of(item, key), item)
        return found

    def row_of(self, item: Item, key: Key) -> Row:
        return row_of(item, key, self.tables, self._adopt)

    async def items(self, asked: Sequence[tuple[str, Item]]) -> list[Item]:
        """The items with these keys, as of now, in any order."""
        pieces = [asked[start : start + GET_KEYS] for start in range(0, len(asked), GET_KEYS)]
        if len(pieces) == 1:
            return await self._piece(pieces[0])
        found = await asyncio.gather(*(self._piece(piece) for piece in pieces))
        return [item for piece in found for item in piece]

    async def _piece(self, asked: Sequence[tuple[str, Item]]) -> list[Item]:
        left: dict[str, Any] = {}
        for table, key in asked:
            left.setdefault(table, {"Keys": [], "ConsistentRead": True})["Keys"].append(key)
        found: list[Item] = []
        async for _ in _tries(elapsed() + self._seconds):
            reply = await self.read("BatchGetItem", {"RequestItems": left})
            for items in reply.get("Responses", {}).values():
                found += items
            left = reply.get("UnprocessedKeys") or {}
            if not left:
                return found
        raise Unavailable("DynamoDB throttles reads: some items could not be read in time")

    async def scanned(self, table: str) -> AsyncIterator[list[Found]]:
        """Every record in a table, each as it is when its turn comes."""
        tables = self.tables
        async for items in self.pages("Scan", {"TableName": table, "ConsistentRead": True}):
            now = self.now()
            keyed = [(key_of(item, tables), item) for item in items]
            yield [
                Found(self.row_of(item, key), item)
                for key, item in keyed
                if key is not None and not is_expired(item, tables, now)
            ]

    async def is_empty(self, table: str) -> bool:
        reply = await self.read("Scan", {"TableName": table, "Limit": 1, "ConsistentRead": True})
        return not reply["Items"]

    # --- pages -------------------------------------------------------------------------------------------------------

    async def pages(self, operation: str, request: dict[str, Any]) -> AsyncIterator[list[Item]]:
        """Every page of a Query or a Scan."""
        start: Item | None = None
        while True:
            page = await self.page(operation, request, start)
            yield page.items
            if page.more is None:
                return
            start = page.more

    async def page(self, operation: str, request: dict[str, Any], start: Item | None) -> Page:
        """The page that begins behind a key, or the first one."""
        reply = await self.read(operation, request if start is None else {**request, "ExclusiveStartKey": start})
        return Page(reply.get("Items", []), reply.get("LastEvaluatedKey") or None)

    async def query_all(self, request: dict[str, Any]) -> list[Item]:
        return [item async for page in self.pages("Query", request) for item in page]

    # --- writing -----------------------------------------------------------------------------------------------------

    async def put_if_absent(self, item: Item, *, seconds: float | None = None) -> Item | None:
        """Put an item of the companion table unless one is there. Returns the one that was; None when it was put.

        Raises `Lost` when no reply tells.
        """
        request = {
            "TableName": self.tables.companion,
            "Item": item,
            "ConditionExpression": f"attribute_not_exists({PK})",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            await self.call("PutItem", request, seconds=seconds)
        except ConditionFailed as failed:
            return failed.item or {PK: item[PK], SK: item[SK]}
        return None

    async def write_all(self, table: str, requests: Sequence[dict[str, Any]], *, until: float | None = None) -> None:
        """Put or delete items without a condition, as many as there are; doing it again does no harm. Nothing is sent
        after `until`, a time of `elapsed`; without one each piece has the time that is configured."""
        for start in range(0, len(requests), WRITE_ITEMS):
            piece = {table: list(requests[start : start + WRITE_ITEMS])}
            await self._write_piece(piece, elapsed() + self._seconds if until is None else until)

    async def _write_piece(self, left: dict[str, Any], until: float) -> None:
        async for _ in _tries(until):
            try:
                seconds = max(0.0, until - elapsed())
                reply = await self.call("BatchWriteItem", {"RequestItems": left}, seconds=seconds)
            except Lost:
                raise Unavailable("DynamoDB did not answer in time", outcome="unknown") from None
            left = reply.get("UnprocessedItems") or {}
            if not left:
                return
        raise Unavailable("DynamoDB throttles writes: some items could not be written in time", outcome="unknown")


def _ours(operation: str, refused: InvalidRequest) -> Internal:
    """A request of ours that DynamoDB does not understand. What it says about it is for the log."""
    log.error("dynamodb_refused", operation=operation, code=refused.code, text=refused.text)
    why = f"DynamoDB refused a {operation} of the daemon: {refused.code}"
    return Internal(why, outcome=_outcome(refused))


def _outcome(failed: Failed) -> Outcome:
    """What a refusal leaves open: an earlier try of the same call may have done it."""
    return "unknown" if failed.unsure else "not_applied"


async def _tries(until: float) -> AsyncIterator[None]:
    """Once, and then again and again until then, with pauses by chance: everybody is throttled at once."""
    pause = FIRST_PAUSE
    yield
    await asyncio.sleep(random.uniform(0, pause))
    while elapsed() < until:
        yield
        pause = min(2 * pause, LONGEST_PAUSE)
        await asyncio.sleep(random.uniform(0, pause))
