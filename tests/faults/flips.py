"""F3: every bit of a small store flipped, one at a time: nothing wrong is served, nothing is missing without a word.

    python -m tests.faults.flips --store closed|idle|busy|cut|all [--every N] [--workers 2] [--files NAME ...] [-o json]

Owns which bits are flipped, by whom and how thoroughly each trial is made, and the table at the end. Must not know how
a store is read or judged. Every trial opens the files by the engine's own code and reads everything that
looks at the place of the flip, in one of sixteen all there is; one in 200 goes through the whole engine, which also
writes on top, closes and opens again; one in 4,000 through the daemon as a process.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import shutil
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from statesvc.backends.sqlite import SqliteEngine
from tests.daemon.harness import Daemon
from tests.faults import flips_stores, program
from tests.faults.flips_process import as_a_process, read_socket
from tests.faults.flips_reading import Content, Expected, Outcome, Verdict, quickly, read_engine, read_files, wholly
from tests.faults.flips_stores import MOMENTS, PAGE, Bench, Moment

READ_ALL_EVERY = 16
"""Of the bits of a page: for these, all is read in any case."""

ENGINE_EVERY = 200
PROCESS_EVERY = 4000
"""Of the trials: so many go through the whole engine, and through the daemon as a process."""

SHM_EVERY = 499
"""Of the bits of a file that SQLite makes anew at every start, beside `--every`."""

CHUNK = 500
"""Trials a worker is given at once."""


class Part(NamedTuple):
    """Some bits of a file, in order."""

    moment: Moment
    file: str
    bits: range
    first: int
    """How many trials come before them, all in all."""


class Report:
    """What became of the flips, by store and file."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[Moment, str, Outcome]] = Counter()
        self.ways: Counter[str] = Counter()
        self.wrong: list[str] = []

    def take(self, part: Part, bit: int, way: str, verdict: Verdict) -> None:
        self.outcomes[part.moment, part.file, verdict.outcome] += 1
        self.ways[way] += 1
        if verdict.outcome == "WRONG":
            self.wrong.append(f"{part.moment} {part.file} byte {bit >> 3} bit {bit & 7} ({way}): {verdict.why}")

    def add(self, other: Report) -> None:
        self.outcomes += other.outcomes
        self.ways += other.ways
        self.wrong = [*self.wrong, *other.wrong]

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for moment, file, _ in sorted(self.outcomes):
            counts = {outcome: self.outcomes[moment, file, outcome] for outcome in get_args(Outcome)}
            figures[f"{moment} {file}"] = {"flips": sum(counts.values()), **counts}
        return {**figures, **{f"by way {way}": count for way, count in self.ways.items()}, "wrong": len(self.wrong)}


# --- one store under trial -----------------------------------------------------------------------------------------


