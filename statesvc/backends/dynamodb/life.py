"""One epoch of the store, as this daemon takes part in it.

Owns how the parts that write and read the log are put together, and who is told of what. Must not know the port. When
everything in the tables is replaced a new life begins, and nothing of the old one is used any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..port import Row
from .building import Builder
from .checking import Checking
from .committing import Committer
from .compaction import Compaction
from .fetching import Fetcher
from .following import Following
from .known import Memory, Recent
from .lanes import Holding, OwnLane
from .registry import Registry, Seen
from .slots import Slot
from .tails import Tails

if TYPE_CHECKING:
    from ...config.model import Dynamodb


class Life:
    """A lane to write into, all lanes to read, and what is known of records."""

    def __init__(self, fetcher: Fetcher, registry: Registry, epoch: str, options: Dynamodb, recent: Recent) -> None:
        self.epoch = epoch
        self.memory = Memory()
        self.holding = Holding(fetcher, registry, epoch)
        self.tails = Tails(fetcher, registry, epoch, self.holding)
        self.following = Following(self.tails, fetcher, self.holding, epoch, options.index_lag_seconds)
        builder = Builder(fetcher.tables, self.memory, epoch, self.tails.was_cut, fetcher.now)
        self.committer = Committer(fetcher, self.memory, self.holding, builder, options.connections)
        self.compaction = Compaction(fetcher, registry, self.tails, epoch)
        self.checking = Checking(fetcher, self.tails, self.following, epoch)
        self._recent = recent
        self.committer.applied = self._applied
        self.committer.wrote = self._wrote
        self.committer.settled = self._settled
        self.holding.moved = self.tails.adopt
        self.tails.arrived = self._arrived

    async def begin(self, seen: Seen, looked: Callable[[Seen], None]) -> None:
        """Take a lane. `looked` is told what every later look at the registry shows."""
        await self.holding.begin(seen.lanes)
        # Whoever began to replace everything meanwhile has not seen that we are here.
        await self.tails.look()
        self.tails.adopt(self.holding.lane)
        await self.following.begin()
        self.tails.looked = self.holding.looked = looked

    async def leave(self) -> None:
        """End when nothing is being committed any more: whoever finds the lane free may count on that."""
        await self.committer.settled_all()
        await self.end()

    async def end(self) -> None:
        await self.following.end()
        await self.committer.end()
        await self.holding.end()

    def _applied(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._recent.committed(row)

    def _wrote(self, lane: OwnLane, slot: Slot) -> None:
        # A lane that was taken from this daemon is read like those of others.
        if lane is self.holding.lane:
            self.tails.lanes[lane.number].keep(slot)

    def _settled(self, lane: OwnLane) -> None:
        if lane is self.holding.lane:
            self.tails.lanes[lane.number].grown(lane.end)
        self.holding.grew()
        self.following.grew()

    def _arrived(self, slot: Slot) -> None:
        for entry in slot.entries:
            self._recent.told(entry.row)
            self.memory.overtaken(entry.row)
