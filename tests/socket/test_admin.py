"""What admins ask for: snapshot, restore, check, sweep, freeze, thaw and feed, and nobody else gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.port import Row
from statesvc.store import administration
from statesvc.store.snapshots import inspect
from tests.engines.addresses import EVERY
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Json, Talker

ADMIN_OPS = ["snapshot", "restore", "check", "sweep", "freeze", "thaw", "feed"]


@pytest.fixture
async def admin(daemon: Daemon) -> Talker:
    return await daemon.client(None)


@pytest.fixture
def data(daemon: Daemon) -> Path:
    return daemon.server._settings.data


async def fill(client: Talker, count: int = 30) -> None:
    for number in range(count):
        reply = await client.write("create", job={"uuid": f"job-{number}", "status": "QUEUED", "pad": "x" * 100})
        assert reply["success"]


async def jobs_of(client: Talker) -> dict[str, Json]:
    return {job["uuid"]: job for job in (await client.ok("list", limit=1000))["jobs"]}


async def test_a_restore_brings_back_what_a_snapshot_holds(daemon, client, admin, data):
    await daemon.at_rest()
    await fill(client)
    await daemon.caught_up()
    before = await jobs_of(client)
    saved = await admin.ok("snapshot", path="kept.snapshot")
    await client.write("update", jobId="job-0", job={"x": 1})
    await client.write("delete", jobId="job-1")
    await client.write("create", job={"uuid": "job-new"})
    reply = await admin.ok("restore", path="kept.snapshot")
    assert await jobs_of(client) == before
    done = saved["done"]
    # Daemons that share an engine have a lock of their own: who holds it does the duties.
    own = {} if daemon.engine.immediate else {"lock": 1}
    assert (done["path"], done["rows"], done["kinds"]) == ("kept.snapshot", 30 + len(own), {"job": 30, **own})
    assert reply["done"] == {name: done[name] for name in reply["done"]}
    assert inspect(data / "kept.snapshot").footer.rows == done["rows"]


async def test_a_restore_begins_a_new_epoch_which_the_next_hello_tells(daemon, client, admin):
    earlier = (await client.hello("client-1"))["epoch"]
    await admin.ok("snapshot", path="s.snapshot")
    told = (await admin.ok("restore", path="s.snapshot"))["epoch"]
    assert told != earlier
    assert (await client.hello("client-1"))["epoch"] == told
    assert (await admin.ok("list"))["asOf"].startswith(told)


async def test_a_lease_taken_or_kept_after_a_restore_names_its_epoch_to_those_who_said_hello_before(
    daemon, client, admin
):
    await client.ok("create", kind="kv", id="a", record={})
    await admin.ok("snapshot", path="s.snapshot")
    assert "epoch" not in await client.ok("claim", kind="lock", id="early")
    told = (await admin.ok("restore", path="s.snapshot"))["epoch"]
    claimed = await client.ok("claim", kind="lock", id="l")
    assert claimed["epoch"] == told
    token = claimed["records"][0]["lease"]["token"]
    assert (await client.ok("renew", kind="lock", id="l", token=token))["epoch"] == told
    assert (await client.ok("renew", kind="lock", id="l", token=token, record={"x": 1}))["epoch"] == told
    later = await daemon.client("later")
    assert "epoch" not in await later.ok("renew", kind="lock", id="l", token=token)
    assert "epoch" not in await later.ok("renew", kind="lock", id="l", token=token, record={"x": 2})


async def test_a_restore_that_another_daemons_overtook_ends_every_connection(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The epoch is the other's, and nobody here has asked for it."""
    make = EVERY["redis"].make(tmp_path)
    one, two = [await start(make()) for _ in range(2)]
    admin, idle, elsewhere = await one.client(None), await one.client("idle"), await two.client(None)
    for talker in (admin, elsewhere):
        await talker.ok("snapshot", path="s.snapshot")
    load, leases = one.engine.load, one.store.leases

    async def overtaken(rows: AsyncIterator[list[Row]]) -> None:
        async def late() -> AsyncIterator[list[Row]]:
            async for some in rows:
                yield some
            await elsewhere.ok("restore", path="s.snapshot")
            await one.engine.ping()

        await load(late())

    monkeypatch.setattr(one.engine, "load", overtaken)
    admin.send({"op": "restore", "path": "s.snapshot"})
    for talker in (admin, idle):
        assert await talker.line() == b""
    assert one.store.leases is not leases
    assert (await (await one.talker()).hello("idle"))["epoch"] == two.engine.epoch


