"""Millions of frames into a daemon in this process: every input judged, the memory watched, a good client beside it.

Owns how long is fuzzed, when everything is emptied, and what is measured. Must not know how inputs are made.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import msgspec
import uvloop

from statesvc.server import COLLECTOR
from tests.faults import program

from .inputs import Inputs, corpus, frames_of
from .judging import Broken, Exchange, Verdict, demand
from .target import Input, Target, serving

MIB = 1024 * 1024
MOST_DRIFT_BYTES = 8 * MIB
RENEWED_FRAMES = 20_000
"""After so many frames everything is replaced by an empty snapshot: what a client may store is not what is measured. In
a short run after fewer: memory is looked at when nothing is stored, once the warm-up is over and at the end."""
SWEPT_INPUTS = 512
WARM_UP = 0.2
"""The part of a run in which caches fill and the allocator finds its size."""
FEWEST_FRAMES = 5_000
"""Of a run whose growth says something: in a shorter one the caches have not filled when it is over."""
MOST_FINDINGS = 20
LEFT_TO_PEOPLE = (": remove it", ": remove it, or bring back the network", ": remove it, or bring back the volume")
"""How problems of a check end that clients may bring about: they may delete a network with addresses out, or a volume
with mounts, and a check is there to name what they left."""


class Report(msgspec.Struct):
    """What a run has seen."""

    backend: str = "memory"
    seed: int = 0
    frames: int = 0
    inputs: int = 0
    replies: int = 0
    successes: int = 0
    events: int = 0
    good_answers: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    warm_bytes: int = 0
    drift_bytes: int | None = None
    """The memory in use at the end, above that after the warm-up; None where it was not measured."""
    done: dict[str, int] = {}
    """How often each op went well."""
    findings: list[str] = []

    @property
    def is_good(self) -> bool:
        return not self.findings and (self.drift_bytes is None or self.drift_bytes <= MOST_DRIFT_BYTES)


class Findings:
    """What went wrong, each kind of it once, with the input that showed it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self.told: list[str] = []

    def add(self, problem: BaseException, given: Input | None) -> None:
        text = str(problem) if isinstance(problem, Broken) else "".join(traceback.format_exception(problem))
        kind = text[-80:] if "Traceback" in text else text[:50]
        self._counts[kind] += 1
        if self._counts[kind] > 1:
            return
        where = self._keep(given)
        self.told.append(f"{text[-3000:]}{where}")
        print(f"FOUND {self.told[-1]}", file=sys.stderr, flush=True)

    def _keep(self, given: Input | None) -> str:
        if given is None:
            return ""
        shown = f"\n  {given._replace(pieces=())} {b''.join(given.pieces)[:500]!r}"
        if self._folder is None:
            return shown
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"finding-{len(self.told)}-{time.time_ns()}"
        path.write_bytes(b"".join(given.pieces))
        return f"{shown}\n  kept in {path}"


class GoodClient:
    """Somebody who behaves, on a connection of his own: he has to be served whatever the others do."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection, self._pipe = target.connect(admin=True)
        self._count = 0
        self.answers = 0

    async def _ok(self, **request):
        reply = await self._target.ask(self._connection, self._pipe, **request)
        demand(reply["success"], f"a good client's {request['op']} was refused: {reply}")
        self.answers += 1
        return reply

    async def introduce(self) -> None:
        await self._ok(op="hello", client="somebody good")
        await self._ok(op="snapshot", path="nothing.snap")

    async def go_on(self) -> None:
        """Write and read; what is read has to be what was written."""
        await self._ok(op="thaw")
        self._count += 1
        changed = await self._ok(op="update", kind="good", id="g", upsert=True, set={"count": self._count})
        got = await self._ok(op="get", kind="good", id="g")
        demand(got["record"] == changed["record"], "a good client read something else than it wrote")
        demand(got["record"]["count"] == self._count, "a good client's write is not there")

    async def sweep(self) -> None:
        await self._ok(op="sweep")

    async def empty(self) -> None:
        """Everything goes; what is found wrong with it before is told, if it is not a client's doing."""
        checked = await self._ok(op="check")
        await self._ok(op="restore", path="nothing.snap")
        problems = [text for text in checked["problems"] if not text.endswith(LEFT_TO_PEOPLE)]
        demand(not problems, f"a check found {problems[:5]}")

    def leave(self) -> None:
        self._pipe.lose()


