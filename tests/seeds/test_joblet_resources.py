"""What Joblet's other stores keep has its place: volumes, networks, locks, snapshots, the cache, health and repair."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from statesvc.store.snapshots import inspect
from statesvc_client.blocking import StateStore
from tests.client.conftest import held
from tests.daemon.harness import serving
from tests.daemon.harness import until as until_true
from tests.seeds.asking import a_time, claim, event, followed, has_status, ids, job, record, taken, token, total, until
from tests.socket.talking import Daemon, Talker

VOLUME = {
    "id": "volume-1",
    "name": "scratch",
    "type": "filesystem",
    "size": 1 << 40,
    "path": "/var/lib/joblet/volumes/volume-1",
    "status": "available",
    "labels": {"team": "search"},
}
NETWORK = {
    "id": "net-1",
    "name": "bridge-1",
    "type": "bridge",
    "cidr": "10.1.2.0/29",
    "bridge": "br0",
    "status": "up",
    "gateway": "10.1.2.1",
    "labels": {"team": "search"},
}


async def mount(client: Talker, name: str, volume: str = "volume-1") -> dict:
    made = {"id": f"{name}:{volume}", "volume": volume, "path": "/data", "owner": f"job/{name}"}
    reply = await client.ok("create", kind="mount", record=made)
    return reply["record"]


async def address(client: Talker, owner: str) -> dict:
    reply = await client.ok("create", kind="ip", **{"from": "net-1"}, record={"owner": owner})
    return reply["record"]


async def running(client: Talker, *names: str) -> None:
    for name in names:
        await client.ok("create", job={"uuid": name, "status": "RUNNING"})


# --- volumes -------------------------------------------------------------------------------------------------------


async def test_every_field_of_a_volume_is_kept(client: Talker):
    await client.ok("create", kind="volume", record=VOLUME)
    found = await record(client, "volume", "volume-1")
    assert {name: found[name] for name in VOLUME} == VOLUME
    assert found["createdAt"]
    assert await ids(client, "volume", filter={"labels": {"team": "search"}}) == ["volume-1"]
    assert await ids(client, "volume", filter={"status": "available"}) == ["volume-1"]


async def test_mounts_of_a_volume_are_counted_and_name_their_jobs(client: Talker):
    await client.ok("create", kind="volume", record=VOLUME)
    assert await total(client, "mount", where={"volume": "volume-1"}) == 0
    await running(client, "job-1", "job-2")
    for name in ("job-1", "job-2"):
        await mount(client, name)
    await mount(client, "job-2", volume="volume-2")
    assert await total(client, "mount", where={"volume": "volume-1"}) == 2
    mounts = (await client.ok("list", kind="mount", filter={"where": {"volume": "volume-1"}}, sortBy="id"))["records"]
    assert [one["owner"] for one in mounts] == ["job/job-1", "job/job-2"]


async def test_the_volumes_of_a_job_are_found_by_the_job(client: Talker):
    await running(client, "job-1")
    await mount(client, "job-1")
    (found,) = (await client.ok("list", kind="mount", filter={"owner": "job/job-1"}))["records"]
    assert (found["volume"], found["path"]) == ("volume-1", "/data")


async def test_a_volume_is_free_once_the_jobs_that_mounted_it_have_ended(client: Talker):
    await running(client, "job-1", "job-2")
    for name in ("job-1", "job-2"):
        await mount(client, name)
    await client.ok("update", jobId="job-1", job={"status": "COMPLETED"})
    await client.ok("delete", jobId="job-2")

    async def free() -> bool:
        await client.ok("sweep")
        return await total(client, "mount", where={"volume": "volume-1"}) == 0

    await until(free, "the mounts of ended jobs to be removed")


async def test_a_mount_whose_job_was_never_there_stays(client: Talker):
    await mount(client, "nobody")
    await client.ok("sweep")
    assert await total(client, "mount", where={"volume": "volume-1"}) == 1


async def test_the_usage_of_a_volume_is_reported_and_tells_when(client: Talker):
    await client.ok("create", kind="volume", record=VOLUME)
    usage = {"usedBytes": 10, "freeBytes": (1 << 40) - 10, "totalBytes": 1 << 40, "ioStats": {"readBytes": 3}}
    reported = (await client.ok("update", kind="volume", id="volume-1", record=usage))["record"]
    assert {name: reported[name] for name in usage} == usage
    assert reported["updatedAt"] > reported["createdAt"]


async def test_a_job_and_its_mount_are_linked_together_or_not_at_all(client: Talker):
    await running(client, "job-1")
    link = [
        {"op": "update", "jobId": "job-1", "append": {"volumes": [{"volumeId": "volume-1", "path": "/data"}]}},
        {"op": "create", "kind": "mount", "record": {"id": "m", "volume": "volume-1", "owner": "job/job-1"}},
        {"op": "update", "kind": "volume", "id": "volume-1", "record": {"lastUsed": "2025-10-26T00:00:00Z"}},
    ]
    assert (await client.ask("txn", ops=link))["code"] == "not_found"
    assert "volumes" not in await job(client, "job-1")
    await client.ok("create", kind="volume", record=VOLUME)
    await client.ok("txn", ops=link)
    assert (await job(client, "job-1"))["volumes"] == [{"volumeId": "volume-1", "path": "/data"}]
    assert (await record(client, "volume", "volume-1"))["lastUsed"] == "2025-10-26T00:00:00Z"
    assert await ids(client, "mount", filter={"owner": "job/job-1"}) == ["m"]


# --- networks ------------------------------------------------------------------------------------------------------


async def test_every_field_of_a_network_is_kept(client: Talker):
    await client.ok("create", kind="network", record=NETWORK)
    found = await record(client, "network", "net-1")
    assert {name: found[name] for name in NETWORK} == NETWORK
    assert found["createdAt"]


async def test_addresses_are_allocated_from_the_lowest_and_never_twice(client: Talker):
    await client.ok("create", kind="network", record={**NETWORK, "reserved": ["10.1.2.3"]})
    given = [await address(client, f"job/job-{number}") for number in range(4)]
    assert [one["address"] for one in given] == ["10.1.2.2", "10.1.2.4", "10.1.2.5", "10.1.2.6"]
    assert [one["id"] for one in given] == [f"net-1/{one['address']}" for one in given]
    full = await client.ask("create", kind="ip", **{"from": "net-1"}, record={"owner": "job/job-9"})
    assert full["code"] == "conflict"
    assert "net-1" in full["error"]


async def test_racing_allocations_get_different_addresses(daemon: Daemon):
    clients = [await daemon.client(f"client-{number}") for number in range(8)]
    await clients[0].ok("create", kind="network", record={**NETWORK, "cidr": "10.1.2.0/26"})

    async def allocate(client: Talker, place: int) -> list[str]:
        return [(await address(client, f"job/job-{place}"))["address"] for _ in range(7)]

    given = await asyncio.gather(*(allocate(client, place) for place, client in enumerate(clients)))
    addresses = [one for some in given for one in some]
    assert len(set(addresses)) == 56


async def test_the_allocated_addresses_and_the_jobs_of_a_network_are_listed_and_counted(client: Talker):
    await client.ok("create", kind="network", record=NETWORK)
    for number in range(3):
        await address(client, f"job/job-{number}")
    assert await total(client, "ip", where={"network": "net-1"}) == 3
    found = (await client.ok("list", kind="ip", filter={"where": {"network": "net-1"}}, sortBy="id"))["records"]
    assert {one["address"]: one["owner"] for one in found} == {
        "10.1.2.2": "job/job-0", "10.1.2.3": "job/job-1", "10.1.2.4": "job/job-2",
    }  # fmt: skip


async def test_the_connection_of_a_job_is_kept_with_its_address(client: Talker):
    await client.ok("create", kind="network", record=NETWORK)
    connection = {"owner": "job/job-1", "interface": "veth0", "mac": "02:00:00:00:00:01"}
    made = await client.ok("create", kind="ip", **{"from": "net-1"}, record=connection)
    (found,) = (await client.ok("list", kind="ip", filter={"owner": "job/job-1"}))["records"]
    assert found == made["record"]
    assert {name: found[name] for name in connection} == connection


async def test_an_address_is_free_again_once_its_job_has_ended_or_it_was_given_back(client: Talker):
    await client.ok("create", kind="network", record=NETWORK)
    await running(client, "job-1")
    first, second = await address(client, "job/job-1"), await address(client, "job/job-2")
    await client.ok("delete", kind="ip", id=second["id"])
    assert (await address(client, "job/job-3"))["address"] == second["address"]
    await client.ok("update", jobId="job-1", job={"status": "FAILED"})

    async def freed() -> bool:
        await client.ok("sweep")
        return not await ids(client, "ip", filter={"owner": "job/job-1"})

    await until(freed, "the address of the ended job to be free")
    assert (await address(client, "job/job-4"))["address"] == first["address"]


# --- locks and the cache -------------------------------------------------------------------------------------------


async def test_a_resource_is_locked_by_one_holder_at_a_time(client: Talker):
    held = await taken(client, "lock", id="volume/volume-1", holder="agent-1", ttl=300)
    assert await claim(client, "lock", id="volume/volume-1", holder="agent-2") is None
    assert (await record(client, "lock", "volume/volume-1"))["lease"]["holder"] == "agent-1"
    await client.ok("release", kind="lock", id="volume/volume-1", token=held["lease"]["token"])
    assert await token(client, "lock", id="volume/volume-1", holder="agent-2") == held["lease"]["token"] + 1


async def test_two_writers_of_several_records_in_opposite_order_do_not_deadlock(daemon: Daemon):
    first, second = await daemon.client("first"), await daemon.client("second")
    await running(first, "job-1", "job-2")

    def ops(*names: str) -> list[dict]:
        return [{"op": "update", "jobId": name, "inc": {"n": 1}} for name in names]

    for _ in range(20):
        await asyncio.gather(first.ok("txn", ops=ops("job-1", "job-2")), second.ok("txn", ops=ops("job-2", "job-1")))
    assert [(await job(first, name))["n"] for name in ("job-1", "job-2")] == [40, 40]


async def test_a_copy_of_the_state_is_kept_current_from_a_list_and_the_changes_behind_it(daemon: Daemon):
    client, cache = await daemon.client("client"), await daemon.client("cache")
    await running(client, "job-1", "job-2")
    listed = await cache.ok("list")
    held = {one["uuid"]: one for one in listed["jobs"]}
    await client.ok("update", jobId="job-1", job={"pid": 1})
    await client.ok("delete", jobId="job-2")
    await followed(cache, after=listed["asOf"])
    await running(client, "job-3")
    while "job-3" not in held:
        happened = await event(cache)
        if happened["type"] == "deleted":
            del held[happened["id"]]
        else:
            held[happened["id"]] = happened["record"]
    assert {name: one.get("pid") for name, one in held.items()} == {"job-1": 1, "job-3": None}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_an_agents_cache_shows_what_others_write_without_asking(socket_folder: Path, backend: str):
    with (
        serving(socket_folder, backend=backend) as daemon,
        StateStore.connect(daemon.socket) as state,
        daemon.connect() as other,
    ):
        other.hello("other")
        assert other.ask("create", job={"uuid": "job-1", "status": "RUNNING"})["success"]
        until_true(lambda: state.get("job-1"), "the cache to show the new job")
        assert other.ask("update", jobId="job-1", job={"status": "COMPLETED"})["success"]
        until_true(lambda: held(state, "job-1")["status"] == "COMPLETED", "the cache to show the move")


# --- snapshots -----------------------------------------------------------------------------------------------------


async def everything(client: Talker) -> dict[str, list]:
    kinds = ("job", "volume", "network")
    return {
        kind: (await client.ok("list", kind=kind, sortBy="id"))["jobs" if kind == "job" else "records"]
        for kind in kinds
    }


async def filled(client: Talker) -> dict[str, list]:
    await running(client, "job-1", "job-2")
    await client.ok("create", kind="volume", record=VOLUME)
    await client.ok("create", kind="network", record=NETWORK)
    return await everything(client)


async def test_a_snapshot_is_restored_to_exactly_what_was_there(client: Talker):
    before = await filled(client)
    epoch = (await client.ok("health"))["epoch"]
    await client.ok("snapshot", path="snapshots/one.snapshot")
    await client.ok("update", jobId="job-1", job={"status": "FAILED"})
    await client.ok("delete", jobId="job-2")
    await running(client, "job-3")
    restored = await client.ok("restore", path="snapshots/one.snapshot")
    assert restored["epoch"] != epoch
    assert await everything(client) == before


async def test_a_snapshot_that_was_damaged_is_refused_and_nothing_changes(daemon: Daemon, client: Talker):
    before = await filled(client)
    await client.ok("snapshot", path="snapshots/one.snapshot")
    (file,) = daemon.server._settings.data.rglob("one.snapshot")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    reply = await client.ask("restore", path="snapshots/one.snapshot")
    assert not reply["success"]
    assert "one.snapshot" in reply["error"]
    assert await everything(client) == before


async def test_a_snapshot_tells_its_version_its_time_and_what_it_holds(daemon: Daemon, client: Talker):
    await filled(client)
    done = (await client.ok("snapshot"))["done"]
    assert done["path"].startswith("snapshots/")
    # Daemons that share an engine have a lock of their own, once its holder has begun.
    assert {kind: rows for kind, rows in done["kinds"].items() if kind != "lock"} == {
        "job": 2,
        "volume": 1,
        "network": 1,
    }
    held = inspect(daemon.server._settings.data / done["path"])
    assert held.header.version
    assert held.header.created_at.startswith(a_time()[:4])
    assert held.footer.kinds == done["kinds"]


# --- health, validation, repair ------------------------------------------------------------------------------------


async def test_every_check_of_the_health_has_a_name_and_a_verdict(client: Talker):
    reply = await client.ok("health")
    assert (reply["live"], reply["ready"]) == (True, True)
    assert len({check["name"] for check in reply["checks"]}) == len(reply["checks"]) > 0
    assert all(check["verdict"] in {"ok", "warn", "fail"} for check in reply["checks"])


async def test_the_health_measures_what_the_store_takes(client: Talker):
    await running(client, "job-1")
    measures = (await client.ok("health"))["measures"]
    assert measures
    assert all(isinstance(value, int) for value in measures.values())


async def test_jobs_that_stay_running_without_a_sign_are_named_as_stuck(client: Talker):
    await running(client, "job-1")
    await client.ok("create", job={"uuid": "ended", "status": "COMPLETED"})
    (stuck,) = (await client.ok("stuck", seconds=0))["stuck"]
    assert (stuck["id"], stuck["status"]) == ("job-1", "RUNNING")
    assert stuck["reasons"]
    assert (await client.ok("stuck", seconds=300))["stuck"] == []


async def test_a_consistent_store_has_no_problems(client: Talker):
    await filled(client)
    reply = await client.ok("check")
    assert reply["problems"] == []


async def test_a_reference_to_a_volume_that_is_not_there_is_named(client: Talker):
    await running(client, "job-1")
    await mount(client, "job-1", volume="nowhere")
    problems = (await client.ok("check"))["problems"]
    assert any("nowhere" in problem for problem in problems), problems


async def test_a_repair_leaves_a_store_that_works_and_keeps_what_was_there(client: Talker):
    before = await filled(client)
    await client.ok("check", repair=True)
    assert await everything(client) == before
    assert (await client.ok("check"))["problems"] == []
    assert (await has_status(client, "job-1", "RUNNING"))["uuid"] == "job-1"
