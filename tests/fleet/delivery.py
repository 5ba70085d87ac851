"""Writes that must each arrive once and in order: from agents with the adapter, and from plain numbered clients.

Owns what is sent and what must be there afterwards. Must not know daemons, nor what disturbs them on the way.

Every record has a list that each write appends its number to: what is lost, doubled or out of order shows in it.
Counters are shared by all, and each keeps count of every sender by itself, so that a loss here does not make up for a
double there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statesvc_client import StateStore
from tests.fleet.lines import Speaker, Unanswered

COUNTERS = 4

FLUSH_SECONDS = 300.0


@dataclass
class Delivery:
    """So many writes of every sender, and what came of them."""

    paths: Sequence[Path]
    writes: int
    """Of each sender, to records of its own, at most."""
    agents: int = 2
    plain: int = 2
    records: int = 8
    """Of each sender."""
    counted: int = 4
    """One write in so many is followed by one to a counter that all senders share."""
    run_writes: int = 64
    """What an agent hands over before it waits for the acknowledgement: what a slow store takes in a while."""
    pause_seconds: float = 0.002
    """An agent's after every few writes, so that they are not all in one piece."""
    name: str = ""
    """What tells its records from those of another on the same store."""
    sent: int = 0
    """Writes handed over or sent so far."""
    acknowledged: int = 0
    """Of them, those that senders were told to be applied."""
    rejected: list[str] = field(default_factory=list)
    epochs: list[tuple[str, str]] = field(default_factory=list)
    """Changes of the epoch that agents were told of."""
    resent: int = 0
    unknown: list[str] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds a plain client had to insist on one write, at most."""
    lost: int = 0
    """Writes that are not there, once `faults` has looked."""
    twice: int = 0
    is_over: bool = False
    _made: Counter[str] = field(default_factory=Counter)
    """Writes of each sender, without those to counters."""
    _told_to_end: bool = False

    def end(self) -> None:
        """Let everybody stop where they are; what they have sent so far has to arrive."""
        self._told_to_end = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.agents):
                group.create_task(self._agent(number))
            for number in range(self.plain):
                group.create_task(self._client(number))
        self.is_over = True

    @property
    def expected(self) -> int:
        """Acknowledgements in all, once everybody has stopped."""
        return sum(self.records + writes + self._counts_among(writes).total() for writes in self._made.values())

    def _goes_on(self, sender: str) -> bool:
        return not self._told_to_end and self._made[sender] < self.writes

    def _path(self, number: int) -> Path:
        return self.paths[number % len(self.paths)]

    async def _agent(self, number: int) -> None:
        sender = f"{self.name}agent-{number}"
        self._made[sender] = 0
        async with StateStore.connect(
            self._path(number),
            connect_seconds=FLUSH_SECONDS,
            on_rejected=lambda write, error: self.rejected.append(f"{sender}: {write}: {error.code} {error}"),
            on_epoch=lambda before, now: self.epochs.append((before, now)),
        ) as state:
            for record in range(self.records):
                state.create({"uuid": f"{sender}-{record}", "seen": []})
                self.sent += 1
            while self._goes_on(sender):
                write = self._made[sender]
                self._made[sender] += 1
                state.update(f"{sender}-{write % self.records}", append={"seen": [write]})
                self.sent += 1
                if write % self.counted == 0:
                    state.update(self._counter(write), inc={sender: 1}, upsert=True)
                    self.sent += 1
                if write % self.run_writes == self.run_writes - 1:
                    await state.flush(FLUSH_SECONDS)
                elif write % 16 == 0 and self.pause_seconds:
                    await asyncio.sleep(self.pause_seconds)
            counters = await state.flush(FLUSH_SECONDS)
            self.resent += counters.resent
            self.acknowledged += counters.acked + counters.merged  # which is acknowledged with what it became part of

    async def _client(self, number: int) -> None:
        sender = f"{self.name}plain-{number}"
        self._made[sender] = 0
        speaker = Speaker([self._path(number)], sender, insists=FLUSH_SECONDS)
        for record in range(self.records):
            await self._write(speaker, op="create", job={"uuid": f"{sender}-{record}", "seen": []})
        while self._goes_on(sender):
            write = self._made[sender]
            self._made[sender] += 1
            await self._write(speaker, op="update", jobId=f"{sender}-{write % self.records}", append={"seen": [write]})
            if write % self.counted == 0:
                await self._write(speaker, op="update", jobId=self._counter(write), inc={sender: 1}, upsert=True)
        speaker.drop()

    async def _write(self, speaker: Speaker, **frame: Any) -> None:
        self.sent += 1
        try:
            told = await speaker.write(**frame)
        except Unanswered as broken:
            self.rejected.append(f"{speaker.name}: {broken}")
            speaker.drop()
            return
        self.resent += told.tries - 1
        self.slowest = max(self.slowest, told.seconds)
        if told.outcome == "ok":
            self.acknowledged += 1
        elif told.outcome == "unknown":
            self.unknown.append(f"{speaker.name}: {frame}: {told.reply}")
        else:
            self.rejected.append(f"{speaker.name}: {frame}: {told.reply}")

    # --- what must be there ------------------------------------------------------------------------------------------

    async def faults(self) -> list[str]:
        """What was lost, doubled, out of order, refused or never known."""
        found = [*self.rejected, *self.unknown]
        speaker = Speaker([self.paths[0]], "auditor")
        for sender, writes in self._made.items():
            for record in range(self.records):
                job = (await speaker.read(op="get", jobId=f"{sender}-{record}")).record
                expected = list(range(record, writes, self.records))
                if job is None or job["seen"] != expected or job["revision"] != len(expected) + 1:
                    found.append(f"{sender}-{record}: {self._difference(expected, job)}")
        for number in range(COUNTERS):
            name = f"{self.name}counter-{number}"
            found += self._miscounts(name, (await speaker.read(op="get", jobId=name)).record or {})
        speaker.drop()
        return found

    def _miscounts(self, counter: str, job: dict[str, Any]) -> Iterator[str]:
        in_all = 0
        for sender, writes in self._made.items():
            counted, expected = job.get(sender, 0), self._counts_among(writes)[counter]
            in_all += expected
            self.lost += max(0, expected - counted)
            self.twice += max(0, counted - expected)
            if counted != expected:
                yield f"{counter}: {counted} of {sender}, which counted {expected} times"
        if job.get("revision", 0) != in_all:
            yield f"{counter}: revision {job.get('revision', 0)} for {in_all} writes"

    def _difference(self, expected: list[int], job: dict[str, Any] | None) -> str:
        seen = Counter(job["seen"] if job is not None else ())
        lost, twice = sorted(set(expected) - seen.keys()), sorted(each for each, times in seen.items() if times > 1)
        self.lost += len(lost)
        self.twice += len(twice)
        if job is None:
            return "is not there"
        return f"lost {lost[:5]}, twice {twice[:5]}, revision {job['revision']} for {len(expected) + 1} writes"

    def _counter(self, write: int) -> str:
        return f"{self.name}counter-{write // self.counted % COUNTERS}"

    def _counts_among(self, writes: int) -> Counter[str]:
        """How many of so many writes are followed by one to each counter."""
        return Counter(self._counter(write) for write in range(0, writes, self.counted))
