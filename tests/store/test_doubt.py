"""A commit of unknown fate that another daemon was faster to build on: never written twice, never said to be what it is
not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from statesvc.backends.port import Key, Result, Row, Unit, Write
from statesvc.store.allocation import Pools
from statesvc.store.checking import check
from statesvc.store.claims import Claims
from statesvc.store.leasing import is_leased
from statesvc.store.racing import Decided
from statesvc.store.store import Store
from statesvc.store.syncing import sync
from statesvc.store.transactions import transact
from statesvc.store.writes import Caller
from statesvc_client.errors import Exists, Internal, NotFound, Unavailable
from statesvc_client.wire import Cancel, Claim, Create, Delete, Get, Renew, Scope, Sync, Txn, Update
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


def claim(**more: Any) -> Claim:
    return Claim(kind="lock", id="k", holder="me", ttl=30.0, **more)


async def test_a_claim_that_others_built_on_is_not_made_again(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(Create(kind="lock", record={"id": "k"}), HERE)
    engine.meanwhile = lambda: there.write(Update(kind="lock", id="k", record={"by": "there"}), THERE)
    with pytest.raises(Internal) as raised:
        await Claims(here).claim(claim(), HERE, set())
    assert raised.value.outcome == "unknown"
    stored = await there.read(("lock", "k"))
    assert stored is not None
    assert (stored.revision, stored.token) == (3, 1)


async def test_a_claim_that_was_taken_away_since_is_not_made_again(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores

    async def made_anew() -> None:
        await there.write(Delete(kind="lock", id="k"), THERE)
        await there.write(Create(kind="lock", record={"id": "k"}), THERE)

    engine.meanwhile = made_anew
    with pytest.raises(Internal) as raised:
        await Claims(here).claim(claim(), HERE, set())
    assert raised.value.outcome == "unknown"
    stored = await there.read(("lock", "k"))
    assert stored is not None
    assert not is_leased(stored)


async def test_a_claim_whose_record_others_took_meanwhile_is_not_said_to_have_got_nothing(
    stores: tuple[Doubtful, Store, Store],
):
    """It had it, and lost it: who holds it now is another."""
    engine, here, there = stores

    async def taken_by_another() -> None:
        await there.write(Delete(kind="lock", id="k"), THERE)
        assert (await Claims(there).claim(claim(), THERE, set())).rows

    engine.meanwhile = taken_by_another
    with pytest.raises(Internal) as raised:
        await Claims(here).claim(claim(), HERE, set())
    assert raised.value.outcome == "unknown"


async def test_a_claim_that_another_was_faster_than_is_known_not_to_have_happened(
    stores: tuple[Doubtful, Store, Store],
):
    engine, here, there = stores
    await here.write(Create(kind="lock", record={"id": "k"}), HERE)

    async def too_late(batch: Sequence[Unit]) -> list[Result]:
        del engine.commit  # once
        assert (await Claims(there).claim(claim(), THERE, set())).rows
        return ["unknown"] * len(batch)

    engine.commit = too_late  # type: ignore[method-assign]
    assert (await Claims(here).claim(claim(), HERE, set())).rows == []


async def test_a_numbered_claim_that_was_sent_again_elsewhere_and_renewed_there_is_still_the_same(
    stores: tuple[Doubtful, Store, Store],
):
    """A renewal leaves the revision as it is: the record is not what was written, and is nobody else's."""
    engine, here, there = stores
    for name in ("a", "b"):
        await here.write(Create(kind="job", record={"uuid": name, "status": "QUEUED"}), HERE)
    engine.storage.catch_up()
    numbered = Claim(kind="job", holder="me", ttl=30.0, seq=5, floor=1)
    kept: list[Row] = []

    async def renewed_elsewhere() -> None:
        engine.storage.catch_up()
        again = await Claims(there).claim(msgspec.structs.replace(numbered, again=True), NUMBERED, set())
        assert again.duplicate
        (row,) = again.rows
        renewed, _ = await there.renew(Renew(kind="job", id=row.id, token=row.token, ttl=60.0))
        kept.append(renewed.row)

    engine.meanwhile = renewed_elsewhere
    assert (await Claims(here).claim(numbered, NUMBERED, set())).rows == kept
    assert sum(is_leased(row) for row in await there.look([("job", "a"), ("job", "b")]) if row is not None) == 1


