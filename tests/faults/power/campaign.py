"""A campaign: the power is lost everywhere in some recordings, and every store that is left is judged.

Owns which states are looked at, and the counting. Must not know how a state is made or judged.

    once each   whatever is done to whatever file, in whatever phase: it is met at least once, in every recording
    in commits  a part of the states is aimed at commits: they are over sooner than anything, and matter most
    across      and a part at commits with a short write across two sectors: what is one thing may be torn there
    systematic  at every point: nothing survives, everything does, everything but one operation does
    by chance   at every point, again and again: anything of everything (see disk.py)
    twice       the opening of a store that such a loss left is recorded in its turn, with some work, and cut again

A state that was seen before is not counted again. Of what is systematic a part is taken, by chance, where all of it
would be more than half of the states asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from . import workload
from .disk import ALL, NOTHING, SECTOR_BYTES, AnyLoss, Disk, sectors, without
from .judging import judge, judge_by_daemon, lay_out
from .operations import ROOT, Image, Kept, Naming, Operation, Recording, Sync, Truncate, Write
from .recordings import Left, record_again
from .timeline import Broken, Timeline
from .tracing import STORE, NotExact

IN_COMMITS = 0.1
ACROSS = 0.05
SYSTEMATIC = 0.5
TWICE = 0.15
"""Parts of all states."""

AGAIN_AT_ONCE = 16
STATES_AGAIN = 24
"""Stores that one process opens, and the states that are made of each."""

CLOSELY = 16
"""One state in so many is looked at from end to end."""

BLOCK = 50
"""Points in a row that are one worker's, for neighbours lead to the same states."""


class Tally:
    """What was done, and what came of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        """What the store was doing."""
        self.places: Counter[str] = Counter()
        """What had just been done to what."""
        self.faults: Counter[str] = Counter()
        """In how many states something was lost in this way."""
        self.broken: Counter[str] = Counter()
        self.problems: list[str] = []
        self.points: set[tuple[str, int]] = set()

    def add(self, other: Tally) -> None:
        for mine, theirs in zip(self._counters(), other._counters(), strict=True):
            mine.update(theirs)
        self.problems += other.problems
        self.points |= other.points

    def _counters(self) -> tuple[Counter[str], ...]:
        return self.counts, self.phases, self.places, self.faults, self.broken

    def figures(self) -> dict[str, Any]:
        return {
            "states": self.counts["states"],
            "points": len(self.points),
            "of a second loss": self.counts["of a second loss"],
            "openings cut off": self.counts["openings cut off"],
            "inside a commit": self.counts["inside a commit"],
            "with a short write across sectors": self.counts["across"],
            "looked at closely": self.counts["closely"],
            "opened by the daemon": self.counts["by the daemon"],
            **{f"while: {phase}": states for phase, states in self.phases.most_common()},
            **{f"lost: {fault}": states for fault, states in self.faults.most_common()},
            "refused": self.broken["refused"],
            "broken otherwise": self.broken.total() - self.broken["refused"],
        }


# --- points --------------------------------------------------------------------------------------------------------


class Point:
    """A moment in a recording at which the power may be lost: behind so many operations."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.number = 0
        self.disk = Disk(recording)
        self.timeline = Timeline(recording.durability)
        self.said = list(recording.said)
        self.kept: Image = {}
        self.place = "nothing"
        for note in recording.said:
            self.timeline.take(note)

    def advance(self, operation: Operation) -> None:
        self.number += 1
        self.disk.take(operation)
        if isinstance(operation, Write | Truncate | Naming | Sync):
            self.place = place_of(self.recording, operation)
            return
        self.timeline.take(operation)
        self.said.append(operation)
        if isinstance(operation, Kept):
            self.kept[operation.path] = self.disk.everything()[operation.path]

    @property
    def is_inside_commit(self) -> bool:
        return self.timeline.under_way and self.place == "log.db-wal"

    @property
    def is_across(self) -> bool:
        """Inside a commit that wrote something short across two sectors, such as the head of a frame. They are few."""
        return self.is_inside_commit and any(
            isinstance(each, Write)
            and len(each.data) < SECTOR_BYTES
            and len(list(sectors(each.offset, len(each.data)))) > 1
            for each in self.disk.unsafe()
        )


def place_of(recording: Recording, operation: Write | Truncate | Naming | Sync) -> str:
    """What something was done to, in a word or two: a file, or a folder and all in it."""
    if isinstance(operation, Naming):
        folder, name, _ = operation.changes[-1]
        return f"{operation.what} {name if folder == ROOT else recording.files[folder]}"
    return recording.files[operation.file].partition("/")[0]


def points(recording: Recording) -> Iterator[Point]:
    point = Point(recording)
    for operation in recording.operations:
        point.advance(operation)
        yield point


# --- one worker ----------------------------------------------------------------------------------------------------