class Run:
    """One run in one loop."""

    def __init__(self, target: Target, inputs: Inputs, report: Report, findings: Findings) -> None:
        self._target = target
        self._inputs = inputs
        self._report = report
        self._findings = findings
        self._exchange = Exchange(target.limits, learn=inputs.seen.learn)
        self._good = GoodClient(target)

    async def go(self, frames: int, told: Callable[[Report], None]) -> None:
        report = self._report
        await self._good.introduce()
        warm_at = int(frames * WARM_UP)
        step = renew_at = max(1, min(RENEWED_FRAMES, warm_at))
        while report.frames < frames and len(self._findings.told) < MOST_FINDINGS:
            given = self._inputs.next()
            await self._tried(self._one(given), given)
            if report.frames >= renew_at:
                renew_at += step
                await self._tried(self._good.empty())
                told(report)
                if not report.warm_bytes and report.frames >= warm_at and frames >= FEWEST_FRAMES:
                    report.warm_bytes = memory_in_use()
        await self._tried(self._good.empty())
        if report.warm_bytes:
            report.drift_bytes = memory_in_use() - report.warm_bytes
        self._good.leave()
        report.good_answers = self._good.answers
        await self._tried(self._check_nothing_is_left())

    async def _tried(self, work: Awaitable[None], given: Input | None = None) -> None:
        try:
            await work
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is what was looked for
            self._findings.add(problem, given)
            self._target.problems.clear()

    async def _one(self, given: Input) -> None:
        report = self._report
        report.inputs += 1
        verdict = await judged(self._target, self._exchange, given)
        report.frames += verdict.frames
        report.replies += verdict.replies
        report.successes += verdict.successes
        report.events += verdict.events
        for op in verdict.done:
            report.done[op] = report.done.get(op, 0) + 1
        if report.inputs % 32 == 0:
            await self._good.go_on()
        if report.inputs % SWEPT_INPUTS == 0:
            await self._good.sweep()

    async def _check_nothing_is_left(self) -> None:
        """No connection, session or task stays behind those who have gone."""
        for _ in range(5):
            await asyncio.sleep(0)
        server = self._target.server
        left = {
            "connections": len(server._connections),
            "sessions": len(server._dispatcher._sessions),
            "tasks": len([task for task in asyncio.all_tasks() if task.get_name() == "watch"]),
        }
        demand(not any(left.values()), f"left behind: {left}")


async def judged(target: Target, exchange: Exchange, given: Input) -> Verdict:
    """Feed one input and judge all of what came of it."""
    before = await target.position()
    frames = frames_of(given)
    heard = await target.feed(given)
    verdict = exchange.judge(frames, heard.lines, complete=heard.complete and given.ending == "answered")
    if not verdict.changed:
        demand(await target.position() == before, "what was refused has changed the state")
    target.check_calm()
    return verdict


def memory_in_use() -> int:
    """Resident bytes, after everything that can be given back was."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def fuzz(
    frames: int, *, seed: int, backend: str = "memory", keep: Path | None = None, told: Callable[[Report], None]
) -> Report:
    report, findings = Report(backend=backend, seed=seed), Findings(keep)
    inputs = Inputs(Random(seed), list(corpus().values()))
    began, cpu = time.monotonic(), time.process_time()
    with program.scratch() as folder:
        async with serving(backend, folder) as target:
            await Run(target, inputs, report, findings).go(frames, told)
    report.seconds, report.cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    report.findings = findings.told
    return report


def run(frames: int, *, seed: int, backend: str = "memory", keep: Path | None = None, quiet: bool = False) -> Report:
    """Fuzz on a loop of its own, as the daemon has one."""
    began = time.monotonic()

    def tell(report: Report) -> None:
        rate = report.frames / (time.monotonic() - began)
        print(f"{backend:<8}{report.frames:>12,} frames {rate:>8,.0f}/s", file=sys.stderr, flush=True)

    gc.set_threshold(*COLLECTOR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told: Callable[[Report], None] = (lambda _: None) if quiet else tell
        return runner.run(fuzz(frames, seed=seed, backend=backend, keep=keep, told=told))
