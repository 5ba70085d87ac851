"""Everything at once: reading all rows, and putting others in their place.

Owns dumps and loads. Must not know commits or walks.

A load is done wholly or not at all: rows are first put aside in the companion table; the registry then says that they
are to take the place of everything, and who is at it. From then on there is no way back. Daemons that hear of it leave
their lanes; nothing is deleted before all have, or have had the time to. While somebody goes on with the load nobody
else uses the tables. Once it stands still, by the clock of whoever waits for its end, that daemon takes it over and
finishes what was begun.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from statesvc_client.errors import Gone, StateError, Unavailable

from ... import logs
from .. import epoch_names
from ..port import Row
from .building import hint_item
from .clock import elapsed
from .fetching import WRITE_ITEMS, Fetcher
from .items import binary, check_fits, item_of
from .layout import BY_DUE, BY_WALK, JOB, META, PK, REGISTRY, SK, Item, Tables, traits_of
from .registry import FORMAT, Meta, Overtaken, Registry

log = logs.get(__name__)

ASIDE_BYTES = 200_000
"""Rows put aside in one item: below what an item holds, whatever the last row adds."""

STEP_SECONDS = 1.0
"""How often somebody who loads says that it goes on."""

ABANDONED_SECONDS = 30.0
"""How long a load must stand still until another daemon takes it over."""

SENT_SECONDS = ABANDONED_SECONDS / 2
"""How long after it was said that a load goes on something of it may be sent. The rest of the time is for what is on
its way then (see `calls.ON_ITS_WAY_SECONDS`): nothing may arrive once another has taken the load over, for it is put
and deleted without a condition."""

PAUSE_SECONDS = 1.0
"""Between two tries of a piece."""

LEFT_LOOK_SECONDS = 0.25
"""How often it is looked whether all daemons have left their lanes."""

PIECE_SECONDS = 300.0
"""How long a piece of a load is tried when DynamoDB throttles: to begin it all again would throttle more."""

ROWS = "rows"
_rows = msgspec.msgpack.Decoder(list[Row])


class Loads:
    """Loads of other daemons, and since when they stand still."""

    def __init__(self) -> None:
        self._seen: tuple[str, int] | None = None
        self._since = 0.0

    def is_abandoned(self, meta: Meta) -> bool:
        now = time.monotonic()
        if self._seen != (meta.loader, meta.steps):
            self._seen, self._since = (meta.loader, meta.steps), now
        return now - self._since >= ABANDONED_SECONDS


class Whole:
    """Both tables, from end to end."""

    def __init__(self, fetcher: Fetcher, registry: Registry, heard_seconds: float) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._heard_seconds = heard_seconds
        """After so long every daemon has heard of a load, and what it was committing has ended."""
        self._under_way: Meta | None = None
        """The load this daemon is at, as the registry has it."""
        self._said = float("-inf")
        """When that was begun to be said last, by a clock that goes on while the machine sleeps: others count on."""

    @property
    def _tables(self) -> Tables:
        return self._fetcher.tables

    # --- out ---------------------------------------------------------------------------------------------------------

    async def rows(self, epoch: str) -> AsyncIterator[list[Row]]:
        """Every row, tombstones included, each as it is when its turn comes. Raises `Gone` when others take their
        place: what was read before the registry says so is whole, for nothing is deleted until then."""
        for table in (self._tables.jobs, self._tables.companion):
            async for found in self._fetcher.scanned(table):
                if not await self._registry.is_at(epoch):
                    raise Gone("the store was replaced while it was being read; begin again")
                if found:
                    yield [row for row, _ in found]

    async def count(self, kinds: Iterable[str]) -> int:
        """How many rows there are, as far as the indexes know."""
        total = 0
        for kind in kinds:
            if kind == JOB and not self._tables.walked:
                total += await self._counted("Scan", {"TableName": self._tables.jobs})
                continue
            for index, partition in ((BY_WALK, kind), (BY_DUE, f"{kind}#deleted")):
                request = {
                    "TableName": self._tables.name_of(kind),
                    "IndexName": index.name,
                    "KeyConditionExpression": "#hash = :hash",
                    "ExpressionAttributeNames": {"#hash": index.hash},
                    "ExpressionAttributeValues": {":hash": {"S": partition}},
                }
                total += await self._counted("Query", request)
        return total

    async def _counted(self, operation: str, request: dict[str, Any]) -> int:
        total, start = 0, None
        while True:
            asked = {**request, "Select": "COUNT"} | ({"ExclusiveStartKey": start} if start else {})
            reply = await self._fetcher.read(operation, asked)
            total += int(reply["Count"])
            start = reply.get("LastEvaluatedKey")
            if not start:
                return total

    # --- in ----------------------------------------------------------------------------------------------------------

    async def begin(self, rows: AsyncIterator[list[Row]], before: Meta) -> Meta:
        """Have the registry say that these rows are to take the place of everything. Returns what it says then."""
        epoch = epoch_names.following(before.epoch)
        try:
            await self._put_aside(rows, epoch)
        except BaseException:
            await self._clear(epoch)
            raise
        begun = before._replace(loading=epoch, loader=os.urandom(8).hex(), steps=1)
        await self._registry.begin_anew(begun, before)
        return begun

    async def take_over(self, meta: Meta) -> None:
        """Go on with a load that another has abandoned."""
        ours = meta._replace(loader=os.urandom(8).hex(), steps=meta.steps + 1)
        await self._registry.begin_anew(ours, meta)
        await self.finish(ours)

    async def _go_on(self) -> None:
        """Say that the load goes on; raises `Overtaken` when another has taken it over."""
        meta, now = self._under_way, elapsed()
        if meta is None or now - self._said < STEP_SECONDS:
            return
        following = meta._replace(steps=meta.steps + 1)
        await self._registry.begin_anew(following, meta, seconds=SENT_SECONDS)
        self._under_way, self._said = following, now

    async def finish(self, meta: Meta) -> None:
        """Do what the registry says is to be done, by us."""
        self._under_way, self._said = meta, float("-inf")
        epoch = meta.loading
        await self._until_left()
        await self._empty(epoch)
        kinds: set[str] = set()
        async for some in self._aside(epoch):
            await self._put(some, epoch)
            kinds.update(row.kind for row in some)
        for kind in sorted(kinds):
            await self._tried_on(partial(self._registry.name_kind, kind))
        after = Meta(epoch, FORMAT, FORMAT, "", meta.walked)
        await self._tried_on(partial(self._registry.begin_anew, after, self._under_way))
        self._under_way = None
        try:
            await self._clear(epoch)
        except StateError as problem:
            log.warning("load_not_cleared", epoch=epoch, why=problem.text)  # the next load does it

    async def _until_left(self) -> None:
        """Return when nobody writes to the tables any more. A daemon that was killed cannot leave its lane."""
        until = time.monotonic() + self._heard_seconds
        while time.monotonic() < until:
            if not any(lane.holder for lane in (await self._registry.look()).lanes.values()):
                return
            await self._tried_on(self._go_on)
            await asyncio.sleep(LEFT_LOOK_SECONDS)

    async def _put_aside(self, rows: AsyncIterator[list[Row]], epoch: str) -> None:
        number, waiting, size = 0, [], 0
        async for some in rows:
            for row in some:
                check_fits(row, self._tables)
                waiting.append(row)
                size += len(row.body) + len(row.marks) + 200
                if size >= ASIDE_BYTES:
                    number += 1
                    await self._put_item_aside(epoch, number, waiting)
                    waiting, size = [], 0
        if waiting:
            await self._put_item_aside(epoch, number + 1, waiting)

    async def _put_item_aside(self, epoch: str, number: int, rows: list[Row]) -> None:
        raw = zlib.compress(msgspec.msgpack.encode(rows))
        item = {PK: {"S": f"s#{epoch}"}, SK: {"S": f"{number:010}"}, ROWS: {"B": raw}}
        await self._fetcher.write_all(self._tables.companion, [{"PutRequest": {"Item": item}}])

    async def _aside(self, epoch: str) -> AsyncIterator[list[Row]]:
        async for items in self._fetcher.pages("Query", self._partition(f"s#{epoch}")):
            for item in items:
                yield _rows.decode(zlib.decompress(binary(item[ROWS])))

    def _partition(self, pk: str) -> dict[str, Any]:
        return {
            "TableName": self._tables.companion,
            "KeyConditionExpression": f"{PK} = :pk",
            "ExpressionAttributeValues": {":pk": {"S": pk}},
            "ConsistentRead": True,
        }

    async def _put(self, rows: Sequence[Row], wid: str) -> None:
        now = int(self._fetcher.now())
        items = [(row.kind, item_of(row, self._tables, wid=wid, trail=b"", now=now)) for row in rows]
        hints = [hint_item(row, trait, wid) for row in rows for trait in traits_of(row)]
        jobs = [item for kind, item in items if kind == JOB]
        others = [item for kind, item in items if kind != JOB]
        await self._write(self._tables.jobs, [{"PutRequest": {"Item": item}} for item in jobs])
        await self._write(self._tables.companion, [{"PutRequest": {"Item": item}} for item in [*others, *hints]])

    async def _write(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        for start in range(0, len(requests), WRITE_ITEMS):
            await self._write_piece(table, requests[start : start + WRITE_ITEMS])

    async def _write_piece(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        async def said_and_sent() -> None:
            await self._go_on()
            await self._fetcher.write_all(table, requests, until=self._said + SENT_SECONDS)

        await self._tried_on(said_and_sent)

    async def _tried_on(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Tried for longer than a client's request is, unless another has taken the load over."""
        until = time.monotonic() + PIECE_SECONDS
        while True:
            try:
                return await attempt()
            except Overtaken:
                raise
            except Unavailable:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def _empty(self, epoch: str) -> None:
        """Delete every record, every hint and the log, and what others put aside and did not come to load; what this
        load put aside and the registry itself stay."""
        key = self._tables.key
        request = {
            "TableName": self._tables.jobs,
            "ProjectionExpression": "#key",
            "ExpressionAttributeNames": {"#key": key},
        }
        async for items in self._fetcher.pages("Scan", request | {"ConsistentRead": True}):
            await self._write(self._tables.jobs, [_deletion({key: item[key]}) for item in items])
        request = {"TableName": self._tables.companion, "ProjectionExpression": f"{PK}, {SK}"}
        async for items in self._fetcher.pages("Scan", request | {"ConsistentRead": True}):
            await self._tried_on(self._go_on)
            going = [_deletion({PK: item[PK], SK: item[SK]}) for item in items if _goes(item, epoch)]
            await self._write(self._tables.companion, going)

    async def _clear(self, epoch: str) -> None:
        """Delete what was put aside."""
        request = self._partition(f"s#{epoch}") | {"ProjectionExpression": f"{PK}, {SK}"}
        async for items in self._fetcher.pages("Query", request):
            going = [_deletion({PK: item[PK], SK: item[SK]}) for item in items]
            await self._fetcher.write_all(self._tables.companion, going)


def _deletion(key: Item) -> dict[str, Any]:
    return {"DeleteRequest": {"Key": key}}


def _goes(item: Item, epoch: str) -> bool:
    pk, sk = item[PK]["S"], item[SK]["S"]
    if pk == REGISTRY:
        return bool(sk != META)
    return bool(pk != f"s#{epoch}")
