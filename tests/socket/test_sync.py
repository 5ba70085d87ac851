"""sync: many records brought forward at once, each on its own, and a report of what became of them."""

from __future__ import annotations

import pytest

from statesvc_client.errors import Internal, NoSpace
from tests.engines.addresses import repeats
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker


async def job_of(talker: Talker, name: str) -> dict:
    return (await talker.ok("get", jobId=name))["job"]


async def test_what_is_missing_is_made_what_moved_is_moved_and_the_rest_reported(daemon: Daemon):
    joblet = await daemon.talker()
    for name, status in (("same", "RUNNING"), ("moved", "QUEUED"), ("final", "COMPLETED"), ("other", "RUNNING")):
        await joblet.ok("create", job={"uuid": name, "status": status, "pid": 1})
    report = await joblet.ok(
        "sync",
        requestId="s",
        jobs=[
            {"uuid": "same", "status": "RUNNING", "pid": 1},
            {"Uuid": "moved", "Status": "COMPLETED"},
            {"uuid": "final", "status": "RUNNING"},
            {"uuid": "new", "status": "PENDING"},
        ],
    )
    [rejected] = report.pop("rejected")
    assert report == {"requestId": "s", "success": True, "applied": 2, "unchanged": 1}
    assert (rejected["jobId"], rejected["code"]) == ("final", "invalid_transition")
    assert rejected["error"]
    jobs = {name: await job_of(joblet, name) for name in ("same", "moved", "final", "new", "other")}
    assert {name: job["revision"] for name, job in jobs.items()} == {
        "same": 1, "moved": 2, "final": 1, "new": 1, "other": 1,
    }  # fmt: skip
    assert jobs["moved"]["pid"] == 1
    assert jobs["moved"]["status"] == "COMPLETED"


async def test_a_sync_sent_again_changes_nothing(joblet: Talker):
    jobs = [{"uuid": f"j{number}", "status": "RUNNING", "n": number} for number in range(20)]
    assert (await joblet.ok("sync", jobs=jobs))["applied"] == 20
    again = await joblet.ok("sync", jobs=jobs)
    assert (again["applied"], again["unchanged"]) == (0, 20)
    assert (await job_of(joblet, "j3"))["revision"] == 1


@pytest.mark.parametrize("hello", [False, True])
async def test_a_sync_assigns_with_and_without_hello(daemon: Daemon, hello: bool):
    talker = await (daemon.client() if hello else daemon.talker())
    await talker.ok("create", job={"uuid": "a", "x": {"y": 1}, "z": 1, "keep": 1})
    assert (await talker.ok("sync", jobs=[{"uuid": "a", "x": {"w": 2}, "z": None}]))["applied"] == 1
    job = await job_of(talker, "a")
    assert (job["x"], job["z"], job["keep"]) == ({"w": 2}, None, 1)


async def test_a_record_that_was_read_and_sent_back_is_unchanged(joblet: Talker):
    await joblet.ok("create", job={"uuid": "a", "status": "RUNNING", "deep": {"x": [1, 2.0, None]}})
    job = await job_of(joblet, "a")
    report = await joblet.ok("sync", jobs=[job])
    assert (report["applied"], report["unchanged"]) == (0, 1)


async def test_an_older_revision_is_refused_and_reported(joblet: Talker):
    await joblet.ok("create", job={"uuid": "a", "n": 1})
    old = await job_of(joblet, "a")
    await joblet.ok("update", job={"uuid": "a", "n": 2})
    report = await joblet.ok("sync", jobs=[{**old, "m": 1}])
    assert [(each["jobId"], each["code"]) for each in report["rejected"]] == [("a", "conflict")]
    assert (await job_of(joblet, "a"))["n"] == 2


async def test_times_given_to_a_sync_are_kept(joblet: Talker):
    times = {
        "createdAt": "2025-01-01T00:00:00Z",
        "startedAt": "2025-01-01T00:00:01.5+01:00",
        "completedAt": "2025-01-01T00:00:02Z",
    }
    await joblet.ok("sync", jobs=[{"uuid": "new", "status": "COMPLETED", **times}])
    job = await job_of(joblet, "new")
    assert {name: job[name] for name in times} == times


async def test_times_of_a_job_that_moved_on_are_taken_from_the_sync_that_tells_it(joblet: Talker):
    created = (await joblet.ok("create", job={"uuid": "a", "status": "QUEUED"}))["job"]["createdAt"]
    times = {"startedAt": "2025-01-01T00:00:01Z", "completedAt": "2025-01-01T00:00:02.000000003Z"}
    await joblet.ok("sync", jobs=[{"uuid": "a", "status": "COMPLETED", "createdAt": "2000-01-01T00:00:00Z", **times}])
    job = await job_of(joblet, "a")
    assert {name: job[name] for name in times} == times
    assert job["createdAt"] == created


