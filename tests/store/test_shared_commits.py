"""Commits on shared engines: several at once, none built on what did not come about, writes to one record in line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from statesvc.backends.port import Key, Result, Row, Unit
from statesvc.store.batches import Batch, SharedCommit
from statesvc.store.patience import Patience
from statesvc.store.reads import MOST_KEYS, Reads
from statesvc.store.sequence import Sequence as Lines
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import Conflict, Exists, StateError, Unavailable
from statesvc_client.wire import Create, Update
from tests.engines.rows import after, born, row
from tests.engines.weak import WeakEngine, WeakStorage

HERE = Caller(said_hello=True)


class SlowEngine(WeakEngine):
    """Answers each commit when told to, with the results it is told."""

    def __init__(self, side_by_side: int) -> None:
        super().__init__()
        self.side_by_side = side_by_side
        self.asked: list[tuple[list[Unit], asyncio.Future[list[Result]]]] = []

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self.asked.append((list(batch), answer))
        return await answer

    async def until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            await asyncio.sleep(0)

    def names(self, place: int) -> list[str]:
        return [unit[0].row.id for unit in self.asked[place][0]]


def started(side_by_side: int) -> tuple[SlowEngine, SharedCommit]:
    engine = SlowEngine(side_by_side)
    commits = SharedCommit(engine, Patience(engine))
    commits.start()
    return engine, commits


async def quietly() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_commits_go_side_by_side_up_to_the_engines_bound():
    engine, commits = started(2)
    for name in "abc":
        commits.add(born(name))
        await quietly()
    assert [engine.names(place) for place in range(len(engine.asked))] == [["a"], ["b"]]
    engine.asked[0][1].set_result(["applied"])
    await engine.until_asked(3)
    assert engine.names(2) == ["c"]


async def test_what_is_decided_on_a_pending_row_waits_for_it_and_others_do_not():
    engine, commits = started(4)
    commits.add(born("a"))
    await engine.until_asked(1)
    commits.add((after(row("a")),))
    commits.add(born("b"))
    await engine.until_asked(2)
    await quietly()
    assert [engine.names(place) for place in range(len(engine.asked))] == [["a"], ["b"]]
    engine.asked[0][1].set_result(["applied"])
    await engine.until_asked(3)
    assert engine.names(2) == ["a"]


@pytest.mark.parametrize("result", ["conflict", "unknown", Conflict("too large")])
async def test_what_was_decided_on_a_row_that_did_not_come_about_is_not_tried(result: Result):
    engine, commits = started(4)
    commits.add(born("a"))
    await engine.until_asked(1)
    second = after(row("a"))
    held = commits.add((second,))
    assert commits.add((after(second.row),)) is held
    commits.add((*born("b"), *born("c")))
    engine.asked[0][1].set_result([result])
    await engine.until_asked(2)
    engine.asked[1][1].set_result(["applied"] * len(engine.asked[1][0]))
    await engine.until_asked(3)
    assert {tuple(engine.names(place)) for place in (1, 2)} == {("b",), ()}
    engine.asked[2][1].set_result(["applied"] * len(engine.asked[2][0]))
    await held.wait()
    assert held.results == ["conflict", "conflict"]


async def test_a_failed_commit_takes_what_waits_behind_it_where_commits_have_an_order():
    engine, commits = started(1)
    first = commits.add(born("a"))
    await engine.until_asked(1)
    second, third = commits.add(born("b")), commits.add((after(row("a")),))
    engine.asked[0][1].set_exception(Unavailable("away", outcome="unknown"))
    for batch in (first, second, third):
        await batch.wait()
    assert [_outcome(batch) for batch in (first, second, third)] == ["unknown", "not_applied", "not_applied"]
    assert all(commits.pending(("job", name)) is None for name in "ab")


async def test_a_failed_commit_leaves_the_others_alone_where_they_go_side_by_side():
    engine, commits = started(2)
    first = commits.add(born("a"))
    await engine.until_asked(1)
    second = commits.add(born("b"))
    await engine.until_asked(2)
    engine.asked[0][1].set_exception(Unavailable("away"))
    engine.asked[1][1].set_result(["applied"])
    await first.wait()
    await second.wait()
    assert (_outcome(first), second.results) == ("not_applied", ["applied"])


async def test_stopping_waits_for_everything_that_was_handed_over():
    engine, commits = started(2)
    batches = [commits.add(born("a"))]
    await engine.until_asked(1)
    batches.append(commits.add((after(row("a")),)))
    stopping = asyncio.create_task(commits.stop())
    engine.asked[0][1].set_result(["applied"])
    await engine.until_asked(2)
    assert not stopping.done()
    engine.asked[1][1].set_result(["applied"])
    await stopping
    assert [batch.results for batch in batches] == [["applied"], ["applied"]]


def _outcome(batch: Batch) -> str | None:
    return None if batch.failure is None else batch.failure.outcome


# --- reads -----------------------------------------------------------------------------------------------------------


class CountingEngine(WeakEngine):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.fails: StateError | None = None

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        self.calls.append(len(keys))
        if self.fails is not None:
            raise self.fails
        return [row(name) for _, name in keys]


async def test_reads_of_one_turn_are_one_call_and_each_gets_its_own():
    engine = CountingEngine()
    reads = Reads(engine, Patience(engine))
    found = await asyncio.gather(*(reads.get(("job", name)) for name in ("a", "b", "a")))
    assert [each.id for each in found if each] == ["a", "b", "a"]
    assert engine.calls == [2]


async def test_a_call_reads_no_more_than_its_bound():
    engine = CountingEngine()
    reads = Reads(engine, Patience(engine))
    await asyncio.gather(*(reads.get(("job", str(number))) for number in range(MOST_KEYS + 1)))
    assert sorted(engine.calls) == [1, MOST_KEYS]


async def test_a_reader_that_gives_up_does_not_take_the_row_from_others():
    engine = CountingEngine()
    reads = Reads(engine, Patience(engine))
    leaving, staying = (asyncio.create_task(reads.get(("job", "a"))) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    found = await staying
    assert found is not None
    assert found.id == "a"


async def test_everybody_who_reads_hears_that_the_engine_is_away():
    engine = CountingEngine()
    engine.fails = Unavailable("away")
    reads = Reads(engine, Patience(engine))
    heard = await asyncio.gather(*(reads.get(("job", name)) for name in "ab"), return_exceptions=True)
    assert [type(each) for each in heard] == [Unavailable, Unavailable]


async def test_those_who_do_not_wait_are_handed_the_row_or_why_there_is_none():
    engine = CountingEngine()
    reads = Reads(engine, Patience(engine))
    handed: list[tuple[str | None, StateError | None]] = []

    def take(found: Row | None, problem: StateError | None) -> None:
        handed.append((None if found is None else found.id, problem))

    reads.ask(("job", "a"), take)
    reads.ask(("job", "a"), take)
    await quietly()
    engine.fails = Unavailable("away")
    reads.ask(("job", "b"), take)
    await quietly()
    assert handed == [("a", None), ("a", None), (None, engine.fails)]
    assert engine.calls == [1, 1]


async def test_one_who_cannot_take_its_row_keeps_it_from_nobody():
    engine = CountingEngine()
    reads = Reads(engine, Patience(engine))
    handed: list[str] = []

    def broken(_: Row | None, __: StateError | None) -> None:
        raise ValueError("a bug")

    def take(found: Row | None, _: StateError | None) -> None:
        handed.append("" if found is None else found.id)

    for each in (take, broken, take):
        reads.ask(("job", "a"), each)
    reads.ask(("job", "b"), take)
    await quietly()
    assert handed == ["a", "a", "b"]


# --- what is decided without a look ----------------------------------------------------------------------------------


class Losing(WeakEngine):
    """Loses the answer to the next commit, whatever became of it."""

    loses = False

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        results = await super().commit(batch)
        if not self.loses:
            return results
        self.loses = False
        return ["unknown"] * len(results)


async def test_a_record_that_was_there_before_is_no_doubt_about_one_that_was_not_made():
    engine = Losing(WeakStorage(unknown=0.0))
    store = Store(engine)
    store.start()
    create = Create(kind="kv", record={"id": "k"})
    assert (await store.write(create, HERE)).row is not None
    engine.loses = True
    answer = await store.write(create, HERE)
    assert isinstance(answer.refused, Exists)
    assert answer.refused.outcome == "not_applied"
    await store.stop()


async def test_a_create_whose_answer_was_lost_is_found_and_not_made_twice():
    engine = Losing(WeakStorage(unknown=0.0))
    store = Store(engine)
    store.start()
    engine.loses = True
    answer = await store.write(Create(kind="kv", record={"id": "k"}), HERE)
    assert answer.row is not None
    assert await store.read(("kv", "k")) == answer.row
    assert answer.row.revision == 1
    await store.stop()


async def test_writes_to_one_record_sent_together_come_one_after_the_other():
    store = Store(WeakEngine(WeakStorage(unknown=0.0)))
    store.start()
    create = store.write(Create(kind="kv", record={"id": "k", "count": 0}), HERE)
    updates = [store.write(Update(kind="kv", id="k", inc={"count": 1}), HERE) for _ in range(50)]
    made = await asyncio.gather(create, *updates)
    assert [each.row and each.row.revision for each in made] == list(range(1, 52))
    await store.stop()


# --- the line of one record ------------------------------------------------------------------------------------------

KEY: Key = ("job", "a")


async def test_a_write_decides_when_all_ahead_have_and_again_only_when_it_is_first():
    lines = Lines()
    first, second = lines.enter(KEY, "c"), lines.enter(KEY, "c")
    mine = asyncio.create_task(second.mine())
    await quietly()
    assert not mine.done()
    first.decided()
    await mine
    again = asyncio.create_task(second.first())
    await quietly()
    assert not again.done()
    with first:
        pass
    await again


async def test_whoever_does_not_wait_goes_on_at_once_or_when_all_ahead_have_decided():
    lines = Lines()
    first, second = lines.enter(KEY, "c"), lines.enter(KEY, "c")
    gone_on: list[str] = []
    first.when_mine(lambda: gone_on.append("first"))
    second.when_mine(lambda: gone_on.append("second"))
    await quietly()
    assert gone_on == ["first"]
    first.decided()
    await quietly()
    assert gone_on == ["first", "second"]


async def test_a_failed_write_holds_back_its_own_client_and_nobody_else():
    lines = Lines()
    first, own, other = lines.enter(KEY, "c"), lines.enter(KEY, "c"), lines.enter(KEY, "d")
    with pytest.raises(Unavailable), first:
        raise Unavailable("away")
    with pytest.raises(Unavailable, match="an earlier write to the record failed"):
        await own.mine()
    own.decided()
    await other.mine()


async def test_a_refused_write_holds_nobody_back():
    lines = Lines()
    first, own = lines.enter(KEY, "c"), lines.enter(KEY, "c")
    with pytest.raises(Conflict), first:
        raise Conflict("stale")
    await own.mine()


async def test_what_was_built_on_and_committed_was_committed_itself():
    lines = Lines()
    first, second, third = (lines.enter(KEY, "c") for _ in range(3))
    one, two = row("a"), row("a", revision=2)
    first.decided(one)
    second.decided(two, foundation=one)
    third.applied(two)
    assert (first.stood, second.stood) == (one, two)


async def test_a_row_that_was_given_up_is_nobodys():
    lines = Lines()
    first, second = (lines.enter(KEY, "c") for _ in range(2))
    one, two = row("a"), row("a", revision=2)
    first.decided(one)
    first.decided(two)
    second.applied(one)
    assert first.stood is None
    second.applied(two)
    assert first.stood is two


async def test_a_read_sees_what_came_before_and_holds_back_only_its_own_senders_writes():
    lines = Lines()
    before = lines.enter(KEY, "c")
    reader = lines.enter(KEY, sender="me", reads=True)
    mine, others = lines.enter(KEY, "c", "me"), lines.enter(KEY, "d", "you")
    looking = asyncio.create_task(reader.mine())
    await quietly()
    assert not looking.done()
    before.decided()
    await looking
    waiting = asyncio.create_task(mine.mine())
    await quietly()
    assert not waiting.done()
    reader.decided()
    await waiting
    mine.decided()
    await others.mine()


async def test_a_read_holds_back_no_other_read():
    lines = Lines()
    lines.enter(KEY, sender="me", reads=True)
    await lines.enter(KEY, sender="me", reads=True).mine()
