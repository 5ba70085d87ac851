"""Watching: events as an iterator, each once and in order, over every reconnect; and the history of one record.

Owns what an event looks like to an agent, and the bound on those that wait to be looked at. Must not know caches. How a
watch is kept up is in feed.py.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from .adapter_errors import Closed
from .core import Core
from .errors import StateError
from .face import Face
from .feed import Line
from .writes import named

T = TypeVar("T")

MOST_EVENTS = 1024
"""Events held for a slow reader; more wait with the daemon, which ends a watch that falls too far behind."""


PAGE_EVENTS = 1000
"""Events of a history that are asked for at once."""


class Event(Struct, rename="camel", frozen=True, kw_only=True):
    """Something that happened to a record."""

    cursor: str
    """Its place in the log: watch `after` it to go on from here."""
    type: str
    """created updated status deleted claimed released lapsed left, or what a client gave to `emit`."""
    kind: str
    id: str
    revision: int
    at: str = ""
    uid: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    """The status before and after, where it moved."""
    message: str | None = None
    data: Any = None
    record: dict[str, Any] | None = None
    """The record after it; None once it is deleted or has left the filter."""


_decoder = msgspec.json.Decoder(Line[Event])


class _Inbox:
    """Events that have come and were not looked at yet. Lives on the store's loop."""

    def __init__(self, core: Core, request: dict[str, Any]) -> None:
        self.events: deque[Event] = deque()
        self.feed = core.feeds.make(request, _decoder, self._take)
        self._core = core
        self._moved = asyncio.Event()
        self._full = False
        self._problem: Exception | None = None

    async def run(self) -> None:
        try:
            await self._core.feeds.run(self.feed)
        except StateError as problem:
            self._problem = problem
        except asyncio.CancelledError:
            self._problem = Closed("the watch was closed")
            raise
        finally:
            self._moved.set()

    def _take(self, events: list[Event]) -> None:
        self.events.extend(events)
        self._moved.set()
        if len(self.events) >= MOST_EVENTS and not self._full:
            self._full = True
            self.feed.listen(wanted=False)

    def make_room(self) -> None:
        """Let more come, once half of what was held is gone."""
        if self._full and len(self.events) <= MOST_EVENTS // 2:
            self._full = False
            self.feed.listen(wanted=True)

    @property
    def wants_room(self) -> bool:
        return self._full and len(self.events) <= MOST_EVENTS // 2

    async def until_begun(self) -> None:
        begun = asyncio.ensure_future(self.feed.begun.wait())
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait([begun, moved], return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
            moved.cancel()
        if self._problem is not None and not self.events:
            raise self._problem

    async def until_any(self) -> None:
        """Return once there is an event to look at. Raises why there will be none any more."""
        while not self.events:
            if self._problem is not None:
                raise self._problem
            self._moved.clear()
            await self._moved.wait()


class _Watch:
    """A watch from entering, or from the first event asked for, to its end."""

    def __init__(self, store: Face, request: dict[str, Any]) -> None:
        self._store = store
        self._core = store._core  # noqa: SLF001 - part of the store
        self._request = request
        self._inbox: _Inbox | None = None
        self._task: asyncio.Task[Any] | None = None
        self._closed = False
        self._pid = os.getpid()
        self.cursor: str | None = request.get("after")
        """Behind the last event that was handed out: where another watch may go on, also after a restart."""

    async def _begin(self) -> _Inbox:
        if self._closed or os.getpid() != self._pid:
            raise Closed("the watch was closed")
        if self._inbox is None:
            await self._core.begin()
            inbox = self._inbox = _Inbox(self._core, self._request)
            task = self._task = self._core.spawn_task(inbox.run())
            # Dropped without being closed, a watch would go on for nobody.
            weakref.finalize(self, _cancel_soon, asyncio.get_running_loop(), task)
        return self._inbox

    async def _enter(self) -> None:
        inbox = await self._begin()
        await inbox.until_begun()
        self.cursor = self.cursor or inbox.feed.begun_at

    async def _next(self) -> Event:
        inbox = await self._begin()
        await inbox.until_any()
        event = self._handed_out(inbox)
        inbox.make_room()
        return event

    def _handed_out(self, inbox: _Inbox) -> Event:
        event = inbox.events.popleft()
        self.cursor = event.cursor
        return event

    async def _close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    try:
        if not task.done():
            loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:  # the loop was closed, and everything on it
        pass


class Watch(_Watch):
    """`async with state.watch(...) as changes: async for event in changes: ...`

    Inside the block nothing is missed from its first line on; without a block, from the first event asked for.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._closed:
            raise StopAsyncIteration
        return await self._next()

    async def close(self) -> None:
        """End it and its connection."""
        await self._close()

    aclose = close

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()


class BlockingWatch(_Watch):
    """`with state.watch(...) as changes: for event in changes: ...`; as `Watch`, for threads."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._closed:
            raise StopIteration
        inbox = self._inbox
        if inbox is None or not inbox.events:
            return self._run(self._next())
        event = self._handed_out(inbox)  # what is here needs no other thread
        if inbox.wants_room and self._core.loop is not None:
            self._core.loop.call_soon_threadsafe(inbox.make_room)
        return event

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event, or None when none came in time."""
        try:
            return self._run(asyncio.wait_for(self._next(), timeout))
        except TimeoutError:
            return None

    def close(self) -> None:
        """End it and its connection."""
        self._run(self._close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._store._run(work)  # noqa: SLF001 - part of the store

    def __enter__(self) -> Self:
        self._run(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch_request(kind: str, filter: Mapping[str, Any] | None, after: str | None) -> dict[str, Any]:
    request: dict[str, Any] = {"kind": kind}
    if filter is not None:
        request["filter"] = dict(filter)
    if after is not None:
        request["after"] = after
    return request


async def history(
    core: Core, id: str, kind: str, *, after: str | None = None, limit: int | None = None, timeout: float | None = None
) -> list[Event]:
    """What happened to a record, oldest first, as far as the log is kept; at most `limit` events."""
    events: list[Event] = []
    page: dict[str, Any] = {} if after is None else {"after": after}
    while limit is None or len(events) < limit:
        page["limit"] = PAGE_EVENTS if limit is None else min(limit - len(events), PAGE_EVENTS)
        reply = await core.call("history", {**named(kind, id), **page}, timeout)
        events += msgspec.convert(reply.get("events", []), list[Event])
        if not reply.get("nextCursor"):
            break
        page["after"] = reply["nextCursor"]
    return events
