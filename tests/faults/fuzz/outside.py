"""Fuzzed frames over the socket of a real daemon, by several hostile clients at once, with a good client beside them.

Owns who talks to the daemon and what is measured of it. Must not know how inputs are made or what a reply must be.
Hostile clients send every op but those that an admin stops or replaces a whole store with: the good client has to be
served all the time, and what it wrote has to be there in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from statesvc_client import wire
from tests.daemon.harness import Client, Daemon, serving
from tests.faults import program
from tests.faults.soak.sampling import sockets

from .inputs import Inputs, corpus, frames_of
from .inside import MOST_DRIFT_BYTES, Findings
from .judging import Broken, Exchange, demand, meant
from .target import END, ENDED, LIMITS, Input

LAPS = 10
WARM_LAPS = 3
"""Laps after which the daemon is warm: of 100,000 frames, caches of rows and pages fill with the first 30,000. Its
memory is looked at when nobody but the good client is connected."""

HOSTILE = 8
"""Hostile connections at a time."""

PATIENCE_SECONDS = 30.0
LONGEST_LINE = 64 * 1024 * 1024
GOOD_RECORDS = 100
RESERVED = (wire.Freeze, wire.Restore)

SETTINGS: dict[str, object] = {
    **{f"limits__{name}": value for name, value in msgspec.structs.asdict(LIMITS).items()},
    "storage__sqlite__cache_bytes": 1024 * 1024,
    "retention__log_bytes": 4 * 1024 * 1024,
    "retention__log_seconds": 5,
    "retention__terminal_seconds": 5,
    "retention__interval_seconds": 1,
}
"""Low limits, which small inputs reach, and little that is kept: what clients may store is not what is measured."""


class Report(msgspec.Struct):
    """What a run has seen."""

    backend: str
    seed: int
    frames: int = 0
    inputs: int = 0
    replies: int = 0
    successes: int = 0
    good_answers: int = 0
    good_worst_ms: float = 0.0
    good_median_ms: float = 0.0
    seconds: float = 0.0
    lap_mib: list[float] = []
    """The daemon's memory after each lap."""
    drift_bytes: int = 0
    findings: list[str] = []

    @property
    def is_good(self) -> bool:
        return not self.findings and self.drift_bytes <= MOST_DRIFT_BYTES


# --- the good client -----------------------------------------------------------------------------------------------


