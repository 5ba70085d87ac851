"""Lists: every filter, every order, every page, compared with a plain model over the same records."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine, Query, Row
from statesvc.config.model import Limits
from statesvc.store.kinds import Kinds
from tests.engines.addresses import repeats
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker

Job = dict[str, Any]
STATES = ["QUEUED", "RUNNING", "STOPPING", "COMPLETED", "FAILED", "CANCELED"]
FINAL = {"COMPLETED", "FAILED", "STOPPED", "CANCELED", "TIMEOUT"}
PRIORITIES = {"low": 1, "normal": 5, "high": 10, "critical": 15}


# --- the plain model -------------------------------------------------------------------------------------------------


def nanos(text: str) -> int:
    """Nanoseconds of a time, the fraction kept exactly."""
    whole, fraction, offset = re.fullmatch(r"(.{19})(?:\.(\d+))?(Z|[+-]..:..)", text).groups()  # type: ignore[union-attr]
    seconds = datetime.fromisoformat(whole + offset.replace("Z", "+00:00")).timestamp()
    return int(seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))


def key_of(job: Job, sort: str) -> Any:
    value = job.get("uuid" if sort == "id" else sort)
    if value is None:
        return None
    if sort.endswith("At"):
        return nanos(value)
    return PRIORITIES.get(value, value) if sort == "priority" else value


def ordered(jobs: list[Job], sort: str = "createdAt", *, descending: bool = True) -> list[Job]:
    having = [job for job in jobs if key_of(job, sort) is not None]
    lacking = [job for job in jobs if key_of(job, sort) is None]
    having.sort(key=lambda job: (key_of(job, sort), job["uuid"]), reverse=descending)
    lacking.sort(key=lambda job: job["uuid"], reverse=descending)
    return having + lacking


def matches(job: Job, wanted: dict[str, Any]) -> bool:
    return all(_CHECKS[name](job, value) for name, value in wanted.items())


def _at(value: Any, path: str) -> Any:
    for name in path.strip("/").split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value


_CHECKS: dict[str, Any] = {
    "status": lambda job, value: job.get("status") == value.upper(),
    "statuses": lambda job, value: job.get("status") in {each.upper() for each in value},
    "nodeId": lambda job, value: job.get("nodeId") == value,
    "owner": lambda job, value: job.get("owner") == value,
    "ids": lambda job, value: job["uuid"] in value,
    "prefix": lambda job, value: job["uuid"].startswith(value),
    "regex": lambda job, value: re.search(value, job["uuid"]) is not None,
    "labels": lambda job, value: all(job.get("labels", {}).get(name) == each for name, each in value.items()),
    "where": lambda job, value: all(_at(job, path) == each for path, each in value.items()),
}
for _name in ("created", "updated", "started", "completed"):
    _CHECKS[f"{_name}After"] = lambda job, value, at=f"{_name}At": at in job and nanos(job[at]) > nanos(value)
    _CHECKS[f"{_name}Before"] = lambda job, value, at=f"{_name}At": at in job and nanos(job[at]) < nanos(value)


# --- the records -----------------------------------------------------------------------------------------------------


def moment(chance: random.Random) -> str:
    """One of few times, written in several ways."""
    second = chance.randint(10, 15)
    return chance.choice(
        [f"2025-01-01T12:00:{second}Z", f"2025-01-01T14:00:{second}+02:00", f"2025-01-01T12:00:{second}.000000001Z"]
    )


def random_job(chance: random.Random, number: int) -> Job:
    job: Job = {
        "uuid": f"{chance.choice(['job-', 'task-', 'é', '😀', 'Job-'])}{number:03}",
        "createdAt": moment(chance),
    }
    optional = {
        "status": chance.choice(STATES),
        "nodeId": chance.choice(["n1", "n2"]),
        "owner": chance.choice(["job/x", "worker/y"]),
        "priority": chance.choice([0, 1, 2.5, 5, "low", "high", -3]),
        "scheduledAt": moment(chance),
        "startedAt": moment(chance),
        "completedAt": moment(chance),
        "labels": {name: chance.choice(["x", "y", "", 1, True]) for name in chance.sample("abc", 2)},
        "deep": {"list": [1, {"x": 2}], "flag": chance.choice([True, 1, "1"])},
        "pid": chance.randint(1, 3),
    }
    return job | {name: value for name, value in optional.items() if chance.random() < 0.75}


async def filled(daemon: Daemon, count: int = 250, seed: int = 1) -> list[Job]:
    """Records made through the socket, some changed, some deleted; as `get` tells them."""
    chance = random.Random(seed)
    talker = await daemon.talker()
    jobs = [random_job(chance, number) for number in range(count)]
    for reply in await talker.in_one_go({"op": "create", "job": job} for job in jobs):
        assert reply["success"], reply
    changed = chance.sample(jobs, count // 4)
    await talker.in_one_go({"op": "update", "job": {"uuid": job["uuid"], "pid": 9}} for job in changed)
    gone = {job["uuid"] for job in chance.sample(jobs, count // 10)}
    await talker.in_one_go({"op": "delete", "jobId": name} for name in gone)
    living = [job["uuid"] for job in jobs if job["uuid"] not in gone]
    await daemon.caught_up()
    return [reply["job"] for reply in await talker.in_one_go({"op": "get", "jobId": name} for name in living)]


async def pages(talker: Talker, limit: int | None = None, **request: Any) -> list[Job]:
    """Every page of a list, put together."""
    found: list[Job] = []
    cursor: dict[str, str] = {}
    wanted = {} if limit is None else {"limit": limit}
    for _ in range(2000):
        reply = await talker.ok("list", **request, **wanted, **cursor)
        assert limit is None or len(reply["jobs"]) <= limit
        found += reply["jobs"]
        if "nextCursor" not in reply:
            return found
        cursor = {"cursor": reply["nextCursor"]}
    raise AssertionError("the pages do not end")


def ids(jobs: list[Job]) -> list[str]:
    return [job["uuid"] for job in jobs]


FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "RUNNING"},
    {"status": "running"},
    {"statuses": ["QUEUED", "COMPLETED", "failed"]},
    {"statuses": ["TIMEOUT"]},
    {"statuses": []},
    {"statuses": [], "owner": "job/x"},
    {"statuses": [], "labels": {"a": "x"}},
    {"nodeId": "n1"},
    {"nodeId": "n1", "status": "COMPLETED"},
    {"nodeId": "n2", "statuses": ["RUNNING", "QUEUED"]},
    {"owner": "job/x"},
    {"owner": "job/x", "nodeId": "n2"},
    {"prefix": "job-"},
    {"prefix": "é"},
    {"prefix": "😀0"},
    {"prefix": "job-1", "status": "RUNNING"},
    {"regex": "^(job|task)-.*[13579]$"},
    {"regex": "é"},
    {"labels": {"a": "x"}},
    {"labels": {"a": "x", "b": "y"}},
    {"labels": {"a": ""}},
    {"labels": {"c": "y"}, "status": "RUNNING"},
    {"createdAfter": "2025-01-01T12:00:11Z"},
    {"createdAfter": "2025-01-01T13:00:11+01:00", "createdBefore": "2025-01-01T12:00:14.000000001Z"},
    {"createdBefore": "2025-01-01T12:00:10Z"},
    {"createdAfter": "9999-12-31T23:59:59Z"},
    {"createdBefore": "0001-01-01T00:00:00Z"},
    {"createdAfter": "0001-01-01T00:00:00Z", "createdBefore": "9999-12-31T23:59:59Z"},
    {"startedAfter": "2025-01-01T12:00:12Z", "status": "RUNNING"},
    {"startedBefore": "2025-01-01T12:00:13Z"},
    {"completedAfter": "2025-01-01T12:00:12Z"},
    {"completedBefore": "2025-01-01T12:00:13Z", "nodeId": "n1"},
    {"updatedAfter": "2025-01-01T12:00:13Z"},
    {"updatedBefore": "2025-01-01T12:00:13Z"},
    {"where": {"pid": 9}},
    {"where": {"/deep/flag": "1"}},
    {"where": {"pid": 1, "nodeId": "n1"}},
    {"where": {"nothing": None, "status": "RUNNING"}},
]
SORTS = ["createdAt", "updatedAt", "startedAt", "completedAt", "scheduledAt", "priority", "status", "id"]


async def test_every_filter_finds_what_the_model_finds(daemon: Daemon):
    jobs = await filled(daemon)
    client = await daemon.client()
    for wanted in FILTERS:
        expected = ordered([job for job in jobs if matches(job, wanted)])
        assert await pages(client, 50, filter=wanted) == expected, wanted


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("sort", SORTS)
async def test_every_order_is_the_models_order_on_pages_of_any_size(daemon: Daemon, sort: str, descending: bool):
    jobs = await filled(daemon, 80)
    client = await daemon.client()
    for wanted in ({}, {"status": "RUNNING"}, {"labels": {"a": "x"}}, {"prefix": "job-"}, {"nodeId": "n1"}):
        expected = ordered([job for job in jobs if matches(job, wanted)], sort, descending=descending)
        for limit in (7, 1000):
            found = await pages(client, limit, filter=wanted, sortBy=sort, sortDesc=descending)
            assert ids(found) == ids(expected), (wanted, limit)
    assert await pages(client, 1, sortBy=sort, sortDesc=descending) == ordered(jobs, sort, descending=descending)


async def test_orders_with_bounds_on_the_sorted_time_are_the_models(daemon: Daemon):
    jobs = await filled(daemon, 120)
    client = await daemon.client()
    for name in ("created", "updated", "started", "completed"):
        for descending in (False, True):
            wanted = {f"{name}After": "2025-01-01T12:00:11Z", f"{name}Before": "2025-01-01T12:00:14Z"}
            expected = ordered([job for job in jobs if matches(job, wanted)], f"{name}At", descending=descending)
            found = await pages(client, 9, filter=wanted, sortBy=f"{name}At", sortDesc=descending)
            assert ids(found) == ids(expected)
            wanted = {f"{name}After": "9999-12-31T00:00:00Z"}
            assert await pages(client, filter=wanted, sortBy=f"{name}At", sortDesc=descending) == []


async def test_any_combination_of_filters_and_order_is_the_models(daemon: Daemon):
    jobs = await filled(daemon, 200, seed=2)
    client = await daemon.client()
    chance = random.Random(3)
    for _ in range(repeats(daemon.engine, 60)):
        wanted: dict[str, Any] = {}
        for part in chance.sample(FILTERS[1:], 2):
            wanted |= {
                name: value for name, value in part.items() if name not in {"statuses", "status"} & wanted.keys()
            }
        if "status" in wanted and "statuses" in wanted:
            del wanted["status"]
        sort, descending = chance.choice(SORTS), chance.choice([True, False])
        expected = ordered([job for job in jobs if matches(job, wanted)], sort, descending=descending)
        found = await pages(client, chance.choice([3, 20, 500]), filter=wanted, sortBy=sort, sortDesc=descending)
        assert ids(found) == ids(expected), (wanted, sort, descending)


async def test_ids_are_filtered_ordered_and_paged_like_everything_else(daemon: Daemon):
    jobs = await filled(daemon, 60)
    client = await daemon.client()
    names = [*ids(jobs)[:30], "nobody", ids(jobs)[0]]
    filters: list[dict[str, Any]] = [
        {"ids": names},
        {"ids": names, "status": "RUNNING"},
        {"ids": []},
        {"ids": ["nobody"]},
    ]
    for wanted in filters:
        for sort in ("createdAt", "priority", "id"):
            expected = ordered([job for job in jobs if matches(job, wanted)], sort, descending=False)
            for limit in (4, None):
                assert ids(await pages(client, limit, filter=wanted, sortBy=sort)) == ids(expected), (wanted, sort)


async def test_status_and_statuses_together_mean_both(daemon: Daemon):
    jobs = await filled(daemon, 60)
    client = await daemon.client()
    running = {job["uuid"] for job in jobs if job.get("status") == "RUNNING"}
    found = await pages(client, filter={"status": "RUNNING", "statuses": ["running", "FAILED"]})
    assert set(ids(found)) == running
    assert await pages(client, filter={"status": "RUNNING", "statuses": ["FAILED"]}) == []
    canceled = {job["uuid"] for job in jobs if job.get("status") == "CANCELED"}
    assert set(ids(await pages(client, filter={"status": "CANCELLED", "statuses": ["Canceled"]}))) == canceled


async def test_label_values_that_are_no_texts_can_be_filtered_by(daemon: Daemon):
    jobs = await filled(daemon, 60)
    client = await daemon.client()
    for value in (1, True, "1"):
        found = await pages(client, filter={"labels": {"a": value}})
        expected = [job for job in jobs if json.dumps(job.get("labels", {}).get("a", "-")) == json.dumps(value)]
        assert set(ids(found)) == set(ids(expected))


async def test_filters_are_named_in_any_case_and_may_hold_the_order(daemon: Daemon):
    jobs = await filled(daemon, 60)
    for talker in (await daemon.client(), await daemon.talker()):
        reply = await talker.ok(
            "list", filter={"STATUS": "", "NodeID": "", "sortBy": "UUID", "SortDesc": True, "limit": 5}
        )
        assert ids(reply["jobs"]) == ids(ordered(jobs, "id"))[:5]
        reply = await talker.ok("list", filter={"limit": 9}, sortBy="jobId", limit=3)
        assert ids(reply["jobs"]) == ids(ordered(jobs, "id", descending=False))[:3]


@pytest.mark.parametrize(
    "request_",
    [
        {"filter": {"colour": "blue"}},
        {"filter": {"status": 5}},
        {"filter": {"status": "SLEEPING"}},
        {"filter": {"statuses": ["RUNNING", "x"]}},
        {"filter": {"regex": "("}},
        {"filter": {"regex": "(?=a)"}},
        {"filter": {"regex": "(a)\\1"}},
        {"filter": {"createdAfter": "today"}},
        {"filter": {"labels": []}},
        {"filter": {"where": {"": 1}}},
        {"filter": {"ids": [1]}},
        {"filter": {"ids": [str(number) for number in range(1001)]}},
        {"sortBy": "colour"},
        {"limit": -1},
        {"cursor": "x"},
        {"cursor": "é"},
        {"cursor": "AAAA"},
    ],
    ids=lambda value: json.dumps(value)[:50],
)
async def test_a_list_that_makes_no_sense_is_refused(client: Talker, request_: dict):
    reply = await client.ask("list", **request_)
    assert reply["code"] == "bad_request", reply
    assert "outcome" not in reply
    assert (await client.ok("list"))["jobs"] == []


async def test_a_cursor_belongs_to_its_list_and_is_refused_when_tampered_with(daemon: Daemon):
    await filled(daemon, 30)
    client = await daemon.client()
    cursor = (await client.ok("list", limit=3))["nextCursor"]
    for other in ({"sortBy": "id"}, {"sortDesc": False}, {"kind": "kv"}):
        assert (await client.ask("list", cursor=cursor, **other))["code"] == "bad_request"
    plain = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    for place, value in ((0, 2), (0, "1"), (4, "text"), (4, None), (4, [1]), (4, 2**80), (4, 1.5), (4, True), (5, 7)):
        forged = list(plain)
        forged[place] = value
        text = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
        reply = await client.ask("list", cursor=text)
        assert reply.get("code") == "bad_request", (place, value, reply)


async def test_a_regex_that_would_stall_others_does_not(client: Talker):
    await client.write("create", job={"uuid": "a" * 200 + "!"})
    reply = await client.ask("list", filter={"regex": "(a+)+$"})
    assert reply["success"]
    reply = await client.ask("list", filter={"regex": "((a{1,100}){1,100}){1,100}"})
    assert reply["success"] or reply["code"] == "bad_request"


# --- pages -----------------------------------------------------------------------------------------------------------


async def test_the_limit_is_a_hundred_after_hello_and_a_thousand_at_most(daemon: Daemon):
    client = await daemon.client(None)
    for begin in range(0, 1100, 100):
        jobs = [{"uuid": f"{number:04}"} for number in range(begin, begin + 100)]
        assert (await client.ok("sync", jobs=jobs))["applied"] == 100
    await daemon.caught_up()
    assert len((await client.ok("list"))["jobs"]) == 100
    assert len((await client.ok("list", limit=0))["jobs"]) == 100
    assert len((await client.ok("list", limit=5000))["jobs"]) == 1000
    assert len(await pages(client, 1000)) == 1100
    joblet = await daemon.talker()
    everything = await joblet.ok("list")
    assert len(everything["jobs"]) == 1100
    assert "truncated" not in everything
    assert "nextCursor" not in everything


async def test_the_last_page_has_no_cursor_and_an_empty_list_is_a_list_after_hello(daemon: Daemon):
    client = await daemon.client()
    reply = await client.ok("list")
    assert reply["jobs"] == []
    assert "nextCursor" not in reply
    for name in "abc":
        await client.write("create", job={"uuid": name})
    await daemon.caught_up()
    reply = await client.ok("list", limit=3)
    assert len(reply["jobs"]) == 3
    assert "nextCursor" not in reply


async def test_a_list_counts_what_it_would_find_when_asked_to(daemon: Daemon):
    jobs = await filled(daemon, 60)
    for talker in (await daemon.client(), await daemon.talker()):
        for wanted in ({}, {"status": "RUNNING"}, {"where": {"pid": 9}}, {"prefix": "nobody"}):
            reply = await talker.ok("list", filter=wanted, limit=3, count=True)
            assert reply["total"] == len([job for job in jobs if matches(job, wanted)])
        assert "total" not in await talker.ok("list", limit=3)


async def test_as_of_is_read_before_the_list(client: Talker, daemon: Daemon):
    before = (await client.ok("list"))["asOf"]
    await client.write("create", job={"uuid": "a"})
    after = (await client.ok("list"))["asOf"]
    assert before != after
    assert daemon.engine.epoch in after


async def test_an_agent_without_hello_gets_live_jobs_first_then_newest(daemon: Daemon):
    jobs = await filled(daemon, 120)
    joblet = await daemon.talker()
    live = [job for job in jobs if job.get("status") not in FINAL]
    final = [job for job in jobs if job.get("status") in FINAL]
    assert (await joblet.ok("list"))["jobs"] == ordered(live) + ordered(final)
    wanted = {"nodeId": "n1"}
    expected = ordered([job for job in live if matches(job, wanted)]) + ordered(
        [job for job in final if matches(job, wanted)]
    )
    assert (await joblet.ok("list", filter=wanted))["jobs"] == expected
    assert (await joblet.ok("list", sortBy="id"))["jobs"] == ordered(jobs, "id", descending=False)


async def test_an_agent_without_hello_gets_jobs_in_states_that_are_not_known_any_more(engine: Engine, start: Start):
    before = await start(engine, lifecycles={"job": {"RUNNING": ["HELD"], "HELD": ["RUNNING"]}})
    writer = await before.talker()
    for name, status in (("ended", "FAILED"), ("held", "HELD"), ("running", "RUNNING")):
        await writer.ok("create", job={"uuid": name, "status": status})
    before.store.kinds = Kinds()
    await before.caught_up()
    reply = await (await before.talker()).ok("list")
    assert [job["uuid"] for job in reply["jobs"]] == ["running", "held", "ended"]


async def test_what_does_not_fit_one_frame_is_left_out_and_said(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(frame_bytes=64 * 1024, record_bytes=32 * 1024))
    joblet, client = await daemon.talker(), await daemon.client()
    for number in range(20):
        state = "COMPLETED" if number % 2 else "RUNNING"
        created = f"2025-01-01T00:00:{number:02}Z"
        await joblet.ok("create", job={"uuid": f"{number:02}", "status": state, "createdAt": created, "x": "y" * 5000})
    await daemon.caught_up()
    joblet.send({"op": "list"})
    line = await joblet.line()
    assert len(line) <= 64 * 1024
    reply = json.loads(line)
    assert reply["truncated"] is True
    got = ids(reply["jobs"])
    assert got == ["18", "16", "14", "12", "10", "08", "06", "04", "02", "00", "19"][: len(got)]
    assert len(got) >= 10
    client.send({"op": "list", "limit": 1000})
    line = await client.line()
    assert len(line) <= 64 * 1024
    assert json.loads(line)["nextCursor"]
    assert ids(await pages(client, 1000)) == [f"{number:02}" for number in reversed(range(20))]


async def test_what_was_stored_when_frames_were_larger_is_listed_all_the_same(engine: Engine, start: Start):
    """By itself, whatever its size: nobody would ever get beyond it."""
    before = await start(engine)
    writer = await before.client()
    for number, size in enumerate((10, 100_000, 10, 100_000, 100_000, 10)):
        created = f"2025-01-01T00:00:{number:02}Z"
        await writer.ok("create", job={"uuid": f"{number}", "createdAt": created, "x": "y" * size})
    before.store.limits = replace(before.store.limits, frame_bytes=65_536, record_bytes=32_768)
    await before.caught_up()
    client, joblet = await before.client(), await before.talker()
    assert ids(await pages(client, 1000)) == ["5", "4", "3", "2", "1", "0"]
    assert ids((await client.ok("list", filter={"ids": ["3", "4"]}))["jobs"]) == ["4"]
    assert ids((await joblet.ok("list", sortBy="uuid"))["jobs"]) == ["0"]


async def test_a_call_examines_a_bounded_number_of_records(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(list_examined=200, list_limit=50, list_default=50))
    client = await daemon.client(None)
    await client.ok("sync", jobs=[{"uuid": f"{number:04}", "pid": number} for number in range(500)])
    await daemon.caught_up()
    first = await client.ok("list", filter={"where": {"pid": 250}}, sortBy="id")
    assert first["jobs"] == []
    assert first["nextCursor"]
    found = await pages(client, filter={"where": {"pid": 250}}, sortBy="id")
    assert ids(found) == ["0250"]


async def test_a_list_filtered_by_status_does_not_read_every_record(start: Start):
    class Counting(MemoryEngine):
        read = 0

        async def query(self, query: Query) -> list[Row]:
            rows = await super().query(query)
            self.read += len(rows)
            return rows

    engine = Counting()
    daemon = await start(engine)
    client = await daemon.client(None)
    jobs = [{"uuid": f"{number:05}", "status": "FAILED" if number % 20 else "RUNNING"} for number in range(10_000)]
    await client.ok("sync", jobs=jobs)
    engine.read = 0
    assert len((await client.ok("list", filter={"status": "RUNNING"}, limit=100))["jobs"]) == 100
    assert engine.read < 200


@pytest.mark.parametrize(("sort", "descending"), [("createdAt", True), ("createdAt", False), ("id", False)])
async def test_pages_neither_skip_nor_repeat_while_others_write(daemon: Daemon, sort: str, descending: bool):
    """Records that were there all the time are shown once each, whatever happens to them and around them."""
    reader, writer = await daemon.client(None), await daemon.talker()
    steady = [f"steady-{number:03}" for number in range(150)]
    await writer.in_one_go({"op": "create", "job": {"uuid": name, "status": "QUEUED"}} for name in steady)
    doomed = [f"doomed-{number:03}" for number in range(50)]
    await writer.in_one_go({"op": "create", "job": {"uuid": name}} for name in doomed)
    await daemon.caught_up()
    over = asyncio.Event()

    async def disturb() -> None:
        chance = random.Random(7)
        number = 0
        while not over.is_set():
            number += 1
            name = chance.choice(steady)
            await writer.ask("update", job={"uuid": name, "status": chance.choice(STATES), "n": number, "nodeId": "x"})
            await writer.ask("create", job={"uuid": f"new-{number:05}"})
            if doomed:
                await writer.ask("delete", jobId=doomed.pop())

    disturbing = asyncio.create_task(disturb())
    try:
        for limit in (3, 17, 60):
            found = ids(await pages(reader, limit, sortBy=sort, sortDesc=descending))
            assert len(found) == len(set(found))
            assert [name for name in found if name.startswith("steady")] == (
                sorted(steady, reverse=descending) if sort == "id" else [n for n in found if n.startswith("steady")]
            )
            assert set(steady) <= set(found)
    finally:
        over.set()
        await disturbing


async def test_a_list_sees_every_write_answered_before_it(start: Start, engine: Engine):
    """Promised where the engine's own queries are never late."""
    daemon = await start(engine)
    talkers = [await daemon.talker() for _ in range(4)]
    for round_ in range(10):
        for number, talker in enumerate(talkers):
            await talker.ok("create", job={"uuid": f"{round_}-{number}", "status": "RUNNING"})
            await daemon.caught_up()
            found = await talkers[number - 1].ok("list", filter={"status": "RUNNING"})
            assert f"{round_}-{number}" in ids(found["jobs"])
