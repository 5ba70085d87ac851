"""The order of writes to one record, where deciding takes a read from a shared engine and may have to be done again.

Owns who may decide next. Must not know what is decided. Writes to different records go side by side; those to one
record are decided in the order they came, each on what the one before it leads to, without waiting for its commit. One
that lost a race decides again before those behind it, which then have lost as well. A read stands in line too: it sees
what came before it, and holds back what its own sender sends after it, until it has looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from statesvc_client.errors import StateError, Unavailable

from ..backends.port import Key, Row


class Turn:
    """One write's place in the line of its record."""

    __slots__ = (
        "_client",
        "_decided",
        "_key",
        "_left",
        "_reads",
        "_sender",
        "_sequence",
        "_spoiled",
        "_woken",
        "foundation",
        "row",
        "stood",
    )

    def __init__(self, sequence: Sequence, key: Key, client: str, sender: object, *, reads: bool) -> None:
        self._sequence = sequence
        self._key = key
        self._client = client
        self._sender = sender
        self._reads = reads
        self._decided = False
        self._left = False
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
        self._sequence.leave(self._key, self)

    def failed(self, error: StateError) -> None:
        """It did not get through. If it has to be sent again, nothing of its client may overtake it."""
        if error.stops_the_writer():
            # Those behind are told what went wrong first, not that this one was told of it.
            self._sequence.spoil_behind(self._key, self, self._spoiled or error)

    def spoil(self, client: str, failure: StateError) -> None:
        """A write ahead failed. Another of its client must not take effect before it was sent again."""
        if client and client == self._client:
            self._spoiled = failure

    async def mine(self) -> None:
        """Return when everything ahead is decided."""
        await self._until(self._sequence.all_ahead_decided)

    async def first(self) -> None:
        """Return when nothing is ahead: what is stored then is what everything before led to."""
        self._decided = False
        await self._until(self._sequence.is_first)

    async def _until(self, holds: Callable[[Key, Turn], bool]) -> None:
        while not holds(self._key, self):
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        if self._spoiled is not None:
            raise Unavailable(f"an earlier write to the record failed: {self._spoiled.text}")

    @property
    def is_first(self) -> bool:
        return self._sequence.is_first(self._key, self)

    def decided(self, row: Row | None = None, foundation: Row | None = None) -> None:
        """Those behind may decide on what this one leads to. `foundation`: what it was itself built on, while that is
        not settled."""
        self._decided = True
        self.row, self.foundation = row, foundation
        self._sequence.wake(self._key)

    def applied(self, foundation: Row | None) -> None:
        """It was committed: so was what it was built on, whatever was heard of that."""
        if foundation is not None:
            self._sequence.stood(self._key, foundation)

    @property
    def in_the_way(self) -> bool:
        return not (self._decided or self._left)

    def concerns(self, other: Turn) -> bool:
        """Whether another behind it has to mind it."""
        return not self._reads or (self._sender is other._sender and not other._reads)

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def leave(self) -> None:
        self._left = True

    @property
    def client(self) -> str:
        return self._client


class Sequence:
    """The lines of all records that are being written."""

    def __init__(self) -> None:
        self._lines: dict[Key, list[Turn]] = {}

    def enter(self, key: Key, client: str = "", sender: object = None, *, reads: bool = False) -> Turn:
        turn = Turn(self, key, client, sender, reads=reads)
        self._lines.setdefault(key, []).append(turn)
        return turn

    def is_first(self, key: Key, turn: Turn) -> bool:
        return next(self._ahead(key, turn), None) is None

    def all_ahead_decided(self, key: Key, turn: Turn) -> bool:
        return not any(other.in_the_way for other in self._ahead(key, turn))

    def _ahead(self, key: Key, turn: Turn) -> Iterator[Turn]:
        for other in self._lines[key]:
            if other is turn:
                return
            if other.concerns(turn):
                yield other

    def wake(self, key: Key) -> None:
        for turn in self._lines.get(key, ()):
            turn.wake()

    def stood(self, key: Key, row: Row | None) -> None:
        """This very row was there: whoever tried to commit it did."""
        for turn in reversed(self._lines[key]):
            if row is not None and turn.row is row:
                turn.stood, row = row, turn.foundation

    def spoil_behind(self, key: Key, turn: Turn, failure: StateError) -> None:
        line = self._lines[key]
        for other in line[line.index(turn) + 1 :]:
            other.spoil(turn.client, failure)

    def leave(self, key: Key, turn: Turn) -> None:
        line = self._lines[key]
        turn.leave()
        line.remove(turn)
        if line:
            self.wake(key)
        else:
            del self._lines[key]
