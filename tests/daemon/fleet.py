"""A fleet of workers on one queue: who held what, with which token, and whether that was ever two at a time.

Owns the workers and what they saw. Must not know how the daemon is started. Used by the tests and by
benchmarks/workers.py.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRIORITIES = [1, 5, 10, 15]
LONGEST_LINE = 16 * 1024 * 1024


class Line:
    """One connection that has said hello."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, path: Path, name: str) -> Line:
        line = cls(*await asyncio.open_unix_connection(str(path), limit=LONGEST_LINE))
        await line.ok(op="hello", client=name, name=name)
        return line

    async def ask(self, **request: Any) -> dict[str, Any]:
        self._writer.write(json.dumps(request).encode() + b"\n")
        return dict(json.loads(await self._reader.readline()))

    async def ok(self, **request: Any) -> dict[str, Any]:
        reply = await self.ask(**request)
        assert reply["success"], reply
        return reply

    async def all_ok(self, requests: list[dict[str, Any]]) -> None:
        """Requests in one go."""
        self._writer.write(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        for _ in requests:
            reply = json.loads(await self._reader.readline())
            assert reply["success"], reply

    def drop(self) -> None:
        """Gone without a word, as a worker that dies is."""
        self._writer.transport.abort()


@dataclass
class Held:
    """What the fleet saw of one job."""

    tokens: list[int] = field(default_factory=list)
    """In the order they were given out."""
    ends: list[int] = field(default_factory=list)
    """Tokens whose holder was told that the job is completed."""


@dataclass
class Fleet:
    """Workers that claim, work and complete; some die in between, holding what they have."""

    path: Path
    jobs: int
    workers: int = 32
    ttl: float = 2.0
    deaths: int = 50
    seed: int = 7
    held: dict[str, Held] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """Priorities of first claims, in the order they were given out."""
    died: int = 0
    ended: int = 0

    async def fill(self) -> None:
        line = await Line.open(self.path, "filler")
        chance = random.Random(self.seed)
        names = [f"job-{number:05}" for number in range(self.jobs)]
        self.held = {name: Held() for name in names}
        for start in range(0, self.jobs, 500):
            await line.all_ok(
                [
                    {"op": "create", "job": {"uuid": name, "status": "QUEUED", "priority": chance.choice(PRIORITIES)}}
                    for name in names[start : start + 500]
                ]
            )
        line.drop()

    async def work(self, told: Callable[[int], Awaitable[None]] | None = None) -> None:
        """Until every job has ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.workers):
                group.create_task(self._worker(number, told))

    async def _worker(self, number: int, told: Callable[[int], Awaitable[None]] | None) -> None:
        chance = random.Random(self.seed * 1000 + number)
        life = 0
        line = await Line.open(self.path, f"worker-{number}-{life}")
        while self.ended < self.jobs:
            reply = await line.ok(op="claim", ttl=self.ttl, wait=0.5)
            for job in reply["jobs"]:
                self._claimed(job)
                if self.died < self.deaths and chance.random() < 2 * self.deaths / self.jobs:
                    self.died += 1
                    life += 1
                    line.drop()
                    line = await Line.open(self.path, f"worker-{number}-{life}")
                    break
                token = job["lease"]["token"]
                reply = await line.ask(op="release", jobId=job["uuid"], token=token, status="COMPLETED")
                if reply["success"]:
                    self.held[job["uuid"]].ends.append(token)
                    self.ended += 1
                if told is not None:
                    await told(self.ended)
        line.drop()

    def _claimed(self, job: dict[str, Any]) -> None:
        held = self.held[job["uuid"]]
        if not held.tokens:
            self.order.append(job["priority"])
        held.tokens.append(job["lease"]["token"])

    # --- what must hold ----------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Everything that must not be, in words."""
        found = []
        for name, held in self.held.items():
            if len(held.ends) != 1:
                found.append(f"{name} was completed {len(held.ends)} times, by tokens {held.ends}")
            if held.tokens != list(range(1, len(held.tokens) + 1)):
                found.append(f"{name} was given out with tokens {held.tokens}")
            elif held.ends and held.ends[0] != held.tokens[-1]:
                found.append(f"{name} was completed with token {held.ends[0]}, after token {held.tokens[-1]}")
        return found

    def out_of_order(self) -> int:
        """First claims that came after one of lower priority, but for as many as are on their way at a time."""
        best_left = sorted(self.order, reverse=True)
        return sum(
            given < best_left[min(place + self.workers, len(best_left) - 1)] for place, given in enumerate(self.order)
        )
