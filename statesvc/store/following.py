"""Following the log: cursors as clients know them, filters on events, and reading on.

Owns which entries a follower is told and when one that takes nothing has fallen too far behind. Must not know
connections, nor how an engine keeps its log. What an event looks like is in telling.py.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from statesvc_client.errors import BadRequest, Gone, StateError, Unavailable
from statesvc_client.wire import Fields, printable

from ..backends.port import LINK, Cursor, Engine, LogEntry, Row
from . import queries
from .kinds import Kind
from .queries import Filter, Test
from .store import Store
from .telling import Teller
from .writes import OWN_EVENTS

OLDEST = "0"
"""What a client sends to begin with the oldest entry kept."""

PAGE_ENTRIES = 256
"""Entries read at a time; a few hundred microseconds of work for one follower."""

PAGES_AT_ONCE = 16
"""Pages that all followers together take in one turn of the loop. Those who catch up must not delay requests, however
many they are."""

GROWTH_SECONDS = 30.0
"""How long a follower sleeps at most before it looks whether all is as it was."""

_EPOCH = re.compile(r"[0-9a-f-]{8,64}")
_LIST_AGAIN = "list again, then watch from asOf"


# --- cursors -------------------------------------------------------------------------------------------------------


class Bookmark(NamedTuple):
    """A place in the log of one epoch."""

    epoch: str
    cursor: Cursor

    @property
    def text(self) -> str:
        """As clients are told it."""
        return f"{self.epoch}.{self.cursor}" if self.cursor else OLDEST


def read_bookmark(text: str, epoch: str) -> Bookmark:
    """The place a client means."""
    if text == OLDEST:
        return Bookmark(epoch, "")
    of, _, cursor = text.partition(".")
    if not cursor or not _EPOCH.fullmatch(of):
        why = f'use one that a list or an event gave, or "{OLDEST}" for the oldest kept'
        raise BadRequest(f"not a cursor: {printable(text)}; {why}")
    if of != epoch:
        raise _of_another_epoch(of)
    return Bookmark(epoch, cursor)


def _of_another_epoch(epoch: str) -> Gone:
    return Gone(f"the log of epoch {epoch} is gone: {_LIST_AGAIN}")


# --- filters on events ---------------------------------------------------------------------------------------------

Verdict = Literal["told", "left"] | None
"""What a follower is told of an entry: the event, that the record left its filter, or nothing."""


class Sieve:
    """Which events one follower is told. An event passes when the record matches afterwards; a change after which it
    no longer does is told as `left`, a deletion as what it is."""

    __slots__ = ("_before", "_kind", "_now", "is_open")

    def __init__(self, kind: Kind, given: Filter) -> None:
        if given.limit is not None or given.sort_by is not None or given.sort_desc is not None:
            raise BadRequest("events come as they happen: limit, sortBy and sortDesc belong to a list")
        self._kind = kind.name
        self._now = _tests(kind, given)
        self._before = _tests(kind, _answerable_for_before(given))
        self.is_open = not self._now
        """Every event of the kind passes."""

    def verdict(self, entry: LogEntry) -> Verdict:
        row = entry.row
        if row.kind != self._kind:
            return None
        if self.is_open:
            return "told"
        if row.deleted:
            return "told" if self._matched_before(entry) else None
        if queries.passes(row, self._now):
            return "told"
        return "left" if _changed(entry) and self._matched_before(entry) else None

    def _matched_before(self, entry: LogEntry) -> bool:
        return queries.passes(_before(entry), self._before)


def _tests(kind: Kind, given: Filter) -> list[Test]:
    tests = queries.tests(given, kind, queries.wanted_statuses(given, kind))
    if given.ids is not None:
        ids = frozenset(given.ids)
        tests.insert(0, lambda row, _: row.id in ids)
    return tests


def _answerable_for_before(given: Filter) -> Filter:
    """The part of a filter that can be asked about a record before a change. The rest counts as having matched: to be
    told once too often that a record left does no harm."""
    known = ((name, value) for name, value in (given.labels or {}).items() if isinstance(value, str) and name != LINK)
    labels = dict(known)
    unknown: Fields = {
        f"{field}_{side}": None for field in ("updated", "started", "completed") for side in ("after", "before")
    }
    return msgspec.structs.replace(given, labels=labels, where=None, **unknown)


def _changed(entry: LogEntry) -> bool:
    """Whether there was a record before, and it was another: a client's own event changes nothing."""
    return entry.row.revision > 1 and entry.event.type in OWN_EVENTS


