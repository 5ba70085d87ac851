"""Marks: what a record remembers of numbered writes, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc.store.marks import MOST_PUSHED_OUT, earlier_answer, with_write
from statesvc_client.errors import Conflict, StateError
from statesvc_client.wire import Update


def write(seq: int | None, floor: int = 0, *, again: bool = False) -> Update:
    return Update(seq=seq, floor=floor, again=again)


def marked(*writes: tuple[str, int, int], floor: int = 0, most: int = 64) -> bytes:
    """Marks after (client, seq, revision) in this order."""
    stored = b""
    for client, seq, revision in writes:
        stored = with_write(stored, client, write(seq, floor), revision, most)
    return stored


def test_a_record_without_marks_knows_nothing():
    assert earlier_answer(b"", "c", write(1, again=True)) is None


def test_a_write_without_a_number_leaves_no_mark():
    assert with_write(b"", "c", write(None), 1, 64) == b""
    stored = marked(("c", 1, 1))
    assert with_write(stored, "c", write(None), 2, 64) == stored
    assert earlier_answer(stored, "c", write(None, again=True)) is None


def test_a_kept_write_is_answered_with_the_revision_it_made():
    stored = marked(("c", 1, 1), ("c", 3, 2), ("d", 1, 3))
    assert earlier_answer(stored, "c", write(1, again=True)) == 1
    assert earlier_answer(stored, "c", write(3, again=True)) == 2
    assert earlier_answer(stored, "d", write(1)) == 3


def test_a_write_below_a_kept_one_was_refused():
    stored = marked(("c", 1, 1), ("c", 3, 2))
    with pytest.raises(Conflict) as refused:
        earlier_answer(stored, "c", write(2, again=True))
    assert refused.value.outcome == "not_applied"


def test_a_write_above_everything_kept_is_new():
    assert earlier_answer(marked(("c", 3, 1)), "c", write(4, again=True)) is None


def test_a_write_that_is_not_the_highest_does_not_make_a_higher_one_look_new():
    stored = marked(("c", 9, 1), ("c", 1, 2))
    assert earlier_answer(stored, "c", write(9, again=True)) == 1


def test_what_is_below_the_floor_is_dropped_and_what_is_above_it_is_not():
    stored = marked(("c", 1, 1), ("d", 1, 2), ("c", 3, 3), ("d", 2, 4))
    stored = with_write(stored, "c", write(5, floor=3), 5, 64)
    assert earlier_answer(stored, "c", write(3)) == 3
    assert earlier_answer(stored, "c", write(5)) == 5
    with pytest.raises(Conflict):
        earlier_answer(stored, "c", write(1))


def test_a_floor_above_the_write_itself_does_not_forget_it():
    stored = with_write(marked(("c", 1, 1)), "c", write(2, floor=9), 2, 64)
    assert earlier_answer(stored, "c", write(2, again=True)) == 2


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("cde"), st.integers(1, 3), st.integers(1, 2), st.integers(0, 4)),
        max_size=40,
    )
)
def test_every_write_above_the_floor_is_known_and_every_gap_was_a_refusal(steps: list[tuple[str, int, int, int]]):
    """Clients in any turn, seqs and revisions with gaps: the others' writes, and those that were refused."""
    stored, revision = b"", 0
    made: dict[str, dict[int, int]] = {}
    floors: dict[str, int] = {}
    for client, ahead, gap, behind in steps:
        seq = max(made.get(client, {0: 0})) + ahead
        revision += gap
        floors[client] = max(floors.get(client, 0), seq - behind)
        stored = with_write(stored, client, write(seq, floors[client]), revision, 64)
        made.setdefault(client, {})[seq] = revision
    for client, known in made.items():
        for seq in range(max(1, floors[client]), max(known) + 1):
            if seq in known:
                assert earlier_answer(stored, client, write(seq, again=True)) == known[seq]
            else:
                with pytest.raises(Conflict):
                    earlier_answer(stored, client, write(seq, again=True))
        assert earlier_answer(stored, client, write(max(known) + 1, again=True)) is None


def test_a_client_that_never_moves_its_floor_costs_bounded_memory():
    stored = b""
    for number in range(1, 6000):
        stored = with_write(stored, "c", write(2 * number), 3 * number, 64)
    assert len(stored) < 256 * 16
    assert earlier_answer(stored, "c", write(2 * 5999, again=True)) == 3 * 5999
    with pytest.raises(StateError) as unknown:
        earlier_answer(stored, "c", write(2, again=True))
    assert unknown.value.outcome == "unknown"


def test_the_client_that_wrote_longest_ago_is_pushed_out_first():
    stored = marked(("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("c", 1, 4), most=2)
    assert earlier_answer(stored, "a", write(2, again=True)) == 3
    assert earlier_answer(stored, "c", write(1, again=True)) == 4
    with pytest.raises(StateError) as unknown:
        earlier_answer(stored, "b", write(1, again=True))
    assert unknown.value.outcome == "unknown"


def test_a_first_send_of_a_client_that_is_not_kept_is_new():
    stored = marked(("a", 1, 1), ("b", 1, 2), most=1)
    assert earlier_answer(stored, "a", write(2)) is None


def test_marks_that_were_pushed_out_are_not_brought_back_by_a_later_write():
    stored = marked(("a", 1, 1), ("b", 1, 2), ("a", 2, 3), most=1)
    with pytest.raises(StateError) as unknown:
        earlier_answer(stored, "a", write(1, again=True))
    assert unknown.value.outcome == "unknown"
    assert earlier_answer(stored, "a", write(3, again=True)) is None


def test_a_client_that_was_never_there_is_not_taken_for_one_that_was_pushed_out():
    stored = marked(("a", 1, 1), ("b", 1, 2), most=1)
    assert earlier_answer(stored, "c", write(1, again=True)) is None


def test_when_too_many_were_pushed_out_to_note_them_every_resend_without_a_mark_is_unknown():
    stored = marked(*((f"client-{number}", 1, number) for number in range(1, MOST_PUSHED_OUT + 10)), most=1)
    assert len(stored) < 8 * MOST_PUSHED_OUT
    with pytest.raises(StateError) as unknown:
        earlier_answer(stored, "stranger", write(1, again=True))
    assert unknown.value.outcome == "unknown"
    assert earlier_answer(stored, "stranger", write(1)) is None


def test_marks_stay_small():
    stored = b""
    for number in range(1000):
        stored = with_write(stored, f"client-{number:016}", write(number + 1, floor=number), number, 64)
    assert len(stored) < 64 * 60
