"""An endpoint that answers as fast as it can: `python -m tests.dynamodb.canned`, which prints its address.

Owns replies that are good enough for a daemon that writes and reads single records, and nothing else. For measuring
what calls cost whoever makes them: what would cost this one time is left out. Every table is there, with every index;
indexes show nothing. Of conditions it knows those a record is written under: that there is none, or that it is in the
state last seen. Others hold. Signatures are not looked at.
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections.abc import Callable
from typing import Any, cast

import msgspec
import uvloop

from statesvc.backends.dynamodb.layout import PK, SK, WID, Item
from statesvc.backends.dynamodb.tables import COMPANION_SUFFIX, JOB_KEYS, Wanted, definition

Found = dict[str, Any]

ASKED = b"dynamodb_20120810."
"""In front of the name of an operation, in the head of a request. The head is read in lower case."""

ABSENT, ON_STATE = "attribute_not_exists", "#wid = :wid"

LAST = "\U0010ffff"

EMPTY = b"{}"


class Refusal(Exception):
    """A reply that is no success."""


class Tables:
    """Items of all tables, by table and key."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str, str], Item] = {}
        self._partitions: dict[tuple[str, str], dict[str, Item]] = {}
        self.answers: dict[bytes, Callable[[Found], Found | None]] = {
            b"batchgetitem": self._get_batch,
            b"batchwriteitem": self._write_batch,
            b"deleteitem": self._change_one("Delete"),
            b"describetable": self._describe,
            b"getitem": self._get,
            b"putitem": self._change_one("Put"),
            b"query": self._query,
            b"scan": lambda _: {"Items": [], "Count": 0},
            b"transactwriteitems": self._transact,
            b"updateitem": self._update,
        }

    # --- reading -----------------------------------------------------------------------------------------------------

    def _describe(self, request: Found) -> Found:
        name = request["TableName"]
        jobs = name.removesuffix(COMPANION_SUFFIX)
        made = definition(Wanted(jobs, jobs + COMPANION_SUFFIX, 0, 0, ""), name)
        indexes = [{**each, "IndexStatus": "ACTIVE"} for each in made.get("GlobalSecondaryIndexes", ())]
        return {"Table": {**made, "TableStatus": "ACTIVE", "GlobalSecondaryIndexes": indexes}}

    def _get(self, request: Found) -> Found:
        item = self._items.get(_place(request["TableName"], request["Key"]))
        return {} if item is None else {"Item": item}

    def _get_batch(self, request: Found) -> Found:
        found: Found = {}
        for table, asked in request["RequestItems"].items():
            items = (self._items.get(_place(table, key)) for key in asked["Keys"])
            found[table] = [item for item in items if item is not None]
        return {"Responses": found, "UnprocessedKeys": {}}

    def _query(self, request: Found) -> Found:
        if "IndexName" in request:
            return {"Items": [], "Count": 0}
        partition, *bounds = [value["S"] for value in request["ExpressionAttributeValues"].values()]
        low, high = _bounds(bounds)
        items = self._partitions.get((request["TableName"], partition), {})
        names = sorted(name for name in items if low <= name <= high)
        names = names if request.get("ScanIndexForward", True) else names[::-1]
        return {"Items": [items[name] for name in names[: request.get("Limit")]], "Count": len(names)}

    # --- writing -----------------------------------------------------------------------------------------------------

    def _change_one(self, action: str) -> Callable[[Found], Found]:
        def change(request: Found) -> Found:
            if self._is_in_the_way(request):
                old = self._items[_place(request["TableName"], request.get("Key") or request["Item"])]
                raise Refusal({"__type": "#ConditionalCheckFailedException", "Item": old})
            self._apply(action, request)
            return {}

        return change

    def _transact(self, request: Found) -> None:
        actions = [pair for each in request["TransactItems"] for pair in each.items()]
        if any(self._is_in_the_way(asked) for _, asked in actions):
            reasons = [self._reason(asked) for _, asked in actions]
            raise Refusal({"__type": "#TransactionCanceledException", "CancellationReasons": reasons})
        for action, asked in actions:
            self._apply(action, asked)

    def _reason(self, asked: Found) -> Found:
        if not self._is_in_the_way(asked):
            return {"Code": "None"}
        item = self._items.get(_place(asked["TableName"], asked.get("Key") or asked["Item"]))
        return {"Code": "ConditionalCheckFailed"} | ({} if item is None else {"Item": item})

    def _is_in_the_way(self, asked: Found) -> bool:
        condition = asked.get("ConditionExpression")
        if condition is None:
            return False
        item = self._items.get(_place(asked["TableName"], asked.get("Key") or asked["Item"]))
        if condition.startswith(ABSENT):
            return item is not None
        if condition.startswith(ON_STATE):
            return item is None or item.get(WID) != asked["ExpressionAttributeValues"][":wid"]
        return False

    def _apply(self, action: str, asked: Found) -> None:
        table = asked["TableName"]
        if action == "Put":
            self._put(table, asked["Item"])
        else:
            table, partition, sort = place = _place(table, asked["Key"])
            self._items.pop(place, None)
            self._partitions.get((table, partition), {}).pop(sort, None)

    def _put(self, table: str, item: Item) -> None:
        place = _place(table, item)
        self._items[place] = item
        if SK in item:
            self._partitions.setdefault(place[:2], {})[place[2]] = item

    def _write_batch(self, request: Found) -> Found:
        for table, asked in request["RequestItems"].items():
            for each in asked:
                ((action, what),) = each.items()
                self._apply(action.removesuffix("Request"), {"TableName": table, **what})
        return {"UnprocessedItems": {}}

    def _update(self, request: Found) -> Found:
        """Only as lanes are changed: some attributes are set, some removed."""
        names, values = request["ExpressionAttributeNames"], request["ExpressionAttributeValues"]
        item = dict(self._items.get(_place(request["TableName"], request["Key"])) or request["Key"])
        sets, _, removes = request["UpdateExpression"].removeprefix("SET ").partition(" REMOVE ")
        for name, value in (each.split(" = ") for each in sets.split(", ")):
            item[names[name]] = values[value]
        for name in filter(None, removes.split(", ")):
            item.pop(names[name], None)
        self._put(request["TableName"], item)
        return {"Attributes": item}


