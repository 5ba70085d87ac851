"""Many at once: an agent's unordered threads, and several daemons on one store."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.socket.following import events, watching
from tests.socket.talking import PATIENCE, Daemon, Talker

CONNECTIONS = 20
JOBS = 200


def life(number: int) -> list[dict[str, Any]]:
    """The three whole records an agent sends of one job, each from a thread of its own."""
    job = {"uuid": f"job-{number:04}", "command": "echo", "args": ["hi"], "nodeId": "n1"}
    return [
        {"op": "create", "job": {**job, "status": "INITIALIZING"}},
        {"op": "update", "job": {**job, "status": "RUNNING", "pid": number}},
        {"op": "update", "job": {**job, "status": "COMPLETED", "pid": number, "exitCode": 0}},
    ]


async def one_at_a_time(talker: Talker, work: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A pooled connection: one request in flight."""
    replies = []
    while work:
        talker.send(work.pop())
        replies.append(await talker.receive())
    return replies


@pytest.mark.parametrize("seed", range(2))
async def test_three_racing_writes_of_every_job_end_completed(daemon: Daemon, seed: int):
    work = [frame for number in range(JOBS) for frame in life(number)]
    random.Random(seed).shuffle(work)
    talkers = [await daemon.talker() for _ in range(CONNECTIONS)]
    replies = await asyncio.gather(*(one_at_a_time(talker, work) for talker in talkers))
    assert sum(map(len, replies)) == 3 * JOBS
    refused = [reply for each in replies for reply in each if not reply["success"]]
    allowed = {"exists", "invalid_transition"} | (set() if daemon.engine.immediate else {"internal"})
    assert {reply["code"] for reply in refused} <= allowed
    await daemon.caught_up()
    jobs = (await talkers[0].ok("list"))["jobs"]
    assert len(jobs) == JOBS
    assert {job["status"] for job in jobs} == {"COMPLETED"}
    assert all(job["exitCode"] == 0 and "completedAt" in job for job in jobs)


async def test_the_same_job_raced_over_every_connection_at_once_ends_completed(daemon: Daemon):
    talkers = [await daemon.talker() for _ in range(CONNECTIONS)]
    chance = random.Random(9)
    for number in range(15):
        for place, talker in enumerate(talkers):
            talker.send(life(number)[place % 3])
        chance.shuffle(talkers)
        for talker in talkers:
            await talker.receive()
        job = (await talkers[0].ok("get", jobId=f"job-{number:04}"))["job"]
        assert job["status"] == "COMPLETED"


# --- several daemons on one store ------------------------------------------------------------------------------------


async def insist(talker: Talker, frame: dict[str, Any]) -> dict[str, Any]:
    """Send a numbered write until its fate is known."""
    talker.send(frame)
    reply = await talker.receive()
    while not reply["success"] and (reply["outcome"] == "unknown" or reply["code"] in {"busy", "unavailable"}):
        talker.send({**frame, "again": True})
        reply = await talker.receive()
    return reply


async def test_no_update_is_lost_or_applied_twice_by_a_fleet(fleet: list[Daemon]):
    talkers = [await daemon.client(f"c{number}") for number, daemon in enumerate(fleet * 2)]

    async def count(talker: Talker) -> None:
        for seq in range(1, 21):
            frame = {"op": "update", "jobId": "a", "inc": {"n": 1}, "upsert": True, "seq": seq, "floor": seq}
            reply = await insist(talker, frame)
            assert reply["success"], reply

    await asyncio.gather(*(count(talker) for talker in talkers))
    job = (await talkers[0].ok("get", jobId="a"))["job"]
    assert (job["n"], job["revision"]) == (120, 120)


async def test_of_a_fleets_creates_one_wins(fleet: list[Daemon]):
    for number in range(15):
        frame = {"op": "create", "job": {"uuid": f"j{number}"}, "seq": number + 1, "floor": number + 1}
        talkers = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]
        replies = await asyncio.gather(*(insist(talker, frame) for talker in talkers))
        assert sorted(reply.get("code", "made") for reply in replies) == ["exists", "exists", "made"]


async def test_a_fleet_agrees_on_one_winner_of_a_compare_and_set(fleet: list[Daemon]):
    talkers = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]
    await talkers[0].ok("create", kind="kv", record={"id": "k"})
    for revision in range(1, 20):
        seq = revision
        frames = [
            {"op": "update", "kind": "kv", "id": "k", "record": {"by": place}, "ifRevision": revision, "seq": seq}
            for place in range(3)
        ]
        replies = await asyncio.gather(*(insist(t, frame) for t, frame in zip(talkers, frames, strict=True)))
        assert sorted(reply.get("code", "won") for reply in replies) == ["conflict", "conflict", "won"]


