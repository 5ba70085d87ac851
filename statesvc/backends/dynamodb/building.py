"""Transactions: what is sent to DynamoDB so that some units happen, all of them or none.

Owns actions and their conditions. Must not know calls, nor what became of a transaction.

Each record is written on the very state it was last seen in, named by its `wid`. So the hints that come and go with
its labels and the trail it carries fit exactly, although other writes, hidden from its stamp, may have come in
between: then the condition fails, and the transaction is built again on the newer state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from statesvc_client.errors import TooLarge

from ..port import REMOVED, Row, Unit, Write
from .items import item_of, size_of
from .known import Known, Memory
from .layout import JOB, PK, REVISION, SK, WID, Item, Tables, Trait, hint_key, traits_of
from .slots import MOST_PARTS, TRAIL_PLACES, Entry, Place, Slot, Trail, pack, pack_trail, slot_items

TRANSACTION_ACTIONS = 100
TRANSACTION_BYTES = 4_000_000
"""DynamoDB's limits."""

SURE_BYTES = 500_000
"""Records of less than this, all in all, fit a transaction with what belongs to them."""

Action = dict[str, Any]

ID = "id"
"""In a hint whose sort key has no room for the whole id."""


class Plan(NamedTuple):
    """A write, and what follows from the state it is made on."""

    write: Write
    known: Known | None
    trail: Trail
    """Where the log told of the record before, as far as that is kept."""
    come: frozenset[Trait]
    go: frozenset[Trait]

    @property
    def is_long(self) -> bool:
        """Whether its trail is put away into the entry being written."""
        return self.write.event is not None and len(self.trail) >= TRAIL_PLACES

    def trail_with(self, place: Place | None) -> Trail:
        if self.write.event is None or place is None:
            return self.trail
        return (place,) if self.is_long else (*self.trail, place)

    def entry(self) -> Entry | None:
        event, trail = self.write.event, self.trail
        if event is None:
            return None
        return Entry(event, self.write.row, trail[-1] if trail else None, trail if self.is_long else ())


class Draft(NamedTuple):
    """Units that are to go together: planned, and without a place in the log yet."""

    plans: list[list[Plan]]
    """By unit."""
    entries: tuple[Entry, ...]
    parts: list[bytes]
    """What goes into the slot, in so many items."""


class Transaction(NamedTuple):
    """What is sent, and whose each action is."""

    wid: str
    actions: list[Action]
    owners: list[int]
    """For each action: the unit whose record it writes; -1 for a slot, -2 for a hint."""
    hints_before: list[Item]
    """Hints for which the transaction has no room, to be put before it. Nobody is led astray by them."""
    rows: list[tuple[Row, Trail]]
    slot: Slot | None

    @property
    def is_single(self) -> bool:
        return len(self.actions) == 1


