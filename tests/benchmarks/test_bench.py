"""The benchmark suite runs, and what it shows is what it measured. Nothing here says how fast anything has to be."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.bench import effort, plot, program, readme, report, results, shape
from benchmarks.bench.goals import goals, judged
from benchmarks.bench.lines import Talker, check
from benchmarks.bench.measures import BY_NAME
from benchmarks.bench.progress import Progress
from benchmarks.bench.running import Ran, in_turn, run_one
from benchmarks.bench.shape import Case, Failed, Figure, Measure, Reading, figure_of, shown
from benchmarks.bench.sizes import QUICK, SIZES, TINY
from tests.daemon.harness import environment, serving

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
SHOWN = sorted(file.stem for file in results.FOLDER.glob("*.json"))

MACHINE = {
    "cores": 2, "load": 0.1, "processor": "one", "python": "3.11", "fileSystem": "ext4",
    "redisServer": "valkey 9", "redis": "8", "hiredis": "3",
}  # fmt: skip


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.bench", *flags]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True)


# --- it runs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_every_measure_runs_alone_in_its_smallest_form(name, tmp_path):
    done = run("--size", "tiny", "--only", name, "-o", "json", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert name in done.stderr, "progress is shown"
    found = json.loads(done.stdout)
    assert found == results.read(tmp_path / "tiny.json")
    assert {figure["measure"] for figure in found["figures"]} == {name}
    for figure in found["figures"]:
        assert figure["best"] > 0
        assert min(figure["rounds"]) <= figure["median"] <= max(figure["rounds"])
    asked = [goal for goal in goals(TINY) if goal.ours.measure == name]
    assert [goal["goal"] for goal in found["goals"]] == [goal.name for goal in asked]
    assert all(goal["reached"] is not None for goal in found["goals"]), "a goal names figures that its measure gives"
    assert found["failures"] == []
    _is_of_no_machine(done.stdout)


def _is_of_no_machine(text: str) -> None:
    assert str(ROOT) not in text
    assert not re.search(r'[" ]/(tmp|home|root|work|usr)\b', text)


def test_the_measures_are_listed_with_what_they_compare(capsys):
    assert program.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BY_NAME)


def test_the_page_about_benchmarks_names_every_measure():
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == list(BY_NAME)


def test_a_request_that_failed_is_no_measurement(socket_folder):
    with serving(socket_folder, backend="memory") as daemon, Talker(str(daemon.socket), "one") as talker:
        batches = talker.writes([b'{"op":"update","jobId":"nobody","job":{}'], 64)
        with pytest.raises(Failed, match="job not found"):
            talker.rate(batches)


def test_a_refused_write_is_noticed_where_a_run_is_acknowledged_by_one_line(socket_folder):
    with serving(socket_folder, backend="memory") as daemon, Talker(str(daemon.socket), "one", "last") as talker:
        good = [b'{"op":"create","jobId":"a","job":{"uuid":"a"}', b'{"op":"create","jobId":"b","job":{"uuid":"b"}']
        assert talker.rate(talker.writes(good, 64)) > 0
        with pytest.raises(Failed, match="already exists"):
            talker.rate(talker.writes(good, 64))


def test_too_few_replies_are_noticed():
    check(b'{"success":true}\n', 1)
    with pytest.raises(Failed):
        check(b'{"success":true}\n', 2)


# --- rounds --------------------------------------------------------------------------------------------------------


def _case(work: str, who: str) -> Case:
    return Case(work, who, "", lambda _: Reading(1.0))


def test_works_keep_their_order_and_another_contender_begins_each_round():
    cases = [_case("create", "a"), _case("create", "b"), _case("get", "a"), _case("get", "b")]
    orders = [[(case.work, case.who) for case in in_turn(cases, round)] for round in range(2)]
    assert orders[0] == [("create", "a"), ("create", "b"), ("get", "a"), ("get", "b")]
    assert orders[1] == [("create", "b"), ("create", "a"), ("get", "b"), ("get", "a")]


def test_how_much_the_load_generator_worked_is_told_with_each_figure():
    def timed(_: int) -> Reading:
        with effort.OWN:
            sum(range(1000))
        return Reading(1.0)

    ran = Ran([], [])
    runs = [lambda _: Reading(1.0, client=0.25), lambda _: Reading(1.0), timed]
    cases = [Case("get", str(number), "", run) for number, run in enumerate(runs)]
    run_one(BY_NAME["single"], cases, TINY, Progress(io.StringIO()), ran)
    elsewhere, nowhere, here = (figure.client for figure in ran.figures)
    assert (elsewhere, nowhere) == (0.25, None)
    assert here is not None


def test_effort_is_processor_time_beside_the_time_that_passed(monkeypatch):
    passed, worked = iter([10.0, 14.0, 20.0, 24.0]), iter([1.0, 3.0, 5.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", passed.__next__)
    monkeypatch.setattr(time, "process_time", worked.__next__)
    own = effort.Effort()
    assert own.taken() is None
    with own:
        pass
    with own:
        pass
    assert own.taken() == pytest.approx(3 / 8)
    assert own.taken() is None


def test_a_case_that_fails_has_no_figure_and_does_not_take_others_along():
    def fails_later(round: int) -> Reading:
        if round:
            raise Failed("refused")
        return Reading(1.0)

    ran = Ran([], [])
    cases = [_case("get", "good"), Case("get", "bad", "", fails_later)]
    in_time = dataclasses.replace(QUICK, seconds=float("inf"))
    run_one(BY_NAME["single"], cases, in_time, Progress(io.StringIO()), ran)
    assert [(figure.who, len(figure.rounds)) for figure in ran.figures] == [("good", QUICK.rounds)]
    assert ran.failures == ["single: get, bad, : Failed: refused"]
    page = report.full(results.collected(TINY, MACHINE, [BY_NAME["single"]], ran))
    assert "Failed: refused" in page


def test_a_measure_that_fails_is_named_and_the_others_are_run(monkeypatch, capsys, tmp_path):
    """Whatever goes wrong in one: a driver's own kind of error as well as ours."""

    def failing(_):
        raise KeyError("surprise")

    bad = dataclasses.replace(BY_NAME["idle"], prepared=failing)
    fine = dataclasses.replace(BY_NAME["single"], prepared=lambda _: nullcontext([_case("get", "a")]))
    monkeypatch.setattr(program, "MEASURES", (bad, fine))
    assert program.main(["--size", "tiny", "--only", "idle", "--only", "single", "--results", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "could not be measured: idle: KeyError: 'surprise'" in shown.err
    found = results.read(tmp_path / "tiny.json")
    assert [figure["measure"] for figure in found["figures"]] == ["single"]
    assert found["failures"] == ["idle: KeyError: 'surprise'"]


def test_no_round_begins_after_its_time_but_there_are_enough_for_a_median():
    ran = Ran([], [])
    late = dataclasses.replace(QUICK, seconds=-1.0)
    run_one(BY_NAME["single"], [_case("get", "a"), _case("get", "b")], late, Progress(io.StringIO()), ran)
    assert [len(figure.rounds) for figure in ran.figures] == [QUICK.least_rounds] * 2
    assert 2 <= QUICK.least_rounds < QUICK.rounds


def test_progress_is_shown_off_a_terminal_as_well(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    shows = Progress(stream)
    shows.begin(1, 2, BY_NAME["single"])
    for now in (1.0, 20.0, 21.0, 40.0):
        shows.step(1, _case("get", f"at {now:.0f}"))
    shows.end()
    assert re.findall(r"at (\d+)", stream.getvalue()) == ["20", "40"]
    assert stream.getvalue().endswith("40.0 s,    40 s in all\n")


@pytest.mark.parametrize(("more_is_better", "best", "p99"), [(True, 3.0, 30.0), (False, 1.0, 10.0)])
def test_the_best_round_is_the_one_that_is_better(more_is_better, best, p99):
    measure = Measure("m", "", "", "us", more_is_better, prepared=BY_NAME["single"].prepared)
    readings = [Reading(2.0, 20.0), Reading(3.0, 30.0), Reading(1.0, 10.0)]
    figure = figure_of(measure, _case("get", "a"), readings)
    assert (figure.best, figure.median, figure.p99) == (best, 2.0, p99)


# --- goals ---------------------------------------------------------------------------------------------------------


def _reached(values: dict[tuple[str, str, str], list[float]]) -> dict[str, bool | None]:
    """What goals say of creates, told by contender and circumstance."""
    figures = [
        Figure(measure, "create", who, at, "a second", more_is_better=True, rounds=rounds)
        for (measure, who, at), rounds in values.items()
    ]
    return {outcome.goal.name: outcome.met for outcome in judged(figures, TINY, BY_NAME)}


def test_a_goal_is_met_missed_or_not_measured():
    name = "create on memory in pipelines of 64, beside redis-py"
    ours, theirs = (
        ("pipelined", "statesvc memory", "pipelines of 64"),
        ("pipelined", "Redis volatile", "pipelines of 64"),
    )
    assert _reached({ours: [10.0, 30.0], theirs: [10.0, 9.0]})[name] is True
    assert _reached({ours: [29.0, 28.0], theirs: [10.0, 9.0]})[name] is False
    assert _reached({ours: [30.0]})[name] is None


def test_a_peer_counts_with_the_better_of_its_pipelines():
    name = "1,024 durable creates on sqlite without a pause, beside Redis volatile, its best pipelines"
    ours = ("sustained", "statesvc sqlite", "pipelines of 256")
    peers = {
        ("sustained", "Redis volatile", f"pipelines of {depth}"): [rate] for depth, rate in ((64, 10.0), (256, 20.0))
    }
    assert _reached({ours: [30.0], **peers})[name] is True
    assert _reached({ours: [29.0], **peers})[name] is False


# --- what is shown -------------------------------------------------------------------------------------------------


@pytest.fixture
def made():
    """Results of a run that never was, with numbers that are all different."""
    figures = []
    for number, line in enumerate(report.LINES):
        measure = BY_NAME[line.measure]
        for at, who in enumerate(line.contenders):
            rounds = [1000.0 * (number + 1) + 100.0 * at, 2000.0 * (number + 1)]
            more = measure.more_is_better
            figures.append(Figure(measure.name, line.work, who, line.at[-1], measure.unit, more, rounds, None, at / 10))
    figures.sort(key=lambda figure: figure.measure)
    measures = [BY_NAME[name] for name in dict.fromkeys(figure.measure for figure in figures)]
    return results.collected(TINY, MACHINE, measures, Ran(figures, []))


def _cells(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def _of_class(svg: str, kind: str) -> list[ET.Element]:
    return [each for each in ET.fromstring(svg).iter() if kind in each.get("class", "").split()]


def _bars(svg: str) -> list[str]:
    """The numbers at the bars, in order."""
    values = [text.text or "" for text in _of_class(svg, "value")]
    assert len(values) == len(_of_class(svg, "bar"))
    return values


def _agree(found: dict) -> None:
    pages = results.pages(found)
    figures = report.figures_of(json.loads(pages["json"]))
    headline = _cells(report.headline_table(figures))
    numbers = [cell for row in headline[2:] for cell in row[1:] if cell]
    assert _bars(pages["svg"]) == numbers, "the plot shows what the table shows"
    rows = [tuple(row[:5]) for row in _cells(pages["md"])]
    for figure in figures:
        row = (figure.work, figure.who, figure.at, shown(figure.best), shown(figure.median))
        assert row in rows, "the page has every figure"
    for goal in found["goals"]:
        assert any(row[1] == goal["goal"] for row in rows)
    widths = {len(row) for row in _cells(report.goals_table(found["goals"]))}
    assert len(widths) == 1, "a table has as many cells in each row"


def test_table_plot_and_json_agree(made):
    _agree(made)


def test_bars_are_as_long_as_their_numbers_within_a_panel(made):
    figures = report.figures_of(made)
    widths = [float(bar.get("width", "")) for bar in _of_class(plot.drawn(figures, "said"), "bar")]
    for line in report.LINES:
        panel = [figure.best for figure in report.shown_of(figures, line)]
        drawn, widths = widths[: len(panel)], widths[len(panel) :]
        assert drawn == pytest.approx([plot.LONGEST * value / max(panel) for value in panel], abs=0.1)
    assert widths == []


def test_a_bar_says_how_many_times_as_fast_as_redis_it_is():
    who = [shape.MEMORY, shape.SQLITE, shape.REDIS]
    for measure, work, at, values in (
        ("pipelined", "create", "pipelines of 64", (300.0, 5.0, 10.0)),
        ("single", "get", "one at a time", (10 / 30, 20.0, 10.0)),
    ):
        more = BY_NAME[measure].more_is_better
        figures = [
            Figure(measure, work, each, at, BY_NAME[measure].unit, more, [value])
            for each, value in zip(who, values, strict=True)
        ]
        ratios = [text.text for text in _of_class(plot.drawn(figures, "said"), "ratio")]
        assert ratios == [f"30{plot.TIMES}", f"0.50{plot.TIMES}"]


def test_of_several_pipelines_the_best_is_shown():
    figures = [
        Figure(
            "sustained", "create", shape.REDIS, f"pipelines of {depth}", "a second", more_is_better=True, rounds=[rate]
        )
        for depth, rate in ((64, 10.0), (256, 20.0))
    ]
    assert _bars(plot.drawn(figures, "said")) == ["20"]


WIDE = 0.58
"""Of the font's size: no letter of a usual face is wider on the average of a word."""


def test_nothing_in_the_plot_overlaps_or_leaves_it(made):
    svg = plot.drawn(report.figures_of(made), report.caption(made))
    sizes = {"title": 16, "head": 13}
    boxes = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):
        kind, x, y = text.get("class", "").split()[0], float(text.get("x", "")), float(text.get("y", ""))
        wide = len(text.text or "") * sizes.get(kind, 12) * WIDE
        left = x - wide if text.get("text-anchor") == "end" else x
        boxes.append((left, left + wide, y - 10, y + 3, text.text))
    for bar in _of_class(svg, "bar"):
        x, y, wide, high = (float(bar.get(name, "")) for name in ("x", "y", "width", "height"))
        boxes.append((x, x + wide, y, y + high, "a bar"))
    for at, (left, right, top, bottom, what) in enumerate(boxes):
        assert left >= 0, what
        assert right <= plot.WIDTH, what
        for other in boxes[at + 1 :]:
            apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
            assert apart, (what, other[4])


@pytest.mark.parametrize(("share", "told"), [(0.39, ""), (0.41, "41%")])
def test_a_client_that_limits_its_figure_is_told(share, told):
    figure = Figure("pipelined", "get", "a", "", "a second", more_is_better=True, rounds=[1.0], client=share)
    other = figure._replace(who="b", client=0.9)
    first, _, *rows = _cells(report.figures_table([figure, other]))
    assert first[-1] == "client"
    assert [row[-1] for row in rows] == [told, "90%"]
    assert "client" not in report.figures_table([figure._replace(client=0.1)])


@pytest.mark.parametrize(("fact", "said"), [({"load": 3.0}, "busy"), ({"fileSystem": "tmpfs"}, "waited for a disk")])
def test_what_spoils_a_run_is_said_beside_its_numbers(made, fact, said):
    spoilt = {**made, "machine": {**MACHINE, **fact}}
    assert said not in report.short(made, "plot", "page")
    assert said in report.short(spoilt, "plot", "page")
    assert said in report.full(spoilt)


def test_a_goal_met_at_a_smaller_size_is_not_called_met_without_a_word(made):
    word = "met here does not mean met"
    for show in (report.full, lambda found: report.short(found, "plot", "page")):
        assert word in show({**made, "size": "quick"})
        assert word not in show({**made, "size": "full"})


def test_results_are_written_and_read_as_they_were(made, tmp_path):
    written = results.write(made, tmp_path)
    assert sorted(file.name for file in written) == ["tiny.json", "tiny.md", "tiny.svg"]
    assert results.pages(results.read(tmp_path / "tiny.json")) == results.pages(made)


def test_pages_are_made_again_from_the_json_kept(made, tmp_path):
    table, *others = sorted(results.write(made, tmp_path), key=lambda file: file.suffix == ".json")
    before = [file.read_text() for file in (table, *others)]
    table.write_text("old")
    assert program.main(["--redraw", "--results", str(tmp_path)]) == 0
    assert [file.read_text() for file in (table, *others)] == before


def test_the_readme_gets_the_full_form_where_there_is_one(made, tmp_path):
    page = "before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n"
    assert readme.filled(page, tmp_path) == page
    results.write({**made, "size": "quick"}, tmp_path)
    assert "benchmarks/results/quick.svg" in readme.filled(page, tmp_path)
    results.write({**made, "size": "full"}, tmp_path)
    text = readme.filled(page, tmp_path)
    assert "benchmarks/results/full.svg" in text
    assert text.startswith("before\n<!-- bench -->\n")
    assert text.endswith("<!-- /bench -->\nafter\n")
    assert readme.filled(text, tmp_path) == text
    with pytest.raises(ValueError, match="no place"):
        readme.filled("nothing", tmp_path)


# --- what is kept in the tree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHOWN)
def test_pages_in_the_tree_are_made_of_the_json_beside_them(name):
    found = results.read(results.FOLDER / f"{name}.json")
    assert found["size"] == name
    assert name in SIZES
    for ending, text in results.pages(found).items():
        assert (results.FOLDER / f"{name}.{ending}").read_text() == text
    _agree(found)
    _is_of_no_machine((results.FOLDER / f"{name}.json").read_text())


def test_the_readme_shows_the_results_in_the_tree():
    assert readme.filled(readme.PAGE.read_text()) == readme.PAGE.read_text()
