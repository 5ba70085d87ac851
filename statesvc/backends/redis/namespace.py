"""Talking to one namespace: scripts and guarded reads, which notice when what was known no longer holds.

Owns which epoch and generation this daemon believes in. Must not know queries, commits or rows.
Every read brings the epoch and the generation with it. When they are not the known ones, the judge is asked, those
above are told, and the read is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from statesvc_client.errors import Unavailable

from . import calling
from .epochs import Judge, Trust
from .facts import Facts
from .faults import Refused, as_error
from .link import Link
from .meta import FIELDS, Meta, read_meta
from .names import Names, namespace_key
from .opening import Ask
from .scripting import Argument, Command

TRIES = 4
"""How often a read is made again because the store was replaced under it."""


class Namespace:
    """One namespace on its master."""

    def __init__(self, link: Link, name: str, trust: Trust, seconds: float) -> None:
        self.link = link
        self.name = name
        self.key = namespace_key(name)
        self._seconds = seconds
        self.meta: Meta | None = None
        """The namespace's hash as it was seen last."""
        self.used_memory: int | None = None
        self.judge = Judge(name, trust, self._take)
        self.met: Callable[[Facts], None] = lambda _: None
        """Is told of the server behind every new connection."""
        self.took: Callable[[Meta], None] = lambda _: None
        """Is told what holds after every judgement."""
        link.greet = self._greet

    async def _greet(self, facts: Facts, ask: Ask) -> None:
        await self.judge.judge(lambda: facts, ask)
        self.used_memory = facts.used_memory
        self.met(facts)

    def _take(self, meta: Meta) -> None:
        self.meta = meta
        self.took(meta)

    @property
    def known(self) -> Meta:
        if self.meta is None:
            raise Unavailable(f"redis at {self.link.server}: not reached yet")
        return self.meta

    @property
    def names(self) -> Names:
        return Names(self.key, self.known.generation)

    def until(self) -> float:
        """Until when, by the loop's clock, a call that begins now may be tried again."""
        return asyncio.get_running_loop().time() + self._seconds

    async def learn(self) -> Meta:
        """Look what holds now."""
        await self.judge.judge(lambda: self.link.facts, self.link.ask)
        return self.known

    # --- reads -----------------------------------------------------------------------------------------------------

    async def read(
        self, make: Callable[[Names], Sequence[Command]], send: calling.Send | None = None
    ) -> tuple[Meta, list[Any]]:
        """The namespace's hash, read right behind plain commands on the generation that counts, and their replies."""
        send = send or self.link.ask
        for _ in range(TRIES):
            asked = self.known
            sent = await send(*make(self.names), ("HMGET", self.key, *FIELDS))
            *replies, fields = map(self.checked, sent)
            meta = read_meta(fields)
            # Read last: a generation that counts then has counted all the time, if it is the one that was asked. What
            # is known may have changed meanwhile.
            if meta is not None and _is_same(meta, asked) and _is_same(meta, self.known):
                self.meta = meta
                return meta, replies
            await self.learn()
        raise self._keeps_changing()

    async def look(self, send: calling.Send | None = None) -> Meta:
        """The namespace's hash as it is now."""
        meta, _ = await self.read(lambda _: (), send)
        return meta

    async def run(self, name: str, *arguments: Argument) -> list[Any]:
        """The reply of a reading script, without the epoch that it begins with."""
        for _ in range(TRIES):
            epoch, *reply = await self.evaluate(name, *arguments)
            if epoch.decode() == self.known.epoch:
                return list(reply)
            await self.learn()
        raise self._keeps_changing()

    async def evaluate(self, name: str, *arguments: Argument) -> Any:
        """The reply of a script that may be run twice without harm."""
        [reply] = await calling.run(self.link.ask, self.until(), name, self.key, [arguments])
        return self.checked(reply)

    def reached(self, seq: int, log_bytes: int) -> None:
        """A commit has told how far the log reaches now."""
        if seq > self.known.seq:
            self.meta = self.known._replace(seq=seq, log_bytes=log_bytes)

    def checked(self, reply: Any) -> Any:
        if isinstance(reply, Refused):
            raise as_error(reply, self.link.server)
        return reply

    def _keeps_changing(self) -> Unavailable:
        return Unavailable(f"redis at {self.link.server}: the namespace {self.name} is being replaced again and again")


def _is_same(one: Meta, other: Meta) -> bool:
    return (one.epoch, one.generation) == (other.epoch, other.generation)
