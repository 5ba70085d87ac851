"""Following on the wire: watch, unwatch, history.

Owns the life of a watch: its reply, its lines, its end. Must not decide which events pass or what they look like.

A watch reads the log by itself, from its own cursor, and only while its connection takes what it is sent: nothing is
kept for a watcher that does not read. Its filter is kept for as long as it lives, and has a bound. It ends with a
failure line when it fell too far behind, when the log it needs is gone or when the engine fails; the connection goes
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from statesvc_client import wire
from statesvc_client.errors import BadRequest, Busy, NotFound, Unavailable
from statesvc_client.wire import Fields, printable

from ..answers import Answer, Handler, Session, replied, succeeded
from ..backends.port import LogEntry
from ..store import telling
from ..store.following import PAGE_ENTRIES, Bookmark, Feed, Sieve
from ..store.history import history
from ..store.store import Store
from ..store.turns import Turns
from .records import Fail

CHUNK_BYTES = 64 * 1024
"""Lines handed to the connection at a time; it is over its bound by so much at most, or by one line."""

VALUE_BYTES = 64
"""What a value of a filter takes besides its text, about."""


class Watching(NamedTuple):
    """Bounds on watches."""

    most: int = 64
    """Watches of one connection."""
    behind: int = 10_000
    """Changes that may happen while a watcher takes nothing."""
    filter_bytes: int = 1024 * 1024
    """What the filters of all watches of one connection may take."""


class FollowHandlers:
    """Ops that follow the log."""

    def __init__(self, store: Store, bounds: Watching, fail: Fail) -> None:
        self._store = store
        self._bounds = bounds
        self._fail = fail
        self._feed = Feed(store)

    def table(self) -> dict[type[wire.Request], Handler]:
        return {wire.Watch: self._watch, wire.Unwatch: self._unwatch, wire.History: self._history}

    async def _watch(self, request: wire.Watch, session: Session) -> Answer:
        if request.target:
            raise BadRequest(f"a watch is by filter: put {printable(request.target)} into the filter's ids")
        if request.request_id in session.watches:
            raise BadRequest("a watch of this connection has the same requestId: give each its own")
        if len(session.watches) >= self._bounds.most:
            raise Busy(f"this connection has {self._bounds.most} watches, which is the limit: end one first")
        kept_bytes = self._weighed(request, session)
        sieve = self._feed.sieve(request.kind, request.filter)
        bookmark = await self._feed.begin(request.after)
        if session.is_leaving:
            raise Unavailable("this connection ends: watch on another one")
        watch = Watch(request, session, self._feed, sieve, kept_bytes, bookmark, self._bounds.behind, self._fail)
        session.watches[request.request_id] = watch
        answer = replied(succeeded(request, cursor=bookmark.text), request)
        answer.sent = watch.start
        return answer

    def _weighed(self, request: wire.Watch, session: Session) -> int:
        """What its filter takes. It stays for as long as the watch does, and connections may be many."""
        most, size = self._bounds.filter_bytes, filter_bytes(request.filter)
        if size > most:
            raise BadRequest(f"the filter takes about {size} bytes; the limit is {most}: shorten it")
        taken = size + sum(watch.kept_bytes for watch in session.watches.values() if isinstance(watch, Watch))
        if taken > most:
            would = f"the filters of this connection's watches would take about {taken} bytes"
            raise Busy(f"{would}; the limit is {most}: end one first, or watch on another connection")
        return size

    def _unwatch(self, request: wire.Unwatch, session: Session) -> Answer:
        """Nothing is sent for a watch that was ended, so the reply comes behind its last line."""
        live = session.watches
        if request.watch is not None and request.watch not in live:
            raise NotFound(f"no watch of this connection has the requestId {printable(str(request.watch))}")
        named = request.request_id if request.watch is None else request.watch
        for watch in [live[named]] if named in live else list(live.values()):
            watch.end()
        return replied(succeeded(request), request)

    async def _history(self, request: wire.History, _: Session) -> Answer:
        chronicle = await history(self._store, self._feed.teller, request)
        reply = succeeded(request, events=chronicle.events, next_cursor=chronicle.next_cursor)
        return replied(reply, request)


def filter_bytes(given: Fields | None) -> int:
    """About what a filter takes in memory. A sign inside a text may count for a value: too much is better than less."""
    if not given:
        return 0
    text = msgspec.json.encode(given)
    return len(text) + VALUE_BYTES * sum(map(text.count, b",[{"))


class Watch:
    """One watch of one connection."""

    def __init__(
        self,
        request: wire.Watch,
        session: Session,
        feed: Feed,
        sieve: Sieve,
        kept_bytes: int,
        bookmark: Bookmark,
        behind: int,
        fail: Fail,
    ) -> None:
        # The line about its end repeats no more of the request: the rest may be as long as a frame.
        self._request = wire.Watch(request_id=request.request_id, kind=request.kind)
        self._session = session
        self._feed = feed
        self._sieve = sieve
        self.kept_bytes = kept_bytes
        self._bookmark = bookmark
        self._behind = behind
        self._fail = fail
        self._head = telling.head(request.request_id, bookmark.epoch)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Its reply is on the way: lines may follow. It may have been ended before that."""
        if self._is_live():
            self._task = asyncio.create_task(self._follow(), name="watch")

    def _is_live(self) -> bool:
        return self._session.watches.get(self._request.request_id) is self

    def end(self) -> None:
        """No line follows from here on."""
        del self._session.watches[self._request.request_id]
        task, self._task = self._task, None  # it keeps what cancelled it, with its frames, and they keep us
        if task is not None:
            task.cancel()

    async def _follow(self) -> None:
        try:
            while True:
                await self._until_there_is_room()
                async with self._feed.turns:
                    entries = await self._feed.read(self._bookmark)
                    await self._pass_on(entries)
                    await asyncio.sleep(0)
                if len(entries) < PAGE_ENTRIES:
                    await self._feed.grew(self._bookmark)
        except asyncio.CancelledError:
            # Not by us, if it is live: an engine that closes its files cancels those who read them.
            self._give_up(Unavailable("the log was closed; watch again"))
        except Exception as problem:  # noqa: BLE001 - whatever it is, the watcher must hear that it is over
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        if not self._is_live():
            return  # it was ended, whatever came of what it was doing; its id may be another's by now
        self._task = None
        self.end()
        self._session.connection.say(self._fail(self._request, self._session, problem).line)

    async def _until_there_is_room(self) -> None:
        room = self._session.connection.room()
        if room is None:
            return
        alarm = self._feed.tally.alarm(self._behind)
        try:
            await asyncio.wait([room, alarm], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.tally.forget(alarm)
        if not room.done():
            what_to_do = "read faster, and watch again from the last cursor that came"
            raise Busy(
                f"more than {self._behind} changes came while the lines of this watch were not taken: {what_to_do}"
            )

    async def _pass_on(self, entries: Sequence[LogEntry]) -> None:
        """Send what passes, as far as the client takes it; the bookmark moves behind what was sent."""
        lines: list[bytes] = []
        size = 0
        turns = Turns()
        for entry in entries:
            rest = self._rest(entry)
            if rest is not None:
                lines += (self._head, rest)
                size += len(rest)
            if size >= CHUNK_BYTES:
                if not self._sent(lines, entry):
                    return
                lines, size = [], 0
            if not self._sieve.is_open:
                await turns.pause()
        if entries:
            self._sent(lines, entries[-1])

    def _rest(self, entry: LogEntry) -> bytes | None:
        """The line of an event behind what all lines of this watch begin with; None when it does not pass."""
        verdict = self._sieve.verdict(entry)
        if verdict == "told":
            return self._feed.teller.rest(entry, self._bookmark.epoch)
        return None if verdict is None else self._feed.teller.rest_of_left(entry)

    def _sent(self, lines: list[bytes], upto: LogEntry) -> bool:
        if lines and not self._session.connection.push(b"".join(lines)):
            return False
        self._bookmark = self._bookmark._replace(cursor=upto.cursor)
        return True
