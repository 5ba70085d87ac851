"""Reads of single records from a shared engine, many of them in one call.

Owns putting together what is asked for in one turn of the loop. Must not know what the rows are wanted for. A read
begins after it was asked for, so whoever asks sees everything committed before. Who has waited before waits no longer
than is left of that, though the call goes on for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from statesvc_client.errors import Internal, StateError

from .. import logs
from ..backends.port import Engine, Key, Row
from .handing import hand_over
from .patience import Alarm, Patience

log = logs.get(__name__)

MOST_KEYS = 100
"""Records in one call: what the narrowest engine takes, and small enough for an answer of bounded size."""

MOST_BYTES = 4 * 1024 * 1024
LEAST_USUAL_BYTES = 4 * 1024
"""Large records are fetched a few at a time: an answer must not take longer than a call may."""

Take = Callable[["Row | None", "StateError | None"], None]
"""Is given a row, or why it could not be read."""


class Reads:
    """Gathers keys, and fetches them together."""

    def __init__(self, engine: Engine, patience: Patience) -> None:
        self._engine = engine
        self._patience = patience
        self._wanted: dict[Key, list[Take]] = {}
        self._fetching: set[asyncio.Task[None]] = set()
        self._usual = LEAST_USUAL_BYTES
        """About what a record takes, lately."""

    async def get(self, key: Key, came: float | None = None) -> Row | None:
        """The newest committed row, tombstones included. `came`: when the request did that wants it, if that was not
        just now."""
        found: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self.ask(key, lambda row, problem: hand_over(found, row if problem is None else problem), came)
        return await found

    def ask(self, key: Key, take: Take, came: float | None = None) -> None:
        """The same for one who does not wait: `take` is called when the row is there."""
        if came is not None and self._patience.has_waited(came):
            take = _InTime(take, came, self._patience)
        takers = self._wanted.get(key)
        if takers is not None:
            takers.append(take)
            return
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._fetch)
        self._wanted[key] = [take]

    def _fetch(self) -> None:
        wanted, self._wanted = self._wanted, {}
        keys = list(wanted)
        together = max(1, min(MOST_KEYS, MOST_BYTES // self._usual))
        for start in range(0, len(keys), together):
            some = keys[start : start + together]
            fetching = self._fetch_some(some, [wanted[key] for key in some])
            task = asyncio.get_running_loop().create_task(fetching, name="reads")
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def _fetch_some(self, keys: list[Key], takers: list[list[Take]]) -> None:
        rows: list[Row | None] = [None] * len(keys)
        problem: StateError | None = None
        try:
            rows = await self._engine.get(keys)
            self._patience.answered()
        except StateError as away:
            problem = away
        except Exception as bug:
            log.exception("engine_failed", backend=self._engine.name)
            problem = Internal(f"the engine failed: {type(bug).__name__}")
        self._note_sizes(rows)
        for row, each in zip(rows, takers, strict=True):
            for take in each:
                self._hand(take, row, problem)

    def _hand(self, take: Take, row: Row | None, problem: StateError | None) -> None:
        """Let one have its row. A bug of its own is not paid for by those behind it."""
        try:
            take(row, problem)
        except Exception:
            log.exception("read_not_taken", backend=self._engine.name)

    def _note_sizes(self, rows: list[Row | None]) -> None:
        largest = max((len(row.body) + len(row.marks) for row in rows if row is not None), default=0)
        self._usual = max(LEAST_USUAL_BYTES, largest, self._usual - self._usual // 8)


class _InTime:
    """One who wants a row, and has waited before it could be asked for."""

    __slots__ = ("_alarm", "_take")

    def __init__(self, take: Take, came: float, patience: Patience) -> None:
        self._take = take
        self._alarm: Alarm | None = Alarm(patience, came, lambda: self(None, patience.over()))

    def __call__(self, row: Row | None, problem: StateError | None) -> None:
        if self._alarm is not None:
            self._alarm.turn_off()
            self._alarm = None
            self._take(row, problem)
