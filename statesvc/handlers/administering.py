"""Administration on the wire: snapshot, restore, check, sweep, freeze, thaw.

Owns the shape of their replies and how often progress is told. Must not know what is done to the store.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from statesvc_client import wire

from ..answers import Answer, Handler, Session, replied, succeeded
from ..store.administration import Administration
from ..store.store import Store

PROGRESS_SECONDS = 0.2
"""Between two lines of progress: as smooth as a person sees."""

Sweep = Callable[[], Awaitable[dict[str, int]]]


class AdministrationHandlers:
    """Ops for admins."""

    def __init__(self, store: Store, administration: Administration, sweep: Sweep) -> None:
        self._store = store
        self._administration = administration
        self._sweep_now = sweep

    def table(self) -> dict[type[wire.Request], Handler]:
        return {
            wire.Snapshot: self._snapshot,
            wire.Restore: self._restore,
            wire.Check: self._check,
            wire.Sweep: self._sweep,
            wire.Freeze: self._freeze,
            wire.Thaw: self._thaw,
        }

    async def _snapshot(self, request: wire.Snapshot, session: Session) -> Answer:
        done = await self._administration.snapshot(request.path, _Progress(request, session).tell)
        return replied(succeeded(request, done=done), request)

    async def _restore(self, request: wire.Restore, session: Session) -> Answer:
        done = await self._administration.restore(request.path, _Progress(request, session).tell)
        return replied(succeeded(request, done=done, epoch=self._store.engine.epoch), request)

    async def _check(self, request: wire.Check, session: Session) -> Answer:
        found = await self._administration.check(_Progress(request, session).tell, repair=request.repair)
        done = {name: getattr(found, name) for name in ("records", "tombstones", "references", "notes")}
        reply = succeeded(request, problems=found.problems, truncated=found.truncated, done=done)
        if request.repair:
            reply.repaired = found.repaired
        return replied(reply, request)

    async def _sweep(self, request: wire.Sweep, _: Session) -> Answer:
        self._store.check_thawed()
        return replied(succeeded(request, done=await self._sweep_now()), request)

    async def _freeze(self, request: wire.Freeze, _: Session) -> Answer:
        await self._administration.freeze()
        return replied(succeeded(request), request)

    async def _thaw(self, request: wire.Thaw, _: Session) -> Answer:
        await self._administration.thaw()
        return replied(succeeded(request), request)


class _Progress:
    """Tells one client how far its request is, if it wants to know, and not more often than it can look."""

    def __init__(self, request: wire.Admin, session: Session) -> None:
        self._request = request
        self._connection = session.connection
        self._next = 0.0 if request.progress else float("inf")

    def tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_SECONDS
        line = wire.ProgressLine(self._request.request_id, wire.Progress(done, total))
        # A client that takes nothing at the moment misses this one; the next says more.
        self._connection.push(wire.encode_line(line))
