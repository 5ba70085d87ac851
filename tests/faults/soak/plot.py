"""The plot of a soak: what the daemon took over the time, a panel for each measure, as SVG.

Owns the drawing; looks like the plot of the benchmarks. Must not know anything the samples do not. The warm-up is
shaded, every fault is a tick at the bottom of each panel, the dashed line is the slope that is judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.bench.plot import _STYLE, _text
from tests.faults.soak.report import Report
from tests.faults.soak.slopes import Point

WIDTH = 900
LEFT = 70
RIGHT = 20
TOP = 60
PANEL = 110
GAP = 44

_MORE_STYLE = """
  polyline { fill: none; stroke-width: 1.4; }
  .l0 { stroke: #e8590c; } .l1 { stroke: #4c78a8; }
  .k0 { fill: #e8590c; } .k1 { fill: #4c78a8; }
  .warm { fill: #8884; } .fault { stroke: #59636e; } .frame { fill: none; stroke: #8888; }
"""


class Panel(NamedTuple):
    """What is drawn together, on one scale that begins at nothing."""

    title: str
    names: tuple[str, ...]
    sloped: str = ""


PANELS = (
    Panel("memory, MiB", ("rss", "anonymous"), "rss"),
    Panel("descriptors and threads", ("descriptors", "threads"), "descriptors"),
    Panel("requests a second", ("requests",)),
    Panel("latency, ms: median and 99th percentile", ("p50", "p99")),
    Panel("share of a processor", ("cpu",)),
    Panel("files, MiB", ("disk",)),
)


def drawn(report: Report, title: str) -> str:
    height = TOP + len(PANELS) * (PANEL + GAP)
    parts = [part for place, panel in enumerate(PANELS) for part in _panel(report, panel, TOP + place * (PANEL + GAP))]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<style>{_STYLE}{_MORE_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(LEFT, 28, title, "title"),
        *parts,
        "</svg>",
        "",
    ))  # fmt: skip


def _panel(report: Report, panel: Panel, top: int) -> list[str]:
    end = max((sample.at for sample in report.samples), default=1.0)
    series = {name: _series(report, name) for name in panel.names}
    # One moment in a fault may be far above all others: the scale is for what is usual, the rest is cut off.
    highest = max((_nearly_all(points) for points in series.values()), default=1.0) * 1.15 or 1.0

    def place(point: Point) -> str:
        x = LEFT + point[0] / end * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{top + PANEL - min(point[1] / highest, 1.0) * PANEL:.1f}"

    warm = report.warm_up_seconds / end * (WIDTH - LEFT - RIGHT)
    parts = [
        _text(LEFT, top - 8, panel.title, "head"),
        _text(LEFT - 8, top + 10, f"{highest:.4g}", "note", anchor="end"),
        _text(LEFT - 8, top + PANEL, "0", "note", anchor="end"),
        f'<rect class="warm" x="{LEFT}" y="{top}" width="{min(warm, WIDTH - LEFT - RIGHT):.1f}" height="{PANEL}"/>',
        f'<rect class="frame" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}"/>',
    ]
    for at, _ in report.happened:
        x = LEFT + min(at / end, 1.0) * (WIDTH - LEFT - RIGHT)
        parts.append(f'<line class="fault" x1="{x:.1f}" y1="{top + PANEL}" x2="{x:.1f}" y2="{top + PANEL + 5}"/>')
    for number, (name, points) in enumerate(series.items()):
        parts.append(f'<polyline class="l{number}" points="{" ".join(map(place, points))}"/>')
        parts.append(_text(WIDTH - RIGHT - 90 * (len(series) - number) + 80, top - 8, name, f"k{number}", anchor="end"))
    if panel.sloped and (slope := report.slope(panel.sloped)) is not None:
        points = report.points(panel.sloped)
        middle = statistics.median(value - slope.value / 3600 * at for at, value in points)
        first, last = (place((at, middle + slope.value / 3600 * at)).split(",") for at in (points[0][0], points[-1][0]))
        parts.append(f'<line class="beside" x1="{first[0]}" y1="{first[1]}" x2="{last[0]}" y2="{last[1]}"/>')
    return parts


def _series(report: Report, name: str) -> list[Point]:
    return [(sample.at, float(value)) for sample in report.samples if (value := getattr(sample, name)) is not None]


def _nearly_all(points: Sequence[Point]) -> float:
    """What 98 of 100 points are not above."""
    values = sorted(value for _, value in points)
    return values[int(len(values) * 0.98)] if values else 0.0
