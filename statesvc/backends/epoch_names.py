"""Names of epochs: what a store is called from one loss of acknowledged writes to the next.

Owns the making of names, and the floor of fencing tokens that a name carries. Must not know when an epoch begins: the
engines do. To everybody else a name is opaque.

What was lost may have held tokens that were given out. The name of the epoch that follows carries a number which all of
those are below: no engine has to keep it, and it is there from the instant the epoch is.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache

TOKEN_STEP = 2**32
"""Tokens that no record uses up in one life of the store."""


def first() -> str:
    """Of a store that holds nothing, and of which nobody knows that it ever did."""
    return os.urandom(8).hex()


def following(before: str, highest_token: int = 0) -> str:
    """Of what comes behind an epoch, with rows that have tokens up to this one: its own are above all of them."""
    floor = floor_above(max(token_floor(before), highest_token), time.time_ns())
    return f"{os.urandom(8).hex()}-{floor:x}"


def floor_above(known: int, now: int) -> int:
    """Above every token up to this one, and above those given out since: no record is claimed a million times a second,
    so the clock in microseconds is ahead of them. Only where it was set back, a step takes its place: a floor that is
    ahead of the clock would be forgotten with the row that holds it."""
    by_clock = now // 1000
    return by_clock if by_clock > known else known + TOKEN_STEP


@lru_cache(maxsize=16)
def token_floor(epoch: str) -> int:
    """Tokens up to this one may have been given out before this epoch."""
    _, _, floor = epoch.partition("-")
    return int(floor, 16) if floor else 0
