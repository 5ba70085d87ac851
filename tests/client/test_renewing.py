"""Renewal: leases are kept whatever the event loop does, and whoever lost one is told at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from statesvc_client import LeaseLost, StateStore, blocking, claiming
from statesvc_client import lease as lease_module
from statesvc_client.calls import Answer
from statesvc_client.lease import Lease
from statesvc_client.options import Options
from statesvc_client.renewing import Renewer, _Kept
from tests.client.conftest import RealDaemon, plain_environment, until, until_soon
from tests.client.test_fork import in_child

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


def connect_blocking(daemon: RealDaemon, **options: Any) -> blocking.StateStore:
    return blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, warm=False, **options)


# --- the clock -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for module in (lease_module, claiming):
        monkeypatch.setattr(module, "clock", lambda: now[0])
    return now


def test_a_lease_is_good_for_its_ttl_from_when_its_renewal_was_sent(clock):
    lease = Lease("lock", "x", 7, "me", 10.0, sent=1000.0)
    clock[0] = 1009.9
    lease.check()
    lease.confirm(1005.0, cancel_requested=False)
    clock[0] = 1014.9
    assert not lease.lost
    clock[0] = 1015.0
    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        lease.check()


def test_once_lost_a_lease_stays_lost_whatever_is_confirmed_later(clock):
    lease = Lease("lock", "x", 7, "me", 10.0, sent=1000.0)
    clock[0] = 1010.0
    assert lease.lost
    lease.confirm(1009.0, cancel_requested=False)
    assert lease.lost


def test_a_renewal_that_was_sent_earlier_does_not_shorten_a_lease(clock):
    lease = Lease("lock", "x", 7, "me", 10.0, sent=1000.0)
    lease.confirm(990.0, cancel_requested=True)
    clock[0] = 1009.0
    assert not lease.lost
    assert lease.cancel_requested


@pytest.mark.parametrize(
    ("taken", "now", "lost"), [("e1", "e1", False), ("e1", "e2", True), (None, "e2", False), ("e1", None, False)]
)
def test_a_lease_is_lost_to_another_epoch_but_not_to_an_unknown_one(clock, taken, now, lost):
    lease = Lease("lock", "x", 7, "me", 10.0, sent=1000.0, epoch=taken)
    lease.lose_to(now)
    assert lease.lost == lost


@pytest.mark.parametrize(("now", "good"), [("e1", True), ("e2", False)])
async def test_a_claim_that_waited_is_confirmed_by_the_life_of_the_store_it_was_made_in(clock, now, good):
    answer = Answer(success=True)
    answer.epoch = now
    lease = Lease("lock", "x", 7, "me", 10.0, sent=900.0, epoch="e1")
    assert await claiming._is_confirmed(Mock(ask=AsyncMock(return_value=answer)), lease) == good
    assert lease.lost != good


async def test_a_lease_is_of_the_epoch_its_claim_tells_whatever_its_connection_was_told_before(scripted):
    """A restore goes by without ending a connection."""
    lease = {"token": 7, "holder": "me", "ttl": 600.0}
    scripted.tells["claim"] = {"records": [{"id": "x", "lease": lease}], "epoch": "epoch-2"}
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        await state.call("ping")
        async with state.lock("x", ttl=600) as lock:
            assert lock._claimed().epoch == "epoch-2"


@pytest.mark.parametrize(("taken", "good"), [("epoch-2", True), ("epoch-1", False)])
async def test_a_claim_that_waited_is_confirmed_over_another_connection_that_heard_of_no_restore(scripted, taken, good):
    scripted.tells["renew"] = {"epoch": "epoch-2"}
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        await state.call("ping")
        scripted.epoch = "epoch-2"
        lease = Lease("lock", "x", 7, "me", 600.0, sent=lease_module.clock(), epoch=taken)
        assert await claiming._is_confirmed(state._core, lease) == good


def test_listeners_are_told_once_and_late_ones_at_once():
    lease = Lease("lock", "x", 7, "me", 10.0, sent=0.0)
    told: list[str] = []
    lease.when_lost(lambda: told.append("early"))
    lease.when_lost(lambda: told.append(str(1 / 0)))
    lease.lose("taken")
    assert [type(problem) for problem in lease.tell_lost()] == [ZeroDivisionError]
    assert lease.tell_lost() == []
    lease.when_lost(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_a_listener_that_left_is_neither_kept_nor_told():
    lease = Lease("lock", "x", 7, "me", 10.0, sent=0.0)
    told: list[str] = []
    leave = lease.when_lost(lambda: told.append("left"))
    lease.when_lost(lambda: told.append("stayed"))
    leave()
    leave()
    lease.tell_lost()
    assert told == ["stayed"]


def test_a_lease_that_nobody_renews_any_more_is_told_as_lost_without_any_daemon(socket_folder: Path):
    renewer = Renewer(str(socket_folder / "none"), Options(), lambda _: None)
    lost = threading.Event()
    lease = Lease("lock", "x", 7, "me", 0.3, sent=lease_module.clock())
    lease.when_lost(lost.set)
    renewer.keep(lease)
    try:
        assert lost.wait(SECONDS)
        assert lease.lost
    finally:
        renewer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "statesvc-renewal"]


def test_leases_of_two_lives_of_the_store_are_not_confused_by_their_tokens(socket_folder: Path):
    renewer = Renewer(str(socket_folder / "none"), Options(), lambda _: None)
    now = lease_module.clock()
    old, new, other = (Lease("lock", "x", 1, "me", 600.0, sent=now, epoch=epoch) for epoch in ("e1", "e2", None))
    told = threading.Event()
    old.when_lost(told.set)
    try:
        for lease in (old, new, other):
            renewer.keep(lease)
        renewer.lose_all("e1", "e2")
        assert told.wait(SECONDS)
        renewer.drop(old)
        assert list(renewer._kept) == [new, other]
        assert not new.lost
        assert not other.lost
    finally:
        renewer.close()


def test_a_lease_that_is_dropped_when_it_is_lost_is_told_and_then_let_go(socket_folder: Path):
    renewer = Renewer(str(socket_folder / "none"), Options(), lambda _: None)
    lease = Lease("lock", "x", 1, "me", 600.0, sent=lease_module.clock(), epoch="e1")
    told = threading.Event()
    lease.when_lost(told.set)
    try:
        renewer.keep(lease)
        lease.lose_to("e2")
        renewer.drop(lease)
        assert told.wait(SECONDS)
        assert not renewer._kept
    finally:
        renewer.close()


def test_however_many_leases_are_due_at_once_they_are_renewed_over_one_connection(socket_folder: Path):
    """The daemon takes as little at a time as the sockets hold."""
    most = 5000
    path = str(socket_folder / "slow")
    renewer = Renewer(path, Options(), lambda _: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(SECONDS)
        due = lease_module.clock() - 300.0
        leases = [Lease("lock", str(number), 7, "me", 600.0, sent=due) for number in range(most)]
        renewer._kept = {lease: _Kept(lease) for lease in leases[1:]}
        renewer.keep(leases[0])
        connection, _ = listening.accept()
        try:
            with connection, connection.makefile("rwb") as lines:
                connection.settimeout(SECONDS)
                assert json.loads(lines.readline())["op"] == "hello"
                for _ in range(most):
                    asked = json.loads(lines.readline())
                    lines.write(json.dumps({"success": True, "requestId": asked["requestId"]}).encode() + b"\n")
                    lines.flush()
                until(lambda: all(lease.deadline > due + 600.0 for lease in leases), "all of them to be renewed")
        finally:
            renewer.close()


def test_a_renewal_that_tells_of_another_epoch_loses_the_leases_of_the_one_before(socket_folder: Path):
    """The connection was opened in the first epoch and outlived a restore; one lease is older than that, one is not."""
    path = str(socket_folder / "restored")
    renewer = Renewer(path, Options(), lambda _: None)
    due = lease_module.clock() - 300.0
    leases = [Lease("lock", epoch, 7, "me", 600.0, sent=due, epoch=epoch) for epoch in ("e1", "e2")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(SECONDS)
        renewer.keep(leases[0])
        connection, _ = listening.accept()
        try:
            with connection, connection.makefile("rwb") as lines:
                connection.settimeout(SECONDS)

                def answer(**told: Any) -> None:
                    asked = json.loads(lines.readline())
                    lines.write(json.dumps({"success": True, "requestId": asked.get("requestId", ""), **told}).encode())
                    lines.write(b"\n")
                    lines.flush()

                answer(epoch="e1")
                renewer.keep(leases[1])
                for _ in leases:
                    answer(epoch="e2")
                until(lambda: leases[0].lost and leases[1].deadline > due + 600.0, "both answers to be taken")
                assert not leases[1].lost
        finally:
            renewer.close()


# --- on the real daemon ----------------------------------------------------------------------------------------------


async def test_renewal_goes_on_while_the_event_loop_is_busy_for_longer_than_the_ttl(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as other:
        async with state.lock("busy", ttl=0.5) as lock:
            ends = time.monotonic() + 2.0
            while time.monotonic() < ends:  # nobody else gets the loop meanwhile
                sum(range(1000))
            lock.check()
            assert not await other.lock("busy", wait=0).acquire()
            assert (await state.call("get", kind="lock", id="busy"))["record"]["lease"]["token"] == lock.token
        assert await other.lock("busy", wait=0).acquire()


async def test_the_holder_is_told_at_once_when_the_daemon_takes_its_lease_for_lost(daemon: RealDaemon):
    """Whoever deletes the record takes the lease with it."""
    told: list[str] = []
    async with connect(daemon) as state:
        lock = state.lock("x", ttl=0.6, on_lost=lambda: told.append(threading.current_thread().name))
        assert await lock.acquire()
        await state.call("delete", kind="lock", id="x")
        async with asyncio.timeout(SECONDS):
            await lock.until_lost()
        assert lock.lost
        with pytest.raises(LeaseLost):
            lock.check()
        await until_soon(lambda: told, "the callback")
        assert told == ["MainThread"], "on the loop, not on the thread that renews"


def test_the_blocking_face_is_told_on_the_renewing_thread(daemon: RealDaemon):
    told: list[str] = []
    with connect_blocking(daemon) as state:
        lock = state.lock("x", ttl=0.6, on_lost=lambda: told.append(threading.current_thread().name))
        assert lock.acquire()
        state.call("delete", kind="lock", id="x")
        assert lock.until_lost(SECONDS)
        until(lambda: told, "the callback")
        assert told == ["statesvc-renewal"]


def test_waiting_in_vain_for_a_loss_leaves_nobody_behind_who_is_to_be_told(daemon: RealDaemon):
    with connect_blocking(daemon) as state, state.lock("x") as lock:
        for _ in range(3):
            assert not lock.until_lost(0.01)
        assert lock._claimed()._listeners == []


async def test_a_guarded_write_that_is_refused_tells_the_holder_before_the_next_renewal(daemon: RealDaemon):
    async with connect(daemon) as state:
        lock = state.lock("x", ttl=3600)
        assert await lock.acquire()
        await state.call("delete", kind="lock", id="x")
        rejected: list[type] = []
        state.on_rejected(lambda _, error: rejected.append(type(error)))
        await state.call("claim", kind="lock", id="x", holder="another")
        lock.update(note="late")
        await state.flush(SECONDS)
        assert rejected == [LeaseLost]
        assert lock.lost
        async with asyncio.timeout(SECONDS):
            await lock.until_lost()


async def test_a_daemon_that_hangs_cannot_keep_a_holder_from_stopping_in_time(daemon: RealDaemon):
    async with connect(daemon, close_seconds=0.1) as state:
        lock = state.lock("x", ttl=0.5)
        assert await lock.acquire()
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(SECONDS):
                await lock.until_lost()
            with pytest.raises(LeaseLost):
                lock.update(note="late")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


async def test_leases_outlive_a_restart_of_the_daemon(daemon: RealDaemon):
    async with connect(daemon) as state, state.lock("x", ttl=20) as lock:
        daemon.kill()
        daemon.start()
        token = lock.token
        async with connect(daemon) as other:
            assert not await other.lock("x", wait=0).acquire()
        lock.update(note="still mine")
        await state.flush(SECONDS)
        record = (await state.call("get", kind="lock", id="x"))["record"]
        assert (record["note"], record["lease"]["token"]) == ("still mine", token)


async def test_a_lease_of_another_life_of_the_store_is_lost_and_one_of_this_life_is_kept(daemon: RealDaemon):
    """In the new life somebody may hold the record with the very same token."""
    daemon.stop()
    daemon.start("memory")
    async with connect(daemon) as state:
        old = state.lock("old", ttl=600)
        assert await old.acquire()
        daemon.kill()
        daemon.start("memory")
        async with connect(daemon) as other, other.lock("old", ttl=600), state.lock("new", ttl=600) as new:
            first = new._claimed().deadline
            renew_now(state)
            async with asyncio.timeout(SECONDS):
                await old.until_lost()
            with pytest.raises(LeaseLost, match="new epoch"):
                old.check()
            await until_soon(lambda: new._claimed().deadline > first, "a renewal")
            new.check()


def renew_now(state: StateStore) -> None:
    """Everything is due."""
    renewer = state._core.renewer
    with renewer._lock:
        for kept in renewer._kept.values():
            kept.due = 0.0
    renewer._wake()


PAUSED = """
import os, sys, time
from statesvc_client import LeaseLost
from statesvc_client.blocking import StateStore
with StateStore.connect(sys.argv[1], connect_seconds=30, warm=False) as state:
    rejected = []
    state.on_rejected(lambda write, error: rejected.append(type(error).__name__))
    lock = state.lock("rebalance_lock:t", ttl=float(sys.argv[2]), wait=0, info={"table": "t"})
    assert lock.acquire()
    token = lock.token
    print(token, flush=True)
    sys.stdin.readline()       # stopped here, by SIGSTOP
    try:
        lock.check()
        print("held", flush=True)
    except LeaseLost:
        print("noticed", flush=True)
    state.update("rebalance_lock:t", note="too late", kind="lock", token=token)
    state.flush(30)
    print(*rejected, flush=True)
