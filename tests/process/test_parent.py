"""A spawned daemon ends with its parent, however the parent ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest
import uvloop

from statesvc.process.errors import BadInheritance
from statesvc.process.parent import watch_parent

# The agent: spawns a daemon with the read end of a pipe, prints the daemon's pid, waits to be killed.
AGENT = """
import os, subprocess, sys
read_end, write_end = os.pipe()
daemon = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(read_end)], pass_fds=[read_end])
os.close(read_end)
sys.stdin.read()
"""

# The daemon: says that it watches, and later that it saw the end, on the stdout it shares with the test.
DAEMON = """
import asyncio, sys
from statesvc.process.parent import watch_parent
async def main():
    gone = asyncio.Event()
    watch_parent(asyncio.get_running_loop(), int(sys.argv[1]), gone.set)
    print("watching", flush=True)
    await gone.wait()
    print("parent is gone", flush=True)
asyncio.run(main())
"""


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()


def test_the_end_of_the_last_writer_is_reported_once(loop):
    read_end, write_end = os.pipe()
    second = os.dup(write_end)
    deaths = []

    def on_death() -> None:
        deaths.append("dead")
        loop.call_soon(loop.stop)

    watch_parent(loop, read_end, on_death)
    os.write(write_end, b"a parent that talks is alive")
    os.close(write_end)
    loop.run_until_complete(asyncio.sleep(0))
    assert deaths == []
    os.close(second)
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))
    assert deaths == ["dead"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)


def test_a_parent_that_died_before_we_looked_is_reported(loop):
    read_end, write_end = os.pipe()
    os.close(write_end)
    watch_parent(loop, read_end, loop.stop)
    loop.run_forever()


def test_a_socket_serves_as_well_as_a_pipe(loop):
    ours, theirs = socket.socketpair()
    watch_parent(loop, ours.detach(), loop.stop)
    theirs.close()
    loop.run_forever()


def test_a_stopped_watch_is_silent(loop):
    read_end, write_end = os.pipe()
    watch = watch_parent(loop, read_end, lambda: pytest.fail("stopped, and still called"))
    watch.stop()
    watch.stop()
    os.close(write_end)
    loop.run_until_complete(asyncio.sleep(0))


def test_no_child_inherits_the_descriptor(loop):
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    watch = watch_parent(loop, read_end, loop.stop)
    assert not os.get_inheritable(read_end)
    watch.stop()
    os.close(write_end)


def test_a_descriptor_that_cannot_tell_is_refused(loop, tmp_path):
    with open(tmp_path / "file", "w") as file:
        with pytest.raises(BadInheritance, match="neither pipe nor socket"):
            watch_parent(loop, file.fileno(), loop.stop)
        closed = file.fileno()
    with pytest.raises(BadInheritance, match=f"descriptor {closed}.*not open") as refused:
        watch_parent(loop, closed, loop.stop)
    assert refused.value.exit_code == 78


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_learns_that_its_agent_was_killed(start, signal_number):
    agent = start(AGENT, DAEMON)
    assert agent.stdout.readline() == "watching\n"
    agent.send_signal(signal_number)
    assert agent.stdout.readline() == "parent is gone\n"
