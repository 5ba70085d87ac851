"""The ends of all lanes, as far as this daemon has read them.

Owns reading slots from a lane, what is kept of them in memory, and how far each lane is known to be settled. Must not
know the order in which entries of different lanes are told: that is in following.py.

Up to a lane's settled end a number that is not there is void. Beyond it a number that is not there may yet be taken: a
reader waits, and when nothing comes for long it makes the number void itself, so that nothing ever can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from statesvc_client.errors import Gone, Unavailable

from ... import logs
from .calls import Lost
from .fetching import Fetcher
from .items import number
from .lanes import SEALED, Holding, OwnLane
from .layout import PK, SK, Item, lane_key
from .pages import Page, Pages
from .registry import LaneState, Registry, Seen
from .slots import AT, PARTS, Place, Slot, is_void, number_of, read_slot

log = logs.get(__name__)

PAGE_SLOTS = 200
"""Slots read by one query."""

KEPT_BYTES = 4 * 1024 * 1024
"""Of one lane's newest slots, in memory. Those who follow closely read nothing twice."""

TRUST_SECONDS = 5.0
"""How old a look at the registry may be for something to be committed without another one."""

GAP_SECONDS = 5.0
"""How long a number must be missing, with others behind it, before it is made void."""


class Tail:
    """One lane."""

    def __init__(self, state: LaneState, kept: int) -> None:
        self.lane = state.number
        self.start = state.start
        self.end = state.end
        """Every number up to it is settled."""
        self.kept_from = kept
        """Every slot above it, up to `kept_to`, is in memory."""
        self.kept_to = kept
        self.bytes = 0
        self._slots: dict[int, Slot] = {}
        self.gap: tuple[int, float] | None = None
        """A number that is missing, and since when."""

    def keep(self, slot: Slot) -> None:
        """By the highest number it takes up: the others count as void."""
        self._slots[slot.last] = slot
        self.bytes += slot.bytes

    def kept(self, after: int) -> Slot | None:
        """The next slot behind a number, of those in memory."""
        for place in range(after + 1, self.kept_to + 1):
            if (slot := self._slots.get(place)) is not None:
                return slot
        return None

    def at(self, number: int) -> Slot | None:
        """The slot that begins at a number, if it is in memory."""
        slot = self.kept(number - 1) if self.kept_from < number <= self.kept_to else None
        return slot if slot is not None and slot.place.number == number else None

    def grown(self, end: int) -> None:
        """Settled and in memory up to there: what this daemon wrote itself."""
        self.end = self.kept_to = end
        self.trim()

    def trim(self) -> None:
        while self.bytes > KEPT_BYTES and self._slots:
            oldest = next(iter(self._slots))
            if oldest > self.kept_to:
                return  # not settled yet: it came before others that are older
            self._forget(oldest)
            self.kept_from = max(self.kept_from, oldest)

    def restart(self, end: int) -> None:
        """Nothing is in memory, and everything up to there is settled."""
        self._slots.clear()
        self.bytes = 0
        self.end = self.kept_from = self.kept_to = end

    def _forget(self, place: int) -> None:
        self.bytes -= self._slots.pop(place).bytes

    def cut_to(self, start: int) -> None:
        """What is at or below it is gone."""
        self.start = max(self.start, start)
        for place in [place for place in self._slots if place <= start]:
            self._forget(place)
        self.end = max(self.end, start)
        self.kept_from = max(self.kept_from, start)
        self.kept_to = max(self.kept_to, start)


