"""Writes and reads that stand in one line while the commit ahead of them comes back: what the first of them decides
again counts for those behind, and a bug of ours still gives everybody an answer.

Owns the moment between a commit's settling and the next turn of the loop, into which requests are put by hand. Must not
know sockets. Every test here is there because nothing else noticed when what it holds was taken away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from statesvc.backends.port import Key, Result, Unit
from statesvc.store import racing
from statesvc.store.handing import hand_over
from statesvc.store.racing import Decided, Precedence
from statesvc.store.reads import Take
from statesvc.store.sequence import Turn
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import Unavailable
from statesvc_client.wire import Create, Get, Update
from tests.engines.weak import WeakEngine, WeakStorage

HERE = Caller(said_hello=True)
SECONDS = 30.0

Plan = Callable[[Unit], Result | None]
"""What is said of a unit; None leaves it to the engine. What is called unknown is applied, everything else is not."""


class Planned(WeakEngine):
    """Says of the units of its next commits what it is told to."""

    def __init__(self) -> None:
        super().__init__(WeakStorage(unknown=0.0))
        self.plans: deque[Plan] = deque()
        self.committed: list[list[str]] = []
        """The ids in each commit."""

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        self.committed.append([unit[0].row.id for unit in batch])
        plan = self.plans.popleft() if self.plans else lambda _: None
        results: list[Result] = []
        for unit in batch:
            said = plan(unit)
            if said is None or said == "unknown":
                (result,) = await super().commit([unit])
                results.append(said or result)
            else:
                results.append(said)
        return results


@pytest.fixture
async def engine() -> Planned:
    return Planned()


@pytest.fixture
async def store(engine: Planned) -> AsyncIterator[Store]:
    store = Store(engine)
    store.start()
    yield store
    await asyncio.wait_for(store.stop(), SECONDS)


def create(name: str, **record: object) -> Create:
    return Create(kind="kv", record={"id": name, **record})


def update(name: str, **record: object) -> Update:
    return Update(kind="kv", id=name, record=record)


def counted(name: str) -> Update:
    return Update(kind="kv", id=name, inc={"n": 1})


def of(name: str, said: Result) -> Plan:
    return lambda unit: said if unit[0].row.id == name else None


def body(made: Decided) -> dict[str, object]:
    assert made.row is not None
    return dict(msgspec.json.decode(made.row.body))


T = TypeVar("T")


async def answered(told: asyncio.Future[T]) -> T:
    """What a request comes to; no answer at all is a failure."""
    return await asyncio.wait_for(told, SECONDS)


def behind(
    store: Store, other: Update, then: Callable[[], asyncio.Future[Decided]]
) -> asyncio.Future[asyncio.Future[Decided]]:
    """`other` is written; `then` is called in the very moment that is told, and what it gives is handed on."""
    done: asyncio.Future[asyncio.Future[Decided]] = asyncio.get_running_loop().create_future()
    store.write_soon(other, HERE, lambda _: done.set_result(then()))
    return done


def soon(start: Callable[..., None], *given: object) -> asyncio.Future[Decided]:
    """Begin a request without a task of its own; its outcome comes in a future."""
    told: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
    start(*given, partial(hand_over, told))
    return told


async def test_what_another_was_committed_on_top_of_is_known_to_be_applied(engine: Planned, store: Store):
    """The record itself does not tell any more: it shows the second write, and neither was numbered."""
    await store.write(create("k", by="birth"), HERE)
    first_of_two = iter(["unknown", None])
    engine.plans.append(lambda _: next(first_of_two))  # type: ignore[arg-type]
    first, second = await asyncio.gather(
        store.write(update("k", by="first"), HERE), store.write(update("k", by="second"), HERE)
    )
    assert engine.committed[-1] == ["k", "k"]
    assert (first.refused, second.refused) == (None, None)
    assert (body(first)["revision"], body(first)["by"]) == (2, "first")
    assert (body(second)["revision"], body(second)["by"]) == (3, "second")


async def test_who_comes_behind_a_write_that_lost_its_race_is_committed_together_with_it(engine: Planned, store: Store):
    """It waits until the one ahead has decided again, and not until that is committed."""
    await store.write(create("k", n=0), HERE)
    await store.write(create("other"), HERE)
    before = len(engine.committed)
    engine.plans.append(of("k", "conflict"))
    losing = soon(store.write_soon, counted("k"), HERE)
    late = behind(store, update("other"), lambda: soon(store.write_soon, counted("k"), HERE))
    made = [await answered(losing), await answered(await answered(late))]
    assert [body(each)["n"] for each in made] == [1, 2]
    assert engine.committed[before:] == [["k", "other"], ["k", "k"]]


async def test_a_read_behind_a_write_that_is_about_to_decide_again_sees_what_that_comes_to(
    engine: Planned, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is pending at that moment, and all ahead have decided; still the write is not over."""
    await store.write(create("k", n=0), HERE)
    await store.write(create("other"), HERE)
    engine.plans.extend([of("k", "conflict"), of("k", "conflict")])
    reads_of_k = iter(["for the first attempt", "for the second"])
    looks: list[asyncio.Future[asyncio.Future[Decided]]] = []
    ask = store.reads.ask

    def asked(key: Key, take: Take, came: float | None = None) -> None:
        ask(key, take, came)
        if key == ("kv", "k") and next(reads_of_k, "") == "for the second":
            # Read and committed together with it, and told of that before it goes on.
            looks.append(behind(store, update("other"), lambda: soon(store.get_soon, Get(kind="kv", id="k"))))

    monkeypatch.setattr(store.reads, "ask", asked)
    written = await answered(soon(store.write_soon, counted("k"), HERE))
    seen = await answered(await answered(looks[0]))
    assert engine.committed[-3:] == [["k"], ["other", "k"], ["k"]]
    assert (body(written)["n"], body(seen)["n"]) == (1, 1)


