"""Two changes made into one: composed merge patches, counters and lists.

Owns when one change can do what two do one after the other, and what it is. Must not know records, queues or the wire.
"""

from __future__ import annotations

import math
from typing import Any

from .patch import BEHIND_THE_END, Fields, Json, steps

_ABSENT = object()
_INTEGERS = range(-(2**63), 2**63)


class Incompatible(Exception):
    """No single change does what the two do one after the other."""


def compose_patches(first: Fields, second: Fields) -> Fields:
    """The merge patch that does what `first` and then `second` do, to any target."""
    composed = dict(first)
    for name, later in second.items():
        earlier = composed.get(name, _ABSENT)
        if isinstance(later, dict) and earlier is not _ABSENT:
            if not isinstance(earlier, dict):
                # `first` replaces or removes the value and `second` merges into what is left of it. One merge
                # patch cannot say that: it would merge into the value that stood there before both.
                raise Incompatible(name)
            composed[name] = compose_patches(earlier, later)
        else:
            composed[name] = later
    return composed


def compose_counts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Increments add."""
    composed = dict(first)
    for path, amount in second.items():
        total = composed.get(path, 0) + amount
        if (isinstance(total, int) and total not in _INTEGERS) or not math.isfinite(total):
            raise Incompatible(path)
        composed[path] = total
    return composed


def compose_lists(first: dict[str, list[Json]], second: dict[str, list[Json]]) -> dict[str, list[Json]]:
    """Appended values concatenate."""
    composed = dict(first)
    for path, values in second.items():
        composed[path] = [*composed.get(path, ()), *values]
    return composed


def check_paths_apart(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Paths below one top-level field must be the very same path, or their order would matter. And it must lead to the
    same place both times: behind the end of a list (`-`) there is another place after every change."""
    tops = {steps(path)[0]: path for path in first}
    if len(tops) != len(first):
        raise Incompatible("several paths below one field")
    for path in second:
        top, *deeper = steps(path)
        if top in tops and (tops[top] != path or BEHIND_THE_END in deeper):
            raise Incompatible(path)


def top_names(paths: dict[str, Any]) -> set[str]:
    return {steps(path)[0] for path in paths}
