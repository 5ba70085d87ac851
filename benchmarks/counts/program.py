"""The command line: counts, shows them beside what is kept, and keeps them when asked to.

    python -m benchmarks.counts [--write]

Ends with 1 when something takes too much.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from . import bounds
from .measuring import Counts, measured


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.counts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep what is counted as the usual from now on")
    asked = parser.parse_args(given)
    found, kept = measured(), bounds.kept()
    print("\n".join(shown(found, kept or {})))
    if asked.write:
        bounds.write(found)
        return 0
    if kept is None:
        print(f"nothing is kept that was counted under {bounds.PYTHON}", file=sys.stderr)
        return 0
    problems = bounds.exceeded(found, kept)
    print("".join(f"too much: {problem}\n" for problem in problems), end="", file=sys.stderr)
    return 1 if problems else 0


def shown(found: Counts, kept: Counts) -> Iterator[str]:
    """A table: what one request takes, and how many times the usual that is."""
    yield f"{'of one request, or one job':<28}{'':<14}{'counted':>10}{'usual':>10}{'times':>8}"
    for work, some in found.items():
        for what, count in some.items():
            before = kept.get(work, {}).get(what)
            beside = "" if before is None else f"{before:>10,.1f}{count / before:>8.2f}"
            yield f"{work:<28}{what:<14}{count:>10,.1f}{beside}"
