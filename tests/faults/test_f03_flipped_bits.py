"""F3, bits: a flip anywhere in a store is refused, reported, repaired with a warning or without effect. Nothing wrong
is served, nothing is missing without a word. A sample of what `python -m tests.faults.flips` does to every bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import open_file
from statesvc.backends.sqlite.log import FORMAT
from tests.faults import flips_stores, program
from tests.faults.flips import Part, Report, Trials, parts, way_of
from tests.faults.flips_reading import Outcome, Verdict
from tests.faults.flips_stores import FRAME_HEADER, MOMENTS, PAGE, WAL_HEADER, Moment, frames, last_commit
from tests.sqlite.filling import change, look

pytestmark = pytest.mark.slow

Stores = dict[Moment, Path]

FILE_HEADER = 100
BITS_A_PAGE = 2

INNER_PAGES = {2, 5}
"""What the pages of a tree begin with that are above its leaves: of an index, and of a table."""


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with program.scratch() as folder:
        yield flips_stores.make(folder)


@pytest.fixture(params=MOMENTS)
def moment(request) -> Moment:
    found: Moment = request.param
    return found


@pytest.fixture
def work() -> Iterator[Path]:
    with program.scratch(in_memory=True) as folder:
        yield folder


@pytest.fixture
def trials(stores, moment, work) -> Iterator[Trials]:
    trials = Trials(stores[moment], work, moment)
    yield trials
    trials.close()


def flipped(trials: Trials, moment: Moment, file: str, bits: range | list[int], way: str = "quick") -> Report:
    report = Report()
    for bit in bits:
        report.take(Part(moment, file, range(0), 0), bit, way, trials.trial(file, bit, way))
    assert not report.wrong, report.wrong[:5]
    return report


def outcomes(report: Report) -> set[Outcome]:
    return {outcome for _, _, outcome in report.outcomes}


# --- flips ---------------------------------------------------------------------------------------------------------


def a_few_a_page(content: bytes, count: int, chance: random.Random) -> list[int]:
    """So many bits of every page."""
    places = [place for place in range(0, len(content) * 8, PAGE * 8) for _ in range(count)]
    return [place + chance.randrange(min(PAGE * 8, len(content) * 8 - place)) for place in places]


def test_a_bit_of_every_page_of_every_file(trials, moment):
    chance = random.Random(moment)
    for file, content in trials.whole.items():
        found = flipped(trials, moment, file, a_few_a_page(content, BITS_A_PAGE, chance))
        if file.endswith("-shm"):
            assert outcomes(found) == {"no effect"}, "SQLite makes it anew when the first one opens the file"


def test_a_bit_of_every_page_of_a_store_with_deep_trees_and_a_record_of_many_pages(work):
    with program.scratch() as folder:
        trials = Trials(flips_stores.make_large(folder), work, "closed")
    chance = random.Random("large")
    for file in ("log.db", "state.db"):
        content = trials.whole[file]
        assert INNER_PAGES & {content[page] for page in range(PAGE, len(content), PAGE)}, "its trees are leaves only"
        assert {"refused", "reported"} <= outcomes(flipped(trials, "closed", file, a_few_a_page(content, 1, chance)))
    trials.close()


def test_a_bit_of_every_page_through_the_whole_engine_which_then_writes_on_top(trials, moment):
    chance = random.Random(moment)
    for file in ("log.db", "state.db"):
        places = range(0, len(trials.whole[file]) * 8, PAGE * 8)
        flipped(trials, moment, file, [place + chance.randrange(PAGE * 8) for place in places], "engine")


@pytest.mark.parametrize("moment", ["closed"], indirect=True)
@pytest.mark.parametrize("file", ["watermark", "state.watermark"])
def test_a_flip_in_the_watermarks_is_told_of_or_makes_no_difference(trials, moment, file):
    report = flipped(trials, moment, file, range(0, len(trials.whole[file]) * 8, 3 if file == "watermark" else 5))
    assert {"repaired"} <= outcomes(report) <= {"repaired", "no effect"}
    assert report.outcomes[moment, file, "no effect"] < 30, (
        "upper and lower case in the checksum, and the end of the line"
    )


@pytest.mark.parametrize("moment", ["closed"], indirect=True)
@pytest.mark.parametrize("file", ["log.db", "state.db"])
def test_a_flip_in_the_header_of_a_closed_file_is_refused(trials, moment, file):
    assert outcomes(flipped(trials, moment, file, range(0, FILE_HEADER * 8, 1 if file == "log.db" else 3))) == {
        "refused"
    }


@pytest.mark.parametrize("moment", ["idle"], indirect=True)
def test_a_flip_in_the_headers_in_the_wal_of_an_idle_log_is_refused(trials, moment):
    whole = trials.whole["log.db-wal"]
    assert outcomes(flipped(trials, moment, "log.db-wal", range(WAL_HEADER * 8))) == {"refused"}
    for frame in (frames(whole)[0], frames(whole)[-1]):
        bits = range(frame.place * 8, (frame.place + FRAME_HEADER) * 8, 3)
        assert outcomes(flipped(trials, moment, "log.db-wal", bits)) == {"refused"}


@pytest.mark.parametrize("moment", ["idle"], indirect=True)
def test_a_flip_in_the_headers_in_the_wal_of_the_state_has_it_made_again(trials, moment):
    bits = range(0, (WAL_HEADER + FRAME_HEADER) * 8, 5)
    assert outcomes(flipped(trials, moment, "state.db-wal", bits)) == {"repaired"}


@pytest.mark.parametrize("moment", ["busy"], indirect=True)
def test_every_bit_of_the_headers_in_the_wal_of_a_busy_log_is_refused_or_told_as_a_torn_tail(trials, moment):
    """Only of the newest commit, and with its very length."""
    whole = trials.whole["log.db-wal"]
    newest = last_commit(whole)
    assert outcomes(flipped(trials, moment, "log.db-wal", range(WAL_HEADER * 8))) == {"refused"}
    for frame in frames(whole)[-2:]:
        bits = range(frame.place * 8, (frame.place + FRAME_HEADER) * 8)
        found = outcomes(flipped(trials, moment, "log.db-wal", bits))
        assert found <= ({"refused", "torn tail"} if frame.place in newest else {"refused"})


def test_the_real_daemon_ends_with_65_or_answers_with_an_error(stores, work):
    report = Report()
    trials = Trials(stores["closed"], work, "closed")
    for file, place in (("log.db", 2000), ("state.db", PAGE * 2 + 3000), ("watermark", 30)):
        part = Part("closed", file, range(0), 0)
        report.take(part, place * 8, "process", trials.trial(file, place * 8, "process"))
    trials.close()
    assert not report.wrong, report.wrong
    assert sorted(outcomes(report)) == ["refused", "repaired", "reported"]


# --- cuts and zeros ------------------------------------------------------------------------------------------------


def lengths(content: bytes, chance: random.Random) -> Iterator[int]:
    """Where to cut a file: around its beginning, at pages or frames, and anywhere."""
    yield from (0, 1, 31, 32, 99, 100)
    yield from chance.sample(range(0, len(content), PAGE), min(5, len(range(0, len(content), PAGE))))
    yield from chance.sample(range(WAL_HEADER, len(content), PAGE + FRAME_HEADER), min(5, len(content) // 4120))
    yield from (chance.randrange(len(content)) for _ in range(5))
    yield from (len(content) - 1, max(0, len(content) - 500), max(0, len(content) - PAGE + 300))


def test_a_cut_file_is_never_served_as_if_it_were_whole(trials, moment):
    chance = random.Random(moment)
    for file, content in trials.whole.items():
        if file.endswith("-shm") or not content or (moment, file) == ("busy", "log.db-wal"):
            continue
        for length in sorted(set(lengths(content, chance))):
            if length < len(content):
                check(trials.damaged(file, content[:length]), f"{file} cut to {length} bytes")


def test_pages_of_zeros_are_never_served_as_if_they_were_whole(trials, moment):
    for file, content in trials.whole.items():
        if file.endswith("-shm") or (moment, file) == ("busy", "log.db-wal"):
            continue
        for begin, end in [(0, FILE_HEADER), *((place, place + PAGE) for place in range(0, len(content), PAGE))]:
            if any(content[begin:end]):
                check(trials.damaged(file, zeroed(content, begin, end)), f"{file}: zeros from {begin} to {end}")


@pytest.mark.parametrize("moment", ["busy"], indirect=True)
def test_zeros_before_the_newest_commit_in_the_wal_of_a_busy_log_are_refused(trials, moment):
    """Up to the frame that ends the one before it: without that frame, both look like one commit that was torn."""
    whole = trials.whole["log.db-wal"]
    beyond = last_commit(whole).start - PAGE - FRAME_HEADER
    for begin, end in [(0, WAL_HEADER), *((end - PAGE, end) for end in (*range(PAGE, beyond, PAGE), beyond))]:
        verdict = trials.damaged("log.db-wal", zeroed(whole, begin, end))
        assert verdict.outcome == "refused", f"zeros from {begin} to {end} of {beyond}: {verdict}"


def zeroed(content: bytes, begin: int, end: int) -> bytes:
    return content[:begin] + bytes(min(end, len(content)) - begin) + content[end:]


def check(verdict: Verdict, what: str) -> None:
    assert verdict.outcome != "WRONG", f"{what}: {verdict.why}"


def test_a_busy_log_whose_wal_was_cut_is_served_up_to_its_last_whole_commit_and_the_rest_is_told(stores, work):
    """Nobody can tell a WAL that was cut between two commits from one that never had more. Inside one it is told."""
    trials = Trials(stores["busy"], work, "busy")
    whole = trials.whole["log.db-wal"]
    newest = last_commit(whole)
    for length in (newest.start + FRAME_HEADER, newest.start + FRAME_HEADER + 1, newest.start + 2000, newest.stop - 1):
        verdict = trials.damaged("log.db-wal", whole[:length], torn_bytes=length - newest.start)
        assert verdict == Verdict("torn tail", f"{length - newest.start} bytes")
    trials.close()


# --- the parts of it -----------------------------------------------------------------------------------------------


def test_the_whole_program_leaves_no_bit_out(stores):
    todo = list(parts(stores, 1, 0))
    for moment, store in stores.items():
        for file, size in flips_stores.files_of(store):
            mine = [part.bits for part in todo if (part.moment, part.file) == (moment, file)]
            if not file.endswith("-shm"):
                assert all(before.stop == after.start for before, after in pairwise(mine))
                assert (mine[0].start, mine[-1].stop, mine[0].step) == (0, size * 8, 1)
    assert {way_of(number) for number in range(8000)} == {"quick", "engine", "process"}


def test_a_wrong_value_that_every_checksum_fits_is_seen_by_these_tests(stores, work):
    """What is planted here no flip can do: a record changed with all its checksums right."""
    store = work / "planted"
    trials = Trials(stores["closed"], work, "closed")
    trials.trial("watermark", 0, "quick")
    flips_stores.Bench(stores["closed"], store)
    change(store / "state.db", "DELETE FROM label WHERE name = 'of'")
    assert look(store / "state.db", "SELECT count(*) FROM label WHERE name = 'of'") == 0
    assert trials.damaged("state.db", (store / "state.db").read_bytes()).outcome == "WRONG"
    trials.close()


async def test_the_check_of_a_store_finds_a_flip_in_any_entry_of_its_log(stores, tmp_path):
    store = tmp_path / "store"
    flips_stores.Bench(stores["closed"], store)
    db = open_file(store / "log.db", FORMAT, "FULL")
    payload = db.execute("SELECT payload FROM batch WHERE first = 1").get
    db.execute("UPDATE batch SET payload = ? WHERE first = 1", (payload.replace(b"PENDING", b"PENDINH", 1),))
    db.close()
    engine = SqliteEngine(store)
    await engine.open()
    problems = await engine.check()
    await engine.close()
    assert problems
    assert "does not match its checksum" in problems[0]
