"""What is counted: create, update, get and list pages on each engine, and what a stored job leaves in memory.

Owns the work and the numbers it becomes. Must not know how much is allowed. Only the loop's own thread is counted: on
sqlite the threads that write are no part of it.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks.bench import frames
from benchmarks.bench.lines import Batch, Talker

from .counting import Counter
from .driving import Client, connected

ENGINES = ("memory", "sqlite")
DEPTH = 64
REQUESTS = 2 * DEPTH
SINGLES = 16
PAGES = 2
STORED = 1_024
"""Jobs over which memory is counted: enough that a table that grows by doubling is not what is seen."""

LOOK = b'{"op":"list","limit":1}\n'
"""Answered once what was written has come to rest: how far threads have come with it is chance."""

CREATE, UPDATE, GET = "create", "update", "get"
ALONE = "get, one at a time"
PAGE = "list page"
WORKS = (CREATE, UPDATE, GET, ALONE, PAGE)
KEPT = "memory: one more job"

CALLS = "calls"
C_CALLS = "calls into C"
BYTECODES = "bytecodes"
BYTES = "bytes kept"
BLOCKS = "blocks kept"

Counts = dict[str, dict[str, float]]
"""What was counted, by the work, then by what was counted; for one request, or one job."""


def measured() -> Counts:
    """Everything, in the order in which it is shown."""
    found: Counts = {}
    for engine in ENGINES:
        found |= requests(engine)
    return {**found, **stored()}


def named(engine: str, work: str) -> str:
    return f"{engine}: {work}"


def requests(engine: str) -> Counts:
    """What one request takes."""
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        return uvloop.run(_requests(engine, Path(folder)))


def stored() -> Counts:
    """What one more job takes on the memory engine, its index entries and its log entry included."""
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        return {KEPT: uvloop.run(_stored(Path(folder)))}


async def _requests(engine: str, folder: Path) -> Counts:
    async with connected(engine, folder) as client:
        for work in WORKS:  # some things happen once
            await _exchange(client, _batches(client, work, frames.names("warm", 0, REQUESTS)))
        return {
            named(engine, work): await _counted(client, _batches(client, work, frames.names("counted", 0, REQUESTS)))
            for work in WORKS
        }


def _batches(client: Client, work: str, ids: list[str]) -> list[Batch]:
    if work == CREATE:
        return client.writes(frames.creates(ids), DEPTH)
    if work == UPDATE:
        return client.writes([frames.update(id) for id in ids], DEPTH)
    if work == GET:
        return Talker.reads([frames.get(id) for id in ids], DEPTH)
    if work == ALONE:
        return Talker.reads([frames.get(id) for id in ids[:SINGLES]], 1)
    return Talker.reads([frames.page(status="RUNNING")] * PAGES, 1)


async def _counted(client: Client, batches: Sequence[Batch]) -> dict[str, float]:
    counter = Counter()
    for batch in batches:
        await client.ask(LOOK)
        with counter.counting():
            await client.exchange(batch)
        client.check(batch)
    count = sum(batch.replies for batch in batches)
    return {
        CALLS: counter.calls / count,
        C_CALLS: counter.c_calls / count,
        BYTECODES: counter.bytecodes / count,
    }


async def _exchange(client: Client, batches: Sequence[Batch]) -> None:
    for batch in batches:
        await client.exchange(batch)
        client.check(batch)


async def _stored(folder: Path) -> dict[str, float]:
    async with connected("memory", folder) as client:
        await _create(client, "warm")
        tracemalloc.start()
        try:
            size, blocks = _held()
            await _create(client, "stored")
            grown_size, grown_blocks = _held()
        finally:
            tracemalloc.stop()
    return {BYTES: (grown_size - size) / STORED, BLOCKS: (grown_blocks - blocks) / STORED}


def _held() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()


async def _create(client: Client, prefix: str) -> None:
    """Jobs, and their indexes, which some engines bring up to date when they are asked for."""
    await _exchange(client, _batches(client, CREATE, frames.names(prefix, 0, STORED)))
    for head in frames.every_index():
        await client.ask(head + b"}\n")
    client.forget()
