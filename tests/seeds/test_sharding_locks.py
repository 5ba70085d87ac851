"""The locks and the master of the sharding state: one holder at a time, taken over when silent, told when lost."""

from __future__ import annotations

import asyncio

from tests.seeds.asking import called, claim, event, followed, history, record, taken, token, until
from tests.socket.talking import Daemon, Talker


async def test_a_lock_names_its_holder_its_time_and_its_table(client: Talker):
    held = await taken(
        client, "lock", id="rebalance_lock:users", holder="node-1", ttl=300, record={"info": {"table": "users"}}
    )
    seen = await record(client, "lock", "rebalance_lock:users")
    assert (seen["lease"]["holder"], seen["info"]) == ("node-1", {"table": "users"})
    assert seen["lease"]["token"] == held["lease"]["token"]
    assert seen["expiresAt"] > seen["updatedAt"]
    (claimed,) = await history(client, "rebalance_lock:users", "lock")
    assert claimed["at"] == seen["updatedAt"]


async def test_two_racing_acquirers_of_a_lock_give_one_holder(daemon: Daemon):
    first, second = await daemon.client("node-1"), await daemon.client("node-2")
    for number in range(20):
        name = f"rebalance_lock:{number}"
        got = await asyncio.gather(
            claim(first, "lock", id=name, holder="node-1", ttl=300),
            claim(second, "lock", id=name, holder="node-2", ttl=300),
        )
        assert sum(one is not None for one in got) == 1


async def test_a_lock_is_released_and_taken_by_the_next(client: Talker):
    first = await token(client, "lock", id="rebalance_lock:users", holder="node-1", ttl=300)
    assert await claim(client, "lock", id="rebalance_lock:users", holder="node-2", ttl=300) is None
    await client.ok("release", kind="lock", id="rebalance_lock:users", token=first)
    assert "lease" not in await record(client, "lock", "rebalance_lock:users")
    assert await token(client, "lock", id="rebalance_lock:users", holder="node-2", ttl=300) > first


async def test_a_lock_of_a_silent_holder_is_taken_over_and_its_late_write_is_refused(client: Talker):
    first = await token(client, "lock", id="rebalance_lock:users", holder="node-1", ttl=0.1)
    second = await token(client, "lock", id="rebalance_lock:users", holder="node-2", ttl=300, wait=60)
    assert second > first
    for op in ("update", "renew", "release"):
        late = {"kind": "lock", "id": "rebalance_lock:users", "token": first, "record": {"info": {"by": "node-1"}}}
        assert (await client.refused(op, **late))[0] == "lease_lost"
    assert (await record(client, "lock", "rebalance_lock:users"))["lease"]["holder"] == "node-2"


async def test_another_record_is_written_only_while_the_lock_is_held(client: Talker):
    async def guarded(token: int, shards: int) -> dict:
        lock = {"op": "update", "kind": "lock", "id": "rebalance_lock:users", "token": token, "record": {}}
        work = {"op": "update", "kind": "kv", "id": "shards", "set": {"value": shards}, "upsert": True}
        return await client.ask("txn", ops=[lock, work])

    first = await token(client, "lock", id="rebalance_lock:users", holder="node-1", ttl=0.1)
    assert (await guarded(first, 1))["success"]
    second = await token(client, "lock", id="rebalance_lock:users", holder="node-2", ttl=300, wait=60)
    assert (await guarded(first, 2))["code"] == "lease_lost"
    assert (await guarded(second, 3))["success"]
    assert (await record(client, "kv", "shards"))["value"] == 3


async def test_a_lock_that_is_renewed_is_not_taken_over(client: Talker):
    """Beside one that is not, and of which the time runs out."""
    kept = await token(client, "lock", id="kept", holder="node-1", ttl=1.5)
    await token(client, "lock", id="forgotten", holder="node-1", ttl=1.5)

    async def taken_over() -> bool:
        await client.ok("renew", kind="lock", id="kept", token=kept)
        return await claim(client, "lock", id="forgotten", holder="node-2") is not None

    await until(taken_over, "the lock that is not renewed to be taken over")
    assert await claim(client, "lock", id="kept", holder="node-2") is None
    assert (await record(client, "lock", "kept"))["lease"]["holder"] == "node-1"


async def test_a_waiting_acquirer_gets_the_lock_when_it_is_released(daemon: Daemon):
    first, second = await daemon.client("node-1"), await daemon.client("node-2")
    held = await token(first, "lock", id="rebalance_lock:users", holder="node-1", ttl=300)
    second.send({"op": "claim", "kind": "lock", "id": "rebalance_lock:users", "holder": "node-2", "wait": 60})
    await first.ok("release", kind="lock", id="rebalance_lock:users", token=held)
    (got,) = (await second.receive())["records"]
    assert got["lease"]["holder"] == "node-2"


async def test_one_node_is_elected_master_and_every_node_can_ask_which(daemon: Daemon):
    nodes = [await called(daemon, f"node-{number}") for number in (1, 2, 3)]
    elections = [node.ok("claim", kind="lock", id="master_node", ttl=300) for node in nodes]
    masters = [reply["records"][0]["lease"]["holder"] for reply in await asyncio.gather(*elections) if reply["records"]]
    assert len(masters) == 1
    for node in nodes:
        found = await record(node, "lock", "master_node")
        assert found["lease"]["holder"] == masters[0]
        assert found["updatedAt"]


async def test_another_master_is_elected_when_the_first_one_is_silent(daemon: Daemon):
    first, second, watcher = [await called(daemon, f"node-{number}") for number in (1, 2, 3)]
    await followed(watcher, kind="lock")
    await first.ok("claim", kind="lock", id="master_node", ttl=0.1)
    reply = await second.ok("claim", kind="lock", id="master_node", ttl=300, wait=60)
    assert reply["records"][0]["lease"]["holder"] == "node-2"
    seen = [await event(watcher)]
    while seen[-1]["record"].get("lease", {}).get("holder") != "node-2":
        seen.append(await event(watcher))
    assert seen[0]["record"]["lease"]["holder"] == "node-1"
    assert seen[-1]["type"] == "claimed"


async def test_no_master_is_told_from_a_master(client: Talker):
    assert (await client.refused("get", kind="lock", id="master_node"))[0] == "not_found"
    held = await token(client, "lock", id="master_node")
    await client.ok("release", kind="lock", id="master_node", token=held)
    assert "lease" not in await record(client, "lock", "master_node")
