"""The part of the README that the results make, between two markers. Must not touch anything outside of them."""

from __future__ import annotations

import re
from pathlib import Path

from . import report, results

PAGE = Path(__file__).parents[2] / "README.md"
SOURCES = ("full", "quick")
"""Which results are shown: the first of these that is there."""

_PART = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)


def filled(page: str, folder: Path = results.FOLDER) -> str:
    """The page with its part made anew; as it is, when nothing was ever measured."""
    source = next((folder / f"{name}.json" for name in SOURCES if (folder / f"{name}.json").exists()), None)
    if source is None:
        return page
    beside = f"benchmarks/results/{source.stem}"
    text = report.short(results.read(source), f"{beside}.svg", f"{beside}.md")
    made, found = _PART.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page)
    if found != 1:
        raise ValueError("the README has no place for the results")
    return made


def write(folder: Path = results.FOLDER, page: Path = PAGE) -> None:
    page.write_text(filled(page.read_text(), folder))
