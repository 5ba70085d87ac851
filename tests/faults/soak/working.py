"""The steady load: gardeners who know every plot of theirs, clerks at a queue, a follower who sees every change.

Owns what is asked and what must come back, all the time. Must not know who disturbs it. Each worker is the only one who
writes its records, so it knows at any moment what the daemon must say; the number of records stays as it is, however
long it goes on. The kinds are others than those of the races that run beside it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.soak.findings import Tally
from tests.fleet.lines import Json, Speaker, Told
from tests.fleet.watchers import Watcher

PLOT, TASK, NOTE = "plot", "task", "note"
KINDS = (PLOT, TASK, NOTE)

TOGETHER = 32
"""Plots made in one transaction."""

ROWS = 40
"""Plots of a bed that share a label, and so are listed together: a hundredth of it, or fewer."""

PAD = "x" * 400
INSISTS = 120.0
LEASE_SECONDS = 30.0


class Pace:
    """So many turns a second, never more to make up for a time when nothing went."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = time.monotonic()

    async def turn(self) -> None:
        now = time.monotonic()
        self._next = max(self._next + self._step, now)
        await asyncio.sleep(self._next - now)


@dataclass
class Plot:
    """What a gardener knows of one of its records."""

    n: int
    revision: int = 1
    uid: str = ""


