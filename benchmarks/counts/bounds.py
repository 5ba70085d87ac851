"""What the hot path may take: what was counted when the bounds were last renewed, and some room above it.

Owns `bounds.json` and what is too much. Must not know how anything is counted. Bytecodes are those of one version of
Python, so the file names it; under another one there is nothing to compare with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .measuring import Counts

FILE = Path(__file__).with_name("bounds.json")
ROOM = 1.3
"""How many times what is kept a count may be: what small changes cost is nobody's business here."""

NOTICED = 1.5
"""How many times what is counted now must be too much, or the bounds are too far away to be of use."""

PYTHON = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def kept() -> Counts | None:
    """What was counted under this version of Python; None when nothing was."""
    if not FILE.exists():
        return None
    read = json.loads(FILE.read_text())
    counts: Counts = read["counts"]
    return counts if read["python"] == PYTHON else None


def write(found: Counts) -> None:
    counts = {work: {what: round(count, 1) for what, count in some.items()} for work, some in found.items()}
    FILE.write_text(json.dumps({"python": PYTHON, "counts": counts}, indent=1) + "\n")


def exceeded(found: Counts, kept: Counts) -> list[str]:
    """What takes too much, one line each; also what is not kept yet."""
    return [
        f"{work} takes {count:,.1f} {what}, with {before:,.1f} kept as usual"
        for work, what, count, before in _pairs(found, kept)
        if not count <= before * ROOM
    ]


def too_wide(found: Counts, kept: Counts) -> list[str]:
    """Where half as much work again would pass, because the hot path has become so much leaner."""
    return [
        f"{work} takes no more than {count:,.1f} {what} now, with {before:,.1f} kept as usual"
        for work, what, count, before in _pairs(found, kept)
        if not count * NOTICED > before * ROOM
    ]


def _pairs(found: Counts, kept: Counts) -> list[tuple[str, str, float, float]]:
    nothing = float("nan")  # compares as neither more nor less
    return [
        (work, what, count, kept.get(work, {}).get(what, nothing))
        for work, some in found.items()
        for what, count in some.items()
    ]
