"""A whole store is written to a file, brought back from one, frozen, thawed and checked, on every engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.backends.port import DataCorrupt, Dump, Event, Key, LogEntry, Row, Write
from statesvc.store import administration as administering
from statesvc.store import own
from statesvc.store.administration import Administration
from statesvc.store.clock import SECOND
from statesvc.store.deduplication import GUARD, guarded
from statesvc.store.snapshots import inspect
from statesvc.store.syncing import sync
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import BadRequest, Busy, Internal, LeaseLost, NotFound, StateError, Unavailable
from tests.engines.addresses import address_of
from tests.engines.rows import commit
from tests.store.conftest import World, code_of

YEAR = 365 * 86_400


def silently(done: int, total: int) -> None:
    """Nobody wants to know how far it is."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "below"


@pytest.fixture
def admin(world: World, data: Path) -> Administration:
    made = Administration(world.store, data)
    made.restored.append(world.duties.start_over)
    return made


async def again(world: World, data: Path) -> tuple[World, Administration]:
    """Another daemon on the same store, after a restart."""
    other = await world.restarted()
    admin = Administration(other.store, data)
    await admin.load()
    return other, admin


async def everything(world: World) -> dict[Key, Row]:
    """All rows but the daemon's own."""
    await world.store.commits.settled()
    dump = await world.engine.dump()
    return {row.key: row async for rows in dump.rows for row in rows if row.kind != own.KIND}


async def whole_log(world: World) -> list[LogEntry]:
    found: list[LogEntry] = []
    while entries := await world.engine.read_log(found[-1].cursor if found else "", 1000):
        found += entries
    return found


@asynccontextmanager
async def written_to(world: World) -> AsyncIterator[Callable[[], int]]:
    """Somebody creates, changes and deletes records all the time; tells how often."""
    chance, writes = random.Random(7), 0

    async def write() -> None:
        nonlocal writes
        while True:
            name = f"job-{chance.randint(0, 149)}"
            with suppress(StateError):
                if chance.random() < 0.1:
                    await world.write(wire.Delete(id=name))
                else:
                    await world.write(wire.Update(id=name, inc={"n": 1}, upsert=True))
            writes += 1
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    try:
        yield lambda: writes
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        await world.store.commits.settled()


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


# --- snapshot and restore ------------------------------------------------------------------------------------------


async def test_a_snapshot_under_load_restores_exactly_the_state_at_its_cursor(world, admin, data, monkeypatch):
    monkeypatch.setattr(administering, "BLOCK_BYTES", 4000)
    for number in range(100):
        await world.create(f"job-{number}", pad="x" * 100)
    async with written_to(world) as writes:
        before = writes()
        await until(lambda: writes() > before + 20)
        at_start = await everything(world)
        done = await admin.snapshot("s.snapshot", silently)
        at_end = writes()
        await until(lambda: writes() > at_end + 20)
    log = await whole_log(world)
    await admin.restore("s.snapshot", silently)
    restored = await everything(world)
    assert done["rows"] == len(restored)
    if not address_of(world.engine).exact_dump:
        told = {(entry.row.key, entry.row.stamp): entry.row for entry in log}
        assert restored.keys() >= at_start.keys()
        for key, row in restored.items():
            assert row == told[key, row.stamp]
            assert key not in at_start or row.uid != at_start[key].uid or row.revision >= at_start[key].revision
    else:
        cursor = int(inspect(data / "s.snapshot").header.cursor)
        behind = [entry for entry in log if int(entry.cursor) > cursor]
        assert behind, "nothing was written while the snapshot was"
        assert restored == {entry.row.key: entry.row for entry in log if int(entry.cursor) <= cursor}


async def test_what_was_made_since_is_gone_and_what_was_changed_is_as_it_was(world, admin):
    before = await world.create("job-1", x=1)
    await world.create("job-2")
    done = await admin.snapshot("s.snapshot", silently)
    await world.update("job-1", x=2)
    await world.write(wire.Delete(id="job-2"))
    await world.create("job-3")
    epoch = world.engine.epoch
    told = await admin.restore("s.snapshot", silently)
    assert await world.get("job-1") == before
    assert await world.get("job-2") is not None
    assert await world.get("job-3") is None
    assert world.engine.epoch != epoch
    assert done["cursor"].startswith(f"{epoch}.")
    assert {**told, "bytes": done["bytes"]} == done
    assert done["kinds"] == {"job": 2}


