"""What the log says and the cache shows: others' changes appear, own writes stay, nothing goes backwards."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statesvc_client import foresight, learning, writes
from statesvc_client.cache import Cache
from statesvc_client.desk import Desk
from statesvc_client.errors import Conflict, Exists, NotFound, Unavailable
from statesvc_client.images import Image
from statesvc_client.learning import Learner
from statesvc_client.options import Options
from tests.client.test_cache import record, shown, update


def followed(*records: dict, scoped: bool = False, most: int = 100) -> Cache:
    cache = Cache("job", most, scoped=scoped)
    cache.followed = cache.listing = True
    read = cache.begin_read()
    for each in records:
        cache.learn(each, read)
    cache.learn_all([each["uuid"] for each in records], read, complete=not scoped)
    cache.end_read(read)
    cache.listing = False
    return cache


def image(id: str, revision: int, uid: str = "u1", **fields: object) -> Image:
    return Image(id, uid, revision, msgspec.Raw(msgspec.json.encode(record(id, revision, uid, **fields))))


def gone(id: str, revision: int, uid: str = "u1", *, left: bool = False) -> Image:
    return Image(id, uid, revision, type="left" if left else "deleted")


def observe(cache: Cache, *images: Image) -> None:
    cache.images.observe_all(images)


def answered(cache: Cache, asked: int, **shown: Any) -> None:
    cache.images.observe(learning._image_of(shown, "uuid"), asked)


def test_what_others_make_change_and_delete_shows():
    cache = followed(record("j", a=1))
    observe(cache, image("j", 2, a=2), image("new", 1, uid="u2"))
    assert (shown(cache)["a"], shown(cache, "new")["uid"], cache.live) == (2, "u2", 2)
    observe(cache, gone("j", 3), gone("new", 2, uid="u2"))
    assert (cache.views, cache.live, cache.complete) == ({}, 0, True)


def test_what_was_listed_is_not_replaced_by_older_images_that_come_again():
    cache = followed(record("j", 5, a=5), record("again", 1, uid="u9"))
    observe(cache, image("j", 4, a=4), image("j", 5, a=5))
    assert shown(cache)["a"] == 5
    observe(cache, image("again", 7, uid="u1"), gone("again", 8, uid="u1"))
    assert shown(cache, "again")["uid"] == "u9"
    observe(cache, image("dead", 3, uid="u3"))
    assert "dead" not in cache.views, "it was gone when everything was listed"


def test_own_undecided_writes_stay_on_top_and_are_confirmed_without_asking():
    cache = followed(record("j", 1, a=1))
    write = update("j", b=2)
    cache.note(write)
    observe(cache, image("j", 2, a=1, b=2, updatedAt="now"))
    assert shown(cache) == record("j", 1, a=1, b=2), "undecided, so it is not known whose image this is"
    cache.applied_all([write])
    assert shown(cache) == record("j", 2, a=1, b=2, updatedAt="now")
    assert not cache.wanted
    assert not cache.images.guessed


def test_an_own_write_does_not_vanish_when_somebody_else_was_first():
    cache = followed(record("j", 1, a=1))
    write = update("j", b=2)
    cache.note(write)
    cache.applied_all([write])
    observe(cache, image("j", 2, a=9))
    assert shown(cache)["b"] == 2, "revision 2 was not ours"
    assert "j" in cache.wanted
    read = cache.begin_read()
    cache.learn(record("j", 3, a=9, b=2), read)
    assert shown(cache) == record("j", 3, a=9, b=2)
    observe(cache, image("j", 3, a=9, b=2), image("j", 4, a=10, b=2))
    assert shown(cache)["a"] == 10
    assert not cache.wanted


def test_somebody_elses_change_that_holds_what_was_written_here_is_as_good_as_our_own():
    cache = followed(record("j", 1, a=1))
    write = update("j", b=2)
    cache.note(write)
    cache.applied_all([write])
    observe(cache, image("j", 2, a=9, b=2))
    assert (shown(cache), dict(cache.wanted)) == (record("j", 2, a=9, b=2), {})
    observe(cache, image("j", 3, a=9, b=2, updatedAt="later"))
    assert shown(cache)["revision"] == 3


def test_each_of_several_own_writes_has_to_be_in_the_image_that_confirms_them():
    for together in (True, False):
        cache = followed(record("j", 1))
        first, second = update("j", a=1), update("j", b=2)
        for write in (first, second):
            cache.note(write)
            if not together:
                cache.applied_all([write])
        if together:
            cache.applied_all([first, second])
        observe(cache, image("j", 3, b=2, c=3))
        assert (shown(cache)["a"], list(cache.wanted)) == (1, ["j"])


def test_what_was_made_here_is_not_taken_for_an_earlier_life_that_held_more():
    cache = followed()
    made = writes.create("job", {"uuid": "j", "a": 1})
    cache.note(made)
    cache.applied_all([made])
    observe(cache, image("j", 1, uid="u0", a=1, more="of an earlier life"))
    assert "more" not in shown(cache)
    assert "j" in cache.wanted


def test_a_lease_that_others_took_meanwhile_is_no_part_of_what_was_foreseen():
    cache = followed(record("j", 1, a=1))
    write = writes.update("job", "j", {}, writes.More(inc={"n": 1}))
    cache.note(write)
    cache.applied_all([write])
    observe(cache, image("j", 2, a=1, n=1, lease={"holder": "other", "token": 1}))
    assert "j" in cache.wanted


def test_a_record_deleted_here_does_not_come_back_with_its_own_late_images():
    cache = followed(record("j", 1, a=1))
    for write in (update("j", a=2), writes.delete("job", "j", None)):
        cache.note(write)
        cache.applied_all([write])
    observe(cache, image("j", 2, a=2))
    assert "j" not in cache.views
    observe(cache, gone("j", 3), image("j", 1, uid="u2", a=7))
    assert shown(cache)["a"] == 7


def test_a_record_made_and_deleted_here_does_not_come_back_either():
    cache = followed()
    for write in (writes.create("job", {"uuid": "j"}), writes.delete("job", "j", None)):
        cache.note(write)
        cache.applied_all([write])
    observe(cache, image("j", 1, uid="u7"))
    assert "j" not in cache.views
    observe(cache, gone("j", 2, uid="u7"), image("j", 1, uid="u8"))
    assert "j" in cache.wanted, "which of the two was ours nobody can say"
    cache.learn(record("j", 1, uid="u8"), cache.begin_read())
    observe(cache, image("j", 2, uid="u8", a=1))
    assert (shown(cache)["a"], dict(cache.wanted)) == (1, {})


def test_a_record_deleted_here_and_made_by_others_again_and_again_is_followed_in_the_end():
    cache = followed(record("j", 1, uid="u0"))
    deletes = [writes.delete("job", "j", None) for _ in range(3)]
    for write in deletes:
        cache.note(write)
    observe(cache, gone("j", 2, uid="u0"))
    for uid in ("u1", "u2"):
        observe(cache, image("j", 1, uid=uid), gone("j", 2, uid=uid))
    cache.applied_all(deletes)
    cache.learn_absent("j", cache.begin_read())
    observe(cache, image("j", 1, uid="u3", a=3))
    assert "j" in cache.wanted
    cache.learn(record("j", 1, uid="u3", a=3), cache.begin_read())
    observe(cache, image("j", 2, uid="u3", a=4))
    assert (shown(cache)["a"], dict(cache.wanted)) == (4, {})


def test_what_was_made_and_deleted_here_stays_deleted_though_others_did_the_same_before():
    cache = followed()
    for write in (writes.create("job", {"uuid": "j"}), writes.delete("job", "j", None)):
        cache.note(write)
        cache.applied_all([write])
    observe(cache, image("j", 1, uid="theirs"), gone("j", 2, uid="theirs"))
    cache.learn_absent("j", cache.begin_read())
    observe(cache, image("j", 1, uid="ours"))
    assert "j" not in cache.views


def test_an_event_that_says_too_much_to_show_the_record_too_is_no_end_of_it():
    cache = followed(record("j", 1, a=1))
    observe(cache, Image("j", "u1", 2, type="note"))
    assert (shown(cache)["a"], list(cache.wanted)) == (1, ["j"])
    cache.learn(record("j", 2, a=1), cache.begin_read())
    observe(cache, Image("j", "u1", 2, type="note"), image("j", 3, a=3))
    assert (shown(cache)["a"], dict(cache.wanted)) == (3, {})


def test_what_leaves_the_filter_is_not_known_any_more():
    cache = followed(record("j", 1), scoped=True)
    observe(cache, gone("j", 2, left=True))
    assert "j" not in cache.views
    observe(cache, image("j", 3))
    assert shown(cache)["revision"] == 3


def test_secrets_which_the_log_does_not_hold_stay():
    cache = followed(record("j", 1, secretEnvironment={"KEY": "s"}))
    observe(cache, image("j", 2, a=1))
    assert shown(cache)["secretEnvironment"] == {"KEY": "s"}


def test_an_answer_under_way_does_not_bring_back_what_the_log_told_of_as_gone():
    cache = followed(record("j", 1))
    read = cache.begin_read()
    observe(cache, gone("j", 2))
    cache.learn(record("j", 1), read)
    assert "j" not in cache.views


def test_a_release_with_a_last_state_is_confirmed_by_its_image():
    cache = followed(record("j", 4, status="RUNNING", lease={"holder": "me", "token": 3}))
    write = writes.release("job", "j", {"exitCode": 0}, writes.More(token=3, status="completed"))
    cache.note(write)
    assert shown(cache) == record("j", 4, status="COMPLETED", exitCode=0)
    cache.applied_all([write])
    observe(cache, image("j", 5, status="COMPLETED", exitCode=0, completedAt="now"))
    assert (shown(cache)["completedAt"], dict(cache.wanted)) == ("now", {})


def test_a_release_whose_end_only_the_daemon_knows_is_asked_for():
    cache = followed(record("j", 4, status="RUNNING", lease={"holder": "me", "token": 3}))
    write = writes.release("job", "j", {"error": "x"}, writes.More(token=3, status="FAILED"))
    cache.note(write)
    cache.applied_all([write])
    observe(cache, image("j", 5, status="SCHEDULED", error="x", retryCount=1))
    assert "j" in cache.wanted


def test_a_cancel_that_changes_nothing_makes_no_revision():
    cache = followed(record("j", 4, status="RUNNING", cancelRequested=True))
    write = writes.cancel("job", "j")
    cache.note(write)
    cache.applied_all([write])
    assert shown(cache)["revision"] == 4
    observe(cache, image("j", 5, status="CANCELED"))
    cache.learn(record("j", 5, status="CANCELED"), cache.begin_read())
    assert shown(cache)["status"] == "CANCELED"


# --- a model: any order of writes, acknowledgements, images and reads ------------------------------------------------


class World:
    """One record of a daemon with a log, a cache that follows it, and somebody else who writes too."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, dict | None]] = [("u0", 1, record("j", 1, "u0", n=0, words=[]))]
        self.cache = followed(self.truth or {})
        self.lives = 1
        self.told = 1
        self.undecided: list[writes.Write] = []
        self.decided: list[tuple[writes.Write, Any, int]] = []
        self.not_told: set[int] = set()
        """Behind these places of the log no record is told: what an event says fills its line."""
        self.own_upto = 0
        """Where the last own write stands that the cache knows to be applied."""
        self.shown_at = 0
        self.number = 0

    @property
    def truth(self) -> dict | None:
        return self.log[-1][2]

    def write(self, op: int) -> writes.Write:
        self.number += 1
        return [
            update("j", a=self.number),
            writes.update("job", "j", {}, writes.More(inc={"n": 1})),
            writes.update("job", "j", {}, writes.More(append={"words": [self.number]})),
            writes.delete("job", "j", None),
            writes.create("job", {"uuid": "j", "n": 100, "words": [], "made": self.number}),
            writes.emit("job", "j", {"type": "note"}),
            writes.update("job", "j", {"b": self.number}, writes.More(upsert=True)),
            update("j", always="the same"),
        ][op]

    def decide(self, write: writes.Write) -> Any:
        """What the daemon does with a write: None, or its error."""
        truth = self.truth
        uid, revision, _ = self.log[-1]
        if write.op == "create" or (truth is None and write.more is not None and write.more.upsert):
            if truth is not None:
                return Exists("")
            self.lives += 1
            uid, revision, truth = f"u{self.lives}", 0, {"uuid": "j"}
        if truth is None:
            return NotFound("")
        if write.op == "delete":
            self.log.append((uid, revision + 1, None))
            return None
        after = {**write.fields} if write.op == "create" else foresight.changed(truth, write)
        self.log.append((uid, revision + 1, {**after, "uid": uid, "revision": revision + 1}))
        if write.op == "emit" and self.number % 2:
            self.not_told.add(len(self.log))
        return None

    def own(self, op: int) -> None:
        write = self.write(op)
        self.cache.note(write)
        self.undecided.append(write)

    def daemon(self) -> None:
        if self.undecided:
            write = self.undecided.pop(0)
            self.decided.append((write, self.decide(write), len(self.log) - 1))

    def acknowledge(self) -> None:
        if self.decided:
            write, error, place = self.decided.pop(0)
            if error is None:
                if not self.could_be_anybodys(write):
                    self.own_upto = place
                self.cache.applied_all([write])
            else:
                self.cache.rejected(write, error)
            if write.op == "delete" or isinstance(error, NotFound):
                self.own_upto = 0  # which life is over is not known, so lives before it may still be told of

    @staticmethod
    def could_be_anybodys(write: writes.Write) -> bool:
        """Of two emits or increments nobody can say which one was ours, and it does not matter. Nor where both set the
        same."""
        return write.op == "emit" or "always" in write.fields or (write.more is not None and write.more.inc is not None)

    def tell(self) -> None:
        if self.told < len(self.log):
            uid, revision, body = self.log[self.told]
            self.told += 1
            is_told = body is not None and self.told not in self.not_told
            told = msgspec.Raw(msgspec.json.encode(body)) if is_told else msgspec.Raw()
            self.cache.images.observe_all([Image("j", uid, revision, told, "updated" if body else "deleted")])

    def read(self, foreign: int | None = None) -> None:
        """As a call does: with every own write decided that was made before. Somebody else may write meanwhile."""
        if "j" in self.cache.wanted and not self.undecided and not self.decided:
            read = self.cache.begin_read()
            truth = self.truth
            if foreign is not None:
                self.decide(self.write(foreign))
                while self.told < len(self.log):
                    self.tell()
            if truth is None:
                self.own_upto = 0  # as above
                self.cache.learn_absent("j", read)
            else:
                self.cache.learn(dict(truth), read)
            self.cache.end_read(read)

    def check(self) -> None:
        """What is shown, and is no guess, is a state of the record; never an earlier one, never without own writes."""
        cache = self.cache
        if "j" in cache.own or "j" in cache.images.guessed or "j" in cache.wanted:
            return
        view = cache.views.get("j")
        places = [
            place
            for place, (_, _, body) in enumerate(self.log)
            if place >= self.shown_at
            and (body is None if view is None else body is not None and _same_state(body, view))
        ]
        assert places, f"{view} is older than what was shown, or was never true: {self.log[self.shown_at :]}"
        assert places[-1] >= self.own_upto, f"{view} lacks own writes: {self.log}"
        self.shown_at = places[0]


