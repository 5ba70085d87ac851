"""Exactly once: which writes of which client a record has taken.

Owns the marks kept beside a record and what they say about a write that comes again. Must not know what the write does.

A record keeps, per client, the seqs above that client's floor with the revision each made, in the same commit as the
write itself. A write that is not kept while a higher one is was refused when it first came. Marks of more clients than
the limit push out the oldest; a resend that the pushed-out marks might have known is answered `unknown`.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from statesvc_client.errors import Conflict, Internal
from statesvc_client.wire import Write as WriteRequest

from .clock import SECOND


class ClientMarks(Struct, array_like=True, gc=False):
    """One client's writes to one record: when the last one came, and the revision each seq made."""

    client: str
    at: int
    made: dict[int, int]


class Marks(Struct, array_like=True):
    """All marks of a record, oldest client first, and when the newest mark that was pushed out had been made."""

    clients: list[ClientMarks] = []
    pushed_out: int = 0

    def of(self, client: str) -> ClientMarks | None:
        for marks in self.clients:
            if marks.client == client:
                return marks
        return None


_decoder = msgspec.msgpack.Decoder(Marks)
_encoder = msgspec.msgpack.Encoder()


def earlier_answer(stored: bytes, client: str, request: WriteRequest, window_start: int) -> int | None:
    """The revision this write made when it was taken before, or None when it is to be decided now.

    Raises `Conflict` when it was refused before, and `Internal` with outcome `unknown` when the marks that would know
    are gone.
    """
    if request.seq is None or not stored:
        return None
    marks = _decoder.decode(stored)
    mine = marks.of(client)
    if mine is not None:
        if request.seq in mine.made:
            return mine.made[request.seq]
        if request.seq < max(mine.made):
            raise Conflict(f"write {request.seq} was refused when it first came; a later one is already applied")
    elif request.again and marks.pushed_out >= window_start > 0:
        raise Internal(
            f"the record no longer knows whether write {request.seq} was applied: too many clients wrote to it since",
            outcome="unknown",
        )
    return None


def with_write(stored: bytes, client: str, request: WriteRequest, revision: int, now: int, most: int) -> bytes:
    """The marks after this write."""
    if request.seq is None:
        return stored
    marks = _decoder.decode(stored) if stored else Marks([])
    mine = marks.of(client)
    made = {request.seq: revision}
    if mine is not None:
        marks.clients.remove(mine)
        made = {seq: rev for seq, rev in mine.made.items() if seq >= request.floor} | made
    marks.clients.append(ClientMarks(client, now, made))
    while len(marks.clients) > most:
        marks.pushed_out = max(marks.pushed_out, marks.clients.pop(0).at)
    return _encoder.encode(marks)


def window_start(now: int, seconds: float) -> int:
    """Resends are expected within the window; what was pushed out before it cannot concern them."""
    return max(1, now - int(seconds * SECOND))
