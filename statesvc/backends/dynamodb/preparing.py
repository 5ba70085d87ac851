"""Making the tables, their indexes and their time to live, and giving Joblet's own items the keys of the indexes.

Owns the order in which things are made, and the waiting for them. Must not know what the keys are made from: whoever
calls brings a function for that. Everything may be done again after an interruption, and by several at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from statesvc_client.errors import Unavailable

from ... import logs
from ..port import Step
from .calls import Calls, ConditionFailed, InUse, InvalidRequest, Lost
from .layout import CREATED, INDEXES, REVISION, STATUS, UPDATED, WALK, IndexShape, Item
from .tables import (
    Table,
    Wanted,
    adding,
    definition,
    describe,
    wrong_with_companion,
    wrong_with_index,
    wrong_with_jobs,
)

log = logs.get(__name__)

MAKING_SECONDS = 600.0
"""What making a table may take; it takes seconds."""

INDEXING_SECONDS = 24 * 3600.0
"""What adding an index may take: minutes, or hours where there are many items. It goes on when nobody waits for it."""

FIRST_LOOK, LONGEST_LOOK = 0.05, 10.0
"""Seconds between two looks whether something is there: more each time."""

BACKFILL_PASSES = 5
"""Times the table is gone through for items whose keys changed hands meanwhile."""

BACKFILL_AT_ONCE = 16

Complete = Callable[[Item], Item | None]
"""The attributes an item of Joblet's has to be given to be found by the indexes; None: it can be given none."""

_TOLD_BY = (STATUS, CREATED, UPDATED)
"""What an item's keys are told by, as far as another hand changes it: its keys are written only while these stand."""