# --- bugs of ours ----------------------------------------------------------------------------------------------------


class Bug(Exception):
    """Something nobody thought of."""


def broken(*_: object) -> None:
    raise Bug


async def test_a_bug_behind_a_commit_is_told_to_the_one_it_hit_and_the_next_is_served(
    engine: Planned, store: Store, monkeypatch: pytest.MonkeyPatch
):
    await store.write(create("k", n=0), HERE)
    with monkeypatch.context() as patch:
        patch.setattr(Turn, "applied", broken)
        hit = soon(store.write_soon, counted("k"), HERE)
        with pytest.raises(Bug):
            await answered(hit)
    assert body(await store.write(counted("k"), HERE))["n"] == 2


async def test_a_bug_behind_a_commit_that_failed_is_told_too(engine: Planned, store: Store):
    await store.write(create("k", n=0), HERE)

    def fails(_: Unit) -> Result:
        raise Unavailable("away")

    engine.plans.append(fails)
    precedence = Precedence(failed=broken)
    hit: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
    store.write_soon(counted("k"), HERE, partial(hand_over, hit), precedence=precedence)
    with pytest.raises(Bug):
        await answered(hit)
    assert body(await store.write(counted("k"), HERE))["n"] == 1


async def test_a_bug_behind_a_read_is_told_to_the_one_who_asked_and_the_next_is_served(
    engine: Planned, store: Store, monkeypatch: pytest.MonkeyPatch
):
    await store.write(create("k", n=0), HERE)
    with monkeypatch.context() as patch:
        patch.setattr(racing, "living", broken)
        with pytest.raises(Bug):
            await answered(soon(store.get_soon, Get(kind="kv", id="k")))
    assert body(await store.get(Get(kind="kv", id="k")))["n"] == 0
    assert body(await store.write(counted("k"), HERE))["n"] == 1
