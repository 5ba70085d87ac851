"""Changing JSON values: merge patch, assignment, counters and lists, by name or JSON Pointer.

Owns what a change does to a value, for both sides: the cache of an agent shows what the daemon will hold. Must not know
states or who asks, nor more of records than which field is secret: an error has not even the names in it. Values are
never changed in place: what a reader holds stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import BadRequest
from .spelling import SECRET
from .wire import printable

Json = Any
Fields = dict[str, Json]

_FOLDED_SECRET = SECRET.lower()

MOST_STEPS = 64
"""Names a path may have: with the depth of a frame behind it, a record stays far from what a decoder can nest."""

BEHIND_THE_END = "-"
"""The name, as in JSON Pointer, of the place behind the last one of a list."""

_LARGEST = 10**308
"""Whole numbers are exact, up to where floats end."""


def merge(target: Json, patch: Json) -> Json:
    """RFC 7396: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value) if isinstance(value, dict) else value
    return merged


def steps(path: str) -> list[str]:
    """The names a path walks through: a top-level name, or a JSON Pointer."""
    if not path:
        raise BadRequest("a path must be a field's name or a JSON Pointer like /state/count, not empty")
    if not path.startswith("/"):
        return [path]
    if path.count("/") > MOST_STEPS:
        raise BadRequest(f"a path has at most {MOST_STEPS} names, not {path.count('/')}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def shown(names: list[str]) -> str:
    """A path as errors tell it: not further than to a secret, which is known by its name in any case."""
    folded = [name.lower() for name in names]
    if _FOLDED_SECRET in folded:
        names = [*names[: folded.index(_FOLDED_SECRET)], SECRET]
    return printable("/".join(names))


_ABSENT = object()


def _place(name: str, items: list[Json]) -> int | None:
    """The place in a list that a name means, if it means one."""
    if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(items):
        return int(name)
    return None


def lookup(value: Json, names: list[str]) -> Json:
    """What stands at a path; None when nothing does."""
    for name in names:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and (place := _place(name, value)) is not None:
            value = value[place]
        else:
            return None
    return value


def assign(fields: Fields, names: list[str], value: Json) -> Json:
    return _changed(fields, names, lambda _: value, names)


def increment(fields: Fields, names: list[str], amount: float) -> Json:
    """Add to a number; what is absent or null counts as 0."""

    def add(before: Json) -> Json:
        old = 0 if before is _ABSENT or before is None else before
        if isinstance(old, bool) or not isinstance(old, (int, float)):
            raise BadRequest(f"inc: {shown(names)} is not a number")
        try:
            total: Json = old + amount
            if not (abs(total) <= _LARGEST):
                raise OverflowError
        except OverflowError:
            raise BadRequest(f"inc: {shown(names)} would leave the range of numbers") from None
        return total

    return _changed(fields, names, add, names)


def extend(fields: Fields, names: list[str], values: list[Json]) -> Json:
    """Append to a list; what is absent or null counts as an empty one."""

    def append(old: Json) -> Json:
        if old is _ABSENT or old is None:
            return list(values)
        if not isinstance(old, list):
            raise BadRequest(f"append: {shown(names)} is not a list")
        return [*old, *values]

    return _changed(fields, names, append, names)


def _changed(value: Json, names: list[str], change: Callable[[Json], Json], path: list[str]) -> Json:
    """A copy of `value` with `change` applied at the path; objects missing on the way are made."""
    if not names:
        return change(value)
    if value is _ABSENT or value is None:
        value = {}
    name, rest = names[0], names[1:]
    if isinstance(value, dict):
        return {**value, name: _changed(value.get(name, _ABSENT), rest, change, path)}
    if isinstance(value, list):
        return _changed_in_list(value, name, rest, change, path)
    raise BadRequest(f"{shown(path)} leads through a value that is neither an object nor a list")


def _changed_in_list(
    items: list[Json], name: str, rest: list[str], change: Callable[[Json], Json], path: list[str]
) -> list[Json]:
    if name == BEHIND_THE_END:
        return [*items, _changed(_ABSENT, rest, change, path)]
    place = _place(name, items)
    if place is None:
        raise BadRequest(f"{shown(path)} leads to a place that a list of {len(items)} does not have")
    return [*items[:place], _changed(items[place], rest, change, path), *items[place + 1 :]]


def same(left: Json, right: Json) -> bool:
    """Equal as JSON: true is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
