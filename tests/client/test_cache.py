"""The cache: own writes at once, taken back when rejected, never backwards, never more than its bound."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client import foresight, writes
from statesvc_client.cache import EVICT_STEPS, Cache
from statesvc_client.errors import Conflict, Exists, InvalidTransition, NotFound, TooLarge
from statesvc_client.images import Image


def record(id: str, revision: int = 1, uid: str = "u1", **fields: object) -> dict:
    return {"uuid": id, "uid": uid, "revision": revision, **fields}


def warmed(*records: dict, most: int = 100) -> Cache:
    cache = Cache("job", most)
    read = cache.begin_read()
    for each in records:
        cache.learn(each, read)
    cache.learn_all([each["uuid"] for each in records], read, complete=True)
    cache.end_read(read)
    return cache


def shown(cache: Cache, id: str = "j") -> dict:
    view = cache.views[id]
    assert view is not None
    return view


def update(id: str, **fields: object) -> writes.Write:
    return writes.update("job", id, fields, None)


def test_own_writes_are_seen_at_once_and_what_a_reader_held_stays():
    cache = warmed(record("j", status="PENDING"))
    held = shown(cache)
    cache.note(update("j", status="RUNNING"))
    assert shown(cache)["status"] == "RUNNING"
    assert held["status"] == "PENDING"


def test_what_was_wanted_is_learned_whatever_was_known():
    """Another has deleted and made it anew since; of which life own writes were, no acknowledgement tells."""
    cache = Cache("job", 100)
    made = writes.create("job", {"uuid": "j"})
    cache.note(made)
    cache.applied_all([made])
    for number in range(4):
        change = update("j", n=number)
        cache.note(change)
        cache.applied_all([change])
    assert shown(cache)["revision"] == 5
    refused = update("j", n=9)
    cache.note(refused)
    cache.rejected(refused, Conflict("no"))
    read = cache.begin_read()
    cache.learn(record("j", revision=1, uid="u2"), read)
    cache.end_read(read)
    assert cache.views["j"] == record("j", revision=1, uid="u2")
    assert not cache.wanted


@pytest.mark.parametrize("uid", ["u1", None], ids=["in doubt", "of a life that was never told"])
def test_an_answer_cannot_speak_about_a_write_that_was_under_way_when_it_was_asked(uid):
    cache = Cache("job", 100)
    read = cache.begin_read()
    cache.learn(record("j", 4, n=0) if uid else {"uuid": "j", "n": 0}, read)
    cache.end_read(read)
    if uid:
        cache.wanted["j"] = None
    write = update("j", n=1)
    cache.note(write)
    late = cache.begin_read(flushed=False)
    cache.applied_all([write])
    cache.learn(record("j", 4, n=0), late)  # the daemon had answered before it took the write
    assert shown(cache)["n"] == 1
    cache.learn_absent("j", late)
    assert shown(cache)["n"] == 1
    assert list(cache.wanted) == ["j"][: bool(uid)], "a doubt stays"


def test_an_answer_that_was_asked_for_before_the_doubt_does_not_bring_back_what_is_older():
    cache = warmed(record("j", revision=7))
    late = cache.begin_read()
    cache.wanted["j"] = None
    cache.learn(record("j", revision=6), late)
    assert (shown(cache)["revision"], list(cache.wanted)) == (7, ["j"])


def test_of_two_answers_to_a_doubt_the_older_one_does_not_replace_the_newer():
    cache = warmed(record("j", revision=4))
    cache.wanted["j"] = None
    slow, quick = cache.begin_read(), cache.begin_read()
    cache.learn(record("j", revision=6), quick)
    cache.learn(record("j", revision=5), slow)
    assert shown(cache)["revision"] == 6


def test_after_a_loss_nothing_is_shown_but_what_own_writes_stand_on():
    cache = Cache("job", 100)
    read = cache.begin_read()
    for id in ("j", "k"):
        cache.learn(record(id, revision=5), read)
    cache.end_read(read)
    mine = update("j", n=1)
    cache.note(mine)
    cache.distrust()
    assert list(cache.views) == list(cache.wanted) == ["j"]
    cache.applied_all([mine])
    again = cache.begin_read()
    cache.learn(record("j", revision=2), again)
    assert shown(cache)["revision"] == 2


def test_what_was_asked_before_a_loss_tells_nothing_after_it():
    cache = warmed(record("there"))
    late = cache.begin_read()
    cache.start_over()
    cache.learn(record("lost", revision=9), late)
    cache.learn_absent("there", late)
    assert list(cache.views) == ["there"]
    assert not cache.complete
    cache.learn(record("made"), cache.begin_read())
    assert list(cache.views) == ["there", "made"]


def test_a_rejected_write_is_taken_back_and_later_ones_stay():
    cache = warmed(record("j", status="RUNNING"))
    bad, good = update("j", status="PENDING", pid=1), update("j", note="kept")
    cache.note(bad)
    cache.note(good)
    cache.rejected(bad, InvalidTransition("no"))
    assert cache.views["j"] == record("j", status="RUNNING", note="kept")
    assert "j" in cache.wanted
    cache.applied_all([good])
    assert shown(cache)["revision"] == 2


def test_a_rejected_write_between_two_others_leaves_both():
    cache = warmed(record("j"))
    first, bad, last = update("j", a=1), update("j", a=2, b=2), update("j", c=3)
    for write in (first, bad, last):
        cache.note(write)
    cache.applied_all([first])
    cache.rejected(bad, Conflict("no"))
    cache.applied_all([last])
    assert cache.views["j"] == record("j", 3, a=1, c=3)


def test_the_revision_counts_own_writes_that_were_applied():
    cache = warmed()
    create, change = writes.create("job", {"uuid": "j"}), update("j", a=1)
    cache.note(create)
    cache.note(change)
    cache.applied_all([create])
    cache.applied_all([change])
    assert cache.views["j"] == {"uuid": "j", "a": 1, "revision": 2}


def test_a_refused_create_does_not_pretend_to_know_the_record():
    cache = warmed()
    create = writes.create("job", {"uuid": "j", "a": 1})
    cache.note(create)
    assert "j" in cache.views
    cache.rejected(create, Exists("there"))
    assert "j" not in cache.views
    assert "j" in cache.wanted


def test_an_update_that_succeeds_on_what_was_thought_absent_makes_the_cache_ask():
    cache = warmed()
    write = update("j", a=1)
    cache.note(write)
    assert cache.views.get("j") is None
    cache.applied_all([write])
    assert "j" in cache.wanted


def test_an_update_of_an_absent_record_stays_invisible():
    cache = warmed()
    write = update("j", a=1)
    cache.note(write)
    cache.rejected(write, NotFound("no"))
    assert "j" not in cache.views
    assert "j" not in cache.wanted
    assert cache.live == 0


def test_an_upsert_makes_the_record():
    cache = warmed()
    cache.note(writes.update("job", "j", {"a": 1}, writes.More(upsert=True, inc={"n": 2})))
    assert cache.views["j"] == {"uuid": "j", "a": 1, "n": 2}


def test_a_deleted_record_is_known_to_be_absent_and_comes_back_when_the_delete_is_refused():
    cache = warmed(record("j", a=1))
    delete = writes.delete("job", "j", 7)
    cache.note(delete)
    assert cache.views.get("j", "not held") is None
    assert cache.live == 0
    cache.rejected(delete, Conflict("revision"))
    assert cache.views["j"] == record("j", a=1)
    assert cache.live == 1


def test_an_older_answer_never_replaces_a_newer_one():
    cache = warmed(record("j", 5, a=5))
    read = cache.begin_read()
    cache.learn(record("j", 4, a=4), read)
    assert shown(cache)["a"] == 5
    cache.learn(record("j", 1, uid="u2", a=1), read)
    assert shown(cache)["a"] == 1, "another life of the record"


def test_an_answer_cannot_speak_about_what_own_writes_touched_meanwhile():
    cache = warmed(record("j", 5, n=5))
    read = cache.begin_read()
    write = writes.update("job", "j", {}, writes.More(inc={"n": 1}))
    cache.note(write)
    cache.learn(record("j", 6, n=6), read)  # may or may not hold the increment
    assert shown(cache)["n"] == 6
    cache.applied_all([write])
    cache.learn(record("j", 6, n=6), read)
    assert shown(cache)["revision"] == 6


def test_an_update_during_the_first_listing_is_asked_for_afterwards():
    cache = Cache("job", 100)
    read = cache.begin_read()
    write = update("j", a=1)
    cache.note(write)
    cache.learn(record("j", 3), read)
    cache.learn_all(["j"], read, complete=True)
    cache.end_read(read)
    cache.applied_all([write])
    assert "j" in cache.wanted


def test_the_bound_holds_and_makes_absence_unknown():
    cache = warmed(*(record(f"j{number}") for number in range(5)), most=5)
    assert cache.complete
    cache.note(writes.create("job", {"uuid": "new"}))
    assert len(cache.views) == 5
    assert "j0" not in cache.views
    assert not cache.complete


def test_records_with_undecided_writes_are_not_let_go():
    cache = warmed(record("j0"), record("j1"), most=2)
    cache.note(update("j0", a=1))
    cache.note(writes.create("job", {"uuid": "new"}))
    assert set(cache.views) == {"j0", "new"}


def test_creating_and_deleting_for_ever_holds_nothing():
    cache = warmed(most=10)
    for number in range(5000):
        for write in (writes.create("job", {"uuid": f"j{number}"}), writes.delete("job", f"j{number}", None)):
            cache.note(write)
            cache.applied_all([write])
    assert not cache.views
    assert len(cache._order) < 2000


OPS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20)


@given(OPS, st.data())
def test_whatever_is_applied_or_rejected_in_order_the_cache_ends_like_the_daemon(ops, data):
    """A model daemon decides each write; the cache hears of it some time later."""
    cache = warmed(record("j", 1, n=0))
    truth: dict | None = record("j", 1, n=0)
    undecided: list[writes.Write] = []

    def decide_one() -> None:
        nonlocal truth
        write = undecided.pop(0)
        if write.op == "delete" and truth is not None:
            truth = None
            cache.applied_all([write])
        elif write.op == "create" and truth is None:
            truth = {**write.fields, "revision": 1}
            cache.applied_all([write])
        elif write.op == "update" and truth is not None and not write.fields.get("refuse"):
            truth = {**foresight.changed(truth, write), "revision": truth["revision"] + 1}
            cache.applied_all([write])
        else:
            cache.rejected(
                write, Exists("") if write.op == "create" else NotFound("") if truth is None else Conflict("")
            )

    for number, (op, hear) in enumerate(ops):
        write = [
            update("j", a=number),
            update("j", b=number, refuse=True),
            writes.update("job", "j", {}, writes.More(inc={"n": 1})),
            writes.delete("job", "j", None),
            writes.create("job", {"uuid": "j", "n": 10}),
        ][op]
        cache.note(write)
        undecided.append(write)
        if hear:
            decide_one()
    while undecided:
        decide_one()
    shown = cache.views.get("j")
    if "j" in cache.wanted:
        return  # it knows that it does not know
    if truth is None:
        assert shown is None
    else:
        visible = {name: value for name, value in truth.items() if name != "uid"}
        assert {name: value for name, value in (shown or {}).items() if name != "uid"} == visible
    assert cache.live == (shown is not None)
    assert not cache.own


def test_doubt_is_handed_on_though_a_write_between_is_taken_back():
    """Somebody deleted the record: the create makes a life of its own, which the others are of."""
    cache = warmed(record("j", 6, old=4))
    made = [
        writes.create("job", {"uuid": "j", "made": "anew"}),
        writes.update("job", "j", {"b": 1}, writes.More(if_revision=6)),
        update("j", n=1),
    ]
    for write in made:
        cache.note(write)
    cache.applied_all(made[:1])
    cache.rejected(made[1], Conflict(""))
    cache.applied_all(made[2:])
    assert ("j" in cache.views, list(cache.wanted)) == (False, ["j"])


@pytest.mark.parametrize("complete", [True, False])
def test_forgetting_own_writes_keeps_what_is_shown(complete):
    cache = warmed(record("j"))
    cache.complete = complete
    cache.note(update("j", a=1))
    cache.forget_own()
    assert shown(cache)["a"] == 1


def appended(id: str, *values: object) -> writes.Write:
    return writes.update("job", id, {}, writes.More(append={"words": list(values)}))


def test_many_appends_to_one_record_do_not_hold_it_once_for_each():
    cache = warmed(record("j"))
    tracemalloc.start()
    try:
        made = [appended("j", f"word-{number}") for number in range(3000)]
        before = tracemalloc.get_traced_memory()[0]
        for write in made:
            cache.note(write)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000, "one list of 3000 words takes 24 kB; one for each write 36 MB"
    for write in made[:2000]:
        cache.applied_all([write])
    cache.rejected(made[2000], Conflict(""))
    words = shown(cache)["words"]
    assert (len(words), words[1999:2001]) == (2999, ["word-1999", "word-2001"])


def test_a_write_rejected_out_of_turn_leaves_the_earlier_and_the_later_ones():
    cache = warmed(record("j", words=["a"]))
    made = [appended("j", word) for word in "bcd"]
    for write in made:
        cache.note(write)
    cache.rejected(made[1], TooLarge(""))
    assert shown(cache)["words"] == ["a", "b", "d"]
    cache.rejected(made[0], Conflict(""))
    assert shown(cache)["words"] == ["a", "d"]
    cache.applied_all([made[2]])
    assert shown(cache)["words"] == ["a", "d"]


def test_a_cache_full_of_undecided_records_looks_at_a_few_of_them_and_shrinks_when_they_are_decided():
    cache = warmed(most=500)
    made = [writes.create("job", {"uuid": f"j{number}"}) for number in range(600)]
    for write in made:
        cache.note(write)
    turned = cache._order[0]
    cache.note(writes.create("job", {"uuid": "one more"}))
    assert cache._order.index(turned) >= len(cache._order) - EVICT_STEPS - 1, "not all of them were looked at"
    assert len(cache.views) == 601
    cache.applied_all(made[:300])
    for write in made[300:]:
        cache.applied_all([write])
    assert len(cache.views) == 500


def test_a_cache_beyond_its_bound_shrinks_also_when_each_image_came_before_its_acknowledgement():
    cache = warmed(*(record(f"j{number}") for number in range(500)), most=500)
    cache.followed = True
    made = [update(f"j{number}", pid=number) for number in range(500)]
    for write in made:
        cache.note(write)
        after = record(write.id, 2, pid=write.fields["pid"])
        cache.images.observe(Image(write.id, "u1", 2, msgspec.Raw(msgspec.json.encode(after))))
    for number in range(100):
        cache.note(writes.create("job", {"uuid": f"more{number}"}))
    assert len(cache.views) == 600
    cache.applied_all(made)
    assert (len(cache.views), dict(cache.images.guessed)) == (500, {})