async def test_a_write_of_before_the_snapshot_is_recognised_after_it(world, admin):
    await world.create("job-1")
    once = wire.Update(id="job-1", inc={"n": 1}, seq=5, floor=5)
    await world.write(once)
    await admin.snapshot("s.snapshot", silently)
    await world.write(wire.Update(id="job-1", inc={"n": 1}, seq=6, floor=6))
    await admin.restore("s.snapshot", silently)
    for seq in (5, 6, 5, 6):
        await world.write(wire.Update(id="job-1", inc={"n": 1}, seq=seq, floor=seq, again=True))
    assert (await world.get("job-1"))["n"] == 2


async def test_tombstones_come_back_so_that_a_late_write_revives_nothing(world, admin):
    await world.create("job-1")
    await world.write(wire.Delete(id="job-1"))
    done = await admin.snapshot("s.snapshot", silently)
    await world.create("job-1")
    await admin.restore("s.snapshot", silently)
    assert done["tombstones"] == 1
    late = wire.Update(id="job-1", job={"status": "RUNNING"})
    assert await code_of(world.write(late, Caller())) == "not_found"


async def test_cursors_of_before_a_restore_are_gone(world, admin):
    await world.create("job-1")
    cursor = await world.store.cursor()
    await admin.snapshot("s.snapshot", silently)
    await admin.restore("s.snapshot", silently)
    assert not cursor.startswith(world.engine.epoch)
    assert await whole_log(world) == []


async def test_who_asked_is_told_that_everything_was_replaced(world, admin):
    told = []
    admin.restored.append(lambda: told.append(world.engine.epoch))
    await admin.snapshot("s.snapshot", silently)
    await admin.restore("s.snapshot", silently)
    assert told == [world.engine.epoch]


async def test_a_damaged_snapshot_changes_nothing_and_writes_go_on(world, admin, data):
    await world.create("job-1", pad="x" * 300)
    await admin.snapshot("s.snapshot", silently)
    await world.update("job-1", x=2)
    path = data / "s.snapshot"
    whole = bytearray(path.read_bytes())
    whole[-80] ^= 1
    path.write_bytes(whole)
    before, epoch = await everything(world), world.engine.epoch
    with pytest.raises(BadRequest, match=r"s\.snapshot is damaged"):
        await admin.restore("s.snapshot", silently)
    assert (await everything(world), world.engine.epoch) == (before, epoch)
    await world.update("job-1", x=3)


async def test_a_load_that_fails_leaves_what_was_there_and_thaws(world, admin, monkeypatch):
    await world.create("job-1")
    await admin.snapshot("s.snapshot", silently)
    await world.create("job-2")

    async def failing(rows: AsyncIterator[list[Row]]) -> None:
        await anext(rows)
        raise Internal("the disk failed")

    before, floor = await everything(world), world.store.token_floor
    monkeypatch.setattr(world.engine, "load", failing)
    with pytest.raises(Internal):
        await admin.restore("s.snapshot", silently)
    assert await everything(world) == before
    assert world.store.token_floor == floor
    await world.create("job-3")


async def test_a_snapshot_that_changes_between_verifying_and_loading_changes_nothing(world, admin, data):
    await world.create("job-1", pad="x" * 300)
    await admin.snapshot("s.snapshot", silently)
    await world.create("job-2")
    path = data / "s.snapshot"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1

    def spoil(done: int, total: int) -> None:
        if done * 2 <= total:
            path.write_bytes(whole)

    before = await everything(world)
    with pytest.raises(BadRequest, match="is damaged"):
        await admin.restore("s.snapshot", spoil)
    assert await everything(world) == before
    await world.create("job-3")


async def test_writes_during_a_restore_are_refused_and_reads_go_on(world, admin, monkeypatch):
    await world.create("job-1")
    await admin.snapshot("s.snapshot", silently)
    load, loading, go_on = world.engine.load, asyncio.Event(), asyncio.Event()

    async def slowly(rows: AsyncIterator[list[Row]]) -> None:
        loading.set()
        await go_on.wait()
        await load(rows)

    monkeypatch.setattr(world.engine, "load", slowly)
    restoring = asyncio.create_task(admin.restore("s.snapshot", silently))
    await loading.wait()
    for request in (wire.Create(id="job-2", record={}), wire.Delete(id="job-1")):
        with pytest.raises(Unavailable) as refused:
            await world.write(request)
        assert refused.value.outcome == "not_applied"
    assert await world.get("job-1") is not None
    # Not even what nobody is told of: it would be lost, or be written over what is restored.
    with pytest.raises(Unavailable):
        world.store.commits.add((Write(own.row(world.store, own.FREEZE), None, None),))
    assert not (await world.round()).lapsed
    go_on.set()
    await restoring
    await world.create("job-2")


