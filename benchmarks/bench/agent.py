"""An agent with the adapter, in a process of its own, that does what it is told and says how long it took.

    python -m benchmarks.bench.agent SOCKET [follow] [uvloop]

Owns the agent's side of the adapter's measures. Orders are JSON lines on standard input, answers JSON lines on standard
output; between them its loop runs on, as an agent's does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.adapter_calls import Stopwatch
from benchmarks.bench import frames
from benchmarks.bench.effort import OWN
from benchmarks.bench.lines import CLOCK
from statesvc_client import StateStore

BETWEEN = 64
"""Calls an agent makes before it lets its loop do something else."""

FLUSH_SECONDS = 120.0
HOT = 500
"""Jobs that single calls are timed on."""


async def created(state: Any, ids: list[str]) -> None:
    for number, id in enumerate(ids):
        state.create({"uuid": id, **frames.job(number)})
        if number % BETWEEN == 0:
            await asyncio.sleep(0)
    await state.flush(FLUSH_SECONDS)


async def update(state: Any, prefix: str, round: int, count: int) -> dict[str, float | None]:
    """Updates a second until all are acknowledged, and the agent's own share of that time. The jobs are there when the
    clock starts."""
    ids = frames.names(prefix, round, count)
    await created(state, ids)
    with OWN:
        began = CLOCK()
        for number, id in enumerate(ids):
            state.update(id, status="RUNNING", pid=4242)
            if number % BETWEEN == 0:
                await asyncio.sleep(0)
        await state.flush(FLUSH_SECONDS)
        took = CLOCK() - began
    return {"rate": count / took, "client": OWN.taken()}


async def call(state: Any, round: int, count: int) -> dict[str, list[int]]:
    """Nanoseconds of each call, by name."""
    ids = frames.names("hot", round, HOT)
    await created(state, ids)
    stopwatch = Stopwatch()
    for number in range(count):
        id = ids[number % HOT]
        stopwatch.time("update", state.update, id, status="RUNNING", pid=number)
        stopwatch.time("get", state.get, id)
        if number % BETWEEN == 0:
            await asyncio.sleep(0)  # the sender's turn, which is not the call's cost
    await state.flush(FLUSH_SECONDS)
    return stopwatch.taken


ORDERS: dict[str, Callable[..., Awaitable[Any]]] = {"update": update, "call": call}


async def obey(path: str, follow: bool) -> None:
    refused: list[str] = []

    def rejected(write: Any, error: Exception) -> None:
        refused.append(f"{write.op} {write.id}: {error}")

    options: dict[str, Any] = {"follow": follow, "on_rejected": rejected, "require_connection": True}
    async with StateStore.connect(path, **options) as state:
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            answer = await ORDERS[order.pop("do")](state, **order)
            print(json.dumps({"answer": answer, "refused": refused}), flush=True)


if __name__ == "__main__":
    factory = uvloop.new_event_loop if "uvloop" in sys.argv[2:] else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(obey(sys.argv[1], "follow" in sys.argv[2:]))