def _same_state(body: dict, view: dict) -> bool:
    return all(body.get(name) == value for name, value in view.items() if name != "uid")


ACTIONS = st.lists(st.integers(0, 27), min_size=1, max_size=40)


@settings(max_examples=1500)
@given(ACTIONS)
@example([3, 4, 16, 16, 17, 17, 18, 18, 18])
@example([8, 0, 16, 17, 18, 18, 19])
@example([0, 11, 16, 3, 12, 17, 16, 17, 12, 20, 20])
@example([3, 16, 3, 12, 3, 16, 12, 16, 17, 17, 17, 20, 12])
def test_whatever_happens_in_whatever_order_the_cache_never_goes_back_and_ends_with_the_truth(actions):
    world = World()
    for action in actions:
        if action < 8:
            world.own(action)
        elif action < 16:
            world.decide(world.write(action - 8))
        elif action < 20:
            [world.daemon, world.acknowledge, world.tell, world.read][action - 16]()
        else:
            world.read(action - 20)
        world.check()
    while world.undecided or world.decided or world.told < len(world.log):
        world.daemon()
        world.acknowledge()
        world.tell()
        world.check()
    while "j" in world.cache.wanted:
        world.read()
        world.check()
    view = world.cache.views.get("j")
    if view is None:
        assert world.truth is None
    else:
        assert {**(world.truth or {}), "updatedAt": None} == {**view, "updatedAt": None}
    assert world.cache.live == (view is not None)
    assert not world.cache.images.guessed


