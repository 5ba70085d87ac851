"""The lane of the log this daemon writes into: its numbers, and being its only writer.

Owns which number the next slot gets, how far the lane is settled, and telling the registry so. Must not know what is in
a slot, nor who reads.

A number is given out before its commit and settled after it: taken by a slot, or void because the commit came to
nothing. Numbers are given out in the order of time, and all that an entry builds on was committed before its number was
given out. So readers, who tell each lane in its order and each entry after what it builds on, never wait in a circle.
That is why a number is used again only while it is the highest, and why no more than `WINDOW` are open at once: whoever
takes the lane of a silent daemon makes so many numbers void that nothing of that daemon's can ever come after.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from statesvc_client.errors import StateError, Unavailable

from ... import logs
from .calls import Lost
from .fetching import Fetcher
from .items import text
from .layout import PK, SK, WID, lane_key
from .registry import BEAT, BYTES, END, HOLDER, LaneState, Registry, Seen
from .slots import MOST_PARTS, Place, number_of, void_item

log = logs.get(__name__)

WINDOW = 64
"""Numbers that may be open at once."""

SEALED = WINDOW + MOST_PARTS
"""Numbers made void behind the last slot of a silent daemon, or behind the end it told last. It gives out none behind
those: numbers it gave up count for nothing until it has told others how far the lane is settled; and of several that
one slot was to take up only the first may be there, as a void one."""

PUBLISH_SECONDS = 0.1
"""How often others are told how far the lane reaches, while it grows."""

BEAT_SECONDS = 10.0
"""How often a daemon says that it is there, while nothing grows."""

SILENT_SECONDS = 60.0
"""How long a beat must stand still, by our own clock, until the lane is taken from its holder."""

CLOSING_SECONDS = 3.0
"""What leaving a lane may take; one that was not left is taken later."""

VOID = "void"
"""The `wid` of a number nobody wrote anything at."""


class OwnLane:
    """Numbers of one lane, in memory."""

    def __init__(self, state: LaneState) -> None:
        self.number = state.number
        self.end = state.end
        """Every number up to it is settled."""
        self.bytes = state.bytes
        self._next = state.end + 1
        self._free: set[int] = set()
        """Given back, and not the highest."""
        self._done: set[int] = set()
        self._room = asyncio.Event()
        self._seen = state.end
        """The highest number others can see to be taken or settled."""
        self.wants_telling: Callable[[], None] = lambda: None
        """Is told when the lane has to be published for more numbers to be given out."""

    async def take(self, count: int) -> int:
        """The first of so many numbers in a row, once there is room for them."""
        while (first := self.take_now(count)) is None:
            self.wants_telling()
            self._room.clear()
            await self._room.wait()
        return first

    def take_now(self, count: int) -> int | None:
        """The same, without waiting; None when there is no room."""
        if self._next + count - 1 - min(self.end, self._seen) > WINDOW:
            return None
        first, self._next = self._next, self._next + count
        return first

    def done(self, first: int, count: int) -> bool:
        """These numbers are taken, by a slot or by a void one. Returns whether the settled end moved."""
        self._done.update(range(first, first + count))
        self._seen = max(self._seen, first + count - 1)
        return self._advance()

    def told(self, end: int) -> None:
        """Others know how far it is settled."""
        self._seen = max(self._seen, end)
        self._room.set()

    def give_back(self, first: int, count: int) -> bool:
        """Nothing came of them, and nothing can. The highest are given out again."""
        self._free.update(range(first, first + count))
        while self._next - 1 in self._free:
            self._next -= 1
            self._free.remove(self._next)
        return self._advance()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is known to be under way."""
        return self._next == self.end + 1

    def skip_to(self, top: int) -> None:
        """Others took numbers up to `top`: none of them is given out any more."""
        self._done.update(range(self._next, top + 1))
        self._next = max(self._next, top + 1)
        self._advance()

    def _advance(self) -> bool:
        before = self.end
        while (number := self.end + 1) in self._done or number in self._free:
            self._done.discard(number)
            self._free.discard(number)
            self.end = number
        self._room.set()
        return self.end != before


