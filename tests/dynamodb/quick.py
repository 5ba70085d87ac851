"""moto's DynamoDB with its storage replaced.

Owns what is put into moto's place. What is moto's stays moto's: expressions, conditions, validation, the shapes of
replies and errors. Must not know HTTP.

moto sorts a whole table for every query and copies it once for every action of a transaction; with a few hundred items
a call takes a tenth of a second.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
from moto.core.responses import ActionResult
from moto.dynamodb import comparisons, models, responses
from moto.dynamodb.comparisons import ConditionExpressionParser
from moto.dynamodb.exceptions import ItemSizeTooLarge, MockValidationException, ResourceInUseException
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType, Item, LimitedSizeDict
from moto.dynamodb.models.table import Table
from sortedcontainers import SortedDict

from tests.dynamodb.shelves import TOP, Index, Place, Shelf, bare, item_size
from tests.dynamodb.strict import refusal

ITEM_BYTES = 400 * 1024
PAGE_BYTES = 1024 * 1024
TRANSACTION_BYTES = 4 * 1024 * 1024
PARSERS_KEPT = 1_000


def _init_item(self: Item, hash_key: DynamoType, range_key: DynamoType | None, attrs: dict[str, Any]) -> None:
    self.hash_key, self.range_key = hash_key, range_key
    self.attrs = LimitedSizeDict.__new__(LimitedSizeDict)
    dict.update(self.attrs, {name: DynamoType(value) for name, value in attrs.items()})
    if item_size(self.attrs) > ITEM_BYTES:
        raise ItemSizeTooLarge


def _set_attribute(self: LimitedSizeDict, name: str, value: Any) -> None:
    before = {key: each for key, each in self.items() if key != name and isinstance(each, DynamoType)}
    if isinstance(value, DynamoType) and item_size(before | {name: value}) > ITEM_BYTES:
        raise ItemSizeTooLarge
    dict.__setitem__(self, name, value)


def _projected(item: Item, paths: list[list[str]]) -> Item:
    if any(len(path) != 1 or "[" in path[0] for path in paths):
        return item.project(paths)
    names = {path[0] for path in paths}
    return bare(item.hash_key, item.range_key, {name: each for name, each in item.attrs.items() if name in names})


_held: list[tuple[Shelf, Place]] | None = None
"""While a transaction runs: what is to be indexed once it is through."""


def _shelf(table: Table) -> Shelf:
    shelf: Shelf | None = table.__dict__.get("shelf")
    if shelf is None:
        shelf = table.__dict__["shelf"] = Shelf(table)
    return shelf


def _touched(shelf: Shelf, place: Place) -> None:
    if _held is None:
        shelf.index(place)
    else:
        _held.append((shelf, place))


_moto_put = Table.put_item
_moto_delete = Table.delete_item
_moto_update = DynamoDBBackend.update_item
_moto_transact = DynamoDBBackend.transact_write_items
_moto_update_indexes = DynamoDBBackend.update_table_global_indexes
_moto_describe = Table.describe


def _put(self: Table, item_attrs: dict[str, Any], *rest: Any, **named: Any) -> Item:
    _check_index_keys(self, item_attrs)
    item = _moto_put(self, item_attrs, *rest, **named)
    shelf = _shelf(self)
    place = shelf.place_of(item)
    shelf.store(place, item)
    _touched(shelf, place)
    return item


def _check_index_keys(table: Table, attributes: dict[str, Any]) -> None:
    types = {each["AttributeName"]: each["AttributeType"] for each in table.attr}
    for index in table.global_indexes:
        for name in index.schema_key_attrs:
            given = attributes.get(name)
            if given is not None and next(iter(given)) != types[name]:
                text = f"Type mismatch for Index Key {name} Expected: {types[name]} Actual: {next(iter(given))}"
                raise MockValidationException(
                    f"One or more parameter values were invalid: {text} IndexName: {index.name}"
                )


def _delete(self: Table, hash_key: DynamoType, range_key: DynamoType | None) -> Item | None:
    item = _moto_delete(self, hash_key, range_key)
    if item is not None:
        shelf = _shelf(self)
        place = shelf.place_of(item)
        shelf.store(place, None)
        _touched(shelf, place)
    return item


def _update(self: DynamoDBBackend, table_name: str, key: dict[str, Any], *rest: Any, **named: Any) -> Item:
    item = _moto_update(self, table_name, key, *rest, **named)
    shelf = _shelf(self.get_table(table_name))
    _touched(shelf, shelf.place_of(item))
    return item


def _key_of(table: Table, action: dict[str, Any]) -> tuple[DynamoType, DynamoType | None] | None:
    given = action.get("Key") or action.get("Item") or {}
    if any(name not in given for name in table.table_key_attrs):
        return None
    last = table.range_key_attr
    return DynamoType(given[table.hash_key_attr]), None if last is None else DynamoType(given[last])


def _transact(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
    """moto's own, which copies no table (`_no_copy`) and so restores none: what was touched is put back here."""
    global _held  # noqa: PLW0603 - one transaction at a time is the point
    before: list[tuple[Table, tuple[DynamoType, DynamoType | None], Item | None]] = []
    size = 0
    for each in transact_items:
        action = next(iter(each.values()))
        size += sum(len(name) + item_size({name: DynamoType(value)}) for name, value in action.get("Item", {}).items())
        table = self.tables.get(action.get("TableName"))
        if table is not None and (key := _key_of(table, action)) is not None:
            before.append((table, key, copy.deepcopy(table.get_item(*key))))
    if size > TRANSACTION_BYTES:
        raise MockValidationException("Collection size for the transaction has exceeded the maximum of 4 MB")
    _held = []
    try:
        _moto_transact(self, transact_items)
        held, _held = _held, None
        for shelf, place in held:
            shelf.index(place)
    except BaseException:
        for table, (hash_key, range_key), item in reversed(before):
            _restore(table, hash_key, range_key, item)
        raise
    finally:
        _held = None


