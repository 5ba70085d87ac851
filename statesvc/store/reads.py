"""Reads of single records from a shared engine, many of them in one call.

Owns putting together what is asked for in one turn of the loop. Must not know what the rows are wanted for. A read
begins after it was asked for, so whoever asks sees everything committed before.
"""

from __future__ import annotations

import asyncio

from statesvc_client.errors import Internal, StateError

from .. import logs
from ..backends.port import Engine, Key, Row

log = logs.get(__name__)

MOST_KEYS = 100
"""Records in one call: what the narrowest engine takes, and small enough for an answer of bounded size."""

MOST_BYTES = 4 * 1024 * 1024
LEAST_USUAL_BYTES = 4 * 1024
"""Large records are fetched a few at a time: an answer must not take longer than a call may."""

Wanted = dict[Key, "asyncio.Future[Row | None]"]


class Reads:
    """Gathers keys, and fetches them together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: Wanted = {}
        self._fetching: set[asyncio.Task[None]] = set()
        self._usual = LEAST_USUAL_BYTES
        """About what a record takes, lately."""

    async def get(self, key: Key) -> Row | None:
        """The newest committed row, tombstones included."""
        found = self._wanted.get(key)
        if found is None:
            loop = asyncio.get_running_loop()
            if not self._wanted:
                loop.call_soon(self._fetch)
            found = self._wanted[key] = loop.create_future()
        # Several may wait for it: one that is cancelled must not take it from the others.
        return await asyncio.shield(found)

    def _fetch(self) -> None:
        wanted, self._wanted = self._wanted, {}
        keys = list(wanted)
        together = max(1, min(MOST_KEYS, MOST_BYTES // self._usual))
        for start in range(0, len(keys), together):
            some = {key: wanted[key] for key in keys[start : start + together]}
            task = asyncio.get_running_loop().create_task(self._fetch_some(some), name="reads")
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def _fetch_some(self, wanted: Wanted) -> None:
        try:
            rows = await self._engine.get(list(wanted))
        except StateError as problem:
            for each in wanted.values():
                each.set_exception(problem)
        except Exception as bug:
            log.exception("engine_failed", backend=self._engine.name)
            for each in wanted.values():
                each.set_exception(Internal(f"the engine failed: {type(bug).__name__}"))
        else:
            for each, row in zip(wanted.values(), rows, strict=True):
                each.set_result(row)
                size = 0 if row is None else len(row.body) + len(row.marks)
                self._usual = max(LEAST_USUAL_BYTES, size, self._usual - self._usual // 8)