def test_an_answer_to_what_was_asked_after_own_writes_were_decided_holds_them_all():
    cache = followed(record("j", 1), record("busy", 1))
    for id in ("j", "busy", "busy"):
        asked = cache.images.moment
        write = update(id, a=1)
        cache.note(write)
        cache.applied_all([write])
    answered(cache, asked, **record("j", 5, a=9, status="RUNNING"))
    assert (shown(cache)["status"], list(cache.wanted), "j" in cache.images.guessed) == ("RUNNING", [], False)


def test_an_answer_that_may_be_older_than_an_own_write_takes_nothing_of_it_away():
    cache = followed(record("j", 1))
    asked = cache.images.moment
    write = update("j", note="mine")
    cache.note(write)
    cache.applied_all([write])  # as revision 3
    answered(cache, asked, **record("j", 2, status="RUNNING"))
    assert (shown(cache)["note"], list(cache.wanted)) == ("mine", ["j"])


def test_no_record_is_shown_with_the_secrets_of_an_earlier_life():
    cache = followed()
    write = writes.create("job", {"uuid": "j", "secretEnvironment": {"K": "of the first"}})
    cache.note(write)
    cache.applied_all([write])
    answered(cache, cache.images.moment, **record("j", 2, "u2", status="RUNNING"))
    assert "status" not in shown(cache), "of which life it is shows when it is read"
    assert list(cache.wanted) == ["j"]