class Holding:
    """Holds a lane: takes it, keeps it, tells how far it reaches, and leaves it."""

    def __init__(self, fetcher: Fetcher, registry: Registry, epoch: str) -> None:
        self.holder = os.urandom(8).hex()
        self.lane: OwnLane
        self._fetcher = fetcher
        self._registry = registry
        self._epoch = epoch
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beat = 1
        self._moving = asyncio.Lock()
        self.moved: Callable[[OwnLane], None] = lambda _: None
        """Is told when another lane was taken."""
        self.looked: Callable[[Seen], None] = lambda _: None
        """Is told what a look at the registry showed."""

    async def begin(self, lanes: dict[int, LaneState]) -> None:
        self.lane = await self._take(lanes)
        self.lane.wants_telling = self.grew
        self._task = asyncio.create_task(self._tend(), name="dynamodb-lane")

    async def _take(self, lanes: dict[int, LaneState]) -> OwnLane:
        state = await self._registry.take_lane(self._epoch, self.holder, list(lanes.values()))
        self._beat = state.beat
        # Whoever had it before may have written more than it came to say.
        top = await self.top_of(state.number, state.end) if state.end else 0
        try:
            await self.seal_missing(state.number, state.end, top)
        except Lost:
            raise Unavailable("DynamoDB did not answer in time when a lane of the log was taken") from None
        return OwnLane(state._replace(end=max(state.end, top)))

    async def top_of(self, lane: int, above: int) -> int:
        """The highest number above one that is taken in a lane; `above` when there is none."""
        request = {**self._above(lane, above), "ScanIndexForward": False, "Limit": 1}
        page = await self._fetcher.page("Query", request, None)
        return max((number_of(item) for item in page.items), default=above)

    async def seal_missing(self, lane: int, above: int, last: int) -> None:
        """Make every number void, above one and up to another, that is not taken. Raises `Lost` when no reply tells."""
        if last <= above:
            return
        taken = {number_of(item) for item in await self._fetcher.query_all(self._above(lane, above))}
        free = [Place(lane, number) for number in range(above + 1, last + 1) if number not in taken]
        await asyncio.gather(*map(self.seal, free))

    def _above(self, lane: int, above: int) -> dict[str, Any]:
        return {
            "TableName": self._fetcher.tables.companion,
            "KeyConditionExpression": f"{PK} = :lane AND {SK} > :above",
            "ExpressionAttributeValues": {":lane": {"S": lane_key(self._epoch, lane)}, ":above": {"S": f"{above:014}"}},
            "ProjectionExpression": SK,
            "ConsistentRead": True,
        }

    def grew(self) -> None:
        """The lane reaches further than others know."""
        self._grown.set()

    async def end(self) -> None:
        """Tell how far it reaches, and leave it to others."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        with suppress(StateError, TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                # What is still open is made void by whoever takes the lane from a holder that is silent.
                await self._say(remove=[HOLDER] if self.lane.is_settled else [])

    async def _tend(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._grown.wait()
            self._grown.clear()
            try:
                if not await self._say():
                    await self.contested(self.lane)
            except StateError as problem:
                log.warning("lane_not_published", lane=self.lane.number, why=problem.text)
                self._grown.set()
            await asyncio.sleep(PUBLISH_SECONDS)

    async def _say(self, remove: Sequence[str] = ()) -> bool:
        """How far the lane reaches. False when it is not ours any more."""
        lane, self._beat = self.lane, self._beat + 1
        values = {BEAT: {"N": str(self._beat)}, END: {"N": str(lane.end)}, BYTES: {"N": str(lane.bytes)}}
        given = {":mine": {"S": self.holder}}
        end = lane.end
        changed = await self._registry.change(
            self._epoch, lane.number, values, remove=remove, only_if="holder = :mine", given=given
        )
        if changed is not None:
            lane.told(end)
        return changed is not None

    # --- trouble -----------------------------------------------------------------------------------------------------

    async def contested(self, lane: OwnLane) -> None:
        """Somebody took a number of ours: find out whether the lane still is ours, else take another."""
        async with self._moving:
            if lane is not self.lane:
                return
            seen = await self._registry.look()
            self.looked(seen)
            if seen.meta is None or seen.meta.epoch != self._epoch:
                raise Unavailable("everything in the tables was replaced: the daemon begins anew")
            state = seen.lanes.get(lane.number)
            if state is not None and state.holder == self.holder:
                lane.skip_to(await self.top_of(lane.number, lane.end))
                return
            log.warning("lane_lost", lane=lane.number)
            self.lane = await self._take(seen.lanes)
            self.lane.wants_telling = self.grew
            self.moved(self.lane)

    async def seal(self, place: Place) -> str | None:
        """Make a number void for good. Returns None when that was done, else the `wid` of what is there.

        Raises `Lost` when no reply tells.
        """
        there = await self._fetcher.put_if_absent(void_item(self._epoch, place, VOID))
        return None if there is None else text(there, WID)

    async def bury(self, silent: LaneState) -> bool:
        """Take a lane from a silent holder, and leave it free: nothing of that holder's can come into it any more."""
        lane, last = silent.number, await self.top_of(silent.number, silent.end) + SEALED
        try:
            await self.seal_missing(lane, silent.end, last)
        except Lost:
            return False
        freed = await self._registry.change(
            self._epoch,
            lane,
            {END: {"N": str(last)}, BEAT: {"N": str(silent.beat + 1)}},
            remove=[HOLDER],
            only_if=f"#{BEAT} = :seen AND #{HOLDER} = :theirs",
            given={":seen": {"N": str(silent.beat)}, ":theirs": {"S": silent.holder}},
        )
        if freed is not None:
            log.warning("lane_freed", lane=lane, holder=silent.holder)
        return freed is not None
