"""Slots of the log: what was committed together, as one item, or several when it is large.

Owns the form of a slot and of a record's trail through the log. Must not know calls, lanes or who reads.

A slot says what happened and, for each record, where the log told of it before. So a reader can hold an entry back
until it has passed on the one it follows, whichever daemon wrote that. A slot without entries is void: its place can
never be taken by a write any more. A record's item keeps its trail: the places of its entries, newest last. When it
grows long it is put away into the entry being written, and begins anew with that entry's place.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from statesvc_client.errors import Internal

from ..port import Event, Key, Row
from .items import binary, number, text
from .layout import PK, SK, WID, Item, slot_key

ENTRIES, AT = "e", "at"
PARTS, OF = "parts", "of"
"""Items of a slot from this one on, and in all."""

PART_BYTES = 350 * 1024
"""Of one slot item; an item holds 400 KiB in all."""

MOST_PARTS = 12
"""Of one slot: a transaction holds 4 MB."""

PACKED_BYTES = 700
"""Smaller slots cost one unit of capacity as they are."""

TRAIL_PLACES = 32
"""Of a record's trail in its item. Each takes three to eight bytes."""


class Place(NamedTuple):
    """Where a slot is: its lane and its number there."""

    lane: int
    number: int


Trail = tuple[Place, ...]


class Entry(Struct, array_like=True, frozen=True):
    """A change, as the log keeps it."""

    event: Event
    row: Row
    before: Place | None = None
    """Where the log last told of the record."""
    earlier: Trail = ()
    """The part of the record's trail that was put away here."""


class Slot(NamedTuple):
    """A slot as it was read or written."""

    place: Place
    parts: int
    """Numbers it takes up."""
    at: int
    """When the newest of it happened, by the clock of the writer: different lanes are told roughly in that order."""
    wid: str
    entries: tuple[Entry, ...]
    bytes: int

    @property
    def last(self) -> int:
        """The highest number it takes up."""
        return self.place.number + self.parts - 1

    def entry_of(self, key: Key) -> tuple[int, Entry] | None:
        for index, entry in enumerate(self.entries):
            if entry.row.key == key:
                return index, entry
        return None


_entries = msgspec.msgpack.Decoder(tuple[Entry, ...])
_trail = msgspec.msgpack.Decoder(tuple[Place, ...])


def pack(entries: tuple[Entry, ...]) -> list[bytes]:
    """What goes into the items of a slot: one, or more when it is large."""
    raw = msgspec.msgpack.encode(entries)
    packed = b"z" + zlib.compress(raw, 1) if len(raw) > PACKED_BYTES else b"-" + raw
    return [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]


def slot_items(epoch: str, place: Place, parts: list[bytes], wid: str, at: int) -> list[Item]:
    return [
        {
            **slot_key(epoch, place.lane, place.number + index),
            ENTRIES: {"B": part},
            WID: {"S": wid},
            AT: {"N": str(at)},
            PARTS: {"N": str(len(parts) - index)},
            **({OF: {"N": str(len(parts))}} if len(parts) > 1 else {}),
        }
        for index, part in enumerate(parts)
    ]


def void_item(epoch: str, place: Place, wid: str) -> Item:
    return {**slot_key(epoch, *place), WID: {"S": wid}}


def number_of(item: Item) -> int:
    return int(text(item, SK))


def lane_of(item: Item) -> int:
    return int(text(item, PK).rpartition("#")[2])


def is_void(item: Item) -> bool:
    return ENTRIES not in item


def read_slot(items: Sequence[Item]) -> Slot:
    """The slot whose items these are, in order."""
    first = items[0]
    place = Place(lane_of(first), number_of(first))
    packed = b"".join(binary(item[ENTRIES]) for item in items)
    try:
        raw = zlib.decompress(packed[1:]) if packed[:1] == b"z" else packed[1:]
        entries = _entries.decode(raw)
    except (zlib.error, msgspec.MsgspecError) as problem:
        why = f"slot {place.number} of lane {place.lane} of the log cannot be read ({type(problem).__name__})"
        raise Internal(f"{why}: run a check") from None
    return Slot(place, len(items), number(first, AT), text(first, WID), entries, len(packed))


def pack_trail(trail: Trail) -> bytes:
    return msgspec.msgpack.encode(trail) if trail else b""


def read_trail(packed: bytes) -> Trail:
    return _trail.decode(packed) if packed else ()
