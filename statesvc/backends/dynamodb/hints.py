"""Hints: which records have a label, or an owner.

Owns reading them, and taking away those that are not so. Must not know walks. They are put with the commit that makes
them true, and taken away with the one that makes them untrue; one that is left over, because a transaction had no room
or a record went by DynamoDB's own hand, does no harm: readers look at the record.

A hint that is not so is taken away by whoever meets it, when it stood so for over a minute by that daemon's own clock,
and only if nobody wrote it anew: a commit that is about to make it true cannot take that long.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from ..port import Row
from .building import ID
from .calls import Failed
from .fetching import Fetcher
from .items import text
from .layout import PK, SK, WID, Item, Trait, hint_key, hint_partition, traits_of

STALE_SECONDS = 60.0
MOST_STALE = 1000
"""Hints that are remembered as not so; those met first are forgotten first."""

_CREATED_CHARS = len("2025-10-26T00:00:00.000000000Z")


class Hint(NamedTuple):
    created: str
    id: str
    item: Item


class Hints:
    """Items of the companion table that lead to records."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._stale: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    async def walk(
        self, kind: str, trait: Trait, between: tuple[str, str], page: int, *, descending: bool
    ) -> AsyncIterator[tuple[list[Hint], bool]]:
        """Hints in order, and whether these are the last. Read consistently: what was committed is there."""
        request: dict[str, Any] = {
            "TableName": self._fetcher.tables.companion,
            "KeyConditionExpression": f"{PK} = :trait AND {SK} BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":trait": {"S": hint_partition(kind, trait)},
                ":low": {"S": between[0]},
                ":high": {"S": between[1] + "\U0010ffff"},
            },
            "ScanIndexForward": not descending,
            "ConsistentRead": True,
            "Limit": page,
        }
        start: Item | None = None
        while True:
            items, start = await self._fetcher.page("Query", request, start)
            yield [read_hint(item) for item in items], start is None

    async def did_not_help(self, hint: Hint, row: Row | None) -> None:
        """The record it led to did not stand there. If it is not so, it goes when it is met again, long after."""
        pk, sk = text(hint.item, PK), text(hint.item, SK)
        if row is not None and any(_is_at(hint_key(row, trait), pk, sk) for trait in traits_of(row)):
            return
        place, wid = (text(hint.item, PK), text(hint.item, SK)), text(hint.item, WID)
        seen = self._stale.get(place)
        now = time.monotonic()
        if seen is None or seen[0] != wid:
            self._stale[place] = (wid, now)
            if len(self._stale) > MOST_STALE:
                self._stale.popitem(last=False)
        elif now - seen[1] >= STALE_SECONDS:
            del self._stale[place]
            await self._take_away(hint.item, wid)

    async def _take_away(self, item: Item, wid: str) -> None:
        request = {
            "TableName": self._fetcher.tables.companion,
            "Key": {PK: item[PK], SK: item[SK]},
            "ConditionExpression": f"{WID} = :wid",
            "ExpressionAttributeValues": {":wid": {"S": wid}},
        }
        try:
            await self._fetcher.call("DeleteItem", request)
        except Failed:
            return  # written anew, or gone, or met again later


def _is_at(key: Item, pk: str, sk: str) -> bool:
    return bool(key[PK]["S"] == pk and key[SK]["S"] == sk)


def read_hint(item: Item) -> Hint:
    sort = text(item, SK)
    return Hint(sort[:_CREATED_CHARS], text(item, ID) or sort[_CREATED_CHARS + 1 :], item)