def test_a_record_made_outside_of_what_is_followed_is_not_shown_for_the_next_of_its_name():
    cache = followed(scoped=True)
    for write in (writes.create("job", {"uuid": "j"}), update("j", a=1), update("j", a=2)):
        cache.note(write)
        cache.applied_all([write])
    observe(cache, image("j", 1, "u2", a=9))
    assert list(cache.wanted) == ["j"]


def test_a_record_that_has_come_back_is_not_let_go_because_it_had_left():
    cache = followed(record("j", 1), scoped=True)
    answered(cache, cache.images.moment, **record("j", 5, a=5))
    observe(cache, image("j", 2, a=2), gone("j", 3, left=True), image("j", 4, a=4))
    assert shown(cache)["a"] == 5
    observe(cache, gone("j", 6, left=True))
    assert "j" not in cache.views


def test_a_record_that_left_before_own_writes_to_it_is_asked_for():
    cache = followed(record("j", 2, nodeId="n1"), scoped=True)
    made = [update("j", a=1), update("j", a=2)]
    for write in made:
        cache.note(write)
    cache.applied_all(made)  # as revisions 4 and 5
    observe(cache, gone("j", 3, left=True))
    assert list(cache.wanted) == ["j"]


@pytest.mark.parametrize("scoped", [True, False])
@pytest.mark.parametrize("revision", [1, 2])
def test_an_answer_brings_nothing_back_that_was_let_go_of_since(revision: int, *, scoped: bool):
    cache = followed(scoped=scoped)
    asked = cache.images.moment
    observe(cache, image("j", 1), image("j", 2), gone("j", 3))
    answered(cache, asked, **record("j", revision))
    assert "j" not in cache.views


