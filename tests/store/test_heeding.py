"""Orders for a whole store that several daemons share: each heeds what another was told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from statesvc.backends.port import Engine, Result, Unit
from statesvc.store import heeding, own, retention
from statesvc.store.administration import Administration
from statesvc.store.heeding import Heeding
from statesvc_client import wire
from statesvc_client.errors import Unavailable
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.conftest import DAY, World


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


async def test_a_freeze_holds_where_another_daemon_thawed_since_the_last_look(worlds: list[World]):
    here, there = (Administration(world.store, Path("nowhere")) for world in worlds)
    await here.freeze()
    await there.thaw()
    await here.freeze()
    await Heeding(worlds[1].store).look()
    with pytest.raises(Unavailable, match="frozen"):
        await worlds[1].create("a")


async def test_the_floor_of_tokens_is_never_lowered(worlds: list[World]):
    here, there = worlds
    looking = Heeding(there.store)
    await own.keep(here.store, own.row(here.store, own.TOKENS, token=7))
    await looking.look()
    assert there.store.token_floor == 7
    there.store.raise_token_floor(9)
    await looking.look()
    assert there.store.token_floor == 9


async def test_of_two_daemons_that_raise_the_floor_of_tokens_at_once_neither_lowers_it(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
):
    here, there = worlds
    await own.raise_floor(here.store, 3)
    commit = here.engine.commit

    async def overtaken(batch: Sequence[Unit]) -> list[Result]:
        monkeypatch.setattr(here.engine, "commit", commit)
        assert await own.raise_floor(there.store, 10) == 10
        return await commit(batch)

    monkeypatch.setattr(here.engine, "commit", overtaken)
    assert await own.raise_floor(here.store, 5) == 10
    assert await own.raise_floor(there.store, 7) == 10


async def test_tombstones_go_once_every_daemon_heeds_the_floor_that_stands_for_them(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
):
    here, there = worlds
    there.store.raise_token_floor(await own.raise_floor(there.store, 9))
    await here.create("a")
    for token in range(1, 11):
        assert await here.claim()
        await here.write(wire.Release(id="a", token=token))
    await here.write(wire.Delete(id="a"))
    here.clock.forward(30 * DAY)
    heeded: list[bool] = []

    async def looked(engine: Engine, **_: bool) -> None:
        assert await there.row("a") is not None, "nothing goes before it is heeded"
        await Heeding(there.store).look()
        heeded.append(there.store.token_floor == 10)

    monkeypatch.setattr(retention, "until_heeded", looked)
    await here.duties.sweep()
    assert heeded == [True]
    assert await there.row("a") is None


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