class GoodClient:
    """Makes, changes and reads records of its own, one request at a time, and knows what each answer has to be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kind = f"good-{os.urandom(4).hex()}"
        self._expected: dict[str, int] = {}
        self._seq = 0
        self.waits: list[float] = []
        self.limits = wire.Limits()

    async def go_on(self, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=LONGEST_LINE)
        self._reader, self._writer = reader, writer
        try:
            welcome = await self._ok(op="hello", client=os.urandom(16).hex())
            self.limits = msgspec.convert(welcome["limits"], wire.Limits)
            while not over.is_set():
                await self._one(f"g{len(self.waits) % GOOD_RECORDS}")
                await asyncio.sleep(0.002)
        finally:
            writer.close()

    async def _one(self, name: str) -> None:
        before = self._expected.get(name)
        number = (before or 0) + 1
        if before is None:
            reply = await self._write(op="create", kind=self._kind, id=name, record={"n": number})
        else:
            reply = await self._write(op="update", kind=self._kind, id=name, inc={"n": 1})
        self._expected[name] = number
        got = await self._ok(op="get", kind=self._kind, id=name)
        demand(got["record"] == reply["record"], f"{name} was read otherwise than it was written")
        demand((got["record"]["n"], got["record"]["revision"]) == (number, number), f"{name} is not what it must be")

    async def _write(self, **request: Any) -> dict[str, Any]:
        self._seq += 1
        return await self._ok(**request, seq=self._seq, floor=self._seq)

    async def _ok(self, **request: Any) -> dict[str, Any]:
        began = time.monotonic()
        self._writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            reply = json.loads(await self._reader.readline())
        self.waits.append(time.monotonic() - began)
        demand(reply["success"], f"a good client's {request['op']} was refused: {reply}")
        return dict(reply)

    def check_all_is_there(self, client: Client) -> None:
        """Every record, with its last count, by another connection."""
        for name, number in self._expected.items():
            reply = client.ask("get", kind=self._kind, id=name)
            demand(reply["success"] and reply["record"]["n"] == number, f"{name} should have {number}: {reply}")
        counted = client.ask("list", kind=self._kind, count=True)["total"]
        demand(counted == len(self._expected), f"{counted} records where {len(self._expected)} were made")


# --- hostile ones --------------------------------------------------------------------------------------------------


def allowed(inputs: Inputs, limits: wire.Limits) -> Iterator[Input]:
    """Inputs without what would stop the others by right; one that waits on purpose is left alone with its wait."""
    for given in inputs:
        asked = [meant(frame, limits)[0] for frame in frames_of(given)]
        if any(isinstance(request, RESERVED) for request in asked):
            continue
        waits = any(isinstance(request, wire.Claim) and request.wait > 0.01 for request in asked)
        follows = any(isinstance(request, wire.Watch | wire.Feed) for request in asked)
        lost = waits or (follows and given.ending != "answered")
        yield given._replace(ending="lost") if lost else given


class Hostile:
    """Opens connection after connection, and feeds each one input."""

    def __init__(self, path: Path, inputs: Inputs, limits: wire.Limits, report: Report, findings: Findings) -> None:
        self._path = path
        self._inputs = allowed(inputs, limits)
        self._exchange = Exchange(limits, learn=inputs.seen.learn)
        self._report = report
        self._findings = findings

    async def go_on(self, frames: int) -> None:
        """Until so many were sent in all."""
        while self._report.frames < frames:
            given = next(self._inputs)
            try:
                await self._one(given)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is what was looked for
                self._findings.add(problem, given)

    async def _one(self, given: Input) -> None:
        frames = frames_of(given)
        self._report.inputs += 1
        self._report.frames += len(frames)
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=LONGEST_LINE)
        try:
            for piece in given.pieces:
                writer.write(piece)
                if len(given.pieces) < 8:
                    await asyncio.sleep(0)
            await self._ended(given, frames, reader, writer)
        finally:
            writer.transport.abort()

    async def _ended(
        self, given: Input, frames: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if given.ending in {"lost", "hung up"}:
            if given.ending == "hung up":
                writer.close()
            return
        if given.ending == "answered":
            writer.write(b"\n" + END)
        else:
            writer.write_eof()
        lines, ended = await self._heard(reader)
        complete = given.ending == "answered" and (ended or _is_last_word(lines))
        verdict = self._exchange.judge(frames, lines, complete=complete)
        may_end = given.ending != "answered" or any(b"hello" in frame for frame in frames)  # of one name only one stays
        demand(complete or may_end, "the connection ended before everything was answered")
        self._report.replies += verdict.replies
        self._report.successes += verdict.successes

    @staticmethod
    async def _heard(reader: asyncio.StreamReader) -> tuple[list[bytes], bool]:
        """All lines up to the reply to the last request, or to the end of the connection."""
        lines: list[bytes] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionError):
                while line := await reader.readline():
                    if line == ENDED:
                        return lines, True
                    lines.append(line)
        return lines, False


def _is_last_word(lines: list[bytes]) -> bool:
    return bool(lines) and json.loads(lines[-1]).get("code") == "too_large"


# --- a run ---------------------------------------------------------------------------------------------------------


async def fuzz(daemon: Daemon, good: GoodClient, frames: int, report: Report, findings: Findings) -> None:
    async with _served(good, findings):
        inputs = Inputs(Random(report.seed), list(corpus().values()))
        crowd = [Hostile(daemon.socket, inputs, good.limits, report, findings) for _ in range(HOSTILE)]
        alone = sockets(daemon.pid)
        for lap in range(1, LAPS + 1):
            await asyncio.gather(*(hostile.go_on(frames * lap // LAPS) for hostile in crowd))
            await _forgotten(daemon, alone, findings)
            report.lap_mib.append(round(daemon.rss_bytes() / 2**20, 1))
            rate = report.frames / (time.monotonic() - report.seconds)
            print(
                f"{report.backend:<8}{report.frames:>12,} frames {rate:>8,.0f}/s {report.lap_mib[-1]:>7.1f} MiB",
                file=sys.stderr,
                flush=True,
            )


async def _forgotten(daemon: Daemon, alone: int, findings: Findings) -> None:
    """Wait until the daemon has closed what the hostile ones have left: what they hold is not what it keeps."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (open_ := sockets(daemon.pid)) > alone:
        if time.monotonic() > deadline:
            findings.add(Broken(f"{open_ - alone} connections are still open that were left"), None)
            return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _served(good: GoodClient, findings: Findings) -> AsyncIterator[None]:
    """The good client works as long as the block lasts."""
    over = asyncio.Event()
    working = asyncio.create_task(good.go_on(over))
    while not good.waits and not working.done():
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        over.set()
        try:
            await working
        except Exception as problem:  # noqa: BLE001 - it was not served
            findings.add(problem, None)


def run(frames: int, *, seed: int, backend: str = "sqlite", keep: Path | None = None) -> Report:
    """Start a daemon, fuzz it, stop it, and look at what is left."""
    report, findings = Report(backend, seed), Findings(keep)
    began = report.seconds = time.monotonic()
    options: dict[str, Any] = {"backend": backend, "settings": SETTINGS}
    with program.scratch() as folder:
        flags = ("--data", str(folder / "data")) if backend == "memory" else ()
        with serving(folder, *flags, **options) as daemon:
            good = GoodClient(daemon.socket)
            pid = daemon.pid
            asyncio.run(fuzz(daemon, good, frames, report, findings))
            with daemon.connect() as client:
                _try(findings, lambda: good.check_all_is_there(client))
            _try(findings, lambda: demand(daemon.pid == pid, "another process serves"))
            _try(findings, lambda: demand((code := daemon.stop()) == 0, f"the daemon ended with {code}"))
            _try(findings, lambda: _check_log(daemon))
        if backend == "sqlite":
            with serving(folder, **options) as again, again.connect() as client:
                _try(findings, lambda: good.check_all_is_there(client))
    waits = sorted(good.waits) or [0.0]
    report.good_answers, report.good_worst_ms = len(good.waits), round(waits[-1] * 1000, 1)
    report.good_median_ms = round(waits[len(waits) // 2] * 1000, 2)
    report.drift_bytes = int((report.lap_mib[-1] - report.lap_mib[WARM_LAPS - 1]) * 2**20)
    report.seconds = time.monotonic() - began
    report.findings = findings.told
    return report


def _try(findings: Findings, look) -> None:
    try:
        look()
    except Exception as problem:  # noqa: BLE001 - all of it is told
        findings.add(problem, None)


def _check_log(daemon: Daemon) -> None:
    """No bug was logged: nothing a client sends is an error of the daemon."""
    said = daemon.stderr
    demand("Traceback" not in said, f"a traceback: {said[said.find('Traceback') :][:2000]}")
    errors = [line for line in said.splitlines() if line.startswith("{") and json.loads(line)["level"] == "error"]
    demand(not errors, f"logged: {errors[:3]}")
    odd = [line for line in said.splitlines() if not line.startswith("{")]
    demand(len(odd) <= 1, f"said beside the log: {odd[:5]}")
