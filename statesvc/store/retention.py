"""Retention: ended records, tombstones and the log, each kept for its time and no longer.

Owns what is old enough to go, and how much of it goes at a time. Must not know how an engine gives space back. Only
terminal records go by age. A time in the future, left by a clock that was wrong, is put right in the index when it is
met: it counts as now.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from statesvc_client.errors import StateError

from ..backends.port import REMOVED, Key, LogKept, Place, Query, Row, SortField, Unit, Write, sort_key
from . import own, writes
from .clock import SECOND
from .heeding import until_heeded
from .leasing import is_leased
from .store import Store
from .together import all_done
from .writes import NOBODY, Subject

STEP = 128
"""Records removed in one step: a commit that others hardly notice."""

SLACK_SECONDS = 3600
"""How far ahead a time may be before it counts as wrong: what clocks of several machines may differ by."""

_AGES: tuple[SortField, ...] = ("completed", "deleted")
"""What age is counted from."""

SHARE = 0.25
SHARE_IN_A_HURRY = 0.5
"""Part of the time that removing may take: after a step it rests, so that others are served as if nothing happened."""


FAILED_SECONDS = 10.0
"""Until it is tried again after a failure: a damaged file stays damaged, and each try is told."""


class Kept(NamedTuple):
    """How long things are kept, in seconds, and how much of the log at most."""

    terminal_seconds: float
    log_seconds: float
    log_bytes: int
    interval_seconds: float


class Retention:
    """Removes what has been kept long enough, a little at a time."""

    def __init__(self, store: Store, kept: Kept) -> None:
        self._store = store
        self._kept = kept
        # Not at once: what was just brought in with old times can be looked at before it goes.
        self._next = store.clock.steady() + kept.interval_seconds
        self._rest_until = 0.0
        self._places: dict[tuple[str, SortField], Place] = {}
        """Where the next step begins, for each walk that is not over."""
        self.busy = False
        """There is more to remove than the last step did."""
        self._hurried = False

    def hurry(self) -> None:
        """Look at once, and rest less: somebody waits for it."""
        self._next = self._rest_until = 0.0
        self._places.clear()
        self._hurried = self.busy = True

    async def step(self) -> tuple[int, int]:
        """Remove a little of what is old: how many ended records were buried, how many tombstones removed."""
        clock = self._store.clock
        began = clock.steady()
        if began < self._rest_until or (not self.busy and began < self._next):
            return 0, 0
        try:
            buried, removed = await self._remove_some()
        except StateError:
            self._rest_until = clock.steady() + FAILED_SECONDS
            raise
        ended = clock.steady()
        if not self.busy:
            self._next, self._hurried = ended + self._kept.interval_seconds, False
        else:
            share = SHARE_IN_A_HURRY if self._hurried else SHARE
            self._rest_until = ended + (ended - began) * (1 / share - 1)
        return buried, removed

    async def _remove_some(self) -> tuple[int, int]:
        await self._put_right()
        buried, more_ended = await self._bury()
        removed, more_tombstones = await self._remove()
        more_log = await self._store.engine.compact(self._log_kept())
        self.busy = more_ended or more_tombstones or more_log
        return buried, removed

    def _log_kept(self) -> LogKept:
        return LogKept(self._store.clock.now() - int(self._kept.log_seconds * SECOND), self._kept.log_bytes)

    # --- times in the future ---------------------------------------------------------------------------------------

    async def _put_right(self) -> None:
        ahead = self._store.clock.now() + SLACK_SECONDS * SECOND
        for name in await self._store.engine.kinds():
            for sort in _AGES:
                walk = Query(kind=name, sort=sort, low=ahead, limit=STEP)
                rows = await self._store.engine.query(walk)
                await asyncio.gather(*(self._count_as_now(row.key, sort, ahead) for row in rows))

    async def _count_as_now(self, key: Key, sort: SortField, ahead: int) -> None:
        def decide(rows: list[Row | None]) -> Unit | None:
            (row,) = rows
            if row is None or (sort_key(row, sort) or 0) < ahead:
                return None
            now = self._store.clock.now()
            if sort == "deleted":
                right = msgspec.structs.replace(row, deleted=now)
            else:
                right = msgspec.structs.replace(row, keys=msgspec.structs.replace(row.keys, completed=now))
            return (Write(right, row.stamp, None),)

        await self._store.attempt([key], decide)

    # --- ended records ---------------------------------------------------------------------------------------------

    async def _bury(self) -> tuple[int, bool]:
        before = self._store.clock.now() - int(self._kept.terminal_seconds * SECOND)
        total, more = 0, False
        for kind in self._store.kinds.declared():
            if kind.lifecycle is not None:
                rows, left = await self._step_along(kind.name, "completed", before)
                total += await all_done(self._bury_one(row.key, before) for row in rows)
                more = more or left
        return total, more

    async def _step_along(self, kind: str, sort: SortField, before: int) -> tuple[list[Row], bool]:
        """The next rows of that age, and whether there are more behind them.

        What has to stay is passed once a turn: the next step goes on behind it, and from the front after the last.
        """
        place = self._places.pop((kind, sort), None)
        walk = Query(kind=kind, sort=sort, descending=False, high=before, limit=STEP, after=place)
        rows = await self._store.engine.query(walk)
        if len(rows) < STEP:
            return rows, False
        self._places[kind, sort] = Place(sort_key(rows[-1], sort), rows[-1].id)
        return rows, True

    async def _bury_one(self, key: Key, before: int) -> bool:
        kind = self._store.kinds[key[0]]

        def decide(rows: list[Row | None]) -> Unit | None:
            row = Subject(kind, key[1], rows[0]).living
            if row is None or not kind.is_terminal(row.keys.status) or is_leased(row):
                return None
            if row.keys.completed is None or row.keys.completed >= before:
                return None
            return (writes.bury(None, row, NOBODY, self._store.moment()),)

        return await self._store.attempt([key], decide) is not None

    # --- tombstones ------------------------------------------------------------------------------------------------

    async def _remove(self) -> tuple[int, bool]:
        """Tombstones go when the log no longer tells of what they were, except where a token must not come again."""
        before = self._store.clock.now() - int(self._kept.log_seconds * SECOND)
        total, more = 0, False
        for name in await self._store.engine.kinds():
            gone, left = await self._remove_of(name, before)
            total, more = total + gone, more or left
        return total, more

    async def _remove_of(self, name: str, before: int) -> tuple[int, bool]:
        kind = self._store.kinds[name]
        rows, left = await self._step_along(name, "deleted", before)
        going = [row for row in rows if not (kind.keeps_tokens and row.token)]
        await self._outlive_tokens(going)
        return await all_done(self._remove_one(row.key, before) for row in going), left

    async def _outlive_tokens(self, rows: list[Row]) -> None:
        """A token must not come again when the id does: what is given out from now on is above those that go."""
        highest = max((row.token for row in rows), default=0)
        if highest > self._store.token_floor:
            self._store.raise_token_floor(await own.raise_floor(self._store, highest))
            # Another daemon that finds nothing where a tombstone lay has to go by the floor. Of claims under way there
            # those that were decided on the tombstone are refused with it.
            await until_heeded(self._store.engine, under_way=False)

    async def _remove_one(self, key: Key, before: int) -> bool:
        def decide(rows: list[Row | None]) -> Unit | None:
            (row,) = rows
            if row is None or not row.deleted or row.deleted >= before:
                return None
            return (Write(msgspec.structs.replace(row, deleted=REMOVED), row.stamp, None),)

        return await self._store.attempt([key], decide) is not None
