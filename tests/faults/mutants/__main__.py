"""`python -m tests.faults.mutants`: plants every defect of the list, and tells whether the tests notice.

Owns which are planted, and what is told of each. Must not know how one is planted, nor how a run of tests is judged.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from tests.faults import program
from tests.faults.mutants.hunting import Fate, hunt, passes_unmutated
from tests.faults.mutants.planted import MUTANTS


def options() -> ArgumentParser:
    parser = program.options("mutants", __doc__)
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--only", nargs="+", action="extend", choices=names, metavar="NAME", help="these")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time, each in a copy of its own")
    return parser


def main() -> int:
    asked = options().parse_args()
    chosen = [mutant for mutant in MUTANTS if not asked.only or mutant.name in asked.only]
    with program.scratch() as folder:
        program.say(f"{len(chosen)} mutants; their tests on the tree as it is ...")
        whole = passes_unmutated(chosen, folder, asked.workers)
        if whole.code != 0:
            program.say(whole.said)
            return program.ended(asked, {}, ["the chosen tests do not pass on the tree as it is: nothing can be told"])
        program.say(f"{whole.passed} pass")
        fates = hunt(chosen, folder, asked.workers, lambda fate: program.say(_line(fate)))
    broken = [f"{fate.mutant.name} {fate.verdict}: {fate.why}" for fate in fates if fate.verdict != "caught"]
    return program.ended(asked, _figures(fates), broken, _lines(fates))


def _figures(fates: list[Fate]) -> dict[str, Any]:
    caught = sum(fate.verdict == "caught" for fate in fates)
    told = {fate.mutant.name: {"fate": fate.verdict, "seconds": round(fate.seconds), "by": fate.test} for fate in fates}
    return {**told, "planted": len(fates), "caught": caught}


def _lines(fates: list[Fate]) -> Iterator[str]:
    for fate in fates:
        yield _line(fate)
        yield f"{'':9} {fate.mutant.breaks}"
        yield f"{'':9} {fate.why}"
    yield f"{sum(fate.verdict == 'caught' for fate in fates)} of {len(fates)} caught"


def _line(fate: Fate) -> str:
    return f"{fate.verdict:9} {fate.mutant.name:42} {fate.seconds:5.1f} s  {fate.test or fate.why}"


if __name__ == "__main__":
    sys.exit(main())
