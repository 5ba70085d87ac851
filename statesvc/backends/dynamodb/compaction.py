"""Cutting the log: the oldest slots of all lanes, a few at a time.

Owns which slots go, and in which order that is told and done: the registry says first that they are gone, then they are
deleted. Whoever finds a number missing asks the registry, and is never in doubt. Must not know who reads.
"""

from __future__ import annotations

from typing import Any

from ..port import LogKept
from .fetching import Fetcher
from .items import binary, number
from .layout import PK, SK, Item, lane_key
from .registry import CUT, START, LaneState, Registry
from .slots import AT, ENTRIES, PARTS, is_void, number_of
from .tails import Tails

CUT_SLOTS = 100
"""Slots cut in one step: a query a lane and a few batches of deletions."""


class _Head:
    """The oldest slots of one lane."""

    def __init__(self, state: LaneState, items: list[Item], end: int) -> None:
        self.state = state
        self._left = [item for item in items if number_of(item) > state.start and number_of(item) <= end]
        self.gone = [item for item in items if number_of(item) <= state.start]
        """What an earlier step said is gone, and did not come to delete."""
        self.start = state.start
        self.bytes = 0

    def oldest(self) -> int | None:
        """When the oldest slot that may go was written. What was made void goes with what is behind it."""
        told = [item for item in self._left if not is_void(item)]
        return number(told[0], AT) if told else None

    def cut(self) -> int:
        """Let the oldest slot go. Returns its bytes."""
        bytes_, parts = 0, 1
        while self._left and (parts > 0 or is_void(self._left[0])):
            item = self._left.pop(0)
            self.gone.append(item)
            self.start = number_of(item)
            if not is_void(item):
                parts = number(item, PARTS, 1) - 1
                bytes_ += len(binary(item[ENTRIES]))
        self.bytes += bytes_
        return bytes_


class Compaction:
    """Keeps the log as long as it is to be."""

    def __init__(self, fetcher: Fetcher, registry: Registry, tails: Tails, epoch: str) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._tails = tails
        self._epoch = epoch

    async def step(self, keep: LogKept) -> bool:
        """Cut a little; returns whether there is more to cut."""
        seen = await self._registry.look()
        self._tails.take_in(seen)
        heads = [await self._head(state) for state in seen.lanes.values() if self._tails.lanes[state.number].end]
        total = sum(self._tails.bytes_of(state) for state in seen.lanes.values())
        more = self._choose(heads, keep, total)
        for head in heads:
            await self._cut(head)
        return more

    async def _head(self, state: LaneState) -> _Head:
        request: dict[str, Any] = {
            "TableName": self._fetcher.tables.companion,
            "KeyConditionExpression": f"{PK} = :lane",
            "ExpressionAttributeValues": {":lane": {"S": lane_key(self._epoch, state.number)}},
            "ConsistentRead": True,
            "Limit": CUT_SLOTS,
        }
        reply = await self._fetcher.read("Query", request)
        return _Head(state, reply["Items"], self._tails.lanes[state.number].end)

    def _choose(self, heads: list[_Head], keep: LogKept, total: int) -> bool:
        for _ in range(CUT_SLOTS):
            dated = [(at, head.state.number, head) for head in heads if (at := head.oldest()) is not None]
            if not dated:
                return any(head.bytes for head in heads)
            at, _, oldest = min(dated, key=lambda each: each[:2])
            if at >= keep.since and total <= keep.most_bytes:
                return False
            total -= oldest.cut()
        return True

    async def _cut(self, head: _Head) -> None:
        lane = head.state.number
        if head.start > head.state.start:
            values = {START: {"N": str(head.start)}, CUT: {"N": str(head.state.cut + head.bytes)}}
            changed = await self._registry.change(
                self._epoch, lane, values, only_if=f"(attribute_not_exists(#{START}) OR #{START} < :{START})"
            )
            if changed is None:
                return
            self._tails.lanes[lane].cut_to(head.start)
        deletions = [{"DeleteRequest": {"Key": {PK: item[PK], SK: item[SK]}}} for item in head.gone]
        await self._fetcher.write_all(self._fetcher.tables.companion, deletions)