class Builder:
    """Makes transactions from units and what is known of their records."""

    def __init__(
        self, tables: Tables, memory: Memory, epoch: str, was_cut: Callable[[Place], bool], now: Callable[[], float]
    ) -> None:
        self._tables = tables
        self._memory = memory
        self._epoch = epoch
        self._was_cut = was_cut
        self._now = now

    def draft(self, units: Sequence[Unit]) -> Draft:
        plans = [[self._plan(write) for write in unit] for unit in units]
        found = (plan.entry() for unit in plans for plan in unit)
        entries = tuple(entry for entry in found if entry is not None)
        parts = pack(entries) if entries else []
        if len(parts) > MOST_PARTS:
            raise _too_large(sum(map(len, parts)))
        return Draft(plans, entries, parts)

    def _plan(self, write: Write) -> Plan:
        known = None if write.expects is None else self._memory.get(write.row.key)
        if known is None:
            return Plan(write, None, (), traits_of(write.row), frozenset())
        trail = tuple(place for place in known.trail if not self._was_cut(place))
        has = traits_of(write.row)
        if known.created != write.row.keys.created:
            return Plan(write, known, trail, has, known.traits)
        return Plan(write, known, trail, has - known.traits, known.traits - has)

    def transaction(self, draft: Draft, place: Place | None) -> Transaction:
        """`place` is that of the slot; None when there is nothing to tell."""
        wid, now = os.urandom(9).hex(), int(self._now())
        actions: list[Action] = []
        owners: list[int] = []
        for index, unit in enumerate(draft.plans):
            actions += [self._record(plan, place, wid, now) for plan in unit]
            owners += [index] * len(unit)
        slot: Slot | None = None
        if place is not None:
            at = max(entry.event.at for entry in draft.entries)
            slot = Slot(place, len(draft.parts), at, wid, draft.entries, sum(map(len, draft.parts)))
            items = slot_items(self._epoch, place, draft.parts, wid, at)
            actions += [self._put_if_absent(item) for item in items]
            owners += [-1] * len(items)
        hints, before = self._hints(draft, wid, TRANSACTION_ACTIONS - len(actions))
        actions += hints
        owners += [-2] * len(hints)
        rows = [(plan.write.row, plan.trail_with(place)) for unit in draft.plans for plan in unit]
        if sum(len(row.body) + len(row.marks) for row, _ in rows) > SURE_BYTES:
            _check_size(actions)
        return Transaction(wid, actions, owners, before, rows, slot)

    # --- records -----------------------------------------------------------------------------------------------------

    def _record(self, plan: Plan, place: Place | None, wid: str, now: int) -> Action:
        row = plan.write.row
        request = self._condition(plan, now)
        request["TableName"] = self._tables.name_of(row.kind)
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if row.deleted == REMOVED:
            request["Key"] = self._tables.key_of(row.key)
            return {"Delete": request}
        trail = pack_trail(plan.trail_with(place))
        request["Item"] = item_of(row, self._tables, wid=wid, trail=trail, now=now)
        return {"Put": request}

    def _condition(self, plan: Plan, now: int) -> dict[str, Any]:
        kind = plan.write.row.kind
        names, values = {}, {}
        expires = kind == JOB and bool(self._tables.ttl)
        if expires:
            names["#ttl"] = self._tables.ttl
            values[":now"] = {"N": str(now)}
        if plan.write.expects is None:
            names["#key"] = self._tables.key_name(kind)
            condition = "attribute_not_exists(#key)" + (" OR #ttl <= :now" if expires else "")
        else:
            condition = self._on_known(plan, names, values)
            condition += " AND (attribute_not_exists(#ttl) OR #ttl > :now)" if expires else ""
        found = {"ConditionExpression": condition, "ExpressionAttributeNames": names}
        return found | ({"ExpressionAttributeValues": values} if values else {})

    def _on_known(self, plan: Plan, names: dict[str, str], values: Item) -> str:
        if plan.known is not None and plan.known.wid:
            names["#wid"] = WID
            values[":wid"] = {"S": plan.known.wid}
            return "#wid = :wid"
        # An item of Joblet's own, which nobody has written here yet.
        names |= {"#key": self._tables.key_name(plan.write.row.kind), "#revision": REVISION}
        return "attribute_exists(#key) AND attribute_not_exists(#revision)"

    # --- slots and hints ---------------------------------------------------------------------------------------------

    def _put_if_absent(self, item: Item) -> Action:
        return {
            "Put": {
                "TableName": self._tables.companion,
                "Item": item,
                "ConditionExpression": f"attribute_not_exists({PK})",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _hints(self, draft: Draft, wid: str, room: int) -> tuple[list[Action], list[Item]]:
        """Hints that go with the transaction, and those there is no room for. Old ones it cannot take away stay: a
        reader sees that they are not so."""
        plans = [plan for unit in draft.plans for plan in unit if plan.come or plan.go]
        if not plans:
            return [], []
        come = [hint_item(plan.write.row, trait, wid) for plan in plans for trait in sorted(plan.come)]
        go = [key for plan in plans for key in _gone_hints(plan)]
        table = self._tables.companion
        inside = min(len(come), room)
        actions: list[Action] = [{"Put": {"TableName": table, "Item": item}} for item in come[:inside]]
        actions += [{"Delete": {"TableName": table, "Key": key}} for key in go[: room - inside]]
        return actions, come[inside:]


def hint_item(row: Row, trait: Trait, wid: str) -> Item:
    key = hint_key(row, trait)
    item = {**key, WID: {"S": wid}}
    return item if key[SK]["S"].endswith(f"#{row.id}") else item | {ID: {"S": row.id}}


def _gone_hints(plan: Plan) -> list[Item]:
    if plan.known is None:
        return []
    row, created = plan.write.row, plan.known.created
    keys = [hint_key(row, trait, created) for trait in sorted(plan.go)]
    # Nothing is put and deleted in one transaction: what comes back at once stays.
    coming = [hint_key(row, trait) for trait in plan.come]
    return [key for key in keys if key not in coming]


def _check_size(actions: list[Action]) -> None:
    size = sum(size_of(each["Put"]["Item"]) for each in actions if "Put" in each)
    if size > TRANSACTION_BYTES:
        raise _too_large(size)


def _too_large(size: int) -> TooLarge:
    why = f"what is to be committed together takes {size} bytes; DynamoDB takes {TRANSACTION_BYTES} in one transaction"
    return TooLarge(f"{why}: make the records smaller, or send fewer together")