def lose_one_commit(engine: Doubtful) -> None:
    """The next is not applied, and nobody knows."""

    async def lost(batch: Sequence[Unit]) -> list[Result]:
        del engine.commit  # once
        return ["unknown"] * len(batch)

    engine.commit = lost  # type: ignore[method-assign]


async def test_a_claim_that_was_not_applied_after_all_is_tried_again(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    lose_one_commit(engine)
    (row,) = (await Claims(here).claim(claim(), HERE, set())).rows
    assert row.token == 1
    assert await there.read(("lock", "k")) == row


async def test_a_repair_of_a_leased_record_that_was_not_applied_is_not_said_to_be(
    stores: tuple[Doubtful, Store, Store],
):
    """It leaves the revision and the lease as they are: that they are there says nothing about it."""
    engine, here, there = stores
    (row,) = (await Claims(here).claim(claim(), HERE, set())).rows
    misindexed = msgspec.structs.replace(row, keys=msgspec.structs.replace(row.keys, node="elsewhere"))
    assert await engine.commit([(Write(misindexed, row.stamp, None),)]) == ["applied"]
    lose_one_commit(engine)
    found = await check(here, lambda done, total: None, lambda: None, repair=True)
    assert len(found.repaired) == 1
    assert await there.read(row.key) == row


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


def kv_sync(**record: object) -> Sync:
    """One that reads first: it does not count on the record being new."""
    return Sync(kind="kv", records=[{"id": "k", **record}], again=True)


async def overtaken(answer: Awaitable[object]) -> None:
    with pytest.raises(Internal, match="may have been applied") as raised:
        await answer
    assert raised.value.outcome == "unknown"


async def test_a_sync_does_not_undo_what_came_after_it(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(by="there"), THERE)
    await overtaken(sync(here, kv_sync(by="here"), HERE))
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert (stored.revision, msgspec.json.decode(stored.body)["by"]) == (3, "there")


async def test_a_sync_whose_record_was_deleted_since_is_not_said_to_be_refused(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    engine.meanwhile = lambda: there.write(Delete(kind="kv", id="k"), THERE)
    await overtaken(sync(here, kv_sync(by="here"), HERE))


async def test_a_sync_whose_fields_others_left_as_they_are_has_nothing_left_to_do(
    stores: tuple[Doubtful, Store, Store],
):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(also="there"), THERE)
    assert (await sync(here, kv_sync(by="here"), HERE)).unchanged == 1
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert stored.revision == 3


async def test_a_sync_that_took_a_record_for_new_goes_on_once_it_meets_the_older_one(
    stores: tuple[Doubtful, Store, Store],
):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(by="there"), THERE)
    assert (await sync(here, msgspec.structs.replace(kv_sync(by="here"), again=False), HERE)).applied == 1
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert (stored.revision, msgspec.json.decode(stored.body)["by"]) == (3, "here")


