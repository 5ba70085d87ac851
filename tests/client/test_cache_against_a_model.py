"""Several records, a log, a cache that follows it and is listed anew: whatever the order, it ends with the truth."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statesvc_client import foresight, learning, writes
from statesvc_client.cache import Cache, Read
from statesvc_client.errors import Conflict, Exists, NotFound, StateError
from statesvc_client.images import Image
from tests.client.test_cache import update

IDS = ("j0", "j1", "j2")


class State(NamedTuple):
    """A record at one place of the log."""

    id: str
    uid: str
    revision: int
    body: dict[str, Any] | None


class Listing:
    """Everything being read, a record at a time."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.seen: set[str] = set()
        self.left = list(IDS)
        self.as_of: int | None = None


class Fetch:
    """Records being asked for."""

    def __init__(self, ids: list[str], read: Read) -> None:
        self.ids = ids
        self.read = read
        self.answer: dict[str, dict[str, Any] | None] | None = None


class Call:
    """A write on another connection, like a claim, whose answer shows the record."""

    def __init__(self, write: writes.Write, asked: int) -> None:
        self.write = write
        self.asked = asked
        self.is_decided = False
        self.answer: dict[str, Any] | None = None


class World:
    """A daemon, the link to it and the cache, each step of which may come at any time."""

    def __init__(self, most: int) -> None:
        self.log: list[State] = []
        self.lives = self.number = self.told = 0
        self.cache = Cache("job", most)
        self.undecided: list[writes.Write] = []
        self.decided: list[tuple[writes.Write, StateError | None, int]] = []
        self.fetch: Fetch | None = None
        self.listing: Listing | None = None
        self.call: Call | None = None
        self.acknowledged: dict[str, tuple[int, writes.Write]] = {}
        """The last own write of each record that the cache knows to be applied, and its place in the log."""
        self.shown: dict[str, tuple[str, int]] = {}
        """The life and the revision that each record was shown at last. One that was let go of comes back as the log
        has it, which may be late."""
        for id in IDS[:2]:
            self.decide(writes.create("job", {"uuid": id, "n": 0, "words": []}))
        self.begin_listing()
        for _ in IDS:
            self.read_page()
        self.end_listing()

    # --- the daemon ------------------------------------------------------------------------------------------------

    def truth(self, id: str) -> State | None:
        return next((state for state in reversed(self.log) if state.id == id), None)

    def body(self, id: str) -> dict[str, Any] | None:
        state = self.truth(id)
        return None if state is None or state.body is None else dict(state.body)

    def decide(self, write: writes.Write) -> StateError | None:
        now = self.truth(write.id)
        more = write.more or writes.More()
        if now is None or now.body is None:
            if write.op != "create" and not more.upsert:
                return NotFound("")
            self.lives += 1
            now = State(write.id, f"u{self.lives}", 0, {"uuid": write.id})
        elif write.op == "create":
            return Exists("")
        if more.if_revision not in (None, now.revision):
            return Conflict("")
        after: dict[str, Any] | None = None
        if write.op != "delete":
            changed = dict(write.fields) if write.op == "create" else foresight.changed(now.body or {}, write)
            after = {**changed, "uid": now.uid, "revision": now.revision + 1, "updatedAt": f"t{len(self.log)}"}
        self.log.append(State(write.id, now.uid, now.revision + 1, after))
        return None

    def write(self, id: str, op: int) -> writes.Write:
        self.number += 1
        number, now = self.number, self.truth(id)
        make = [
            lambda: update(id, pid=number),
            lambda: update(id, pid=number, name=f"n{number}"),
            lambda: writes.update("job", id, {}, writes.More(inc={"n": 1})),
            lambda: writes.update("job", id, {}, writes.More(append={"words": [number]})),
            lambda: writes.delete("job", id, None),
            lambda: writes.create("job", {"uuid": id, "n": 100, "words": [], "made": number}),
            lambda: writes.emit("job", id, {"type": "note"}),
            lambda: writes.update("job", id, {"b": number}, writes.More(upsert=True)),
            lambda: writes.update("job", id, {"c": 1}, writes.More(if_revision=1 if now is None else now.revision)),
            lambda: writes.update("job", id, {"name": None, "data": {"x": number}}, None),
        ]
        return make[op % len(make)]()

    # --- what may happen -------------------------------------------------------------------------------------------

    def write_here(self, id: str, op: int, _: int) -> None:
        write = self.write(id, op)
        self.cache.note(write)
        self.undecided.append(write)

    def write_elsewhere(self, id: str, op: int, _: int) -> None:
        self.decide(self.write(id, op))

    def decide_next(self, *_: object) -> None:
        if self.undecided:
            write = self.undecided.pop(0)
            self.decided.append((write, self.decide(write), len(self.log) - 1))

    def acknowledge(self, _id: str, _op: int, most: int) -> None:
        run: list[writes.Write] = []
        for write, error, place in self.decided[:most]:
            if error is None:
                run.append(write)
                self.note_acknowledged(write, place)
            else:
                self.cache.applied_all(run)
                run = []
                self.cache.rejected(write, error)
        self.cache.applied_all(run)
        del self.decided[:most]

    def note_acknowledged(self, write: writes.Write, place: int) -> None:
        if self.cache.knows(write.id):
            self.acknowledged[write.id] = (place, write)
        else:  # of a record that is not held nothing is remembered
            self.acknowledged.pop(write.id, None)

    def tell(self, _id: str, _op: int, most: int) -> None:
        if self.listing is None:
            told = self.log[self.told : self.told + most]
            self.told += len(told)
            self.cache.images.observe_all(map(_image, told))

    @property
    def is_flushed(self) -> bool:
        return not self.undecided and not self.decided

    def begin_fetch(self, *_: object) -> None:
        if self.fetch is None and self.cache.wanted and self.is_flushed:
            self.fetch = Fetch(list(self.cache.wanted), self.cache.begin_read())

    def answer_fetch(self, *_: object) -> None:
        if self.fetch is not None and self.fetch.answer is None:
            self.fetch.answer = {id: self.body(id) for id in self.fetch.ids}

    def end_fetch(self, *_: object) -> None:
        fetch = self.fetch
        if fetch is None or fetch.answer is None:
            return
        self.fetch = None
        for id, body in fetch.answer.items():
            if body is None:
                self.cache.learn_absent(id, fetch.read)
            else:
                self.cache.learn(body, fetch.read)
        self.cache.end_read(fetch.read)

    def begin_call(self, id: str, *_: object) -> None:
        if self.call is None:
            self.number += 1
            self.call = Call(update(id, held=self.number), self.cache.images.moment)

    def answer_call(self, *_: object) -> None:
        call = self.call
        if call is not None and not call.is_decided:
            call.is_decided = True
            if self.decide(call.write) is None:
                call.answer = self.body(call.write.id)

    def end_call(self, *_: object) -> None:
        call = self.call
        if call is not None and call.is_decided:
            self.call = None
            if call.answer is not None:
                self.cache.images.observe(learning._image_of(call.answer, "uuid"), call.asked)

    def begin_listing(self, *_: object) -> None:
        if self.listing is None:
            self.listing = Listing(learning._begin_listing(self.cache, followed=True))

    def read_page(self, *_: object) -> None:
        listing = self.listing
        if listing is None or not listing.left or not self.is_flushed:
            return
        if listing.as_of is None:
            listing.as_of = len(self.log)
        body = self.body(listing.left.pop(0))
        found = [] if body is None else [body]
        learning._take_page(self.cache, found, listing.read, listing.seen, forced=False)

    def end_listing(self, *_: object) -> None:
        listing = self.listing
        if listing is not None and not listing.left:
            complete = len(listing.seen) <= self.cache.most
            self.cache.learn_all(listing.seen, listing.read, complete=complete)
            learning._end_listing(self.cache, listing.read)
            self.told, self.listing = listing.as_of or 0, None

    # --- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What is shown of the fields that were written here was true when they were applied, or later."""
        cache = self.cache
        for id, (place, write) in self.acknowledged.items():
            view = cache.views.get(id)
            if view is None or id in cache.own or id in cache.wanted or write.more is not None or write.op == "delete":
                continue
            since = [state.body for state in self.log[place:] if state.id == id and state.body is not None]
            shown = {name: view.get(name) for name in write.fields}
            assert any(shown == {name: body.get(name) for name in write.fields} for body in since), (view, write)
        self.shown = {id: last for id, last in self.shown.items() if id in cache.views}
        for id, view in cache.views.items() if cache.most >= len(IDS) else ():
            if view is not None and "uid" in view and id not in cache.wanted:
                uid, revision = view["uid"], view["revision"]
                before, last = self.shown.get(id, (uid, 0))
                assert uid != before or revision >= last, f"{id} went back from {last} to {revision}"
                self.shown[id] = uid, revision

    def come_to_rest(self) -> None:
        steps = (
            self.decide_next, self.answer_call, self.end_call, self.acknowledge, self.read_page, self.end_listing,
            self.tell,
        )  # fmt: skip
        for _ in range(1000):
            for step in (*steps, self.begin_fetch, self.answer_fetch, self.end_fetch):
                step("", 0, 2)
            if (
                self.is_flushed
                and self.listing is None
                and self.call is None
                and self.told >= len(self.log)
                and not self.cache.wanted
            ):
                return
        raise AssertionError(f"asks for ever: {self.cache.wanted}")

    def check_truth(self) -> None:
        cache = self.cache
        for id in IDS:
            if id in cache.views or cache.complete:
                assert cache.views.get(id) == self.body(id)
        assert (dict(cache.images.guessed), dict(cache.images.waiting)) == ({}, {})
        assert cache.live == sum(view is not None for view in cache.views.values())