async def test_one_thing_at_a_time(world, admin, monkeypatch):
    dump, dumping, go_on = world.engine.dump, asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        dumping.set()
        await go_on.wait()
        return await dump()

    monkeypatch.setattr(world.engine, "dump", slowly)
    snapshot = asyncio.create_task(admin.snapshot("s.snapshot", silently))
    await dumping.wait()
    for other in (admin.snapshot(None, silently), admin.restore("s.snapshot", silently), admin.check(silently)):
        with pytest.raises(Busy, match="a snapshot is under way"):
            await other
    go_on.set()
    await snapshot


async def test_a_daemon_that_stops_ends_a_snapshot_and_leaves_nothing_of_it(world, admin, data, monkeypatch):
    monkeypatch.setattr(administering, "BLOCK_BYTES", 1000)
    for number in range(50):
        await world.create(f"job-{number}", pad="x" * 200)

    def stop(done: int, total: int) -> None:
        admin.give_up()

    with pytest.raises(Unavailable, match="stopping"):
        await admin.snapshot("s.snapshot", stop)
    await admin.stop()
    assert list(data.iterdir()) == []


async def test_a_daemon_that_stops_ends_a_restore_and_keeps_what_was_there(world, admin, monkeypatch):
    monkeypatch.setattr(administering, "BLOCK_BYTES", 1000)
    for number in range(50):
        await world.create(f"job-{number}", pad="x" * 200)
    await admin.snapshot("s.snapshot", silently)
    await world.create("job-new")

    def stop_in_the_second_half(done: int, total: int) -> None:
        if done * 2 > total:
            admin.give_up()

    with pytest.raises(Unavailable, match="stopping"):
        await admin.restore("s.snapshot", stop_in_the_second_half)
    await admin.stop()
    assert await world.get("job-new") is not None


# --- leases and tokens ---------------------------------------------------------------------------------------------


async def test_a_restored_lease_has_its_full_time_anew(world, admin):
    token = await world.lock(ttl=10)
    await admin.snapshot("s.snapshot", silently)
    await world.pass_by(9)
    await admin.restore("s.snapshot", silently)
    assert token is not None
    assert (await world.pass_by(9)).lapsed == 0
    assert await world.lock(holder="b") is None
    assert (await world.renew("lock", token)).holder == "a"
    assert (await world.pass_by(11)).lapsed == 1


async def test_a_token_given_out_since_the_snapshot_never_comes_again(world, admin):
    given = await world.lock()
    assert given is not None
    await world.write(wire.Release(kind="lock", id="lock", token=given))
    await admin.snapshot("s.snapshot", silently)
    late = await world.lock(holder="late")
    first = await world.lock("made since", holder="late")
    await admin.restore("s.snapshot", silently)
    assert late is not None
    assert first is not None
    for name, token in (("lock", late), ("made since", first)):
        fresh = await world.lock(name, holder="b")
        assert fresh is not None
        assert fresh > token
        with pytest.raises(LeaseLost):
            await world.update(name, "lock", token=token, x=1)


async def test_tokens_stay_above_those_of_before_after_a_restart_and_a_second_restore(world, admin, data):
    await world.lock()
    await admin.snapshot("s.snapshot", silently)
    await admin.restore("s.snapshot", silently)
    given = await world.lock("other")
    other, admin = await again(world, data)
    assert other.store.token_floor == world.store.token_floor
    # The clock was set back to before everything, and the snapshot knows of no restore.
    other.clock.wall = 5 * SECOND
    await admin.restore("s.snapshot", silently)
    fresh = await other.lock("other")
    assert given is not None
    assert fresh is not None
    assert fresh > given


async def test_a_snapshot_of_a_restored_store_carries_the_floor_of_its_tokens(world, admin, data):
    await admin.snapshot("a.snapshot", silently)
    await admin.restore("a.snapshot", silently)
    await admin.snapshot("b.snapshot", silently)
    assert inspect(data / "b.snapshot").footer.highest_token == world.store.token_floor > 0


async def test_a_restored_row_carries_the_floor_for_daemons_that_do_not_know_it(world, admin, data):
    token = await world.lock()
    await admin.snapshot("s.snapshot", silently)
    await admin.restore("s.snapshot", silently)
    row = await world.row("lock", "lock")
    assert token < row.token <= world.store.token_floor
    assert (await world.get("lock", "lock"))["lease"]["token"] == token


