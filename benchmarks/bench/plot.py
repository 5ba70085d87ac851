"""The plot: a panel for each kind of work, bars with their numbers, as SVG written by hand.

Owns the drawing. Must not know anything the table does not: both show the same figures. Each panel has a scale of its
own, because a page of a hundred jobs is not a get. The dashed line through a panel is Redis through redis-py, and the
number in grey says how many times as fast as that a bar is. The plot brings its own ground, light or dark as the
reader's system is, so that it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from .report import CONTENDERS, LINES, Line, shown_of
from .shape import A_SECOND, MEGABYTES, MEMORY, MICROSECONDS, MILLISECONDS, REDIS, SQLITE, Figure, shown

OURS = (MEMORY, SQLITE)
COLUMNS = 2
PANEL_WIDTH = 430
MARGIN = 16
WIDTH = COLUMNS * PANEL_WIDTH + 2 * MARGIN
NAMES = 126
"""Where bars begin, within a panel; names stand before it."""
NUMBER = 60
RATIO = 46
"""How wide the columns behind the bars are."""
LONGEST = PANEL_WIDTH - NAMES - NUMBER - RATIO - 20
BAR = 14
STEP = 19
PANEL_HEAD = 30
PANEL_GAP = 14
TOP = 76

_STYLE = """
  svg { color-scheme: light dark; }
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .ground { fill: #ffffff; stroke: #d1d9e0; }
  .title { font-size: 16px; font-weight: 600; }
  .head { font-size: 13px; font-weight: 600; }
  .note, .ratio { fill: #59636e; }
  .ours { font-weight: 600; }
  .value, .ratio { font-variant-numeric: tabular-nums; }
  .beside { stroke: #59636e; stroke-dasharray: 3 3; }
  .c0 { fill: #e8590c; } .c1 { fill: #f59f00; } .c2 { fill: #4c78a8; }
  .c3 { fill: #9dbbd8; } .c4 { fill: #74a57f; } .c5 { fill: #adb5bd; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .ground { fill: #0d1117; stroke: #3d444d; }
    .note, .ratio { fill: #9198a1; }
    .beside { stroke: #9198a1; }
    .c0 { fill: #ff7b39; } .c1 { fill: #fcc04d; } .c2 { fill: #6ea0d6; }
    .c3 { fill: #42658c; } .c4 { fill: #5d9169; } .c5 { fill: #6c757d; }
  }
"""

TIMES = "\N{MULTIPLICATION SIGN}"
UNITS = {MICROSECONDS: "\N{MICRO SIGN}s", MILLISECONDS: "ms", MEGABYTES: "MB"}
TITLE = "statesvc beside what an agent would use instead"
LEGEND = f"Dashed: Redis without persistence, through redis-py with hiredis. 2{TIMES} is twice as fast as that."


def drawn(figures: Sequence[Figure], said: str) -> str:
    """The plot of every kind of work that was measured."""
    panels = [(line, some) for line in LINES if (some := shown_of(figures, line))]
    parts: list[str] = []
    top = TOP
    for first in range(0, len(panels), COLUMNS):
        row = panels[first : first + COLUMNS]
        for column, (line, some) in enumerate(row):
            parts += _panel(line, some, MARGIN + column * PANEL_WIDTH, top)
        top += PANEL_HEAD + STEP * max(len(some) for _, some in row) + PANEL_GAP
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(TITLE)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{top - 1}" rx="8"/>',
        _text(MARGIN, 28, TITLE, "title"),
        _text(MARGIN, 48, LEGEND, "note"),
        _text(MARGIN, 65, said, "note"),
        *parts,
        "</svg>",
        "",
    ))  # fmt: skip


def _panel(line: Line, group: Sequence[Figure], left: int, top: int) -> list[str]:
    begin, first = left + NAMES, top + PANEL_HEAD
    longest = max(figure.best for figure in group)
    beside = next((figure for figure in group if figure.who == REDIS), None)
    parts = [_text(left, top + 20, _heading(line, group[0]), "head")]
    for number, figure in enumerate(group):
        parts += _bar(figure, beside, figure.best / longest, begin, first + number * STEP)
    if beside is not None:
        x, bottom = begin + beside.best / longest * LONGEST, first + STEP * len(group) - (STEP - BAR)
        parts.append(f'<line class="beside" x1="{x:.1f}" y1="{first - 3}" x2="{x:.1f}" y2="{bottom + 3}"/>')
    return parts


def _heading(line: Line, figure: Figure) -> str:
    if figure.unit == A_SECOND:
        return f"{line.name}: a second"
    return f"{line.name}: {UNITS[figure.unit]}, shorter is better"


def _bar(figure: Figure, beside: Figure | None, share: float, left: int, top: int) -> list[str]:
    width = max(1.0, share * LONGEST)
    middle = top + BAR - 3
    colour = CONTENDERS.index(figure.who)
    ours = " ours" if figure.who in OURS else ""
    behind = left + LONGEST + NUMBER
    parts = [
        _text(left - 8, middle, figure.who, f"name{ours}", anchor="end"),
        f'<rect class="bar c{colour}" x="{left}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        _text(behind, middle, shown(figure.best), f"value{ours}", anchor="end"),
    ]
    if beside is not None and figure is not beside:
        parts.append(_text(behind + RATIO, middle, f"{_times(figure, beside)}{TIMES}", "ratio", anchor="end"))
    return parts


def _times(figure: Figure, beside: Figure) -> str:
    """How many times as fast one is as the other."""
    ratio = figure.best / beside.best if figure.more_is_better else beside.best / figure.best
    digits = 0 if ratio >= 10 else 1 if ratio >= 1 else 2
    return f"{ratio:.{digits}f}"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
