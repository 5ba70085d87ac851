"""Which units of a batch apply: each meets the state it was decided on, those before it included.

Owns that judgement. Must not know where rows come from or go to. Every write passes here, on the loop: it is plain for
the sake of speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..port import REMOVED, Key, Result, Row, Stamp, Unit
from .log import Change


class Judged(NamedTuple):
    """The result of each unit; the changes that apply, their keys, the rows they replace, and what they lead to."""

    results: list[Result]
    changes: list[Change]
    keys: list[Key]
    replaced: list[Row | None]
    rows: dict[Key, Row | None]

    def new_keys(self) -> list[Key]:
        """Of records that were not there."""
        if self.replaced.count(None) == len(self.keys):
            return self.keys
        return [key for key, row in zip(self.keys, self.replaced, strict=True) if row is None]


def judge(batch: Sequence[Unit], stored: Callable[[Key], Row | None]) -> Judged:
    judged = Judged([], [], [], [], {})
    results, changes, accepted, replaced, staged = judged
    lost: set[tuple[Key, Stamp | None]] = set()
    """What units would have made that were not applied: nothing is built on it."""
    for unit in batch:
        if len(unit) == 1 and not lost:
            # Nearly every unit there is: the same as below, without lists of one.
            write = unit[0]
            row, expected = write.row, write.expects
            key = (row.kind, row.id)
            before = staged[key] if key in staged else stored(key)
            if expected is None if before is None else before.stamp == expected:
                results.append("applied")
                changes.append(Change(write.event, row))
                accepted.append(key)
                replaced.append(before)
                staged[key] = row if row.deleted != REMOVED else None
                continue
        keys = [write.row.key for write in unit]
        rows = [staged[key] if key in staged else stored(key) for key in keys]
        if _holds(unit, rows) and lost.isdisjoint((write.row.key, write.expects) for write in unit):
            results.append("applied")
            accepted += keys
            replaced += rows
            for key, write in zip(keys, unit, strict=True):
                changes.append(Change(write.event, write.row))
                staged[key] = write.row if write.row.deleted != REMOVED else None
        else:
            results.append("conflict")
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
