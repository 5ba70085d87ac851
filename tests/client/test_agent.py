"""The store on the real daemon, killed and restarted under it; what the daemon refuses; and daemons that it spawns."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import SpawnFailed, StateStore
from statesvc_client.errors import Conflict, InvalidTransition
from tests.client.conftest import RealDaemon, held, plain_environment, until, until_soon

JOBS = 2000


async def everything(state: StateStore) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    page: dict[str, Any] = {}
    while True:
        reply = await state.call("list", limit=1000, **page)
        found |= {job["uuid"]: job for job in reply["jobs"]}
        if "nextCursor" not in reply:
            return found
        page = {"cursor": reply["nextCursor"]}


def _more_acked(state: StateStore, than: int) -> bool:
    return state.counters.acked > than


def agrees(cached: dict[str, Any], true: dict[str, Any]) -> bool:
    return all(true[name] == value for name, value in cached.items())


@pytest.mark.slow
@pytest.mark.parametrize("spool", [False, True])
async def test_every_job_passes_three_states_once_while_the_daemon_is_killed_three_times(tmp_path, spool):
    rejected: list[Any] = []
    async with StateStore.spawn(
        "sqlite", data=tmp_path / "data", log=lambda _: None, start_seconds=60, close_seconds=60,
        spool=tmp_path / "spool" if spool else None,
        on_rejected=lambda write, error: rejected.append((write.id, write.seq, error)),
    ) as state:  # fmt: skip
        kills = 0
        for place, status in enumerate(("PENDING", "RUNNING", "COMPLETED")):
            for number in range(JOBS):
                if place == 0:
                    state.create({"uuid": f"job-{number}", "status": status, "command": "echo hi"})
                else:
                    state.update(f"job-{number}", status=status, step=place)
                if number % 100 == 99:
                    await asyncio.sleep(0)
                if number == JOBS // 2:
                    acked = state.counters.acked
                    await until_soon(partial(_more_acked, state, acked), "some acknowledged")
                    assert state.daemon_pid is not None
                    os.kill(state.daemon_pid, signal.SIGKILL)
                    kills += 1
        await state.flush(100)
        cached = {job["uuid"]: job for job in state}
        assert rejected == []
        assert (state.counters.reconnects >= 3, kills) == (True, 3)
        true = await everything(state)
        assert len(true) == JOBS == len(cached)
        assert {(job["status"], job["revision"]) for job in true.values()} == {("COMPLETED", 3)}
        assert all(agrees(cached[id], job) for id, job in true.items())
        assert {job["uuid"]: job for job in state} == true, "and whole, once they were asked for"


async def test_conditions_and_refusals_come_back_as_what_they_are(daemon: RealDaemon):
    told: list[tuple[dict[str, Any], type]] = []
    async with StateStore.connect(
        daemon.path, connect_seconds=30, on_rejected=lambda w, e: told.append((w.fields, type(e)))
    ) as state:
        state.create({"uuid": "j", "status": "RUNNING"})
        await state.flush(30)
        state.update("j", {"kind": "batch"}, if_revision=held(state, "j")["revision"], a=1)
        state.update("j", a=2, if_revision=1)
        state.update("j", status="PENDING")
        state.update("j", set={"/deep/er": 1})
        await state.flush(30)
        assert told == [({"a": 2}, Conflict), ({"status": "PENDING"}, InvalidTransition)]
        true = (await state.call("get", jobId="j"))["job"]
        assert state.get("j") == true
        assert (true["a"], true["kind"], true["deep"], true["revision"]) == (1, "batch", {"er": 1}, 3)
        with pytest.raises(Conflict) as conflict:
            await state.call("update", jobId="j", job={"a": 9}, if_revision=1)
        assert conflict.value.record["revision"] == 3


async def test_another_kind_is_a_store_of_its_own(daemon: RealDaemon):
    async with StateStore.connect(daemon.path, connect_seconds=30, kinds=("job", "volume")) as state:
        volumes = state.kind("volume")
        volumes.create({"id": "v", "size": 1})
        volumes.update("v", kind="fast", size=2)
        state.update("v", {"size": 3}, kind="volume")
        await state.flush(30)
        true = (await state.call("get", kind="volume", id="v"))["record"]
        assert (true["size"], true["kind"], true["revision"]) == (3, "fast", 3)
        assert volumes.get("v") == true
        assert (len(volumes), len(state), "v" in volumes, "v" in state) == (1, 0, True, False)


class SwallowingProxy:
    """Passes requests on and drops replies while told to; then cuts the connection, as a crash would."""

    def __init__(self, path: Path, behind: str) -> None:
        self.path = str(path)
        self._behind = behind
        self.swallow = False
        self.swallowed = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._behind)
        self._writers += [writer, inner_writer]
        for work in (self._pass(reader, inner_writer, answers=False), self._pass(inner_reader, writer, answers=True)):
            task = asyncio.create_task(work)
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await source.read(65536):
                if answers and self.swallow:
                    self.swallowed += data.count(b"\n")
                    continue
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()


async def test_dropped_replies_of_applied_and_of_refused_writes_are_told_on_resend(daemon, socket_folder):
    proxy = SwallowingProxy(socket_folder / "proxy.sock", daemon.path)
    await until_soon(lambda: Path(daemon.path).exists(), "the daemon's socket")
    await proxy.start()
    told: list[tuple[str, str]] = []
    try:
        async with StateStore.connect(
            proxy.path, connect_seconds=30, on_rejected=lambda w, e: told.append((w.id, e.outcome))
        ) as state:
            state.create({"uuid": "done", "status": "COMPLETED"})
            await state.flush(30)
            proxy.swallow = True
            for _ in range(50):
                state.update("counter", inc={"n": 1}, upsert=True)
            state.update("done", status="RUNNING")
            state.create({"uuid": "counter"})
            state.update("counter", last=True)
            await until_soon(lambda: proxy.swallowed >= 3, "answers to drop")
            proxy.swallow = False
            proxy.cut()
            await state.flush(30)
            true = (await state.call("get", jobId="counter"))["job"]
            assert (true["n"], true["last"], true["revision"]) == (50, True, 51)
            assert (await state.call("get", jobId="done"))["job"]["revision"] == 1
            assert sorted(told) == [("counter", "not_applied"), ("done", "not_applied")]
            assert state.counters.resent >= 53
    finally:
        await proxy.stop()


# --- spawn -----------------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_spawned_daemon_is_restarted_and_ends_with_the_store(tmp_path):
    lines: list[str] = []
    async with StateStore.spawn("sqlite", data=tmp_path / "data", log=lines.append, start_seconds=60) as state:
        first = state.daemon_pid
        folder = Path(state.path).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert first is not None
        state.create({"uuid": "j"})
        os.kill(first, signal.SIGKILL)
        state.update("j", a=1)
        await state.flush(60)
        second = state.daemon_pid
        assert second is not None
        assert second != first
        assert (await state.call("get", jobId="j"))["job"]["revision"] == 2
    assert not alive(second)
    assert not folder.exists()
    assert lines
    assert all(line.startswith("[STATE] ") for line in lines)


async def test_a_spawned_daemon_ends_when_its_agent_is_killed(tmp_path):
    script = textwrap.dedent(
        """
        import os, subprocess, sys
        from statesvc_client.blocking import StateStore
        state = StateStore.spawn("sqlite", data=sys.argv[1], log=lambda _: None, start_seconds=60)
        other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
        print(state.daemon_pid, flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment(),
    )  # fmt: skip
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        pid = int(agent.stdout.readline())
        agent.wait(30)
        until(lambda: not alive(pid), "the daemon to end with its parent, though another child lives on")
    finally:
        agent.stdin.close()
        agent.stdout.close()


async def test_a_command_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SpawnFailed):
        async with StateStore.spawn("memory", command=[str(tmp_path / "none")], log=lambda _: None):
            pass


async def test_memory_that_was_killed_is_a_new_epoch(tmp_path):
    epochs: list[tuple[str, str]] = []
    rejected: list[str] = []
    async with StateStore.spawn(
        "memory", log=lambda _: None, start_seconds=60,
        on_epoch=lambda before, now: epochs.append((before, now)),
        on_rejected=lambda write, error: rejected.append(error.code),
    ) as state:  # fmt: skip
        state.create({"uuid": "j"})
        await state.flush(30)
        assert state.daemon_pid is not None
        os.kill(state.daemon_pid, signal.SIGKILL)
        await until_soon(lambda: epochs, "the new epoch")
        await until_soon(lambda: "j" not in state, "the cache to know that it is gone")
        state.update("j", a=1)
        await state.flush(30)
        assert rejected == ["not_found"]
        assert json.dumps(state.counters.epochs) == "1"