async def test_a_sync_that_was_not_applied_after_all_is_tried_again(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    lose_one_commit(engine)
    assert (await sync(here, kv_sync(by="here"), HERE)).applied == 1
    assert await there.read(("kv", "k")) is not None


async def test_a_numbered_sync_is_known_by_its_mark_and_undoes_nothing(stores: tuple[Doubtful, Store, Store]):
    engine, here, there = stores
    await here.write(create(by="birth"), HERE)
    engine.meanwhile = lambda: there.write(update(by="there"), THERE)
    assert (await sync(here, msgspec.structs.replace(kv_sync(by="here"), seq=1), NUMBERED)).unchanged == 1
    stored = await there.read(("kv", "k"))
    assert stored is not None
    assert stored.revision == 3


def _revision(answer: Decided) -> int | None:
    return None if answer.row is None else answer.row.revision


# --- what can be read and is not safe yet ----------------------------------------------------------------------------


class Unsafe(NamedTuple):
    """A store on which nothing that is only read can be shown to be safe; how often that was asked for."""

    store: Store
    asked: list[None]


@pytest.fixture
async def unsafe(stores: tuple[Doubtful, Store, Store]) -> Unsafe:
    engine, here, _ = stores
    asked: list[None] = []

    async def assure(read_from: int | None = None) -> None:
        asked.append(None)
        raise Unavailable("0 of 1 replicas had it", outcome="unknown")

    engine.assure = assure  # type: ignore[method-assign]
    return Unsafe(here, asked)


async def fails_as_unknown(answer: Awaitable[object]) -> None:
    with pytest.raises(Unavailable) as raised:
        await answer
    assert raised.value.outcome == "unknown"


def job_sync(*names: str, **more: Any) -> Sync:
    return Sync(kind="job", records=[{"uuid": name, "status": "QUEUED", "nodeId": "n"} for name in names], **more)


async def test_a_sync_that_finds_everything_done_is_answered_once_that_is_safe(unsafe: Unsafe):
    assert (await sync(unsafe.store, job_sync("a", "b"), HERE)).applied == 2
    assert not unsafe.asked
    await fails_as_unknown(sync(unsafe.store, job_sync("a", "b"), HERE))
    assert len(unsafe.asked) == 1, "once for all records"


async def test_a_numbered_sync_that_finds_its_marks_is_answered_once_that_is_safe(unsafe: Unsafe):
    numbered = job_sync("a", "b", seq=1, floor=1)
    assert (await sync(unsafe.store, numbered, NUMBERED)).applied == 2
    await fails_as_unknown(sync(unsafe.store, msgspec.structs.replace(numbered, again=True), NUMBERED))


async def test_a_replace_whose_burials_are_done_is_answered_once_that_is_safe(
    stores: tuple[Doubtful, Store, Store], unsafe: Unsafe
):
    """What is gone already is not met again: that it is gone is what is answered."""
    _, here, there = stores
    await sync(here, job_sync("a", "b"), HERE)
    await there.write(Delete(kind="job", id="b"), THERE)
    replacing = Sync(kind="job", records=[{"uuid": "a", "status": "RUNNING"}], mode="replace", scope=Scope(node_id="n"))
    await fails_as_unknown(sync(here, replacing, HERE))


async def test_a_write_that_finds_nothing_to_do_is_answered_once_that_is_safe(unsafe: Unsafe):
    await sync(unsafe.store, job_sync("a"), HERE)
    assert (await unsafe.store.write(Cancel(kind="job", id="a"), HERE)).row is not None
    assert not unsafe.asked
    await fails_as_unknown(unsafe.store.write(Cancel(kind="job", id="a"), HERE))


async def test_a_refusal_does_not_wait_for_what_it_was_read_off(unsafe: Unsafe):
    await unsafe.store.write(create(), HERE)
    assert isinstance((await unsafe.store.write(create(), HERE)).refused, Exists)
    assert not unsafe.asked


async def test_an_address_that_was_given_out_after_all_is_told_once_that_is_safe(
    stores: tuple[Doubtful, Store, Store], unsafe: Unsafe
):
    engine, here, there = stores
    await here.write(Create(kind="network", record={"id": "net", "cidr": "10.0.0.0/29"}), HERE)
    engine.meanwhile = lambda: there.write(Update(kind="ip", id="net/10.0.0.1", record={"note": "there"}), THERE)
    await fails_as_unknown(Pools(here).allocate(Create(kind="ip", from_="net", record={}), HERE))
    assert unsafe.asked


@pytest.fixture
async def failing_over(stores: tuple[Doubtful, Store, Store]) -> Store:
    """A store whose server is another one after each read; what was read from one the next cannot assure."""
    engine, here, _ = stores

    async def get(keys: Sequence[Key]) -> list[Row | None]:
        rows = await WeakEngine.get(engine, keys)
        engine.server += 1
        return rows

    async def assure(read_from: int | None = None) -> None:
        if read_from != engine.server:
            raise Unavailable("it took over meanwhile", outcome="unknown")

    engine.get, engine.assure = get, assure  # type: ignore[method-assign]
    return here


async def test_a_sync_is_not_assured_by_another_server_than_it_was_read_from(failing_over: Store):
    assert (await sync(failing_over, job_sync("a"), HERE)).applied == 1
    await fails_as_unknown(sync(failing_over, job_sync("a"), HERE))


async def test_a_write_is_not_assured_by_another_server_than_it_was_read_from(failing_over: Store):
    await sync(failing_over, job_sync("a"), HERE)
    await failing_over.write(Cancel(kind="job", id="a"), HERE)
    await fails_as_unknown(failing_over.write(Cancel(kind="job", id="a"), HERE))


async def test_a_write_of_unknown_fate_is_not_assured_by_another_server_than_it_was_read_from(
    stores: tuple[Doubtful, Store, Store], failing_over: Store
):
    engine, _, there = stores
    engine.meanwhile = lambda: there.read(("kv", "k"))
    await fails_as_unknown(failing_over.write(create(), HERE))


async def test_a_transaction_is_not_assured_by_another_server_than_it_was_read_from(failing_over: Store):
    numbered = Txn(ops=[], seq=1, floor=1)
    await transact(failing_over, numbered, [create()], NUMBERED)
    await fails_as_unknown(transact(failing_over, msgspec.structs.replace(numbered, again=True), [create()], NUMBERED))


async def test_an_address_is_not_assured_by_another_server_than_it_was_read_from(
    stores: tuple[Doubtful, Store, Store], failing_over: Store
):
    engine, _, there = stores
    await failing_over.write(Create(kind="network", record={"id": "net", "cidr": "10.0.0.0/29"}), HERE)
    engine.meanwhile = lambda: there.read(("ip", "net/10.0.0.1"))
    await fails_as_unknown(Pools(failing_over).allocate(Create(kind="ip", from_="net", record={}), HERE))


# --- answers while a commit is under way -----------------------------------------------------------------------------


class Withholding(WeakEngine):
    """Applies a commit at once and says so when it is told to."""

    def __init__(self, storage: WeakStorage) -> None:
        super().__init__(storage)
        self.withholds: asyncio.Event | None = None
        self.applied = asyncio.Event()

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        results = await super().commit(batch)
        if self.withholds is not None:
            self.applied.set()
            await self.withholds.wait()
        return results


class UnderWay(NamedTuple):
    """An update is applied and not yet answered; the other daemon has deleted the record since, and said so."""

    here: Store
    updating: asyncio.Task[Decided]
    engine: Withholding

    async def with_the_answer_to(self, asked: asyncio.Task[Decided]) -> Decided:
        """What is answered to something that was asked before the update was."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.engine.withholds is not None
        self.engine.withholds.set()
        assert (await self.updating).row is not None
        return await asked


@pytest.fixture
async def under_way() -> AsyncIterator[UnderWay]:
    storage = WeakStorage(unknown=0.0)
    engine = Withholding(storage)
    here, there = Store(engine), Store(WeakEngine(storage))
    for store in (here, there):
        store.start()
    await here.write(create(by="birth"), HERE)
    engine.withholds = asyncio.Event()
    updating = asyncio.create_task(here.write(update(by="here"), HERE))
    await engine.applied.wait()
    assert (await there.write(Delete(kind="kv", id="k"), THERE)).refused is None
    yield UnderWay(here, updating, engine)
    for store in (here, there):
        await store.stop()


async def test_a_read_does_not_show_what_a_commit_under_way_led_to(under_way: UnderWay):
    asked = asyncio.create_task(under_way.here.get(Get(kind="kv", id="k")))
    assert (await under_way.with_the_answer_to(asked)).row is None


async def test_a_refusal_is_not_read_off_a_commit_under_way(under_way: UnderWay):
    asked = asyncio.create_task(under_way.here.write(create(by="again"), HERE))
    made = await under_way.with_the_answer_to(asked)
    assert made.refused is None
    assert _revision(made) == 1


async def test_a_write_on_top_of_a_commit_under_way_is_decided_again_once_another_came_between(under_way: UnderWay):
    numbered = msgspec.structs.replace(update(by="here"), seq=7)
    asked = asyncio.create_task(under_way.here.write(numbered, NUMBERED))
    assert isinstance((await under_way.with_the_answer_to(asked)).refused, NotFound)