def _before(entry: LogEntry) -> Row:
    """The record before a change, as far as its index keys tell."""
    event, row = entry.event, entry.row
    keys, was = row.keys, event.was
    if event.before != event.after:
        keys = msgspec.structs.replace(keys, status=event.before)
    if was is not None:
        keys = msgspec.structs.replace(keys, node=was.node, owner=was.owner, labels=was.labels)
    return msgspec.structs.replace(row, keys=keys)


# --- reading on ----------------------------------------------------------------------------------------------------


class Feed:
    """The log, for all who follow it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = store.engine
        self.teller = Teller(store.limits.frame_bytes)
        self.turns = asyncio.Semaphore(PAGES_AT_ONCE)
        """Held while a page is read and passed on, until the next turn of the loop."""
        self.tally = Tally(store.engine)

    def sieve(self, kind_name: str, filter: Fields | None) -> Sieve:
        kind = self._store.kinds[kind_name]
        given = queries.read_filter(filter)
        if len(given.ids or ()) > self._store.limits.list_limit:
            raise BadRequest(f"ids names {len(given.ids or ())} records; the limit is {self._store.limits.list_limit}")
        return Sieve(kind, given)

    async def begin(self, after: str | None) -> Bookmark:
        """Where to follow from: a cursor that is good, or now, behind everything sent before."""
        if after is None:
            await self._store.commits.settled()
            epoch = self._engine.epoch
            return Bookmark(epoch, await self._engine.position())
        bookmark = read_bookmark(after, self._engine.epoch)
        await self.read(bookmark, 1)
        return bookmark

    async def read(self, bookmark: Bookmark, limit: int = PAGE_ENTRIES) -> list[LogEntry]:
        try:
            entries = await self._engine.read_log(bookmark.cursor, limit)
        except Gone as gone:
            raise Gone(f"cannot follow from {printable(bookmark.text)}: {gone.text}; {_LIST_AGAIN}") from None
        except Unavailable:
            self._check_not_replaced(bookmark)
            raise
        # An engine may take an old cursor for one of its new log.
        if self._engine.epoch != bookmark.epoch:
            raise _of_another_epoch(bookmark.epoch)
        return entries

    async def grew(self, bookmark: Bookmark) -> None:
        """Return when there may be more to read."""
        try:
            await self._engine.log_grew(bookmark.cursor, GROWTH_SECONDS)
        except Unavailable:
            self._check_not_replaced(bookmark)
            raise

    def _check_not_replaced(self, bookmark: Bookmark) -> None:
        """An engine that is away because another log takes the place of this one will not have this one again."""
        if self._store.being_replaced:
            raise _of_another_epoch(bookmark.epoch)


async def place_of(store: Store, before: Bookmark, row: Row) -> str:
    """The cursor right behind the entry that made this row, looked for behind a place before it. Where the entry cannot
    be found near, that place: from there it is not missed either. Nor can it where the log cannot be read; the entry is
    committed all the same, so that is no failure."""
    cursor = before.cursor
    with suppress(StateError):
        for _ in range(PAGES_AT_ONCE):
            for entry in await store.engine.read_log(cursor, PAGE_ENTRIES):
                cursor = entry.cursor
                if entry.row.key == row.key and entry.row.stamp == row.stamp:
                    return before._replace(cursor=cursor).text
    return before.text


class Tally:
    """Counts what the log grows by while somebody cannot follow, and raises the alarm. Costs nothing while all can."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen = 0
        self._alarms: dict[asyncio.Future[None], int] = {}
        self._counting: asyncio.Task[None] | None = None

    def alarm(self, most: int) -> asyncio.Future[None]:
        """Is done once the log has grown by more than `most` entries from here."""
        alarm = asyncio.get_running_loop().create_future()
        self._alarms[alarm] = self._seen + most
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count(), name="follower-tally")
        return alarm

    def forget(self, alarm: asyncio.Future[None]) -> None:
        del self._alarms[alarm]
        if not self._alarms and self._counting is not None:
            self._counting.cancel()
            self._counting = None

    async def _count(self) -> None:
        while True:
            try:
                await self._count_from(await self._engine.position())
            except StateError:
                # The log was cut or the engine is away: whoever reads on is told so; here it only delays the alarm.
                await asyncio.sleep(1.0)

    async def _count_from(self, cursor: Cursor) -> None:
        while True:
            entries = await self._engine.read_log(cursor, PAGE_ENTRIES)
            if not entries:
                await self._engine.log_grew(cursor, GROWTH_SECONDS)
            else:
                cursor = entries[-1].cursor
                self._seen += len(entries)
                self._raise_alarms()
            await asyncio.sleep(0)

    def _raise_alarms(self) -> None:
        for alarm, most in self._alarms.items():
            if self._seen > most and not alarm.done():
                alarm.set_result(None)
