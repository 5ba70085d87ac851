"""Cursors of a log that lies in lanes: how far each lane was read.

Owns their text. Must not know lanes or calls. `1-50_2-7.3` says: lane 1 up to slot 50, lane 2 up to slot 7 without it,
but with three of its entries.
"""

from __future__ import annotations

import re

from statesvc_client.errors import BadRequest

from ..port import Cursor

Vector = dict[int, tuple[int, int]]
"""By lane: the last slot that was read, and how many entries of it; 0 for all of them."""

_CURSOR = re.compile(r"\d{1,6}-\d{1,14}(\.\d{1,6})?(_\d{1,6}-\d{1,14}(\.\d{1,6})?)*", re.ASCII)


def write_cursor(vector: Vector) -> Cursor:
    return "_".join(
        f"{lane}-{slot}.{entries}" if entries else f"{lane}-{slot}" for lane, (slot, entries) in sorted(vector.items())
    )


def read_cursor(cursor: Cursor) -> Vector:
    if not _CURSOR.fullmatch(cursor):
        raise BadRequest(f"not a cursor of this log: {cursor[:40]!r}; use one that a list or an event gave")
    vector: Vector = {}
    for part in cursor.split("_"):
        lane, _, rest = part.partition("-")
        slot, _, entries = rest.partition(".")
        vector[int(lane)] = (int(slot), int(entries or 0))
    return vector