def _image(state: State) -> Image:
    body = msgspec.Raw() if state.body is None else msgspec.Raw(msgspec.json.encode(state.body))
    return Image(state.id, state.uid, state.revision, body, "deleted" if state.body is None else "updated")


HAPPENS = (
    World.write_here, World.write_here, World.write_elsewhere, World.decide_next, World.decide_next, World.acknowledge,
    World.acknowledge, World.tell, World.tell, World.begin_fetch, World.answer_fetch, World.end_fetch,
    World.begin_listing, World.read_page, World.end_listing,
    World.begin_call, World.answer_call, World.answer_call, World.end_call, World.end_call,
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.integers(0, len(HAPPENS) - 1), st.sampled_from(IDS), st.integers(0, 9), st.integers(1, 4)),
    max_size=50,
)


@settings(max_examples=300)
@given(STEPS, st.sampled_from([10, 10, 2]))
@example([(12, "j0", 0, 1), (0, "j0", 0, 1)], 10)
@example([(12, "j1", 0, 1), (13, "j2", 0, 1), (0, "j2", 3, 1)], 2)
@example([(2, "j0", 6, 1), (0, "j0", 0, 1), (3, "j0", 0, 1), (5, "j0", 0, 1), (0, "j2", 7, 1), (7, "j2", 0, 1)], 2)
@example(
    [
        (0, "j1", 5, 2), (0, "j2", 7, 2), (12, "j2", 2, 4), (3, "j2", 5, 4), (3, "j2", 0, 4), (0, "j0", 5, 2),
        (5, "j2", 2, 4), (3, "j0", 0, 4), (5, "j1", 8, 1), (9, "j1", 5, 1), (10, "j1", 7, 2), (2, "j1", 8, 2),
        (13, "j2", 2, 2),
    ],
    2,
)  # fmt: skip
def test_whatever_happens_to_several_records_the_cache_keeps_own_writes_and_ends_with_the_truth(steps, most):
    world = World(most)
    for happens, id, op, count in steps:
        HAPPENS[happens](world, id, op, count)
        world.check()
    world.come_to_rest()
    world.check()
    world.check_truth()
