"""What is over is gone at once, not when somebody looks for cycles: that is seldom.

A record or a frame may be large, and a failure keeps the frames it came through with all they hold.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from statesvc.config.model import Limits
from tests.socket.talking import Daemon, Talker

ROUNDS = 5


@asynccontextmanager
async def nothing_left_in_cycles() -> AsyncIterator[None]:
    """Of ours: those who ask are in the same process, and are not looked at."""
    gc.collect()
    gc.disable()
    try:
        yield
        await asyncio.sleep(0)  # what has just been told is let go of
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert {name: count for name, count in found.items() if name.startswith("statesvc")} == {}


async def every_op(client: Talker, n: int) -> None:
    """Some of it is refused."""
    job, made = f"j{n}", f"t{n}"
    for record in ({"uuid": job, "status": "QUEUED", "labels": {"a": "b"}}, {"uuid": job}):
        await client.write("create", job=record)
    for change in ({"x": n}, {"status": "NONSENSE"}):
        await client.write("update", jobId=job, job=change)
    await client.write("update", jobId=job, job={"x": n}, ifRevision=77)
    await client.write("update", jobId="nobody", job={"x": n})
    await client.write("emit", jobId=job, event={"type": "x", "message": "y"})
    create, update = {"op": "create", "job": {"uuid": made}}, {"op": "update", "jobId": job, "job": {"y": 1}}
    for ops in ([create, update], [update, create], [{"op": "delete", "jobId": "nobody"}]):
        await client.write("txn", ops=ops)
        await client.ask("txn", ops=ops, seq=client.seq, floor=client.seq, again=True)
        await client.ask("txn", ops=ops, seq=client.seq, floor=client.seq)
    await client.write("update", jobId=job, job={"y": 2})
    await client.ask("txn", ops=[update], seq=client.seq - 1, floor=1)
    await client.write("sync", jobs=[{"uuid": f"s{n}"}, {"uuid": job}])
    await client.write("delete", jobId=made)
    await client.write("create", kind="network", id=f"n{n}", record={"cidr": "10.0.0.0/24"})
    await client.write("create", kind="ip", **{"from": f"n{n}"}, record={})
    for asked in ({"jobId": job}, {"jobId": "nobody"}, {"jobId": 5}):
        await client.ask("get", **asked)
        await client.ask("history", **asked)
    for filter in ({"status": "QUEUED"}, {"regex": "j"}, {"ids": [job]}, {"nonsense": 1}, {"regex": "("}):
        await client.ask("list", filter=filter, limit=2, count=True)
    for op in ("stats", "stuck", "health", "nonsense"):
        await client.ask(op)


async def leases(client: Talker) -> None:
    (job,) = (await client.write("claim", filter={}, holder="h", ttl=5))["jobs"]
    name, token = job["uuid"], job["lease"]["token"]
    await client.write("renew", jobId=name, token=token)
    await client.write("renew", jobId=name, token=token, job={"p": 1})
    await client.write("renew", jobId=name, token=token + 1)
    await client.write("release", jobId=name, token=token, status="FAILED")
    await client.write("retry", jobId=name)
    await client.write("cancel", jobId=name)
    await client.write("claim", kind="lock", id="l", holder="h", ttl=5)
    await client.write("claim", kind="lock", id="l", holder="g", ttl=5, wait=0.01)


async def test_nothing_of_a_request_waits_for_the_collector(daemon: Daemon):
    client = await daemon.client()
    async with nothing_left_in_cycles():
        for n in range(ROUNDS):
            await every_op(client, n)
            await daemon.caught_up()
            await leases(client)
        await daemon.store.commits.settled()


async def test_nothing_of_a_transaction_waits_that_one_of_its_records_no_longer_knows(start, engine):
    daemon = await start(engine, limits=Limits(marks_clients=2))
    client = await daemon.client()
    ops = [{"op": "create", "kind": "kv", "id": name, "record": {}} for name in "ab"]
    await client.write("txn", ops=ops)
    for n in range(3):
        other = await daemon.client(f"other {n}")
        await other.write("update", kind="kv", id="b", record={"n": n})
    async with nothing_left_in_cycles():
        again = await client.ask("txn", ops=ops, seq=client.seq, floor=client.seq, again=True)
        assert again["duplicate"]
        await daemon.store.commits.settled()


async def test_nothing_of_a_connection_waits_for_the_collector(daemon: Daemon):
    client = await daemon.client()
    before = len(daemon.server._connections)
    async with nothing_left_in_cycles():
        for n in range(ROUNDS):
            other = await daemon.client(f"other {n}")
            await other.ok("watch", requestId="w")
            await client.write("create", job={"uuid": f"j{n}"})
            await other.receive()
            other.send({"op": "claim", "kind": "lock", "id": "l", "holder": "g", "wait": 5, "seq": 1, "floor": 1})
            await other.close()
        while len(daemon.server._connections) > before:
            await asyncio.sleep(0)


async def test_nothing_of_a_race_waits_for_the_collector(fleet: list[Daemon]):
    """Whoever was overtaken decides again, and is refused in the end or not."""
    clients = [await daemon.client(f"client {n}") for n, daemon in enumerate(fleet)]
    async with nothing_left_in_cycles():
        for n in range(ROUNDS):
            frames = [
                {"op": "update", "kind": "kv", "id": "k", "upsert": True, "inc": {"n": 1}, "seq": seq, "floor": 1}
                for seq in range(10 * n + 1, 10 * n + 11)
            ]
            await asyncio.gather(*(client.in_one_go(frames) for client in clients))
        for daemon in fleet:
            await daemon.store.commits.settled()
    assert (await clients[0].ok("get", kind="kv", id="k"))["record"]["n"] == 10 * ROUNDS * len(fleet)