class Trials:
    """A store, what it should hold by each way of reading it, and the ways."""

    def __init__(self, source: Path, folder: Path, moment: Moment) -> None:
        self._bench = Bench(source, folder / moment)
        self._side = folder / f"{moment}-daemon"
        self._runner = asyncio.Runner()
        self._tail = flips_stores.last_commit(self._bench.whole["log.db-wal"]) if moment == "busy" else range(0)
        self._known: dict[str, Expected] = {}
        self._pages: dict[tuple[str, int], Verdict] = {}

    def trial(self, file: str, bit: int, way: str) -> Verdict:
        expected = self._expected(way)
        if not (file == "log.db-wal" and bit >> 3 in self._tail):
            expected = Expected(expected.whole)
        if way == "quick" and file in ("log.db", "state.db"):
            return self._trial_of_page(file, bit, expected)
        return self._flipped(file, bit, way, expected)

    def _flipped(self, file: str, bit: int, way: str, expected: Expected) -> Verdict:
        self._bench.flip(file, bit)
        try:
            return self._judged(way, expected)
        finally:
            self._bench.put_back()

    def _trial_of_page(self, file: str, bit: int, expected: Expected) -> Verdict:
        """A flip on a page of a file. The reads that fail when the whole page is destroyed are all that ever look at
        it, so only these are made; unless one of them, or the opening, ends otherwise than it does then."""
        destroyed = self._destroyed(file, bit // (PAGE * 8), expected)
        if bit % READ_ALL_EVERY:
            self._bench.flip(file, bit)
            found = quickly(self._bench.folder, expected, destroyed.failed)
            self._bench.put_back()
            if (found.outcome, found.failed) == (destroyed.outcome, destroyed.failed):
                return found
        return self._flipped(file, bit, "quick", expected)

    def _destroyed(self, file: str, page: int, expected: Expected) -> Verdict:
        if (file, page) not in self._pages:
            whole, begin = self._bench.whole[file], page * PAGE
            inverted = bytes(byte ^ 0xFF for byte in whole[begin : begin + PAGE])
            self._bench.put(file, whole[:begin] + inverted + whole[begin + PAGE :])
            self._pages[file, page] = quickly(self._bench.folder, expected)
            self._bench.put_back()
        return self._pages[file, page]

    def damaged(self, file: str, content: bytes, torn_bytes: int = 0) -> Verdict:
        """The same with a file replaced as a whole; with `torn_bytes`, so much of the newest commit is left."""
        expected = self._expected("quick")._replace(torn_bytes=torn_bytes)
        expected = expected if torn_bytes else Expected(expected.whole)
        self._bench.put(file, content)
        try:
            return self._judged("quick", expected)
        finally:
            self._bench.put_back()

    def _judged(self, way: str, expected: Expected) -> Verdict:
        if way == "engine":
            return self._runner.run(wholly(self._bench.folder, expected))
        if way == "process":
            return as_a_process(self._bench.folder, self._side, expected)
        return quickly(self._bench.folder, expected)

    @property
    def whole(self) -> dict[str, bytes]:
        return self._bench.whole

    def _expected(self, way: str) -> Expected:
        if way not in self._known:
            whole, torn = self._content(way), None
            if self._tail:
                self._bench.put("log.db-wal", self._bench.whole["log.db-wal"][: self._tail.start])
                torn = self._content(way)
            self._known[way] = Expected(whole, torn, len(self._tail))
        return self._known[way]

    def _content(self, way: str) -> Content:
        try:
            if way == "engine":
                return self._runner.run(_read_by_engine(self._bench.folder))
            return self._read_by_process() if way == "process" else read_files(self._bench.folder)
        finally:
            self._bench.put_back()

    def _read_by_process(self) -> Content:
        self._side.mkdir(mode=0o700)
        try:
            with Daemon(self._side, data=self._bench.folder) as daemon, daemon.serving().connect() as client:
                return read_socket(client)
        finally:
            shutil.rmtree(self._side)

    def close(self) -> None:
        self._runner.close()
        self._bench.remove()


async def _read_by_engine(folder: Path) -> Content:
    engine = SqliteEngine(folder)
    await engine.open()
    try:
        return await read_engine(engine)
    finally:
        await engine.close()


# --- all of them ---------------------------------------------------------------------------------------------------


def parts(stores: dict[Moment, Path], every: int, seed: int, files: Sequence[str] = ()) -> Iterator[Part]:
    """The bits to be flipped, in parts; with `every` above one the seed says which."""
    first = 0
    for moment, store in stores.items():
        for name, size in flips_stores.files_of(store):
            if files and name not in files:
                continue
            step = every * SHM_EVERY if name.endswith("-shm") else every
            bits = range(seed % step, size * 8, step)
            for place in range(0, len(bits), CHUNK):
                part = Part(moment, name, bits[place : place + CHUNK], first)
                yield part
                first += len(part.bits)


def way_of(number: int) -> str:
    if number % PROCESS_EVERY == PROCESS_EVERY - 1:
        return "process"
    return "engine" if number % ENGINE_EVERY == 0 else "quick"


class Worker:
    """Runs parts, one after the other; keeps the stores it has made ready."""

    def __init__(self, stores: dict[Moment, Path], folder: Path, way: Callable[[int], str] = way_of) -> None:
        self._stores = stores
        self._folder = folder / str(os.getpid())
        self._way = way
        self._trials: dict[Moment, Trials] = {}

    def run(self, part: Part) -> Report:
        report = Report()
        trials = self.trials(part.moment)
        for number, bit in enumerate(part.bits, part.first):
            way = self._way(number)
            report.take(part, bit, way, trials.trial(part.file, bit, way))
        gc.collect()
        return report

    def trials(self, moment: Moment) -> Trials:
        if moment not in self._trials:
            self._trials[moment] = Trials(self._stores[moment], self._folder, moment)
        return self._trials[moment]

    def close(self) -> None:
        for trials in self._trials.values():
            trials.close()


_worker: Worker


def _begin(stores: dict[Moment, Path], folder: Path) -> None:
    global _worker  # noqa: PLW0603 - one a process
    gc.disable()  # nothing here makes cycles but errors; after every part is often enough
    _worker = Worker(stores, folder)


def _run(part: Part) -> Report:
    return _worker.run(part)


def flip_all(stores: dict[Moment, Path], folder: Path, todo: list[Part], workers: int) -> Report:
    report, begun, tell = Report(), time.monotonic(), program.NowAndThen()
    total = sum(len(part.bits) for part in todo)
    with multiprocessing.get_context("spawn").Pool(workers, _begin, (stores, folder)) as pool:
        for more in pool.imap_unordered(_run, todo):
            report.add(more)
            tell(_progress(report, total, time.monotonic() - begun))
    return report


def _progress(report: Report, total: int, seconds: float) -> str:
    done = report.outcomes.total()
    left = seconds / done * (total - done)
    return f"{done:,} of {total:,} flips, {done / seconds:.0f}/s, {left / 60:.0f} min left, wrong: {len(report.wrong)}"


def options() -> ArgumentParser:
    parser = program.options("flips", __doc__, seed=0)
    parser.add_argument("--store", nargs="+", choices=[*MOMENTS, "all"], default=["all"])
    parser.add_argument("--every", type=int, default=1, help="flip one bit in so many")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", nargs="*", default=(), help="these files of the stores only")
    return parser


def main() -> int:
    asked = options().parse_args()
    chosen = MOMENTS if "all" in asked.store else asked.store
    with program.scratch(in_memory=True) as folder:
        stores = {moment: path for moment, path in flips_stores.make(folder).items() if moment in chosen}
        todo = list(parts(stores, asked.every, asked.seed, asked.files))
        report = flip_all(stores, folder, todo, asked.workers)
    return program.ended(asked, report.figures(), report.wrong if report.outcomes else ["nothing was flipped"])


if __name__ == "__main__":
    sys.exit(main())