class Gardener:
    """Has many records, looks at them in no order, and changes some."""

    def __init__(self, speaker: Speaker, bed: str, count: int, tally: Tally, chance: random.Random) -> None:
        self.speaker = speaker
        self._bed = bed
        self._tally = tally
        self._chance = chance
        self.plots = [Plot(0) for _ in range(count)]

    def name_of(self, place: int) -> str:
        return f"{self._bed}-{place}"

    def _record(self, place: int) -> Json:
        labels = {"row": f"{self._bed}-{place % self._rows}"}
        return {"id": self.name_of(place), "n": 0, "status": "planted", "labels": labels, "pad": PAD}

    @property
    def _rows(self) -> int:
        return max(1, len(self.plots) // ROWS)

    async def plant(self) -> None:
        """Make all of them."""
        for first in range(0, len(self.plots), TOGETHER):
            places = range(first, min(first + TOGETHER, len(self.plots)))
            ops = [{"op": "create", "kind": PLOT, "record": self._record(place)} for place in places]
            await self._write(op="txn", ops=ops)
            for place in places:
                self.plots[place] = Plot(0)

    async def work(self) -> None:
        """One thing or another."""
        turns: dict[Callable[[], Awaitable[None]], int] = {
            self._look: 60, self._grow: 20, self._move: 6, self._replant: 4, self._browse: 4, self._read_back: 3,
        }  # fmt: skip
        (turn,) = self._chance.choices(list(turns), list(turns.values()))
        await turn()

    def _some(self) -> int:
        return self._chance.randrange(len(self.plots))

    async def _look(self) -> None:
        await self.check(self._some())

    async def check(self, place: int) -> None:
        told = await self.speaker.read(op="get", kind=PLOT, id=self.name_of(place))
        self._tally.note("get", told)
        self._compare(place, told.record)

    async def _grow(self) -> None:
        place = self._some()
        told = await self._write(op="update", kind=PLOT, id=self.name_of(place), inc={"n": 1})
        self._changed(place, 1, told.record)

    async def _move(self) -> None:
        """From one to another, together or not at all."""
        two = self._chance.sample(range(len(self.plots)), 2)
        changes = list(zip(two, (1, -1), strict=True))
        ops = [{"op": "update", "kind": PLOT, "id": self.name_of(place), "inc": {"n": by}} for place, by in changes]
        told = await self._write(op="txn", ops=ops)
        results = told.reply.get("results") or [{}, {}]
        for (place, by), result in zip(changes, results, strict=True):
            self._changed(place, by, result.get("record"))

    async def _replant(self) -> None:
        """Its life ends, and another begins under the same name."""
        place = self._some()
        await self._write(op="delete", kind=PLOT, id=self.name_of(place), ifRevision=self.plots[place].revision)
        told = await self._write(op="create", kind=PLOT, record=self._record(place))
        self.plots[place] = Plot(0)
        if told.record is not None:
            self._compare(place, told.record)

    async def _browse(self) -> None:
        """A list by label has these and no others."""
        row = self._chance.randrange(self._rows)
        filter = {"labels": {"row": f"{self._bed}-{row}"}, "status": "planted"}
        told = await self.speaker.read(op="list", kind=PLOT, filter=filter, limit=1000)
        self._tally.note("list", told)
        found = {record["id"]: record for record in told.reply.get("records", ())}
        for place in range(row, len(self.plots), self._rows):
            self._compare(place, found.pop(self.name_of(place), None))
        if found:
            self._tally.say_wrong(f"a list has {sorted(found)[:5]} too many")

    async def _read_back(self) -> None:
        """The history of a record ends where the record stands, and nothing is left out on the way."""
        place = self._some()
        told = await self.speaker.read(op="history", kind=PLOT, id=self.name_of(place), limit=1000)
        self._tally.note("history", told)
        lives = [(event["uid"], event["revision"]) for event in told.reply.get("events", ())]
        if not lives:
            return  # nothing was done to it for as long as the log is kept
        uid, revision = lives[-1]
        steps = [at for of, at in lives if of == uid]
        if revision != self.plots[place].revision or steps != list(range(steps[0], revision + 1)):
            self._tally.say_wrong(f"{self.name_of(place)} at {self.plots[place]} has the history {lives[-20:]}")

    async def _write(self, **frame: Any) -> Told:
        told = await self.speaker.write(**frame)
        self._tally.note(frame["op"], told)
        if told.outcome != "ok":
            self._tally.say_wrong(f"{self._bed}: {frame} was answered {told.reply}")
        return told

    def _changed(self, place: int, by: int, record: Json | None) -> None:
        plot = self.plots[place]
        plot.n += by
        plot.revision += 1
        if record is not None:  # the answer to a write that came again has none
            self._compare(place, record)

    def _compare(self, place: int, record: Json | None) -> None:
        plot = self.plots[place]
        if record is None:
            self._tally.say_lost(f"{self.name_of(place)} is not there; it was at {plot}")
        elif record["revision"] != plot.revision or record["n"] != plot.n:
            say = self._tally.say_twice if record["revision"] > plot.revision else self._tally.say_lost
            say(f"{self.name_of(place)}: {plot} is at revision {record['revision']} with {record['n']}")
        elif plot.uid and record["uid"] != plot.uid:
            self._tally.say_wrong(f"{self.name_of(place)}: {plot} became {record['uid']}")
        else:
            plot.uid = record["uid"]


class Clerk:
    """Takes tasks from their queueing to their end, one after the other, and wants each of them once."""

    def __init__(self, speaker: Speaker, tally: Tally) -> None:
        self.speaker = speaker
        self._tally = tally
        self._number = 0
        self._steps = self._lives()

    async def work(self) -> None:
        """The next step of a task's life."""
        await anext(self._steps)

    async def _lives(self) -> Any:
        while True:
            self._number += 1
            name = f"{self.speaker.name}-{self._number}"
            mine = {"labels": {"clerk": self.speaker.name}}
            await self._ask("create", record={"id": name, "status": "QUEUED", **mine})
            yield
            told = await self._ask("claim", filter=mine, ttl=LEASE_SECONDS, status="RUNNING")
            claimed = told.reply.get("records", [])
            if [record["id"] for record in claimed] != [name]:
                say = self._tally.say_twice if len(claimed) > 1 else self._tally.say_lost
                say(f"{name} was queued, and a claim got {claimed}")
                continue
            token = claimed[0]["lease"]["token"]
            yield
            await self._ask("renew", id=name, token=token)
            yield
            await self._ask("renew", id=name, token=token, record={"percent": 50})
            yield
            await self._ask("emit", id=name, token=token, event={"type": "note", "message": "half way"})
            yield
            await self._ask("release", id=name, token=token, status="COMPLETED")
            yield
            await self._look_at_the_end(name)
            yield
            if self._number % 2:  # the others go by their age
                await self._ask("delete", id=name)
                yield

    async def _look_at_the_end(self, name: str) -> None:
        told = await self.speaker.read(op="get", kind=TASK, id=name)
        self._tally.note("get", told)
        record = told.record
        if record is None:
            self._tally.say_lost(f"{name} was completed, and is not there")
        elif (record["status"], record.get("percent"), record["revision"]) != ("COMPLETED", 50, 5):
            say = self._tally.say_twice if record["revision"] > 5 else self._tally.say_lost
            say(f"{name} was created, claimed, changed, told of and completed, and is {record}")

    async def _ask(self, op: str, **fields: Any) -> Told:
        told = await self.speaker.write(op=op, kind=TASK, **fields)
        self._tally.note(op, told)
        if told.outcome != "ok":
            self._tally.say_wrong(f"{self.speaker.name}: {op} {fields} was answered {told.reply}")
        return told


@dataclass
class Follower(Watcher):
    """Sees every change once and in its order, from the first on; keeps only where each living record stands."""

    tally: Tally = field(default_factory=Tally)
    standing: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)

    def _keep(self, event: Json) -> None:
        key = (event["kind"], event["id"])
        uid, revision = event["uid"], event["revision"]
        self.count += 1
        before = self.standing.get(key)
        if before is None and revision != 1:
            self.tally.say_lost(f"{key}: the first that a watch tells of {uid} is revision {revision}")
        elif before is not None and (uid, revision) != (before[0], before[1] + 1):
            say = self.tally.say_twice if uid == before[0] and revision <= before[1] else self.tally.say_lost
            say(f"{key}: a watch tells of {uid}/{revision} after {before}")
        if event["type"] == "deleted":
            self.standing.pop(key, None)
        else:
            self.standing[key] = (uid, revision)