class Share(NamedTuple):
    """What one worker does."""

    states: int
    seed: str
    scratch: Path
    keep: Path
    """Where folders go that show a promise broken."""
    daemons: int = 0
    """States that the daemon opens as well, as a process."""
    worker: int = 0
    workers: int = 1
    most_problems: int = 10


class Progress:
    """How many states were looked at, by all workers."""

    def __init__(self) -> None:
        self._done = multiprocessing.get_context("fork").Value("L", 0)

    def one_more(self) -> None:
        with self._done.get_lock():
            self._done.value += 1

    @property
    def states(self) -> int:
        return int(self._done.value)


class Worker:
    """Goes through its share of the points, again and again."""

    def __init__(self, recordings: Sequence[Recording], share: Share, progress: Progress) -> None:
        self._recordings = recordings
        self._share = share
        self._progress = progress
        self._folder = share.scratch / f"worker-{share.worker}"
        self._seen: set[bytes] = set()
        self._debris = {recording.name: debris(recording) for recording in recordings}
        self.tally = Tally()

    async def run(self) -> Tally:
        states = self._share.states
        await self._once_each()
        await self._by_chance("across", self._done + int(states * ACROSS), lambda point: point.is_across)
        await self._by_chance("in commits", self._done + int(states * IN_COMMITS), lambda point: point.is_inside_commit)
        await self._systematically(int(states * SYSTEMATIC))
        await self._by_chance("anywhere", states - int(states * TWICE), lambda _: True)
        await self._twice(states)
        shutil.rmtree(self._folder, ignore_errors=True)
        return self.tally

    @property
    def _done(self) -> int:
        return self.tally.counts["states"]

    def _is_over(self, upto: int) -> bool:
        return self._done >= upto or len(self.tally.problems) >= self._share.most_problems

    def _my_points(self) -> Iterator[Point]:
        for recording in self._recordings:
            for point in points(recording):
                if point.number // BLOCK % self._share.workers == self._share.worker:
                    yield point

    # --- which states --------------------------------------------------------------------------------------------

    async def _once_each(self) -> None:
        met: set[tuple[str, str]] = set()
        for point in self._my_points():
            kinds = {(point.recording.name, point.place), (point.recording.name, point.timeline.phase)}
            if kinds <= met:
                continue
            before = self._done
            await self._look(point, *self._some_loss(point, "once"))
            if self._done == before:  # such a state was seen before
                await self._look(point, point.disk.everything(), Counter())
            if self._done > before:
                met |= kinds

    async def _systematically(self, upto: int) -> None:
        chance = random.Random(f"{self._share.seed} systematic {self._share.worker}")
        unsafe = [len(point.disk.unsafe()) for point in self._my_points()]
        at_ends = upto / 2 / max(1, 2 * len(unsafe))
        but_one = (upto - min(upto / 2, 2 * len(unsafe))) / max(1, sum(unsafe))
        for point in self._my_points():
            losses = [loss for loss in (NOTHING, ALL) if chance.random() < at_ends]
            losses += [without(each) for each in point.disk.unsafe() if chance.random() < but_one]
            for loss in losses:
                await self._look(point, point.disk.left_by(loss), Counter({"all but one": loss not in (NOTHING, ALL)}))
                if self._is_over(upto):
                    return

    async def _by_chance(self, where: str, upto: int, counts: Callable[[Point], bool]) -> None:
        """At any of the points that count."""
        candidates = sum(map(counts, self._my_points()))
        for turn in count():
            before = self._done
            part = 1.2 * (upto - before) / max(1, candidates)
            chance = random.Random(f"{self._share.seed} {where} {turn} {self._share.worker}")
            for point in self._my_points():
                if counts(point) and chance.random() < part:
                    await self._look(point, *self._some_loss(point, f"{where} {turn}"))
                    if self._is_over(upto):
                        return
            if self._done == before:
                return  # every state there is has been looked at

    def _some_loss(self, point: Point, turn: str) -> tuple[Image, Counter[str]]:
        name = point.recording.name
        chance = random.Random(f"{self._share.seed} {name} {point.number} {turn}")
        # A pid is written over by the next holder. With bytes that no pid has it would be somebody else's file.
        locks = [file for file, called in point.recording.files.items() if called == "lock"]
        any_loss = AnyLoss(chance, self._debris.get(name, b""), locks)
        return point.disk.left_by(any_loss.loss()), any_loss.done

    async def _twice(self, upto: int) -> None:
        for turn in count(self._share.worker):
            if self._is_over(upto):
                return
            wanted = min(AGAIN_AT_ONCE, -(-(upto - self._done) // STATES_AGAIN))
            left = await self._left_behind(self._recordings[turn % len(self._recordings)], wanted, turn)
            if left:
                for number, again in enumerate(await self._opened_again(left, f"{self._share.seed} {turn}")):
                    self.tally.counts["openings cut off"] += 1
                    await self._some_of(again, upto, f"{turn} {number}")

    async def _opened_again(self, left: list[Left], seed: str) -> list[Recording]:
        try:
            return await asyncio.to_thread(record_again, self._folder, left, seed)
        except NotExact as failed:
            self.tally.broken["opened again"] += 1
            self.tally.problems.append(f"{left[0].name}, again: {failed}")
            return []

    async def _left_behind(self, recording: Recording, wanted: int, turn: int) -> list[Left]:
        """Folders at points chosen by chance, each judged itself."""
        chance = random.Random(f"{self._share.seed} left {turn} {self._share.worker}")
        chosen = set(chance.sample(range(1, len(recording.operations) + 1), min(wanted, len(recording.operations))))
        left = []
        for point in points(recording):
            if point.number in chosen:
                image, done = self._some_loss(point, f"again {turn}")
                if await self._look(point, image, done):
                    left.append(Left(recording.name, recording.durability, image, tuple(point.said)))
        return left

    async def _some_of(self, recording: Recording, upto: int, turn: str) -> None:
        chance = random.Random(f"{self._share.seed} {recording.name} {turn}")
        chosen = Counter(chance.choices(range(1, len(recording.operations) + 1), k=STATES_AGAIN))
        for point in points(recording):
            for number in range(chosen[point.number]):
                way = chance.randrange(4)
                if way < 2:
                    await self._look(point, point.disk.left_by((NOTHING, ALL)[way]), Counter())
                else:
                    await self._look(point, *self._some_loss(point, f"{turn} {number}"))
                if self._is_over(upto):
                    return

    # --- one state -----------------------------------------------------------------------------------------------

    async def _look(self, point: Point, image: Image, done: Counter[str]) -> bool:
        """Judge a state unless the same was seen before; whether it holds."""
        if (state := fingerprint(image, point.timeline)) in self._seen:
            return True
        self._seen.add(state)
        self._note(point, done)
        try:
            await self._judge(point, image)
        except Broken as broken:
            self._keep(point, image, broken)
            return False
        return True

    async def _judge(self, point: Point, image: Image) -> None:
        judge_kept(image, point.kept)
        data, counts = self._folder / STORE, self.tally.counts
        lay_out(image, data)
        closely = self._done % CLOSELY == 0
        counts["closely"] += closely
        if self._is_for_daemon(point):
            counts["by the daemon"] += 1
            await asyncio.to_thread(judge_by_daemon, self._folder, data, point.timeline)
        await judge(data, point.timeline, closely=closely)

    def _is_for_daemon(self, point: Point) -> bool:
        """At level disk only: a process of its own would know that the machine has not been started again."""
        due = self._done * self._share.daemons // max(1, self._share.states)
        return point.timeline.durability == "disk" and self.tally.counts["by the daemon"] < due

    def _note(self, point: Point, done: Counter[str]) -> None:
        tally = self.tally
        tally.counts["states"] += 1
        tally.counts["inside a commit"] += point.is_inside_commit
        tally.counts["across"] += point.is_across
        if point.recording.said:
            tally.counts["of a second loss"] += 1
        else:
            tally.points.add((point.recording.name, point.number))
        tally.phases[point.timeline.phase or "start"] += 1
        tally.places[point.place] += 1
        tally.faults.update(fault for fault, times in done.items() if times)
        self._progress.one_more()

    def _keep(self, point: Point, image: Image, broken: Broken) -> None:
        where = f"{point.recording.name}, behind operation {point.number} ({point.place}, {point.timeline.phase})"
        folder = self._share.keep / f"{broken.kind.replace(' ', '-')}-{self._share.worker}-{self._done}"
        lay_out(image, folder)
        self.tally.broken[broken.kind] += 1
        self.tally.problems.append(f"{where}: {broken}; kept in {folder}")


def judge_kept(image: Image, kept: Image) -> None:
    for path, content in kept.items():
        if image.get(path) != content:
            raise Broken("snapshot", f"{path} was finished, and is not there as it was")


def fingerprint(image: Image, timeline: Timeline) -> bytes:
    """What makes a state a state: the files, and what has to be in them."""
    hashed = hashlib.blake2b(f"{timeline.told} {timeline.safe} {len(timeline.steps)}".encode(), digest_size=16)
    for path, content in image.items():
        if path != "lock":
            hashed.update(f"{path} {-1 if content is None else len(content)} ".encode())
            hashed.update(content or b"")
    return hashed.digest()


def debris(recording: Recording) -> bytes:
    """What blocks of the disk may hold: what was once written somewhere, mostly to a WAL."""
    written = [operation.data for operation in recording.operations if isinstance(operation, Write)]
    return b"".join(written[:: max(1, len(written) // 40)])


# --- all of them ---------------------------------------------------------------------------------------------------


def run(recordings: Sequence[Recording], share: Share, progress: Progress | None = None) -> Tally:
    """One worker's share."""
    with workload.machine("third"):
        return asyncio.run(Worker(recordings, share, progress or Progress()).run())