async def test_a_watch_ends_with_gone_and_old_cursors_are_gone(daemon, client, admin):
    await fill(client, 3)
    await admin.ok("snapshot", path="s.snapshot")
    watcher = await daemon.client("watcher")
    cursor = (await watcher.ok("watch", requestId="w"))["cursor"]
    await admin.ok("restore", path="s.snapshot")
    ended = await watcher.receive()
    assert (ended["requestId"], ended["success"], ended["code"]) == ("w", False, "gone")
    assert (await watcher.refused("watch", after=cursor))[0] == "gone"
    await watcher.ok("watch", requestId="again")
    await client.write("update", jobId="job-0", job={"x": 1})
    assert (await watcher.receive())["event"]["id"] == "job-0"


async def test_a_write_is_applied_once_across_a_restore(client, admin):
    await client.write("create", job={"uuid": "job-0", "n": 0})
    await client.write("update", jobId="job-0", inc={"n": 1})
    await admin.ok("snapshot", path="s.snapshot")
    await client.write("update", jobId="job-0", inc={"n": 1})
    await admin.ok("restore", path="s.snapshot")
    for seq, duplicate in ((2, True), (3, False), (3, True)):
        reply = await client.ok("update", jobId="job-0", inc={"n": 1}, seq=seq, floor=2, again=True)
        assert reply.get("duplicate", False) == duplicate
    assert (await client.ok("get", jobId="job-0"))["job"]["n"] == 2


async def test_a_holder_of_a_token_given_out_since_has_lost_its_lease(client, admin):
    await admin.ok("snapshot", path="s.snapshot")
    claimed = await client.write("claim", kind="lock", id="leader", holder="late")
    stale = claimed["records"][0]["lease"]["token"]
    await admin.ok("restore", path="s.snapshot")
    claimed = await client.write("claim", kind="lock", id="leader", holder="new")
    assert claimed["records"][0]["lease"]["token"] > stale
    late = await client.write("renew", kind="lock", id="leader", token=stale)
    assert late["code"] == "lease_lost"


