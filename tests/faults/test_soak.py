"""The soak in short: its load and every trouble once against a real daemon, and that it sees what is planted."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.daemon.harness import Daemon, serving
from tests.faults.soak import agent
from tests.faults.soak.agency import Agency
from tests.faults.soak.findings import Tally
from tests.faults.soak.plot import drawn
from tests.faults.soak.report import Report
from tests.faults.soak.running import Sample, Size, Soak
from tests.faults.soak.slopes import medians, theil_sen
from tests.faults.soak.troubles import TROUBLES, in_words
from tests.faults.soak.working import KINDS, NOTE, PLOT, Crew, Follower, Gardener
from tests.fleet.lines import Json, Speaker

# --- the whole, in short -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_daemon_lives_through_every_trouble_once_and_loses_nothing(folder):
    size = Size(
        minutes=0.02, warm_up=0.0, fault_seconds=0.1, sample_seconds=0.25, rate=80.0, plots=160, breath=0.1,
        agent_pause=0.001, raced=False,
    )  # fmt: skip
    soak = Soak(size, folder)
    await soak.run()
    assert soak.tally.words == []
    assert [what for _, what in soak.happened[: len(TROUBLES)]] == [in_words(trouble) for trouble in TROUBLES]
    assert soak.tally.faults["second daemon killed"] >= 1
    assert soak.victim_acknowledged > 0
    assert soak.followed > 160
    report = Report(soak)
    missed = [goal for goal in report.goals() if not goal.met]
    # What grows cannot be told in a second, and how much is done in one is the machine's.
    assert {goal.name.split()[0] for goal in missed} <= {"memory", "descriptors", "threads", "kills", "steady"}
    assert "nothing lost: 0" in "\n".join(report.lines())
    assert len(report.samples_as_json()["samples"]) == len(soak.samples) > 4


@pytest.mark.slow
@pytest.mark.long
async def test_races_around_the_troubles_are_judged(folder):
    size = Size(minutes=0.1, warm_up=0.0, fault_seconds=1.0, sample_seconds=0.5, rate=80.0, plots=160, breath=0.2)
    soak = Soak(size, folder)
    await soak.run()
    assert soak.tally.words == []
    assert soak.races == len(soak.happened) >= len(TROUBLES)


# --- slopes --------------------------------------------------------------------------------------------------------


def test_a_straight_line_has_its_slope_and_no_doubt():
    assert theil_sen([(x, 2.0 * x + 7) for x in range(20)]) == (2.0, 2.0, 2.0)


def test_a_slope_is_what_is_known_of_these_points():
    # By hand, the ten slopes between them: -1 -1 1/2 2/3 1 3/2 3/2 5/3 2 4.
    points = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 6.0), (5.0, 5.0)]
    slope = theil_sen(points)
    assert slope.value == pytest.approx((1.0 + 1.5) / 2)
    assert (slope.low, slope.high) == (-1.0, 4.0), "five points prove little"


def test_a_quarter_of_the_points_being_anything_hardly_moves_it():
    points = [(float(x), 0.5 * x + (1000.0 if x % 4 == 0 else 0.0)) for x in range(60)]
    slope = theil_sen(points)
    assert slope.value == pytest.approx(0.5, abs=0.1)
    assert slope.low <= 0.5 <= slope.high


def test_the_interval_holds_the_true_slope_about_as_often_as_it_says():
    chance = random.Random(7)
    held = 0
    for _ in range(200):
        slope = theil_sen([(float(x), 0.01 * x + chance.gauss(0, 1)) for x in range(40)])
        held += slope.low <= 0.01 <= slope.high
    assert 0.9 <= held / 200 <= 0.99


def test_equal_values_have_no_slope():
    assert theil_sen([(float(x), 48.0) for x in range(50)]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("points", [[], [(0.0, 1.0), (1.0, 2.0)], [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]])
def test_too_few_points_have_none(points):
    with pytest.raises(ValueError, match="three points"):
        theil_sen(points)


def test_a_stretch_of_time_counts_once_with_its_median():
    points = [(0.0, 1.0), (10.0, 9.0), (20.0, 2.0), (61.0, 5.0)]
    assert medians(points, 60.0) == [(30.0, 2.0), (90.0, 5.0)]


# --- verdicts ------------------------------------------------------------------------------------------------------


def soaked(change: Callable[[Sample, float], Sample] = lambda sample, _: sample) -> Soak:
    """An hour of samples around a hundred megabytes, changed by what is planted."""
    chance = random.Random(3)
    soak = Soak(Size(minutes=60, warm_up=10), Path("/nowhere"), races=60, followed=100_000)
    soak.happened = [(60.0 * place, in_words(TROUBLES[place % len(TROUBLES)])) for place in range(60)]
    soak.tally.faults.update([*(what for _, what in soak.happened), *["second daemon killed"] * 60])
    soak.victim_acknowledged, soak.turns, soak.worked_seconds = 40_000, 200 * 4200, 4200.0
    for number in range(70 * 12):
        at = number * 5.0
        warming = max(0.0, 1 - at / 600) * 40
        plain = Sample(at, 100 - warming + chance.gauss(0, 1), 80.0, 40, 9, 0.2, 12.0, 400.0, 1.0, 9.0)
        soak.samples.append(change(plain, at / 3600))
    return soak


def missed(soak: Soak) -> list[str]:
    return [goal.name.split()[0] for goal in Report(soak).goals() if not goal.met]


def test_a_daemon_that_stays_as_it_is_is_good_whatever_its_warm_up():
    assert missed(soaked()) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda sample, hours: replace(sample, rss=sample.rss + 2 * hours), "memory"),
        (lambda sample, hours: replace(sample, descriptors=40 + int(6 * hours)), "descriptors"),
        (lambda sample, hours: replace(sample, threads=9 + int(3 * hours)), "threads"),
    ],
)
def test_what_grows_is_named(change, name):
    assert missed(soaked(change)) == [name]


def test_growth_that_cannot_be_excluded_is_not_good_enough():
    chance = random.Random(5)
    noisy = soaked(lambda sample, hours: replace(sample, rss=sample.rss + 0.7 * hours + chance.gauss(0, 25)))
    assert missed(noisy) == ["memory"]


def test_what_was_lost_twice_or_wrong_is_a_goal_missed():
    soak = soaked()
    soak.tally.say_lost("a record")
    soak.tally.say_twice("a write")
    soak.tally.say_wrong("an answer")
    assert missed(soak) == ["nothing", "nothing", "nothing"]
    assert "lost: a record" in "\n".join(Report(soak).lines())


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"turns": 149 * 4200}, ["steady requests"]),
        ({"worked_seconds": 0.0}, ["steady requests"]),
        ({"races": 59}, ["races judged"]),
        ({"victim_acknowledged": 59}, ["writes it"]),
        ({"followed": 0}, ["events followed"]),
        ({"happened": [(900.0, "is stopped")] * 60}, ["kinds of"]),
        ({"happened": [(60.0, in_words(each)) for each in TROUBLES]}, ["faults done"]),
        ({"happened": [], "races": 0}, ["faults done", "kinds of", "races judged"]),
    ],
)
def test_a_run_in_which_too_little_was_done_is_not_good(change, names):
    missed = [goal.name for goal in Report(replace(soaked(), **change)).goals() if not goal.met]
    assert [" ".join(name.split()[:2]).rstrip(":") for name in missed] == names


def test_a_run_in_which_nothing_was_done_misses_every_goal_but_those_about_what_was_found():
    goals = Report(Soak(Size(), Path("/nowhere"))).goals()
    assert [goal.name for goal in goals if goal.met] == [
        "nothing lost", "nothing applied twice", "nothing wrong besides"
    ]  # fmt: skip


def test_the_plot_can_be_read_and_has_every_measure():
    soak = soaked()
    soak.happened.append((60.0, "is stopped"))
    picture = ET.fromstring(drawn(Report(soak), "a soak"))
    texts = {element.text for element in picture.iter() if element.tag.endswith("text")}
    assert {"rss", "descriptors", "p99", "disk", "memory, MiB"} <= texts
    assert len([element for element in picture.iter() if element.tag.endswith("polyline")]) == 9


# --- what is planted is seen ---------------------------------------------------------------------------------------


@pytest.fixture
def daemon(folder):
    with serving(folder, backend="memory") as daemon:
        yield daemon


@pytest.fixture
async def gardener(daemon: Daemon) -> AsyncIterator[Gardener]:
    crew = Crew.of(daemon.socket, Tally(), seed=1, plots=8, gardeners=1, clerks=0)
    await crew.prepare()
    await crew.audit()
    assert crew.tally.words == []
    yield crew.gardeners[0]
    crew.leave()


GONE: Json = {"op": "delete", "kind": PLOT, "id": "bed0-3"}
GROWN: Json = {"op": "update", "kind": PLOT, "id": "bed0-3", "inc": {"n": 1}}
MADE: Json = {"op": "create", "kind": PLOT, "record": {"id": "bed0-3", "n": 0}}


@pytest.mark.parametrize(
    ("behind_its_back", "found"),
    [([GONE], (1, 0, 0)), ([GROWN], (0, 1, 0)), ([GONE, MADE], (0, 0, 1))],
    ids=["lost", "applied twice", "another life"],
)
async def test_a_gardener_misses_what_is_gone_and_notices_what_happened_twice(daemon, gardener, behind_its_back, found):
    with daemon.connect() as client:
        for frame in behind_its_back:
            assert client.ask(**frame)["success"]
    tally = gardener._tally
    await gardener.check(3)
    assert (tally.lost, tally.twice, tally.wrong) == found
    gardener.plots.pop(3)


def told(type: str, uid: str, revision: int) -> Json:
    return {"kind": PLOT, "id": "bed0-1", "type": type, "uid": uid, "revision": revision}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([("created", "a", 1), ("updated", "a", 2), ("deleted", "a", 3), ("created", "b", 1)], (0, 0)),
        ([("created", "a", 1), ("updated", "a", 3)], (1, 0)),
        ([("created", "a", 1), ("updated", "a", 2), ("updated", "a", 2)], (0, 1)),
        ([("updated", "a", 2)], (1, 0)),
        ([("created", "a", 1), ("created", "b", 1)], (1, 0)),
    ],
    ids=["in order", "a gap", "twice", "no beginning", "no end"],
)
def test_a_follower_notices_gaps_and_repetitions(events, found):
    follower = Follower(Path("/nowhere"), KINDS)
    for event in events:
        follower._keep(told(*event))
    assert (follower.tally.lost, follower.tally.twice) == found


@pytest.mark.parametrize(
    ("made", "arrived", "found"),
    [(20, 20, (0, 0)), (20, 21, (0, 0)), (20, 19, (1, 0)), (20, 22, (0, 1)), (20, 0, (1, 0))],
)
async def test_the_agency_counts_what_arrived_of_what_a_killed_agent_had_handed_over(daemon, made, arrived, found):
    tally = Tally()
    agency = Agency(daemon.socket, Path("/nowhere"), tally, 0.0)
    speaker = Speaker([daemon.socket], "agent")
    for record in range(agent.RECORDS if arrived else 0):
        seen = agent.expected(record, arrived)
        await speaker.write(op="create", kind=NOTE, record={"id": agent.name(1, record), "seen": seen})
    await agency._judge(1, made, deleting=False)
    assert (tally.lost, tally.twice) == found
    agency._speaker.drop()
    speaker.drop()
