"""Which records may be there: what is not in here is surely absent, and nobody has to look on the disk for it.

Owns a filter over the keys of all records, and when it is made. Must not know rows. Every record that is made is looked
for first; without this each would cost the loop a walk down an index of all there are.

The filter says "surely not" or "perhaps", never "surely". It is made by walking all keys, when enough records were
looked for in vain; keys that are committed meanwhile are gathered beside the walk and added at its end. Nothing is ever
taken out of it: when it has taken so many keys that "perhaps" comes too often, it is made anew, as large as need be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Protocol

from ... import logs
from ..port import Key

log = logs.get(__name__)

MISSES = 256
"""Records looked for on the disk in vain before the filter is made: a store nobody adds to never needs one."""

SMALLEST = 20
LARGEST = 24
"""Bytes of the filter, as powers of two: 1 MiB for the first half million records, 16 MiB at most."""

BYTES_A_KEY = 2
"""One look in thirty is in vain when the filter is full, and far fewer before."""

SLICE_BYTES = 64 * 1024
"""Laid over another at once: copies of a whole filter would not be small."""

_PAIRS = bytes(1 << one | 1 << two for one in range(8) for two in range(one))
_PATTERNS = _PAIRS + _PAIRS[:4]
"""Two bits of a byte, in every way there is, and some twice: a power of two is quicker to choose from."""

STEP_KEYS = 2000
"""Keys taken in between two pauses: some milliseconds that others may have to wait."""


class KeyReader(Protocol):
    """Where all keys are found. Blocks."""

    def keys_behind(self, place: Key, limit: int) -> list[Key]: ...


Run = Callable[[Callable[[KeyReader], Any]], Awaitable[Any]]
"""Does something with a reader, in a thread of its own."""


class Filter:
    """A byte for every key, chosen by its hash, and two bits in that."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys = 0
        self.keys_at_first = 0
        """How many it was made with."""
        self._mask = (1 << size) - 1
        self._set = bytearray(1 << size)

    @property
    def is_full(self) -> bool:
        """Whether to make it anew: "perhaps" comes too often, and most of its keys came since it was made. One of the
        largest size may be full from its beginning."""
        return self.keys * BYTES_A_KEY > self._mask and self.keys >= 2 * self.keys_at_first

    def add(self, keys: Collection[Key]) -> None:
        found, mask = self._set, self._mask
        self.keys += len(keys)
        for mixed in map(hash, keys):
            found[mixed & mask] |= _PATTERNS[mixed >> 40 & 31]

    def lacks(self, key: Key) -> bool:
        mixed = hash(key)
        pattern = _PATTERNS[mixed >> 40 & 31]
        return self._set[mixed & self._mask] & pattern != pattern

    def lay_over(self, other: Filter) -> None:
        """Take in all that another has, which may be larger: what lies a whole length of this one apart in it has the
        same place here."""
        step = min(SLICE_BYTES, len(self._set))
        for at in range(0, len(other._set), step):
            place = at & self._mask
            part = slice(place, place + step)
            both = int.from_bytes(self._set[part], "little") | int.from_bytes(other._set[at : at + step], "little")
            self._set[part] = both.to_bytes(step, "little")
        self.keys += other.keys


class Presence:
    """The filter in force, and the one in the making. On the loop only, but for the walk."""

    def __init__(self, run: Run, most_records: Callable[[], int], catch_up: Callable[[], Awaitable[bool]]) -> None:
        """`most_records` tells what the records on the disk are not more than. `catch_up` returns when the state has
        all that was committed before, or tells that it cannot for now."""
        self._run = run
        self._most_records = most_records
        self._catch_up = catch_up
        self._filter: Filter | None = None
        self._gathered: Filter | None = None
        """Keys committed since the walk under way began."""
        self._walk: asyncio.Task[None] | None = None
        self._misses = 0
        self.lacks: Callable[[Key], bool] = _cannot_tell
        """Whether there surely is no such record, neither on the disk nor on its way there. The filter's own: every
        look-up comes through here."""

    def add(self, keys: Collection[Key]) -> None:
        """Records were committed that were not there before. From here on they are perhaps there, whatever becomes of
        them."""
        if self._gathered is not None:
            self._gathered.add(keys)
        if self._filter is not None:
            self._filter.add(keys)
            if self._filter.is_full and self._walk is None:
                self._begin(self._filter.keys)

    def missed(self) -> None:
        """A record was looked for on the disk in vain."""
        self._misses += 1
        if self._misses >= MISSES and self._filter is None and self._walk is None:
            self._misses = 0
            self._begin(self._most_records())

    def forget(self) -> None:
        """Know of nothing: records may have come by another way, or nobody may be told of any now."""
        if self._walk is not None:
            self._walk.cancel()
        self._walk = self._gathered = self._filter = None
        self.lacks = _cannot_tell
        self._misses = 0

    # --- making it -------------------------------------------------------------------------------------------------

    def _begin(self, records: int) -> None:
        # Before anything is waited for: what is committed from here on is gathered, the rest is found on the disk.
        self._gathered = Filter(_size_for(records))
        self._walk = asyncio.get_running_loop().create_task(self._make(self._gathered), name="presence")

    async def _make(self, gathered: Filter) -> None:
        try:
            made = await self._walked(gathered.size)
        except Exception as problem:  # noqa: BLE001 - it is tried again; without it creates only take longer
            log.warning("presence_not_made", why=str(problem))
            made = None
        if self._gathered is not gathered:
            return  # forgotten meanwhile
        self._walk = self._gathered = None
        self._misses = 0
        if made is not None:
            made.lay_over(gathered)
            self._filter, self.lacks = made, made.lacks

    async def _walked(self, size: int) -> Filter | None:
        """A filter of all keys there were when it began; None when they cannot be read for now."""
        if not await self._catch_up():
            return None
        made = Filter(size)
        place: Key | None = ("", "")
        while place is not None:
            begun = time.monotonic()
            place = await self._run(partial(_step, made, place))
            await asyncio.sleep(time.monotonic() - begun)  # half of the time is for others
        return await asyncio.to_thread(_fitted, made)


def _step(made: Filter, place: Key, reader: KeyReader) -> Key | None:
    """Take in the next keys; returns where to go on."""
    keys = reader.keys_behind(place, STEP_KEYS)
    made.add(keys)
    return keys[-1] if len(keys) == STEP_KEYS else None


def _cannot_tell(_: Key) -> bool:
    return False


def _fitted(made: Filter) -> Filter:
    """The same, no larger than it has to be: how many records there are at most may be far more than there are."""
    fitted = Filter(min(made.size, _size_for(made.keys)))
    fitted.lay_over(made)
    fitted.keys_at_first = fitted.keys
    return fitted


def _size_for(records: int) -> int:
    """Room for twice as many as there are."""
    return max(SMALLEST, min((2 * records * BYTES_A_KEY).bit_length(), LARGEST))
