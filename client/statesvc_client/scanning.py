"""What can be told of a frame from its bytes alone: how many values it has, how deep they are nested.

Owns counting. Must not know what a frame means, nor how it is decoded. Every step is one over many bytes: a frame is
looked at before it is known to be worth it, while others wait.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from .errors import BadJson, TooLarge

SIZED_AT_ONCE = 1024 * 1024
"""Bytes of a frame that are looked at together: one that holds far too much is refused for its beginning."""

SEARCHED_BYTES = 64 * 1024
"""Frames up to this length are searched for the name of a key, which takes longer than all else here."""

_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b',"[]{}')
_BRACKETS_ONLY = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_size(frame: bytes, most_values: int, most_depth: int) -> None:
    """Refuse a frame of too many values or too deep a nesting. The cheap upper bounds settle nearly every frame."""
    opened = frame.count(b"[") + frame.count(b"{")
    values = frame.count(b",") + opened + 1
    if values <= most_values and opened <= most_depth:
        return
    bare, opened, closed, commas = b"", 0, 0, 0
    for part in _outside_strings(frame):
        opened += part.count(b"[") + part.count(b"{")
        closed += part.count(b"]") + part.count(b"}")
        commas += part.count(b",")
        if opened + commas + 1 > most_values:
            raise TooLarge(f"the frame holds more than {most_values} JSON values")
        if closed > opened:
            raise BadJson("INVALID_JSON: a bracket is closed that was not opened")
        bare += part
    if opened > most_depth and _depth(bare) > most_depth:
        raise BadJson(f"INVALID_JSON: nested deeper than {most_depth}")


def values_at_most(text: bytes) -> int:
    """How many there are if none of what looks like one stands in a string."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


class Extent(NamedTuple):
    """What a frame has to have room for."""

    size: int
    values: int
    depth: int


def extent_of(text: bytes) -> Extent:
    """Of JSON that is known to be whole."""
    bare = b"".join(_outside_strings(text))
    return Extent(len(text), values_at_most(bare), _depth(bare))


def _outside_strings(frame: bytes) -> Iterator[bytes]:
    """Commas and brackets that are not inside a string, in their order. A string without an end goes to the end."""
    inside, place = False, 0
    while place < len(frame):
        end = place + SIZED_AT_ONCE
        if frame[end - 1 : end] == b"\\":  # an escape stays in one piece
            behind = frame[end:]
            end += len(behind) - len(behind.lstrip(b"\\")) + 1
        piece = frame[place:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        # Two quotes side by side, of one string or of two, change nothing for what follows.
        parts = piece.translate(None, _NO_STRUCTURE).replace(b'""', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside, place = inside == bool(len(parts) % 2), end


def _depth(bare: bytes) -> int:
    steps = map(_STEP.__getitem__, bare.translate(None, _BRACKETS_ONLY))
    return max(accumulate(steps), default=0)


def quotes_in(frame: bytes) -> int:
    """Those around strings and those in them, however they are spelled."""
    plain = frame.replace(b"\\\\", b"")
    return plain.count(b'"') + plain.count(b"\\u0022")


def key_given_twice(frame: bytes) -> str | None:
    """One that an object has twice, unless that would take too long to find."""
    if len(frame) > SEARCHED_BYTES:
        return None
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in pairs)
        found.extend(key for key in counts if counts[key] > 1)

    try:
        json.loads(frame, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None  # it was decoded, but not with the bounds of this one
    return found[0] if found else None