"""


def test_a_paused_holder_sees_that_it_is_late_and_its_guarded_write_is_refused(daemon: RealDaemon):
    """Two processes, one lock: the first is stopped, the second gets the lock, the first comes back."""
    with connect_blocking(daemon) as state:
        paused = subprocess.Popen(
            [sys.executable, "-c", PAUSED, daemon.path, "1.0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain_environment(),
        )  # fmt: skip
        assert paused.stdin is not None
        assert paused.stdout is not None
        try:
            first = int(paused.stdout.readline())
            assert not state.lock("rebalance_lock:t", wait=0).acquire(), "one holder"
            paused.send_signal(signal.SIGSTOP)
            with state.lock("rebalance_lock:t", ttl=20, wait=SECONDS) as lock:
                assert lock.token > first
                paused.send_signal(signal.SIGCONT)
                paused.stdin.write("\n")
                paused.stdin.flush()
                assert paused.stdout.readline().strip() == "noticed"
                assert paused.stdout.readline().strip() == "LeaseLost"
                assert paused.wait(SECONDS) == 0
                lock.check()
                record = state.call("get", kind="lock", id="rebalance_lock:t")["record"]
                assert "note" not in record
        finally:
            paused.stdin.close()
            paused.stdout.close()
            paused.kill()
            paused.wait()


# --- forks -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_neither_renews_nor_releases_what_its_parent_holds(daemon: RealDaemon):
    with connect_blocking(daemon) as state, state.lock("x", ttl=1.0) as lock:

        def work() -> None:
            assert lock.lost
            with pytest.raises(LeaseLost, match="forked from"):
                lock.check()
            lock.release()
            with state.lock("childs", ttl=0.5) as own:
                own.check()
                until(lambda: own._lease is not None and own._lease.deadline > first_deadline(own), "a renewal")
            assert state._core.renewer._kept == {}
            state.close()

        in_child(work)
        lock.check()
        state.call("update", kind="lock", id="x", token=lock.token, record={"note": "still mine"})


def first_deadline(holding: Any) -> float:
    if not hasattr(holding, "first_deadline"):
        holding.first_deadline = holding._lease.deadline
    return float(holding.first_deadline)
