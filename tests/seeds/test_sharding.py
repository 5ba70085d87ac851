"""Everything the sharding state keeps has its place: keys and values, operations, locks, the master, recovery."""

from __future__ import annotations

import asyncio

from tests.seeds.asking import (
    a_time,
    claim,
    event,
    followed,
    has_status,
    history,
    ids,
    record,
    taken,
    token,
    until,
)
from tests.socket.talking import Daemon, Talker

TABLES = ("logs", "products", "users")


async def put(client: Talker, key: str, value: object) -> dict:
    return await client.ok("update", kind="kv", id=key, set={"value": value}, upsert=True)


async def operation(client: Talker, table: str, status: str, **fields: object) -> dict:
    made = await client.ok("create", kind="operation", record={"id": f"rebalance:{table}", "status": status, **fields})
    return made["record"]


# --- key and value -------------------------------------------------------------------------------------------------


async def test_a_key_holds_any_json_value_and_tells_when_it_was_set(client: Talker):
    for value in ("running", 17, 1.5, True, [1, {"a": None}], {"deep": {"er": [2**70]}}, ""):
        await put(client, "key", value)
        found = await record(client, "kv", "key")
        assert found["value"] == value
        assert type(found["value"]) is type(value)
        assert found["updatedAt"] >= found["createdAt"]


async def test_a_value_that_is_set_replaces_the_one_before_whole(client: Talker):
    await put(client, "key", {"a": 1, "b": 2})
    await put(client, "key", {"c": 3})
    assert (await record(client, "kv", "key"))["value"] == {"c": 3}


async def test_a_key_that_was_never_set_is_not_found(client: Talker):
    assert (await client.refused("get", kind="kv", id="key"))[0] == "not_found"


async def test_a_key_set_to_null_is_told_from_a_key_that_is_gone(client: Talker):
    await put(client, "key", None)
    assert (await record(client, "kv", "key"))["value"] is None
    await client.ok("delete", kind="kv", id="key")
    assert (await client.refused("get", kind="kv", id="key"))[0] == "not_found"


async def test_keys_are_listed_by_regex_and_by_prefix(client: Talker):
    for table in TABLES:
        await put(client, f"rebalance:{table}", "idle")
        await put(client, f"rebalance_info:{table}", {"table": table})
    await put(client, "cluster_hash", "h1")
    states = [f"rebalance:{table}" for table in TABLES]
    assert await ids(client, "kv", filter={"regex": "rebalance:.*"}, sortBy="id") == states
    assert await ids(client, "kv", filter={"prefix": "rebalance:"}, sortBy="id") == states
    assert len(await ids(client, "kv", filter={"regex": ".*"})) == 7


# --- operations ----------------------------------------------------------------------------------------------------


async def test_an_operation_goes_through_the_states_of_the_diagram(client: Talker):
    await operation(client, "users", "idle")
    for status in ("running", "completed", "idle", "running", "failed", "idle"):
        reply = await client.ok("update", kind="operation", id="rebalance:users", record={"status": status})
        assert reply["record"]["status"] == status
    code, text = await client.refused("update", kind="operation", id="rebalance:users", record={"status": "completed"})
    assert code == "invalid_transition"
    assert "idle does not become completed" in text


async def test_an_operation_is_queued_paused_and_stopped_as_well(client: Talker):
    await operation(client, "users", "idle")
    for status in ("queued", "running", "paused", "running", "stopped", "idle"):
        await client.ok("update", kind="operation", id="rebalance:users", record={"status": status})


async def test_an_operation_without_a_record_is_idle_to_whoever_asks(client: Talker):
    assert (await client.refused("get", kind="operation", id="rebalance:users"))[0] == "not_found"
    started = await taken(client, "operation", id="rebalance:users", status="running")
    assert started["status"] == "running"


async def test_of_racing_starters_one_runs_the_operation_and_the_others_skip_it(daemon: Daemon):
    nodes = [await daemon.client(f"node-{number}") for number in range(8)]
    starts = [claim(node, "operation", id="rebalance:users", status="running") for node in nodes]
    assert sum(started is not None for started in await asyncio.gather(*starts)) == 1


async def test_an_operation_ends_as_completed_or_failed_with_its_error(client: Talker):
    first = await token(client, "operation", id="rebalance:users", status="running")
    done = await client.ok("release", kind="operation", id="rebalance:users", token=first, status="completed")
    assert (done["record"]["status"], "lease" in done["record"]) == ("completed", False)
    assert done["record"]["completedAt"]
    second = await token(client, "operation", id="rebalance:users", status="running")
    failed = await client.ok(
        "release", kind="operation", id="rebalance:users", token=second, status="failed",
        record={"error": "node-3 went away"},
    )  # fmt: skip
    assert (failed["record"]["status"], failed["record"]["error"]) == ("failed", "node-3 went away")


