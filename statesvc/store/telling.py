"""Telling what happened: from an entry of the log to the event clients are sent.

Owns the shape of an event and that each is encoded once, however many follow it. Must not know who is told, nor which
entries pass whose filter.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from statesvc_client.wire import Happening, RequestId

from ..backends.port import Cursor, LogEntry, Stamp
from .clock import Stamper
from .frames import ENVELOPE_BYTES
from .records import without_secrets

GENERATION_BYTES = 2 * 1024 * 1024
"""Encoded events kept for the next who wants them, twice over: some thousands of changes, which is how far those who
follow closely are apart."""

MOST_STATUS_CHARS = 128
"""A longer status is not repeated in `from` and `to`: the envelope of an event has a bound."""

_encode = msgspec.json.Encoder().encode
_OPENING = b'{"cursor":"'


class _Told(NamedTuple):
    """An encoded event, by the cursor it was first read with."""

    cursor: Cursor
    rest: bytes


class Teller:
    """Makes events out of entries, for everybody who follows the log."""

    def __init__(self, frame_bytes: int) -> None:
        self._room = frame_bytes - ENVELOPE_BYTES
        self._stamper = Stamper()
        self._epoch = ""
        self._young: dict[Stamp, _Told] = {}
        self._old: dict[Stamp, _Told] = {}
        self._young_bytes = 0

    # --- as values -------------------------------------------------------------------------------------------------

    def happening(self, entry: LogEntry, cursor: str) -> Happening:
        """An entry as a client sees it, which must fit a frame. Any record does, and whatever a client may say about
        it; where both together do not, the record is left out: it can be read by itself."""
        event = self._bare(entry, cursor, entry.event.type)
        said = _text_bytes(entry.event.message) + len(entry.event.data or b"")
        # Only what was said when frames were allowed to be larger does not fit.
        if said <= self._room:
            event.message = entry.event.message
            event.data = UNSET if entry.event.data is None else Raw(entry.event.data)
        else:
            said = 0
        body = b"" if entry.row.deleted else without_secrets(entry.row.body)
        if body and said + len(body) <= self._room:
            event.record = Raw(body)
        return event

    def _bare(self, entry: LogEntry, cursor: str, type: str) -> Happening:
        event, row = entry.event, entry.row
        return Happening(
            cursor=cursor,
            type=type,
            kind=row.kind,
            id=row.id,
            revision=row.revision,
            at=self._stamper.text(event.at),
            uid=row.uid,
            from_=_short(event.before),
            to=_short(event.after),
        )

    # --- as bytes --------------------------------------------------------------------------------------------------

    def rest(self, entry: LogEntry, epoch: str) -> bytes:
        """The line of an event from the engine's part of its cursor on, encoded once for all who read it."""
        if epoch != self._epoch:
            self._forget(epoch)
        row = entry.row
        stamp = (row.uid, row.revision)
        known = self._young.get(stamp) or self._old.get(stamp)
        if known is None:
            known = _Told(entry.cursor, _rest(self.happening(entry, entry.cursor)))
            self._keep(stamp, known)
        elif known.cursor != entry.cursor:
            # Where a log has several parts, everybody comes to an entry by a way of their own.
            return _inner(entry.cursor) + known.rest[len(_inner(known.cursor)) :]
        return known.rest

    def rest_of_left(self, entry: LogEntry) -> bytes:
        """The same for a change by which a record left a filter: what it became is not told."""
        return _rest(self._bare(entry, entry.cursor, "left"))

    def _keep(self, stamp: Stamp, told: _Told) -> None:
        self._young[stamp] = told
        self._young_bytes += len(told.rest)
        if self._young_bytes > GENERATION_BYTES:
            self._old, self._young, self._young_bytes = self._young, {}, 0

    def _forget(self, epoch: str) -> None:
        """After a restore the same revisions may be made again, otherwise."""
        self._epoch = epoch
        self._young, self._old, self._young_bytes = {}, {}, 0


def head(request_id: RequestId, epoch: str) -> bytes:
    """The line of an event up to the engine's part of its cursor."""
    return b'{"requestId":' + _encode(request_id) + b',"event":' + _OPENING + epoch.encode() + b"."


def event_bytes(event: Happening) -> int:
    """How much of a frame an event takes at most: a character of an id is four bytes, or a sign before it."""
    texts = 4 * len(event.id) + sum(map(_text_bytes, (event.message, event.from_, event.to)))
    return 512 + texts + sum(memoryview(part).nbytes for part in (event.data, event.record) if isinstance(part, Raw))


def _text_bytes(text: str | None) -> int:
    """What a text takes inside a line, its quotes included."""
    return 0 if text is None else len(_encode(text))


def _short(status: str | None) -> str | None:
    """Only records of kinds without a lifecycle have others, and only their fields are bounded."""
    return status if status is None or len(status) <= MOST_STATUS_CHARS else None


def _rest(event: Happening) -> bytes:
    return _encode(event)[len(_OPENING) :] + b"}\n"


def _inner(cursor: str) -> bytes:
    """A cursor as it stands inside a JSON string."""
    return _encode(cursor)[1:-1]