@pytest.mark.parametrize(
    "jobs",
    [
        [None],
        [{"uuid": "a"}, None],
        [{"uuid": "a"}, 5],
        [{"uuid": "a"}, []],
        [{"uuid": "a"}, {}],
        [{"uuid": "a"}, {"uuid": ""}],
        [{"uuid": "a"}, {"uuid": 5}],
        [{"uuid": "a"}, {"uuid": "b\x00"}],
        [{"uuid": "a"}, {"uuid": "x" * 257}],
        [{"uuid": "a"}, {"uuid": "a"}],
        [{"uuid": "a"}, {"uuid": "b", "Status": "RUNNING", "status": "RUNNING"}],
    ],
    ids=lambda jobs: str(jobs)[:40],
)
async def test_a_malformed_element_refuses_the_whole_frame(joblet: Talker, jobs: list):
    reply = await joblet.ask("sync", jobs=jobs)
    assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
    assert reply["error"].startswith("SYNC_ERROR: ")
    assert (await joblet.ask("get", jobId="a"))["code"] == "not_found"


# --- scope and replace -----------------------------------------------------------------------------------------------


async def on_nodes(daemon: Daemon) -> Talker:
    joblet = await daemon.talker()
    for name, node in (("a", "n1"), ("b", "n1"), ("c", "n1"), ("d", "n2"), ("e", None)):
        await joblet.ok("create", job={"uuid": name, "status": "RUNNING", **({"nodeId": node} if node else {})})
    await daemon.caught_up()
    return joblet


async def test_a_scope_names_what_was_not_sent_and_merge_leaves_it(daemon: Daemon):
    joblet = await on_nodes(daemon)
    report = await joblet.ok("sync", jobs=[{"uuid": "a"}], scope={"nodeId": "n1"})
    assert sorted(report["missing"]) == ["b", "c"]
    assert (await job_of(joblet, "b"))["revision"] == 1
    report = await joblet.ok("sync", jobs=[{"uuid": "a"}])
    assert "missing" not in report


async def test_replace_deletes_inside_its_scope_only_and_leaves_tombstones(daemon: Daemon):
    joblet = await on_nodes(daemon)
    sent = [{"uuid": "a", "status": "COMPLETED"}, {"uuid": "d", "pid": 1}, {"uuid": "new", "nodeId": "n1"}]
    report = await joblet.ok("sync", jobs=sent, mode="replace", scope={"nodeId": "n1"})
    assert sorted(report["missing"]) == ["b", "c"]
    assert report["applied"] == 5
    for name in "bc":
        assert (await joblet.ask("get", jobId=name))["code"] == "not_found"
        late = {"uuid": name, "status": "COMPLETED"}
        assert (await joblet.ask("update", job=late))["code"] == "not_found"
    for name in ("a", "d", "e", "new"):
        assert await job_of(joblet, name)


async def test_replace_without_a_scope_is_refused(daemon: Daemon):
    joblet = await on_nodes(daemon)
    code, text = await joblet.refused("sync", jobs=[{"uuid": "a"}], mode="replace")
    assert code == "bad_request"
    assert "scope" in text
    assert await job_of(joblet, "b")


async def test_other_kinds_are_synced_by_their_own_names(joblet: Talker):
    report = await joblet.ok("sync", kind="kv", records=[{"id": "a", "value": 1}, {"id": "b", "value": 2}])
    assert report["applied"] == 2
    await joblet.ok("delete", kind="kv", id="a")
    report = await joblet.ok("sync", kind="kv", records=[{"id": "a", "value": 1}])
    assert [(each["id"], each["code"]) for each in report["rejected"]] == [("a", "not_found")]


# --- size and failure ------------------------------------------------------------------------------------------------


async def test_a_large_sync_lets_others_in_between(daemon: Daemon):
    one, two = await daemon.talker(), await daemon.talker()
    many = repeats(daemon.engine, 5000)
    one.send({"op": "sync", "jobs": [{"uuid": f"{number:05}"} for number in range(many)]})
    assert (await two.ok("create", job={"uuid": "x"}))["job"]["revision"] == 1
    assert (await one.receive())["applied"] == many


@pytest.mark.parametrize("error", [NoSpace("full"), Internal("the disk failed", outcome="unknown")])
@pytest.mark.parametrize("nth", [0, 1])
async def test_a_sync_any_part_of_which_failed_is_not_a_success(
    faulty: FaultyEngine, start: Start, error: NoSpace, nth: int
):
    daemon = await start(faulty)
    joblet = await daemon.talker()
    jobs = [{"uuid": f"{number:04}"} for number in range(600)]
    commit, calls = faulty.real.commit, iter(range(10_000))

    async def failing(batch):
        # What the daemon writes of itself is not meant.
        if batch[0][0].row.kind == "job" and next(calls) == nth:
            raise error
        return await commit(batch)

    faulty.real.commit = failing  # type: ignore[method-assign]
    reply = await joblet.ask("sync", jobs=jobs)
    # Some of its records may be in: only `unknown` is true of all of it.
    assert (reply["success"], reply["code"], reply["outcome"]) == (False, error.code, "unknown")
    again = await joblet.ok("sync", jobs=jobs)
    assert again["applied"] + again["unchanged"] == 600
    assert (await job_of(joblet, "0599"))["revision"] == 1
