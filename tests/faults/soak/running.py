"""The soak itself: one daemon that lives through it all in one process, work, troubles, and samples of what it takes.

Owns the order of things and the clock. Must not judge: that is report.py.

Around every trouble a race of clients with the checker of histories runs beside the steady load, so that what the
trouble does to those who are in the middle of something is judged in full. The first minutes are for warming up: every
trouble happens a few times, so that what each needs at its height has been asked for before anything is compared.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemon.harness import Daemon
from tests.faults.soak import sampling
from tests.faults.soak.agency import Agency
from tests.faults.soak.findings import Tally
from tests.faults.soak.troubles import SETTINGS, TROUBLES, Scene, Trouble, in_words
from tests.faults.soak.victim import Victim
from tests.faults.soak.working import KINDS, Crew, Follower
from tests.fleet.lines import Speaker
from tests.fleet.race import KINDS as RACED_KINDS
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults

SETTLES = 45.0
"""Seconds that a race waits for leases, lists and watches at its end, each: all of them before what it made goes by its
age, or that would be taken for a fault."""

RETENTION: dict[str, object] = {
    # Short, so that what comes and what goes are in balance long before the warm-up is over.
    "retention__terminal_seconds": 180,
    "retention__log_seconds": 90,
    "retention__interval_seconds": 5,
    # Smaller than the records are together, so that it is full.
    "storage__sqlite__cache_bytes": 8 * sampling.MIB,
}

ROUNDS = 3
"""Of all troubles while it is warming up."""

MORE = 150
"""Answers a race gets before a trouble, and after it."""

CAUGHT_UP_SECONDS = 60.0


@dataclass(frozen=True)
class Size:
    """How long, how much, how often."""

    minutes: float = 60.0
    """After the warm-up."""
    warm_up: float = 30.0
    """Minutes that are not compared. What Python's allocator keeps of a burst grows by steps of a few MiB until it has
    seen all of them at once, which takes some twenty minutes; from then on it stays."""
    fault_seconds: float = 60.0
    sample_seconds: float = 5.0
    rate: float = 300.0
    """Requests a second of the steady load."""
    plots: int = 12_000
    breath: float = 3.0
    """Seconds that something stands still."""
    agent_pause: float = 0.02
    race_pause: float = 0.02
    """Seconds each client of a race takes before it asks. What the daemon takes follows from how much it is asked; were
    that as much as the machine lets through, whatever else the machine has to do would look like growth."""
    seed: int = 1
    backend: str = "sqlite"
    raced: bool = True
    """Whether a race runs around every trouble."""

    @property
    def seconds(self) -> float:
        return 60 * (self.warm_up + self.minutes)

    def until_next(self, elapsed: float) -> float:
        """Between two troubles: while it is warming up, so often that each comes some times."""
        if elapsed < 60 * self.warm_up:
            return min(self.fault_seconds, 60 * self.warm_up / (ROUNDS * len(TROUBLES) + 1))
        return self.fault_seconds

    @property
    def faults(self) -> int:
        """As many as there is time for after the warm-up, were each over at once."""
        return int(60 * self.minutes / self.fault_seconds)


@dataclass
class Sample:
    """One look at the daemon."""

    at: float
    """Seconds since the load began."""
    rss: float
    anonymous: float
    descriptors: int
    threads: int
    cpu: float
    """The share of one processor since the sample before."""
    disk: float
    """MiB of its files."""
    requests: float
    """A second, since the sample before."""
    p50: float | None
    p99: float | None
    """Milliseconds."""


@dataclass
class Soak:
    """A run, and what is known of it so far."""

    size: Size
    folder: Path
    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    happened: list[tuple[float, str]] = field(default_factory=list)
    """When each trouble began."""
    races: int = 0
    turns: int = 0
    worked_seconds: float = 0.0
    """Of the steady load: what was done, and in how long."""
    victim_acknowledged: int = 0
    victim_resent: int = 0
    followed: int = 0
    resumed: int = 0
    _began: float = 0.0
    _progress: Callable[[str], None] = lambda _: None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    async def run(self, progress: Callable[[str], None] = lambda _: None) -> None:
        self._progress = progress
        size = self.size
        settings = {**SETTINGS, **RETENTION}
        first, second = self.folder / "1", self.folder / "2"
        for folder in (first, second):
            folder.mkdir(mode=0o700)
        with Daemon(first, backend=size.backend, settings=settings).serving() as daemon:
            crew = Crew.of(daemon.socket, self.tally, size.seed, size.plots)
            agency = Agency(daemon.socket, first / "spool", self.tally, size.agent_pause)
            scene = Scene(daemon, crew, agency, self.tally, random.Random(f"scene/{size.seed}"), size.breath)
            follower = Follower(daemon.socket, KINDS, tally=self.tally)
            following = asyncio.create_task(follower.run())
            await follower.following()
            await crew.prepare()
            await agency.start()
            self._began = time.monotonic()
            await self._work(scene, Victim(second, self.tally, size.seed))
            await agency.stop()
            await self._look_at_everything(crew, follower)
            following.cancel()
            crew.leave()
            await asyncio.to_thread(self._start_again, daemon)
            await crew.audit()
            crew.leave()

    # --- while it goes on --------------------------------------------------------------------------------------------

    async def _work(self, scene: Scene, victim: Victim) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(scene.crew.work(self.size.rate))
            sampling = group.create_task(self._sample(scene.daemon))
            troubled = group.create_task(self._trouble(scene))
            try:
                await self._kill(victim)
                await troubled
            finally:
                self.turns, self.worked_seconds = scene.crew.turns, self.elapsed
                scene.crew.stop()
                sampling.cancel()

    async def _trouble(self, scene: Scene) -> None:
        order: list[Trouble] = []
        while self.elapsed < self.size.seconds or len(self.happened) < len(TROUBLES):
            if not order:
                order = list(TROUBLES)
                if self.happened:  # the first time round as they stand, then in any order
                    scene.chance.shuffle(order)
            trouble, due = order.pop(0), self.elapsed + self.size.until_next(self.elapsed)
            self.happened.append((self.elapsed, in_words(trouble)))
            self.tally.faults[in_words(trouble)] += 1
            await self._survive(in_words(trouble), self._race(scene, trouble) if self.size.raced else trouble(scene))
            await asyncio.sleep(max(0.0, min(due, self.size.seconds) - self.elapsed))

    async def _survive(self, what: str, work: Awaitable[None]) -> None:
        """One that breaks is a finding, and not the end of the hour."""
        try:
            await work
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is told
            self.tally.say_wrong(f"{what}: {''.join(traceback.format_exception(problem))}")

    async def _race(self, scene: Scene, trouble: Trouble) -> None:
        """A trouble in the middle of a race; then everything the race made is taken away again."""
        plan = Plan(
            until_told=True, mixed=4, hot=4, cold=40, lockers=2, workers=2, jobs=8, ttl=self.size.breath + 2.0,
            insists=120.0, pause=self.size.race_pause, settles=SETTLES, seed=self.size.seed + self.races,
        )  # fmt: skip
        race = Race([scene.daemon.socket], plan, heard=self.tally.heard)

        async def meanwhile() -> None:
            await race.more(MORE, seconds=120.0)
            await trouble(scene)
            await race.more(MORE, seconds=120.0)
            race.end()

        try:
            await race.run(meanwhile)
        finally:
            race.end()
            await self._tidy(scene)
        self.races += 1
        for op, seconds in race.story.seconds.items():
            self.tally.operations[op] += len(seconds)
        for fault in await asyncio.to_thread(faults, race):
            self.tally.say_wrong(f"{in_words(trouble)}: {fault}")

    async def _tidy(self, scene: Scene) -> None:
        """Take away what a race made, however it ended: the next one begins with nothing."""
        speaker = Speaker([scene.daemon.socket], "tidier", heard=self.tally.heard)
        for kind in RACED_KINDS:
            for name in await self._left(speaker, kind):
                told = await speaker.write(op="delete", kind=kind, id=name)
                if told.outcome != "ok" and told.code != "not_found":  # a job that ended goes by its age
                    self.tally.say_wrong(f"{kind} of a race could not be deleted: {told.reply}")
            if left := await self._left(speaker, kind):
                self.tally.say_wrong(f"{kind} of a race is still there after it was deleted: {left[:5]}")
        speaker.drop()

    async def _left(self, speaker: Speaker, kind: str) -> list[str]:
        told = await speaker.read(op="list", kind=kind, limit=1000)
        if told.outcome != "ok":
            self.tally.say_wrong(f"{kind} of a race could not be listed: {told.reply}")
        return [
            record.get("uuid") or record["id"] for record in told.reply.get("jobs") or told.reply.get("records") or ()
        ]

    async def _kill(self, victim: Victim) -> None:
        while self.elapsed < self.size.seconds:
            due = self.elapsed + self.size.until_next(self.elapsed)
            await self._survive("the second daemon", asyncio.to_thread(victim.round))
            await asyncio.sleep(max(0.0, min(due, self.size.seconds) - self.elapsed))
        await self._survive("the second daemon", asyncio.to_thread(victim.end))
        self.victim_acknowledged, self.victim_resent = victim.acknowledged, victim.resent

    async def _sample(self, daemon: Daemon) -> None:
        at, before, answered = self.elapsed, sampling.taken(daemon.pid), self._answered()
        while True:
            await asyncio.sleep(self.size.sample_seconds - (self.elapsed % self.size.sample_seconds))
            now, taken, count = self.elapsed, sampling.taken(daemon.pid), self._answered()
            passed = now - at
            seconds = sorted(self.tally.latencies())
            sample = Sample(
                at=round(now, 1),
                rss=round(taken.rss, 3),
                anonymous=round(taken.anonymous, 3),
                descriptors=taken.descriptors,
                threads=taken.threads,
                cpu=round((taken.cpu - before.cpu) / passed, 3),
                disk=round(sampling.folder_bytes(daemon.data) / sampling.MIB, 3),
                requests=round((count - answered) / passed, 1),
                p50=_share(seconds, 0.5),
                p99=_share(seconds, 0.99),
            )
            at, before, answered = now, taken, count
            self.samples.append(sample)
            self._progress(self._told(sample))
            for words in self.tally.news():
                self._progress(words)

    def _answered(self) -> int:
        return sum(self.tally.heard.values()) + self.tally.operations["adapter update"]

    def _told(self, sample: Sample) -> str:
        what = self.happened[-1][1] if self.happened else ""
        bad = self.tally.lost + self.tally.twice + self.tally.wrong
        return (
            f"{sample.at / 60:6.1f} of {self.size.seconds / 60:.0f} min  {sample.rss:6.1f} MiB  "
            f"{sample.descriptors:3} descriptors  {sample.requests:5.0f}/s  cpu {sample.cpu:4.0%}  "
            f"{sum(self.tally.faults.values()):3} faults  {bad} findings  {what}"
        )

    # --- at its end --------------------------------------------------------------------------------------------------

    async def _look_at_everything(self, crew: Crew, follower: Follower) -> None:
        await crew.audit()
        await self._caught_up(crew, follower)
        if follower.gone:
            self.tally.say_wrong(f"what happened could not be followed: {follower.gone[:3]}")
        self.followed, self.resumed = follower.count, follower.resumed
        speaker = Speaker([crew.path], "auditor", heard=self.tally.heard)
        told = await speaker.read(op="check")
        if not told.reply["success"] or told.reply.get("problems"):
            self.tally.say_wrong(f"the store's own check: {told.reply}")
        speaker.drop()

    async def _caught_up(self, crew: Crew, follower: Follower) -> None:
        """Whoever followed must know in the end of every plot where it stands."""
        wanted = {
            ("plot", gardener.name_of(place)): (plot.uid, plot.revision)
            for gardener in crew.gardeners
            for place, plot in enumerate(gardener.plots)
        }
        deadline = time.monotonic() + CAUGHT_UP_SECONDS
        while True:
            standing = {key: stamp for key, stamp in follower.standing.items() if key[0] == "plot"}
            if standing == wanted:
                return
            if time.monotonic() > deadline:
                differ = {key for key in wanted | standing if wanted.get(key) != standing.get(key)}
                self.tally.say_lost(f"a watch was not told of {len(differ)} plots, such as {sorted(differ)[:3]}")
                return
            await asyncio.sleep(0.05)

    def _start_again(self, daemon: Daemon) -> None:
        if code := daemon.stop():
            self.tally.say_wrong(f"the daemon ended with {code}: {daemon.stderr[-2000:]}")
        daemon.serving()


def _share(sorted_seconds: list[float], share: float) -> float | None:
    if not sorted_seconds:
        return None
    return round(1000 * sorted_seconds[int(len(sorted_seconds) * share)], 3)