def test_an_answer_brings_nothing_back_that_had_to_make_room_since():
    cache = followed(record("j", 1), most=2)
    asked = cache.images.moment
    observe(cache, image("j", 3), image("k", 1, "u2"), image("l", 1, "u3"))
    assert "j" not in cache.views
    answered(cache, asked, **record("j", 2))
    assert ("j" in cache.views, list(cache.wanted)) == (False, ["j"])


@pytest.mark.parametrize("held", [True, False])
def test_where_the_log_is_not_followed_an_answer_that_may_be_older_than_an_own_write_is_not_taken(*, held: bool):
    cache = Cache("job", 100)
    if held:
        read = cache.begin_read()
        cache.learn(record("j", 5), read)
        cache.end_read(read)
    asked = cache.images.moment
    write = update("j", note="mine")
    cache.note(write)
    cache.applied_all([write])
    answered(cache, asked, **record("j", 6, status="RUNNING"))
    assert "status" not in (cache.views.get("j") or {})
    assert list(cache.wanted) == ["j"]


def test_an_answer_of_another_life_does_not_take_the_place_of_what_the_log_told_last():
    cache = followed(record("j", 1))
    write = update("j", note="mine")
    cache.note(write)
    observe(cache, image("j", 1, "u2", a=2))
    answered(cache, cache.images.moment, **record("j", 2, status="RUNNING"))
    cache.applied_all([write])
    assert list(cache.wanted) == ["j"]


