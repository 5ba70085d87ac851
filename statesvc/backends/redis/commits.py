"""Units on their way to the script that commits them, and its answers on their way back.

Owns how a batch is cut into calls and how replies become results. Must not know connections or epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from statesvc_client.errors import BadRequest, StateError

from ..port import REMOVED, UNIT_WRITES, Event, Key, Result, Row, Stamp, Unit
from . import rows
from .epochs import Acknowledged
from .faults import LOST, NOT_NOW, Refused
from .scripting import Argument

CALL_UNITS = 128
CALL_BYTES = 256 * 1024
"""What one call of the script takes at most, unless a unit alone is larger: some milliseconds of the server's time."""

WIDTH, STORED = 8, 5
"""Arguments a write takes, and which of them is the stored row."""

SURELY_NOTHING = NOT_NOW | {"OOM", "MISCONF", "WRONGPASS", "NOSCRIPT", "NOTLOCAL"}
"""Refusals that come before a script's first write. Behind any other one a part of it may have been carried out."""


class Part(NamedTuple):
    """A unit, with its place in the batch and as the script reads it."""

    place: int
    unit: Unit
    arguments: Sequence[Argument]
    size: int

    def stored(self, number: int) -> bytes:
        """The stored form of the row of a write."""
        found = self.arguments[1 + number * WIDTH + STORED]
        return found if isinstance(found, bytes) else b""


class Call(NamedTuple):
    """Units that go in one call of the script."""

    parts: Sequence[Part]

    @property
    def arguments(self) -> list[Argument]:
        found: list[Argument] = [len(self.parts)]
        for part in self.parts:
            found += part.arguments
        return found


def parts(batch: Sequence[Unit], digest: Callable[[Row], str]) -> list[Part]:
    """`digest` tells that of the stored form of a row."""
    return [_part(place, unit, digest) for place, unit in enumerate(batch)]


def _part(place: int, unit: Unit, digest: Callable[[Row], str]) -> Part:
    if len(unit) > UNIT_WRITES:
        raise BadRequest(f"a unit holds {len(unit)} writes; the limit is {UNIT_WRITES}")
    found: list[Argument] = [len(unit)]
    size = 0
    for row, expects, event, basis in unit:
        goes = row.deleted == REMOVED
        stored = b"" if goes and event is None else rows.pack(row)
        told, at = (b"", 0) if event is None else (rows.pack_event(event), event.at)
        exactly = "" if basis is None else digest(basis)
        found += (row.kind, row.id, rows.stamp(expects), exactly, int(goes), stored, at, told)
        size += len(stored) + len(told) + len(row.id)
    return Part(place, unit, found, size)


def next_run(waiting: list[Part]) -> list[Call]:
    """Take from `waiting` the calls that may be sent at once.

    A call that shares a record with an earlier one waits for its answer: what was refused there nobody may build on,
    and only within one call does the script see to that itself.
    """
    cut = list(_cut(waiting))
    if len(cut) == 1:
        waiting.clear()
        return [Call(cut[0])]
    run: list[Call] = []
    sent: set[Key] = set()
    taken = 0
    for some in cut:
        keys = {write.row.key for part in some for write in part.unit}
        if not sent.isdisjoint(keys):
            break
        run.append(Call(some))
        sent |= keys
        taken += len(some)
    del waiting[:taken]
    return run


def _cut(waiting: Sequence[Part]) -> Iterator[list[Part]]:
    some: list[Part] = []
    size = 0
    for part in waiting:
        if some and (len(some) == CALL_UNITS or size + part.size > CALL_BYTES):
            yield some
            some, size = [], 0
        some.append(part)
        size += part.size
    if some:
        yield some


class Told(NamedTuple):
    """Entries of the log with numbers in a row."""

    first: int
    entries: Sequence[tuple[Event, Row]]


