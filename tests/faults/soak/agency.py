"""Keeps the agent running, kills it, and looks whether what it had handed over by then arrived.

Owns the agent's process and the judgement of what its spool promises. Must not know what else is disturbed.

Every write whose call returned must be there once the next run of the agent has flushed its spool, and of the write
that was being made only all or nothing: what arrived is the beginning of what was made, without a gap.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.daemon.harness import environment
from tests.faults.soak import agent
from tests.faults.soak.findings import Tally
from tests.faults.soak.working import INSISTS, NOTE
from tests.fleet.lines import Speaker

READY_SECONDS = 120.0


class Agency:
    """One agent at a time."""

    def __init__(self, path: Path, spool: Path, tally: Tally, pause: float) -> None:
        self._path = path
        self._spool = spool
        self._tally = tally
        self._pause = pause
        self._speaker = Speaker([path], "agency", insists=INSISTS, heard=tally.heard)
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._chapter = 0
        """The one that is being written."""
        self._made = 0
        """Writes of it that were handed over for sure."""
        self._deleting = False
        self._killing = False

    async def start(self) -> None:
        self._chapter += 1
        self._made, self._deleting, self._killing = 0, False, False
        self._ready.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.soak.agent", str(self._path), str(self._spool), str(self._chapter),
            str(self._pause), env=environment(), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen(self._process))
        await asyncio.wait_for(self._ready.wait(), READY_SECONDS)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode():
            word, _, rest = line.rstrip("\n").partition(" ")
            if not line.endswith("\n"):
                break  # it was killed while it said this
            self._hear(word, rest)
        if await process.wait() and not self._killing:
            self._tally.say_wrong(f"the agent ended with {process.returncode}")

    def _hear(self, word: str, rest: str) -> None:
        if word == "ready":
            self._ready.set()
        elif word == "made":
            chapter, number = map(int, rest.split())
            if chapter != self._chapter:
                self._chapter, self._deleting = chapter, False
            self._made = number + 1
            self._tally.operations["adapter update"] += 1
        elif word == "deleting":
            self._deleting = True
        else:
            self._tally.say_wrong(f"agent: {rest}")

    async def kill_and_start_again(self) -> None:
        await self._end(signal.SIGKILL)
        chapter, made, deleting = self._chapter, self._made, self._deleting
        await self.start()
        await self._judge(chapter, made, deleting)

    async def stop(self) -> None:
        """Let it finish its chapter."""
        await self._end(signal.SIGTERM)
        self._speaker.drop()

    async def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._listening is not None
        self._killing = number is signal.SIGKILL
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._listening

    async def _judge(self, chapter: int, made: int, deleting: bool) -> None:
        found: dict[int, list[int]] = {}
        for record in range(agent.RECORDS):
            told = await self._speaker.read(op="get", kind=NOTE, id=agent.name(chapter, record))
            if told.record is not None:
                found[record] = told.record["seen"]
                await self._speaker.write(op="delete", kind=NOTE, id=agent.name(chapter, record))
        if deleting:
            found = {record: seen for record, seen in found.items() if seen != agent.expected(record, agent.WRITES)}
            if found:
                self._tally.say_lost(f"chapter {chapter} was flushed, and has {found}")
        elif not any(self._is_what(found, writes) for writes in (made, made + 1)) and made:
            arrived = sum(map(len, found.values()))
            say = self._tally.say_twice if arrived > made + 1 else self._tally.say_lost
            say(f"chapter {chapter}: {made} writes were handed over, and {found} arrived")

    @staticmethod
    def _is_what(found: dict[int, list[int]], writes: int) -> bool:
        return found == {record: agent.expected(record, writes) for record in range(agent.RECORDS)}