async def test_the_info_of_an_operation_is_kept_beside_its_status_and_grows_while_it_runs(client: Talker):
    held = await token(
        client, "operation", id="rebalance:users", status="running",
        record={"info": {"operation_type": "node_added", "nodes_involved": ["node-1", "node-2"]}},
    )  # fmt: skip
    before = await record(client, "operation", "rebalance:users")
    await client.ok("renew", kind="operation", id="rebalance:users", token=held, record={"info": {"commands_done": 3}})
    after = await record(client, "operation", "rebalance:users")
    assert after["info"] == {
        "operation_type": "node_added", "nodes_involved": ["node-1", "node-2"], "commands_done": 3,
    }  # fmt: skip
    assert after["updatedAt"] > before["updatedAt"]


async def test_a_failed_operation_is_reset_and_runs_again(client: Talker):
    await operation(client, "users", "failed", error="boom")
    reset = await client.ok("update", kind="operation", id="rebalance:users", record={"status": "idle", "error": None})
    assert "error" not in reset["record"]
    assert "completedAt" not in reset["record"]
    assert (await taken(client, "operation", id="rebalance:users", status="running"))["status"] == "running"


async def test_a_failed_operation_may_be_claimed_and_run_at_once(client: Talker):
    await operation(client, "users", "failed", error="boom")
    assert (await taken(client, "operation", id="rebalance:users", status="running"))["status"] == "running"


async def test_an_operation_whose_node_is_gone_is_named_as_stuck_and_can_be_reset(client: Talker):
    held = await token(client, "operation", id="rebalance:users", status="running", ttl=0.1)

    async def named() -> list:
        return [one for one in (await client.ok("stuck", kind="operation"))["stuck"] if one["id"] == "rebalance:users"]

    (stuck,) = await until(named, "the operation to be named as stuck")
    assert stuck["status"] == "running"
    assert any("lease" in reason for reason in stuck["reasons"]), stuck
    await client.ok("sweep")
    await client.ok("update", kind="operation", id="rebalance:users", record={"status": "idle"})
    late = await client.refused(
        "update", kind="operation", id="rebalance:users", token=held, record={"status": "completed"}
    )
    assert late[0] == "lease_lost"


async def test_an_operation_that_stopped_moving_is_named_as_stuck_after_so_many_seconds(client: Talker):
    await operation(client, "users", "running")
    await operation(client, "logs", "completed")
    assert [one["id"] for one in (await client.ok("stuck", kind="operation", seconds=0))["stuck"]] == [
        "rebalance:users"
    ]
    assert (await client.ok("stuck", kind="operation", seconds=1800))["stuck"] == []


async def test_all_operations_and_the_running_ones_are_listed(client: Talker):
    for table, status in zip(TABLES, ("running", "failed", "running"), strict=True):
        await operation(client, table, status)
    everything = (await client.ok("list", kind="operation", filter={"regex": "rebalance:.*"}, sortBy="id"))["records"]
    assert [(one["id"].removeprefix("rebalance:"), one["status"]) for one in everything] == [
        ("logs", "running"), ("products", "failed"), ("users", "running"),
    ]  # fmt: skip
    running = await ids(client, "operation", filter={"status": "running"}, sortBy="id")
    assert running == ["rebalance:logs", "rebalance:users"]


async def test_all_failed_operations_are_reset_together(client: Talker):
    for table, status in zip(TABLES, ("failed", "failed", "running"), strict=True):
        await operation(client, table, status)
    failed = (await client.ok("list", kind="operation", filter={"status": "failed"}, sortBy="id"))["records"]
    resets = [
        {
            "op": "update", "kind": "operation", "id": one["id"], "ifRevision": one["revision"],
            "record": {"status": "idle"},
        }
        for one in failed
    ]  # fmt: skip
    reply = await client.ok("txn", ops=resets)
    assert [result["record"]["status"] for result in reply["results"]] == ["idle", "idle"]
    assert await ids(client, "operation", filter={"status": "failed"}) == []
    assert await ids(client, "operation", filter={"status": "running"}) == ["rebalance:users"]


async def test_old_states_are_cleaned_up_and_running_ones_stay(client: Talker):
    for table, status in zip(TABLES, ("completed", "running", "failed"), strict=True):
        await operation(client, table, status)
    old = {"statuses": ["completed", "failed"], "updatedBefore": a_time(seconds=1)}
    for name in await ids(client, "operation", filter=old):
        await client.ok("delete", kind="operation", id=name)
    assert await ids(client, "operation") == ["rebalance:products"]
    recent = {"statuses": ["completed", "failed", "running"], "updatedBefore": a_time(seconds=-86_400)}
    assert await ids(client, "operation", filter=recent) == []


