"""F5: the wall clock jumps a day back and ten years ahead: order is by revision, nothing ends early or never."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import Client, Daemon, serving, until
from tests.fleet.daemons import daemon as serve
from tests.fleet.places import PLACES

DAY = 86_400
BACK = -DAY
AHEAD = 3650 * DAY
JUMPS = [pytest.param(BACK, id="a-day-back"), pytest.param(AHEAD, id="ten-years-ahead")]

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """The time of day, as the daemons see it that are started with `environment`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_AHEAD": str(file)}

    def jump(self, seconds: int) -> None:
        """Be off by so much, from now on."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


@pytest.fixture
def clock(library: Path, folder: Path) -> WallClock:
    return WallClock(library, folder / "ahead")


@pytest.fixture
def daemon(clock: WallClock, folder: Path) -> Iterator[Daemon]:
    with serving(folder, env=clock.environment) as daemon:
        yield daemon


def told(job: dict[str, Any], name: str) -> datetime:
    """A time of a record, down to the microsecond."""
    return datetime.fromisoformat(f"{job[name][:26]}+00:00")


def is_about(moment: datetime, seconds_ahead: int) -> bool:
    return abs(moment - datetime.now(UTC) - timedelta(seconds=seconds_ahead)) < timedelta(hours=1)


def locked(client: Client, name: str, holder: str, ttl: float) -> list[dict[str, Any]]:
    reply = client.ask("claim", kind="lock", id=name, holder=holder, ttl=ttl)
    assert reply["success"], reply
    return list(reply["records"])


def holder_of(client: Client, name: str) -> str:
    lease = client.ask("get", kind="lock", id=name)["record"].get("lease")
    return "" if lease is None else str(lease["holder"])


# --- order ---------------------------------------------------------------------------------------------------------


def test_the_daemon_sees_the_clock_that_is_set(daemon, clock):
    with daemon.connect() as client:
        for number, ahead in enumerate((0, BACK, AHEAD)):
            clock.jump(ahead)
            job = client.ask("create", job={"uuid": f"job-{number}"})["job"]
            assert is_about(told(job, "createdAt"), ahead)


def test_changes_are_in_the_order_of_their_revisions_whatever_the_clock_says(daemon, clock):
    with daemon.connect() as client:
        client.hello()
        job = client.ask("create", job={"uuid": "job-1", "n": 0})["job"]
        updated = [told(job, "updatedAt")]
        for number, ahead in enumerate((BACK, AHEAD, BACK, 0), 1):
            clock.jump(ahead)
            job = client.ask("update", jobId="job-1", job={"n": number}, ifRevision=number)["job"]
            assert (job["revision"], job["n"]) == (number + 1, number)
            updated.append(told(job, "updatedAt"))
        assert updated == sorted(updated), "updatedAt never decreases"
        events = client.ask("history", jobId="job-1")["events"]
        assert [event["revision"] for event in events] == [1, 2, 3, 4, 5]


def test_pages_by_creation_skip_and_repeat_nothing_while_the_clock_jumps(daemon, clock):
    with daemon.connect() as client:
        client.hello()
        for number in range(60):
            clock.jump((0, BACK, AHEAD)[number % 3])
            assert client.ask("create", job={"uuid": f"job-{number}"})["success"]
        for descending in (True, False):
            seen: list[str] = []
            page: dict[str, Any] = {}
            for ahead in (AHEAD, BACK, 0) * 10:
                clock.jump(ahead)
                reply = client.ask("list", sortBy="createdAt", sortDesc=descending, limit=7, **page)
                seen += [job["uuid"] for job in reply["jobs"]]
                if "nextCursor" not in reply:
                    break
                page = {"cursor": reply["nextCursor"]}
                touched = client.ask("update", jobId=seen[-1], inc={"seen": 1})
                assert touched["success"]
            assert sorted(seen) == sorted(f"job-{number}" for number in range(60))


def test_a_watch_tells_every_change_once_and_in_order_across_a_jump(daemon, clock):
    with daemon.connect() as client, daemon.connect() as watcher:
        watcher.hello()
        client.hello()
        assert watcher.ask("watch", kind="job", after="0")["success"]
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        for number, ahead in enumerate((AHEAD, BACK, 0)):
            clock.jump(ahead)
            assert client.ask("update", jobId="job-1", job={"n": number})["success"]
        assert [watcher.reply()["event"]["revision"] for _ in range(4)] == [1, 2, 3, 4]


# --- leases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", JUMPS)
def test_a_lease_that_is_kept_outlives_the_jump_and_one_that_is_not_lapses(daemon, clock, ahead):
    with daemon.connect() as client:
        client.hello()
        kept = locked(client, "kept", "a", 60)[0]["lease"]
        assert locked(client, "left", "a", 0.5)
        clock.jump(ahead)
        assert not locked(client, "kept", "b", 60), "lapsed early"
        until(
            lambda: locked(client, "left", "b", 60),
            "the lease that nobody kept to lapse",
        )
        assert client.ask("renew", kind="lock", id="kept", token=kept["token"], ttl=60)["success"]
        assert (holder_of(client, "kept"), holder_of(client, "left")) == ("a", "b")


@pytest.mark.parametrize("ahead", JUMPS)
def test_a_restart_after_the_jump_neither_ends_a_lease_nor_keeps_it_forever(folder, clock, ahead):
    with serving(folder, env=clock.environment) as daemon:
        with daemon.connect() as client:
            client.hello()
            kept = locked(client, "kept", "a", 60)[0]["lease"]
            assert locked(client, "left", "a", 0.5)
            assert client.ask("create", job={"uuid": "job-1", "n": 1})["success"]
        daemon.kill()
        clock.jump(ahead)
        with daemon.serving().connect() as client:
            client.hello()
            assert not locked(client, "kept", "b", 60)
            assert client.ask("renew", kind="lock", id="kept", token=kept["token"], ttl=60)["success"]
            until(lambda: locked(client, "left", "b", 60), "the lapse")
            job = client.ask("update", jobId="job-1", job={"n": 2}, ifRevision=1)["job"]
            assert job["revision"] == 2
            assert told(job, "updatedAt") >= told(job, "createdAt")
        assert daemon.stop() == 0


# --- what happens at a time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", JUMPS)
def test_a_running_job_is_not_ended_by_a_clock_that_jumped(daemon, clock, ahead):
    with daemon.connect() as client:
        client.hello()
        job = {"uuid": "job-1", "status": "RUNNING", "timeout": 3600}
        assert client.ask("create", job=job)["success"]
        clock.jump(ahead)
        assert client.ask("sweep")["success"]
        assert client.ask("get", jobId="job-1")["job"]["status"] == "RUNNING"


def test_a_scheduled_job_is_claimable_when_its_time_comes_by_the_clock_that_is_right_again(daemon, clock):
    with daemon.connect() as client:
        client.hello()
        clock.jump(BACK)
        due = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        job = {"uuid": "job-1", "status": "SCHEDULED", "scheduledAt": due}
        assert client.ask("create", job=job)["success"]
        assert client.ask("sweep")["success"]
        assert client.ask("claim", filter={}, holder="w", ttl=60)["jobs"] == [], "not due yet"
        clock.jump(0)
        until(lambda: client.ask("claim", filter={}, holder="w", ttl=60)["jobs"], "the job to become due")


def test_nothing_is_removed_by_age_while_the_clock_is_wrong_and_what_is_old_goes_when_it_is_right(folder, clock):
    settings = {"retention__terminal_seconds": 2000, "retention__interval_seconds": 0.05}
    with serving(folder, env=clock.environment, settings=settings) as daemon, daemon.connect() as client:
        client.hello()
        assert client.ask("create", job={"uuid": "before", "status": "COMPLETED"})["success"]
        clock.jump(AHEAD)
        assert client.ask("create", job={"uuid": "ahead", "status": "COMPLETED"})["success"]
        assert client.ask("sweep")["success"]
        assert (client.ask("health")["success"], _verdict(client)) == (True, "warn")
        clock.jump(BACK)
        assert client.ask("create", job={"uuid": "back", "status": "COMPLETED"})["success"]
        assert client.ask("sweep")["success"]
        assert {job["uuid"] for job in client.ask("list")["jobs"]} == {"before", "ahead", "back"}
        clock.jump(0)
        # What a clock a day behind called yesterday is older than half an hour; what lies ahead counts as now.
        until(lambda: client.ask("get", jobId="back").get("code") == "not_found", "what is old to go")
        assert {job["uuid"] for job in client.ask("list")["jobs"]} == {"before", "ahead"}
        clock.jump(3000)
        until(lambda: not client.ask("list").get("jobs"), "what was made ahead of its time to go in its time")


# --- the time to live of a shared engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [pytest.param(-90 * DAY, id="three-months-back"), JUMPS[1]])
def test_an_ended_job_on_dynamodb_keeps_its_time_to_live_whatever_the_clock_says(folder, clock, ahead):
    """The daemon whose clock jumps neither takes what is there for gone, nor writes what others take for gone."""
    with (
        PLACES["dynamodb"]() as place,
        serve(folder / "jumps", place.backend, place.values, env={**place.env, **clock.environment}).serving() as jumps,
        serve(folder / "right", place.backend, place.values, env=place.env).serving() as right,
        jumps.connect() as one,
        right.connect() as other,
    ):
        assert one.ask("create", job={"uuid": "before", "status": "COMPLETED"})["success"]
        clock.jump(ahead)
        assert one.ask("create", job={"uuid": "after", "status": "COMPLETED"})["success"]
        for client in (one, other):
            assert client.ask("get", jobId="before")["success"]
            assert client.ask("get", jobId="after")["success"]
            assert client.ask("create", job={"uuid": "before"})["code"] == "exists"
            assert client.ask("create", job={"uuid": "after"})["code"] == "exists"


def _verdict(client: Client) -> str:
    checks = client.ask("health")["checks"]
    (clock,) = (check for check in checks if check["name"] == "clock")
    return str(clock["verdict"])