class Preparation:
    """One run over both tables. `steps` say what was found and done."""

    def __init__(self, calls: Calls, wanted: Wanted, *, dry_run: bool) -> None:
        self._calls = calls
        self._wanted = wanted
        self._dry_run = dry_run
        self.steps: list[Step] = []

    @property
    def is_whole(self) -> bool:
        """Whether everything is there now, as it has to be."""
        return all(step.state in {"there", "made"} for step in self.steps)

    async def run(self, complete: Complete) -> list[Step]:
        """Make what is missing; with `dry_run` only look."""
        jobs = await self._table(self._wanted.jobs, wrong_with_jobs)
        await self._table(self._wanted.companion, wrong_with_companion)
        if jobs is not None:
            await self._time_to_live(jobs)
            await self._backfill(jobs, complete)
        return self.steps

    def _say(self, what: str, state: str, detail: str = "") -> None:
        self.steps.append(Step(what, state, detail))  # type: ignore[arg-type]

    # --- tables and indexes -------------------------------------------------------------------------------------------

    async def _table(self, name: str, wrong_with: Callable[[Table], str]) -> Table | None:
        """The table, once it is as it should be; None when it is not there, or not one for us."""
        what = f"table {name}"
        table = await describe(self._calls, name)
        if table is None:
            return await self._make(name, what)
        if wrong := wrong_with(table):
            self._say(what, "wrong", wrong)
            return None
        self._say(what, "there", self._about(table))
        for shape in INDEXES:
            table = await self._index(table, shape)
        return table

    def _about(self, table: Table) -> str:
        asked = (self._wanted.read_capacity, self._wanted.write_capacity)
        key = f"key {' and '.join(name for name, _ in table.keys)}, {table.capacity}"
        there = (table.read_capacity, table.write_capacity)
        same = there == asked if table.read_capacity else self._wanted.on_demand
        return key if same else f"{key}; the configuration says {_capacity(self._wanted)}, which is for new tables"

    async def _make(self, name: str, what: str) -> Table | None:
        detail = f"with {len(INDEXES)} indexes, {_capacity(self._wanted)}"
        if self._dry_run:
            self._say(what, "missing", detail)
            return None
        try:
            await self._calls.call("CreateTable", definition(self._wanted, name), seconds=MAKING_SECONDS)
        except (InUse, Lost):
            # Another hand was quicker, or our own first try, whose reply was lost.
            pass
        table = await self._settled(name, MAKING_SECONDS)
        log.info("table_made", table=name)
        self._say(what, "made", detail)
        return table

    async def _index(self, table: Table, shape: IndexShape) -> Table:
        """The table, with this index if it can have it. One at a time: more the service does not take."""
        what = f"index {shape.name} of {table.name}"
        if wrong := wrong_with_index(table, shape):
            self._say(what, "wrong", wrong)
            return table
        if shape.name in table.indexes and table.indexes[shape.name].status == "ACTIVE":
            self._say(what, "there")
            return table
        on = f"on {shape.hash} and {shape.range}"
        if self._dry_run:
            is_coming = shape.name in table.indexes
            self._say(what, "there" if is_coming else "missing", "it is still being filled" if is_coming else on)
            return table
        table = await self._settled(table.name, INDEXING_SECONDS)
        why = "it is being changed by somebody else"
        if shape.name not in table.indexes:
            try:
                await self._calls.call("UpdateTable", adding(self._wanted, table, shape), seconds=MAKING_SECONDS)
            except InvalidRequest as refused:
                why = refused.code
            except (InUse, Lost):
                # As above: it may be there by now.
                pass
            table = await self._settled(table.name, INDEXING_SECONDS)
        if shape.name not in table.indexes:
            self._say(what, "wrong", f"DynamoDB does not add it ({why}): run init again later")
            return table
        log.info("index_made", table=table.name, index=shape.name)
        self._say(what, "made", on)
        return table

    async def _settled(self, name: str, seconds: float) -> Table:
        """The table, once nothing is being done to it any more."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + seconds, FIRST_LOOK
        while True:
            table = await describe(self._calls, name)
            if table is not None and _is_settled(table):
                return table
            if loop.time() + pause > deadline:
                raise Unavailable(f"table {name!r} was not ready within {seconds:g} s; run init again later")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_LOOK)

    # --- time to live -------------------------------------------------------------------------------------------------

    async def _time_to_live(self, table: Table) -> None:
        what = f"time to live of {table.name}"
        attribute = self._wanted.ttl_attribute
        reply = await self._calls.call("DescribeTimeToLive", {"TableName": table.name})
        told = reply.get("TimeToLiveDescription", {})
        status, there = told.get("TimeToLiveStatus", "DISABLED"), told.get("AttributeName", "")
        if not attribute:
            if status in {"ENABLED", "ENABLING"}:
                self._say(what, "there", f"by {there}; the configuration has it off: items are given no time to go")
            return
        if status in {"ENABLED", "ENABLING"}:
            wrong = f"it is by {there}, and has to be by {attribute}: switch it off, then run init again an hour later"
            self._say(what, "there" if there == attribute else "wrong", "" if there == attribute else wrong)
        elif status == "DISABLING":
            self._say(what, "wrong", "it is being switched off: run init again an hour later")
        elif self._dry_run:
            self._say(what, "missing", f"by {attribute}")
        else:
            await self._switch_on(table.name, what, attribute)

    async def _switch_on(self, name: str, what: str, attribute: str) -> None:
        asked = {"TableName": name, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": attribute}}
        try:
            await self._calls.call("UpdateTimeToLive", asked)
        except (InvalidRequest, Lost):
            # Sent twice it is refused the second time: what counts is whether it is on.
            reply = await self._calls.call("DescribeTimeToLive", {"TableName": name})
            if reply.get("TimeToLiveDescription", {}).get("AttributeName") != attribute:
                self._say(what, "wrong", "DynamoDB does not switch it on: run init again later")
                return
        self._say(what, "made", f"by {attribute}")

    # --- Joblet's own items -------------------------------------------------------------------------------------------

    async def _backfill(self, table: Table, complete: Complete) -> None:
        """Give every item of Joblet's what it needs to be found by the indexes."""
        what = f"index keys of the items in {table.name}"
        done, hopeless = 0, 0
        for _ in range(1 if self._dry_run else BACKFILL_PASSES):
            found, hopeless = 0, 0
            async for page in self._strangers(table):
                found += len(page)
                if not self._dry_run:
                    written, left = await self._complete(table, page, complete)
                    done, hopeless = done + written, hopeless + left
            if found == hopeless:
                break
        if self._dry_run and found:
            self._say(what, "missing", f"{found} items of Joblet's have none")
        elif hopeless:
            self._say(what, "wrong", f"{hopeless} items of Joblet's cannot be given any: lists look through all items")
        elif found:
            self._say(
                what, "wrong", f"{found} items are being changed by another program; stop it, then run init again"
            )
        else:
            self._say(what, "made" if done else "there", f"{done} items" if done else "")

    async def _strangers(self, table: Table) -> AsyncIterator[list[Item]]:
        """Items we did not write and gave no keys yet, page by page."""
        request: dict[str, Any] = {
            "TableName": table.name,
            "ConsistentRead": True,
            "FilterExpression": "attribute_not_exists(#revision) AND attribute_not_exists(#walk)",
            "ExpressionAttributeNames": {"#revision": REVISION, "#walk": WALK},
        }
        while True:
            reply = await self._calls.call("Scan", request)
            if reply["Items"]:
                yield reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    async def _complete(self, table: Table, items: list[Item], complete: Complete) -> tuple[int, int]:
        """How many were given their keys, and how many can be given none."""
        written = hopeless = 0
        for start in range(0, len(items), BACKFILL_AT_ONCE):
            some = [(item, complete(item)) for item in items[start : start + BACKFILL_AT_ONCE]]
            results = await asyncio.gather(*(self._give(table, item, more) for item, more in some if more))
            written += sum(results)
            hopeless += sum(not more for _, more in some)
        return written, hopeless

    async def _give(self, table: Table, item: Item, more: Item) -> bool:
        """Write the attributes, unless the item has changed since it was read."""
        key = table.keys[0][0]
        names = {f"#a{n}": name for n, name in enumerate(more)}
        values = {f":a{n}": value for n, value in enumerate(more.values())}
        conditions = ["attribute_exists(#key)", "attribute_not_exists(#revision)"]
        for n, name in enumerate(_TOLD_BY):
            names[f"#t{n}"] = name
            if name in item:
                values[f":t{n}"] = item[name]
                conditions.append(f"#t{n} = :t{n}")
            else:
                conditions.append(f"attribute_not_exists(#t{n})")
        try:
            await self._calls.call(
                "UpdateItem",
                {
                    "TableName": table.name,
                    "Key": {key: item[key]},
                    "UpdateExpression": "SET " + ", ".join(f"#a{n} = :a{n}" for n in range(len(more))),
                    "ConditionExpression": " AND ".join(conditions),
                    "ExpressionAttributeNames": {**names, "#key": key, "#revision": REVISION},
                    "ExpressionAttributeValues": values,
                },
            )
        except (ConditionFailed, Lost):
            # Changed meanwhile, or written by our own first try, whose reply was lost: the next pass tells.
            return False
        return True


def _is_settled(table: Table) -> bool:
    return table.status == "ACTIVE" and all(index.status == "ACTIVE" for index in table.indexes.values())


def _capacity(wanted: Wanted) -> str:
    if wanted.on_demand:
        return "on demand"
    return f"capacity {wanted.read_capacity} to read, {wanted.write_capacity} to write"
