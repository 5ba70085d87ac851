"""Where a store is read from: an engine opened here, or the socket of the daemon that has it.

Owns reading everything, reading on in the log, and stopping writes there. Must not know where the rows go.

A store in memory, or in files that a daemon has open, can only be read through that daemon.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import UNSET

from statesvc_client import wire
from statesvc_client.connection import Asking
from statesvc_client.errors import Conflict, Gone, Internal, Unavailable, from_reply

from ..backends.port import Cursor, Dump, LogEntry, Row
from ..store.feeding import unpacked_entries, unpacked_rows
from .holdings import Holding

LOG_ENTRIES = 1000
"""Entries of the log read at a time."""

REPLY_SECONDS = 60.0
"""How long a daemon may take for one answer."""

FREEZE_SECONDS = 300.0
"""The same for a freeze, which waits for writes under way, on a shared engine for those of other daemons too."""


class Source(ABC):
    """A store that is read while others write to it."""

    backend: str
    epoch: str
    """Which life of the store this is. What was copied of another one is worth nothing."""

    @abstractmethod
    async def dump(self) -> Dump:
        """Everything, the rows of the daemon itself included."""

    @abstractmethod
    async def read_log(self, after: Cursor) -> list[LogEntry]:
        """Some entries behind a place; none when there are no more for now. Raises `Gone` when they are not kept."""

    @abstractmethod
    async def freeze(self) -> None:
        """From the return of this on nobody changes a record."""

    @abstractmethod
    async def is_frozen(self) -> bool:
        """Whether it is now, as far as is known there: another admin may have thawed it."""

    @abstractmethod
    async def thaw(self) -> None:
        """Take writes again."""

    @abstractmethod
    async def close(self) -> None:
        """Let go; the store is as it was."""

    def _began_anew(self) -> Conflict:
        return Conflict(
            "the source began a new epoch while it was being copied: it was restored, or lost what it had; "
            "begin again with --replace"
        )


class OpenedSource(Source):
    """An engine that is opened here."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._engine = holding.engine
        self.backend = holding.engine.name
        self.epoch = holding.engine.epoch

    async def dump(self) -> Dump:
        dump = await self._engine.dump()
        self._check_epoch()
        return dump

    async def read_log(self, after: Cursor) -> list[LogEntry]:
        entries = await self._engine.read_log(after, LOG_ENTRIES)
        self._check_epoch()
        return entries

    def _check_epoch(self) -> None:
        if self._engine.epoch != self.epoch:
            raise self._began_anew()

    async def freeze(self) -> None:
        await self._holding.freeze()

    async def is_frozen(self) -> bool:
        return await self._holding.is_frozen()

    async def thaw(self) -> None:
        await self._holding.thaw()

    async def close(self) -> None:
        await self._holding.close()


class ServedSource(Source):
    """A store that a running daemon hands out through its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking = Asking(str(path))
        self._requests = 0
        self.backend = self.epoch = ""

    async def open(self) -> None:
        hello = await self._ask(wire.Hello(name="statesvc-migrate"))
        self.backend, self.epoch = hello.backend or "", hello.epoch or ""

    async def dump(self) -> Dump:
        first = await self._ask(wire.Feed())
        return Dump(self._cursor(first.cursor), first.total or 0, self._pieces(first))

    async def _pieces(self, reply: wire.Received) -> AsyncIterator[list[Row]]:
        while reply.next_cursor is not None:
            yield unpacked_rows(_fed(reply))
            reply = await self._ask(wire.Feed(cursor=reply.next_cursor))
            self._cursor(reply.cursor)

    async def read_log(self, after: Cursor) -> list[LogEntry]:
        reply = await self._ask(wire.Feed(after=f"{self.epoch}.{after}" if after else "0"))
        return unpacked_entries(_fed(reply))

    def _cursor(self, text: str | None) -> Cursor:
        """A place in the log as the engine knows it: another run may open the engine itself."""
        epoch, _, cursor = (text or "").partition(".")
        if epoch != self.epoch:
            raise self._began_anew()
        return cursor

    async def freeze(self) -> None:
        await self._ask(wire.Freeze(), FREEZE_SECONDS)

    async def is_frozen(self) -> bool:
        checks = (await self._ask(wire.Health())).checks or []
        return any(check.name == "writes" and check.verdict == "fail" for check in checks)

    async def thaw(self) -> None:
        await self._ask(wire.Thaw(), FREEZE_SECONDS)

    async def close(self) -> None:
        self._asking.close()

    async def _ask(self, request: wire.Request, seconds: float = REPLY_SECONDS) -> wire.Received:
        self._requests += 1
        request.request_id = self._requests
        if not self._asking.is_open:
            await self._connect()
        try:
            async with asyncio.timeout(seconds):
                reply = wire.decode_reply(await self._asking.ask(request))
        except TimeoutError:
            self._asking.close()
            raise Unavailable(f"no answer from {self._path} within {seconds:g} seconds") from None
        except ConnectionError:
            self._asking.close()
            raise Unavailable(f"the daemon on {self._path} closed the connection") from None
        except asyncio.CancelledError:
            # The answer that comes next would be taken for that of the next question.
            self._asking.close()
            raise
        if not reply.success:
            refused = from_reply(reply.code or "internal", reply.error or "", reply.outcome)
            if isinstance(refused, Gone) and await self._began_another_life():
                raise self._began_anew()
            raise refused
        return reply

    async def _connect(self) -> None:
        self._asking = Asking(str(self._path))
        try:
            await self._asking.open(REPLY_SECONDS)
        except (OSError, TimeoutError) as problem:
            why = getattr(problem, "strerror", None) or "no answer"
            raise Unavailable(f"cannot connect to {self._path}: {why}; is the daemon running?") from None

    async def _began_another_life(self) -> bool:
        return (await self._ask(wire.Hello(name="statesvc-migrate"))).epoch != self.epoch


def _fed(reply: wire.Received) -> bytes:
    if reply.feed is UNSET:
        raise Internal("the daemon answers a feed without one: it is of another version")
    return reply.feed
