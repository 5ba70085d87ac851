"""Reading the log: entries of all lanes in one order, each record's in its own; waiting for more; a record's history.

Owns which entry may be told next. Must not know how lanes are read (tails.py) or written (lanes.py).

An entry is told when everything its lane has before it was told, and when the entry its record had before it was told,
whichever lane that is in. Between lanes there is no other order; entries written at about the same time come at about
the same time, by the writers' clocks, which nothing depends on. A place in the log is a vector: how far each lane was
told. `Frontier` is this daemon's own reader: where it stands is the newest place that leaves out nothing and no
record's earlier entry.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

from statesvc_client.errors import Gone, Internal, StateError

from ... import logs
from ..numbered import Growth
from ..port import Cursor, Key, LogEntry
from .cursors import Vector, read_cursor, write_cursor
from .fetching import Fetcher
from .items import binary, number
from .lanes import PUBLISH_SECONDS, SILENT_SECONDS, Holding
from .layout import TRAIL, slot_key
from .registry import LaneState
from .slots import PARTS, Place, Slot, Trail, is_void, lane_of, number_of, read_slot, read_trail
from .tails import Tails

log = logs.get(__name__)

FIRST_POLL_SECONDS = 0.05
LAST_POLL_SECONDS = 1.0
"""Pauses between looks at the registry while somebody waits: short while something happens, then longer."""

EXTEND_SECONDS = 5.0
"""How often lanes are looked at behind the end their holders have told: one may have died before it told."""

CLOCKS_SECONDS = 60.0
"""By how much the clocks of other daemons may differ, where it has to be told how old an entry is: at the start, before
this daemon's own clock has seen anything."""

SAMPLE_SECONDS = 0.25
"""How often it is noted where the log stood."""


