"""The command line: what is run, in which size, and where the results go.

    python -m benchmarks.bench [--quick] [--only NAME]... [--rounds N] [-o json] [--list] [--redraw]

A whole run writes its results and the README's part; with `--only` they are printed and nothing is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import machine, readme, report, results
from .measures import BY_NAME, MEASURES
from .progress import Progress
from .running import run
from .shape import Measure
from .sizes import SIZES, Size
from .world import World


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="the same as --size quick")
    parser.add_argument("--only", action="append", choices=BY_NAME, default=[], help="run this one; may be repeated")
    parser.add_argument("--rounds", type=int, help="instead of the size's own")
    parser.add_argument("--folder", type=Path, help="where stores are made: a disk, not a tmpfs")
    parser.add_argument("--results", type=Path, help="write the results here, and leave the README alone")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--redraw", action="store_true", help="make tables, plot and README again from the JSON kept")
    parser.add_argument("--list", action="store_true", help="name the measures and what each compares")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    asked = arguments().parse_args(given)
    if asked.list:
        print("\n".join(f"{each.name:<12} {each.title}: {each.compares}" for each in MEASURES))
        return 0
    if asked.redraw:
        results.redraw(asked.results or results.FOLDER)
        if not asked.results:
            readme.write()
        return 0
    measures = [each for each in MEASURES if each.name in asked.only] or list(MEASURES)
    size = SIZES[asked.size]
    if asked.rounds:
        size = dataclasses.replace(size, rounds=asked.rounds, long_rounds=asked.rounds, least_rounds=asked.rounds)
    if asked.folder:
        tempfile.tempdir = str(asked.folder)  # a Redis server's files lie beside ours
    signal.signal(signal.SIGTERM, _leave)
    found = measured(measures, size, asked.folder)
    print(results.as_text(found) if asked.output == "json" else report.full(found), end="")
    if asked.results:
        results.write(found, asked.results)
    elif not asked.only:
        results.write(found, results.FOLDER)
        readme.write()
    return 1 if found["failures"] else 0


def _leave(number: int, _frame: object) -> None:
    """As a keyboard's interrupt does: what was started is ended on the way out."""
    sys.exit(128 + number)


def measured(measures: Sequence[Measure], size: Size, folder: Path | None) -> dict[str, Any]:
    progress = Progress()
    with World(size, folder, progress.tell) as world:
        facts = machine.facts(world)
        ran = run(measures, world, progress)
    return results.collected(size, facts, measures, ran)