class Tails:
    """All lanes of one epoch."""

    def __init__(self, fetcher: Fetcher, registry: Registry, epoch: str, holding: Holding) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._epoch = epoch
        self._holding = holding
        self._reading: dict[int, asyncio.Lock] = {}
        self._pages = Pages()
        self.lanes: dict[int, Tail] = {}
        self.held: dict[int, LaneState] = {}
        """Lanes other daemons hold: they may reach further than the registry says."""
        self.looked_at = float("-inf")
        """When the last look at the registry began, by our own clock."""
        self.looked: Callable[[Seen], None] = lambda _: None
        """Is told what every look at the registry showed."""
        self.grew: Callable[[], None] = lambda: None
        """Is told whenever a lane of another daemon reaches further than was known."""
        self.arrived: Callable[[Slot], None] = lambda _: None
        """Is told of every slot another daemon wrote, when it is first read."""

    # --- what the registry says --------------------------------------------------------------------------------------

    async def look(self, *, consistent: bool = True) -> bool:
        """Look at the registry. Returns whether a lane reaches further than was known."""
        began = time.monotonic()
        seen = await self._registry.look(consistent=consistent)
        self.looked_at = max(self.looked_at, began)
        self.looked(seen)
        return self.take_in(seen)

    @property
    def is_stale(self) -> bool:
        """Whether everything may have been replaced unnoticed: the daemon stood still, or nobody follows the log."""
        return time.monotonic() - self.looked_at > TRUST_SECONDS

    def take_in(self, seen: Seen) -> bool:
        if seen.meta is None or seen.meta.epoch != self._epoch or seen.meta.loading:
            raise Unavailable("everything in the tables is being replaced: the daemon begins anew after it")
        own, moved = self._holding.lane.number, False
        first = not self.lanes
        for lane, state in seen.lanes.items():
            tail = self.lanes.get(lane)
            if tail is None:
                # What is in a lane that was made meanwhile is all new.
                tail = self.lanes[lane] = Tail(state, state.end if first else state.start)
                moved = moved or state.end > state.start
            tail.cut_to(state.start)
            if lane != own and state.end > tail.end:
                tail.end, moved = state.end, True
        self.held = {lane: state for lane, state in seen.lanes.items() if state.holder and lane != own}
        if moved:
            self.grew()
        return moved

    def adopt(self, own: OwnLane) -> None:
        """A lane this daemon writes into from now on. What an earlier holder wrote is read when somebody asks."""
        tail = self.lanes.get(own.number)
        if tail is None:
            tail = self.lanes[own.number] = Tail(LaneState(own.number, "", 0, own.end, 0, 0, 0), own.end)
        if tail.kept_to < own.end:
            tail.restart(own.end)

    def was_cut(self, place: Place) -> bool:
        tail = self.lanes.get(place.lane)
        return tail is not None and place.number <= tail.start

    def bytes_of(self, state: LaneState) -> int:
        """What is kept of a lane, about."""
        own = self._holding.lane
        written = own.bytes if state.number == own.number else state.bytes
        return max(0, written - state.cut)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def next(self, lane: int, after: int) -> Slot | None:
        """The next slot of a lane behind a number, up to its settled end. Raises `Gone` when it was cut."""
        tail = self.lanes[lane]
        while after < tail.kept_from:
            page = self._pages.find(lane, after) or await self._page(tail, after)
            slot = page.next(after)
            if slot is not None or page.upto >= tail.end:
                return slot
            after = page.upto
        slot = tail.kept(after)
        if slot is not None or tail.kept_to >= tail.end:
            return slot
        return await self._read_on(tail, after)

    async def _page(self, tail: Tail, after: int) -> Page:
        """A page of what is no longer in memory."""
        slots, upto = await self._read(tail, after, tail.end)
        return self._pages.keep(tail.lane, Page(after, upto, slots))

    async def _read_on(self, tail: Tail, after: int) -> Slot | None:
        """Read behind what is in memory. Whoever comes meanwhile waits for it, and finds it there."""
        async with self._reading.setdefault(tail.lane, asyncio.Lock()):
            while (slot := tail.kept(after)) is None and tail.kept_to < tail.end:
                slots, upto = await self._read(tail, tail.kept_to, tail.end)
                for each in slots:
                    tail.keep(each)
                    self.arrived(each)
                tail.kept_to = upto
            tail.trim()
            return slot

    async def _read(self, tail: Tail, after: int, end: int) -> tuple[list[Slot], int]:
        """Slots behind a number, and the number up to which these are all there are."""
        items, more = await self._items(tail.lane, after, end)
        upto = number_of(items[-1]) if more else end
        if len(items) < upto - after:
            await self._cut_meanwhile(tail, after)
        return slots_of(items), upto

    async def _cut_meanwhile(self, tail: Tail, after: int) -> None:
        """Numbers are missing: they are void, or they were cut. The registry was told before anything was cut."""
        await self.look()
        if after < tail.start:
            raise Gone("events behind this cursor are no longer kept")

    async def _items(self, lane: int, after: int, end: int) -> tuple[list[Item], bool]:
        """A page of a lane, without half a slot at its end; and whether there is more."""
        request = {**self._between(lane, after + 1, end), "Limit": PAGE_SLOTS}
        found: list[Item] = []
        async for page in self._fetcher.pages("Query", request):
            found += page
            if len(page) >= PAGE_SLOTS or not found or number(found[-1], PARTS, 1) == 1:
                break
        while found and number(found[-1], PARTS, 1) > 1:
            found.pop()
        return found, bool(found) and number_of(found[-1]) < end

    def gaps(self) -> bool:
        """Whether a number is waited for."""
        return any(tail.gap is not None for tail in self.lanes.values())

    def _between(self, lane: int, first: int, last: int) -> dict[str, Any]:
        return {
            "TableName": self._fetcher.tables.companion,
            "KeyConditionExpression": f"{PK} = :lane AND {SK} BETWEEN :first AND :last",
            "ExpressionAttributeValues": {
                ":lane": {"S": lane_key(self._epoch, lane)},
                ":first": {"S": f"{first:014}"},
                ":last": {"S": f"{last:014}"},
            },
            "ConsistentRead": True,
        }

    async def older_than(self, lane: int, moment: int) -> int:
        """The last number of a lane that was written before a moment, by the clock of its writer."""
        tail = self.lanes[lane]
        if tail.end <= tail.start:
            return tail.end
        first = tail.start + 1
        request = {**self._between(lane, first, tail.end), "ScanIndexForward": False, "Limit": PAGE_SLOTS}
        async for items in self._fetcher.pages("Query", request):
            for item in items:
                if not is_void(item) and number(item, AT) < moment:
                    return number_of(item)
        return tail.start

    # --- beyond what the registry says -------------------------------------------------------------------------------

    async def extend_all(self) -> bool:
        """Look behind the settled end of every lane others hold. Returns whether one reaches further."""
        moved = await asyncio.gather(*(self.extend(lane) for lane in self.held))
        return any(moved)

    async def extend(self, lane: int) -> bool:
        """Look whether a lane of another daemon reaches further than it has told."""
        tail = self.lanes.get(lane)
        if tail is None or lane == self._holding.lane.number:
            return False
        async with self._reading.setdefault(lane, asyncio.Lock()):
            end = tail.end
            items, _ = await self._items(lane, end, 10**14 - 1)
            row = [each for index, each in enumerate(items) if number_of(each) == end + 1 + index]
            if tail.kept_to == end:
                for slot in slots_of(row):
                    tail.keep(slot)
                    self.arrived(slot)
                tail.kept_to = end + len(row)
            tail.end = end + len(row)
            tail.trim()
            missing = tail.end + 1 if len(row) < len(items) else 0
        if tail.end > end:
            self.grew()
        await self._watch_gap(tail, missing)
        return tail.end > end

    async def reach(self, lane: int, number: int) -> None:
        """Follow a lane to where a cursor stands, as far as it reaches. Who gave the cursor out knew that everything
        up to there is settled: what is missing is void, though its writer may have ended before it could say so."""
        tail = self.lanes[lane]
        await self._extend_to(tail, number)
        if tail.end >= number or lane == self._holding.lane.number:
            return
        if number - await self._holding.top_of(lane, tail.end) > SEALED:
            return  # nobody can have given that out
        try:
            await self._holding.seal_missing(lane, tail.end, number)
        except Lost:
            raise Unavailable("DynamoDB did not answer in time when a lane of the log was read") from None
        await self._extend_to(tail, number)

    async def _extend_to(self, tail: Tail, number: int) -> None:
        while tail.end < number and await self.extend(tail.lane):
            pass

    async def _watch_gap(self, tail: Tail, missing: int) -> None:
        """A number is missing with others behind it. Its writer may be slow, or gone: it is not waited for for ever."""
        now = time.monotonic()
        if not missing:
            tail.gap = None
        elif tail.gap is None or tail.gap[0] != missing:
            tail.gap = (missing, now)
        elif now - tail.gap[1] >= GAP_SECONDS:
            await self._close_gap(tail, missing)

    async def _close_gap(self, tail: Tail, missing: int) -> None:
        """Ask the registry once more: its writer may have said that it is void, and then nothing is to be done."""
        await self.look()
        if tail.end >= missing or tail.start >= missing:
            return
        with suppress(Lost):
            if await self._holding.seal(Place(tail.lane, missing)) is None:
                log.warning("log_gap_closed", lane=tail.lane, number=missing)


def slots_of(items: Sequence[Item]) -> list[Slot]:
    """The slots that items of one lane make up, void ones left out."""
    found: list[Slot] = []
    index = 0
    while index < len(items):
        count = number(items[index], PARTS, 1)
        if not is_void(items[index]):
            found.append(read_slot(items[index : index + count]))
        index += count
    return found
