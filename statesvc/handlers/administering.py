"""Administration on the wire: snapshot, restore, check, sweep, freeze, thaw, feed.

Owns the shape of their replies and how often progress is told. Must not know what is done to the store.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

from statesvc_client import wire
from statesvc_client.errors import BadRequest, Unavailable

from ..answers import Answer, Handler, Session, replied, succeeded
from ..store.administration import Administration
from ..store.feeding import Copy, Feeding
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
        self._feeding = Feeding(store)

    def table(self) -> dict[type[wire.Request], Handler]:
        return {
            wire.Snapshot: self._snapshot,
            wire.Restore: self._restore,
            wire.Check: self._check,
            wire.Sweep: self._sweep,
            wire.Freeze: self._freeze,
            wire.Thaw: self._thaw,
            wire.Feed: self._feed,
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

    async def _feed(self, request: wire.Feed, session: Session) -> Answer:
        if request.after is not None:
            entries = await self._feeding.entries(request.after)
            return replied(succeeded(request, feed=entries.piece, cursor=entries.cursor), request)
        copy = await self._copy(request, session)
        piece, more = await copy.piece()
        next_cursor = copy.name if more else None
        reply = succeeded(request, feed=piece, cursor=copy.cursor, next_cursor=next_cursor, total=copy.total)
        return replied(reply, request)

    async def _copy(self, request: wire.Feed, session: Session) -> Copy:
        """The copy a request means; a new one lasts no longer than the connection that began it."""
        if request.cursor is not None:
            return self._feeding.under_way(request.cursor)
        if request.request_id in session.watches:
            raise BadRequest("a watch of this connection has the same requestId: give each its own")
        copy = await self._feeding.begin()
        if session.is_leaving:
            copy.end()
            raise Unavailable("this connection ends: ask on another one")
        session.watches[request.request_id] = copy
        copy.ended.append(partial(session.watches.__delitem__, request.request_id))
        return copy


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
