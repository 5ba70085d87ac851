"""Connections that a load is made of: one request at a time, sent again until its fate is known.

Owns numbering, reconnecting and how long a client insists. Must not know what the requests mean.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec

PATIENCE = 30.0
"""Seconds within which every request has to be answered, well or badly."""

LONGEST_LINE = 64 * 1024 * 1024

RETRIED = frozenset({"busy", "unavailable", "no_space", "internal"})
"""Codes after which the same request may succeed later."""

Json = dict[str, Any]
Outcome = Literal["ok", "not_applied", "unknown"]

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Json).decode


class Unanswered(Exception):
    """A request got no answer though its connection stood, or a write no true outcome: what no client may see."""


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, path: Path) -> Self:
        return cls(*await asyncio.open_unix_connection(str(path), limit=LONGEST_LINE))

    def send(self, frame: Json) -> None:
        self.send_raw(_encode(frame) + b"\n")

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self, seconds: float | None = PATIENCE) -> Json:
        """The next line; ConnectionError when there is none any more."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), seconds)
        except TimeoutError:
            raise Unanswered(f"no answer for {seconds:g} seconds") from None
        if not line.endswith(b"\n"):
            raise ConnectionError("the daemon ended the connection")
        return _decode(line)

    async def ask(self, **frame: Any) -> Json:
        self.send(frame)
        return await self.receive(PATIENCE + float(frame.get("wait", 0.0)))

    def drop(self) -> None:
        """Gone without a word, as a client that dies is."""
        self._writer.transport.abort()


class Told(NamedTuple):
    """What became of a request in the end."""

    reply: Json
    invoked: float
    returned: float
    """Infinite when the fate is not known."""
    outcome: Outcome
    tries: int
    seconds: float
    """How long it took, known or not."""

    @property
    def record(self) -> Json | None:
        """The record in the reply."""
        return self.reply.get("record") or self.reply.get("job")

    @property
    def code(self) -> str:
        return str(self.reply.get("code", ""))


_NO_REPLY: Json = {"success": False, "code": "lost"}


class Speaker:
    """A client of the daemons at `paths`, at the first of them as long as it is there.

    One that is `numbered` numbers its writes and sends them again until it knows; another leaves it at `unknown`.
    """

    _names = itertools.count(1)

    def __init__(
        self,
        paths: Sequence[Path],
        name: str,
        *,
        numbered: bool = True,
        insists: float = 60.0,
        pause: float = 0.0,
        seed: int = 0,
        heard: Counter[str] | None = None,
    ) -> None:
        """`pause` is how many seconds it takes before each request; `heard` counts every answer by its code, those to
        tries that were made again included."""
        self._paths = list(paths)
        self.name = name
        self._numbered = numbered
        self._insists = insists
        self._pause = pause
        self._chance = random.Random(f"{name}/{seed}")
        self._heard = Counter[str]() if heard is None else heard
        self._line: Line | None = None
        self._become_new()

    def _become_new(self) -> None:
        """A client nobody has heard of: after a write of unknown fate nothing else would be taken from the old one."""
        self.client = f"{self.name}-{next(self._names)}-{os.urandom(4).hex()}" if self._numbered else ""
        self._seq = 0
        self.drop()

    async def _connected(self) -> Line:
        if self._line is None:
            line = await Line.open(self._paths[0])
            self._line = line
            named = {"client": self.client} if self._numbered else {}
            reply = await line.ask(op="hello", name=self.name, **named)
            if not reply["success"]:
                raise ConnectionError(reply["error"])
        return self._line

    async def read(self, **frame: Any) -> Told:
        """A request that changes nothing, asked until there is an answer: tries before it leave nothing unsure."""
        return await self._ask(frame, insist=True, changes=False)

    async def write(self, **frame: Any) -> Told:
        if self._numbered:
            self._seq += 1
            frame |= {"seq": self._seq, "floor": self._seq}
        told = await self._ask(frame, insist=self._numbered)
        if told.outcome == "unknown" and self._numbered:
            self._become_new()
        return told

    async def _ask(self, frame: Json, *, insist: bool, changes: bool = True) -> Told:
        if self._pause:
            await asyncio.sleep(self._pause)
        invoked = time.monotonic()
        unsure = False
        tries = 0
        while True:
            reply = await self._once(
                frame if not (tries and self._numbered and "seq" in frame) else frame | {"again": True}
            )
            tries += 1
            self._heard["ok" if reply["success"] else reply["code"]] += 1
            now = time.monotonic()
            lost = reply is _NO_REPLY
            if "seq" in frame and not (reply["success"] or lost or reply.get("outcome") in ("not_applied", "unknown")):
                raise Unanswered(f"a write failed, and what became of it was not said: {reply}")
            unsure = (unsure and changes) or lost or reply.get("outcome") == "unknown"
            if reply["success"]:
                if reply.get("duplicate") and tries > 1 and not unsure:
                    raise Unanswered(f"a write was said not to be applied, and was: {frame}, {reply}")
                return Told(reply, invoked, now, "ok", tries, now - invoked)
            again = lost or reply["code"] in RETRIED or reply.get("outcome") == "unknown"
            if not again and (self._numbered or not unsure):
                return Told(reply, invoked, now, "not_applied", tries, now - invoked)
            if not insist or now - invoked > self._insists:
                outcome: Outcome = "unknown" if unsure else "not_applied"
                return Told(reply, invoked, math.inf if unsure else now, outcome, tries, now - invoked)
            await asyncio.sleep(min(1.0, 0.005 * 2 ** min(tries, 8)) * self._chance.random())

    async def _once(self, frame: Json) -> Json:
        """One try; what cannot be known because the connection broke is told as such."""
        try:
            return await (await self._connected()).ask(**frame)
        except OSError:
            self.drop()
            self._paths.append(self._paths.pop(0))
            return _NO_REPLY

    def drop(self) -> None:
        if self._line is not None:
            self._line.drop()
            self._line = None

    def cut_off(self, half: bytes) -> None:
        """Lose the connection in the middle of a frame, whatever is under way on it."""
        if self._line is not None:
            self._line.send_raw(half)
            self._line.drop()
