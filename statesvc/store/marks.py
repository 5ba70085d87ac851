"""Exactly once: which writes of which client a record has taken.

Owns the marks kept beside a record and what they say about a write that comes again. Must not know what the write does.

A record keeps, per client, the seqs above that client's floor with the revision each made, in the same commit as the
write itself. A write that is not kept while a higher one is was refused when it first came. Marks of more clients than
the limit push out the oldest, whose name is noted: a resend of theirs is answered `unknown`, never applied.
"""

from __future__ import annotations

import zlib

import msgspec
from msgspec import Struct

from statesvc_client.errors import Conflict
from statesvc_client.wire import Write as WriteRequest

MOST_RUNS = 256
"""Runs kept of one client. One that moves its floor as it is answered never has so many."""

MOST_PUSHED_OUT = 256
"""Pushed-out clients noted by name; beyond that every resend without a mark is answered `unknown`."""


class Run(Struct, array_like=True, gc=False):
    """Writes in a row that made revisions in a row: a busy record costs one entry, not hundreds."""

    seq: int
    revision: int
    count: int = 1


class ClientMarks(Struct, array_like=True, gc=False):
    """One client's writes to one record, oldest first."""

    client: str
    runs: list[Run]

    def is_behind(self, seq: int) -> bool:
        """Whether a write comes behind all of these."""
        last = self.runs[-1]
        return seq >= last.seq + last.count

    def revision_of(self, seq: int) -> int | None:
        for run in reversed(self.runs):
            if run.seq <= seq:
                return run.revision + seq - run.seq if seq < run.seq + run.count else None
        return None

    def add(self, seq: int, revision: int, floor: int) -> None:
        """Note a write, always the highest so far, and forget what lies below the floor. One that is not is left out:
        it would make those above it look new."""
        last = self.runs[-1]
        if seq == last.seq + last.count and revision == last.revision + last.count:
            last.count += 1
        elif not self.is_behind(seq):
            return
        elif last.seq + last.count <= floor:
            self.runs = [Run(seq, revision)]
            return
        else:
            self.runs.append(Run(seq, revision))
        if self.runs[0].seq + self.runs[0].count <= floor:
            self.runs = [run for run in self.runs if run.seq + run.count > floor]


class Marks(Struct, array_like=True):
    """All marks of a record, the client that wrote last at the end; and whose marks were pushed out."""

    clients: list[ClientMarks] = []
    pushed_out: list[int] = []
    """Clients, each as a number of 32 bits."""

    def of(self, client: str) -> ClientMarks | None:
        for marks in self.clients:
            if marks.client == client:
                return marks
        return None

    def may_have_lost(self, client: str) -> bool:
        return len(self.pushed_out) > MOST_PUSHED_OUT or _number(client) in self.pushed_out

    def put_last(self, client: str, seq: int, revision: int, floor: int) -> None:
        """Note a write of a client that was not the last to write."""
        mine = self.of(client)
        if mine is None:
            mine = ClientMarks(client, [Run(seq, revision)])
        else:
            self.clients.remove(mine)
            mine.add(seq, revision, floor)
        self.clients.append(mine)

    def push_out(self, most_clients: int) -> None:
        while len(self.clients) > most_clients:
            self._note(self.clients.pop(0).client)
        newest = self.clients[-1]
        if len(newest.runs) > MOST_RUNS:
            del newest.runs[0]
            self._note(newest.client)

    def _note(self, client: str) -> None:
        number = _number(client)
        if number not in self.pushed_out and len(self.pushed_out) <= MOST_PUSHED_OUT:
            self.pushed_out.append(number)


def _number(client: str) -> int:
    """Two clients of one number cost an `unknown` too many, never a write applied twice."""
    return zlib.crc32(client.encode())


_decoder = msgspec.msgpack.Decoder(Marks)
_encoder = msgspec.msgpack.Encoder()


def earlier_answer(stored: bytes, client: str, request: WriteRequest) -> int | None:
    """The revision this write made when it was taken before, or None when it is to be decided now.

    Raises `Conflict`: not applied when it was refused before, outcome unknown when the marks that would know are gone.
    """
    if request.seq is None or not stored:
        return None
    marks = _decoder.decode(stored)
    mine = marks.of(client)
    if mine is not None and mine.is_behind(request.seq):
        return None
    made = None if mine is None else mine.revision_of(request.seq)
    if made is not None:
        return made
    passed = mine is not None
    # What came before the marks it has now may be among those pushed out; what comes behind them is not.
    lost = passed or (mine is None and request.again)
    if lost and marks.may_have_lost(client):
        # A refusal, not a fault of the service: sending the write once more would not tell more.
        raise Conflict(
            f"the record no longer knows whether write {request.seq} was applied: too many others came since",
            outcome="unknown",
        )
    if passed:
        raise Conflict(f"write {request.seq} was refused when it first came; a later one is already applied")
    return None


def with_write(stored: bytes, client: str, request: WriteRequest, revision: int, most: int) -> bytes:
    """The marks after this write."""
    seq = request.seq
    if seq is None:
        return stored
    if not stored:
        # What `Marks` with one client and one run looks like, made at once: every create of a client comes by here.
        return _encoder.encode((((client, ((seq, revision, 1),)),), ()))
    marks = _decoder.decode(stored)
    last = marks.clients[-1]
    # A floor above the write itself would forget it; the client that sent it cannot have meant that.
    floor = min(request.floor, seq)
    if last.client == client:
        last.add(seq, revision, floor)
    else:
        marks.put_last(client, seq, revision, floor)
    if len(marks.clients) > most or len(marks.clients[-1].runs) > MOST_RUNS:
        marks.push_out(most)
    return _encoder.encode(marks)
