"""All of the fuzzing, the long form of what the tests do in short:

    python -m tests.faults.fuzz --frames 5000000 --socket-frames 200000 [--guided-seconds N] [--seed S] [-o json]

Owns what is run, side by side. Must not know how inputs are made or judged. What breaks a promise: a crash, an
exception nobody caught, an `internal`, memory that grew by more than 8 MiB, a good client that was not served.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.faults import program

from . import guided, inside, outside

SQLITE_PART = 0.02
"""The part of the frames in process that goes to sqlite: there each takes a journey to the disk."""


IN_PROCESS, SOCKET = "frames in process", "frames over the socket"
EXECUTIONS, COVERAGE = "inputs guided by coverage", "places they reached"

Report = inside.Report | outside.Report


def options() -> ArgumentParser:
    parser = program.options("fuzz", __doc__, seed=int(time.time()))
    parser.add_argument("--frames", type=int, default=100_000, help="in process")
    parser.add_argument(
        "--socket-frames", type=int, default=10_000, help="over the socket, half of them on each engine"
    )
    parser.add_argument("--guided-seconds", type=int, default=0, help="with atheris, afterwards")
    parser.add_argument("--workers", type=int, default=2, help="processes that fuzz at the same time")
    parser.add_argument("--keep", type=Path, default=Path("var/fuzz"), help="where inputs go that broke something")
    return parser


def main() -> int:
    asked = options().parse_args()
    program.say(f"seed {asked.seed}")
    reports = run(asked.frames, asked.socket_frames, asked.seed, asked.workers, asked.keep)
    broken = [f"{_name(report)}: {finding}" for report in reports for finding in _broken(report)]
    figures: dict[str, Any] = {_name(report): _figures(report) for report in reports}
    done, least = _totals(reports), {IN_PROCESS: asked.frames, SOCKET: asked.socket_frames, "frames": 1}
    if asked.guided_seconds:
        outcome = guided.run(asked.guided_seconds, seed=asked.seed, keep=asked.keep)
        if outcome.code:
            broken.append("guided by coverage: something was found, or it cannot run")
        done |= {EXECUTIONS: outcome.executions, COVERAGE: outcome.coverage}
        least |= {EXECUTIONS: 1, COVERAGE: 1}
    figures |= done | {"seconds guided by coverage": asked.guided_seconds}
    return program.ended(asked, figures, broken, least=least)


def _totals(reports: list[Report]) -> dict[str, int]:
    in_process = sum(report.frames for report in reports if isinstance(report, inside.Report))
    every = sum(report.frames for report in reports)
    return {"frames": every, IN_PROCESS: in_process, SOCKET: every - in_process}


def run(frames: int, socket_frames: int, seed: int, workers: int, keep: Path) -> list[Report]:
    """In process first, each worker a share and a seed of its own; then over the socket, which is two processes."""
    on_sqlite = int(frames * SQLITE_PART)
    share = -(-(frames - on_sqlite) // workers)
    # Started anew rather than forked, and each once: what a process held before is not what it is to be judged by.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, program.end_with_parent, max_tasks_per_child=1) as pool:
        jobs: list[Future[inside.Report]] = [
            pool.submit(inside.run, share, seed=seed + number, keep=keep) for number in range(workers) if share
        ]
        if on_sqlite:
            jobs.append(pool.submit(inside.run, on_sqlite, seed=seed + workers, backend="sqlite", keep=keep))
        fuzzed = [job.result() for job in jobs]
    halves = {"sqlite": socket_frames - socket_frames // 2, "memory": socket_frames // 2}
    hostile = [outside.run(half, seed=seed, backend=name, keep=keep) for name, half in halves.items() if half]
    return [*fuzzed, *hostile]


def _name(report: Report) -> str:
    where = "in process" if isinstance(report, inside.Report) else "socket"
    return f"{where}, {report.backend}, seed {report.seed}"


def _figures(report: Report) -> dict[str, Any]:
    return {
        "frames": report.frames,
        "replies": report.replies,
        "good ones": report.successes,
        "good client": report.good_answers,
        "worst ms": round(report.good_worst_ms) if isinstance(report, outside.Report) else "",
        "seconds": round(report.seconds),
        "drift MiB": "not measured" if report.drift_bytes is None else round(report.drift_bytes / inside.MIB, 1),
    }


def _broken(report: Report) -> list[str]:
    """A fuzzer of whose frames none goes well shows as little as one beside which nobody good is served."""
    found = report.findings if report.findings or report.is_good else ["memory grew by more than it may"]
    return [*found, *program.too_little(_figures(report), {"replies": 1, "good ones": 1, "good client": 1})]


if __name__ == "__main__":
    sys.exit(main())