def _restore(table: Table, hash_key: DynamoType, range_key: DynamoType | None, item: Item | None) -> None:
    shelf = _shelf(table)
    if item is None:
        _moto_delete(table, hash_key, range_key)
        shelf.store((hash_key.cast_value,) if range_key is None else (hash_key.cast_value, range_key.cast_value), None)
        return
    if range_key is None:
        table.items[hash_key] = item  # type: ignore[assignment]
    else:
        table.items[hash_key][range_key] = item
    shelf.store(shelf.place_of(item), item)


def _no_copy(self: Table, memo: dict[int, Any]) -> Table:
    return self


def _bounds(front: Place, comparison: str | None, values: list[Any]) -> tuple[Place, Place]:
    match comparison:
        case None:
            return front, (*front, TOP)
        case "=" | "EQ":
            return (*front, values[0]), (*front, values[0], TOP)
        case "<" | "LT":
            # Longer places begin with the value; the one that is the value itself is left out by the caller.
            return front, (*front, values[0])
        case "<=" | "LE":
            return front, (*front, values[0], TOP)
        case ">" | "GT":
            return (*front, values[0], TOP), (*front, TOP)
        case ">=" | "GE":
            return (*front, values[0]), (*front, TOP)
        case "BETWEEN":
            return (*front, values[0]), (*front, values[1], TOP)
        case "BEGINS_WITH":
            return (*front, values[0]), (*front, values[0] + "\U0010ffff", TOP)
    raise MockValidationException(f"Invalid KeyConditionExpression: {comparison}")


