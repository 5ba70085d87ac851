"""A commit of unknown fate that another daemon was faster to build on: never written twice, never said to be what it is
not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from statesvc.backends.port import Result, Unit
from statesvc.store.racing import Decided
from statesvc.store.store import Store
from statesvc.store.transactions import transact
from statesvc.store.writes import Caller
from statesvc_client.errors import Internal
from statesvc_client.wire import Create, Delete, Txn, Update
from tests.engines.weak import WeakEngine, WeakStorage

HERE, THERE = Caller(said_hello=True), Caller(said_hello=True, client="there")
NUMBERED = Caller(said_hello=True, client="here")


class Doubtful(WeakEngine):
    """Applies one commit and says that it does not know; something happens before it says so."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        results = await super().commit(batch)
        if self.meanwhile is None:
            return results
        happens, self.meanwhile = self.meanwhile, None
        await happens()
        return ["unknown"] * len(results)


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Doubtful, Store, Store]]:
    storage = WeakStorage(unknown=0.0)
    engine = Doubtful(storage)
    here, there = Store(engine), Store(WeakEngine(storage))
    for store in (here, there):
        store.start()
    yield engine, here, there
    for store in (here, there):
        await store.stop()


def create(**record: object) -> Create:
    return Create(kind="kv", record={"id": "k", **record})


def update(**record: object) -> Update:
    return Update(kind="kv", id="k", record=record)


async def test_a_create_that_was_deleted_since_is_not_made_again(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    engine.meanwhile = lambda: there.write(Delete(kind="kv", id="k"), THERE)
    answer = await here.write(create(), HERE)
    assert isinstance(answer.refused, Internal)
    assert answer.refused.outcome == "unknown"
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert stored.deleted


async def test_an_update_does_not_undo_what_came_after_it(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(by="there"), THERE)
    answer = await here.write(update(by="here"), HERE)
    assert isinstance(answer.refused, Internal)
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert (stored.revision, msgspec.json.decode(stored.body)["by"]) == (3, "there")


async def test_an_update_nobody_built_on_is_recognised(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.read(("kv", "k"))
    answer = await here.write(update(by="here"), HERE)
    assert answer.row is not None
    assert answer.row.revision == 2


async def test_a_numbered_write_is_known_by_its_mark_and_tells_its_own_revision(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(also="there"), THERE)
    answer = await here.write(msgspec.structs.replace(update(by="here"), seq=1), NUMBERED)
    assert answer.duplicate_of == 2
    assert answer.refused is None


async def test_a_numbered_write_that_stands_is_answered_with_its_record(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.read(("kv", "k"))
    answer = await here.write(msgspec.structs.replace(update(by="here"), seq=1), NUMBERED)
    assert _revision(answer) == 2
    assert answer.duplicate_of is None


async def test_a_transaction_does_not_undo_what_came_after_it(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(by="there"), THERE)
    with pytest.raises(Internal) as raised:
        await transact(here, Txn(ops=[]), [update(by="here")], HERE)
    assert raised.value.outcome == "unknown"
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert stored.revision == 3


def _revision(answer: Decided) -> int | None:
    return None if answer.row is None else answer.row.revision
