"""The order of writes to one record, where deciding takes a read from a shared engine and may have to be done again.

Owns who may decide next. Must not know what is decided. Writes to different records go side by side; those to one
record are decided in the order they came, each on what the one before it leads to, without waiting for its commit. One
that lost a race decides again before those behind it, which then have lost as well. A read stands in line too: it sees
what came before it, and holds back what its own sender sends after it, until it has looked.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from statesvc_client.errors import StateError, Unavailable

from ..backends.port import Key, Row


class Turn:
    """One write's place in the line of its record."""

    __slots__ = (
        "_client",
        "_line",
        "_reads",
        "_sender",
        "_spoiled",
        "_woken",
        "foundation",
        "number",
        "row",
        "stood",
    )

    def __init__(self, line: _Line, number: int, client: str, sender: object, *, reads: bool) -> None:
        self._line = line
        self.number = number
        self._client = client
        self._sender = sender
        self._reads = reads
        self._spoiled: StateError | None = None
        """Why an earlier write of the same client to the record did not get through."""
        self.row: Row | None = None
        """What it is trying to commit."""
        self.foundation: Row | None = None
        self.stood: Row | None = None
        """What it wrote, once a write behind it was committed on top of that."""
        self._woken: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, StateError):
            self.failed(error)
        self.leave()

    def failed(self, error: StateError) -> None:
        """It did not get through. If it has to be sent again, nothing of its client may overtake it."""
        if error.stops_the_writer():
            # Those behind are told what went wrong first, not that this one was told of it.
            self._line.spoil_behind(self, self._spoiled or error)

    def spoil(self, client: str, failure: StateError) -> None:
        """A write ahead failed. Another of its client must not take effect before it was sent again."""
        if client and client == self._client:
            self._spoiled = failure

    async def mine(self) -> None:
        """Return when everything ahead is decided."""
        await self._until(self._line.all_ahead_decided)

    async def first(self) -> None:
        """Return when nothing is ahead: what is stored then is what everything before led to."""
        self.undecided()
        await self._until(self._line.is_first)

    async def _until(self, holds: Callable[[Turn], bool]) -> None:
        while not holds(self):
            await self._wakes()
        self.check_unspoiled()

    def when_mine(self, go_on: Callable[[], None]) -> None:
        """Call it when everything ahead is decided, at once if that is so."""
        if self._line.all_ahead_decided(self):
            go_on()
        else:
            self._wakes().add_done_callback(lambda _: self.when_mine(go_on))

    def _wakes(self) -> asyncio.Future[None]:
        self._woken = asyncio.get_running_loop().create_future()
        return self._woken

    def check_unspoiled(self) -> None:
        if self._spoiled is not None:
            raise Unavailable(f"an earlier write to the record failed: {self._spoiled.text}")

    @property
    def is_first(self) -> bool:
        return self._line.is_first(self)

    def decided(self, row: Row | None = None, foundation: Row | None = None) -> None:
        """Those behind may decide on what this one leads to. `foundation`: what it was itself built on, while that is
        not settled."""
        self._line.forget_row_of(self)
        self.row, self.foundation = row, foundation
        self._line.decided(self)

    def undecided(self) -> None:
        """It has to decide again, before those behind it."""
        self._line.undecide(self)

    def applied(self, foundation: Row | None) -> None:
        """It was committed: so was what it was built on, whatever was heard of that."""
        if foundation is not None:
            self._line.stood(foundation)

    def leave(self) -> None:
        """It is over, well or badly."""
        self._line.leave(self)

    def concerns(self, other: Turn) -> bool:
        """Whether another behind it has to mind it."""
        return not self._reads or (self._sender is other._sender and not other._reads)

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    @property
    def client(self) -> str:
        return self._client


class _Line:
    """Those who want one record, in the order they came."""

    __slots__ = ("_forget", "by_row", "turns", "undecided")

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget
        """Is called when nobody wants the record any more."""
        self.turns: list[Turn] = []
        self.undecided: list[Turn] = []
        """The ones among them whose turn is still to come; a record may be wanted by thousands."""
        self.by_row: dict[int, Turn] = {}
        """Who tries to commit which row."""

    def is_first(self, turn: Turn) -> bool:
        for other in self.turns:
            if other is turn:
                return True
            if other.concerns(turn):
                return False
        return True

    def all_ahead_decided(self, turn: Turn) -> bool:
        for other in self.undecided:
            if other.number >= turn.number:
                return True
            if other.concerns(turn):
                return False
        return True

    def decided(self, turn: Turn) -> None:
        """Let the next one go on that has not decided; it wakes the one behind it when it has."""
        self._take_out(turn)
        if turn.row is not None:
            self.by_row[id(turn.row)] = turn
        self._wake()

    def undecide(self, turn: Turn) -> None:
        if turn not in self.undecided:
            bisect.insort(self.undecided, turn, key=_number)

    def _take_out(self, turn: Turn) -> None:
        undecided = self.undecided
        if undecided and undecided[0] is turn:
            del undecided[0]
        elif turn in undecided:
            undecided.remove(turn)

    def _wake(self) -> None:
        if self.undecided:
            self.undecided[0].wake()

    def stood(self, row: Row) -> None:
        """This very row was there: whoever tried to commit it did, and so did whoever that was built on."""
        found: Row | None = row
        while found is not None:
            turn = self.by_row.get(id(found))
            # A row that was given up may be gone, and another be where it was.
            if turn is None or turn.row is not found or turn.stood is not None:
                return
            turn.stood, found = found, turn.foundation

    def spoil_behind(self, turn: Turn, failure: StateError) -> None:
        for other in self.turns:
            if other.number > turn.number:
                other.spoil(turn.client, failure)

    def leave(self, turn: Turn) -> None:
        """Nothing of it is kept: with what it wrote it would stay until somebody looks for cycles, which is seldom."""
        self.turns.remove(turn)
        self._take_out(turn)
        self.forget_row_of(turn)
        if self.turns:
            self._wake()
        else:
            self._forget()

    def forget_row_of(self, turn: Turn) -> None:
        if turn.row is not None and self.by_row.get(id(turn.row)) is turn:
            del self.by_row[id(turn.row)]


class Sequence:
    """The lines of all records that are being written."""

    def __init__(self) -> None:
        self._lines: dict[Key, _Line] = {}
        self._numbers = itertools.count()

    def enter(self, key: Key, client: str = "", sender: object = None, *, reads: bool = False) -> Turn:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(partial(self._lines.pop, key))
        turn = Turn(line, next(self._numbers), client, sender, reads=reads)
        line.turns.append(turn)
        line.undecided.append(turn)
        return turn


def _number(turn: Turn) -> int:
    return turn.number