# --- freeze and thaw -----------------------------------------------------------------------------------------------


async def test_while_frozen_writes_are_refused_and_reads_and_renewals_go_on(world, admin):
    await world.create("job-1")
    token = await world.lock()
    await admin.freeze()
    for request in (wire.Create(id="job-2", record={}), wire.Update(id="job-1", inc={"n": 1}), wire.Delete(id="job-1")):
        with pytest.raises(Unavailable, match="frozen") as refused:
            await world.write(request)
        assert refused.value.outcome == "not_applied"
    with pytest.raises(Unavailable):
        await world.claim(kind="lock", id="other", holder="b")
    assert await world.get("job-1") is not None
    assert token is not None
    assert (await world.renew("lock", token)).beat >= 1
    await admin.thaw()
    await world.create("job-2")


async def test_freezing_and_thawing_twice_is_as_good_as_once(world, admin):
    await admin.thaw()
    await admin.freeze()
    await admin.freeze()
    await admin.thaw()
    await world.create("job-1")


async def test_a_sync_that_has_begun_does_not_slip_past_a_freeze(world, admin):
    records = [{"uuid": f"job-{number}", "status": "QUEUED"} for number in range(3000)]
    syncing = asyncio.create_task(sync(world.store, wire.Sync(jobs=records), world.me))
    while (await world.engine.get([("job", "job-0")]))[0] is None:
        await asyncio.sleep(0)
    await admin.freeze()
    frozen = await everything(world)
    assert len(frozen) < len(records)
    with pytest.raises(Unavailable) as refused:
        await syncing
    assert refused.value.outcome == "unknown"
    assert await everything(world) == frozen


async def test_a_claim_that_waits_does_not_slip_past_a_freeze(world, admin):
    await world.lock(ttl=10)
    claim = wire.Claim(kind="lock", id="lock", holder="b", wait=60)
    waiting = asyncio.create_task(world.claims.claim(claim, world.me, set()))
    await until(lambda: bool(world.claims._lines))
    await admin.freeze()
    world.clock.forward(20)
    while not waiting.done():
        for each in world.claims._lines.get(("lock", "lock"), ()):
            each.wake()
        await asyncio.sleep(0)
    assert isinstance(waiting.exception(), Unavailable)
    assert (await world.get("lock", "lock"))["lease"]["holder"] == "a"


async def test_the_duties_rest_while_frozen_and_are_done_after_it(world, admin):
    await world.lock(ttl=10)
    await world.round()
    await admin.freeze()
    assert (await world.pass_by(60)).lapsed == 0
    assert (await world.get("lock", "lock"))["lease"]
    await admin.thaw()
    assert (await world.round()).lapsed == 1


async def test_a_freeze_outlives_a_restart_and_ends_with_thaw(world, admin, data):
    await admin.freeze()
    other, admin = await again(world, data)
    with pytest.raises(Unavailable):
        await other.create("job-1")
    await admin.thaw()
    other, admin = await again(other, data)
    await other.create("job-1")


async def test_a_record_a_client_made_under_that_name_freezes_nothing(world, admin, data):
    await world.create("freeze", kind=own.KIND)
    other, admin = await again(world, data)
    await other.create("job-1")
    await admin.freeze()
    other, admin = await again(other, data)
    assert other.store.frozen
    await admin.thaw()
    assert not other.store.frozen


async def test_a_frozen_store_is_frozen_after_a_restore_too(world, admin, data):
    await world.create("job-1")
    await admin.freeze()
    await admin.snapshot("s.snapshot", silently)
    await admin.restore("s.snapshot", silently)
    with pytest.raises(Unavailable, match="frozen"):
        await world.create("job-2")
    other, admin = await again(world, data)
    assert other.store.frozen
    await admin.thaw()
    await admin.restore("s.snapshot", silently)
    await other.create("job-2")


# --- check ---------------------------------------------------------------------------------------------------------


async def plant(world: World, row: Row, **changed: Any) -> None:
    """Put something wrong into a row, past all rules."""
    assert await commit(world.engine, [(Write(replace(row, **changed), row.stamp, None),)]) == ["applied"]


async def found_by(admin: Administration, **options: bool) -> list[str]:
    return (await admin.check(silently, **options)).problems


