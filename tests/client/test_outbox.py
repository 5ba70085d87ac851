"""The outbox: order, numbers, the window, and merging when it is full."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client import foresight, merging, writes
from statesvc_client.adapter_errors import OutboxFull
from statesvc_client.desk import Desk
from statesvc_client.errors import LeaseLost
from statesvc_client.options import Options
from statesvc_client.outbox import OVERHEAD, SCAN_STEPS, Merge, Outbox
from statesvc_client.wire import Limits


def update(id: str = "j", **fields: object) -> writes.Write:
    return writes.update("job", id, fields, None)


def filled(count: int) -> Outbox:
    outbox = Outbox(1000, 1_000_000)
    for number in range(count):
        assert outbox.offer(update(f"j{number}", n=number))
    return outbox


def test_writes_leave_in_the_order_they_were_made_and_are_numbered_so():
    outbox = filled(5)
    assert [write.seq for write in outbox.take(10, 100, 10_000)] == [1, 2, 3, 4, 5]
    assert outbox.take(10, 100, 10_000) == []


def test_the_window_bounds_what_is_in_flight():
    outbox = filled(10)
    assert len(outbox.take(100, 4, 10_000)) == 4
    assert outbox.take(100, 4, 10_000) == []
    outbox.acknowledged(2, 100)
    assert [write.seq for write in outbox.take(100, 4, 10_000)] == [5, 6]


def test_a_write_larger_than_the_window_goes_alone():
    outbox = Outbox(10, 1_000_000)
    outbox.offer(update("small", a=1))
    outbox.offer(update("large", a="x" * 1000))
    assert len(outbox.take(10, 10, 100)) == 1
    outbox.acknowledged(1, 10)
    assert [write.id for write in outbox.take(10, 10, 100)] == ["large"]


def test_what_was_decided_before_its_turn_is_counted_once():
    outbox = filled(6)
    taken = outbox.take(10, 100, 10_000)
    outbox.decide(taken[1])
    outbox.decide(taken[0])
    assert [write.seq for write in outbox.acknowledged(4, 100)] == [3, 4]
    assert (outbox.floor, outbox.queued, outbox.in_flight) == (5, 2, 2)
    assert [write.seq for write in outbox.acknowledged(99, 1)] == [5], "no more than a slice at once"
    assert [write.seq for write in outbox.acknowledged(99, 1)] == [6]
    assert (outbox.queued, outbox.queued_bytes, outbox.in_flight, outbox.in_flight_bytes) == (0, 0, 0, 0)


def test_room_is_spare_when_a_share_of_the_bounds_is_free_again():
    outbox = Outbox(64, 1_000_000)
    while outbox.offer(update(a=1)):
        pass
    outbox.take(100, 100, 100_000)
    outbox.acknowledged(2, 100)
    assert (outbox.has_room(10), outbox.has_spare_room()) == (True, False)
    outbox.acknowledged(3, 100)
    assert outbox.has_spare_room()
    tiny = Outbox(1, 1_000_000)
    tiny.offer(update(a=1))
    tiny.take(1, 1, 1000)
    assert not tiny.has_spare_room()
    tiny.acknowledged(1, 1)
    assert tiny.has_spare_room()


def test_who_waits_for_room_is_let_in_when_there_is_some():
    desk = Desk(Options(max_records=64, block_seconds=60))
    for number in range(64):
        desk.admit(update(f"j{number}", status="RUNNING"))
    waiting = threading.Thread(target=desk.admit, args=(update("late", status="RUNNING"),))
    waiting.start()
    while not desk._waiting_for_room:
        pass
    desk.take(Limits(), 100, may_sleep=False)
    for seq in range(1, 65):
        desk.acknowledged(seq)
    waiting.join(30)
    assert [write.id for write in desk.outbox.waiting()] == ["late"]


def test_after_a_lost_connection_everything_undecided_goes_again_from_the_oldest_on():
    outbox = filled(6)
    outbox.take(10, 100, 10_000)
    outbox.acknowledged(2, 100)
    outbox.rewind()
    assert outbox.floor == 3
    assert [write.seq for write in outbox.take(10, 100, 10_000)] == [3, 4, 5, 6]


def test_an_acknowledgement_covers_only_what_was_sent():
    outbox = filled(6)
    outbox.take(3, 100, 10_000)
    assert [write.seq for write in outbox.acknowledged(99, 100)] == [1, 2, 3]
    assert outbox.queued == 3


def test_a_write_decided_out_of_turn_does_not_hold_up_or_let_through_others():
    outbox = filled(4)
    outbox.take(10, 100, 10_000)
    third = outbox.find(3)
    assert third is not None
    outbox.decide(third)
    assert outbox.floor == 1
    outbox.acknowledged(2, 100)
    assert outbox.floor == 4
    assert outbox.find(3) is None


@given(st.lists(st.sampled_from(["offer", "take", "ack", "rewind"]), max_size=60))
def test_counts_are_always_those_of_the_undecided_writes(actions):
    outbox = Outbox(20, 10_000)
    for action in actions:
        if action == "offer":
            outbox.offer(update("j", a=1))
        elif action == "take":
            outbox.take(3, 5, 1000)
        elif action == "ack":
            outbox.acknowledged(outbox.floor + 1, 5)
        else:
            outbox.rewind()
        waiting = outbox.waiting()
        assert outbox.queued == len(waiting)
        assert outbox.queued_bytes == sum(len(write.body) + OVERHEAD for write in waiting)
        assert 0 <= outbox.in_flight <= outbox.queued
        assert [write.seq for write in waiting] == sorted(write.seq for write in waiting)


# --- when it is full -------------------------------------------------------------------------------------------------


def admitted(desk: Desk, write: writes.Write) -> bool:
    try:
        desk.admit(write)
    except OutboxFull:
        return False
    return True


def test_unsent_updates_of_one_record_are_merged_before_anything_is_refused():
    desk = Desk(Options(max_records=4, when_full="error"))
    for number in range(4):
        desk.admit(writes.update("job", f"j{number % 2}", {}, writes.More(inc={"n": 1}, append={"l": [number]})))
    assert admitted(desk, update("k", a=1))
    assert desk.counters().merged >= 1
    by_id: dict[str, list] = {}
    for write in desk.outbox.waiting():
        by_id.setdefault(write.id, []).append(write.more)
    assert sum(more.inc["n"] for more in by_id["j0"]) == 2
    assert [value for more in by_id["j0"] for value in more.append["l"]] == [0, 2]


@pytest.mark.parametrize(
    "between",
    [
        writes.emit("job", "j", {"type": "note"}),
        writes.cancel("job", "j"),
        writes.retry("job", "j"),
        writes.release("job", "j", {}, writes.More(token=3)),
        writes.update("job", "j", {"b": 1}, writes.More(token=3)),
        writes.delete("job", "j", None),
    ],
    ids=lambda write: write.op,
)
def test_nothing_is_merged_over_a_write_of_another_sort(between):
    desk = Desk(Options(max_records=3, when_full="error"))
    for write in (update("j", a=1), between, update("j", a=2)):
        desk.admit(write)
    assert not admitted(desk, update("k", a=1))
    waiting = desk.outbox.waiting()
    assert [(write.op, write.fields.get("a")) for write in waiting] == [
        ("update", 1),
        (between.op, None),
        ("update", 2),
    ]


def test_updates_guarded_by_one_token_are_merged_and_those_by_two_are_not():
    def guarded(token: int | None) -> writes.Write:
        return writes.update("job", "j", {}, writes.More(inc={"n": 1}, token=token))

    both = merging.merged(guarded(3), guarded(3))
    assert both is not None
    assert both.more == writes.More(inc={"n": 2}, token=3)
    assert merging.merged(guarded(3), guarded(4)) is None
    assert merging.merged(guarded(3), guarded(None)) is None


def test_giving_a_lease_back_may_use_the_reserve():
    desk = Desk(Options(max_records=4, when_full="error"))
    for number in range(4):
        desk.admit(writes.create("job", {"uuid": f"j{number}"}))
    assert admitted(desk, writes.release("job", "j0", {}, writes.More(token=1)))


def test_whoever_wants_to_know_is_told_of_the_fate_of_a_write():
    desk = Desk(Options())
    told: list[Any] = []
    for id in ("good", "bad"):
        write = writes.release("job", id, {}, writes.More(token=1))
        write.on_decided = told.append
        desk.admit(write)
    good, bad = desk.outbox.take(10, 10, 10_000)
    desk.acknowledged(good.seq)
    desk.reject(bad, LeaseLost("late"))
    assert [type(error) for error in told] == [type(None), LeaseLost]


def test_what_was_sent_is_never_merged():
    desk = Desk(Options(max_records=2, when_full="error"))
    desk.admit(update("j", a=1))
    desk.outbox.take(10, 10, 10_000)
    for write in desk.outbox.waiting():
        write.sent = True
    desk.admit(update("j", a=2))
    assert not admitted(desk, update("k", a=1))
    assert [write.fields for write in desk.outbox.waiting()] == [{"a": 1}, {"a": 2}]
    assert desk.counters().dropped == 1


def test_a_full_outbox_still_takes_the_last_word_about_a_job():
    desk = Desk(Options(max_records=4, when_full="error"))
    for number in range(4):
        desk.admit(writes.create("job", {"uuid": f"j{number}"}))
    assert not admitted(desk, update("j0", status="RUNNING"))
    assert admitted(desk, update("j0", status="COMPLETED"))
    assert not admitted(desk, update("j1", status="COMPLETED")), "the reserve has its bound too"


def test_the_bound_on_bytes_holds():
    desk = Desk(Options(max_bytes=2000, when_full="error"))
    taken = sum(admitted(desk, writes.create("job", {"uuid": f"j{n}", "x": "y" * 80})) for n in range(100))
    assert 5 < taken < 12
    assert desk.counters().queued_bytes <= 2000


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(
            [
                {"fields": {"x": 1}},
                {"fields": {"y": {"z": 2}}},
                {"fields": {"y": None}},
                {"fields": {"status": "RUNNING"}},
                {"fields": {"status": "COMPLETED"}},
                {"more": {"inc": {"n": 1}}},
                {"more": {"append": {"l": [7]}}},
                {"fields": {"n": 5}},
                {"more": {"set": {"/y/z": 4}}},
            ]
        ),
    ),
    min_size=1,
    max_size=25,
)


@given(STEPS, st.integers(1, 6))
def test_however_writes_are_merged_each_record_ends_the_same_and_passes_the_same_states(steps, room):
    desk = Desk(Options(max_records=room, when_full="error"))
    plain: dict[str, dict] = {"a": {"uuid": "a"}, "b": {"uuid": "b"}}
    states: dict[str, list] = {"a": [], "b": []}
    for id, change in steps:
        write = writes.update(
            "job", id, dict(change.get("fields", {})), writes.More(**change["more"]) if "more" in change else None
        )
        expected = foresight.changed(plain[id], write)
        if not admitted(desk, write):
            continue
        if expected.get("status") != plain[id].get("status"):
            states[id].append(expected.get("status"))
        plain[id] = expected
    ended: dict[str, dict] = {"a": {"uuid": "a"}, "b": {"uuid": "b"}}
    passed: dict[str, list] = {"a": [], "b": []}
    for write in desk.outbox.waiting():
        after = foresight.changed(ended[write.id], write)
        if after.get("status") != ended[write.id].get("status"):
            passed[write.id].append(after.get("status"))
        ended[write.id] = after
    assert ended == plain
    assert passed == states


def test_no_call_looks_through_more_than_a_slice_of_a_full_outbox(monkeypatch):
    looked: list[int] = []
    desk = Desk(Options(max_records=2000, when_full="error"))
    plain = Outbox.merge_into_last

    def counted(outbox: Outbox, write: writes.Write) -> Merge | None:
        looked.append(1)
        return plain(outbox, write)

    monkeypatch.setattr(Outbox, "merge_into_last", counted)
    for number in range(2000):
        desk.admit(writes.create("job", {"uuid": f"j{number}"}))
    taken, most = 0, 0
    while True:
        looked.clear()
        if not admitted(desk, writes.create("job", {"uuid": f"k{taken}"})):
            break
        most = max(most, len(looked))
        taken += 1
    assert 0 < most <= SCAN_STEPS
    assert taken <= 2000 // SCAN_STEPS + 1, "the reserve is used no longer than the looking takes"


def test_what_can_be_merged_at_the_far_end_is_merged_before_anything_is_refused():
    desk = Desk(Options(max_records=2000, when_full="error"))
    for number in range(1990):
        desk.admit(writes.create("job", {"uuid": f"j{number}"}))
    for _ in range(10):
        desk.admit(writes.update("job", "last", {}, writes.More(inc={"n": 1})))
    taken = 0
    while admitted(desk, writes.create("job", {"uuid": f"k{taken}"})):
        taken += 1
    assert desk.counters().merged == 9
    assert taken >= 9
    (last,) = [write for write in desk.outbox.waiting() if write.id == "last"]
    assert last.more == writes.More(inc={"n": 10})
    assert len(desk.outbox.waiting()) <= 2000


def test_decided_writes_are_not_kept_for_merging():
    desk = Desk(Options(max_records=10, when_full="error"))
    for number in range(100):
        desk.admit(update(f"j{number}", a=1))
        if desk.outbox.queued == 10:
            admitted(desk, update("one too many", a=1))
            desk.outbox.take(5, 100, 10_000)
            desk.acknowledged(desk.outbox.floor + 4)
    assert len(desk.outbox._latest) <= 10


def test_changes_of_state_in_another_spelling_are_not_merged_into_one_step():
    desk = Desk(Options(max_records=2, when_full="error"))
    desk.admit(update("j", Status="RUNNING"))
    desk.admit(update("j", STATUS="STOPPING"))
    assert not admitted(desk, update("k", a=1))
    assert [write.status for write in desk.outbox.waiting()] == ["RUNNING", "STOPPING"]
