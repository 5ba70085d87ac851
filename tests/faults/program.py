"""What the programs of this folder have in common: how they are asked, and how they tell what came out.

Owns the options that all have, progress, the table, the JSON, the exit code, the scratch folder, and that workers end
with their program. Must not know what any of them does.

    stderr      progress
    stdout      a table of the figures and what was broken, or with `-o json` {"figures": {...}, "broken": [...]}
    exit code   0: every promise held; 1: one was broken; 2: it could not be asked here

What was not tried has not held: a program names with `least` what it must have done of each figure, and is broken where
it came to less.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CANNOT = 2

MEMORY = Path("/dev/shm")

MOST_BROKEN = 20
"""Of what was broken, in a table; JSON has all of it."""

TELL_SECONDS = 5.0

_PR_SET_PDEATHSIG = 1

Figures = Mapping[str, Any]
"""By their names. One that is such a mapping itself is a line of a table with a column for each name in it."""


def options(name: str, doc: str | None, *, seed: int | None = None) -> argparse.ArgumentParser:
    """Of a program below tests.faults, to which it adds its own; with a seed where chance plays a part."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.faults{name and '.'}{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if seed is not None:
        parser.add_argument("--seed", type=int, default=seed, help="of chance: the same again goes the same way")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="what is printed at the end")
    parser.set_defaults(began=time.monotonic())
    return parser


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


class NowAndThen:
    """Progress of what makes much of it."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._last >= TELL_SECONDS:
            self._last = time.monotonic()
            say(text)


@contextmanager
def scratch(*, in_memory: bool = False) -> Iterator[Path]:
    """A folder that is gone afterwards. Its name is short: there are sockets in it. In memory where nothing is about
    disks, and there is much to write."""
    within = MEMORY if in_memory and MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="statesvc-", dir=within, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that ends: what burns the processor or holds
    connections must not outlive who would end it. To be called by a process that the main thread started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def ended(
    asked: argparse.Namespace,
    figures: Figures,
    broken: Sequence[str],
    lines: Iterable[str] | None = None,
    *,
    least: Mapping[str, float] | None = None,
    not_run: Sequence[str] = (),
) -> int:
    """Print what came out as it was asked for, figures as `lines` where a program has better ones; the exit code. Of
    figures named in `least` there must be so much, and some figures there must be in any case."""
    broken = [*broken, *too_little(figures, least or {}), *([] if figures else ["nothing was done"])]
    figures = {**figures, "seconds in all": round(time.monotonic() - asked.began)}
    if asked.output == "json":
        print(json.dumps({"figures": figures, "broken": broken}))
    else:
        print("\n".join([*(table(figures) if lines is None else lines), *verdict(broken, not_run)]))
    return 1 if broken else 0


def too_little(figures: Figures, least: Mapping[str, float]) -> list[str]:
    """In words, the figures that came to less than what shows anything; one that is missing came to nothing."""
    found = {name: figures.get(name, 0) for name in least}
    return [
        f"{name}: {_cell(found[name])}, and less than {_cell(wanted)} shows nothing"
        for name, wanted in least.items()
        if not found[name] >= wanted
    ]


def cannot(why: str) -> int:
    """The exit code of a program that lacks something here."""
    say(f"cannot be asked here: {why}")
    return CANNOT


def verdict(broken: Sequence[str], not_run: Sequence[str] = ()) -> list[str]:
    if broken:
        return [f"BROKEN {len(broken)}:", *broken[:MOST_BROKEN]]
    return ["every promise held that could be asked; not run:", *not_run] if not_run else ["every promise held"]


def table(figures: Figures) -> list[str]:
    groups = {name: value for name, value in figures.items() if isinstance(value, Mapping)}
    columns = list(dict.fromkeys(column for group in groups.values() for column in group))
    rows = [["", *columns]] if groups else []
    rows += [[name, *(_cell(group.get(column, "")) for column in columns)] for name, group in groups.items()]
    singles = [[name, _cell(value)] for name, value in figures.items() if name not in groups]
    return [*_aligned(rows), *_aligned(singles)]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