@pytest.mark.parametrize("damage", [Internal("a page is damaged"), DataCorrupt("a row is damaged")])
async def test_what_cannot_be_read_is_a_problem_and_hides_none_of_the_others(admin, world, monkeypatch, damage):
    await world.create("a")
    dump = await world.engine.dump()

    async def damaged_further_on() -> AsyncIterator[list[Row]]:
        async for rows in dump.rows:
            yield rows
        raise damage

    async def opened() -> Dump:
        return dump._replace(rows=damaged_further_on())

    async def found() -> list[str]:
        return ["an index is wrong"]

    with monkeypatch.context() as planted:
        planted.setattr(world.engine, "dump", opened)
        planted.setattr(world.engine, "check", found)
        assert await found_by(admin) == ["an index is wrong", f"not all records could be looked at: {damage}"]


async def test_a_store_in_use_has_nothing_wrong_with_it(world, admin):
    """Every kind of record the rules make: leased, scheduled, blocked, owned, ended, deleted."""
    await world.create("v", kind="volume")
    await world.create("m", kind="mount", volume="v", owner="job/ready")
    await world.create("n", kind="network", cidr="10.0.0.0/24")
    await world.create("n/10.0.0.2", kind="ip", network="n", address="10.0.0.2", owner="job/ready")
    await world.create("ready", priority="high", labels={"team": "red"}, nodeId="n1")
    await world.create("later", scheduledAt=world.text(60))
    await world.create("soon", startAfter=world.text(5))
    await world.create("after", dependsOn=["ready"])
    await world.create(
        "old", status="COMPLETED", createdAt="1999-12-31T23:59:60+02:00", completedAt="2000-01-01T00:00:00Z"
    )
    await world.create("gone")
    await world.write(wire.Delete(id="gone"))
    await world.lock()
    await world.claim(holder="w", limit=1)
    await world.create("timed", timeout=10, status="RUNNING", startTime="2025-10-26T00:00:00Z")
    world.clock.forward(10)
    found = await admin.check(silently)
    assert found.problems == []
    assert found.notes == []
    assert (found.records, found.tombstones) == (11, 1)
    assert found.references == 5
    await world.round()
    assert await found_by(admin) == []


async def test_a_row_that_disagrees_with_its_record_is_named(world, admin):
    await world.create("a")
    await plant(world, await world.row("a"), body=b'{"uuid":"b","uid":"x","revision":9}')
    problems = await found_by(admin)
    assert [text for text in problems if text.startswith("job a ")] == problems
    for field in ("uuid", "uid", "revision"):
        assert f"job a is stored with another {field} than the record has" in problems


async def test_a_record_that_cannot_be_read_is_named(world, admin):
    await world.create("a")
    row = await world.row("a")
    await plant(world, row, body=b'{"uuid":"a')
    assert await found_by(admin) == ["job a has a record that cannot be read: delete it, or restore a snapshot"]


async def test_a_token_that_was_never_given_out_is_named(world, admin):
    await world.lock()
    await plant(world, await world.row("lock", "lock"), token=0)
    assert await found_by(admin) == ["lock lock is leased with token 1, which was never given out: the newest is 0"]


async def test_wrong_index_keys_are_named_and_made_again(world, admin):
    await world.create("a", nodeId="n1", priority=3)
    await world.create("b", scheduledAt=world.text(60))
    good = await everything(world)
    row = await world.row("a")
    await plant(world, row, keys=replace(row.keys, node="n2", ready=None))
    row = await world.row("b")
    await plant(world, row, keys=replace(row.keys, due=None))
    assert sorted(await found_by(admin)) == [
        "job a is indexed otherwise than its record says, by node, ready",
        "job b is indexed otherwise than its record says, by ready and due",
    ]
    found = await admin.check(silently, repair=True)
    assert found.problems == []
    assert [text.partition(" is indexed")[0] for text in sorted(found.repaired)] == ["job a", "job b"]
    assert await everything(world) == good
    assert await found_by(admin) == []


async def test_a_tombstone_that_is_indexed_like_a_living_record_is_named(world, admin):
    await world.create("a")
    await world.write(wire.Delete(id="a"))
    row = await world.row("a")
    await plant(world, row, keys=replace(row.keys, node="n1"))
    assert await found_by(admin) == ["job a is deleted and still indexed like a living record"]


