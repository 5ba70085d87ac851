"""The same models where writes are decided on guesses, most of them outdated; and two daemons that guess at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from statesvc.backends.port import Engine, Guess, Key, Result, Row, Unit
from statesvc.store.records import decode
from statesvc.store.store import PointWrite, Store
from statesvc.store.writes import Caller
from statesvc_client.errors import StateError
from statesvc_client.wire import Create, Delete, Get, Update
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.test_against_a_model import StoreMachine
from tests.store.test_the_queue_against_a_model import QueueMachine


class GuessingEngine(WeakEngine):
    """Guesses anything a record has ever been here, or that there is none. It heeds `basis`, as one that guesses has
    to."""

    def __init__(self, storage: WeakStorage) -> None:
        super().__init__(storage)
        self._was: dict[Key, list[Row]] = {}
        self.wrong = 0
        """Commits that were refused because their guess was wrong, and nothing else."""

    def guess(self, key: Key) -> Guess | None:
        chance = self.storage.chance
        was = self._was.get(key, [])
        if chance.random() < 0.2:
            return chance.choice([None, Guess(None)])
        return Guess(was[-1] if chance.random() < 0.5 else chance.choice(was)) if was else None

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        found = await super().get(keys)
        for row in found:
            self._note(row)
        return found

    def _attempt(self, unit: Unit) -> Result:
        stored = [self.storage.rows.get(write.row.key) for write in unit]
        for write, row in zip(unit, stored, strict=True):
            if write.basis is not None and write.basis != row:
                self.wrong += row is not None and write.expects == row.stamp
                return "conflict"
        result = super()._attempt(unit)
        for write in unit:
            self._note(self.storage.rows.get(write.row.key))
        return result

    def _note(self, row: Row | None) -> None:
        if row is not None:
            self._was.setdefault(row.key, []).append(row)


class StoreOnGuesses(StoreMachine):
    def make_engine(self) -> Engine:
        return GuessingEngine(WeakStorage(seed=1, unknown=0.2))


class QueueOnGuesses(QueueMachine):
    def make_engine(self) -> Engine:
        return GuessingEngine(WeakStorage(seed=3, unknown=0.2))


@pytest.mark.parametrize("machine", [StoreOnGuesses, QueueOnGuesses])
def test_what_is_decided_on_guesses_ends_where_the_model_ends(machine: type[RuleBasedStateMachine]):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


# --- two daemons -----------------------------------------------------------------------------------------------------

NAMES = ["a", "b"]


class Tally:
    """What was said of every increment: those of one life of a record add up to what it holds."""

    def __init__(self) -> None:
        self.told: dict[str, set[int]] = {}
        """Revisions that were acknowledged, by the life of the record."""
        self.maybe = 0

    def take(self, row: Row) -> None:
        told = self.told.setdefault(row.uid, set())
        assert row.revision not in told, "two writes were told the same revision"
        told.add(row.revision)


async def one_write(store: Store, request: PointWrite, tally: Tally) -> Row | None:
    """What was made, if it was said to be."""
    try:
        decided = await store.write(request, Caller(said_hello=True))
    except StateError as problem:
        tally.maybe += problem.outcome == "unknown"
        return None
    if decided.refused is not None:
        tally.maybe += decided.refused.outcome == "unknown"
        return None
    assert decided.row is not None
    tally.take(decided.row)
    return decided.row


def a_write(chance: random.Random) -> PointWrite:
    name = chance.choice(NAMES)
    kind = chance.random()
    if kind < 0.2:
        return Create(kind="kv", id=name, record={"count": 0})
    if kind < 0.3:
        return Delete(kind="kv", id=name)
    return Update(kind="kv", id=name, inc={"count": 1})


async def a_client(store: Store, tally: Tally, chance: random.Random) -> None:
    for _ in range(25):
        request = a_write(chance)
        if chance.random() < 0.5:
            await one_write(store, request, tally)
        else:
            # Sent together: the read stands behind the write.
            look = Get(kind="kv", id=request.id)
            made, seen = await asyncio.gather(one_write(store, request, tally), store.get(look))
            if made is not None and seen.row is not None and (made.id, made.uid) == (seen.row.id, seen.row.uid):
                assert seen.row.revision >= made.revision, "a read missed what its sender had written before"


@pytest.mark.parametrize("seed", range(6))
async def test_two_daemons_on_outdated_guesses_lose_nothing_and_do_nothing_twice(seed: int):
    storage = WeakStorage(seed=seed, unknown=0.1)
    engines = [GuessingEngine(storage) for _ in range(2)]
    stores = [Store(engine) for engine in engines]
    for store in stores:
        store.start()
    tally = Tally()
    async with asyncio.timeout(60):
        await asyncio.gather(*(a_client(stores[n % 2], tally, random.Random(100 * seed + n)) for n in range(6)))
    for store in stores:
        await store.stop()
    assert storage.problems() == []
    living = {row.uid: row for row in storage.rows.values() if not row.deleted}
    for uid, row in living.items():
        count = decode(row.body)["count"]
        assert count == row.revision - 1, "every revision but the first is one increment"
        missing = set(range(1, row.revision + 1)) - tally.told.get(uid, set())
        assert len(missing) <= tally.maybe, "what is stored was acknowledged, or nobody was told that it was not"
    assert sum(map(len, tally.told.values())) > 20


async def test_a_guess_of_the_right_stamp_and_another_row_is_a_lost_race():
    storage = WeakStorage(unknown=0.0)
    engine = GuessingEngine(storage)
    store = Store(engine)
    store.start()
    made = (await store.write(Create(kind="lock", record={"id": "l"}), Caller(said_hello=True))).row
    assert made is not None
    for token in range(1, 20):
        stored = storage.rows[made.key]
        storage.rows[made.key] = msgspec.structs.replace(stored, token=token)
        decided = await store.write(Update(kind="lock", id="l", record={"x": token}), Caller(said_hello=True))
        assert decided.row is not None
        assert decided.row.token == token, "a change nobody was told of is not undone"
    assert engine.wrong > 0
    await store.stop()