def _query(
    self: Table,
    hash_key: DynamoType | None,
    range_comparison: str | None,
    range_objs: list[DynamoType],
    limit: int | None,
    exclusive_start_key: dict[str, Any] | None,
    scan_index_forward: bool,
    projection_expressions: list[list[str]] | None,
    index_name: str | None = None,
    consistent_read: bool = False,
    filter_expression: Any = None,
    **_: Any,
) -> tuple[list[Item], int, dict[str, Any] | None]:
    assert hash_key is not None
    shelf = _shelf(self)
    values = [each.cast_value for each in range_objs]
    if index_name is None:
        found = shelf.items
        low, high = _bounds((hash_key.cast_value,), range_comparison, values)
        start = None if exclusive_start_key is None else _start_of(self, exclusive_start_key)
    else:
        index = _readable(shelf, index_name, consistent_read)
        found = index.shelves.get(hash_key.cast_value, SortedDict())
        low, high = _bounds((), range_comparison, values)
        start = None
        if exclusive_start_key is not None:
            attributes = {name: DynamoType(value) for name, value in exclusive_start_key.items()}
            start = index.place_of(attributes, _start_of(self, exclusive_start_key))
    inclusive = [True, range_comparison not in {"<", "LT"}]
    if start is not None and scan_index_forward and start >= low:
        low, inclusive[0] = start, False
    elif start is not None and not scan_index_forward and start <= high:
        high, inclusive[1] = start, False
    if low > high:
        return [], 0, None
    places = found.irange(low, high, tuple(inclusive), reverse=not scan_index_forward)
    return _page(self, (found[each] for each in places), limit, index_name, filter_expression, projection_expressions)


def _readable(shelf: Shelf, index_name: str, consistent_read: bool) -> Index:
    shelf.catch_up()
    index = shelf.indexes.get(index_name)
    if index is None:
        raise MockValidationException(f"The table does not have the specified index: {index_name}")
    if consistent_read:
        raise MockValidationException("Consistent reads are not supported on global secondary indexes")
    if index_name in shelf.settling:
        raise MockValidationException(f"Cannot read from backfilling global secondary index: {index_name}")
    return index


def _start_of(table: Table, start: dict[str, Any]) -> Place:
    if any(name not in start for name in table.table_key_attrs):
        raise MockValidationException("The provided starting key is invalid")
    return tuple(DynamoType(start[name]).cast_value for name in table.table_key_attrs)


def _page(
    table: Table,
    found: Iterator[Item],
    limit: int | None,
    index_name: str | None,
    filter_expression: Any,
    projection: list[list[str]] | None,
) -> tuple[list[Item], int, dict[str, Any] | None]:
    """As the real one: a page that is full tells where it ended, also when nothing is behind it."""
    items: list[Item] = []
    size, last = 0, None
    for item in found:
        items.append(item)
        size += item_size(item.attrs)
        if len(items) == limit or size > PAGE_BYTES:
            last = table._get_last_evaluated_key(item, index_name)
            break
    seen = len(items)
    if filter_expression is not None:
        items = [item for item in items if filter_expression.expr(item)]
    if projection:
        items = [_projected(item, projection) for item in items]
    return items, seen, last


def _scan(
    self: Table,
    filters: dict[str, Any],
    limit: int | None,
    exclusive_start_key: dict[str, Any] | None,
    filter_expression: Any = None,
    index_name: str | None = None,
    consistent_read: bool = False,
    projection_expression: list[list[str]] | None = None,
    segments: tuple[Any, Any] = (None, None),
) -> tuple[list[Item], int, dict[str, Any] | None]:
    if filters:
        raise MockValidationException("ScanFilter is not played here: use FilterExpression")
    shelf = _shelf(self)
    start = None if exclusive_start_key is None else _start_of(self, exclusive_start_key)
    if index_name is None:
        found = shelf.items
    else:
        index = _readable(shelf, index_name, consistent_read)
        found = SortedDict({(key, *place): item for key, kept in index.shelves.items() for place, item in kept.items()})
        if start is not None and exclusive_start_key is not None:
            attributes = {name: DynamoType(value) for name, value in exclusive_start_key.items()}
            start = (attributes[index.hash_name].cast_value, *index.place_of(attributes, start))
    places = found.irange(start, None, (False, True))
    items = (found[each] for each in places)
    within = (item for item in items if item.is_within_segment(segments))
    return _page(self, within, limit, index_name, filter_expression, projection_expression)


