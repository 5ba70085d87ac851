"""Replacing everything: a new generation is filled beside the one that counts, and counts from one moment on.

Owns that order of steps. Must not know where the rows come from. Broken off at any moment, the old generation goes on
counting, and what was loaded is dropped later, step by step, as an old generation is. So it is where the server changed
on the way: one that lacks a part of what was loaded, or begins a new epoch, never lets the new generation count.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

from statesvc_client.errors import Unavailable

from .. import epoch_names
from ..port import Row
from . import rows as stored
from .namespace import Namespace
from .scripting import Argument
from .writing import change_store

CALL_ROWS = 128
CALL_BYTES = 256 * 1024


async def load(namespace: Namespace, rows: AsyncIterator[list[Row]]) -> str:
    """Returns the epoch that was begun with them."""
    generation = _Generation(namespace)
    await generation.begin()
    batch: list[Argument] = []
    size = highest_token = 0
    async for some in rows:
        for row in some:
            highest_token = max(highest_token, row.token)
            value = stored.pack(row)
            if batch and (len(batch) >= 3 * CALL_ROWS or size + len(value) > CALL_BYTES):
                await generation.fill(batch)
                batch, size = [], 0
            batch += (row.kind, row.id, value)
            size += len(value)
    if batch:
        await generation.fill(batch)
    epoch = epoch_names.following(namespace.known.epoch, highest_token)
    await generation.switch(epoch)
    await namespace.learn()
    return epoch


class _Generation:
    """The one that is being filled, under the epoch that it began in. Every call says how far the calls before it came:
    a server that took over may lack them, and keep the epoch."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._epoch = namespace.known.epoch
        self._name = b""
        # Begins anywhere: a server that lacks the beginning may have given the name to somebody else's.
        self._reached = random.getrandbits(40)

    async def begin(self) -> None:
        [self._name] = await self._change("begin", self._reached)

    async def fill(self, batch: list[Argument]) -> None:
        await self._change("load", self._name, self._reached, int(self._namespace.link.facts.cluster), *batch)
        self._reached += 1

    async def switch(self, epoch: str) -> None:
        await self._change("switch", self._name, self._reached, epoch)

    async def _change(self, script: str, *arguments: Argument) -> list[Any]:
        reply = await change_store(self._namespace, script, *arguments, epoch=self._epoch)
        if reply is None or reply[0] != b"ok":
            raise Unavailable(
                f"the namespace {self._namespace.name} was replaced by somebody else meanwhile, or its server lost "
                "something; nothing was loaded"
            )
        return reply[1:]
