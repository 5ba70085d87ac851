"""Forks: the child is another client, and never touches what is the parent's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap

import pytest

from statesvc_client import StateStore as AsyncStore
from statesvc_client.blocking import StateStore
from tests.client.conftest import RealDaemon, held, plain_environment

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def in_child(work) -> None:
    """Fork, do it there, and report what it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work()
            os.write(write, b"done")
        except BaseException as problem:  # noqa: BLE001 - told to the parent
            os.write(write, repr(problem).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        said = told.read()
    os.waitpid(pid, 0)
    assert said == b"done", said.decode()


def test_a_forked_child_writes_under_its_own_name_and_the_parent_goes_on(daemon: RealDaemon):
    with StateStore.connect(daemon.path, connect_seconds=30) as state:
        state.create({"uuid": "shared", "n": 0})
        state.flush(30)
        parent = state._desk.client

        def work() -> None:
            assert state._desk.client != parent
            assert state.counters.queued == 0
            assert held(state, "shared")["n"] == 0
            state.update("shared", inc={"n": 1})
            state.create({"uuid": "childs"})
            state.flush(30)
            assert state.call("get", jobId="shared")["job"]["n"] == 1
            state.close()

        in_child(work)
        state.update("shared", inc={"n": 1})
        state.flush(30)
        assert state.call("get", jobId="shared")["job"]["n"] == 2
        assert state.fetch("childs", timeout=30) is not None or state.call("get", jobId="childs")
        assert state.counters.reconnects == 0, "the child left the parent's connection alone"


def test_what_waits_in_the_parent_is_sent_by_the_parent_alone(socket_folder):
    daemon = RealDaemon(socket_folder)
    state = StateStore.connect(daemon.path, connect_seconds=0)
    for _ in range(100):
        state.update("counter", inc={"n": 1}, upsert=True)

    def work() -> None:
        assert state.counters.queued == 0

    in_child(work)
    daemon.start()
    try:
        state.flush(60)
        assert state.call("get", jobId="counter")["job"]["n"] == 100
        state.close()
    finally:
        daemon.stop()


async def test_a_child_of_an_asyncio_agent_uses_a_loop_of_its_own(daemon: RealDaemon):
    async with AsyncStore.connect(daemon.path, connect_seconds=30) as state:
        state.create({"uuid": "parents"})
        await state.flush(30)

        def work() -> None:
            async def child() -> None:
                state.create({"uuid": "childs"})
                await state.flush(30)
                await state.close()

            asyncio.events._set_running_loop(None)
            asyncio.run(child())

        in_child(work)
        assert (await state.call("get", jobId="childs"))["job"]["revision"] == 1
        state.update("parents", a=1)
        await state.flush(30)
        assert state.counters.reconnects == 0


def test_a_fork_holds_neither_the_spool_nor_the_daemon(tmp_path):
    """The agent dies while its forked child lives on: the daemon ends, and the spool can be taken."""
    script = textwrap.dedent(
        """
        import json, os, sys
        from statesvc_client.blocking import StateStore
        state = StateStore.spawn("sqlite", data=sys.argv[1], spool=sys.argv[2], log=lambda _: None, start_seconds=60)
        state.create({"uuid": "j"})
        state.flush(30)
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(1)
            os.write(go, b"x")        # what follows a fork is done
            sys.stdin.read()          # lives until the test lets go
            os._exit(0)
        os.read(ready, 1)
        print(json.dumps({"daemon": state.daemon_pid, "child": child}), flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    agent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "data"), str(tmp_path / "spool")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment(),
    )  # fmt: skip
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        told = json.loads(agent.stdout.readline())
        agent.wait(30)
        os.kill(told["child"], 0)
        with StateStore.spawn(
            "sqlite", data=tmp_path / "data", spool=tmp_path / "spool", log=lambda _: None, start_seconds=60
        ) as state:
            assert state.get("j") is not None
    finally:
        agent.stdin.close()
        agent.stdout.close()
