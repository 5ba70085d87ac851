"""Which units of a batch apply: each meets the state it was decided on, those before it included.

Owns that judgement. Must not know where rows come from or go to. Every write passes here, on the loop: it is plain for
the sake of speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..port import REMOVED, Key, Result, Row, Stamp, Unit, Write


class Judged(NamedTuple):
    """The result of each unit; the writes that apply, their keys, and the rows they replace."""

    results: list[Result]
    accepted: list[Write]
    keys: list[Key]
    replaced: list[Row | None]


def judge(batch: Sequence[Unit], stored: Callable[[Key], Row | None]) -> Judged:
    judged = Judged([], [], [], [])
    staged: dict[Key, Row | None] = {}
    lost: set[tuple[Key, Stamp | None]] = set()
    """What units would have made that were not applied: nothing is built on it."""
    for unit in batch:
        keys = [write.row.key for write in unit]
        rows = [staged[key] if key in staged else stored(key) for key in keys]
        if _holds(unit, rows) and (not lost or lost.isdisjoint((write.row.key, write.expects) for write in unit)):
            judged.results.append("applied")
            judged.accepted.extend(unit)
            judged.keys.extend(keys)
            judged.replaced.extend(rows)
            for key, write in zip(keys, unit, strict=True):
                staged[key] = write.row if write.row.deleted != REMOVED else None
        else:
            judged.results.append("conflict")
            lost.update((write.row.key, write.row.stamp) for write in unit)
    return judged


def _holds(unit: Unit, rows: list[Row | None]) -> bool:
    for write, row in zip(unit, rows, strict=True):
        expected = write.expects
        if row is None:
            if expected is not None:
                return False
        elif expected is None or row.revision != expected[1] or row.uid != expected[0]:
            return False
    return True
