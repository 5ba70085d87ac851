"""How a store ends: closed under others who wait, by several at once, from a callback, or not at all."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import Closed, FlushTimeout, SpawnFailed, StateStore, blocking
from statesvc_client.backoff import Backoff
from statesvc_client.errors import Unavailable
from statesvc_client.face import Face
from statesvc_client.options import Options
from tests.client.conftest import plain_environment, until, until_soon
from tests.client.scripted import ScriptedDaemon

FAKE = [sys.executable, str(Path(__file__).with_name("fake_daemon.py"))]


@pytest.fixture
def beside(socket_folder: Path) -> Iterator[ScriptedDaemon]:
    """A scripted daemon on a thread of its own, for stores that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    daemon = ScriptedDaemon(socket_folder / "state.sock")
    asyncio.run_coroutine_threadsafe(daemon.start(), loop).result(10)
    yield daemon
    asyncio.run_coroutine_threadsafe(stopped(daemon), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


async def stopped(daemon: ScriptedDaemon) -> None:
    """With everything it was at."""
    await daemon.stop()
    at_work = asyncio.all_tasks() - {asyncio.current_task()}
    for task in at_work:
        task.cancel()
    await asyncio.gather(*at_work, return_exceptions=True)


def caught(act: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """The act on a thread of its own, and what it raises there."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def under_way(state: Face) -> bool:
    """Whether a call of the store is at work."""
    calls = state._core._calls
    return calls is not None and bool(calls._busy)


# --- from a callback -------------------------------------------------------------------------------------------------


def test_a_callback_may_write_and_get_but_is_told_when_it_would_wait_for_itself(beside):
    beside.failures[1] = [{"code": "invalid_transition", "outcome": "not_applied"}]
    told: list[Any] = []
    waits: list[Callable[[], object]] = []

    def on_rejected(write: Any, _error: Any) -> None:
        state.update("other", seen=write.id)
        for wait in waits:
            try:
                wait()
            except RuntimeError as error:
                told.append(str(error))

    state = blocking.StateStore.connect(beside.path, connect_seconds=30, on_rejected=on_rejected)
    waits += [state.flush, state.close, state.room, lambda: state.call("ping")]
    state.update("j", status="RUNNING")
    thread, raised = caught(lambda: state.flush(20))
    until(lambda: len(told) == 4, "all four to be refused", 20)
    thread.join(20)
    assert raised == []
    assert all("would wait for ever" in text for text in told)
    assert state.close().clean
    assert [frame["jobId"] for frame in beside.applied.values()] == ["other"]


# --- closed under others ---------------------------------------------------------------------------------------------


def test_closing_ends_the_calls_of_other_threads(beside):
    state = blocking.StateStore.connect(beside.path, connect_seconds=30, warm=False)
    beside.deaf = True
    thread, raised = caught(lambda: state.call("ping", timeout=600))
    until(lambda: under_way(state), "the call to be under way")
    assert state.close().clean
    thread.join(10)
    assert [type(error) for error in raised] == [Closed]


def test_closing_ends_the_flush_of_another_thread(beside):
    state = blocking.StateStore.connect(beside.path, connect_seconds=30, close_seconds=0.05)
    beside.silent = True
    state.create({"uuid": "j"})
    thread, raised = caught(state.flush)
    until(lambda: state._core.waits.flushes, "the flush to wait")
    assert state.close().unflushed == 1
    thread.join(10)
    assert [type(error) for error in raised] == [Closed]


def test_closing_ends_a_call_that_waits_for_the_daemon_to_come(socket_folder, monkeypatch):
    monkeypatch.setattr(Backoff, "next", lambda _: 60.0)
    state = blocking.StateStore.connect(socket_folder / "none", connect_seconds=0)
    thread, raised = caught(lambda: state.call("ping", timeout=600))
    until(lambda: under_way(state), "the call to be under way")
    assert state.close().clean
    thread.join(10)
    assert [type(error) for error in raised] == [Closed]


async def test_a_call_that_writes_does_not_happen_after_close(scripted, monkeypatch):
    monkeypatch.setattr(Options, "backoff_cap", 0.05)
    state = await StateStore.connect(scripted.path, connect_seconds=30)
    await scripted.stop()
    call = asyncio.create_task(state.call("update", jobId="j", job={"a": 1}, timeout=600))
    await until_soon(lambda: under_way(state), "the call to be under way")
    await state.close()
    await scripted.start()
    with pytest.raises(Closed, match="update"):
        await asyncio.wait_for(call, 10)
    assert not [frame for frame in scripted.frames if frame["op"] == "update"]
    assert not under_way(state)


async def test_a_call_that_is_given_up_is_not_closed(scripted):
    async with StateStore.connect(scripted.path, connect_seconds=30) as state:
        scripted.deaf = True
        call = asyncio.create_task(state.call("ping", timeout=600))
        await until_soon(lambda: under_way(state), "the call to be under way")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_soon(lambda: not under_way(state), "its connection to be let go")


def test_several_threads_that_close_at_once_share_one_close(beside):
    reports: list[Any] = []
    state = blocking.StateStore.connect(beside.path, connect_seconds=30, close_seconds=0.3, on_unflushed=reports.append)
    beside.silent = True
    state.create({"uuid": "j"})
    returned: list[Any] = []
    threads = [threading.Thread(target=lambda: returned.append(state.close())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(reports) == 1
    assert returned == [reports[0]] * 3


def test_a_flush_that_timed_out_can_be_told_to_another_process():
    told = pickle.loads(pickle.dumps(FlushTimeout(3, 1.5)))
    assert (told.waiting, str(told)) == (3, str(FlushTimeout(3, 1.5)))


# --- cancelled -------------------------------------------------------------------------------------------------------


def test_a_program_that_ends_sends_what_its_agent_says_while_leaving(beside):
    """The end of `asyncio.run` cancels every task, those of the store among them."""
    begun: list[StateStore] = []

    async def agent() -> None:
        async with StateStore.connect(beside.path, connect_seconds=30) as state:
            begun.append(state)
            try:
                await asyncio.Event().wait()
            finally:
                state.update("j", status="STOPPED")

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(agent())
        await until_soon(lambda: begun, "the agent to begin")
        return task

    assert asyncio.run(main()).cancelled()
    report = begun[0]._core.report
    assert report is not None
    assert report.clean
    assert [frame["job"] for frame in beside.frames] == [{"status": "STOPPED"}]


async def test_a_sender_that_meets_a_deadline_of_its_own_is_not_taken_for_ended(scripted):
    over = asyncio.Event()

    async def sending() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:  # as `asyncio.timeout` does it
                task.uncancel()

    async with StateStore.connect(scripted.path, connect_seconds=30) as state:
        core = state._core
        core._sending = task = asyncio.create_task(sending())
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(10):
            await core.begin()
        assert core._sending is task
        over.set()


async def test_one_who_is_cancelled_while_closing_does_not_cancel_the_others(scripted):
    state = await StateStore.connect(scripted.path, connect_seconds=30)
    scripted.silent = True
    state.create({"uuid": "j"})
    first = asyncio.create_task(state.close(600))
    await until_soon(lambda: state._core._closing is not None, "the first to be closing")
    second = asyncio.create_task(state.close(600))
    await asyncio.sleep(0)
    first.cancel()
    assert (await asyncio.wait_for(second, 30)).unflushed == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_one_who_is_cancelled_while_the_store_lets_go_leaves_a_true_report(scripted, tmp_path, monkeypatch):
    told: list[Any] = []
    state = await StateStore.connect(
        scripted.path, connect_seconds=30, spool=tmp_path / "spool", on_unflushed=told.append
    )
    scripted.silent = True
    state.create({"uuid": "j"})
    letting_go = asyncio.Event()

    async def never_ends() -> None:
        letting_go.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(state._core._calls, "close", never_ends)
    first = asyncio.create_task(state.close(0))
    await asyncio.wait_for(letting_go.wait(), 30)
    second = asyncio.create_task(state.close())
    await asyncio.sleep(0)
    first.cancel()
    report = await asyncio.wait_for(second, 30)
    assert (report.unflushed, report.spooled) == (1, True)
    assert told == [report]
    assert await state.close() is report
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("slow", ["task", "call"])
async def test_one_who_is_cancelled_while_work_is_ended_leaves_no_call_and_no_connection_behind(scripted, slow):
    state = await StateStore.connect(scripted.path, connect_seconds=30, warm=False, call_seconds=600)
    calls = state._core._calls
    assert calls is not None
    await asyncio.gather(state.call("ping"), state.call("ping"))
    lines = list(calls._idle)
    scripted.thinking = True
    asked = asyncio.create_task(state.call("get", jobId="j"))
    await scripted.until(lambda: bool(scripted.thought))
    ending = asyncio.Event()

    async def ends_slowly() -> dict[str, Any]:
        try:
            return await asyncio.Future()
        finally:
            ending.set()
            await asyncio.Event().wait()

    if slow == "task":
        state._core.spawn_task(ends_slowly())
    else:
        calls._asked.add(asyncio.create_task(ends_slowly()))
    await asyncio.sleep(0)
    closing = asyncio.create_task(state.close(0))
    await asyncio.wait_for(ending.wait(), 30)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(Closed):
        await asyncio.wait_for(asked, 30)
    assert len(lines) == 2
    assert not any(line.asking.is_open for line in lines)


NEVER_SERVES = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]


def has_ended(line: str) -> bool:
    """Whether the process that gave its id on this line is gone."""
    return not os.path.exists(f"/proc/{line.rsplit(maxsplit=1)[-1]}")


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """What a shell starts in the background is deaf to SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    """To the thread it goes to in a program, whichever thread is at work."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("heeded_interrupts")
def test_ctrl_c_while_a_store_connects_lets_go_of_its_spool(socket_folder, tmp_path):
    spool = tmp_path / "spool"

    def interrupt() -> None:
        until(spool.exists, "the store to begin")
        ctrl_c()

    caught(interrupt)
    with pytest.raises(KeyboardInterrupt):
        blocking.StateStore.connect(socket_folder / "none", connect_seconds=600, spool=spool)
    blocking.StateStore.connect(socket_folder / "none", connect_seconds=0, spool=spool).close()


@pytest.mark.usefixtures("heeded_interrupts")
def test_ctrl_c_while_a_daemon_is_started_ends_it(tmp_path):
    said: list[str] = []

    def log(line: str) -> None:
        said.append(line)
        ctrl_c()

    spool = tmp_path / "spool"
    with pytest.raises(KeyboardInterrupt):
        blocking.StateStore.spawn("memory", command=NEVER_SERVES, log=log, start_seconds=600, spool=spool)
    assert has_ended(said[0])
    blocking.StateStore.connect(tmp_path / "none", connect_seconds=0, spool=spool).close()


async def test_a_store_whose_beginning_is_cancelled_twice_still_stops_its_daemon():
    said: list[str] = []

    async def begin() -> None:
        await StateStore.spawn("memory", command=NEVER_SERVES, log=said.append, start_seconds=600)

    beginning = asyncio.create_task(begin())
    await until_soon(lambda: said, "the daemon to be there")
    for _ in range(2):
        beginning.cancel()
        await asyncio.sleep(0)  # it begins to let go
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(beginning, 30)
    await until_soon(lambda: has_ended(said[0]), "the daemon to end")


async def test_a_store_that_could_not_begin_leaves_no_sender_behind_though_others_use_it(socket_folder):
    state = StateStore.connect(socket_folder / "none", connect_seconds=0.05, require_connection=True)
    core = state._core

    async def use() -> None:
        while True:
            await core.begin()
            await asyncio.sleep(0)

    starting = asyncio.create_task(core.start())
    await asyncio.sleep(0)
    with pytest.raises(Closed):
        await asyncio.wait_for(use(), 30)
    with pytest.raises(Unavailable):
        await starting
    assert not [task for task in asyncio.all_tasks() if task in core._tasks]


# --- the loop was closed first ---------------------------------------------------------------------------------------


def test_a_store_whose_loop_was_closed_takes_writes_says_so_and_can_be_closed(socket_folder, tmp_path):
    async def begun() -> StateStore:
        return await StateStore.connect(socket_folder / "none", connect_seconds=0, spool=tmp_path / "spool")

    async def flushed(state: StateStore) -> None:
        with pytest.raises(Closed, match="loop this store ran on was closed"):
            await state.flush(1)

    async def closed(state: StateStore) -> Any:
        return await asyncio.wait_for(state.close(), 10)

    state = asyncio.run(begun())
    state._desk.fall_asleep()
    state.create({"uuid": "j"})
    asyncio.run(flushed(state))
    report = asyncio.run(closed(state))
    assert (report.unflushed, report.spooled) == (1, True)
    with pytest.raises(Closed):
        state.create({"uuid": "k"})


async def test_a_store_is_not_used_on_two_loops(scripted):
    async with StateStore.connect(scripted.path, connect_seconds=30) as state:

        async def elsewhere() -> None:
            with pytest.raises(Closed, match="another event loop"):
                await state.call("ping")
            with pytest.raises(Closed, match="another event loop"):
                await state.close()

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert state.connected


# --- a program that just ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spool", [False, True])
def test_a_program_that_just_ends_stops_its_daemon_and_prints_no_traceback(tmp_path, spool):
    script = """
import sys
from statesvc_client.blocking import StateStore
spool = {"spool": sys.argv[1]} if sys.argv[1] else {}
state = StateStore.spawn("memory", command=sys.argv[2:], start_seconds=60, **spool)
for number in range(100):
    state.create({"uuid": f"j{number}"})
"""
    command = [sys.executable, "-c", script, str(tmp_path / "spool") if spool else "", *FAKE]
    ended = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0
    assert ended.stderr == "[STATE] ended\n"
    assert ended.stdout == ""


# --- somebody else's daemon ------------------------------------------------------------------------------------------


async def test_somebody_elses_daemon_on_the_path_is_not_taken_for_the_spawned_one(scripted):
    never_serves = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(SpawnFailed) as failed:
        await StateStore.spawn(
            "memory", socket=scripted.path, command=never_serves, log=lambda _: None, start_seconds=2, stop_seconds=5
        )
    assert scripted.path in str(failed.value)
    assert f"process {os.getpid()}" in str(failed.value)
    assert scripted.hellos == []


async def test_a_daemon_started_by_a_wrapper_is_ours(socket_folder):
    wrapped = ["/bin/sh", "-c", '"$0" "$@"; exit 0', *FAKE]
    async with StateStore.spawn(
        "memory", socket=socket_folder / "s", command=wrapped, log=lambda _: None, start_seconds=60, stop_seconds=1
    ) as state:
        assert state.connected
