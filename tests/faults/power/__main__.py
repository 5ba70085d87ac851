"""Power losses by the thousand, simulated: `python -m tests.faults.power --states 100000`.

Owns the workers and how far they are. Must not know what they do. Wants strace.
"""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from tests.faults import program

from .campaign import Progress, Share, Tally, run
from .operations import Recording
from .recordings import record_all

LEAST = {"points": 1, "looked at closely": 1, "inside a commit": 1, "of a second loss": 1}


def options() -> ArgumentParser:
    parser = program.options("power", __doc__, seed=1)
    parser.add_argument("--states", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--daemons", type=int, default=20, help="states that are opened by the daemon as well")
    parser.add_argument(
        "--keep", type=Path, default=Path("var/power"), help="where folders go that show a promise broken"
    )
    return parser


def main() -> int:
    asked = options().parse_args()
    if not shutil.which("strace"):
        return program.cannot("strace is not installed")
    with program.scratch(in_memory=True) as scratch:
        tally = _campaign(scratch, asked)
    return program.ended(asked, tally.figures(), tally.problems, least=LEAST | {"states": asked.states or 1})


_recordings: Sequence[Recording] = ()
_progress: Progress | None = None
"""What the workers come to know by being forks of this process."""


def _campaign(scratch: Path, asked: Namespace) -> Tally:
    global _recordings, _progress
    _recordings, _progress = record_all(scratch, asked.seed), Progress()
    operations = sum(len(recording.operations) for recording in _recordings)
    program.say(f"{len(_recordings)} lives recorded: {operations:,} operations")
    workers = asked.workers
    share = Share(-(-asked.states // workers), str(asked.seed), scratch, asked.keep, -(-asked.daemons // workers))
    shares = [share._replace(worker=number, workers=workers) for number in range(workers)]
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=program.end_with_parent) as pool:
        done = [pool.submit(_share, each) for each in shares]
        _show(done, asked.states)
    tally = Tally()
    for each in done:
        tally.add(each.result())
    return tally


def _share(share: Share) -> Tally:
    return run(_recordings, share, _progress)


def _show(done: list[Future[Tally]], states: int) -> None:
    began = time.monotonic()
    while wait(done, timeout=program.TELL_SECONDS).not_done:
        assert _progress is not None
        looked_at, took = _progress.states, time.monotonic() - began
        program.say(f"{looked_at:,} of {states:,} states, {took:.0f} s, {looked_at / took:.0f} a second")


if __name__ == "__main__":
    sys.exit(main())
