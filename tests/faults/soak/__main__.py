"""`python -m tests.faults.soak`: an hour of load with a fault a minute, and whether anything grew or was lost.

Owns how long and how hard, and where the samples go. Must not know what the load is, nor what may grow.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.faults import program
from tests.faults.soak.plot import drawn
from tests.faults.soak.report import Report
from tests.faults.soak.running import Size, Soak

DEFAULTS = Size()


def options() -> ArgumentParser:
    parser = program.options("soak", __doc__, seed=DEFAULTS.seed)
    parser.add_argument("--minutes", type=float, default=DEFAULTS.minutes, help="of measuring, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=DEFAULTS.warm_up, help="minutes before, not compared")
    parser.add_argument("--fault-seconds", type=float, default=DEFAULTS.fault_seconds, help="from fault to fault")
    parser.add_argument("--sample-seconds", type=float, default=DEFAULTS.sample_seconds)
    parser.add_argument("--rate", type=float, default=DEFAULTS.rate, help="requests a second of the steady load")
    parser.add_argument("--engine", choices=("sqlite", "memory"), default=DEFAULTS.backend)
    parser.add_argument("--folder", type=Path, default=Path("var/soak"), help="for soak.json and soak.svg")
    return parser


def main() -> int:
    asked = options().parse_args()
    size = Size(
        minutes=asked.minutes,
        warm_up=asked.warm_up,
        fault_seconds=asked.fault_seconds,
        sample_seconds=asked.sample_seconds,
        rate=asked.rate,
        seed=asked.seed,
        backend=asked.engine,
    )
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="statesvc-"))
    soak = Soak(size, folder)
    try:
        asyncio.run(soak.run(program.say))
    finally:
        # What was seen before something broke is worth having, and so are the files of a store that is wrong.
        report = Report(soak)
        _write(report, asked.folder)
        if soak.tally.lost or soak.tally.twice or soak.tally.wrong or sys.exc_info()[0]:
            program.say(f"the daemons' files are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    missed = [f"{goal.name}: {goal.found}" for goal in report.goals() if not goal.met]
    return program.ended(asked, report.as_json(), missed, report.lines())


def _write(report: Report, folder: Path) -> None:
    (folder / "soak.json").write_text(json.dumps(report.samples_as_json(), indent=1) + "\n")
    (folder / "soak.svg").write_text(drawn(report, "statesvc under load, with a fault a minute"))


if __name__ == "__main__":
    sys.exit(main())