def _update_indexes(self: DynamoDBBackend, table: Table, updates: list[dict[str, Any]]) -> None:
    shelf = _shelf(table)
    if shelf.settling:
        raise ResourceInUseException(
            f"Attempt to change a resource which is still in use: Table is being updated: {table.name}"
        )
    if sum("Create" in each or "Delete" in each for each in updates) > 1:
        raise refusal(
            "LimitExceededException", "Only 1 online index can be created or deleted simultaneously per table"
        )
    for each in updates:
        if each.get("Create", {}).get("IndexName") in shelf.indexes:
            raise MockValidationException("Attempting to create an index which already exists")
        names = {item["AttributeName"] for item in table.attr}
        for key in each.get("Create", {}).get("KeySchema", ()):
            if key["AttributeName"] not in names:
                raise MockValidationException(
                    "One or more parameter values were invalid: Some index key attributes are not defined in "
                    f"AttributeDefinitions. Keys: [{key['AttributeName']}]"
                )
    _moto_update_indexes(self, table, updates)
    shelf.look_at_indexes(added=True)


def _describe(self: Table, base_key: str = "TableDescription") -> dict[str, Any]:
    told = _moto_describe(self, base_key)
    shelf = _shelf(self)
    for name in list(shelf.settling):
        told[base_key]["TableStatus"] = "UPDATING" if name else "CREATING"
        for index in told[base_key]["GlobalSecondaryIndexes"]:
            if index["IndexName"] == name:
                index.update(IndexStatus="CREATING", Backfilling=True)
        shelf.settling[name] -= 1
        if shelf.settling[name] < 0:
            del shelf.settling[name]
    return told


_parsers: OrderedDict[bytes, Any] = OrderedDict()


def _parser(expr: str | None, names: dict[str, str] | None, values: dict[str, Any] | None) -> Any:
    """moto reads each condition three times; a condition that was read is kept, with what came of it."""
    key = msgspec.json.encode((expr, names, values))
    parser = _parsers.get(key)
    if parser is None:
        parser = _parsers[key] = ConditionExpressionParser(expr, names, values)
        if len(_parsers) > PARSERS_KEPT:
            _parsers.popitem(last=False)
    return _Read(parser)


class _Read:
    """What callers of moto's parser use of it. They add to the list of names, so each gets its own."""

    def __init__(self, parser: ConditionExpressionParser) -> None:
        self._parser = parser
        self.expr_attr_names_found: list[str] = []
        self.expr_attr_values_found: list[str] = []

    def parse(self) -> Any:
        parser: Any = self._parser
        if "read" not in parser.__dict__:
            parser.read = parser.parse()
        self.expr_attr_names_found += parser.expr_attr_names_found
        self.expr_attr_values_found += parser.expr_attr_values_found
        return parser.read


def _contains_duplicates(_: Any, keys: list[Any]) -> bool:
    return len({msgspec.json.encode(key, order="sorted") for key in keys}) < len(keys)


def _size(self: Item) -> int:
    return item_size(self.attrs)


REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (Item, "__init__", _init_item),
    (Item, "size", _size),
    (LimitedSizeDict, "__setitem__", _set_attribute),
    (Table, "put_item", _put),
    (Table, "delete_item", _delete),
    (Table, "query", _query),
    (Table, "scan", _scan),
    (Table, "describe", _describe),
    (Table, "__deepcopy__", _no_copy),
    (DynamoDBBackend, "update_item", _update),
    (DynamoDBBackend, "transact_write_items", _transact),
    (DynamoDBBackend, "update_table_global_indexes", _update_indexes),
    (responses.DynamoHandler, "_contains_duplicates", _contains_duplicates),
    (responses, "DynamoResult", ActionResult),  # the server writes moto's values as they are
    (responses, "create_condition_expression_parser", _parser),
    (models, "create_condition_expression_parser", _parser),
    (comparisons, "create_condition_expression_parser", _parser),
)


def install() -> None:
    """Put all of this into moto, in this process."""
    for owner, name, replacement in REPLACED:
        setattr(owner, name, replacement)
