"""The tables, in Markdown: every figure, the goals, and the short form for the README.

Owns how numbers are shown. Must not know where they came from: it reads what results.py keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from .shape import ECHO, IN_PROCESS, MEMORY, REDIS, REDIS_ALWAYS, SQLITE, Figure, deep, figure_from_json, shown
from .sizes import SIZES

CONTENDERS = (MEMORY, SQLITE, REDIS, REDIS_ALWAYS, IN_PROCESS, ECHO)
"""Who the short table and the plot show, in this order."""


class Line(NamedTuple):
    """One kind of work in the short table and in the plot. Of several circumstances the best counts."""

    name: str
    measure: str
    work: str
    at: tuple[str, ...]
    contenders: tuple[str, ...] = CONTENDERS[:-1]
    """Without the echo where all others would be too short beside it to be told apart."""


_PIPELINES = (deep(64), deep(256))
LINES = (
    Line("create, pipelines of 64", "pipelined", "create", _PIPELINES[:1]),
    Line("update, pipelines of 64", "pipelined", "update", _PIPELINES[:1]),
    Line("get, pipelines of 64", "pipelined", "get", _PIPELINES[:1]),
    Line("list page of 100 by status", "pipelined", "list page", ("one at a time",)),
    Line("creates without a pause", "sustained", "create", _PIPELINES),
    Line("updates through the adapter", "adapter", "update", ("until flushed", *_PIPELINES)),
    Line("get, one at a time", "single", "get", ("one at a time",), CONTENDERS),
    Line("create, one at a time", "single", "create", ("one at a time",), CONTENDERS),
)

CLIENT_SHARE = 0.4
"""Of the time: a client that was at work for longer is told."""

ABOUT_FIGURES = (
    "Best and median of the rounds. `client` is how much of the time the load generator itself was at work, told where"
    f" it is above {CLIENT_SHARE:.0%}: there it limits the figure as well. How each was measured:"
    " [BENCHMARKS](../../docs/BENCHMARKS.md)."
)


def figures_of(results: dict[str, Any]) -> list[Figure]:
    return [figure_from_json(each) for each in results["figures"]]


def shown_of(figures: Sequence[Figure], line: Line) -> list[Figure]:
    """What the short table and the plot show of a kind of work: the best figure of each contender that has one."""
    found = (_best(figures, line, who) for who in line.contenders)
    return [figure for figure in found if figure is not None]


def _best(figures: Sequence[Figure], line: Line, who: str) -> Figure | None:
    wanted = (line.measure, line.work, who)
    some = [each for each in figures if each[:3] == wanted and each.at in line.at]
    if not some:
        return None
    return (max if some[0].more_is_better else min)(some, key=lambda figure: figure.best)


def full(results: dict[str, Any]) -> str:
    """The page that stands beside the JSON."""
    parts = [
        "# Benchmark results",
        introduction(results),
        "## Goals",
        goals_table(results["goals"]) + (f"\n\n{proviso(results).strip()}" if proviso(results) else ""),
        *(["## Failures", "\n".join(f"- {each}" for each in results["failures"])] if results["failures"] else []),
        "## Figures",
        ABOUT_FIGURES,
    ]
    titles = {each["name"]: each for each in results["measures"]}
    for name, group in groupby(figures_of(results), key=lambda figure: figure.measure):
        about = titles[name]
        parts += [f"### {name}: {about['title']}", _sentence(about["compares"]), figures_table(list(group))]
    return "\n\n".join(parts) + "\n"


def short(results: dict[str, Any], plot: str, page: str) -> str:
    """What the README shows."""
    return "\n\n".join((
        introduction(results),
        f"![statesvc beside its peers, by kind of work]({plot})",
        headline_table(figures_of(results)),
        standing(results, page),
    ))  # fmt: skip


def standing(results: dict[str, Any], page: str) -> str:
    """How many goals are met, and where they all stand. Only the full form can meet a goal about a million jobs."""
    goals = results["goals"]
    met, missed, unknown = (sum(goal["met"] is verdict for goal in goals) for verdict in (True, False, None))
    rest = f" and {unknown} were not measured" if unknown else ""
    verdicts = f"{met} are met, {missed} are missed{rest}"
    return f"Of {len(goals)} goals, each judged within one run, {verdicts}: [all of them]({page}).{proviso(results)}"


def proviso(results: dict[str, Any]) -> str:
    """What has to be said beside goals that were tried at smaller sizes than they name."""
    if results["size"] == "full":
        return ""
    return (
        " The goals are about the full form. Those on memory, starting, growth, claims and long runs are easier at the"
        " sizes used here: met here does not mean met."
    )


def introduction(results: dict[str, Any]) -> str:
    about = results["machine"]
    said = SIZES[results["size"]].says
    machine = f"{about['cores']} cores ({about['processor']}), Python {about['python']}, files on {about['fileSystem']}"
    client = f"redis-py {about['redis']} with hiredis {about['hiredis']}"
    text = f"{said}, of {results['date']}: {machine}; Redis is {about['redisServer']} through {client}."
    if about["fileSystem"] == "tmpfs":
        text += " Nothing here waited for a disk: what is called durable was not."
    if _was_busy(about):
        text += f" **The machine was busy with other work (load {about['load']}): measure again before relying on it.**"
    return text


def caption(results: dict[str, Any]) -> str:
    """The same in one line of a plot."""
    about = results["machine"]
    machine = f"{about['cores']} cores, Python {about['python']}, {about['redisServer']}"
    busy = "; on a busy machine" if _was_busy(about) else ""
    return f"{results['size']} form, {results['date']}, {machine}{busy}"


def _was_busy(machine: dict[str, Any]) -> bool:
    """Whether others kept more than half of the cores busy before the run began."""
    return bool(machine["load"] > machine["cores"] / 2)


def headline_table(figures: Sequence[Figure]) -> str:
    """Work by contender."""
    rows = [(line, shown_of(figures, line)) for line in LINES]
    who = [each for each in CONTENDERS if any(each == figure.who for _, some in rows for figure in some)]
    cells = [
        [f"{line.name}, {some[0].unit}", *(by_name.get(each, "") for each in who)]
        for line, some in rows
        if (by_name := {figure.who: shown(figure.best) for figure in some})
    ]
    return table([["one connection", *who], *cells], numbers_from=1)


def goals_table(goals: Sequence[dict[str, Any]]) -> str:
    rows = [["line", "goal", "bound", "reached", "by medians", "", "measured"]]
    rows += [_goal_row(goal) for goal in goals]
    return table(rows, numbers_from=2)


def _goal_row(goal: dict[str, Any]) -> list[str]:
    unit = "" if goal["unit"] == "times" else f" {goal['unit']}"
    bound = f"{'≥' if goal['atLeast'] else '≤'} {goal['bound']:g}{unit}"
    reached, medians = (
        "-" if goal[name] is None else f"{shown(goal[name])}{unit}" for name in ("reached", "byMedians")
    )
    verdict = {None: "-", True: "yes", False: "**no**"}[goal["met"]]
    return [goal["line"], goal["goal"], bound, reached, medians, verdict, goal["circumstances"]]


def figures_table(figures: Sequence[Figure]) -> str:
    """The last columns are there where they say something."""
    first = ["work", "who", "how", f"best, {figures[0].unit}", "median"]
    rows = [[each.work, each.who, each.at, shown(each.best), shown(each.median)] for each in figures]
    more = {
        "99 %": ["" if each.p99 is None else shown(each.p99) for each in figures],
        "client": [f"{each.client:.0%}" if limits(each.client) else "" for each in figures],
    }
    for name, cells in more.items():
        if any(cells):
            first.append(name)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell)
    return table([first, *rows], numbers_from=3)


def limits(client: float | None) -> bool:
    """Whether the load generator was at work so much that it, too, is what a figure shows."""
    return client is not None and client > CLIENT_SHARE


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def table(rows: Sequence[Sequence[str]], numbers_from: int) -> str:
    """Markdown; columns from that one on are aligned to the right."""
    first, *others = rows
    rule = ["---" if at < numbers_from else "---:" for at in range(len(first))]
    return "\n".join(_line(cells) for cells in (first, rule, *others))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
