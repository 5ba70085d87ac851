"""A request waits as long as one call may take while the engine says nothing, however many are before it, and as long
as it takes while the engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec
import pytest

from statesvc.backends.port import Guess, Key, Query, Result, Row, Unit
from statesvc.store.claims import Claims
from statesvc.store.handing import hand_over
from statesvc.store.listing import list_records
from statesvc.store.patience import AT_ONCE_SECONDS
from statesvc.store.racing import Decided
from statesvc.store.store import LONG_LISTS, Store
from statesvc.store.writes import Caller
from statesvc_client.errors import StateError, Unavailable
from statesvc_client.wire import Claim, Create, Get, List, Renew, Update
from tests.engines.weak import WeakEngine, WeakStorage

HERE = Caller(said_hello=True)
SECONDS = 1000.0
"""What a call may take. It never does here: the time of the requests is moved on by hand."""


class Hung(WeakEngine):
    """Answers when it is told to. What it calls unknown it has not applied."""

    timeout_seconds = SECONDS

    def __init__(self) -> None:
        super().__init__(WeakStorage(unknown=0.0))
        self.hangs = False
        self.commits: list[tuple[float, asyncio.Future[str]]] = []
        """What each commit had left, and what is to become of it."""
        self.reads: list[asyncio.Future[None]] = []
        self.queries: list[asyncio.Future[None]] = []

    async def commit_within(self, batch: Sequence[Unit], seconds: float) -> list[Result]:
        if self.hangs:
            self.commits.append((seconds, asyncio.get_running_loop().create_future()))
            if await self.commits[-1][1] == "unknown":
                return ["unknown"] * len(batch)
        return await super().commit(batch)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        if self.hangs:
            self.reads.append(asyncio.get_running_loop().create_future())
            await self.reads[-1]
        return await super().get(keys)

    async def query(self, query: Query) -> list[Row]:
        if self.hangs:
            self.queries.append(asyncio.get_running_loop().create_future())
            await self.queries[-1]
        return await super().query(query)


class Scene:
    """A store on such an engine, and its requests. All that can happen has happened between two steps."""

    def __init__(self, engine: Hung, store: Store) -> None:
        self.engine = engine
        self.store = store
        self._clock = store.patience.now
        self._now = self._clock()
        store.patience.now = lambda: self._now  # type: ignore[method-assign]

    def of_its_own(self) -> None:
        """Let the time pass by itself."""
        self.store.patience.now = self._clock  # type: ignore[method-assign]

    async def later(self, seconds: float) -> None:
        self._now += seconds
        await quietly()

    async def get(self, name: str) -> asyncio.Future[Decided]:
        told = self._to_be_told()
        self.store.get_soon(Get(kind="kv", id=name), partial(hand_over, told))
        await quietly()
        return told

    async def update(self, name: str, *, to: int) -> asyncio.Future[Decided]:
        told = self._to_be_told()
        request = Update(kind="kv", id=name, record={"n": to})
        self.store.write_soon(request, HERE, partial(hand_over, told))
        await quietly()
        return told

    def _to_be_told(self) -> asyncio.Future[Decided]:
        told: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        told.add_done_callback(asyncio.Future.exception)  # not every test wants to know
        return told

    async def commits(self, place: int, fate: str) -> None:
        self.engine.commits[place][1].set_result(fate)
        await quietly()

    async def reads(self, place: int) -> None:
        self.engine.reads[place].set_result(None)
        await quietly()


async def quietly() -> None:
    """Let everything run that can."""
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    engine = Hung()
    store = Store(engine)
    store.start()
    for name in ("k", "other"):
        await store.write(Create(kind="kv", record={"id": name, "n": 0}), HERE)
    engine.hangs = True
    yield Scene(engine, store)
    engine.hangs = False
    for _, fate in engine.commits:
        hand_over(fate, "unknown")
    for read in (*engine.reads, *engine.queries):
        hand_over(read, None)
    await store.stop()


def refusal(told: asyncio.Future[Decided]) -> tuple[type[BaseException], str]:
    assert told.done(), "it waits still"
    problem = told.exception()
    assert isinstance(problem, StateError)
    return type(problem), str(problem.outcome)


async def under_way(scene: Scene, name: str) -> asyncio.Future[Decided]:
    """A write whose commit was handed over at the time the clock shows, and the engine silent since."""
    written = await scene.update(name, to=1)
    await scene.reads(len(scene.engine.reads) - 1)
    return written


async def test_who_waits_in_line_is_told_when_its_own_time_is_over(scene: Scene):
    first = await under_way(scene, "k")
    behind, seen = await scene.update("k", to=2), await scene.get("k")
    await scene.later(SECONDS)
    await scene.commits(0, "unknown")
    assert refusal(first) == (Unavailable, "unknown")
    assert refusal(behind) == (Unavailable, "not_applied")
    assert refusal(seen)[0] is Unavailable
    assert len(scene.engine.commits) == 1, "what was said not to be applied was sent"


async def test_a_read_waits_no_longer_for_a_write_ahead_than_for_the_engine(scene: Scene):
    """What became of the write may take longer to find out than the read has time."""
    first = await under_way(scene, "k")
    scene.engine.timeout_seconds = 0.01
    seen = await scene.get("k")
    scene.of_its_own()
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await seen
    assert not first.done()


async def test_a_read_that_was_asked_for_late_is_waited_for_only_as_long_as_is_left(scene: Scene):
    first = await scene.update("k", to=1)
    behind = await scene.update("k", to=2)
    await scene.later(SECONDS)
    scene.engine.reads[0].set_exception(Unavailable("away"))
    await quietly()
    assert refusal(first) == (Unavailable, "not_applied")
    assert refusal(behind) == (Unavailable, "not_applied")


async def test_a_commit_has_what_is_left_to_the_one_who_waits_for_it_the_longest(scene: Scene):
    await under_way(scene, "k")
    await under_way(scene, "other")
    await scene.later(SECONDS - 1)
    await scene.commits(0, "unknown")
    assert [left for left, _ in scene.engine.commits] == pytest.approx([SECONDS, 1])


async def test_what_was_waited_in_line_comes_off_the_time_of_the_commit(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    await scene.update("k", to=1)
    await scene.update("k", to=2)
    await scene.later(SECONDS - 1)
    [stored] = await WeakEngine.get(scene.engine, [("kv", "k")])
    monkeypatch.setattr(scene.engine, "guess", lambda _: Guess(stored))
    scene.engine.reads[0].set_exception(Unavailable("away"))
    await quietly()
    assert [left for left, _ in scene.engine.commits] == pytest.approx([1])


async def test_a_line_that_moves_is_waited_in_for_as_long_as_it_takes(scene: Scene):
    first = await under_way(scene, "k")
    second = await scene.update("k", to=2)
    await scene.later(SECONDS - 1)
    await scene.commits(0, "applied")
    third = await scene.update("k", to=3)
    await scene.later(SECONDS - 1)
    await scene.commits(1, "applied")
    assert scene.engine.commits[2][0] == pytest.approx(SECONDS)
    await scene.later(SECONDS - 1)
    await scene.commits(2, "applied")
    revisions = [decided.row.revision for told in (first, second, third) if (decided := told.result()).row]
    assert revisions == [2, 3, 4]


async def test_a_renewal_whose_commit_was_not_answered_is_unknown(scene: Scene):
    scene.engine.hangs = False
    claimed = await Claims(scene.store).claim(Claim(kind="lock", id="l", holder="me", ttl=60), HERE, set())
    scene.engine.hangs = True
    lease = msgspec.json.decode(claimed.rows[0].body)["lease"]
    renewing = asyncio.ensure_future(scene.store.renew(Renew(kind="lock", id="l", token=lease["token"])))
    await quietly()
    while scene.engine.reads and not scene.engine.commits:
        await scene.reads(len(scene.engine.reads) - 1)
    await scene.later(SECONDS)
    await scene.commits(0, "unknown")
    with pytest.raises(Unavailable) as told:
        await asyncio.wait_for(renewing, 30)
    assert told.value.outcome == "unknown"


async def test_a_commit_is_not_sent_with_hardly_any_time_left(scene: Scene):
    first, other = await under_way(scene, "k"), await under_way(scene, "other")
    await scene.later(SECONDS - AT_ONCE_SECONDS / 2)
    await scene.commits(0, "unknown")
    assert not first.done() or refusal(first) == (Unavailable, "unknown")
    assert refusal(other) == (Unavailable, "not_applied")
    assert len(scene.engine.commits) == 1


async def test_a_long_list_waits_no_longer_for_its_place_among_others_than_for_the_engine(scene: Scene):
    """Only so many are gathered at once; a fleet of agents may ask for theirs while none of them is answered."""
    before = [asyncio.ensure_future(list_records(scene.store, List(), Caller())) for _ in range(LONG_LISTS)]
    await quietly()
    scene.engine.timeout_seconds = 0.01
    scene.of_its_own()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(list_records(scene.store, List(), Caller()), 30)
    assert not any(each.done() for each in before)
    for each in before:
        each.cancel()
    await asyncio.wait(before)
    scene.engine.hangs = False
    assert await asyncio.wait_for(list_records(scene.store, List(), Caller()), 30), "their places are free again"


async def test_who_stands_in_line_keeps_its_place_however_often_its_time_counts_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """The clock of the requests stands still here: whenever the loop's says that a call should be over it is not."""
    patience, left = scene.store.patience, scene.store.patience.left
    scene.engine.timeout_seconds = 0.001
    looks = asked = 0
    over = asyncio.Event()

    def looked(came: float) -> float:
        nonlocal looks
        looks += 1
        return left(came)

    async def happens() -> None:
        nonlocal asked
        asked += 1
        await over.wait()

    monkeypatch.setattr(patience, "left", looked)
    waiting = asyncio.ensure_future(patience.wait(patience.now(), happens))
    while looks < 5:
        await asyncio.sleep(0)
    over.set()
    await asyncio.wait_for(waiting, 30)
    assert asked == 1


async def test_a_long_list_waits_for_its_place_as_long_as_it_takes_while_others_are_answered(scene: Scene):
    """Each of those before it may take as long as one call may, again and again."""
    listed = [asyncio.ensure_future(list_records(scene.store, List(), Caller())) for _ in range(LONG_LISTS + 1)]
    await quietly()
    answered = 0
    while not all(each.done() for each in listed[:LONG_LISTS]):
        await scene.later(SECONDS - 1)
        for query in scene.engine.queries[answered:]:
            query.set_result(None)
            answered += 1
        await quietly()
    left = scene.store.patience.left(scene.store.patience.now() - 10 * SECONDS)
    assert left == pytest.approx(SECONDS)
    scene.engine.hangs = False
    for query in scene.engine.queries[answered:]:
        query.set_result(None)
    assert await asyncio.wait_for(listed[-1], 30)
