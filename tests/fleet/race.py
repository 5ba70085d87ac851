"""A mixed racing load on one namespace, through as many daemons as there are.

Owns who does what: clients that make, change, count, move and delete records, contenders for locks, workers on a queue
some of whom die, watchers at every daemon. Must not know how daemons are started, nor judge: that is verdicts.py.

Every write leaves a tag of its own in the record (`by`), so that whoever sees a state knows which write made it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fleet.linearizability import Key, Stamp
from tests.fleet.lines import Json, Speaker, Told, Unanswered
from tests.fleet.story import Guarded, Story
from tests.fleet.watchers import Watcher

KINDS = ("kv", "lock", "job")

RACERS = frozenset({"mixed", "locker", "filler", "worker"})
"""Whoever makes the load; the others prepare it, or look at what it came to."""

SETTLED_SECONDS = 60.0
"""How long the end may take, unless the plan says otherwise: jobs of dead workers, and watchers that lag."""


@dataclass
class Plan:
    """How much of everything. Bounded by operations, or by seconds when they are given, or by whoever disturbs it."""

    operations: int = 2000
    """Of the mixed clients."""
    seconds: float | None = None
    until_told: bool = False
    """Goes on until `end` is called."""
    mixed: int = 16
    """Clients that do everything; one in four of them never numbers its writes."""
    hot: int = 6
    cold: int = 100
    """Records the mixed clients race for, most of the time and now and then."""
    counters: int = 3
    accounts: int = 4
    lockers: int = 8
    locks: int = 3
    workers: int = 8
    jobs: int = 100
    """In all, when bounded by operations; else so many wait at a time."""
    deaths: float = 0.03
    """The share of claims after which the claimant is gone."""
    ttl: float = 2.0
    insists: float = 60.0
    """Seconds after which a numbered client gives a write up."""
    pause: float = 0.0
    """Seconds that whoever races takes before each request. Without it a race is as large as the machine is fast."""
    settles: float = SETTLED_SECONDS
    seed: int = 1

    @property
    def bounded(self) -> bool:
        """By its operations alone."""
        return self.seconds is None and not self.until_told


@dataclass
class Race:
    """The load and what came of it."""

    paths: Sequence[Path]
    plan: Plan = field(default_factory=Plan)
    story: Story = field(default_factory=Story)
    watchers: list[Watcher] = field(default_factory=list)
    finals: dict[Path, dict[Key, Stamp | None]] = field(default_factory=dict)
    """What each daemon says of every record in the end; None where there is none."""
    records: dict[Key, dict[str, Any] | None] = field(default_factory=dict)
    """The records in the end, as the first daemon tells them."""
    lists: dict[Path, set[Stamp]] = field(default_factory=dict)
    died: int = 0
    took: float = 0.0
    epochs: set[str] = field(default_factory=set)
    heard: Counter[str] = field(default_factory=Counter)
    """Every answer by its code, those to tries that were made again included."""
    blurred: list[tuple[float, float]] = field(default_factory=list)
    """Between these moments reads may have shown what was not acknowledged and did not last: they prove nothing."""
    _told_to_end: bool = False
    _left: int = 0
    _began: float = 0.0
    _last_orders: float = 0.0
    """When nobody waits any longer for jobs to be completed."""
    _jobs: list[str] = field(default_factory=list)
    _known: dict[Key, int] = field(default_factory=dict)
    """The newest revision anybody has heard of."""

    # --- all of it ---------------------------------------------------------------------------------------------------

    async def run(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Everything, to its end. `meanwhile` runs beside the load: somebody who breaks things."""
        self.watchers = [Watcher(path, KINDS) for path in self.paths]
        async with asyncio.TaskGroup() as group:
            watching: list[asyncio.Task[None]] = []
            for watcher in self.watchers:
                # All begin at the same place, so that all must see the same.
                watcher.cursors.update(self.watchers[0].cursors)
                watching.append(group.create_task(watcher.run()))
                await asyncio.wait_for(watcher.following(), SETTLED_SECONDS)
            await self._prepare()
            await self._race(meanwhile)
            await self._settle()
            for task in watching:
                task.cancel()

    async def _race(self, meanwhile: Callable[[], Awaitable[None]] | None) -> None:
        plan = self.plan
        self._began, self._left = time.monotonic(), plan.operations
        async with asyncio.TaskGroup() as group:
            if meanwhile is not None:
                group.create_task(self._disturb(meanwhile))
            for number in range(plan.mixed):
                group.create_task(self._told(self._mix(self._speaker("mixed", number, numbered=number % 4 != 3))))
            for number in range(plan.lockers):
                group.create_task(self._told(self._contend(number)))
            group.create_task(self._told(self._fill()))
            for number in range(plan.workers):
                group.create_task(self._told(self._work(number)))
        self.took = time.monotonic() - self._began

    async def _disturb(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        await meanwhile()

    async def _told(self, role: Awaitable[None]) -> None:
        try:
            await role
        except Unanswered as problem:
            self.story.problems.append(f"unanswered: {problem}")

    def end(self) -> None:
        """Let everybody finish what they are at."""
        self._told_to_end = True

    @property
    def is_ending(self) -> bool:
        return self._told_to_end

    async def more(self, count: int, code: str = "ok", seconds: float = SETTLED_SECONDS) -> None:
        """Return when so many more answers of a code have come. For those who disturb the race."""
        goal, deadline = self.heard[code] + count, time.monotonic() + seconds
        while self.heard[code] < goal:
            if time.monotonic() > deadline:
                self.story.problems.append(f"{count} more answers `{code}` did not come within {seconds:g} seconds")
                return
            await asyncio.sleep(0.005)

    def _goes_on(self) -> bool:
        if self.plan.until_told:
            return not self._told_to_end
        if self.plan.seconds is not None:
            return time.monotonic() - self._began < self.plan.seconds
        return self._left > 0

    def _speaker(self, role: str, number: int, *, numbered: bool = True) -> Speaker:
        turn = number % len(self.paths)
        paths = [*self.paths[turn:], *self.paths[:turn]]
        plan = self.plan
        pause = plan.pause if role in RACERS else 0.0
        name = f"{role}-{number}"
        return Speaker(
            paths, name, numbered=numbered, insists=plan.insists, pause=pause, seed=plan.seed, heard=self.heard
        )

    async def _prepare(self) -> None:
        speaker = self._speaker("first", 0)
        for number in range(self.plan.accounts):
            key = ("kv", f"account-{number}")
            tag = self.story.tag()
            told = await speaker.write(op="create", kind="kv", record={"id": key[1], "n": 0, "by": tag})
            self.story.add(speaker.name, "create", key, told, tag)
        speaker.drop()

    # --- clients that do everything ----------------------------------------------------------------------------------

    async def _mix(self, speaker: Speaker) -> None:
        chance = random.Random(f"{speaker.name}/{self.plan.seed}")
        numbered = bool(speaker.client)
        weights = {
            self._create: 3, self._change: 5, self._compare: 4, self._delete: 2, self._get: 6,
            self._count: 3, self._move: 2 if numbered else 0,
        }  # fmt: skip
        roles, shares = list(weights), list(weights.values())
        while self._goes_on():
            self._left -= 1
            (role,) = chance.choices(roles, shares)
            await role(speaker, chance)
        speaker.drop()

    def _some(self, chance: random.Random) -> Key:
        plan = self.plan
        if chance.random() < 0.6:
            return ("kv", f"hot-{chance.randrange(plan.hot)}")
        return ("kv", f"cold-{chance.randrange(plan.cold)}")

    def _heard(self, key: Key, told: Told) -> None:
        if told.record is not None and "revision" in told.record:
            self._known[key] = told.record["revision"]

    async def _create(self, speaker: Speaker, chance: random.Random) -> None:
        key, tag = self._some(chance), self.story.tag()
        told = await speaker.write(op="create", kind="kv", record={"id": key[1], "n": 0, "by": tag})
        self.story.note("create", told)
        self.story.add(speaker.name, "create", key, told, tag)
        self._heard(key, told)

    async def _change(self, speaker: Speaker, chance: random.Random) -> None:
        key, tag = self._some(chance), self.story.tag()
        told = await speaker.write(op="update", kind="kv", id=key[1], inc={"n": 1}, set={"by": tag})
        self.story.note("inc", told)
        self.story.add(speaker.name, "update", key, told, tag)
        self._heard(key, told)

    async def _compare(self, speaker: Speaker, chance: random.Random) -> None:
        key, tag = self._some(chance), self.story.tag()
        revision = self._known.get(key, 1)
        told = await speaker.write(op="update", kind="kv", id=key[1], record={"by": tag}, ifRevision=revision)
        self.story.note("ifRevision", told)
        self.story.add(speaker.name, "update", key, told, tag, if_revision=revision)
        self._heard(key, told)

    async def _delete(self, speaker: Speaker, chance: random.Random) -> None:
        key = self._some(chance)
        revision = self._known.get(key, 1) if chance.random() < 0.5 else None
        condition = {} if revision is None else {"ifRevision": revision}
        told = await speaker.write(op="delete", kind="kv", id=key[1], **condition)
        self.story.note("delete", told)
        self.story.add(speaker.name, "delete", key, told, if_revision=revision)

    async def _get(self, speaker: Speaker, chance: random.Random) -> None:
        key = self._some(chance)
        told = await speaker.read(op="get", kind="kv", id=key[1])
        self.story.note("get", told)
        self.story.add(speaker.name, "get", key, told)
        self._heard(key, told)

    async def _count(self, speaker: Speaker, chance: random.Random) -> None:
        key, tag = ("kv", f"counter-{chance.randrange(self.plan.counters)}"), self.story.tag()
        told = await speaker.write(op="update", kind="kv", id=key[1], inc={"n": 1}, record={"by": tag}, upsert=True)
        self.story.note("inc", told)
        self.story.add(speaker.name, "update", key, told, tag)
        self.story.counted[key] += told.outcome == "ok"
        self.story.perhaps_counted[key] += told.outcome == "unknown"

    async def _move(self, speaker: Speaker, chance: random.Random) -> None:
        """From one account to another: their sum never changes."""
        names = [f"account-{number}" for number in chance.sample(range(self.plan.accounts), 2)]
        tag = self.story.tag()
        amount = chance.randint(1, 9)
        ops = [
            {"op": "update", "kind": "kv", "id": name, "inc": {"n": by}, "record": {"by": tag}}
            for name, by in zip(names, (amount, -amount), strict=True)
        ]
        told = await speaker.write(op="txn", ops=ops)
        self.story.note("txn", told)
        results = told.reply.get("results") or [{}, {}]
        for name, result in zip(names, results, strict=True):
            self.story.add_part(speaker.name, ("kv", name), told, result.get("record"), tag)

    # --- locks -------------------------------------------------------------------------------------------------------

    async def _contend(self, number: int) -> None:
        chance = random.Random(f"locker/{number}/{self.plan.seed}")
        speaker = self._speaker("locker", number)
        while self._goes_on():
            key = ("lock", f"lock-{chance.randrange(self.plan.locks)}")
            token = await self._claim_lock(speaker, key)
            if token is None:
                continue
            if chance.random() < self.plan.deaths:
                self.died += 1
                speaker.drop()
                speaker = self._speaker("locker", number)
                continue
            await self._hold(speaker, key, token, chance)
        speaker.drop()

    async def _claim_lock(self, speaker: Speaker, key: Key) -> int | None:
        tag = self.story.tag()
        told = await speaker.write(op="claim", kind="lock", id=key[1], ttl=self.plan.ttl, wait=0.5, record={"by": tag})
        self.story.note("claim", told)
        return self._claimed(speaker, told, tag, key)

    def _claimed(self, speaker: Speaker, told: Told, tag: str, key: Key | None) -> int | None:
        """Note a claim, and return the token it got."""
        if told.outcome == "unknown" or told.tries > 1:
            # An earlier try may have got one whose lease lapsed before this one came.
            self.story.unplaced[tag] = (speaker.name, told)
        if told.outcome == "unknown":
            return None
        records = told.reply.get("records") or told.reply.get("jobs")
        if told.outcome == "not_applied" or not records:
            if told.tries == 1:
                self.story.vain[tag] = told.reply
            return None
        (record,) = records
        key = key or ("job", record["uuid"])
        token: int = record["lease"]["token"]
        self.story.add(speaker.name, "update", key, told._replace(reply={"success": True, "record": record}), tag)
        self.story.claims.append(Guarded(key, token, told.invoked, told.returned, "claim"))
        return token

    async def _hold(self, speaker: Speaker, key: Key, token: int, chance: random.Random) -> None:
        """Work under a lease: guarded writes, signs of life, sometimes too late; then give it back."""
        for _ in range(chance.randint(0, 3)):
            if chance.random() < self.plan.deaths:
                # It stood still for longer than it may, and does not know.
                await asyncio.sleep(self.plan.ttl * chance.uniform(0.8, 2.0))
            if chance.random() < 0.5:
                await self._renew(speaker, key, token)
            else:
                tag = self.story.tag()
                told = await speaker.write(op="update", kind=key[0], id=key[1], token=token, record={"by": tag})
                self._under_lease(speaker, "guarded", key, token, told, tag)
        tag = self.story.tag()
        told = await speaker.write(op="release", kind=key[0], id=key[1], token=token, record={"by": tag})
        self._under_lease(speaker, "release", key, token, told, tag)

    async def _renew(self, speaker: Speaker, key: Key, token: int) -> None:
        told = await speaker.read(op="renew", kind=key[0], id=key[1], token=token)
        self.story.note("renew", told)
        if told.outcome == "ok":
            self.story.guarded.append(Guarded(key, token, told.invoked, told.returned, "renew"))

    def _under_lease(self, speaker: Speaker, op: str, key: Key, token: int, told: Told, tag: str) -> None:
        self.story.note(op, told)
        self.story.add(speaker.name, "update", key, told, tag)
        self.story.tokens[tag] = token
        if told.outcome == "ok":
            self.story.guarded.append(Guarded(key, token, told.invoked, told.returned, op))

    # --- the queue ---------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        speaker = self._speaker("filler", 0)
        chance = random.Random(f"filler/{self.plan.seed}")
        while len(self._jobs) < self.plan.jobs if self.plan.bounded else self._goes_on():
            if len(self._jobs) - len(self.story.completed) >= self.plan.jobs:
                await asyncio.sleep(0.01)
                continue
            name, tag = f"job-{len(self._jobs):06}", self.story.tag()
            self._jobs.append(name)
            job = {"uuid": name, "status": "QUEUED", "priority": chance.choice([1, 5, 10]), "by": tag}
            told = await speaker.write(op="create", job=job)
            self.story.note("create", told)
            self.story.add(speaker.name, "create", ("job", name), told, tag)
        speaker.drop()

    def _working(self) -> bool:
        """As long as there are jobs, or may be; the deadline is for jobs that never end, which the verdict names."""
        if self._goes_on() or (self.plan.bounded and len(self._jobs) < self.plan.jobs):
            return True
        self._last_orders = self._last_orders or time.monotonic() + self.plan.settles
        ended = len(self.story.completed) + len(self.story.perhaps_completed.keys() - self.story.completed.keys())
        return ended < len(self._jobs) and time.monotonic() < self._last_orders

    async def _work(self, number: int) -> None:
        chance = random.Random(f"worker/{number}/{self.plan.seed}")
        speaker = self._speaker("worker", number)
        while self._working():
            tag = self.story.tag()
            told = await speaker.write(op="claim", ttl=self.plan.ttl, wait=0.5, job={"by": tag})
            self.story.note("claim", told)
            token = self._claimed(speaker, told, tag, None)
            if token is None:
                continue
            key = self.story.claims[-1].key
            if chance.random() < self.plan.deaths:
                self.died += 1
                speaker.drop()
                speaker = self._speaker("worker", number)
                continue
            if chance.random() < 0.2:
                await self._renew(speaker, key, token)
            await self._complete(speaker, key, token)
        speaker.drop()

    async def _complete(self, speaker: Speaker, key: Key, token: int) -> None:
        tag = self.story.tag()
        told = await speaker.write(op="release", jobId=key[1], token=token, status="COMPLETED", job={"by": tag})
        self._under_lease(speaker, "release", key, token, told, tag)
        self.story.completed[key[1]] += told.outcome == "ok"
        self.story.perhaps_completed[key[1]] += told.outcome == "unknown"
        if not self.story.completed[key[1]]:
            del self.story.completed[key[1]]
        if not self.story.perhaps_completed[key[1]]:
            del self.story.perhaps_completed[key[1]]

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait until nothing moves any more, and take down what every daemon says."""
        keys = sorted({op.key for op in self.story.ops})
        await self._leases_ended(keys)
        for place, path in enumerate(self.paths):
            speaker = self._speaker("auditor", place)
            found = {key: await self._audited(speaker, key) for key in keys}
            self.finals[path] = {key: _stamp(record) for key, record in found.items()}
            self.records = self.records or found
            self.epochs.add((await speaker.read(op="health")).reply["epoch"])
            speaker.drop()
        alive = {stamp for key, stamp in self.finals[self.paths[0]].items() if stamp and key[0] == "kv"}
        for place, path in enumerate(self.paths):
            self.lists[path] = await self._listed(self._speaker("auditor", place), alive)
        await self._watched()

    async def _audited(self, speaker: Speaker, key: Key) -> Json | None:
        """The record as it is in the end, which is a part of its history: what was acknowledged is in it."""
        told = await speaker.read(op="get", kind=key[0], id=key[1])
        self.story.add(speaker.name, "get", key, told)
        return told.record

    async def _leases_ended(self, keys: list[Key]) -> None:
        """Leases of the dead lapse, each once; then nobody writes any more."""
        speaker = self._speaker("auditor", 0)
        deadline = time.monotonic() + self.plan.settles
        for key in keys:
            if key[0] == "kv":
                continue
            while time.monotonic() < deadline:
                record = (await speaker.read(op="get", kind=key[0], id=key[1])).record
                if not (record or {}).get("lease"):
                    break
                await asyncio.sleep(0.05)
        speaker.drop()

    async def _listed(self, speaker: Speaker, expected: set[Stamp]) -> set[Stamp]:
        """What a list finds, once it has caught up, or has had the time to."""
        deadline = time.monotonic() + self.plan.settles
        while True:
            found: set[Stamp] = set()
            cursor: dict[str, str] = {}
            while True:
                reply = (await speaker.read(op="list", kind="kv", limit=500, **cursor)).reply
                found |= {(record["uid"], record["revision"]) for record in reply.get("records", ())}
                if "nextCursor" not in reply:
                    break
                cursor = {"cursor": reply["nextCursor"]}
            if found == expected or time.monotonic() > deadline:
                speaker.drop()
                return found
            await asyncio.sleep(0.05)

    async def _watched(self) -> None:
        """Give every watcher the time to see all that was acknowledged, and the end of every record."""
        deadline = time.monotonic() + self.plan.settles
        finals = {key: stamp for key, stamp in self.finals[self.paths[0]].items() if stamp is not None}
        for watcher in self.watchers:
            owed = self._acknowledged()
            while time.monotonic() < deadline and (
                watcher.behind(finals) or (owed := _not_seen(owed, watcher)) or self._has_ends_to_come(watcher)
            ):
                await asyncio.sleep(0.05)
        while time.monotonic() < deadline and len({watcher.count for watcher in self.watchers}) > 1:
            await asyncio.sleep(0.05)

    def _acknowledged(self) -> dict[Key, set[Stamp]]:
        """The states that writers were told to have made."""
        made: defaultdict[Key, set[Stamp]] = defaultdict(set)
        for op in self.story.ops:
            if op.found == "state" and op.outcome == "ok" and op.action != "get":
                made[op.key].add((op.uid, op.revision))
        return made

    def _has_ends_to_come(self, watcher: Watcher) -> bool:
        """Whether it takes a record to be there that is not."""
        finals = self.finals[self.paths[0]]
        return any(
            stamp is None and (seen := watcher.seen.get(key)) and seen[-1].type != "deleted"
            for key, stamp in finals.items()
        )


def _not_seen(owed: dict[Key, set[Stamp]], watcher: Watcher) -> dict[Key, set[Stamp]]:
    left = {key: stamps - {each.stamp for each in watcher.seen.get(key, ())} for key, stamps in owed.items()}
    return {key: stamps for key, stamps in left.items() if stamps}


def _stamp(record: dict[str, Any] | None) -> Stamp | None:
    return None if record is None else (record["uid"], record["revision"])