async def test_a_counter_without_numbers_is_never_counted_twice(fleet: list[Daemon]):
    """Without seq an unlucky write may be `unknown`; one that is answered is applied once, one refused not at all."""
    talkers = [await daemon.client(None) for daemon in fleet]
    await talkers[0].ok("create", job={"uuid": "a", "n": 0})

    async def count(talker: Talker) -> tuple[int, int]:
        done = unsure = 0
        for _ in range(40):
            reply = await talker.ask("update", jobId="a", inc={"n": 1})
            done += reply["success"]
            unsure += reply.get("outcome") == "unknown"
        return done, unsure

    counts = await asyncio.gather(*(count(talker) for talker in talkers))
    done, unsure = (sum(each) for each in zip(*counts, strict=True))
    counted = (await talkers[0].ok("get", jobId="a"))["job"]["n"]
    assert done <= counted <= done + unsure
    assert done > 60


async def test_what_one_daemon_wrote_the_others_read(fleet: list[Daemon]):
    one, *others = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]
    made = (await one.ok("create", job={"uuid": "a"}, seq=1))["job"]
    for other in others:
        assert (await other.ok("get", jobId="a"))["job"] == made
    assert len({daemon.engine.epoch for daemon in fleet}) == 1


async def test_a_fleet_hands_out_every_job_once(fleet: list[Daemon]):
    talkers = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]
    names = {f"j{number:02}" for number in range(30)}
    await talkers[0].ok("sync", jobs=[{"uuid": name, "status": "QUEUED"} for name in names], seq=1)

    async def work(talker: Talker) -> list[tuple[str, int]]:
        """Until nothing is left: claims of up to three jobs, each sent again until its fate is known."""
        taken: list[tuple[str, int]] = []
        while len(gone) < len(names):
            talker.seq += 1
            frame = {"op": "claim", "holder": "w", "limit": 3, "ttl": 3600, "seq": talker.seq + 1, "floor": talker.seq}
            reply = await insist(talker, frame)
            assert reply["success"], reply
            got = [(job["uuid"], job["lease"]["token"]) for job in reply.get("jobs", [])]
            gone.update(name for name, _ in got)
            taken += got
        return taken

    gone: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        taken = [each for some in await asyncio.gather(*map(work, talkers)) for each in some]
    assert sorted(taken) == sorted((name, 1) for name in names)


async def test_a_lock_of_a_fleet_has_one_holder_at_a_time_and_tokens_that_grow(fleet: list[Daemon]):
    talkers = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]
    held: list[int] = []

    async def hold(talker: Talker) -> None:
        for turn in range(5):
            seq = 2 * turn + 1
            claim = {"op": "claim", "kind": "lock", "id": "l", "holder": "h", "ttl": 3600, "wait": 30}
            reply = await insist(talker, {**claim, "seq": seq, "floor": seq})
            (lock,) = reply["records"]
            token = lock["lease"]["token"]
            held.append(token)
            release = {"op": "release", "kind": "lock", "id": "l", "token": token, "seq": seq + 1, "floor": seq + 1}
            assert (await insist(talker, release))["success"]

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(hold, talkers))
    assert held == list(range(1, 16))


async def test_a_watcher_at_one_daemon_sees_what_all_of_them_write(fleet: list[Daemon]):
    watchers = [await watching(daemon) for daemon in fleet]
    talkers = [await daemon.client(f"c{place}") for place, daemon in enumerate(fleet)]

    async def write(talker: Talker, place: int) -> None:
        for seq in range(1, 11):
            frame = {"op": "update", "jobId": f"j{seq % 2}-{place}", "inc": {"n": 1}, "upsert": True}
            assert (await insist(talker, {**frame, "seq": seq, "floor": seq}))["success"]

    writing = asyncio.gather(*(write(talker, place) for place, talker in enumerate(talkers)))
    for seen in await asyncio.gather(*(events(watcher, 30) for watcher in watchers)):
        revisions: dict[str, list[int]] = {}
        for each in seen:
            revisions.setdefault(each["id"], []).append(each["revision"])
        assert revisions == {f"j{half}-{place}": list(range(1, 6)) for half in (0, 1) for place in range(3)}
    await writing
