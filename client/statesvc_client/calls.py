"""Calls: questions to the daemon, each on a connection of its own while it lasts.

Owns the connections calls use and their exactly-once. Must not know the outbox or the cache.

A connection carries one call at a time and is used again afterwards; a call that waits holds up no other. Each has its
own client id, so a call that writes is sent again after a lost connection and still happens once. A connection on which
a call was given up is thrown away together with its id: whatever is still under way there concerns nobody.

A call under a lease is sent only in the epoch of the lease: in another its token may be somebody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from .adapter_errors import Closed
from .backoff import Backoff
from .connection import Asking, PeerCheck, anybody
from .desk import new_client_id
from .errors import StateError, Unavailable
from .greeting import decoded, error_of, greet
from .lease import Lease
from .options import Options
from .wire import OPS, Write

log = logging.getLogger("statesvc_client")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Answer(dict[str, Any]):
    """A reply, and the life of the store it is of."""

    epoch: str | None = None


def epoch_of(reply: dict[str, Any]) -> str | None:
    """The epoch an answer is of; None where nobody knows."""
    return reply.epoch if isinstance(reply, Answer) else None


class _Line:
    """A connection for calls and the client it speaks for."""

    def __init__(self, path: str, options: Options, check_peer: PeerCheck) -> None:
        self._path = path
        self._options = options
        self._client = new_client_id()
        self._seq = 0
        self._epoch: str | None = None
        """What was told last on this connection: by its hello, or since, for a restore goes by without ending it."""
        self.asking = Asking(path, check_peer)

    async def ask(self, message: dict[str, Any], progress: _Progress) -> dict[str, Any]:
        again = progress.sent
        await self._open(progress)
        if again:
            message = {**message, "again": True}
        progress.sent = progress.writes
        line = await self.asking.ask(message)
        reply = decoded(line)
        if reply.success:
            answer = Answer(_decode(line))
            answer.epoch = self._epoch = reply.epoch or self._epoch
            return answer
        error = error_of(reply)
        error.record = _decode(line).get("job", _decode(line).get("record"))
        if again and error.retryable:
            error.outcome = "unknown"  # it was not taken this time, which says nothing of the time before
        raise error

    async def _open(self, progress: _Progress) -> None:
        lease = progress.lease
        if self.asking.is_open and (lease is None or not (lease.outlived or lease.is_of_another(self._epoch))):
            return
        self.asking.close()  # what it was told may be older than the lease: only another hello can say
        try:
            told = await greet(self.asking, self._options, self._client, "each", self._options.answer_seconds)
            self._epoch = told.epoch
            if lease is not None:
                lease.lose_to(told.epoch)
                if lease.outlived:
                    lease.check()
        except StateError as error:
            # What is said to a hello is no word about the call.
            error.outcome = "unknown" if progress.sent else "not_applied"
            raise

    def numbered(self, message: dict[str, Any]) -> dict[str, Any]:
        """One call at a time: everything before this one is answered."""
        self._seq += 1
        return {**message, "seq": self._seq, "floor": self._seq}


class Calls:
    """The connections for calls."""

    def __init__(self, path: str, options: Options, check_peer: PeerCheck = anybody) -> None:
        self._path = path
        self._options = options
        self._check_peer = check_peer
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._slots = asyncio.Semaphore(options.call_connections)
        self._asked: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False

    async def ask(self, message: dict[str, Any], deadline: float, under: Lease | None = None) -> dict[str, Any]:
        """The daemon's reply. Raises its error, or `Unavailable` when the deadline (of the loop's clock) passes, or
        `LeaseLost` when the lease it is asked under is of an earlier epoch.

        Asks in a task of its own, which `close` can end without touching the caller's.
        """
        if self._closed:
            raise Closed(f"the store was closed; {message['op']} was not asked")
        _check_can_be_asked(message)
        progress = _Progress(under, writes=is_numbered(message["op"]))
        asked = asyncio.get_running_loop().create_task(self._answer(message, deadline, progress))
        self._asked.add(asked)
        try:
            await asyncio.wait([asked])
        finally:
            self._asked.discard(asked)
            asked.cancel()
        if asked.cancelled():
            raise Closed(f"the store was closed while {message['op']} was under way: {_said(progress)}")
        return asked.result()

    async def _answer(self, message: dict[str, Any], deadline: float, progress: _Progress) -> dict[str, Any]:
        try:
            async with asyncio.timeout_at(deadline):
                if message.get("wait"):
                    return await self._on_a_line(message, progress)  # it may take an hour, and holds up nobody
                async with self._slots:
                    return await self._on_a_line(message, progress)
        except TimeoutError:
            raise Unavailable(
                f"{message['op']}: no answer from {self._path} in time", outcome=progress.outcome
            ) from None

    async def _on_a_line(self, message: dict[str, Any], progress: _Progress) -> dict[str, Any]:
        line = self._idle.pop() if self._idle else _Line(self._path, self._options, self._check_peer)
        self._busy.add(line)
        reusable = False
        try:
            if progress.writes:
                message = line.numbered(message)
            reply = await self._until_answered(line, message, progress)
            reusable = message["op"] not in _LAST_WORDS
            return reply
        except StateError as error:
            reusable = not error.stops_the_writer()
            raise
        finally:
            self._busy.discard(line)
            if reusable and line.asking.is_open and not self._closed:
                self._idle.append(line)
            else:
                line.asking.close()

    async def _until_answered(self, line: _Line, message: dict[str, Any], progress: _Progress) -> dict[str, Any]:
        """Ask, and ask again after a lost connection or a write whose outcome the daemon did not know."""
        backoff = Backoff(self._options.backoff_base, self._options.backoff_cap)
        while True:
            again = progress.sent
            try:
                progress.begun = True
                return await line.ask(message, progress)
            except OSError as problem:
                line.asking.close()
                log.debug("a call is asked again: %s", problem)
            except StateError as error:
                if error.outcome != "unknown" or again or not progress.writes:
                    raise
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        """End every call under way with `Closed`; afterwards none is asked any more."""
        self._closed = True
        for asked in self._asked:
            asked.cancel()
        try:
            await asyncio.gather(*self._asked, return_exceptions=True)
        finally:  # also when whoever closes is cancelled
            for line in [*self._idle, *self._busy]:
                line.asking.close()
            self._idle.clear()

    def abandon_in_child(self) -> None:
        for line in [*self._idle, *self._busy]:
            if line.asking.connection is not None:
                line.asking.connection.abandon_in_child()


class _Progress:
    """How far a call has come, for the one who gives it up, and under which lease it is asked."""

    __slots__ = ("begun", "lease", "sent", "writes")

    def __init__(self, lease: Lease | None, *, writes: bool) -> None:
        self.lease = lease
        self.writes = writes
        self.begun = False
        self.sent = False
        """It writes, and a part of it may have reached the daemon."""

    @property
    def outcome(self) -> Any:
        return "unknown" if self.writes and self.begun else "not_applied"


def _said(progress: _Progress) -> str:
    return "it was not applied" if progress.outcome == "not_applied" else "nobody knows whether it was applied"


def is_numbered(op: str) -> bool:
    """An op this client does not know yet is sent without a number; the daemon says what it thinks of that."""
    return issubclass(OPS.get(op, object), Write)


_LAST_WORDS = frozenset({"hello", "watch"})
"""After these a connection is not what it was: it speaks for another, or tells of events."""


def _check_can_be_asked(message: dict[str, Any]) -> None:
    if message.get("progress"):
        raise ValueError(f"{message['op']}: a call returns one answer and has no place for progress; leave it out")


_SPELLINGS = {"job_id": "jobId", "job_uuid": "jobId", "sort_by": "sortBy", "sort_desc": "sortDesc"}


def spelled(op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The request as the wire spells it: snake_case keywords become camelCase, also in the parts of a transaction."""
    message: dict[str, Any] = {"op": op}
    for name, value in fields.items():
        message[_SPELLINGS.get(name) or _camel(name)] = value
    if op == "txn":
        message["ops"] = [spelled(str(part.get("op")), part) for part in message.get("ops") or ()]
    return message


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest) if rest else name