@dataclass
class Crew:
    """Everybody who works steadily, through one socket."""

    path: Path
    tally: Tally
    seed: int
    gardeners: list[Gardener] = field(default_factory=list)
    clerks: list[Clerk] = field(default_factory=list)
    turns: int = 0
    """What they have done while they worked steadily."""
    _stopping: bool = False

    @classmethod
    def of(cls, path: Path, tally: Tally, seed: int, plots: int, gardeners: int = 2, clerks: int = 2) -> Crew:
        crew = cls(path, tally, seed)
        for number in range(gardeners):
            name = f"bed{number}"
            chance = random.Random(f"{name}/{seed}")
            crew.gardeners.append(Gardener(crew._speaker(name), name, plots // gardeners, tally, chance))
        crew.clerks += (Clerk(crew._speaker(f"clerk{number}"), tally) for number in range(clerks))
        return crew

    def _speaker(self, name: str) -> Speaker:
        return Speaker([self.path], name, insists=INSISTS, seed=self.seed, heard=self.tally.heard)

    @property
    def speakers(self) -> list[Speaker]:
        return [*(gardener.speaker for gardener in self.gardeners), *(clerk.speaker for clerk in self.clerks)]

    async def prepare(self) -> None:
        async with asyncio.TaskGroup() as group:
            for gardener in self.gardeners:
                group.create_task(gardener.plant())

    async def work(self, rate: float) -> None:
        """Until told to stop, so many requests a second in all."""
        workers: list[Gardener | Clerk] = [*self.gardeners, *self.clerks]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(self._keep_working(worker, rate / len(workers)))

    async def _keep_working(self, worker: Gardener | Clerk, rate: float) -> None:
        pace = Pace(rate)
        while not self._stopping:
            await pace.turn()
            await worker.work()
            self.turns += 1

    def stop(self) -> None:
        self._stopping = True

    async def audit(self) -> None:
        """Look at every plot there is."""
        for gardener in self.gardeners:
            for place in range(len(gardener.plots)):
                await gardener.check(place)

    def leave(self) -> None:
        for speaker in self.speakers:
            speaker.drop()