def _bounds(given: list[str]) -> tuple[str, str]:
    """Of the sort key: none, one that is to be exceeded, or the first and the last."""
    if len(given) == 2:
        return given[0], given[1]
    return (given[0] + "\0" if given else ""), LAST


def _place(table: str, item: Item) -> tuple[str, str, str]:
    if PK in item:
        return table, item[PK]["S"], item[SK]["S"]
    return table, next(item[name]["S"] for name in JOB_KEYS if name in item), ""


class Canned(asyncio.Protocol):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            self._received = self._received[end + 4 + length :]
            self._transport.write(self._answer(head.partition(ASKED)[2].split(b"\r\n")[0], body))

    def _answer(self, operation: bytes, body: bytes) -> bytes:
        try:
            answer = self._tables.answers[operation](msgspec.json.decode(body))
        except Refusal as refused:
            return _reply(b"400 Bad Request", msgspec.json.encode(refused.args[0]))
        return _reply(b"200 OK", msgspec.json.encode(answer) if answer else EMPTY)


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/x-amz-json-1.0\r\nx-amz-crc32: %d\r\ncontent-length: %d\r\n\r\n"
    return head % (status, zlib.crc32(body), len(body)) + body


async def _serve() -> None:
    loop, ended, tables = asyncio.get_running_loop(), asyncio.Event(), Tables()
    server = await loop.create_server(lambda: Canned(tables), "127.0.0.1", 0)
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 1024) else None)
    await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
