"""Items of one table, sorted by their keys, with global indexes that may lag.

Owns how items are kept and found inside the test server, and how their size is counted. Must not know requests.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from moto.dynamodb.models.dynamo_type import DynamoType, Item, LimitedSizeDict
from moto.dynamodb.models.table import Table
from sortedcontainers import SortedDict

Place = tuple[Any, ...]


class Settings:
    """What a test may change while the server runs."""

    index_lag = 0.0
    """Seconds a global index is behind its table."""
    settling = 0
    """How many times DescribeTable says that a new table or index is being made before it is there."""
    policy: dict[str, Any] | None = None
    """What callers are allowed; None: everything."""


class _Top:
    """Sorts behind everything."""

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __lt__

    def __gt__(self, other: object) -> bool:
        return True

    __ge__ = __gt__


TOP = _Top()


def value_size(type_: str, value: Any) -> int:
    """As the developer guide counts."""
    if type_ == "S":
        return len(value.encode())
    if type_ == "B":
        return len(value)
    if type_ == "N":
        digits = value.lstrip("-").replace(".", "").partition("E")[0].strip("0") or "0"
        return (len(digits) + 1) // 2 + 1 + value.startswith("-")
    if type_ in {"BOOL", "NULL"}:
        return 1
    if type_ == "L":
        return 3 + sum(1 + value_size(each.type, each.value) for each in value)
    if type_ == "M":
        return 3 + sum(1 + len(name.encode()) + value_size(each.type, each.value) for name, each in value.items())
    return sum(value_size(type_[0], each) for each in value)


def item_size(attributes: dict[str, DynamoType]) -> int:
    return sum(len(name.encode()) + value_size(each.type, each.value) for name, each in attributes.items())


def bare(hash_key: DynamoType, range_key: DynamoType | None, attributes: dict[str, DynamoType]) -> Item:
    item: Any = Item.__new__(Item)
    item.hash_key, item.range_key = hash_key, range_key
    item.attrs = LimitedSizeDict.__new__(LimitedSizeDict)
    dict.update(item.attrs, attributes)
    made: Item = item
    return made


class Index:
    """One global index: for each value of its hash key the items, sorted, as they were when they were indexed."""

    def __init__(self, definition: Any, table: Table) -> None:
        self.definition = definition
        self._table = table
        self.hash_name = next(key["AttributeName"] for key in definition.schema if key["KeyType"] == "HASH")
        ranges = [key["AttributeName"] for key in definition.schema if key["KeyType"] == "RANGE"]
        self.range_name = ranges[0] if ranges else None
        self.shelves: dict[Any, SortedDict] = {}
        self._where: dict[Place, tuple[Any, Place]] = {}
        kept = definition.projection.get("ProjectionType", "ALL")
        self._names = None if kept == "ALL" else {*table.table_key_attrs, *definition.schema_key_attrs}
        if self._names is not None and kept == "INCLUDE":
            self._names |= set(definition.projection.get("NonKeyAttributes", ()))

    def put(self, place: Place, item: Item | None) -> None:
        if (old := self._where.pop(place, None)) is not None:
            shelf = self.shelves[old[0]]
            del shelf[old[1]]
            if not shelf:
                del self.shelves[old[0]]
        if item is None or self.hash_name not in item.attrs:
            return
        if self.range_name is not None and self.range_name not in item.attrs:
            return
        sorted_by = self.place_of(item.attrs, place)
        hash_value = item.attrs[self.hash_name].cast_value
        kept = {name: each for name, each in item.attrs.items() if self._names is None or name in self._names}
        self.shelves.setdefault(hash_value, SortedDict())[sorted_by] = bare(item.hash_key, item.range_key, kept)
        self._where[place] = (hash_value, sorted_by)

    def place_of(self, attributes: dict[str, DynamoType], place: Place) -> Place:
        return place if self.range_name is None else (attributes[self.range_name].cast_value, *place)


class Shelf:
    """The items of one table, sorted by their keys, and its indexes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.items: SortedDict = SortedDict()
        self.indexes: dict[str, Index] = {}
        self._late: deque[tuple[float, Place, Item | None]] = deque()
        self.settling: dict[str, int] = {"": Settings.settling} if Settings.settling else {}
        self.look_at_indexes()

    def look_at_indexes(self, *, added: bool = False) -> None:
        known = self.indexes
        self.indexes = {}
        for each in self._table.global_indexes:
            index = known.get(each.name)
            if index is None:
                index = Index(each, self._table)
                for place, item in self.items.items():
                    index.put(place, item)
                if added and Settings.settling:
                    self.settling[each.name] = Settings.settling
            self.indexes[each.name] = index

    def place_of(self, item: Item) -> Place:
        if self._table.range_key_attr is None or item.range_key is None:
            return (item.hash_key.cast_value,)
        return (item.hash_key.cast_value, item.range_key.cast_value)

    def store(self, place: Place, item: Item | None) -> None:
        if item is None:
            self.items.pop(place, None)
        else:
            self.items[place] = item

    def index(self, place: Place) -> None:
        item = self.items.get(place)
        if Settings.index_lag or self._late:
            kept = None if item is None else bare(item.hash_key, item.range_key, item.attrs)
            self._late.append((time.monotonic() + Settings.index_lag, place, kept))
        else:
            self._index_now(place, item)

    def _index_now(self, place: Place, item: Item | None) -> None:
        for each in self.indexes.values():
            each.put(place, item)

    def catch_up(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, place, item = self._late.popleft()
            self._index_now(place, item)
