"""Health: how the daemon is, check by check.

Owns the checks, their verdicts and what makes the daemon ready. Must not know the process or its connections: what they
know comes in as functions. Every check has a deadline, and none of them walks the records.

Live means that the process answers: restarting it would not help otherwise. Ready means that it takes reads and writes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from statesvc_client.errors import Internal, NoSpace, StateError
from statesvc_client.wire import Verdict

from ..backends.port import Query
from .clock import SECOND, Drift
from .store import Store

CHECK_SECONDS = 2.0
"""How long one check may take before it counts as failed."""

WARN_SHARE = 0.10
WARN_BYTES = 1024**3
FAIL_BYTES = 64 * 1024**2
"""Free space of the data folder: below the first two somebody should look, below the last writes will soon fail."""

WARN_WAITING = 40_000
"""Entries the state may be behind the log before somebody should look. Commits wait at 50,000 by default, or once
16 MiB of rows wait."""

SWEEP_LATE_SECONDS = 60.0
"""Duties are done several times a second; without a round for so long something holds them up."""

OVERDUE_SECONDS = 60.0
"""How long after its time a record may wait for the daemon before it counts as stuck."""

MOST_STUCK = 100
"""Counted one by one; beyond that it is enough to know that they are many."""

DURABILITIES = ("memory", "os", "disk", "replicated")
"""From the lowest to the highest."""

Result = TypeVar("Result")


class Space(NamedTuple):
    """Of the disk that holds the data, in bytes."""

    free: int
    total: int


class Facts(NamedTuple):
    """What only others know. All but the first may be left out."""

    why_not: Callable[[], str | None]
    """Why requests are not served now; None when they are."""
    space: Callable[[], Space | None] = lambda: None
    """Asked in a thread: a disk may not answer. None where nothing is kept on disk."""
    last_sweep: Callable[[], float | None] | None = None
    """When the duties were last done, on the steady clock; None before the first time."""
    measures: Callable[[], dict[str, int]] = dict
    wanted: str | None = None
    """The durability that was asked for."""


class Report(NamedTuple):
    """What health answers."""

    ready: bool
    checks: list[Verdict]
    measures: dict[str, int]


def space_of(folder: Path) -> Space | None:
    """The space where a folder lies; None as long as it is not there."""
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class Health:
    """Asks everybody how they are."""

    def __init__(self, store: Store, facts: Facts, drift: Drift | None = None) -> None:
        self._store = store
        self._facts = facts
        self._drift = drift or Drift(store.clock)
        self._began = store.clock.steady()
        self._failure: str | None = None

    def failed(self, error: StateError) -> None:
        """A write failed. Only a commit that failed is a matter of health."""
        if isinstance(error, (NoSpace, Internal)):
            self._failure = error.text

    def committed(self) -> None:
        self._failure = None

    async def report(self) -> Report:
        why_not = self._facts.why_not()
        engine = _fail("engine", why_not) if why_not is not None else await self._engine()
        checks = [engine, await self._disk(), self._commits(), self._clock()]
        if why_not is None:
            checks += [self._writes(), self._durability(), self._state(), self._sweeper()]
        if engine.verdict == "ok":
            checks.append(await self._stuck())
        ready = engine.verdict == "ok" and not self._store.frozen
        return Report(ready, [check for check in checks if check is not None], self._measures(why_not is None))

    def _measures(self, is_open: bool) -> dict[str, int]:
        engine = self._store.engine.measures() if is_open else {}
        return {**engine, "leases": len(self._store.leases), **self._facts.measures()}

    # --- the engine ------------------------------------------------------------------------------------------------

    async def _engine(self) -> Verdict:
        store = self._store
        try:
            await _in_time(store.engine.ping())
        except StateError as problem:
            return _fail("engine", problem.text)
        except TimeoutError:
            return _fail("engine", f"it has not answered for {CHECK_SECONDS:g} seconds")
        return _ok("engine", f"{store.engine.name} answers")

    def _writes(self) -> Verdict:
        bar = self._store.commits.bar
        return _ok("writes", "taken") if bar is None else _fail("writes", bar.why)

    def _durability(self) -> Verdict:
        given, wanted = self._store.engine.durability, self._facts.wanted
        known = given in DURABILITIES and wanted in DURABILITIES
        if known and DURABILITIES.index(given) < DURABILITIES.index(wanted or ""):
            return _warn("durability", f"{given}, where {wanted} was asked for")
        return _ok("durability", given)

    def _commits(self) -> Verdict:
        if self._failure is None:
            return _ok("commits", "the newest went well")
        return _fail("commits", f"the newest failed: {self._failure}")

    def _state(self) -> Verdict | None:
        waiting = self._store.engine.measures().get("entriesWaiting")
        if waiting is None:
            return None
        detail = f"{waiting} entries behind the log"
        return _warn("state", detail) if waiting > WARN_WAITING else _ok("state", detail)

    # --- around it -------------------------------------------------------------------------------------------------

    async def _disk(self) -> Verdict | None:
        try:
            space = await _in_time(asyncio.to_thread(self._facts.space))
        except OSError as problem:  # a TimeoutError is one
            return _fail("disk", f"it does not tell its free space: {str(problem) or 'no answer in time'}")
        if space is None:
            return None
        detail = f"{space.free // 1024**2} MiB of {space.total // 1024**2} MiB are free"
        if space.free < FAIL_BYTES:
            return _fail("disk", detail)
        low = space.free < WARN_BYTES or space.free < space.total * WARN_SHARE
        return _warn("disk", detail) if low else _ok("disk", detail)

    def _clock(self) -> Verdict:
        detail = f"{self._drift.seconds():+.0f} seconds since the start"
        if self._drift.trusted():
            return _ok("clock", detail)
        return _warn("clock", f"the time jumped, {detail}: nothing is removed by age until it is right again")

    def _sweeper(self) -> Verdict | None:
        if self._facts.last_sweep is None:
            return None
        now, last = self._store.clock.steady(), self._facts.last_sweep()
        ago = now - (self._began if last is None else last)
        detail = f"last done {ago:.0f} seconds ago" if last is not None else "not done yet, or by another daemon"
        # Where several daemons share a store one of them does the duties for all.
        late = ago > SWEEP_LATE_SECONDS and self._store.engine.immediate and not self._store.frozen
        return _warn("sweeper", detail) if late else _ok("sweeper", detail)

    async def _stuck(self) -> Verdict:
        try:
            lapsed, overdue = await _in_time(self._count_stuck())
        except (StateError, TimeoutError):
            return _warn("stuck", "could not be counted")
        if not lapsed + overdue:
            return _ok("stuck", "none")
        return _warn("stuck", f"{_some(lapsed)} leases lapsed, {_some(overdue)} records past their time")

    async def _count_stuck(self) -> tuple[int, int]:
        """What the indexes tell at once. Everything else is for the op `stuck`, which walks the records."""
        store = self._store
        lapsed = sum(1 for _ in islice(store.leases.past_ttl(), MOST_STUCK))
        before = store.clock.now() - int(OVERDUE_SECONDS * SECOND)
        overdue = 0
        for kind in store.kinds.declared():
            if kind.queue is not None:
                query = Query(kind=kind.name, sort="due", descending=False, high=before, limit=MOST_STUCK)
                overdue += len(await store.engine.query(query))
        return lapsed, overdue


async def _in_time(work: Awaitable[Result]) -> Result:
    return await asyncio.wait_for(work, CHECK_SECONDS)


def _some(number: int) -> str:
    return str(number) if number < MOST_STUCK else f"{MOST_STUCK} or more"


def _ok(name: str, detail: str) -> Verdict:
    return Verdict(name=name, verdict="ok", detail=detail)


def _warn(name: str, detail: str) -> Verdict:
    return Verdict(name=name, verdict="warn", detail=detail)


def _fail(name: str, detail: str) -> Verdict:
    return Verdict(name=name, verdict="fail", detail=detail)