class Following:
    """The log as readers know it."""

    def __init__(self, tails: Tails, fetcher: Fetcher, holding: Holding, epoch: str, lag_seconds: float) -> None:
        self._tails = tails
        self._fetcher = fetcher
        self._holding = holding
        self._epoch = epoch
        self._lag = lag_seconds
        self._growth = Growth()
        self._growths = 0
        tails.grew = self._tell
        self._frontier: Vector = {}
        self._advancing = asyncio.Lock()
        self._samples: deque[tuple[float, Vector]] = deque()
        """Where the log stood, and when, by our own clock."""
        self._waiting = 0
        self._is_over = False
        self._polling: asyncio.Task[None] | None = None
        self._busy = asyncio.Event()
        self._pause = FIRST_POLL_SECONDS
        self._extended = time.monotonic()
        self._beats: dict[int, tuple[LaneState, float]] = {}

    async def begin(self) -> None:
        """From where all lanes end now; queries may miss what was committed shortly before."""
        self._frontier = {lane: (tail.end, 0) for lane, tail in self._tails.lanes.items()}
        now = time.monotonic()
        if self._lag:
            ago = time.time_ns() - int((self._lag + CLOCKS_SECONDS) * 1_000_000_000)
            old = await asyncio.gather(*(self._tails.older_than(lane, ago) for lane in self._frontier))
            places = {lane: (number, 0) for lane, number in zip(self._frontier, old, strict=True)}
            self._samples.append((now - self._lag, places))
        self._samples.append((now, dict(self._frontier)))

    async def end(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._polling = None
        self._is_over = True
        self._tell()

    def grew(self) -> None:
        """This daemon committed something."""
        self._busy.set()
        self._tell()

    def _tell(self) -> None:
        self._growths += 1
        self._growth.tell()

    # --- places ------------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        await self._tails.look()
        await self._tails.extend_all()
        await self._advance()
        return write_cursor(self._frontier)

    async def position_for_queries(self) -> Cursor:
        """Where the log stood so long ago that every index shows it by now. What was cut is older than that."""
        await self._advance()
        place = self._oldest()
        for lane, (last, _) in self._samples[0][1].items():
            place[lane] = (max(last, place[lane][0]), 0)
        return write_cursor(place)

    async def _advance(self) -> None:
        async with self._advancing:
            try:
                await self._pass_on()
            except Gone:
                await self._pass_on()  # cut a moment ago, by another daemon: from there on
            self._note()

    def _note(self) -> None:
        """Note where the log stands, and forget what is older than it need be."""
        now = time.monotonic()
        if now - self._samples[-1][0] >= SAMPLE_SECONDS or self._lag == 0:
            self._samples.append((now, dict(self._frontier)))
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._lag:
            self._samples.popleft()

    async def _pass_on(self) -> None:
        for lane, tail in self._tails.lanes.items():
            at, _ = self._frontier.get(lane, (0, 0))
            self._frontier[lane] = (max(at, tail.start), 0)
        while (slot := await self._deliverable(self._frontier)) is not None:
            self._frontier[slot.place.lane] = (slot.last, 0)

    def _oldest(self) -> Vector:
        return {lane: (tail.start, 0) for lane, tail in self._tails.lanes.items()}

    async def _begin(self, after: Cursor) -> Vector:
        """The place a cursor stands for. Raises `Gone` when what is behind it is not all kept, or never was."""
        if not after:
            return self._oldest()
        at = read_cursor(after)
        if not self._reaches(at):
            await self._tails.look()
            known = self._tails.lanes
            await asyncio.gather(*(self._tails.reach(lane, slot) for lane, (slot, _) in at.items() if lane in known))
            if not self._reaches(at):
                raise Gone(f"cursor {after} is not of this log: it is beyond its end")
        for lane, tail in self._tails.lanes.items():
            if at.setdefault(lane, (0, 0))[0] < tail.start:
                raise Gone(f"events behind cursor {after} are no longer kept")
        return at

    def _reaches(self, at: Vector) -> bool:
        lanes = self._tails.lanes
        return all(lane in lanes and slot <= lanes[lane].end for lane, (slot, _) in at.items())

    # --- reading -----------------------------------------------------------------------------------------------------

    async def read(self, after: Cursor, limit: int) -> list[LogEntry]:
        found = await self._read(after, limit)
        if not found and self._may_find_more(after):
            # Others tell how far they are some time after a commit: a look that lags a little costs half.
            await self._tails.look(consistent=False)
            found = await self._read(after, limit)
        return found

    def _may_find_more(self, after: Cursor) -> bool:
        """Whether a look around may help: the last one is not just over, as it is after each of our own commits, or
        something is known to be there that waits for what was not known yet."""
        if time.monotonic() - self._tails.looked_at >= PUBLISH_SECONDS:
            return True
        at = read_cursor(after) if after else self._oldest()
        return any(at.get(lane, (0, 0))[0] < tail.end for lane, tail in self._tails.lanes.items())

    async def _read(self, after: Cursor, limit: int) -> list[LogEntry]:
        try:
            return await self._merge(await self._begin(after), limit)
        except Gone:
            if after:
                raise
        # The oldest was cut a moment ago, by another daemon, and that is known by now.
        return await self._merge(self._oldest(), limit)

    async def _merge(self, at: Vector, limit: int) -> list[LogEntry]:
        found: list[LogEntry] = []
        while len(found) < limit and (slot := await self._deliverable(at)) is not None:
            found += self._told_by(slot, at, limit - len(found))
        return found

    def _told_by(self, slot: Slot, at: Vector, most: int) -> Iterator[LogEntry]:
        """Entries of a slot that were not told yet; `at` is moved behind each."""
        lane = slot.place.lane
        first = _told_of(slot, at)
        for index in range(first, min(len(slot.entries), first + most)):
            at[lane] = _behind(slot, index)
            entry = slot.entries[index]
            yield LogEntry(write_cursor(at), entry.event, entry.row)

    async def _deliverable(self, at: Vector) -> Slot | None:
        """The slot to tell next; None when there is none, or none whose time has come."""
        ready = [slot for slot in await self._next_slots(at) if self._may_follow(slot, at)]
        return min(ready, key=lambda slot: (slot.at, slot.place), default=None)

    async def _next_slots(self, at: Vector) -> list[Slot]:
        found: list[Slot] = []
        for lane, tail in list(self._tails.lanes.items()):
            last, _ = at.setdefault(lane, (0, 0))
            if last >= tail.end:
                continue
            slot = await self._tails.next(lane, last)
            if slot is None:
                at[lane] = (max(last, tail.end), 0)  # nothing but void numbers
                continue
            found.append(slot)
            await self._fetch_befores(slot, at)
        return found

    async def _fetch_befores(self, slot: Slot, at: Vector) -> None:
        """What an entry follows is committed: a lane that is not known so far is looked at."""
        for before in _befores(slot):
            tail = self._tails.lanes.get(before.lane)
            if tail is None:
                await self._tails.look()
            elif before.number > tail.end and at.get(before.lane, (0, 0))[0] < before.number:
                await self._tails.extend(before.lane)

    def _may_follow(self, slot: Slot, at: Vector) -> bool:
        return all(self._was_told(before, at) for before in _befores(slot))

    def _was_told(self, before: Place, at: Vector) -> bool:
        tail = self._tails.lanes.get(before.lane)
        if tail is None or before.number <= tail.start:
            return True  # cut long ago
        return before.number <= at.get(before.lane, (0, 0))[0]

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def grown(self, after: Cursor, seconds: float) -> None:
        """Return when there may be entries behind a cursor, or when the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if after:
            read_cursor(after)
        self._waiting += 1
        self._poll()
        try:
            while (left := until - loop.time()) > 0 and not self._is_over:
                seen = self._growths
                if await self._has_more(after):
                    return
                if seen == self._growths:
                    await self._growth.wait(left)
        finally:
            self._waiting -= 1

    async def _has_more(self, after: Cursor) -> bool:
        try:
            return bool(await self._read(after, 1))
        except Gone:
            return True

    def _poll(self) -> None:
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_on(), name="dynamodb-poll")

    async def _poll_on(self) -> None:
        """Look for what others commit, as long as somebody waits for it."""
        while self._waiting:
            if await self._was_busy(self._pause):
                self._pause = FIRST_POLL_SECONDS
                await asyncio.sleep(FIRST_POLL_SECONDS)
            try:
                moved = await self._look_around()
            except StateError as problem:
                log.warning("log_not_read", why=problem.text)
                moved, self._pause = False, LAST_POLL_SECONDS
            self._pause = FIRST_POLL_SECONDS if moved else min(self._pause * 1.5, LAST_POLL_SECONDS)

    async def _was_busy(self, seconds: float) -> bool:
        """Whether this daemon committed something within that time."""
        self._busy.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._busy.wait()
        except TimeoutError:
            return False
        return True

    async def _look_around(self) -> bool:
        moved = await self._tails.look(consistent=False)
        if time.monotonic() - self._extended >= EXTEND_SECONDS or self._tails.gaps():
            self._extended = time.monotonic()
            moved = await self._tails.extend_all() or moved
        await self._bury_silent()
        await self._advance()
        return moved

    async def _bury_silent(self) -> None:
        """Free lanes whose holders have said nothing for long, by our own clock."""
        now = time.monotonic()
        for lane, state in self._tails.held.items():
            seen = self._beats.get(lane)
            if seen is None or (seen[0].holder, seen[0].beat) != (state.holder, state.beat):
                self._beats[lane] = (state, now)
            elif now - seen[1] >= SILENT_SECONDS:
                del self._beats[lane]
                await self._holding.bury(state)
                return

    # --- the history of one record -----------------------------------------------------------------------------------

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        """Costs a read of the record, one of its slots for every hundred, and one more for every 32 put away.

        Its cursors say how far the lanes of this record's own entries were told. A follower that goes on from one is
        told everything of this record, and of others what lies behind in each lane.
        """
        at = read_cursor(after) if after else {}
        found = (await self._fetcher.records([key])).get(key)
        if found is None or TRAIL not in found.item:
            return []
        trail = read_trail(binary(found.item[TRAIL]))
        if any(
            place.lane not in self._tails.lanes or place.number > self._tails.lanes[place.lane].end for place in trail
        ):
            await self._tails.look()
        at = self._oldest() | at
        places = await self._whole_trail(key, trail, at)
        # Of a slot that was told in part the record's own entry may have been.
        most = limit + sum(1 for _, told in at.values() if told)
        slots = await self.slots([place for place in places if self._is_behind(place, at)][:most])
        return self._chronicle(key, slots, at)[:limit]

    async def _whole_trail(self, key: Key, trail: Trail, at: Vector) -> Trail:
        """With what was put away, as far back as is asked for."""
        whole = trail
        while whole and self._is_behind(whole[0], at):
            slots = await self.slots(whole[:1])
            entry = slots[0].entry_of(key) if slots else None
            if entry is None or not entry[1].earlier:
                break
            whole = entry[1].earlier + whole
        return whole

    def _is_behind(self, place: Place, at: Vector) -> bool:
        tail = self._tails.lanes.get(place.lane)
        if tail is not None and place.number <= tail.start:
            return False
        return place.number > at.get(place.lane, (0, 0))[0]

    def _chronicle(self, key: Key, slots: list[Slot], at: Vector) -> list[LogEntry]:
        found: list[LogEntry] = []
        for slot in slots:
            entry = slot.entry_of(key)
            if entry is None:
                continue
            index, told = entry
            if index < _told_of(slot, at):
                continue
            at = {**at, slot.place.lane: _behind(slot, index)}
            found.append(LogEntry(write_cursor(at), told.event, told.row))
        return found

    async def slots(self, places: list[Place] | Trail, *, damaged: bool = True) -> list[Slot]:
        """The slots that begin at these places, in their order; those that are no longer there are left out.

        Raises at one that cannot be read, unless it is left out, too: `damaged=False`.
        """
        found: dict[Place, Slot] = {}
        for place in places:
            tail = self._tails.lanes.get(place.lane)
            slot = tail.at(place.number) if tail is not None else None
            if slot is not None:
                found[place] = slot
        missing = [place for place in dict.fromkeys(places) if place not in found]
        found |= await self._fetched(missing, damaged=damaged)
        return [found[place] for place in places if place in found]

    async def _fetched(self, places: list[Place], *, damaged: bool) -> dict[Place, Slot]:
        items = {Place(lane_of(item), number_of(item)): item for item in await self._items(places)}
        rest = [
            Place(place.lane, place.number + index)
            for place, item in items.items()
            for index in range(1, number(item, PARTS, 1))
        ]
        parts = items | {Place(lane_of(item), number_of(item)): item for item in await self._items(rest)}
        found: dict[Place, Slot] = {}
        for place, item in items.items():
            numbers = range(place.number, place.number + number(item, PARTS, 1))
            whole = [parts[part] for each in numbers if (part := Place(place.lane, each)) in parts]
            if is_void(item) or len(whole) < len(numbers):
                continue
            try:
                found[place] = read_slot(whole)
            except Internal:
                if damaged:
                    raise
        return found

    async def _items(self, places: list[Place]) -> list[dict[str, object]]:
        companion = self._fetcher.tables.companion
        if not places:
            return []
        return await self._fetcher.items([(companion, slot_key(self._epoch, *place)) for place in places])


def _behind(slot: Slot, index: int) -> tuple[int, int]:
    """The place in a lane behind one entry of a slot: before its first number while some of it is still to be told."""
    told = index + 1
    return (slot.last, 0) if told == len(slot.entries) else (slot.place.number - 1, told)


def _told_of(slot: Slot, at: Vector) -> int:
    """How many entries of a slot were told."""
    last, told = at.get(slot.place.lane, (0, 0))
    return told if last == slot.place.number - 1 else 0


def _befores(slot: Slot) -> list[Place]:
    """What the entries of a slot follow, in other lanes: those of its own come before it anyway."""
    return [entry.before for entry in slot.entries if entry.before is not None and entry.before.lane != slot.place.lane]
