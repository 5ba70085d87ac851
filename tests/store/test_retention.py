"""Retention: what ended goes when it is old, in small steps; nothing that lives goes by age."""

from __future__ import annotations

from contextlib import suppress

import pytest

from statesvc.backends.port import LogKept
from statesvc.store.batches import Bar
from statesvc.store.checking import check
from statesvc.store.clock import SECOND
from statesvc.store.retention import FAILED_SECONDS
from statesvc_client import wire
from statesvc_client.errors import Internal
from tests.store.conftest import DAY, World


async def ended(world: World, name: str, days_ago: float, status: str = "COMPLETED") -> None:
    await world.create(name, status=status, completedAt=world.text(-days_ago * DAY), createdAt=world.text(-90 * DAY))


async def test_ended_records_go_by_when_they_completed(world: World):
    await ended(world, "old", 31)
    await ended(world, "failed", 40, "FAILED")
    await ended(world, "young", 29)
    for status in ("PENDING", "QUEUED", "SCHEDULED", "RUNNING", "STOPPING"):
        await world.create(status, status=status, createdAt=world.text(-90 * DAY))
    await world.caught_up()
    done = await world.duties.sweep()
    assert done["buried"] == 2
    assert await world.get("old") is None
    assert await world.get("failed") is None
    assert await world.status("young") == "COMPLETED"
    for status in ("PENDING", "QUEUED", "SCHEDULED", "RUNNING", "STOPPING"):
        assert await world.status(status) == status


async def test_more_than_one_step_goes_in_one_sweep(world: World):
    for number in range(300):
        await ended(world, f"old-{number}", 31)
    await world.create("live", status="RUNNING")
    await world.caught_up()
    assert (await world.duties.sweep())["buried"] == 300
    assert await world.status("live") == "RUNNING"


async def test_what_is_leased_stays(world: World):
    await ended(world, "held", 31)
    await world.claim(id="held", ttl=600.0)
    await world.caught_up()
    assert (await world.duties.sweep())["buried"] == 0
    assert await world.status("held") == "COMPLETED"


async def test_what_must_stay_is_not_in_the_way_of_what_may_go(world: World):
    for number in range(150):
        await world.create(f"a{number}", status="RUNNING", completedAt=world.text(-90 * DAY))
    await ended(world, "b", 60)
    await world.caught_up()
    assert (await world.duties.sweep())["buried"] == 1
    assert await world.status("a7") == "RUNNING"


async def test_a_late_write_to_a_removed_record_does_not_revive_it(world: World):
    await ended(world, "old", 31)
    await world.caught_up()
    await world.duties.sweep()
    with pytest.raises(Exception, match="not found"):
        await world.update("old", status="RUNNING")


async def test_tombstones_go_when_the_log_no_longer_tells_of_them(world: World):
    await world.create("a")
    await world.write(wire.Delete(id="a"))
    world.clock.forward(6 * DAY)
    await world.caught_up()
    assert (await world.duties.sweep())["removed"] == 0
    assert await world.row("a") is not None
    world.clock.forward(2 * DAY)
    await world.caught_up()
    assert (await world.duties.sweep())["removed"] == 1
    assert await world.row("a") is None
    assert (await world.create("a"))["revision"] == 1


async def test_a_tombstone_that_guards_a_token_is_never_removed(world: World):
    token = await world.lock("l")
    await world.write(wire.Delete(kind="lock", id="l"))
    for number in range(200):
        await world.create(f"k{number}", "lock")
        await world.write(wire.Delete(kind="lock", id=f"k{number}"))
    world.clock.forward(30 * DAY)
    await world.caught_up()
    assert (await world.duties.sweep())["removed"] == 200
    assert token == 1
    assert await world.lock("l") == 2


async def test_nothing_goes_while_the_clocks_disagree(world: World):
    await ended(world, "young", 1)
    await world.round()
    world.clock.wall += 366 * DAY * SECOND
    await world.caught_up()
    await world.duties.sweep()
    assert await world.status("young") == "COMPLETED"
    world.clock.wall -= 366 * DAY * SECOND
    world.clock.forward(31 * DAY)
    await world.caught_up()
    assert (await world.duties.sweep())["buried"] == 1


async def test_a_time_in_the_future_counts_as_now(world: World):
    await ended(world, "ahead", -5000)
    await world.caught_up()
    await world.duties.sweep()
    assert await world.status("ahead") == "COMPLETED"
    found = await check(world.store, lambda *_: None, lambda: None, repair=False)
    assert found.problems == []
    world.clock.forward(31 * DAY)
    await world.caught_up()
    assert (await world.duties.sweep())["buried"] == 1


async def test_retention_begins_by_itself_and_rests_in_between(world: World):
    await ended(world, "old", 31)
    assert (await world.pass_by(30)).buried == 0
    assert (await world.pass_by(40)).buried == 1
    await ended(world, "old-2", 31)
    assert (await world.pass_by(30)).buried == 0
    assert (await world.pass_by(40)).buried == 1


async def test_it_rests_after_a_failure(world: World, monkeypatch: pytest.MonkeyPatch):
    """A damaged file stays damaged, and every try is told."""
    tries: list[LogKept] = []

    async def damaged(keep: LogKept) -> bool:
        tries.append(keep)
        raise Internal("log.db is damaged")

    monkeypatch.setattr(world.engine, "compact", damaged)
    world.clock.forward(61)
    for _ in range(3):
        with suppress(Internal):
            await world.round()
    assert len(tries) == 1
    world.clock.forward(FAILED_SECONDS)
    with pytest.raises(Internal):
        await world.round()
    assert len(tries) == 2


async def test_a_frozen_store_is_left_alone(world: World):
    await ended(world, "old", 31)
    await world.lock(ttl=1.0)
    await world.round()
    world.store.commits.bar = Bar("frozen")
    await world.pass_by(100)
    assert await world.status("old") == "COMPLETED"
    world.store.commits.bar = None
    world.clock.forward(31)
    assert (await world.round()).lapsed == 1
