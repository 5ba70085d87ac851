"""Two daemons on one namespace: what is done through one holds at the other, and neither trusts the other's clock."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import Daemon, Reply, until
from tests.fleet.daemons import daemon
from tests.fleet.places import Place
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults

AHEAD_SECONDS = 86_400


def ask(of: Daemon, op: str, **fields: Any) -> Reply:
    with of.connect() as client:
        return client.ask(op, **fields)


def ok(of: Daemon, op: str, **fields: Any) -> Reply:
    with of.connect() as client:
        client.hello()
        reply = client.ask(op, **fields)
    assert reply["success"], reply
    return reply


def names(of: Daemon, **filter: Any) -> list[str]:
    return sorted(job["uuid"] for job in ok(of, "list", filter=filter).get("jobs", ()))


def lists(of: Daemon, number: int) -> bool:
    return len(names(of)) == number


def is_queued(of: Daemon, name: str) -> bool:
    return bool(ask(of, "get", jobId=name)["job"]["status"] == "QUEUED")


def takes_writes(of: Daemon) -> bool:
    return bool(ask(of, "update", jobId="a", inc={"n": 1})["success"])


def events_of(of: Daemon, name: str) -> list[str]:
    return [event["type"] for event in ok(of, "history", jobId=name)["events"]]


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_sync_of_one_node_touches_nothing_of_another_whatever_daemon_it_comes_through(pair: list[Daemon]):
    one, other = pair
    for node, through in (("n1", one), ("n2", other)):
        for number in range(3):
            ok(through, "create", job={"uuid": f"{node}-{number}", "nodeId": node, "status": "RUNNING"})
    for each in pair:
        until(partial(lists, each, 6), "both to list everything")
    replaced = ok(
        other, "sync", mode="replace", scope={"nodeId": "n1"},
        jobs=[{"uuid": "n1-0", "nodeId": "n1", "status": "RUNNING"}, {"uuid": "n1-9", "nodeId": "n1"}],
    )  # fmt: skip
    assert sorted(replaced["missing"]) == ["n1-1", "n1-2"]
    for each in pair:
        until(partial(lists, each, 5), "both to list what is left")
        assert names(each) == ["n1-0", "n1-9", "n2-0", "n2-1", "n2-2"]
        assert names(each, nodeId="n2") == ["n2-0", "n2-1", "n2-2"]
        assert ask(each, "get", jobId="n1-1")["code"] == "not_found"


def test_a_watch_sees_the_changes_made_through_another_daemon_in_order(pair: list[Daemon]):
    one, other = pair
    with one.connect() as watcher:
        assert watcher.ask("watch", requestId="w")["success"]
        ok(other, "create", job={"uuid": "a", "status": "QUEUED"})
        for turn in range(10):
            ok(pair[turn % 2], "update", jobId="a", job={"turn": turn})
        ok(other, "delete", jobId="a")
        events = [watcher.reply()["event"] for _ in range(12)]
    assert [event["revision"] for event in events] == list(range(1, 13))
    assert [event["type"] for event in events] == ["created", *["updated"] * 10, "deleted"]


def test_a_cursor_of_one_daemon_is_good_at_the_other(pair: list[Daemon]):
    one, other = pair
    with one.connect() as watcher:
        cursor = watcher.ask("watch")["cursor"]
    ok(one, "create", job={"uuid": "a"})
    ok(other, "create", job={"uuid": "b"})
    with other.connect() as watcher:
        assert watcher.ask("watch", after=cursor)["success"]
        assert {watcher.reply()["event"]["id"], watcher.reply()["event"]["id"]} == {"a", "b"}


def test_a_waiting_claim_gets_what_another_daemon_made_ready(pair: list[Daemon]):
    one, other = pair
    with one.connect() as worker:
        worker.hello("worker")
        worker.send({"op": "claim", "ttl": 30, "wait": 60, "seq": 1})
        ok(other, "create", job={"uuid": "a", "status": "QUEUED"})
        (job,) = worker.reply()["jobs"]
    assert job["uuid"] == "a"


# --- freeze ----------------------------------------------------------------------------------------------------------


def test_a_freeze_through_one_daemon_holds_at_all_when_it_returns_and_so_does_a_thaw_soon_after(pair: list[Daemon]):
    one, other = pair
    ok(other, "create", job={"uuid": "a"})
    ok(one, "freeze")
    for each in pair:
        refused = ask(each, "update", jobId="a", job={"status": "RUNNING"})
        assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
        assert "frozen" in refused["error"]
        assert ask(each, "get", jobId="a")["job"]["revision"] == 1
        assert ask(each, "health")["ready"] is False
    ok(other, "thaw")
    for each in pair:
        until(partial(takes_writes, each), "writes to be taken")
        assert ask(each, "health")["ready"] is True


def test_a_daemon_that_stood_still_during_a_freeze_does_not_write_when_it_wakes_up(pair: list[Daemon]):
    one, other = pair
    ok(other, "create", job={"uuid": "a"})
    with other.connect() as client:
        client.hello("sleeper")
        other.signal(signal.SIGSTOP)
        try:
            ok(one, "freeze")
            client.send({"op": "update", "jobId": "a", "inc": {"n": 1}, "seq": 1})
        finally:
            other.signal(signal.SIGCONT)
        refused = client.reply()
    assert (refused["code"], refused["outcome"]) == ("unavailable", "not_applied")
    assert ask(one, "get", jobId="a")["job"]["revision"] == 1


# --- leases ----------------------------------------------------------------------------------------------------------


def claimed(of: Daemon, ttl: float) -> dict[str, Any]:
    (job,) = ok(of, "claim", holder="somebody", ttl=ttl, wait=30)["jobs"]
    return dict(job)


@pytest.mark.slow
def test_a_lease_that_is_renewed_through_one_daemon_is_not_taken_away_by_another(pair: list[Daemon]):
    one, other = pair
    ok(one, "create", job={"uuid": "a", "status": "QUEUED"})
    token = claimed(one, ttl=3.0)["lease"]["token"]
    with one.connect() as here, other.connect() as there:
        for turn in range(40):  # twice its ttl, and more
            renewed = (here, there)[turn % 2].ask("renew", jobId="a", token=token)
            assert renewed["success"], renewed
            assert there.ask("get", jobId="a")["job"]["status"] == "RUNNING"
            signal.sigtimedwait([], 0.2)  # a holder has other things to do
    assert events_of(one, "a") == ["created", "claimed"]


def test_a_lease_whose_holder_is_gone_lapses_once(pair: list[Daemon]):
    one, other = pair
    for number in range(10):
        ok(one, "create", job={"uuid": f"j{number}", "status": "QUEUED"})
    for each in pair:
        assert len(ok(each, "claim", holder="somebody", ttl=3.0, limit=5, wait=30)["jobs"]) == 5
    for number in range(10):
        until(partial(is_queued, one, f"j{number}"), "a lapse")
        job = ask(other, "get", jobId=f"j{number}")["job"]
        assert (job["retryCount"], job["revision"]) == (1, 3)
        assert events_of(other, f"j{number}") == ["created", "claimed", "lapsed"]


def sweeps(of: Daemon) -> bool:
    checks: list[dict[str, Any]] = ask(of, "health")["checks"]
    (sweeper,) = (check for check in checks if check["name"] == "sweeper")
    return sweeper["detail"].startswith("last done")


@pytest.mark.slow
def test_the_duties_of_a_daemon_that_stands_still_are_taken_over(pair: list[Daemon]):
    holder = until(lambda: next(filter(sweeps, pair), None), "one of them to do the duties")
    (other,) = (each for each in pair if each is not holder)
    ok(other, "create", job={"uuid": "a", "status": "QUEUED"})
    claimed(other, ttl=0.5)
    holder.signal(signal.SIGSTOP)
    try:
        until(partial(is_queued, other, "a"), "the lease to lapse", 60)
        # The holder may have seen to that itself, a moment before it was stopped.
        until(partial(sweeps, other), "the other to do the duties", 60)
    finally:
        holder.signal(signal.SIGCONT)
    # It believes that the duties are its own until it hears otherwise; what it then does must do no harm.
    for _ in range(3):
        job = claimed(holder, ttl=30)
        ok(other, "release", jobId="a", token=job["lease"]["token"])
    assert Counter(events_of(holder, "a")) == Counter({"created": 1, "claimed": 4, "lapsed": 1, "released": 3})


# --- clocks ----------------------------------------------------------------------------------------------------------

PROGRAM = f"""
import time
from statesvc.store.clock import Clock
Clock.now = lambda self: time.time_ns() + {AHEAD_SECONDS * 10**9}
from statesvc.cli import main
main()
"""


@pytest.mark.slow
def test_wall_clocks_a_day_apart_change_nothing(socket_folder: Path, place: Place):
    """Leases are judged by each daemon's own steady clock, order is by revision, and nothing is removed early."""
    right = daemon(socket_folder / "0", place.backend, place.values, env=place.env)
    ahead = daemon(socket_folder / "1", place.backend, place.values, env=place.env)
    ahead.command[1:3] = ["-c", PROGRAM]
    with right.serving(), ahead.serving():
        ok(right, "create", job={"uuid": "held", "status": "QUEUED"})
        token = claimed(right, ttl=30.0)["lease"]["token"]
        race = Race([right.socket, ahead.socket], Plan(operations=250, mixed=6, lockers=2, workers=2, jobs=10, ttl=3.0))
        asyncio.run(race.run())
        assert faults(race) == []
        for each in (ahead, right):
            assert ok(each, "renew", jobId="held", token=token)["lease"]["token"] == token
        ok(ahead, "update", jobId="held", job={"by": "the one ahead"})
        later = ok(right, "update", jobId="held", job={"by": "the one that is right"})["job"]
        history = ok(right, "history", jobId="held")["events"]
        assert [event["revision"] for event in history] == [1, 2, 3, 4]
        assert later["updatedAt"] >= history[2]["record"]["updatedAt"]
