"""What a run leaves behind: `<size>.json`, the tables made from it as `<size>.md`, the plot as `<size>.svg`.

Owns the files. The JSON is the truth; the others are made of it, and a test makes them again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import plot, report
from .goals import judged
from .running import Ran
from .shape import Measure
from .sizes import Size

FOLDER = Path(__file__).parents[1] / "results"


def collected(size: Size, machine: dict[str, Any], measures: Sequence[Measure], ran: Ran) -> dict[str, Any]:
    """Everything of one run, as JSON has it."""
    return {
        "size": size.name,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine,
        "measures": [
            {"name": each.name, "title": each.title, "compares": each.compares, "unit": each.unit} for each in measures
        ],
        "figures": [figure.as_json() for figure in ran.figures],
        "goals": [outcome.as_json() for outcome in judged(ran.figures, size, {each.name for each in measures})],
        "failures": ran.failures,
    }


def as_text(results: dict[str, Any]) -> str:
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def pages(results: dict[str, Any]) -> dict[str, str]:
    """The files by their ending."""
    made = {"json": as_text(results), "md": report.full(results)}
    figures = report.figures_of(results)
    if any(report.shown_of(figures, line) for line in report.LINES):
        made["svg"] = plot.drawn(figures, report.caption(results))
    return made


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending, text in pages(results).items():
        file = folder / f"{results['size']}.{ending}"
        file.write_text(text)
        written.append(file)
    return written


def redraw(folder: Path) -> None:
    """Make all pages again, as they look now."""
    for file in sorted(folder.glob("*.json")):
        write(read(file), folder)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found