async def test_how_long_operations_took_is_measured(client: Talker):
    for table in TABLES:
        held = await token(client, "operation", id=f"rebalance:{table}", status="running")
        status = "failed" if table == "logs" else "completed"
        await client.ok("release", kind="operation", id=f"rebalance:{table}", token=held, status=status)
    reply = await client.ok("stats", kind="operation", filter={"prefix": "rebalance:"})
    assert (reply["total"], reply["counts"]) == (3, {"completed": 2, "failed": 1})
    assert reply["durations"]["run"]["count"] == 3


# --- the cluster ---------------------------------------------------------------------------------------------------


async def test_of_racing_nodes_one_changes_the_cluster_hash_and_triggers_what_follows(daemon: Daemon):
    await put(await daemon.client("first"), "cluster_hash", "h1")
    nodes = [await daemon.client(f"node-{number}") for number in range(6)]
    revisions = [(await record(node, "kv", "cluster_hash"))["revision"] for node in nodes]
    changes = [
        node.ask("update", kind="kv", id="cluster_hash", set={"value": "h2"}, ifRevision=revision)
        for node, revision in zip(nodes, revisions, strict=True)
    ]
    replies = await asyncio.gather(*changes)
    assert sum(reply["success"] for reply in replies) == 1
    for reply in replies:
        if not reply["success"]:
            assert (reply["code"], reply["record"]["value"]) == ("conflict", "h2")


async def test_the_first_cluster_hash_is_set_by_one_of_racing_nodes(daemon: Daemon):
    nodes = [await daemon.client(f"node-{number}") for number in range(6)]
    sets = [
        node.ask("update", kind="kv", id="cluster_hash", set={"value": "h1"}, ifRevision=0, upsert=True)
        for node in nodes
    ]
    assert sum(reply["success"] for reply in await asyncio.gather(*sets)) == 1


async def test_the_state_of_the_whole_system_is_read_in_one_go(client: Talker):
    await put(client, "cluster_hash", "h1")
    await taken(client, "lock", id="master_node", holder="node-1")
    await operation(client, "users", "running")
    replies = await client.in_one_go(
        [
            {"op": "get", "kind": "kv", "id": "cluster_hash"},
            {"op": "get", "kind": "lock", "id": "master_node"},
            {"op": "list", "kind": "operation", "filter": {"prefix": "rebalance:"}},
            {"op": "list", "kind": "operation", "filter": {"prefix": "rebalance:", "status": "running"}},
        ]
    )
    assert replies[0]["record"]["value"] == "h1"
    assert replies[1]["record"]["lease"]["holder"] == "node-1"
    assert [one["id"] for one in replies[2]["records"]] == ["rebalance:users"]
    assert [one["id"] for one in replies[3]["records"]] == ["rebalance:users"]


async def test_failures_and_topology_changes_reach_whoever_watches(daemon: Daemon):
    client, watcher, other = [await daemon.client(name) for name in ("client", "operations", "keys")]
    await followed(watcher, kind="operation", filter={"status": "failed"})
    await followed(other, kind="kv", filter={"ids": ["cluster_hash"]})
    held = await token(client, "operation", id="rebalance:users", status="running")
    await client.ok("release", kind="operation", id="rebalance:users", token=held, status="failed")
    await put(client, "unrelated", 1)
    await put(client, "cluster_hash", "h2")
    failed = await event(watcher)
    assert (failed["id"], failed["from"], failed["to"]) == ("rebalance:users", "running", "failed")
    assert (await event(other))["record"]["value"] == "h2"


async def test_states_left_for_their_retention_are_removed_and_running_ones_stay(engine, start):
    from statesvc.config.model import Retention

    daemon = await start(engine, retention=Retention(terminal_seconds=0))
    client = await daemon.client("client")
    for table, status in zip(TABLES, ("completed", "running", "failed"), strict=True):
        await operation(client, table, status)

    async def cleaned() -> bool:
        await client.ok("sweep")
        return await ids(client, "operation") == ["rebalance:products"]

    await until(cleaned, "the ended operations to be removed")


async def test_the_health_of_the_system_names_each_check(client: Talker):
    await operation(client, "users", "running")
    reply = await client.ok("health")
    assert reply["live"] is True
    assert reply["ready"] is True
    assert all({"name", "verdict"} <= check.keys() for check in reply["checks"])
    assert reply["checks"]


async def test_a_lapsed_operation_stays_running_until_somebody_decides(client: Talker):
    await taken(client, "operation", id="rebalance:users", status="running", ttl=0.1)

    async def lapsed() -> bool:
        await client.ok("sweep")
        return "lease" not in await record(client, "operation", "rebalance:users")

    await until(lapsed, "the lease to lapse")
    assert (await has_status(client, "rebalance:users", "running", "operation"))["status"] == "running"
    assert [one["type"] for one in await history(client, "rebalance:users", "operation")][-1] == "lapsed"
