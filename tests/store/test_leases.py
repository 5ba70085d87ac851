"""Leases: one holder at a time, tokens that grow, and no clock but the daemon's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from statesvc.answers import Waits
from statesvc.backends.port import Engine
from statesvc.store.leases import Leases
from statesvc.store.records import decode
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import LeaseLost
from tests.engines.faulty import FaultyEngine
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.conftest import HandClock, World, code_of


@asynccontextmanager
async def served(engine: Engine, clock: HandClock) -> AsyncIterator[World]:
    await engine.open()
    world = World(engine, clock=clock)
    world.store.start()
    async with asyncio.timeout(60):
        yield world
    await world.store.stop()
    await engine.close()


async def decided(world: World, revision: int) -> None:
    """Wait until that revision of job a is under way."""
    while (pending := world.store.commits.pending(("job", "a"))) is None or pending[0].revision < revision:
        await asyncio.sleep(0)


async def test_a_lock_is_made_when_absent_and_has_one_holder(world: World):
    assert await world.lock(holder="a") == 1
    assert await world.lock(holder="b") is None
    held = await world.get("lock", "lock")
    assert held is not None
    origin = held["lease"].pop("origin")
    assert origin.startswith("~")
    assert held["lease"] == {"holder": "a", "token": 1, "ttl": 30.0, "beat": 0}
    assert held["expiresAt"] == world.text(30)


async def test_the_same_holder_does_not_get_what_it_already_has(world: World):
    assert await world.lock(holder="a") == 1
    assert await world.lock(holder="a") is None


async def test_of_many_who_race_for_a_lock_one_gets_it(world: World):
    tokens = await asyncio.gather(*(world.lock(holder=f"h{number}") for number in range(20)))
    assert sorted(token for token in tokens if token is not None) == [1]


async def test_the_token_grows_over_release_delete_and_rebirth(world: World):
    tokens = [await world.lock()]
    await world.write(wire.Release(kind="lock", id="lock", token=1))
    tokens.append(await world.lock())
    await world.write(wire.Delete(kind="lock", id="lock"))
    tokens.append(await world.lock())
    assert tokens == [1, 2, 3]


async def test_a_lease_is_not_forgotten_for_a_row_from_before_it(world: World):
    """The answer to a commit may come behind what the log tells of the next one."""
    await world.create("a", status="QUEUED")
    queued = await world.row("a")
    (claimed,) = await world.claim()
    held = await world.row("a")
    await world.write(wire.Release(job_id="a", token=claimed["lease"]["token"]))
    given_back = await world.row("a")
    assert queued is not None
    assert held is not None
    assert given_back is not None
    leases = Leases()
    for tell in (leases.told, leases.note):
        leases.note(held)
        tell(queued)
        assert held.key in leases.seen
        tell(given_back)
        assert held.key not in leases.seen


async def test_what_is_stored_tells_of_a_lease_that_is_gone_or_never_came_about(world: World):
    await world.create("a", status="QUEUED")
    queued = await world.row("a")
    (claimed,) = await world.claim()
    held = await world.row("a")
    assert queued is not None
    assert held is not None
    leases = Leases()
    for stored in (queued, None):
        leases.note(held)
        leases.looked_at(held.key, msgspec.convert(claimed["lease"], wire.Lease), stored)
        assert not leases.seen


async def test_a_row_that_was_asked_for_before_a_lease_was_seen_tells_nothing_of_it(world: World):
    await world.create("a", status="QUEUED")
    (first,) = await world.claim()
    await world.write(wire.Release(job_id="a", token=first["lease"]["token"]))
    given_back = await world.row("a")
    await world.claim()
    held = await world.row("a")
    assert given_back is not None
    assert held is not None
    leases = Leases()
    leases.note(held)
    leases.looked_at(held.key, msgspec.convert(first["lease"], wire.Lease), given_back)
    assert held.key in leases.seen


async def test_a_lease_that_another_daemon_deleted_is_forgotten_whatever_was_decided_here_meanwhile():
    storage, clock = WeakStorage(unknown=0.0), HandClock()
    faulty = FaultyEngine(WeakEngine(storage))
    async with served(faulty, clock) as here, served(WeakEngine(storage), clock) as there:
        await here.create("a", status="QUEUED")
        await here.caught_up()
        (claimed,) = await here.claim(ttl=30.0)
        faulty.hold()
        progress = []
        for n in range(4):
            update = wire.Update(id="a", record={"progress": n}, token=claimed["lease"]["token"])
            progress.append(asyncio.create_task(here.write(update)))
            await decided(here, claimed["revision"] + n + 1)
        await there.write(wire.Delete(id="a"))
        faulty.let_go()
        assert {type(each) for each in await asyncio.gather(*progress, return_exceptions=True)} == {LeaseLost}
        clock.forward(10)
        await here.round()
        assert ("job", "a") not in here.store.leases.seen


async def test_a_guarded_write_passes_with_the_newest_token_only(world: World):
    first = await world.lock()
    assert first is not None
    await world.update("lock", "lock", token=first, note="mine")
    await world.write(wire.Release(kind="lock", id="lock", token=first))
    assert await code_of(world.update("lock", "lock", token=first, note="late")) == "lease_lost"
    second = await world.lock(holder="b")
    assert await code_of(world.update("lock", "lock", token=first, note="late")) == "lease_lost"
    assert (await world.update("lock", "lock", token=second, note="newer"))["note"] == "newer"
    await world.write(wire.Delete(kind="lock", id="lock"))
    assert await code_of(world.update("lock", "lock", token=second, note="gone")) == "lease_lost"


@pytest.mark.parametrize("op", [wire.Renew, wire.Release])
async def test_renewing_and_releasing_need_the_newest_token(world: World, op: type):
    await world.lock()
    for token in (2, 99):
        request = op(kind="lock", id="lock", token=token, record={"x": 1})
        assert await code_of(world.write(request)) == "lease_lost"
    assert await code_of(world.write(op(kind="lock", id="nothing", token=1, record={"x": 1}))) == "lease_lost"


async def test_a_lease_lapses_when_nothing_was_heard_for_its_ttl(world: World):
    await world.lock(ttl=10.0)
    await world.pass_by(9.9)
    assert await world.lock(holder="b") is None
    done = await world.pass_by(0.2)
    assert done.lapsed == 1
    free = await world.get("lock", "lock")
    assert free is not None
    assert "lease" not in free
    assert "expiresAt" not in free
    assert await world.lock(holder="b") == 2


async def test_a_holder_that_was_silent_for_its_ttl_is_refused_before_anybody_else_gets_the_lock(world: World):
    token = await world.lock(ttl=10.0, hold=5.0)
    await world.round()
    world.clock.forward(10.5)
    for request in (
        wire.Update(kind="lock", id="lock", token=token, record={"late": True}),
        wire.Renew(kind="lock", id="lock", token=token or 0, record={}),
        wire.Release(kind="lock", id="lock", token=token or 0),
    ):
        assert await code_of(world.write(request)) == "lease_lost"
    assert await code_of(world.renew("lock", token or 0)) == "lease_lost"
    assert await world.lock(holder="b") is None


async def test_a_token_alone_guards_a_write_that_changes_nothing_else(world: World):
    token = await world.lock()
    assert (await world.write(wire.Update(kind="lock", id="lock", token=token)))["revision"] == 2
    assert await code_of(world.write(wire.Update(kind="lock", id="lock", token=9))) == "lease_lost"
    assert await code_of(world.write(wire.Update(kind="lock", id="lock"))) == "bad_request"


async def test_a_renewed_lease_lives_on(world: World):
    token = await world.lock(ttl=10.0)
    assert token is not None
    beat = 0
    for _ in range(5):
        await world.pass_by(9.0)
        renewed = await world.renew("lock", token)
        assert renewed.beat > beat
        beat = renewed.beat
    assert await world.lock(holder="b") is None
    held = await world.get("lock", "lock")
    assert held is not None
    assert held["expiresAt"] == world.text(10)
    assert held["lease"]["beat"] == beat


async def test_a_bare_renewal_makes_no_revision_and_no_event(world: World):
    token = await world.lock()
    assert token is not None
    before, position = await world.row("lock", "lock"), await world.engine.position()
    await world.renew("lock", token)
    after = await world.row("lock", "lock")
    assert before is not None
    assert after is not None
    assert after.revision == before.revision
    assert await world.engine.read_log(position, 10) == []


async def test_a_renewal_with_a_patch_is_a_change(world: World):
    token = await world.lock(ttl=10.0)
    await world.pass_by(9.0)
    renewed = await world.write(wire.Renew(kind="lock", id="lock", token=token or 0, record={"progress": 5}))
    assert (renewed["progress"], renewed["lease"]["beat"], renewed["revision"]) == (5, 1, 2)
    await world.pass_by(9.0)
    assert await world.lock(holder="b") is None


async def test_a_write_by_another_is_no_sign_of_life(world: World):
    await world.lock(ttl=10.0)
    await world.pass_by(6.0)
    await world.update("lock", "lock", note="from somebody else")
    assert (await world.pass_by(5.0)).lapsed == 1


async def test_an_update_keeps_the_beat_of_renewals_that_were_not_stored(world: World):
    token = await world.lock(ttl=10.0)
    assert token is not None
    await world.renew("lock", token)
    updated = await world.update("lock", "lock", note="x")
    assert updated["lease"]["beat"] == 1


async def test_a_renewal_between_two_writes_that_wait_for_their_commit_does_not_keep_the_lease_for_ever(world: World):
    token = await world.lock(ttl=10.0)
    assert token is not None
    await world.round()
    for number in range(2):
        update = wire.Update(kind="lock", id="lock", record={"n": number})
        if world.engine.immediate:
            world.store.write_now(update, world.me)
        else:
            await world.write(update)
        if number == 0:
            await world.store.renew(wire.Renew(kind="lock", id="lock", token=token))
    await world.store.commits.settled()
    held = await world.get("lock", "lock")
    assert held is not None
    assert held["lease"]["beat"] >= 1
    assert (await world.pass_by(10.5)).lapsed == 1


async def test_a_lease_that_is_not_as_it_was_seen_has_its_time_from_now_on(world: World):
    await world.lock(ttl=10.0)
    await world.round()
    row = await world.row("lock", "lock")
    assert row is not None
    body = decode(row.body)
    body["lease"]["beat"] = 7
    world.store.leases.renewed(msgspec.structs.replace(row, revision=99), msgspec.convert(body["lease"], wire.Lease))
    assert (await world.pass_by(11.0)).lapsed == 0
    assert (await world.pass_by(11.0)).lapsed == 1


async def test_after_a_restart_every_lease_gets_its_full_ttl_anew(world: World):
    await world.lock(ttl=10.0)
    await world.pass_by(9.0)
    again = await world.restarted()
    await again.pass_by(9.0)
    assert await again.lock(holder="b") is None
    assert (await again.pass_by(1.5)).lapsed == 1
    await again.store.stop()


async def test_after_a_restart_a_lease_has_the_ttl_that_its_last_renewal_was_told(world: World):
    token = await world.lock(ttl=10.0)
    assert token is not None
    await world.renew("lock", token)
    assert (await world.renew("lock", token, ttl=100.0)).ttl == 100.0
    assert (await world.renew("lock", token)).ttl == 100.0
    again = await world.restarted()
    await again.pass_by(90.0)
    assert await again.lock(holder="b") is None
    assert (await again.pass_by(11.0)).lapsed == 1
    await again.store.stop()


async def test_renewals_around_one_that_brings_another_ttl_all_count(world: World):
    token = await world.lock(ttl=10.0)
    assert token is not None
    beats = [(await world.renew("lock", token, ttl=ttl)).beat for ttl in (None, 20.0, None, 20.0, 10.0, None)]
    assert beats == sorted(set(beats))
    assert (await world.pass_by(9.0)).lapsed == 0
    assert (await world.pass_by(2.0)).lapsed == 1


@pytest.mark.parametrize("jump", [-86_400, 10 * 366 * 86_400])
async def test_a_jump_of_the_wall_clock_neither_ends_nor_keeps_a_lease(world: World, jump: int):
    await world.lock(ttl=10.0)
    await world.pass_by(5.0)
    world.clock.wall += jump * 10**9
    await world.pass_by(1.0)
    assert await world.lock(holder="b") is None
    assert (await world.pass_by(5.0)).lapsed == 1


async def test_hold_keeps_a_lapsed_lock_from_others_for_a_while(world: World):
    await world.lock(ttl=10.0, hold=5.0)
    await world.pass_by(12.0)
    assert await world.lock(holder="b") is None
    await world.pass_by(4.0)
    assert await world.lock(holder="b") == 2


async def test_a_claim_retakes_a_lapsed_lock_without_waiting_for_the_duties(world: World):
    await world.lock(ttl=10.0)
    assert await world.lock(holder="b") is None
    world.clock.forward(11.0)
    assert await world.lock(holder="b") == 2


async def test_a_claim_by_id_leaves_the_state_alone_and_takes_a_patch(world: World):
    await world.create("op", "operation", status="idle")
    (claimed,) = await world.claim(kind="operation", id="op", holder="a", record={"info": {"table": "users"}})
    assert (claimed["status"], claimed["info"]) == ("idle", {"table": "users"})
    (claimed,) = await world.claim(kind="operation", id="other", holder="a", status="running")
    assert claimed["status"] == "running"
    assert claimed["startedAt"] == world.text()


async def test_a_released_lock_can_be_taken_at_once_and_keeps_its_fields(world: World):
    token = await world.lock(record={"info": "x"})
    released = await world.write(wire.Release(kind="lock", id="lock", token=token or 0, record={"last": "a"}))
    assert "lease" not in released
    assert (released["info"], released["last"]) == ("x", "a")
    assert await world.lock(holder="b") == 2


async def test_a_claim_sent_again_finds_what_it_got(world: World):
    first = await world.claims.claim(wire.Claim(kind="lock", id="l", seq=5), world.me, set())
    await world.caught_up()
    again = await world.claims.claim(wire.Claim(kind="lock", id="l", seq=5, again=True), world.me, set())
    assert again.duplicate
    assert [row.token for row in again.rows] == [row.token for row in first.rows] == [1]
    other = Caller(said_hello=True, client="other", name="other")
    assert (await world.claims.claim(wire.Claim(kind="lock", id="l", seq=5, again=True), other, set())).rows == []


async def test_a_claim_sent_again_after_its_lease_was_lost_is_a_new_claim(world: World):
    await world.create("job-1")
    await world.caught_up()
    first = await world.claims.claim(wire.Claim(seq=5, ttl=1.0), world.me, set())
    assert [row.id for row in first.rows] == ["job-1"]
    await world.pass_by(2.0)
    await world.caught_up()
    again = await world.claims.claim(wire.Claim(seq=5, again=True), world.me, set())
    assert not again.duplicate
    assert [row.token for row in again.rows] == [2]


async def test_a_release_sent_again_is_recognised(world: World):
    await world.create("job-1")
    await world.claim()
    request = wire.Release(id="job-1", token=1, status="COMPLETED", seq=9)
    await world.write(request)
    again = wire.Release(id="job-1", token=1, status="COMPLETED", seq=9, again=True)
    if world.engine.immediate:
        assert world.store.write_now(again, world.me).duplicate_of == 3
    else:
        assert (await world.store.write(again, world.me)).duplicate_of == 3


async def test_a_claim_names_its_holder_or_is_refused(world: World):
    assert await code_of(world.claim(Caller(said_hello=True), kind="lock", id="l")) == "bad_request"
    (named,) = await world.claim(Caller(said_hello=True, name="agent"), kind="lock", id="l")
    assert named["lease"]["holder"] == "agent"


async def test_a_claim_that_cannot_work_is_refused(world: World):
    assert await code_of(world.claim(kind="kv", filter={})) == "bad_request"
    assert await code_of(world.claim(id="a", filter={})) == "bad_request"
    assert await code_of(world.claim(filter={"nonsense": 1})) == "bad_request"
    assert await code_of(world.claim(status="COMPLETED")) == "bad_request"


async def test_the_lease_names_the_boot_of_its_holder(world: World):
    await world.claim(Caller(said_hello=True, name="n", boot_id="boot-1"), kind="worker", id="w")
    worker = await world.get("w", "worker")
    assert worker is not None
    assert worker["lease"]["bootId"] == "boot-1"


async def test_waiting_for_a_lock_ends_when_it_is_free(world: World):
    token = await world.lock()
    waiting = asyncio.create_task(
        world.claims.claim(wire.Claim(kind="lock", id="lock", holder="b", wait=60.0), world.me, set())
    )
    while not world.claims._lines:
        await asyncio.sleep(0)
    await world.write(wire.Release(kind="lock", id="lock", token=token or 0))
    assert [row.token for row in (await waiting).rows] == [2]


async def test_a_wait_that_is_withdrawn_gets_nothing_and_takes_nothing(world: World):
    waits: set[asyncio.Future[None]] = set()
    request = wire.Claim(holder="b", wait=60.0)
    waiting = asyncio.create_task(world.claims.claim(request, world.me, waits))
    while not waits:
        await asyncio.sleep(0)
    for wait in waits:
        wait.cancel()
    assert (await waiting).rows == []
    await world.create("job-1")
    assert await world.status("job-1") == "QUEUED"


async def test_a_wait_that_is_withdrawn_before_it_has_begun_takes_nothing(world: World):
    waits = Waits()
    waits.is_over = True
    await world.create("job-1")
    await world.caught_up()
    assert (await world.claims.claim(wire.Claim(holder="b", wait=60.0), world.me, waits)).rows == []
    assert await world.status("job-1") == "QUEUED"


async def test_those_who_wait_for_a_queue_are_served_in_the_order_they_came(world: World):
    waits: list[set[asyncio.Future[None]]] = [set() for _ in range(3)]
    waiting = []
    for number, wait in enumerate(waits):
        request = wire.Claim(holder=f"w{number}", wait=60.0)
        waiting.append(asyncio.create_task(world.claims.claim(request, world.me, wait)))
        while not wait:
            await asyncio.sleep(0)
    for number in range(3):
        await world.create(f"job-{number}")
        await world.caught_up()
        got = await waiting[number]
        assert [row.id for row in got.rows] == [f"job-{number}"]


async def test_a_daemon_that_stood_still_itself_does_not_count_the_time(world: World):
    token = await world.lock(ttl=10.0)
    await world.round()
    for _ in range(3):
        assert world.store.leases.tick() == 0.0
        world.clock.forward(60.0)
        # Whatever comes first when it goes on, a round or what a holder has sent meanwhile.
        assert (await world.round()).lapsed == 0
        assert (await world.renew("lock", token or 0)).token == 1
        assert world.store.leases.tick() > 59.0
        assert (await world.round()).lapsed == 0
    for _ in range(41):
        world.clock.forward(0.25)
        world.store.leases.tick()
    assert (await world.round()).lapsed == 1


async def test_a_daemon_that_stands_still_in_a_round_does_not_count_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    token = await world.lock(ttl=10.0)
    await world.round()
    went_on = asyncio.Event()

    async def stand_still() -> tuple[int, int]:
        world.clock.forward(60.0)
        went_on.set()
        return 0, 0

    monkeypatch.setattr(world.duties._retention, "step", stand_still)
    running = asyncio.create_task(world.duties.run())
    await went_on.wait()
    assert (await world.renew("lock", token or 0)).token == 1
    running.cancel()
    await asyncio.wait([running])


async def test_leases_that_were_given_back_leave_nothing_behind(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("statesvc.store.leases.SPARE_PLANS", 100)
    for number in range(150):
        token = await world.lock(f"l{number % 3}", ttl=86_400.0)
        await world.write(wire.Release(kind="lock", id=f"l{number % 3}", token=token or 0))
    assert len(world.store.leases) == 0
    assert len(world.store.leases._ends) <= 100 + 3
    assert not world.store.leases._by_origin


async def test_deletes_and_events_can_be_guarded_too(world: World):
    await world.lock()
    for token, refused in ((9, True), (1, False)):
        for request in (
            wire.Emit(kind="lock", id="lock", event=wire.Told("x"), token=token),
            wire.Delete(kind="lock", id="lock", token=token),
        ):
            if refused:
                assert await code_of(world.write(request)) == "lease_lost"
            else:
                await world.write(request)


async def test_a_token_does_not_come_again_when_an_id_does(world: World):
    await world.create("a")
    (claimed,) = await world.claim()
    await world.write(wire.Delete(id="a"))
    world.clock.forward(30 * 86_400)
    await world.caught_up()
    await world.duties.sweep()
    assert await world.row("a") is None
    await world.create("a")
    (again,) = await world.claim()
    assert again["lease"]["token"] > claimed["lease"]["token"]
    assert await code_of(world.update("a", token=claimed["lease"]["token"], late=True)) == "lease_lost"


async def test_eight_who_wait_get_eight_records_however_they_come(world: World, monkeypatch: pytest.MonkeyPatch):
    # Who lost a race for the record it was woken for finds another when it looks again.
    monkeypatch.setattr("statesvc.store.claims.LOOK_AGAIN_SECONDS", 0.1)
    for round_ in range(5):
        waits: list[set[asyncio.Future[None]]] = [set() for _ in range(8)]
        claims = [
            asyncio.create_task(world.claims.claim(wire.Claim(holder="w", wait=60.0), world.me, wait)) for wait in waits
        ]
        while not all(waits):
            await asyncio.sleep(0)
        for number in range(8):
            await world.create(f"job-{round_}-{number}")
        got = [row.id for claimed in await asyncio.gather(*claims) for row in claimed.rows]
        assert len(got) == len(set(got)) == 8


async def test_a_waiting_claim_gets_only_what_still_passes_its_filter(world: World):
    waits: set[asyncio.Future[None]] = set()
    request = wire.Claim(holder="w", filter={"labels": {"z": "1"}}, wait=60.0)
    waiting = asyncio.create_task(world.claims.claim(request, world.me, waits))
    while not waits:
        await asyncio.sleep(0)
    if world.engine.immediate:
        world.store.write_now(wire.Create(job={"uuid": "a", "status": "QUEUED", "labels": {"z": "1"}}), world.me)
        world.store.write_now(wire.Update(job_id="a", job={"labels": {"z": "2"}}), world.me)
    else:
        await world.create("a", labels={"z": "2"})
    await world.create("b", labels={"z": "1"})
    assert [row.id for row in (await waiting).rows] == ["b"]
