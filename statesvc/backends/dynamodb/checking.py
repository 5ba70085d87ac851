"""Checking: whether every item says what its row says, leads where it should and can be read; and mending what can be.

Owns the walk over both tables for that. Must not know commits. Others go on writing meanwhile: what looks wrong is read
once more, and counts only if it is the same item that is still wrong.

What is made again: attributes that indexes are made of, and hints. What cannot be: a record, or a slot of the log.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from statesvc_client.errors import Internal
from statesvc_client.wire import printable

from ..port import Key
from .building import hint_item
from .calls import Failed
from .fetching import Fetcher, Found
from .following import Following
from .hints import read_hint
from .items import binary, index_attributes, is_expired, item_of, key_of, number, projections, text
from .known import Known
from .layout import (
    COMPLETED,
    CREATED,
    DUE_AT,
    DUE_OF,
    KEYS,
    NODE,
    PK,
    READY_AT,
    READY_OF,
    REVISION,
    SK,
    STATUS,
    TRAIL,
    UPDATED,
    WALK,
    WALK_AT,
    WID,
    Item,
    hint_key,
    hint_partition,
    moment_text,
    traits_of,
)  # fmt: skip
from .slots import OF, PARTS, Place, Slot, is_void, lane_of, number_of, pack_trail, read_slot
from .tails import Tails

SHOWN = (STATUS, NODE, CREATED, UPDATED, COMPLETED, WALK, WALK_AT, READY_OF, READY_AT, DUE_OF, DUE_AT)
"""Attributes that are made from the row."""

MOST_TOLD = 1000
"""Problems named by one check."""


class Fault(NamedTuple):
    """Something wrong with a record."""

    found: Found
    text: str


class Checking:
    """Looks at everything that is stored."""

    def __init__(self, fetcher: Fetcher, tails: Tails, following: Following, epoch: str) -> None:
        self._fetcher = fetcher
        self._tails = tails
        self._following = following
        self._epoch = epoch

    async def problems(self) -> list[str]:
        told: list[str] = []
        await self._tails.look()
        async for items in self._pages():
            told += self._unreadable(items)
            told += [fault.text for fault in await self._confirmed(self._readable(items))]
            told += await self._wrong_slots(items)
            if len(told) >= MOST_TOLD:
                return [*told[:MOST_TOLD], "there is more: mend this first"]
        return told

    async def repair(self) -> list[str]:
        done: list[str] = []
        await self._tails.look()
        async for items in self._pages():
            done += [
                f"{fault.text}: made again"
                for fault in await self._confirmed(self._readable(items))
                if await self._mend(fault.found)
            ]
            done += [
                f"took away a hint to {printable(read_hint(item).id)} that was not so"
                for item in items
                if text(item, PK).startswith("x#") and await self._is_left_over(item)
            ]
        return done

    async def _pages(self) -> AsyncIterator[list[Item]]:
        for table in (self._fetcher.tables.jobs, self._fetcher.tables.companion):
            async for items in self._fetcher.pages("Scan", {"TableName": table, "ConsistentRead": True}):
                yield items

    # --- records -----------------------------------------------------------------------------------------------------

    def _keyed(self, items: Sequence[Item]) -> list[tuple[Key, Item]]:
        tables, now = self._fetcher.tables, self._fetcher.now()
        found = [(key_of(item, tables), item) for item in items]
        return [(key, item) for key, item in found if key is not None and not is_expired(item, tables, now)]

    def _unreadable(self, items: Sequence[Item]) -> list[str]:
        told: list[str] = []
        for key, item in self._keyed(items):
            try:
                self._fetcher.row_of(item, key)
            except Internal:
                told.append(f"{_shown(key)}: its item cannot be read: delete it, or restore a snapshot")
        return told

    def _readable(self, items: Sequence[Item]) -> list[Found]:
        found: list[Found] = []
        for key, item in self._keyed(items):
            try:
                found.append(Found(self._fetcher.row_of(item, key), item))
            except Internal:
                continue
        return found

    async def _confirmed(self, found: Sequence[Found]) -> list[Fault]:
        """What is wrong, and still is when it is read once more."""
        suspects = [fault.found for fault in await self._faults(found)]
        again = await self._fetcher.records([each.row.key for each in suspects])
        same = [each for each in suspects if _is_same(each, again.get(each.row.key))]
        return await self._faults(same) if same else []

    async def _faults(self, found: Sequence[Found]) -> list[Fault]:
        return [
            *[fault for each in found if (fault := self._attributes(each)) is not None],
            *await self._missing_hints(found),
            *await self._lost_trails(found),
        ]

    def _attributes(self, found: Found) -> Fault | None:
        row, item = found
        tables = self._fetcher.tables
        if REVISION in item:
            right = projections(row)
            wrong = [name for name in SHOWN if item.get(name) != right.get(name)]
        else:
            wrong = [name for name, value in index_keys(found).items() if not _same(item.get(name), value)]
            wrong = wrong if tables.walked else []
        if not wrong:
            return None
        return Fault(found, f"{_shown(row.key)}: {', '.join(wrong)} differ from its record: indexes lead astray")

    async def _missing_hints(self, found: Sequence[Found]) -> list[Fault]:
        companion = self._fetcher.tables.companion
        wanted: dict[tuple[str, str], tuple[Found, str]] = {}
        for each in found:
            for trait in sorted(traits_of(each.row)) if REVISION in each.item else ():
                key = hint_key(each.row, trait)
                wanted[key[PK]["S"], key[SK]["S"]] = (each, "=".join(trait))
        asked = [(companion, {PK: {"S": pk}, SK: {"S": sk}}) for pk, sk in wanted]
        there = {(text(item, PK), text(item, SK)) for item in await self._fetcher.items(asked)} if asked else set()
        return [
            Fault(each, f"{_shown(each.row.key)}: nothing leads to it by {printable(trait)}")
            for place, (each, trait) in wanted.items()
            if place not in there
        ]

    async def _lost_trails(self, found: Sequence[Found]) -> list[Fault]:
        """The newest entry of a record tells of its present revision."""
        ends = {each.row.key: (each, Known.of(each).trail[-1]) for each in found if TRAIL in each.item}
        kept = {key: (each, place) for key, (each, place) in ends.items() if not self._tails.was_cut(place)}
        read = await self._following.slots([place for _, place in kept.values()], damaged=False)
        slots = {slot.place: slot for slot in read}
        return [
            Fault(each, f"{_shown(key)}: the log does not tell of revision {each.row.revision}")
            for key, (each, place) in kept.items()
            if not _tells(slots.get(place), key, each)
        ]

    # --- the log -----------------------------------------------------------------------------------------------------

    async def _wrong_slots(self, items: Sequence[Item]) -> list[str]:
        """Slots that are kept and cannot be read."""
        mine = [item for item in items if text(item, PK).startswith(f"l#{self._epoch}#") and not is_void(item)]
        first = [item for item in mine if number(item, PARTS, 1) == number(item, OF, 1)]
        return [
            f"slot {number_of(item)} of lane {lane_of(item)} of the log cannot be read"
            for item in first
            if not await self._is_readable(item)
        ]

    async def _is_readable(self, item: Item) -> bool:
        place = Place(lane_of(item), number_of(item))
        try:
            return bool([read_slot([item])] if OF not in item else await self._following.slots([place]))
        except Internal:
            return False

    # --- mending -----------------------------------------------------------------------------------------------------

    async def _mend(self, found: Found) -> bool:
        """Write the item and its hints again from its row, unless somebody writes it meanwhile."""
        row, item = found
        tables, wid = self._fetcher.tables, os.urandom(9).hex()
        hints = [hint_item(row, trait, wid) for trait in traits_of(row)]
        puts = [{"PutRequest": {"Item": hint}} for hint in hints]
        await self._fetcher.write_all(tables.companion, puts)
        if REVISION not in item:
            return await self._complete(found)
        fresh = item_of(row, tables, wid=wid, trail=pack_trail(Known.of(found).trail), now=int(self._fetcher.now()))
        request = {
            "TableName": tables.name_of(row.kind),
            "Item": fresh,
            "ConditionExpression": "#wid = :wid",
            "ExpressionAttributeNames": {"#wid": WID},
            "ExpressionAttributeValues": {":wid": item[WID]},
        }
        return await self._wrote("PutItem", request)

    async def _complete(self, found: Found) -> bool:
        """Put an item of Joblet's own into the indexes."""
        more = index_keys(found)
        request = {
            "TableName": self._fetcher.tables.jobs,
            "Key": self._fetcher.tables.key_of(found.row.key),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in more),
            "ConditionExpression": "attribute_not_exists(#revision)",
            "ExpressionAttributeNames": {"#revision": REVISION} | {f"#{name}": name for name in more},
            "ExpressionAttributeValues": {f":{name}": value for name, value in more.items()},
        }
        return await self._wrote("UpdateItem", request)

    async def _wrote(self, operation: str, request: dict[str, Any]) -> bool:
        try:
            await self._fetcher.call(operation, request)
        except Failed:
            return False  # written by somebody else, or met again by the next repair
        return True

    async def _is_left_over(self, item: Item) -> bool:
        """Take away a hint whose record does not have what it says."""
        hint, kind = read_hint(item), text(item, PK).split("#", 2)[1]
        stored = (await self._fetcher.records([(kind, hint.id)])).get((kind, hint.id))
        if stored is not None:
            partitions = {hint_partition(kind, trait) for trait in traits_of(stored.row)}
            if text(item, PK) in partitions:
                return False
        request = {
            "TableName": self._fetcher.tables.companion,
            "Key": {PK: item[PK], SK: item[SK]},
            "ConditionExpression": f"{WID} = :wid",
            "ExpressionAttributeValues": {":wid": item[WID]},
        }
        return await self._wrote("DeleteItem", request)


def index_keys(found: Found) -> Item:
    """What an item of Joblet's own is to be given, so that indexes show it where its row stands."""
    row = found.row
    given = index_attributes(row) | {CREATED: {"S": moment_text(row.keys.created)}}
    if row.keys.completed is not None:
        given[COMPLETED] = {"S": moment_text(row.keys.completed)}
    return given | {KEYS: {"B": msgspec.msgpack.encode(row.keys)}}


def _same(stored: Item | None, right: Item) -> bool:
    if stored is None or "B" not in right:
        return stored == right
    return "B" in stored and binary(stored) == binary(right)


def _is_same(before: Found, now: Found | None) -> bool:
    return now is not None and now.item.get(WID) == before.item.get(WID)


def _tells(slot: Slot | None, key: Key, found: Found) -> bool:
    entry = None if slot is None else slot.entry_of(key)
    return entry is not None and entry[1].row.stamp == found.row.stamp


def _shown(key: Key) -> str:
    return f"{key[0]} {printable(key[1], 256)}"
