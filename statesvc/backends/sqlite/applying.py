"""The state follows the log: what is committed waits in memory and is applied in large batches.

Owns what waits, when it is applied, and who waits for that. Must not know commits or queries; it is told of the one and
asked by the other. Everything here runs on the loop; the work itself is done in the apply thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from statesvc_client.errors import NoSpace

from ... import logs
from ..port import Key, LogEntry, Row
from .cache import Waiting, present
from .files import is_full_disk
from .log import Change, End
from .state import StateFile
from .workers import Worker

log = logs.get(__name__)

APPLY_AT_ENTRIES = 4096
"""Entries that are applied at once when they have gathered; fewer wait a quarter of the time bound."""

PACE_BYTES = 16 * 1024 * 1024
"""Rows in memory that the state does not have yet, by their size; then commits wait for those under way. More of them
would make nothing faster: it is the state then that sets the pace."""

MOST_WAITING_BYTES = 64 * 1024 * 1024
"""The same while the disk is full: then commits are refused, as they are for their number."""

RETRY_SECONDS = 1.0
"""Pause before the state is applied again after the disk was full."""

DISK_FULL = "the disk is full: the write was not taken; free some space and send it again"


class Applying:
    """Changes on their way from the log into the state: gathered first, then under way."""

    def __init__(
        self,
        state: StateFile,
        applier: Worker,
        end: End,
        *,
        most_entries: int,
        most_seconds: float,
        failed: Callable[[Exception], None],
    ) -> None:
        """`failed` is told why the state can no longer follow."""
        self.stuck = False
        """The disk is full: the state cannot follow the log for now."""
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._applier = applier
        self._end = end
        self._most_entries = most_entries
        self._most_seconds = most_seconds
        self._tell_failed = failed
        self._fresh = Waiting()
        self._since = 0.0
        """Since when the oldest of them waits."""
        self._under_way = Waiting()
        self._is_under_way = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    # --- what waits ------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        return self._fresh.entries + self._under_way.entries

    def row(self, key: Key) -> Row | None:
        """The newest row of a record, if it waits; it may say that it was removed."""
        return self._fresh.rows.get(key) or self._under_way.rows.get(key)

    def rows(self) -> dict[Key, Row]:
        """The newest row of every record that waits."""
        return {**self._under_way.rows, **self._fresh.rows}

    def kinds(self) -> set[str]:
        return {row.kind for row in self.rows().values() if present(row) is not None}

    def history(self, key: Key, after: int) -> tuple[list[LogEntry], bool]:
        """What waits of the history of a record, and whether that is all of it because it was removed before."""
        parts = (self._fresh,) if key in self._fresh.removed else (self._under_way, self._fresh)
        entries = [entry for part in parts for entry in part.entries_of(key) if int(entry.cursor) > after]
        return entries, any(key in part.removed for part in parts)

    def take(self, changes: list[Change], keys: list[Key], replaced: list[Row | None], end: End) -> int:
        """Changes are committed, and end here; returns what they cost in bytes."""
        self._end = end
        if not self._fresh.rows:
            self._since = time.monotonic()
        self._fresh.know(keys, replaced)
        size = self._fresh.take(end.position - len(changes) + 1, changes, keys)
        self._plan()
        return size

    # --- waiting for the state -------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Commits wait while the state is too far behind the log."""
        while self._is_too_far_behind() and not self._is_over:
            if self.stuck:
                raise NoSpace(DISK_FULL)
            await self._applied_at(0)

    def _is_too_far_behind(self) -> bool:
        fresh, under_way = self._fresh, self._under_way
        if fresh.entries + under_way.entries >= self._most_entries:
            return True
        if fresh.bytes + under_way.bytes >= (MOST_WAITING_BYTES if self.stuck else PACE_BYTES):
            return True
        late = bool(fresh.rows) and time.monotonic() - self._since > self._most_seconds
        return late and self._is_under_way

    async def everything(self) -> None:
        """Wait until the state has all that was committed before this call, or is known not to get it for now."""
        if (self._fresh.rows or self._is_under_way) and not self.stuck and not self._is_over:
            await self._applied_at(self._end.position)

    async def _applied_at(self, position: int) -> None:
        waiter = self._loop.create_future()
        self._waiters.append((position, waiter))
        self._start()
        await waiter

    def _wake(self, upto: int) -> None:
        waiters, self._waiters = self._waiters, []
        for position, waiter in waiters:
            if position > upto:
                self._waiters.append((position, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def let_go(self) -> None:
        """Apply nothing more, and let nobody wait for it."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(self._end.position)

    # --- applying --------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        if self._fresh.entries >= APPLY_AT_ENTRIES or self._waiters:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._most_seconds / 4, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_under_way or not self._fresh.rows or self._is_over:
            return
        self._is_under_way = True
        self._under_way, self._fresh = self._fresh, Waiting()
        self._loop.create_task(self._apply(self._under_way, self._end))

    async def _apply(self, waiting: Waiting, upto: End) -> None:
        while not self._is_over:
            try:
                await self._applier.run(lambda: self._state.apply(waiting, upto))
            except Exception as problem:  # noqa: BLE001 - whatever else it is, the state can no longer follow
                if not is_full_disk(problem):
                    self._tell_failed(problem)
                    return
                # The log has it, so nothing is lost; reads see it in memory until there is space again.
                log.warning("disk_full", file="state.db", behind=waiting.entries, why=str(problem))
                self.stuck = True
                self._wake(self._end.position)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._applied(upto)
                return

    def _applied(self, upto: End) -> None:
        self.stuck = False
        self._under_way = Waiting()
        self._is_under_way = False
        self._wake(upto.position)
        if self._fresh.rows and not self._is_over:
            self._plan()