async def test_a_flipped_byte_is_refused_by_name_and_nothing_changes(client, admin, data):
    await fill(client)
    await admin.ok("snapshot", path="s.snapshot")
    whole = bytearray((data / "s.snapshot").read_bytes())
    whole[len(whole) // 2] ^= 0x10
    (data / "s.snapshot").write_bytes(whole)
    await client.write("create", job={"uuid": "job-new"})
    code, text = await admin.refused("restore", path="s.snapshot")
    assert code == "bad_request"
    assert "RESTORE_ERROR: s.snapshot is damaged: block 1 at byte" in text
    assert (await client.ok("get", jobId="job-new"))["job"]
    await client.write("update", jobId="job-new", job={"x": 1})


async def test_progress_comes_in_lines_before_the_reply_when_asked_for(client, admin, monkeypatch):
    monkeypatch.setattr(administration, "BLOCK_BYTES", 1000)
    await fill(client)
    for asked in ({"op": "snapshot"}, {"op": "restore"}, {"op": "check"}):
        admin.send(
            {**asked, "path": "s.snapshot", "requestId": "r", "progress": True}, {"op": "ping", "requestId": "p"}
        )
        lines: list[Json] = []
        while not lines or "success" not in lines[-1]:
            lines.append(await admin.receive())
        *progress, reply = lines
        assert progress
        for line in progress:
            assert line["requestId"] == "r"
            assert 0 <= line["progress"]["done"] <= line["progress"]["total"]
        assert (reply["requestId"], reply["success"]) == ("r", True)
        assert (await admin.receive())["requestId"] == "p"
    assert "progress" not in await admin.ok("check")


async def test_others_are_served_while_a_snapshot_is_written(daemon, client, admin, monkeypatch):
    """The reply to a write made after the snapshot began comes before the snapshot's own."""
    monkeypatch.setattr(administration, "BLOCK_BYTES", 500)
    await fill(client, 100)
    admin.send({"op": "snapshot", "path": "s.snapshot", "progress": True})
    assert "progress" in await admin.receive()
    assert daemon.server._administration._under_way == "snapshot"
    assert (await client.write("update", jobId="job-0", job={"x": 1}))["success"]
    while "success" not in (reply := await admin.receive()):
        pass
    assert reply["success"]


async def test_a_frozen_store_refuses_writes_by_name_and_serves_reads(daemon, client, admin):
    await fill(client, 3)
    await admin.ok("freeze")
    await admin.ok("freeze")
    reply = await client.write("update", jobId="job-0", job={"x": 1})
    assert (reply["success"], reply["code"], reply["outcome"]) == (False, "unavailable", "not_applied")
    assert "frozen" in reply["error"]
    assert (await client.refused("sync", jobs=[{"uuid": "a"}]))[0] == "unavailable"
    assert (await client.refused("claim", kind="job", holder="x"))[0] == "unavailable"
    assert (await admin.refused("sweep"))[0] == "unavailable"
    assert (await client.ok("get", jobId="job-0"))["job"]
    await daemon.caught_up()
    assert (await client.ok("list"))["jobs"]
    await admin.ok("snapshot", path="s.snapshot")
    await admin.ok("thaw")
    await admin.ok("thaw")
    # The write that failed comes again, as it has to.
    assert (await client.ok("update", jobId="job-0", job={"x": 1}, seq=client.seq, again=True))["job"]["x"] == 1


async def test_a_check_names_problems_and_counts_what_it_looked_at(daemon, client, admin):
    await daemon.at_rest()
    await fill(client, 3)
    await client.write("create", kind="mount", id="m", record={"volume": "nowhere", "owner": "job/nobody"})
    await client.write("delete", jobId="job-0")
    reply = await admin.ok("check")
    assert reply["problems"] == [
        "mount m names volume nowhere, which is not there: remove it, or bring back the volume"
    ]
    assert "repaired" not in reply
    notes = reply["done"].pop("notes")
    assert notes == ["mount m is owned by job nobody, which is not there, or no longer known"]
    own = 0 if daemon.engine.immediate else 1  # the lock of who does the duties
    assert reply["done"] == {"records": 3 + own, "tombstones": 1, "references": 2}
    assert (await admin.ok("check", repair=True))["repaired"] == []


async def test_a_sweep_tells_what_it_did(client, admin):
    done = (await admin.ok("sweep"))["done"]
    assert done
    assert set(done.values()) == {0}


@pytest.mark.parametrize("op", ADMIN_OPS)
async def test_nobody_but_an_admin_may(daemon, client, op):
    daemon.server._admins = frozenset()
    somebody = await daemon.client("somebody")
    code, text = await somebody.refused(op, path="s.snapshot")
    assert code == "denied"
    assert "access.admin_uids" in text
    assert (await client.write("create", job={"uuid": "job-1"}))["success"]


@pytest.mark.parametrize("path", ["../s.snapshot", "/etc/s.snapshot", "a/../../s.snapshot", "state.db", "s.snapshot/"])
@pytest.mark.parametrize("op", ["snapshot", "restore"])
async def test_a_path_outside_is_refused(admin, data, op, path):
    assert (await admin.refused(op, path=path))[0] == "bad_request"
    assert not list(data.parent.rglob("*.snapshot"))


async def test_a_snapshot_never_overwrites_and_a_missing_one_is_not_found(admin, data):
    await admin.ok("snapshot", path="s.snapshot")
    before = (data / "s.snapshot").read_bytes()
    assert (await admin.refused("snapshot", path="s.snapshot"))[0] == "exists"
    assert (data / "s.snapshot").read_bytes() == before
    assert (await admin.refused("restore", path="other.snapshot"))[0] == "not_found"


async def test_folders_and_file_are_for_the_daemon_alone(admin, data):
    path = data / (await admin.ok("snapshot"))["done"]["path"]
    assert path.parent == data / "snapshots"
    assert [each.stat().st_mode & 0o7777 for each in (data, path.parent, path)] == [0o700, 0o700, 0o600]


async def test_a_snapshot_moves_to_another_engine(start: Start, tmp_path, daemon, client, admin, data):
    await fill(client, 5)
    await daemon.caught_up()
    before = await jobs_of(client)
    await admin.ok("snapshot", path="s.snapshot")
    for name, address in EVERY.items():
        (tmp_path / f"{name}-other").mkdir()
        other = await start(address.make(tmp_path / f"{name}-other")())
        folder: Any = other.server._settings.data
        folder.mkdir(mode=0o700)
        (folder / "s.snapshot").write_bytes((data / "s.snapshot").read_bytes())
        talker = await other.client("client-1")
        await talker.ok("restore", path="s.snapshot")
        assert await jobs_of(talker) == before
