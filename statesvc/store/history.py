"""The history of one record: what the log still has of it, a page at a time.

Owns when a page ends. Must not know how the log is kept, or what an event looks like.
"""

from __future__ import annotations

from typing import NamedTuple

from statesvc_client.errors import BadRequest, NotFound
from statesvc_client.wire import Happening, History, printable

from ..backends.port import Key
from .following import Bookmark, read_bookmark
from .frames import Room
from .records import checked_id
from .store import Store
from .telling import Teller, event_bytes

DEFAULT_EVENTS = 100


class Chronicle(NamedTuple):
    """A page of a history."""

    events: list[Happening]
    next_cursor: str | None = None
    """Where to go on from, when there may be more."""


async def history(store: Store, teller: Teller, request: History) -> Chronicle:
    """What happened to a record behind a cursor, oldest first."""
    kind = store.kinds[request.kind]
    key = (kind.name, checked_id(kind, request.target, store.limits.id_chars))
    limit = _limit(request, store.limits.list_limit)
    bookmark = Bookmark(store.engine.epoch, "")
    if request.after is not None:
        bookmark = read_bookmark(request.after, store.engine.epoch)
    pending = store.commits.pending(key)
    if pending is not None:
        await pending[1].wait()
    page = await _page(store, teller, key, bookmark, limit)
    if not page.events and await store.look([key]) == [None]:
        raise NotFound(f"{kind.name} {printable(key[1])} was never there, or nothing of it is kept")
    return page


def _limit(request: History, most: int) -> int:
    if request.limit is not None and request.limit < 0:
        raise BadRequest(f"limit must be positive, not {request.limit}")
    return min(request.limit or DEFAULT_EVENTS, most)


async def _page(store: Store, teller: Teller, key: Key, bookmark: Bookmark, limit: int) -> Chronicle:
    """Engines may hand out fewer than asked for; only nothing at all means that there is no more."""
    events: list[Happening] = []
    room = Room(store.limits.frame_bytes)
    while entries := await store.engine.history(key, bookmark.cursor, limit - len(events)):
        for entry in entries:
            behind = bookmark._replace(cursor=entry.cursor)
            event = teller.happening(entry, behind.text)
            size = event_bytes(event)
            if not room.is_for(size):
                return Chronicle(events, bookmark.text)
            room.give(size)
            events.append(event)
            bookmark = behind
        if len(events) >= limit:
            return Chronicle(events, bookmark.text)
    return Chronicle(events)
