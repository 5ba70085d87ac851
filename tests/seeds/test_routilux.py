"""Everything Routilux keeps has its place: a worker's state that lasts, a job's context that does not, its trace."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from statesvc_client.blocking import StateStore
from tests.daemon.harness import serving
from tests.engines.addresses import repeats
from tests.seeds.asking import called, event, followed, history, ids, job, record, taken, token, total, until
from tests.socket.talking import Daemon, Talker

WORKER = "worker-1"


async def worker(client: Talker, **fields: Any) -> dict:
    """What `runtime.exec` does: a worker of a flow, held by a lease."""
    made = {"flowId": "my_flow", **fields}
    return await taken(client, "worker", id=WORKER, holder="runtime-1", ttl=30, status="running", record=made)


async def routine_state(client: Talker, routine: str) -> Any:
    return (await record(client, "worker", WORKER)).get("state", {}).get(routine)


async def change(client: Talker, **changes: Any) -> dict:
    return await client.ok("update", kind="worker", id=WORKER, **changes)


# --- WorkerState ---------------------------------------------------------------------------------------------------


async def test_a_worker_is_made_when_it_is_executed_and_has_its_properties(client: Talker):
    made = await worker(client)
    assert (made["id"], made["flowId"], made["status"]) == (WORKER, "my_flow", "running")
    assert made["lease"]["holder"] == "runtime-1"


async def test_a_worker_starts_runs_and_stops_and_may_start_anew(client: Talker):
    await client.ok("create", kind="worker", record={"id": WORKER, "status": "starting"})
    for status in ("running", "stopped", "starting", "running", "failed"):
        assert (await change(client, record={"status": status}))["record"]["status"] == status
    code, _ = await client.refused("update", kind="worker", id=WORKER, record={"status": "paused"})
    assert code == "invalid_transition"


async def test_the_state_of_a_routine_is_nothing_until_it_is_set(client: Talker):
    await worker(client)
    assert await routine_state(client, "my_routine") is None
    await change(client, set={"/state/my_routine": {"count": 100, "last_processed": "item_123", "cache": {"k": [1]}}})
    assert await routine_state(client, "my_routine") == {
        "count": 100, "last_processed": "item_123", "cache": {"k": [1]},
    }  # fmt: skip


async def test_the_state_of_a_routine_is_replaced_by_set_and_merged_by_a_patch(client: Talker):
    await worker(client)
    await change(client, set={"/state/my_routine": {"a": 1, "b": 2}})
    await change(client, record={"state": {"my_routine": {"b": 3, "c": 4}}})
    assert await routine_state(client, "my_routine") == {"a": 1, "b": 3, "c": 4}
    await change(client, set={"/state/my_routine": {"d": 5}})
    assert await routine_state(client, "my_routine") == {"d": 5}


async def test_routines_do_not_see_each_other_change(client: Talker):
    await worker(client)
    await change(client, set={"/state/one": {"n": 1}, "/state/other": {"n": 2}})
    await change(client, set={"/state/one/n": 10})
    assert (await record(client, "worker", WORKER))["state"] == {"one": {"n": 10}, "other": {"n": 2}}


async def test_a_routine_may_have_any_name(client: Talker):
    await worker(client)
    await change(client, set={"/state/a~1b~0c": {"n": 1}, "/state/_shared_cache": {"n": 2}})
    assert (await record(client, "worker", WORKER))["state"] == {"a/b~c": {"n": 1}, "_shared_cache": {"n": 2}}


async def test_states_by_convention_live_side_by_side(client: Talker):
    await worker(client)
    names = ("processor", "_shared_cache", "_cache", "_config", "_meta", "_global_config")
    await change(client, set={f"/state/{name}": {"of": name} for name in names})
    assert (await record(client, "worker", WORKER))["state"] == {name: {"of": name} for name in names}


async def test_a_worker_keeps_its_state_over_many_jobs(client: Talker):
    await worker(client)
    for number in range(3):
        await client.ok("create", job={"uuid": f"job-{number}", "status": "QUEUED", "workerId": WORKER})
        held = await token(client, filter={"where": {"workerId": WORKER}})
        await change(client, inc={"/state/my_routine/count": 1})
        await client.ok("release", jobId=f"job-{number}", token=held, status="COMPLETED")
    assert await routine_state(client, "my_routine") == {"count": 3}


async def test_a_worker_that_shuts_down_gives_its_lease_back_and_is_stopped(client: Talker):
    held = (await worker(client))["lease"]["token"]
    ended = await client.ok("release", kind="worker", id=WORKER, token=held, status="stopped")
    assert (ended["record"]["status"], "lease" in ended["record"]) == ("stopped", False)
    await client.ok("delete", kind="worker", id=WORKER)
    assert (await client.refused("get", kind="worker", id=WORKER))[0] == "not_found"


async def test_a_worker_that_gives_no_sign_of_life_loses_its_lease_and_watchers_are_told(daemon: Daemon):
    client, watcher = await daemon.client("client"), await daemon.client("watcher")
    await followed(watcher, kind="worker")
    await taken(client, "worker", id=WORKER, holder="runtime-1", ttl=0.1, status="running")
    assert (await event(watcher))["type"] in {"created", "claimed"}

    async def lapsed() -> bool:
        await client.ok("sweep")
        return "lease" not in await record(client, "worker", WORKER)

    await until(lapsed, "the lease to lapse")
    assert (await event(watcher))["type"] == "lapsed"


async def test_the_worker_of_an_earlier_boot_is_told_from_this_one(daemon: Daemon):
    talker = await daemon.talker()
    await talker.hello("client", bootId="boot-1")
    held = await taken(talker, "worker", id=WORKER, holder="runtime-1", status="running")
    assert held["lease"]["bootId"] == "boot-1"


async def test_what_is_stored_of_a_worker_is_found_by_its_flow(client: Talker):
    await worker(client)
    await client.ok("create", kind="worker", record={"id": "worker-2", "flowId": "other_flow"})
    assert await ids(client, "worker", filter={"where": {"flowId": "my_flow"}}) == [WORKER]


async def test_state_cannot_grow_without_bound(client: Talker):
    limits = (await client.ok("hello", client="asking"))["limits"]
    await worker(client)
    half = "x" * (limits["recordBytes"] // 2)
    await change(client, set={"/state/a": half})
    code, text = await client.refused("update", kind="worker", id=WORKER, set={"/state/b": half})
    assert code == "bad_request"
    assert str(limits["recordBytes"]) in text
    assert await routine_state(client, "b") is None


async def test_what_json_has_no_word_for_is_refused(client: Talker):
    await worker(client)
    client.send_raw(b'{"op":"update","kind":"worker","id":"worker-1","set":{"/state/a":NaN}}\n')
    assert (await client.receive())["code"] == "bad_json"


# --- counters ------------------------------------------------------------------------------------------------------


async def test_increments_of_racing_connections_all_count(daemon: Daemon):
    await worker(await daemon.client("first"))
    clients = [await daemon.client(f"client-{number}") for number in range(8)]
    times = repeats(daemon.engine, 100)

    async def count(client: Talker) -> None:
        frame = {"op": "update", "kind": "worker", "id": WORKER, "inc": {"/state/counter/count": 1}}
        assert all(reply["success"] for reply in await client.in_one_go([frame] * times))

    await asyncio.gather(*(count(client) for client in clients))
    assert await routine_state(clients[0], "counter") == {"count": 8 * times}


async def test_a_change_worked_out_from_an_older_state_is_refused(client: Talker):
    await worker(client)
    await change(client, set={"/state/counter": {"count": 1}})
    read = await record(client, "worker", WORKER)
    await change(client, inc={"/state/counter/count": 1})
    late = {"set": {"/state/counter/count": 2}, "ifRevision": read["revision"]}
    reply = await client.ask("update", kind="worker", id=WORKER, **late)
    assert (reply["code"], reply["record"]["state"]["counter"]["count"]) == ("conflict", 2)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_eight_threads_of_500_increments_end_at_4000(socket_folder: Path, backend: str):
    with serving(socket_folder, backend=backend) as daemon, StateStore.connect(daemon.socket) as state:
        workers = state.kind("worker")
        workers.create({"id": WORKER, "flowId": "my_flow"})

        def count() -> None:
            for _ in range(500):
                workers.increment(WORKER, {"/state/counter/count": 1})

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state.flush()
        found = state.call("get", kind="worker", id=WORKER)["record"]
        assert found["state"]["counter"]["count"] == 4000


# --- JobContext ----------------------------------------------------------------------------------------------------


async def test_a_posted_job_has_the_properties_of_a_context(client: Talker):
    posted = {
        "uuid": "job-1", "status": "pending", "workerId": WORKER, "flowId": "my_flow",
        "metadata": {"user_id": 123, "request_id": "abc-123"},
    }  # fmt: skip
    await client.ok("create", job=posted)
    found = await job(client, "job-1")
    assert (found["status"], found["workerId"], found["flowId"]) == ("PENDING", WORKER, "my_flow")
    assert found["metadata"] == {"user_id": 123, "request_id": "abc-123"}
    assert found["createdAt"]
    assert "completedAt" not in found
    for status in ("running", "failed"):
        await client.ok("update", jobId="job-1", job={"status": status})
    await client.ok("update", jobId="job-1", job={"error": "no such user"})
    ended = await job(client, "job-1")
    assert (ended["status"], ended["error"]) == ("FAILED", "no such user")
    assert ended["completedAt"] >= ended["createdAt"]


async def test_data_of_a_job_is_set_and_read_key_by_key(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING", "metadata": {"user_id": 123}})
    await client.ok("update", jobId="job-1", set={"/data/processed": True})
    await client.ok("update", jobId="job-1", set={"/data/result_count": 42})
    found = await job(client, "job-1")
    assert found["data"] == {"processed": True, "result_count": 42}
    assert found["data"].get("sequence", 0) == 0
    assert found["metadata"] == {"user_id": 123}


async def test_jobs_do_not_see_each_others_data(client: Talker):
    for name in ("job-1", "job-2"):
        await client.ok("create", job={"uuid": name, "status": "RUNNING"})
    await client.ok("update", jobId="job-1", set={"/data/user_id": 7})
    assert "data" not in await job(client, "job-2")


async def test_the_trace_of_a_job_is_kept_in_order_with_time_routine_action_and_details(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    for action in ("started", "completed"):
        told = {"type": "trace", "message": action, "data": {"routine_id": "processor", "details": {"key": "test"}}}
        assert (await client.ok("emit", jobId="job-1", event=told))["cursor"]
    trace = [one for one in await history(client, "job-1") if one["type"] == "trace"]
    assert [one["message"] for one in trace] == ["started", "completed"]
    assert [one["data"] for one in trace] == [{"routine_id": "processor", "details": {"key": "test"}}] * 2
    assert trace[0]["at"] <= trace[1]["at"]


async def test_the_trace_stays_while_the_data_of_a_job_changes(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    await client.ok("emit", jobId="job-1", event={"type": "trace", "message": "began"})
    await client.ok("update", jobId="job-1", set={"/data/a": 1})
    await client.ok("update", jobId="job-1", job={"status": "COMPLETED"})
    assert [one["type"] for one in await history(client, "job-1")] == ["created", "trace", "updated", "status"]


async def test_a_job_context_ends_with_its_job_and_can_be_removed(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING", "data": {"a": 1}})
    await client.ok("update", jobId="job-1", job={"status": "COMPLETED"})
    await client.ok("delete", jobId="job-1")
    assert (await client.refused("get", jobId="job-1"))[0] == "not_found"


async def test_the_end_of_every_job_of_a_worker_can_be_waited_for(daemon: Daemon):
    client, watcher = await daemon.client("client"), await daemon.client("watcher")
    for number in range(3):
        await client.ok("create", job={"uuid": f"job-{number}", "status": "RUNNING", "nodeId": WORKER})
    listed = await watcher.ok("list", filter={"nodeId": WORKER, "statuses": ["RUNNING"]})
    left = {one["uuid"] for one in listed["jobs"]}
    await followed(watcher, filter={"nodeId": WORKER}, after=listed["asOf"])
    for number in range(3):
        await client.ok("update", jobId=f"job-{number}", job={"status": "COMPLETED"})
    while left:
        happened = await event(watcher)
        if happened["to"] == "COMPLETED":
            left.discard(happened["id"])
    assert await total(client, "job", nodeId=WORKER, status="RUNNING") == 0


# --- patterns ------------------------------------------------------------------------------------------------------


async def test_what_a_pool_is_made_from_is_set_by_the_first_and_read_by_the_others(client: Talker):
    await worker(client)
    read = await record(client, "worker", WORKER)
    first = {"set": {"/state/db_accessor": {"dsn": "db://a", "size": 5}}, "ifRevision": read["revision"]}
    assert (await client.ask("update", kind="worker", id=WORKER, **first))["success"]
    second = await client.ask("update", kind="worker", id=WORKER, **first)
    assert (second["code"], second["record"]["state"]["db_accessor"]["size"]) == ("conflict", 5)


async def test_requests_are_counted_in_the_worker_and_in_the_job(client: Talker):
    await worker(client)
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    for _ in range(3):
        await change(client, inc={"/state/counter/total_requests": 1})
        await client.ok("update", jobId="job-1", inc={"/data/sequence": 1})
    assert await routine_state(client, "counter") == {"total_requests": 3}
    assert (await job(client, "job-1"))["data"] == {"sequence": 3}


async def test_a_computed_result_is_cached_entry_by_entry(client: Talker):
    await worker(client)
    await change(client, set={"/state/cache/data/test": "processed_test"}, inc={"/state/cache/misses": 1})
    await change(client, set={"/state/cache/data/other": "processed_other"}, inc={"/state/cache/misses": 1})
    assert await routine_state(client, "cache") == {
        "data": {"test": "processed_test", "other": "processed_other"}, "misses": 2,
    }  # fmt: skip


async def test_one_routine_hands_data_to_the_next_through_the_job(daemon: Daemon):
    auth, business = await called(daemon, "auth"), await called(daemon, "business")
    await auth.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    await auth.ok("update", jobId="job-1", set={"/data/user_id": 7, "/data/permissions": ["admin"]})
    found = (await job(business, "job-1"))["data"]
    assert (found["user_id"], "admin" in found["permissions"]) == (7, True)


async def test_worker_and_job_can_be_changed_together(client: Talker):
    await worker(client)
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING"})
    both = [
        {"op": "update", "kind": "worker", "id": WORKER, "inc": {"/state/processor/done": 1}},
        {"op": "update", "jobId": "job-1", "job": {"status": "COMPLETED"}, "set": {"/data/result": "ok"}},
    ]
    await client.ok("txn", ops=both)
    again = await client.ask("txn", ops=[both[0], {"op": "update", "jobId": "job-1", "job": {"status": "RUNNING"}}])
    assert again["code"] == "invalid_transition"
    assert await routine_state(client, "processor") == {"done": 1}


async def test_a_job_is_inspected_whole(client: Talker):
    await client.ok("create", job={"uuid": "job-1", "status": "RUNNING", "metadata": {"user_id": 1}, "data": {"a": 2}})
    await client.ok("emit", jobId="job-1", event={"type": "trace", "message": "seen"})
    found = await job(client, "job-1")
    assert (found["status"], found["metadata"], found["data"]) == ("RUNNING", {"user_id": 1}, {"a": 2})
    assert [one["type"] for one in await history(client, "job-1")] == ["created", "trace"]
