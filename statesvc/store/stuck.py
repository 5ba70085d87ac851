"""Stuck records: live ones that do not move, and why that is thought.

Owns the reasons. Must not change anything: what the daemon can set right by itself is in duties.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from statesvc_client.errors import BadRequest
from statesvc_client.wire import Stuck, Unmoved

from ..backends.port import LINK, Key, Query, Row
from . import queries, queueing
from .clock import SECOND
from .ending import has_failed, is_blocked
from .kinds import Kind
from .leasing import is_leased
from .matching import matching
from .records import LEASED, decode
from .store import Store
from .turns import Turns

DEFAULT_SECONDS = 300.0
DEFAULT_LIMIT = 100


class Found(NamedTuple):
    """What stuck answers."""

    unmoved: list[Unmoved]
    truncated: bool


async def find_stuck(store: Store, request: Stuck) -> Found:
    """Live records of a kind with a lifecycle, leased ones of any other kind, that do not move: oldest first."""
    kind = store.kinds[request.kind]
    limit = DEFAULT_LIMIT if request.limit is None else request.limit
    if limit < 1:
        raise BadRequest(f"limit must be positive, not {limit}")
    limit = min(limit, store.limits.list_limit)
    seconds = DEFAULT_SECONDS if request.seconds is None else request.seconds
    judge = _Judge(store, kind, seconds)
    found: list[Unmoved] = []
    async with aclosing(_watched_over(store, kind, queries.read_filter(request.filter))) as rows:
        async for row in rows:
            reasons = await judge.reasons(row)
            if reasons and len(found) == limit:
                return Found(found, truncated=True)
            if reasons:
                found.append(_unmoved(row, reasons))
    return Found(found, truncated=False)


async def _watched_over(store: Store, kind: Kind, given: queries.Filter) -> AsyncGenerator[Row, None]:
    """The records that could be stuck at all."""
    if kind.lifecycle is not None:
        live = frozenset({queries.NO_STATUS, *kind.lifecycle.live})
        async with aclosing(matching(store, kind, given, among=live)) as rows:
            async for row in rows:
                yield row
        return
    await store.commits.settled()
    tests = queries.tests(given, kind, queries.wanted_statuses(given, kind))
    ids = None if given.ids is None else frozenset(given.ids)
    walk = Query(kind=kind.name, limit=queries.FIRST_STEP, term=(f"label:{LINK}", LEASED), descending=False)
    turns = Turns()
    async with aclosing(queries.walked(store.engine, walk)) as rows:
        async for row in rows:
            if (ids is None or row.id in ids) and queries.passes(row, tests):
                yield row
            await turns.pause()


def _unmoved(row: Row, reasons: list[str]) -> Unmoved:
    return Unmoved(id=row.id, status=row.keys.status, reasons=reasons, updated_at=decode(row.body).get("updatedAt"))


class _Judge:
    """Finds reasons, all as of one moment."""

    def __init__(self, store: Store, kind: Kind, seconds: float) -> None:
        self._store = store
        self._kind = kind
        self._now = store.clock.now()
        self._silence = int(seconds * SECOND)
        self._lapsed: set[Key] = {key for key, _ in store.leases.past_ttl()}

    async def reasons(self, row: Row) -> list[str]:
        found = []
        if self._lease_lapsed(row):
            found.append("lease lapsed")
        if row.keys.due is not None and row.keys.due < self._now and row.keys.started is not None:
            found.append("past its deadline")
        if self._is_silent(row):
            found.append(f"no update for {(self._now - row.keys.updated) // SECOND} seconds")
        return found + (await self._held_back(row) if is_blocked(row) else [])

    def _lease_lapsed(self, row: Row) -> bool:
        if is_leased(row):
            self._store.leases.note(row)
            return row.key in self._lapsed
        # A lapse returns a queued record to its queue; any other is left as its holder left it.
        lifecycle = self._kind.lifecycle
        runs = lifecycle is not None and row.keys.status == lifecycle.claimed
        return runs and row.token > 0 and self._kind.queue is None

    def _is_silent(self, row: Row) -> bool:
        """Whether a record that should move has not. One that waits should only once its time has come."""
        lifecycle, keys = self._kind.lifecycle, row.keys
        if lifecycle is None or self._now - keys.updated <= self._silence:
            return False
        if is_leased(row) and row.key not in self._lapsed:
            return False  # its holder gives signs of life
        if keys.status is None or keys.status in lifecycle.unstarted:
            return keys.started is None and keys.due is not None and self._now - keys.due > self._silence
        return True

    async def _held_back(self, row: Row) -> list[str]:
        queue = self._kind.queue
        needed = queueing.dependencies(decode(row.body))
        if queue is None:
            return []
        others = await self._store.engine.get([(self._kind.name, name) for name in needed])
        reasons = []
        for name, other in zip(needed, others, strict=True):
            if other is None:
                reasons.append(f"depends on {name}, which is not there")
            elif has_failed(self._kind, queue, other):
                reasons.append(f"depends on {name}, which failed")
        return reasons