async def test_a_call_knows_what_was_decided_while_it_was_under_way():
    desk = Desk(Options())
    cache = desk.caches["job"]
    observe(cache, image("j", 1))
    cache.followed = True

    async def away(*_: Any) -> Any:
        raise Unavailable("")

    learner = Learner(desk, desk.options, away, asyncio.ensure_future, away)
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(learner.learn_from({"op": "cancel", "jobId": "j"}, answer))
    await asyncio.sleep(0)
    write = update("j", n=1)
    cache.note(write)
    cache.applied_all([write])
    answer.set_result({"job": record("j", 2, cancelRequested=True)})
    await asking
    assert (shown(cache)["n"], list(cache.wanted)) == (1, ["j"])


def test_what_own_writes_touched_while_everything_was_listed_is_asked_for():
    cache = followed(record("j", 1, a=1), record("k", 1))
    read = learning._begin_listing(cache, followed=True)
    write = update("j", b=2)
    cache.note(write)
    cache.applied_all([write])
    listed = [record("j", 3, a=9, b=2), record("k", 1)]  # with somebody else's change, before the place to follow from
    seen: set[str] = set()
    learning._take_page(cache, listed, read, seen, forced=False)
    cache.learn_all(seen, read, complete=True)
    learning._end_listing(cache, read)
    assert list(cache.wanted) == ["j"]


def test_a_listing_during_which_records_were_let_go_does_not_make_the_cache_complete():
    cache = followed(record("j", 1), record("k", 1), most=2)
    read = learning._begin_listing(cache, followed=True)
    seen: set[str] = set()
    learning._take_page(cache, [record("j", 1)], read, seen, forced=False)
    cache.note(writes.create("job", {"uuid": "more"}))
    learning._take_page(cache, [record("k", 1)], read, seen, forced=False)
    cache.learn_all(seen, read, complete=True)
    learning._end_listing(cache, read)
    assert ("j" in cache.views, cache.complete) == (False, False)


def test_a_record_that_shows_own_writes_is_not_let_go_for_an_older_image_to_bring_back():
    cache = followed(record("j", 1), record("k", 1), most=2)
    write = update("j", pid=2)
    cache.note(write)
    cache.applied_all([write])
    cache.note(writes.create("job", {"uuid": "more"}))
    observe(cache, image("j", 2, owner="another"))
    assert shown(cache)["pid"] == 2


def test_while_the_log_is_out_of_reach_no_more_than_twice_the_bound_is_held():
    cache = followed(most=50)
    for number in range(500):
        write = writes.create("job", {"uuid": f"j{number}"})
        cache.note(write)
        cache.applied_all([write])
    assert len(cache.views) <= 100


def test_of_a_record_deleted_here_nothing_is_left_to_be_confirmed():
    cache = followed(record("j", 1), scoped=True)
    for write in (update("j", a=1), writes.delete("job", "j", None)):
        cache.note(write)
        cache.applied_all([write])
    assert (cache.views.get("j"), dict(cache.images.guessed)) == (None, {})


def test_a_conflict_is_read_anew_and_what_came_meanwhile_is_not_shown_for_it():
    cache = followed(record("j", 1, a=1))
    write = writes.update("job", "j", {"a": 5}, writes.More(if_revision=1))
    cache.note(write)
    observe(cache, image("j", 2, a=2))
    cache.rejected(write, Conflict(""))
    assert "j" in cache.wanted
    cache.learn(record("j", 2, a=2), cache.begin_read())
    assert shown(cache)["a"] == 2
