"""Writes that must each arrive once and in order: from agents with the adapter, and from plain numbered clients.

Owns what is sent and what must be there afterwards. Must not know daemons, nor what disturbs them on the way.

Every record has a list that each write appends its number to: what is lost, doubled or out of order shows in it.
Counters
are shared by all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statesvc_client import StateStore
from tests.fleet.lines import Speaker

COUNTERS = 4
COUNTED = 4
"""One write in so many is followed by one to a counter that all senders share."""

RECORDS = 8
"""Of each sender."""

RUN = 64
"""Writes an agent hands over before it waits for their acknowledgement: what a slow store takes in a while."""

FLUSH_SECONDS = 300.0
PAUSE_SECONDS = 0.002


@dataclass
class Delivery:
    """So many writes of every sender, and what came of them."""

    paths: Sequence[Path]
    writes: int
    """Of each sender, to records of its own."""
    agents: int = 2
    plain: int = 2
    sent: int = 0
    """Writes handed over or sent so far."""
    acknowledged: int = 0
    rejected: list[str] = field(default_factory=list)
    epochs: list[tuple[str, str]] = field(default_factory=list)
    """Changes of the epoch that agents were told of."""
    resent: int = 0
    unknown: list[str] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.agents):
                group.create_task(self._agent(number))
            for number in range(self.plain):
                group.create_task(self._client(number))

    @property
    def expected(self) -> int:
        """Acknowledgements in all."""
        return (self.writes + len(self._counted())) * (self.agents + self.plain)

    def _counted(self) -> range:
        return range(0, self.writes, COUNTED)

    def _path(self, number: int) -> Path:
        return self.paths[number % len(self.paths)]

    async def _agent(self, number: int) -> None:
        async with StateStore.connect(
            self._path(number),
            connect_seconds=FLUSH_SECONDS,
            on_rejected=lambda write, error: self.rejected.append(f"agent {number}: {write}: {error.code} {error}"),
            on_epoch=lambda before, now: self.epochs.append((before, now)),
        ) as state:
            for record in range(RECORDS):
                state.create({"uuid": f"agent-{number}-{record}", "seen": []})
            for write in range(self.writes):
                state.update(f"agent-{number}-{write % RECORDS}", append={"seen": [write]})
                self.sent += 1
                if write in self._counted():
                    state.update(_counter(write), inc={"n": 1}, upsert=True)
                    self.sent += 1
                if write % RUN == RUN - 1:
                    await state.flush(FLUSH_SECONDS)
                elif write % 16 == 0:
                    await asyncio.sleep(PAUSE_SECONDS)
            counters = await state.flush(FLUSH_SECONDS)
            self.resent += counters.resent
            self.acknowledged += self.writes + len(self._counted())

    async def _client(self, number: int) -> None:
        speaker = Speaker([self._path(number)], f"plain-{number}", insists=FLUSH_SECONDS)
        for record in range(RECORDS):
            await self._write(speaker, op="create", job={"uuid": f"plain-{number}-{record}", "seen": []})
        for write in range(self.writes):
            await self._write(speaker, op="update", jobId=f"plain-{number}-{write % RECORDS}", append={"seen": [write]})
            self.acknowledged += 1
            if write in self._counted():
                await self._write(speaker, op="update", jobId=_counter(write), inc={"n": 1}, upsert=True)
                self.acknowledged += 1
        speaker.drop()

    async def _write(self, speaker: Speaker, **frame: Any) -> None:
        self.sent += 1
        told = await speaker.write(**frame)
        self.resent += told.tries - 1
        if told.outcome == "unknown":
            self.unknown.append(f"{speaker.name}: {frame}: {told.reply}")
        elif told.outcome != "ok":
            self.rejected.append(f"{speaker.name}: {frame}: {told.reply}")

    # --- what must be there ------------------------------------------------------------------------------------------

    async def faults(self) -> list[str]:
        """What was lost, doubled, out of order, refused or never known."""
        found = [*self.rejected, *self.unknown]
        speaker = Speaker([self.paths[0]], "auditor")
        senders = [f"agent-{n}" for n in range(self.agents)] + [f"plain-{n}" for n in range(self.plain)]
        for sender in senders:
            for record in range(RECORDS):
                job = (await speaker.read(op="get", jobId=f"{sender}-{record}")).record
                expected = list(range(record, self.writes, RECORDS))
                if job is None or job["seen"] != expected or job["revision"] != len(expected) + 1:
                    found.append(f"{sender}-{record}: {_difference(expected, job)}")
        total = 0
        for counter in range(COUNTERS):
            total += ((await speaker.read(op="get", jobId=f"counter-{counter}")).record or {}).get("n", 0)
        if total != len(self._counted()) * len(senders):
            found.append(f"counters add up to {total} of {len(self._counted()) * len(senders)}")
        speaker.drop()
        return found


def _counter(write: int) -> str:
    return f"counter-{write // COUNTED % COUNTERS}"


def _difference(expected: list[int], job: dict[str, Any] | None) -> str:
    if job is None:
        return "is not there"
    seen: list[int] = job["seen"]
    lost, twice = sorted(set(expected) - set(seen)), sorted({each for each in seen if seen.count(each) > 1})
    return f"lost {lost[:5]}, twice {twice[:5]}, revision {job['revision']} for {len(expected) + 1} writes"
