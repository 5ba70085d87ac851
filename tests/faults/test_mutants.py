"""The planted defects still fit the source, the tests that must notice are there, and some are noticed here and now."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.mutants.hunting import Run, copy_tree, judge, planted, run_tests, tree_files, try_one
from tests.faults.mutants.planted import MUTANTS, ROOT, Mutant, place_of

FEWEST = 15

NAMED = {mutant.name: mutant for mutant in MUTANTS}

QUICK = "token_begins_anew"

NOTICED_ELSEWHERE = {
    "floor_before_its_fate_is_on_disk", "record_checksums_ignored", "same_epoch_after_a_restore",
    "token_not_compared", "token_begins_anew", "late_write_revives",
    "lost_reply_is_not_applied", "claimed_again_in_doubt", "leftovers_stay_in_the_wal", "commits_without_a_pause",
    "half_a_claim_denied", "renewed_claim_not_recognised", "leftovers_taken_for_nothing", "reads_go_on_for_nobody",
    "a_library_every_time", "claims_grow_records", "snapshot_of_misplaced_pages", "dump_holds_up_the_end",
    "times_without_bound", "sent_at_the_last_moment", "own_write_taken_back_by_an_answer",
}  # fmt: skip
"""What another guard covers up or only one answer shows: shown on the tests of the part that has to hold it."""


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own():
    assert len(NAMED) == len(MUTANTS) >= FEWEST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source_and_is_still_a_program(mutant):
    text = (ROOT / mutant.file).read_text()
    assert planted(text, mutant) != text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_must_notice_a_mutant_are_there(mutant):
    assert mutant.breaks
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file()


def test_all_others_are_noticed_by_the_fault_suite_itself():
    elsewhere = {
        mutant.name for mutant in MUTANTS if not any(test.startswith("tests/faults/") for test in mutant.tests)
    }
    assert elsewhere == NOTICED_ELSEWHERE


def test_a_test_that_is_not_there_or_in_two_files_is_told():
    with pytest.raises(LookupError, match="0 files"):
        place_of("test_nobody_wrote")
    with pytest.raises(LookupError, match="0 files"):
        place_of("tests/faults/test_soak.py::test_a_test_that_is_not_there_or_in_two_files_is_told")


# --- the hunt --------------------------------------------------------------------------------------------------------

SOURCE = "def double(number):\n    return 2 * number\n"
TEST = "from product import double\n\ndef test_it():\n    assert double(3) == 6\n"


def mutant(old: str, new: str) -> Mutant:
    return Mutant("a", "b", "product.py", old, new, ())


@pytest.fixture
def tree(tmp_path) -> Path:
    (tmp_path / "product.py").write_text(SOURCE)
    (tmp_path / "test_product.py").write_text(TEST)
    return tmp_path


@pytest.mark.parametrize(
    ("new", "verdict"),
    [("3 * number", "caught"), ("number * 2", "survived"), ("2 * nobody", "crashed")],
)
def test_a_mutant_is_caught_survives_or_is_no_working_program(tree, new, verdict):
    (tree / "product.py").write_text(planted(SOURCE, mutant("2 * number", new)))
    fate = judge(NAMED["token_begins_anew"], run_tests(tree, ["test_product.py"]), 0.0)
    assert fate.verdict == verdict


def test_tests_that_cannot_be_collected_or_are_not_there_catch_nothing(tree):
    assert judge(MUTANTS[0], run_tests(tree, ["test_product.py::test_other"]), 0.0).verdict == "not run"
    (tree / "test_product.py").write_text("import nothing_of_that_name\n")
    assert judge(MUTANTS[0], run_tests(tree, ["test_product.py"]), 0.0).verdict == "crashed"
    assert judge(MUTANTS[0], Run(-1, 0, [], "too long"), 0.0).verdict == "not run"


def test_a_test_that_is_cut_off_catches_nothing(tree):
    (tree / "test_product.py").write_text("import time\n\ndef test_it():\n    time.sleep(60)\n")
    assert judge(MUTANTS[0], run_tests(tree, ["test_product.py"], "--timeout=0.2"), 0.0).verdict == "not run"


@pytest.mark.parametrize("old", ["number", "nothing"])
def test_a_mutant_that_does_not_fit_once_is_refused(old):
    with pytest.raises(ValueError, match="not once"):
        planted(SOURCE, mutant(old, "x"))


def test_a_mutant_that_is_no_program_is_refused():
    with pytest.raises(SyntaxError):
        planted(SOURCE, mutant("2 * number", "2 *"))


@pytest.mark.slow
def test_a_planted_defect_is_caught_in_a_copy_and_the_tree_stays_as_it_is(tmp_path):
    try:
        files = tree_files()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the tree is not in git: what belongs to it is not known")
    planted_in = ROOT / NAMED[QUICK].file
    before = planted_in.read_bytes()
    fate = try_one(copy_tree(tmp_path / "tree", files), NAMED[QUICK])
    assert fate.verdict == "caught", fate
    assert planted_in.read_bytes() == before