@pytest.mark.parametrize("repair", [False, True])
async def test_dangling_references_are_named_and_left_to_people(world, admin, repair):
    await world.create("m1", kind="mount", volume="never")
    await world.create("v", kind="volume")
    await world.create("m2", kind="mount", volume="v")
    await world.write(wire.Delete(kind="volume", id="v"))
    await world.create("n", kind="network", cidr="10.0.0.0/24")
    await world.create("i1", kind="ip", network="n", address="10.0.1.1")
    await world.create("i2", kind="ip", network="none", address="10.0.0.9")
    await world.create("i3", kind="ip", network="n", address="nonsense")
    await world.create("waits", dependsOn=["never"])
    await world.create("ran", dependsOn=["never"], status="COMPLETED")
    await world.create("kept", kind="kv", owner="job/never")
    before = await everything(world)
    found = await admin.check(silently, repair=repair)
    assert sorted(found.problems) == [
        "ip i1 has an address that is not in 10.0.0.0/24, the range of network n: remove it",
        "ip i2 names network none, which is not there: remove it, or bring back the network",
        "ip i3 has an address that is not in 10.0.0.0/24, the range of network n: remove it",
        "mount m1 names volume never, which is not there: remove it, or bring back the volume",
        "mount m2 names volume v, which was deleted: remove it, or bring back the volume",
    ]
    assert sorted(found.notes) == [
        "job waits waits for job never, which is not there: create it, or cancel what waits",
        "kv kept is owned by job never, which is not there, or no longer known",
    ]
    assert found.repaired == []
    assert await everything(world) == before


async def test_a_dedupe_key_kept_for_nobody_is_named(world, admin):
    guard = guarded((GUARD.name, "job/=k"), None, ("job", "never"), world.store.moment())
    assert await commit(world.engine, [(guard,)]) == ["applied"]
    assert await found_by(admin) == ["_dedupe job/=k keeps a dedupeKey for job never, which is not there"]


async def test_an_owner_that_ended_is_the_sweepers_and_no_problem(world, admin):
    await world.create("owner")
    await world.create("m", kind="kv", owner="job/owner")
    await world.write(wire.Delete(id="owner"))
    found = await admin.check(silently)
    assert (found.problems, found.notes) == ([], [])


async def test_what_changes_while_it_is_looked_at_is_not_called_wrong(world, admin, monkeypatch):
    """The mount was there in the dump; when its volume is looked for, both are gone."""
    await world.create("v", kind="volume")
    await world.create("m", kind="mount", volume="v")
    get, deleted = world.engine.get, False

    async def late(keys: Any) -> Any:
        nonlocal deleted
        if not deleted and list(keys) == [("volume", "v")]:
            deleted = True
            await world.write(wire.Delete(kind="mount", id="m"))
            await world.write(wire.Delete(kind="volume", id="v"))
        return await get(keys)

    monkeypatch.setattr(world.engine, "get", late)
    assert await found_by(admin) == []
    assert deleted


async def test_a_report_is_bounded(world, admin):
    rows = [Row("mount", f"m{number}", "u", 1, (await own_keys(world)), mount(f"m{number}")) for number in range(1100)]
    for begin in range(0, len(rows), 100):
        units = [(Write(row, None, Event("created", 1)),) for row in rows[begin : begin + 100]]
        await commit(world.engine, units)
    found = await admin.check(silently)
    assert len(found.problems) == 1000
    assert found.truncated
    assert found.records == 1100


async def own_keys(world: World) -> Any:
    return own.row(world.store, own.FREEZE).keys


def mount(name: str) -> bytes:
    return b'{"id":"%s","uid":"u","revision":1,"createdAt":5,"volume":"v"}' % name.encode()


async def test_progress_is_told_and_ends_at_the_whole(world, admin, monkeypatch):
    monkeypatch.setattr(administering, "BLOCK_BYTES", 1000)
    for number in range(60):
        await world.create(f"job-{number}", pad="x" * 100)
    for work in (admin.snapshot, admin.restore):
        told: list[tuple[int, int]] = []
        await work("s.snapshot", lambda *so_far, told=told: told.append(so_far))
        assert len(told) > 3
        assert told == sorted(told)
        assert all(done <= total for done, total in told)
    told = []
    await admin.check(lambda *so_far: told.append(so_far))
    assert told[-1] == (60, 61)  # one of them is the daemon's own


async def test_an_unknown_name_is_not_found_and_no_folder_is_made(world, admin, data):
    with pytest.raises(NotFound):
        await admin.restore("nothing.snapshot", silently)
    assert not data.exists()


async def test_snapshots_without_a_name_are_called_after_the_time(world, admin, data):
    done = await admin.snapshot(None, silently)
    assert done["path"] == "snapshots/20270115T080000.000Z.snapshot"
    assert inspect(data / done["path"]).footer.rows == done["rows"]