class Outcome:
    """What became of the units of one batch, run by run."""

    def __init__(self, units: int) -> None:
        self.results: list[Result] = ["unknown"] * units
        self.newest: Acknowledged | None = None
        self.told: list[Told] = []
        """What the log says since, call by call."""
        self.seq: int | None = None
        self.log_bytes = 0
        self.touched = False
        """Something was applied, or may have been."""
        self.replaced = False
        """The store is no longer the one this daemon knows."""
        self.refused: Refused | int | None = None
        """Why the server did not even look: its refusal, or the format it is written in. Of several refusals one that
        leaves something open."""
        self._refused_parts: list[Part] = []
        self._lost: set[tuple[Key, Stamp]] = set()

    def take(self, call: Call, reply: Any) -> None:
        if reply is LOST:
            self.touched = True
            self._settle(call, ["unknown"] * len(call.parts))
        elif isinstance(reply, Refused):
            self._refuse(call, reply)
        elif reply[0] == b"ok":
            self._answered(call, reply)
        else:
            self.replaced = self.replaced or reply[0] == b"epoch"
            self.refused = int(reply[1]) if reply[0] == b"format" else self.refused
            self.conflict(call.parts)

    def _refuse(self, call: Call, reply: Refused) -> None:
        surely = reply.code in SURELY_NOTHING
        if self.refused is None or not surely:
            self.refused = reply
        self._settle(call, ["unknown"] * len(call.parts))
        if surely:
            self._refused_parts += call.parts

    def conflict(self, parts: Sequence[Part]) -> None:
        """Nothing of these units was applied, and they are to be decided again."""
        self._settle(Call(parts), ["conflict"] * len(parts))

    def never_applied(self, parts: Sequence[Part], why: StateError) -> None:
        """Nothing of these units was or will be applied, nor of those that were refused without a look."""
        for some in (parts, self._refused_parts):
            self._settle(Call(some), [why] * len(some))

    def _answered(self, call: Call, reply: Sequence[Any]) -> None:
        self.seq, self.log_bytes = int(reply[1]), int(reply[3])
        results: list[Result] = ["applied" if each == ord("1") else "conflict" for each in reply[2]]
        self._settle(call, results)
        if "applied" in results:
            self.touched = True
            self._tell(call, results, self.seq)

    def _tell(self, call: Call, results: Sequence[Result], seq: int) -> None:
        """Note what a call has put into the log: its entries have numbers in a row, the newest one is `seq`."""
        entries = [
            (write.event, write.row)
            for part, result in zip(call.parts, results, strict=True)
            if result == "applied"
            for write in part.unit
            if write.event is not None
        ]
        if entries:
            _, row = entries[-1]
            self.newest = Acknowledged(seq, row.kind, row.id, row.uid, row.revision)
            self.told.append(Told(seq - len(entries) + 1, entries))

    def _settle(self, call: Call, results: Sequence[Result]) -> None:
        for part, result in zip(call.parts, results, strict=True):
            self.results[part.place] = result
            if result != "applied":
                self._lost.update((write.row.key, write.row.stamp) for write in part.unit)

    def applied(self, run: Sequence[Call]) -> Iterator[Row]:
        """The rows a run has made."""
        for call in run:
            for part in call.parts:
                if self.results[part.place] == "applied":
                    yield from (write.row for write in part.unit)

    def stored(self, run: Sequence[Call]) -> Iterator[tuple[Row, bytes | None]]:
        """The rows of a run in the form they are stored in now; None for those that went, or that nobody knows of."""
        for call in run:
            for part in call.parts:
                applied = self.results[part.place] == "applied"
                for number, write in enumerate(part.unit):
                    stays = applied and write.row.deleted != REMOVED
                    yield write.row, part.stored(number) if stays else None

    def without_lost(self, waiting: list[Part]) -> list[Part]:
        """What may still be sent: units that build on what was not made are refused here."""
        if not self._lost:
            return waiting
        left: list[Part] = []
        for part in waiting:
            if any((write.row.key, write.expects) in self._lost for write in part.unit):
                self.conflict([part])
            else:
                left.append(part)
        return left


def without(some: Sequence[Part], waiting: Sequence[Part]) -> list[Part]:
    places = {part.place for part in some}
    return [part for part in waiting if part.place not in places]
