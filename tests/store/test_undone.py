"""Writes that were decided and did not happen leave nothing behind: no content, no lease, nobody who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine
from statesvc.store.batches import Batch
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import NoSpace
from tests.engines.faulty import FaultyEngine
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.conftest import World

FULL = NoSpace("the disk is full")


def world_on(engine: FaultyEngine) -> World:
    world = World(engine)
    world.store.start()
    return world


@pytest.fixture
async def faulty() -> AsyncIterator[FaultyEngine]:
    engine = FaultyEngine(MemoryEngine())
    await engine.open()
    async with asyncio.timeout(60):
        yield engine
    await engine.close()


@pytest.fixture
async def world(faulty: FaultyEngine) -> AsyncIterator[World]:
    made = world_on(faulty)
    yield made
    await made.store.stop()


def waits_to_fail(faulty: FaultyEngine) -> None:
    """The next commit is held up, and fails."""
    faulty.fail(FULL)
    faulty.hold()


async def failed(faulty: FaultyEngine, batch: Batch | None) -> None:
    faulty.let_go()
    assert batch is not None
    await batch.wait()
    assert batch.failure is FULL


async def claiming(world: World, engine: FaultyEngine, ttl: float = 30.0) -> asyncio.Task[int | None]:
    """A claim of the lock by a, whose commit is under way and is to fail."""
    waits_to_fail(engine)
    claim = asyncio.create_task(world.lock(holder="a", ttl=ttl))
    while not engine.commits:
        await asyncio.sleep(0)
    return claim


def decided(world: World, *, upsert: bool = False, **fields: object) -> Batch | None:
    update = wire.Update(kind="lock", id="lock", record=dict(fields), upsert=upsert)
    return world.store.write_now(update, world.me).after


async def test_a_renewal_on_a_write_that_did_not_happen_does_not_keep_its_content(world: World, faulty: FaultyEngine):
    token = await world.lock()
    assert token is not None
    waits_to_fail(faulty)
    commit = decided(world, x="refused")
    await world.store.renew(wire.Renew(kind="lock", id="lock", token=token))
    await failed(faulty, commit)
    assert "x" not in (await world.get("lock", "lock") or {})
    assert (await world.update("lock", "lock", x="taken"))["revision"] == 2
    assert (await world.get("lock", "lock") or {})["x"] == "taken"
    assert (await world.update("lock", "lock", y=1))["x"] == "taken"


async def test_a_longer_ttl_that_was_not_stored_is_not_taken_for_stored(world: World, faulty: FaultyEngine):
    token = await world.lock(ttl=30.0)
    assert token is not None
    waits_to_fail(faulty)
    _, commit = await world.store.renew(wire.Renew(kind="lock", id="lock", token=token, ttl=600.0))
    await world.store.renew(wire.Renew(kind="lock", id="lock", token=token))
    await failed(faulty, commit)
    assert (await world.renew("lock", token, ttl=600.0)).ttl == 600.0
    after = await world.restarted()
    assert (await after.get("lock", "lock") or {})["lease"]["ttl"] == 600.0


async def test_a_lease_is_gone_with_its_record_though_newer_writes_to_it_did_not_happen(
    world: World, faulty: FaultyEngine
):
    token = await world.lock()
    assert token is not None
    waits_to_fail(faulty)
    commits = [decided(world, x=n) for n in range(3)]
    await world.store.renew(wire.Renew(kind="lock", id="lock", token=token))
    await failed(faulty, commits[-1])
    await world.write(wire.Delete(kind="lock", id="lock"))
    assert not world.store.leases.seen


async def test_a_claim_that_did_not_happen_takes_no_time_from_the_next_one(world: World, faulty: FaultyEngine):
    refused = await claiming(world, faulty, ttl=5.0)
    assert await world.lock(holder="b", ttl=5.0) is None
    faulty.let_go()
    with pytest.raises(NoSpace):
        await refused
    world.clock.forward(60)
    assert await world.lock(holder="c", ttl=5.0) == 1
    assert await world.lock(holder="b", ttl=5.0) is None
    await world.renew("lock", 1)


async def test_whoever_waits_for_a_claim_that_did_not_happen_gets_what_is_free(world: World, faulty: FaultyEngine):
    refused = await claiming(world, faulty)
    other = Caller(said_hello=True, client="b", name="b")
    waiting = asyncio.create_task(world.claim(other, kind="lock", id="lock", wait=3600.0))
    while not world.claims.awaited:
        await asyncio.sleep(0)
    faulty.let_go()
    with pytest.raises(NoSpace):
        await refused
    (lock,) = await waiting
    assert lock["lease"]["holder"] == "b"


async def test_whoever_waits_for_something_else_does_not_look_again(world: World, faulty: FaultyEngine):
    other = Caller(said_hello=True, client="b", name="b")
    waiting = asyncio.create_task(world.claim(other, kind="job", filter={}, wait=3600.0))
    while not world.claims.awaited:
        await asyncio.sleep(0)
    faulty.fail(FULL)
    await failed(faulty, decided(world, x=1, upsert=True))
    (line,) = world.claims._lines.values()
    assert [each.woken.done() for each in line] == [False]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("real", [MemoryEngine, lambda: WeakEngine(WeakStorage())], ids=["immediate", "shared"])
async def test_a_lapse_that_did_not_happen_is_tried_again_soon(real: Callable[[], Engine]):
    engine = FaultyEngine(real())
    await engine.open()
    world = world_on(engine)
    assert await world.lock(holder="a", ttl=600.0) == 1
    await world.round()
    engine.fail(FULL)
    world.clock.forward(601)
    with pytest.raises(NoSpace):
        await world.round()
    world.clock.forward(2)
    await world.round()
    assert "lease" not in (await world.get("lock", "lock") or {})
    await world.store.stop()
    await engine.close()


async def test_on_a_shared_engine_a_claim_that_did_not_happen_takes_no_time_from_the_next_one():
    engine = FaultyEngine(WeakEngine(WeakStorage()))
    await engine.open()
    world = world_on(engine)
    refused = await claiming(world, engine, ttl=5.0)
    pending = world.store.commits.pending(("lock", "lock"))
    assert pending is not None
    assert not world.store.leases.stood_still(pending[0])
    engine.let_go()
    with pytest.raises(NoSpace):
        await refused
    world.clock.forward(60)
    assert await world.lock(holder="c", ttl=5.0) == 1
    assert await world.lock(holder="b", ttl=5.0) is None
    await world.store.stop()
    await engine.close()
