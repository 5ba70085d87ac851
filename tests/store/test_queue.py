"""The queue: order, times, dependencies, retries, deadlines, cancelling; each evaluated from what is stored."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from statesvc.backends.port import Key, Row, Unit, Write
from statesvc.store import readiness
from statesvc.store.records import decode
from statesvc_client import wire
from statesvc_client.errors import StateError, Unavailable
from tests.store.conftest import World, code_of


def names(claimed: list[dict]) -> list[str]:
    return [record["uuid"] for record in claimed]


async def run_to(world: World, name: str, status: str) -> None:
    """Claim a job by name and end it so."""
    (claimed,) = await world.claim(filter={"ids": [name]})
    await world.write(wire.Release(id=name, token=claimed["lease"]["token"], status=status))


# --- order ---------------------------------------------------------------------------------------------------------


async def test_the_best_comes_first_by_priority_then_time_then_age(world: World):
    jobs: dict[str, dict[str, Any]] = {
        "old-normal": {},
        "low": {"priority": "low"},
        "critical": {"priority": "critical"},
        "high": {"priority": 10},
        "between": {"priority": 7.5},
        "negative": {"priority": -3},
        "earlier": {"status": "SCHEDULED", "scheduledAt": world.text(-100)},
        "normal": {},
    }
    for name, fields in jobs.items():
        world.clock.forward(1)
        await world.create(name, **fields)
    order = ["critical", "high", "between", "earlier", "old-normal", "normal", "low", "negative"]
    assert names(await world.claim(limit=100)) == order
    assert await world.claim() == []


async def test_a_claim_by_filter_moves_the_record_to_its_claimed_state(world: World):
    await world.create("a")
    (claimed,) = await world.claim(ttl=5.0)
    assert (claimed["status"], claimed["startedAt"]) == ("RUNNING", world.text())
    await world.create("b")
    (claimed,) = await world.claim(status="initializing")
    assert claimed["status"] == "INITIALIZING"


async def test_a_filter_narrows_what_is_claimed(world: World):
    await world.create("a", labels={"gpu": "no"}, priority="critical")
    await world.create("b", labels={"gpu": "yes"}, nodeId="n1")
    await world.create("c", labels={"gpu": "yes"}, nodeId="n2", deep={"x": 1})
    assert names(await world.claim(filter={"labels": {"gpu": "yes"}, "nodeId": "n2"})) == ["c"]
    assert await world.claim(filter={"where": {"/deep/x": 1}}) == []
    assert names(await world.claim(filter={"prefix": "b"})) == ["b"]


@pytest.mark.parametrize(("front", "low"), [(1, 1), (3, 2), (8, 4), (64, 64)])
async def test_the_order_holds_whatever_part_of_the_queue_is_in_memory(world: World, monkeypatch, front, low):
    monkeypatch.setattr(readiness, "FRONT", front)
    monkeypatch.setattr(readiness, "LOW", low)
    chance = random.Random(front)
    waiting: dict[str, tuple[int, int]] = {}
    for number in range(120):
        world.clock.forward(1)
        priority = chance.randrange(5)
        await world.create(f"j{number}", priority=priority, labels={"even": str(number % 2 == 0)})
        waiting[f"j{number}"] = (-priority, number)
        if number % 5 == 4:
            even = [name for name in waiting if int(name[1:]) % 2 == 0]
            wanted = min(even, key=waiting.__getitem__)
            assert names(await world.claim(filter={"labels": {"even": "True"}})) == [wanted]
            del waiting[wanted]
        if number % 7 == 6:
            changed = chance.choice(sorted(waiting))
            await world.update(changed, priority=9)
            waiting[changed] = (-9, waiting[changed][1])
    for _ in range(len(waiting) // 4 + 1):
        best = sorted(waiting, key=waiting.__getitem__)[:4]
        assert names(await world.claim(limit=4)) == best
        for name in best:
            del waiting[name]


async def test_each_record_is_claimed_once_however_many_race(world: World):
    for number in range(30):
        await world.create(f"j{number:02}")
    await world.caught_up()
    got = await asyncio.gather(*(world.claim(limit=3) for _ in range(15)))
    taken = [name for claimed in got for name in names(claimed)]
    assert len(taken) == len(set(taken))
    while more := await world.claim(limit=100):
        taken += names(more)
    assert sorted(taken) == [f"j{number:02}" for number in range(30)]


@pytest.mark.parametrize("status", ["PENDING", "INITIALIZING", "RUNNING", "COMPLETED"])
async def test_only_waiting_records_are_claimed(world: World, status: str):
    await world.create("a", status=status)
    assert await world.claim() == []


async def test_a_task_is_queued_by_the_same_rules(world: World):
    await world.create("t", "task", priority="high")
    await world.create("u", "task", dependsOn=["t"])
    (claimed,) = await world.claim(kind="task", limit=5)
    assert (claimed["id"], claimed["status"]) == ("t", "RUNNING")


# --- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["scheduledAt", "startAfter"])
@pytest.mark.parametrize("status", ["SCHEDULED", "QUEUED"])
async def test_a_record_is_ready_once_its_time_has_come(world: World, field: str, status: str):
    await world.create("a", status=status, **{field: world.text(60)})
    assert await world.claim() == []
    await world.pass_by(59)
    assert await world.claim() == []
    done = await world.pass_by(2)
    assert done.promoted == 1
    assert await world.status("a") == status
    assert names(await world.claim()) == ["a"]


async def test_becoming_ready_changes_nothing_anybody_can_see(world: World):
    await world.create("a", startAfter=world.text(60))
    await world.round()
    before, position = await world.get("a"), await world.engine.position()
    await world.pass_by(61)
    assert await world.get("a") == before
    told = [entry for entry in await world.engine.read_log(position, 10) if entry.row.key == ("job", "a")]
    assert told == []


async def test_a_scheduled_record_without_a_time_is_due(world: World):
    await world.create("a", status="SCHEDULED")
    assert names(await world.claim()) == ["a"]


async def test_what_came_due_while_no_daemon_ran_is_ready_after_the_start(world: World):
    await world.create("a", startAfter=world.text(60))
    world.clock.forward(100)
    again = await world.restarted()
    await again.round()
    assert names(await again.claim()) == ["a"]
    await again.store.stop()


@pytest.mark.parametrize("leased", [True, False])
async def test_a_run_that_takes_too_long_times_out(world: World, leased: bool):
    await world.create("a", timeout=10, status="QUEUED" if leased else "RUNNING")
    if leased:
        await world.claim(ttl=1000.0)
    await world.pass_by(9)
    assert await world.status("a") == "RUNNING"
    done = await world.pass_by(2)
    assert done.timed_out == 1
    ended = await world.get("a")
    assert ended is not None
    assert (ended["status"], ended["completedAt"]) == ("TIMEOUT", world.text())
    assert "lease" not in ended
    if leased:
        assert await code_of(world.renew("a", 1, "job")) == "lease_lost"


async def test_a_timeout_is_followed_by_the_retries_that_are_left(world: World):
    await world.create("a", timeout=10, maxRetries=1, retryDelay=5)
    await world.claim(ttl=1000.0)
    await world.pass_by(11)
    waiting = await world.get("a")
    assert waiting is not None
    assert (waiting["status"], waiting["retryCount"]) == ("SCHEDULED", 1)
    assert "startedAt" not in waiting
    await world.pass_by(7)
    await world.claim(ttl=1000.0)
    await world.pass_by(11)
    assert await world.status("a") == "TIMEOUT"


async def test_a_clock_that_jumped_ends_nothing_that_runs(world: World):
    await world.create("a", timeout=10, status="RUNNING")
    await world.round()
    world.clock.wall += 10 * 366 * 86_400 * 10**9
    assert (await world.round()).timed_out == 0
    assert await world.status("a") == "RUNNING"
    world.clock.wall -= 10 * 366 * 86_400 * 10**9
    assert (await world.pass_by(11)).timed_out == 1


# --- dependencies --------------------------------------------------------------------------------------------------


async def test_a_record_waits_until_all_it_depends_on_have_completed(world: World):
    await world.create("child", dependsOn=["p1", "p2"])
    await world.create("p1")
    await world.create("p2")
    await world.round()
    assert names(await world.claim(limit=9, filter={"prefix": "child"})) == []
    await run_to(world, "p1", "COMPLETED")
    await world.round()
    assert await world.claim(filter={"prefix": "child"}) == []
    await run_to(world, "p2", "COMPLETED")
    await world.round()
    assert names(await world.claim()) == ["child"]


@pytest.mark.parametrize("fate", ["FAILED", "STOPPED", "CANCELED", "TIMEOUT", "deleted"])
@pytest.mark.parametrize(("reaction", "end"), [(None, "FAILED"), ("fail", "FAILED"), ("cancel", "CANCELED")])
async def test_a_failed_dependency_ends_the_dependent(world: World, fate: str, reaction: str | None, end: str):
    await world.create("p", status="RUNNING")
    await world.create("child", dependsOn=["p"], onDependencyFailure=reaction)
    await world.round()
    if fate == "deleted":
        await world.write(wire.Delete(id="p"))
    else:
        await world.update("p", status=fate)
    await world.round()
    ended = await world.get("child")
    assert ended is not None
    assert ended["status"] == end
    assert "depends on p" in ended["error"]


@pytest.mark.parametrize(("fate", "end"), [("FAILED", "FAILED"), ("COMPLETED", "QUEUED")])
async def test_a_dependent_added_after_its_parent_ended_is_handled_too(world: World, fate: str, end: str):
    await world.create("p", status=fate)
    await world.create("child", dependsOn=["p"])
    await world.round()
    assert await world.status("child") == end
    assert len(await world.claim()) == (end == "QUEUED")


async def test_a_chain_fails_to_its_end(world: World):
    await world.create("a", status="RUNNING")
    for before, name in [("a", "b"), ("b", "c"), ("c", "d")]:
        await world.create(name, dependsOn=[before])
    await world.update("a", status="FAILED")
    for _ in range(4):
        await world.round()
    assert [await world.status(name) for name in "bcd"] == ["FAILED"] * 3


async def test_a_dependency_that_completed_and_was_deleted_counts_as_completed(world: World):
    await world.create("p", status="COMPLETED")
    await world.write(wire.Delete(id="p"))
    await world.create("child", dependsOn=["p"])
    await world.round()
    assert names(await world.claim()) == ["child"]


async def test_a_dependency_that_was_never_there_is_waited_for(world: World):
    await world.create("child", dependsOn=["p"])
    await world.round()
    assert await world.claim() == []
    await world.create("p", status="COMPLETED")
    await world.pass_by(60)
    assert names(await world.claim()) == ["child"]


async def test_a_restart_between_parent_and_child_loses_nothing(world: World):
    await world.create("p", status="RUNNING")
    await world.create("child", dependsOn=["p"])
    await world.round()
    await world.update("p", status="COMPLETED")
    again = await world.restarted()
    await again.round()
    assert names(await again.claim()) == ["child"]
    await again.store.stop()


async def test_new_dependencies_hold_a_ready_record_back_again(world: World):
    await world.create("p", status="COMPLETED")
    await world.create("q")
    await world.create("child", dependsOn=["p"])
    await world.round()
    await world.update("child", dependsOn=["p", "q"])
    await world.round()
    assert names(await world.claim(limit=5)) == ["q"]


async def test_an_update_of_a_ready_dependent_leaves_it_ready(world: World):
    await world.create("p", status="COMPLETED")
    await world.create("child", dependsOn=["p"])
    await world.round()
    await world.update("child", note="x")
    assert names(await world.claim()) == ["child"]


# --- retries -------------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_tried_again_later_and_later_until_retries_are_used_up(world: World):
    await world.create("a", maxRetries=3, retryDelay=10)
    for attempt, delay in enumerate([10, 20, 40], start=1):
        (claimed,) = await world.claim()
        token = claimed["lease"]["token"]
        assert token == attempt
        back = await world.write(wire.Release(id="a", token=token, status="FAILED", record={"error": "boom"}))
        assert (back["status"], back["retryCount"]) == ("SCHEDULED", attempt)
        assert world.text(delay) <= back["startAfter"] <= world.text(delay * 1.25 + 1)
        await world.pass_by(delay - 1)
        assert await world.claim() == []
        await world.pass_by(delay * 0.25 + 2)
    (claimed,) = await world.claim()
    ended = await world.write(wire.Release(id="a", token=4, status="FAILED"))
    assert (ended["status"], ended["retryCount"], ended["completedAt"]) == ("FAILED", 3, world.text())


async def test_back_off_differs_between_records_that_failed_together(world: World):
    starts = set()
    for number in range(8):
        await world.create(f"j{number}", maxRetries=1, retryDelay=1000)
        await world.claim()
        back = await world.write(wire.Release(id=f"j{number}", token=1, status="FAILED"))
        starts.add(back["startAfter"])
    assert len(starts) > 1


async def test_without_retries_a_failure_is_final(world: World):
    await world.create("a")
    await world.claim()
    assert (await world.write(wire.Release(id="a", token=1, status="FAILED")))["status"] == "FAILED"


async def test_given_back_without_a_status_no_retry_is_used_up(world: World):
    await world.create("a", maxRetries=1)
    await world.claim()
    back = await world.write(wire.Release(id="a", token=1))
    assert (back["status"], back.get("retryCount")) == ("QUEUED", None)
    assert "startedAt" not in back
    await world.claim()
    back = await world.write(wire.Release(id="a", token=2, delay=30.0))
    assert (back["status"], back["startAfter"]) == ("SCHEDULED", world.text(30))
    await world.pass_by(31)
    assert len(await world.claim()) == 1


@pytest.mark.parametrize(("retries", "after_one", "after_two"), [
    (None, "QUEUED", "QUEUED"), (0, "FAILED", "FAILED"), (1, "QUEUED", "FAILED"),
])  # fmt: skip
async def test_a_lost_holder_gives_the_record_back_as_often_as_it_may(
    world: World, retries: int | None, after_one: str, after_two: str
):
    await world.create("a", maxRetries=retries)
    for expected in (after_one, after_two):
        await world.claim(ttl=5.0)
        await world.pass_by(6)
        assert await world.status("a") == expected


async def test_a_late_release_after_a_lapse_changes_nothing(world: World):
    await world.create("a")
    await world.claim(ttl=5.0)
    await world.pass_by(6)
    assert await code_of(world.write(wire.Release(id="a", token=1, status="COMPLETED"))) == "lease_lost"
    assert await world.status("a") == "QUEUED"


# --- cancelling and retrying ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["PENDING", "INITIALIZING", "SCHEDULED", "QUEUED"])
async def test_what_waits_is_cancelled_at_once(world: World, status: str):
    await world.create("a", status=status, dependsOn=["x"])
    ended = await world.write(wire.Cancel(id="a"))
    assert (ended["status"], ended["completedAt"]) == ("CANCELED", world.text())
    assert await world.claim() == []


@pytest.mark.parametrize("by", ["release", "failure", "lapse"])
async def test_what_runs_is_asked_to_end_and_stays_cancelled(world: World, by: str):
    await world.create("a", maxRetries=5)
    await world.claim(ttl=5.0)
    asked = await world.write(wire.Cancel(id="a"))
    assert (asked["status"], asked["cancelRequested"]) == ("RUNNING", True)
    kept, _ = await world.store.renew(wire.Renew(id="a", token=1))
    assert kept.cancel_requested
    if by == "lapse":
        await world.pass_by(6)
    else:
        await world.write(wire.Release(id="a", token=1, status="FAILED" if by == "failure" else None))
    assert await world.status("a") == "CANCELED"
    assert await world.claim() == []


async def test_a_run_that_completed_though_it_was_cancelled_has_completed(world: World):
    await world.create("a")
    await world.claim()
    await world.write(wire.Cancel(id="a"))
    assert (await world.write(wire.Release(id="a", token=1, status="COMPLETED")))["status"] == "COMPLETED"


async def test_cancelling_twice_is_cancelling_once(world: World):
    await world.create("a")
    await world.claim()
    first = await world.write(wire.Cancel(id="a"))
    assert (await world.write(wire.Cancel(id="a")))["revision"] == first["revision"]
    await world.create("b")
    first = await world.write(wire.Cancel(id="b"))
    assert (await world.write(wire.Cancel(id="b")))["revision"] == first["revision"]


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "STOPPED", "TIMEOUT"])
async def test_what_has_ended_is_not_cancelled(world: World, status: str):
    await world.create("a", status=status)
    assert await code_of(world.write(wire.Cancel(id="a"))) == "invalid_transition"


@pytest.mark.parametrize("status", ["FAILED", "TIMEOUT"])
async def test_a_failed_record_can_be_tried_again(world: World, status: str):
    await world.create("a", status=status, retryCount=4, maxRetries=4)
    again = await world.write(wire.Retry(id="a"))
    assert (again["status"], again["retryCount"]) == ("QUEUED", 0)
    assert "completedAt" not in again
    assert names(await world.claim()) == ["a"]


@pytest.mark.parametrize("status", ["QUEUED", "RUNNING", "COMPLETED", "CANCELED", "STOPPED"])
async def test_nothing_else_is_tried_again(world: World, status: str):
    await world.create("a", status=status)
    assert await code_of(world.write(wire.Retry(id="a"))) == "invalid_transition"


async def test_only_retry_leads_out_of_a_failure(world: World):
    await world.create("a", status="FAILED")
    assert await code_of(world.update("a", status="QUEUED")) == "invalid_transition"


async def test_kinds_without_a_queue_are_neither_cancelled_nor_retried(world: World):
    await world.create("k", "kv", value=1)
    for op in (wire.Cancel, wire.Retry):
        assert await code_of(world.write(op(kind="kv", id="k"))) == "bad_request"
        assert await code_of(world.write(op(id="nobody"))) == "not_found"


# --- fields --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"timeout": "long"}, {"timeout": -1}, {"timeout": True}, {"maxRetries": 1.5}, {"maxRetries": -1},
    {"retryDelay": "1s"}, {"dependsOn": "a"}, {"dependsOn": [1]}, {"dependsOn": [f"j{n}" for n in range(101)]},
    {"onDependencyFailure": "shrug"}, {"scheduledAt": "tomorrow"}, {"startAfter": 5}, {"dedupeKey": 7},
    {"priority": "urgent"},
])  # fmt: skip
async def test_a_queue_field_that_means_nothing_is_refused_by_name(world: World, fields: dict):
    with pytest.raises(StateError, match=next(iter(fields))) as refused:
        await world.create("a", **fields)
    assert refused.value.code == "bad_request"


async def test_empty_queue_fields_count_as_absent(world: World):
    names = ["timeout", "maxRetries", "retryDelay", "dependsOn", "onDependencyFailure", "startAfter"]
    empty: dict[str, Any] = dict.fromkeys(names)
    await world.create("a", **empty)
    await world.create("b", dependsOn=[], scheduledAt="", startAfter="0001-01-01T00:00:00Z", timeout=0)
    assert [record["uuid"] for record in await world.claim(limit=5)] == ["a", "b"]


# --- ownership -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["COMPLETED", "deleted"])
async def test_what_is_owned_goes_when_its_owner_has_ended(world: World, fate: str):
    await world.create("a", status="RUNNING")
    await world.create("b", status="RUNNING")
    for number in range(70):
        await world.create(f"m{number}", "mount", owner="job/a", volume="v")
    await world.create("kept", "mount", owner="job/b", volume="v")
    await world.round()
    if fate == "deleted":
        await world.write(wire.Delete(id="a"))
    else:
        await world.update("a", status=fate)
    assert (await world.round()).freed == 70
    assert await world.get("m7", "mount") is None
    assert await world.get("kept", "mount") is not None


async def test_what_is_owned_by_nobody_known_stays(world: World):
    await world.create("m", "mount", owner="job/never-there")
    await world.create("n", "mount", owner="alice")
    await world.pass_by(60)
    assert await world.get("m", "mount") is not None
    assert await world.get("n", "mount") is not None


async def test_what_comes_after_its_owner_ended_goes_too(world: World):
    await world.create("a", status="COMPLETED")
    await world.create("m", "mount", owner="job/a")
    assert (await world.round()).freed == 1


async def test_what_is_owned_stays_when_its_owner_comes_back_while_the_duties_look(world: World, monkeypatch):
    await world.create("a", status="RUNNING")
    await world.create("m", "mount", owner="job/a")
    await world.round()
    await world.write(wire.Delete(id="a"))
    look = world.store.look

    async def come_back(keys: list[Key]) -> list[Row | None]:
        found = await look(keys)
        monkeypatch.setattr(world.store, "look", look)
        await world.write(wire.Delete(kind="mount", id="m"))
        await world.create("a", status="RUNNING")
        await world.create("m", "mount", owner="job/a")
        await world.caught_up()
        return found

    await world.caught_up()
    monkeypatch.setattr(world.store, "look", come_back)
    assert (await world.round()).freed == 0
    assert await world.get("m", "mount") is not None


async def test_jobs_are_never_removed_with_their_owner(world: World):
    await world.create("a", status="COMPLETED")
    await world.create("b", status="RUNNING", owner="job/a")
    await world.pass_by(60)
    assert await world.status("b") == "RUNNING"


# --- nothing in the way of the others ------------------------------------------------------------------------------


async def test_a_record_of_the_largest_size_is_claimed_lapses_and_times_out_like_any_other(world: World):
    world.store.limits = msgspec.structs.replace(world.store.limits, record_bytes=8_000)
    empty = len((await world.row_of_new("probe", command="")).body)
    for name in ("big-1", "big-2"):
        await world.create(name, command="x" * (8_000 - empty - 60), timeout=10, priority="critical")
    await world.create("small")
    claimed = await world.claim(limit=9, ttl=5.0)
    assert names(claimed)[:2] == ["big-1", "big-2"]
    await world.pass_by(6)
    assert await world.status("big-1") == "QUEUED"
    await world.claim(limit=9, ttl=600.0)
    assert (await world.pass_by(11)).timed_out == 2


async def test_a_claim_is_told_why_when_nothing_could_be_taken(world: World):
    await world.create("a")
    await world.create("b")
    assert await code_of(world.claim(record={"priority": "odd"})) == "bad_request"
    assert [await world.status(name) for name in "ab"] == ["QUEUED", "QUEUED"]


async def test_what_a_failed_round_did_not_do_is_done_by_the_next(world: World, monkeypatch):
    for number in range(150):
        await world.create(f"j{number:03}", maxRetries=5)
    await world.claim(limit=100, ttl=5.0)
    await world.create("due", startAfter=world.text(6))
    await world.create("child", dependsOn=["parent"])
    await world.create("parent", status="RUNNING")
    await world.round()
    await world.update("parent", status="COMPLETED")
    attempt, calls = world.store.attempt, iter(range(10_000))

    async def failing(keys, decide):
        if next(calls) >= 40:
            raise Unavailable("the disk is full")
        return await attempt(keys, decide)

    monkeypatch.setattr(world.store, "attempt", failing)
    world.clock.forward(7)
    for _ in range(3):
        with pytest.raises(StateError):
            await world.round()
    monkeypatch.setattr(world.store, "attempt", attempt)
    world.clock.forward(2)
    await world.round()
    assert len(await world.claim(limit=100)) == 100
    assert len(names(await world.claim(limit=100))) == 52


async def test_a_chain_of_dependents_fails_in_one_round(world: World):
    await world.create("j0", status="RUNNING")
    for number in range(1, 40):
        await world.create(f"j{number}", dependsOn=[f"j{number - 1}"])
    await world.round()
    await world.update("j0", status="FAILED")
    await world.round()
    if world.engine.immediate:
        assert await world.status("j39") == "FAILED"


async def test_a_record_does_not_depend_on_itself(world: World):
    assert await code_of(world.create("a", dependsOn=["b", "a"])) == "bad_request"


@pytest.mark.parametrize("status", ["QUEUED", "RUNNING", "COMPLETED"])
async def test_no_update_makes_a_record_depend_on_itself_whatever_it_does(world: World, status: str):
    await world.create("a", status=status, dependsOn=[])
    assert await code_of(world.update("a", dependsOn=["a"])) == "bad_request"
    assert await code_of(world.write(wire.Update(id="a", append={"dependsOn": ["a"]}))) == "bad_request"


@pytest.mark.parametrize("fate", ["lapsed", "timed out", "released"])
async def test_a_stored_record_that_depends_on_itself_is_moved_and_fails(world: World, fate: str):
    await world.create("a", timeout=20, maxRetries=5)
    (claimed,) = await world.claim(ttl=10.0 if fate == "lapsed" else 100.0)

    def link(rows: list[Row | None]) -> Unit:
        (row,) = rows
        assert row is not None
        body = msgspec.json.encode({**decode(row.body), "dependsOn": ["a"]})
        return (Write(msgspec.structs.replace(row, body=body), row.stamp, None),)

    await world.store.attempt([("job", "a")], link)
    await world.update("a", note="and can still be written to")
    if fate == "released":
        await world.write(wire.Release(id="a", token=claimed["lease"]["token"]))
    else:
        await world.pass_by(21)
    await world.pass_by(5)
    assert await world.status("a") == "FAILED"


async def test_a_dependent_that_comes_back_does_not_wait_for_what_is_long_gone(world: World):
    await world.create("p", status="COMPLETED")
    await world.create("child", dependsOn=["p"])
    await world.round()
    await world.claim(ttl=5.0)
    await world.write(wire.Delete(id="p"))
    world.clock.forward(30 * 86_400)
    await world.caught_up()
    await world.duties.sweep()
    assert await world.row("p") is None
    assert names(await world.claim()) == ["child"]


# --- claimed by id -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["release", "lapse"])
@pytest.mark.parametrize("status", ["QUEUED", "PENDING", None])
async def test_cancelling_what_is_claimed_by_id_sticks_too(world: World, by: str, status: str | None):
    await world.create("a", status=status)
    await world.claim(id="a", ttl=5.0)
    assert (await world.write(wire.Cancel(id="a")))["cancelRequested"] is True
    if by == "release":
        await world.write(wire.Release(id="a", token=1))
    else:
        await world.pass_by(6)
    assert await world.status("a") == "CANCELED"
    assert await world.claim() == []


@pytest.mark.parametrize("by", ["release", "lapse"])
async def test_what_is_claimed_by_id_before_it_runs_stays_where_it_was(world: World, by: str):
    await world.create("a", status="PENDING")
    await world.claim(id="a", ttl=5.0)
    if by == "release":
        await world.write(wire.Release(id="a", token=1))
    else:
        await world.pass_by(6)
    assert await world.status("a") == "PENDING"


async def test_what_was_taken_in_another_state_is_not_run_more_often_than_it_may(world: World):
    await world.create("a", maxRetries=0)
    await world.claim(status="INITIALIZING", ttl=5.0)
    await world.pass_by(6)
    assert await world.status("a") == "FAILED"


async def test_what_is_being_stopped_does_not_come_back_to_life(world: World):
    for name in ("late", "failed"):
        await world.create(name, timeout=10, maxRetries=3)
        await world.claim(ttl=600.0)
        await world.update(name, status="STOPPING")
    await world.write(wire.Release(id="failed", token=1, status="FAILED"))
    assert await world.status("failed") == "FAILED"
    await world.pass_by(11)
    assert await world.status("late") == "TIMEOUT"


async def test_a_time_given_at_birth_is_no_run(world: World):
    await world.create("a", status="SCHEDULED", scheduledAt=world.text(10), startedAt=world.text(-100))
    await world.pass_by(11)
    assert names(await world.claim()) == ["a"]


async def test_a_release_names_an_end_or_the_queue(world: World):
    await world.create("a")
    await world.claim()
    assert await code_of(world.write(wire.Release(id="a", token=1, status="RUNNING"))) == "bad_request"
    assert (await world.write(wire.Release(id="a", token=1, status="queued")))["status"] == "QUEUED"


async def test_retrying_takes_the_lease_from_whoever_still_has_it(world: World):
    await world.create("a")
    await world.claim()
    await world.update("a", status="FAILED")
    assert "lease" not in await world.write(wire.Retry(id="a"))
    assert names(await world.claim()) == ["a"]


async def test_an_empty_id_is_no_claim_by_filter(world: World):
    await world.create("a")
    assert await code_of(world.claim(job_id="")) == "bad_request"
    assert await world.status("a") == "QUEUED"
