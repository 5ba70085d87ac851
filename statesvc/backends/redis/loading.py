"""Replacing everything: a new generation is filled beside the one that counts, and counts from one moment on.

Owns that order of steps. Must not know where the rows come from. Broken off at any moment, the old generation goes on
counting, and what was loaded is dropped later, step by step, as an old generation is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from statesvc_client.errors import Unavailable

from ..port import Row
from . import rows as stored
from .epochs import new_epoch
from .namespace import Namespace
from .scripting import Argument
from .writing import change, change_store

CALL_ROWS = 128
CALL_BYTES = 256 * 1024


async def load(namespace: Namespace, rows: AsyncIterator[list[Row]]) -> None:
    begun = await change_store(namespace, "begin")
    if begun is None:
        raise _replaced(namespace)
    generation: bytes = begun[1]
    batch: list[Argument] = []
    size = 0
    async for some in rows:
        for row in some:
            value = stored.pack(row)
            if batch and (len(batch) >= 3 * CALL_ROWS or size + len(value) > CALL_BYTES):
                await _send(namespace, generation, batch)
                batch, size = [], 0
            batch += (row.kind, row.id, value)
            size += len(value)
    if batch:
        await _send(namespace, generation, batch)
    switched = await change_store(namespace, "switch", generation, new_epoch())
    if switched is None or switched[0] != b"ok":
        raise _replaced(namespace)
    await namespace.learn()


async def _send(namespace: Namespace, generation: bytes, batch: list[Argument]) -> None:
    if not await change(namespace, "load", generation, int(namespace.link.facts.cluster), *batch):
        raise _replaced(namespace)


def _replaced(namespace: Namespace) -> Unavailable:
    return Unavailable(f"the namespace {namespace.name} was replaced by somebody else meanwhile; nothing was loaded")
