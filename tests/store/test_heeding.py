"""Orders for a whole store that several daemons share: each heeds what another was told."""

from __future__ import annotations

import asyncio

import pytest

from statesvc.store import heeding, own
from statesvc.store.heeding import Heeding
from statesvc_client.errors import Unavailable
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.conftest import World


@pytest.fixture
async def worlds():
    storage = WeakStorage(seed=5)
    made = [World(WeakEngine(storage)) for _ in range(2)]
    for world in made:
        world.store.start()
    yield made
    for world in made:
        await world.store.stop()


async def test_a_freeze_and_a_thaw_are_heeded_at_the_next_look(worlds: list[World]):
    here, there = worlds
    looking = Heeding(there.store)
    await own.keep(here.store, own.row(here.store, own.FREEZE))
    await looking.look()
    with pytest.raises(Unavailable, match="frozen"):
        await there.create("a")
    await own.remove(here.store, own.FREEZE)
    await looking.look()
    assert (await there.create("a"))["revision"] == 1


async def test_the_floor_of_tokens_is_never_lowered(worlds: list[World]):
    here, there = worlds
    looking = Heeding(there.store)
    await own.keep(here.store, own.row(here.store, own.TOKENS, token=7))
    await looking.look()
    assert there.store.token_floor == 7
    there.store.token_floor = 9
    await looking.look()
    assert there.store.token_floor == 9


async def test_a_daemon_that_stood_still_looks_before_it_writes(worlds: list[World]):
    here, there = worlds
    running = asyncio.create_task(Heeding(there.store).run())
    await there.create("a")
    # From here on its own looking does not come by: only a write does.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await own.keep(here.store, own.row(here.store, own.FREEZE))
    there.clock.forward(heeding.TRUST_SECONDS + 0.1)
    with pytest.raises(Unavailable, match="frozen"):
        await there.create("b")
    assert await here.get("b") is None
