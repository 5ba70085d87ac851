"""F15: an engine that takes for ever, is away or fails: the daemon still says so, and still ends when it is told to."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, until

# `statesvc` with a memory engine that misbehaves where $MISBEHAVE says. What hangs, hangs in a thread, as a disk does.
PROGRAM = """
import asyncio, os, sys, threading
from statesvc import backends, server
from statesvc.backends.memory import MemoryEngine
from statesvc.cli import main
from statesvc_client.errors import Unavailable

where = os.environ["MISBEHAVE"]
server.CLOSE_SECONDS = float(os.environ.get("CLOSE_SECONDS", "3600"))
server.THREADS_SECONDS = float(os.environ.get("THREADS_SECONDS", "3600"))

class Misbehaving(MemoryEngine):
    async def open(self):
        if where in ("thread", "close fails"):
            self.never = asyncio.ensure_future(self._hang())
        if where == "away":
            raise Unavailable("nobody is there")
        if where == "open":
            await self._hang()

    async def close(self):
        if where == "close":
            await self._hang()
        if where == "close fails":
            print('{"event": "failing"}', file=sys.stderr, flush=True)
            raise ValueError("a mistake of ours")

    async def ping(self):
        if where == "ping":
            raise ValueError("a mistake of ours")
        if where == "replaced":
            raise Unavailable("the store is not open")

    async def _hang(self):
        await asyncio.to_thread(hang)

def hang():
    # Said by the thread: one that has not begun yet can still be called off.
    print('{"event": "hanging"}', file=sys.stderr, flush=True)
    threading.Event().wait()

backends.make = lambda _: Misbehaving()
main()
"""


def misbehaving(folder: Path, where: str, *flags: str, **options) -> Daemon:
    env = {"MISBEHAVE": where, **options.pop("env", {})}
    return Daemon(folder, "--log-format", "json", *flags, backend="memory", program=PROGRAM, env=env, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("where", ["open", "close"])
def test_a_second_signal_ends_the_daemon_also_while_its_engine_opens_or_closes(folder, where, number):
    with misbehaving(folder, where, "--drain-seconds", "3600").start() as daemon:
        until(lambda: daemon.events("hanging" if where == "open" else "serving"), "the daemon")
        daemon.signal(number)
        until(lambda: daemon.events("draining"), "the drain to begin")
        daemon.signal(number)
        assert daemon.exit_code() == -number
        assert daemon.events("ending_at_once")[0]["reason"] == number.name
        assert not daemon.socket.exists()


def test_a_close_that_never_ends_is_given_up_after_a_while_and_said_to_be(folder):
    with misbehaving(folder, "close", "--drain-seconds", "0", env={"CLOSE_SECONDS": "0.2"}).start() as daemon:
        until(lambda: daemon.events("serving"), "the engine")
        assert daemon.stop() == 74
        assert daemon.events("not_closed_in_time")[0]["level"] == "error"
        assert daemon.events("stopped")[0]["exit_code"] == 74


def test_a_thread_that_never_ends_does_not_hold_up_the_end_of_the_process(folder):
    with misbehaving(folder, "thread", env={"THREADS_SECONDS": "0.2"}).start() as daemon:
        until(lambda: daemon.events("hanging"), "the thread")
        until(lambda: daemon.events("serving"), "the engine")
        assert daemon.stop() == 0
        assert daemon.events("stopped")[0]["exit_code"] == 0


def test_a_signal_ends_the_daemon_also_when_its_engine_could_not_be_closed_and_a_thread_never_ends(folder):
    with misbehaving(folder, "close fails").start() as daemon:
        until(lambda: daemon.events("hanging"), "the thread")
        until(lambda: daemon.events("serving"), "the engine")
        daemon.signal(signal.SIGTERM)
        until(lambda: daemon.events("failing"), "the end")
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == -signal.SIGTERM


# `statesvc` that gets a signal behind its drain, when what $AT names has ended.
SIGNALLED = """
import os
from concurrent.futures import ThreadPoolExecutor
from statesvc import logs
from statesvc.cli import main

owner, name = {"threads": (ThreadPoolExecutor, "shutdown"), "log": (logs, "finish")}[os.environ["AT"]]
function = getattr(owner, name)

def signalled(*threads, **_):
    setattr(owner, name, function)
    function(*threads)
    os.kill(os.getpid(), int(os.environ["NUMBER"]))

setattr(owner, name, signalled)
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("at", ["threads", "log"])
def test_a_second_signal_counts_up_to_the_very_end(folder, at, number):
    """Whether its threads have just ended, or the last lines of its log were written."""
    with signalled_late(folder, at, number, backend="memory").serving() as daemon:
        daemon.signal(number)
        assert daemon.exit_code() == -number
        assert daemon.events("stopped")
        assert "Aborted" not in daemon.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_that_comes_too_late_does_not_hide_why_the_daemon_ended(folder, number):
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / "log.db").write_bytes(bytes(4096))
    with signalled_late(folder, "log", number).start() as daemon:
        assert daemon.exit_code() == 65


def signalled_late(folder: Path, at: str, number: signal.Signals, **options) -> Daemon:
    env = {"AT": at, "NUMBER": str(int(number))}
    return Daemon(folder, "--log-format", "json", program=SIGNALLED, env=env, **options)


# --- a list that a disk does not answer ------------------------------------------------------------------------------

UNREADABLE = """
import os, sys, threading
from statesvc import server
from statesvc.backends.sqlite.state import StateReader
from statesvc.cli import main

server.CLOSE_SECONDS = float(os.environ["CLOSE_SECONDS"])

def hang(*_):
    print('{"event": "hanging"}', file=sys.stderr, flush=True)
    threading.Event().wait()

StateReader.query = hang
main()
"""


@contextmanager
def stuck_in_a_list(folder: Path, close_seconds: float) -> Iterator[Daemon]:
    """A daemon told to end, about to close its store, while a thread reads from a disk that does not answer."""
    env = {"CLOSE_SECONDS": str(close_seconds)}
    daemon = Daemon(folder, "--drain-seconds", "0", program=UNREADABLE, env=env)
    with daemon.serving(), daemon.connect() as client:
        client.send({"op": "list"})
        until(lambda: daemon.events("hanging"), "the list to be read")
        daemon.signal(signal.SIGTERM)
        until(lambda: daemon.events("connections_aborted"), "the store to be closed")
        yield daemon


def test_a_read_that_never_ends_does_not_hold_up_the_end_beyond_its_deadline(folder):
    with stuck_in_a_list(folder, close_seconds=0.2) as daemon:
        assert daemon.exit_code() == 74
        assert daemon.events("not_closed_in_time")


def test_a_second_signal_ends_the_daemon_also_while_a_read_never_ends(folder):
    with stuck_in_a_list(folder, close_seconds=3600) as daemon:
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == -signal.SIGTERM
        assert daemon.events("ending_at_once")


# --- the rest --------------------------------------------------------------------------------------------------------


def test_requests_that_wait_for_the_engine_are_answered_when_the_daemon_is_told_to_end(folder):
    settings = {"limits__open_wait_seconds": 3600}
    with misbehaving(folder, "open", "--drain-seconds", "3600", settings=settings).start() as daemon:
        daemon.wait_for_ping()
        until(lambda: daemon.events("listening"), "the log")
        with daemon.connect() as client:
            client.send({"op": "ping"}, {"op": "get", "jobId": "job-1"})
            assert client.reply()["success"]  # so it has read both: they came in one piece
            daemon.signal(signal.SIGTERM)
            reply = client.reply()
            assert reply["code"] == "unavailable"
            assert "stopping" in reply["error"]
            assert client.is_closed()


def test_an_engine_that_is_required_and_away_is_given_up_without_being_called_ready(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(folder / "notify"))
        supervisor.settimeout(30)
        env = {"NOTIFY_SOCKET": str(folder / "notify")}
        with misbehaving(folder, "away", "--require-backend", env=env).start() as daemon:
            assert daemon.exit_code() == 69
            assert supervisor.recv(4096).startswith(b"STOPPING=1")
            (line,) = daemon.events("engine_unavailable")
            assert (line["level"], line["why"]) == ("error", "nobody is there")


def test_a_duty_that_fails_is_logged_when_it_happens_and_tried_again(folder):
    with misbehaving(folder, "ping", env={"WATCHDOG_USEC": "20000"}).start() as daemon:
        until(lambda: len(daemon.events("duty_failed")) > 1, "the failures to be logged")
        line = daemon.events("duty_failed")[0]
        assert (line["level"], line["duty"]) == ("error", "feed_watchdog")
        assert "a mistake of ours" in line["exception"]
        daemon.wait_for_ping()
        assert daemon.stop() == 0


def test_a_store_that_is_closed_for_a_moment_by_a_restore_does_not_starve_the_watchdog(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(folder / "notify"))
        supervisor.settimeout(30)
        env = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "60000"}
        with misbehaving(folder, "replaced", env=env).start() as daemon:
            while not supervisor.recv(4096).startswith(b"READY=1"):
                pass
            assert [supervisor.recv(4096) for _ in range(5)] == [b"WATCHDOG=1"] * 5
            assert daemon.events("duty_failed") == []


def test_two_signals_at_once_leave_no_socket_behind(folder):
    with misbehaving(folder, "open").start() as daemon:
        until(lambda: daemon.events("listening"), "the socket")
        os.kill(daemon.pid, signal.SIGSTOP)
        os.kill(daemon.pid, signal.SIGTERM)
        os.kill(daemon.pid, signal.SIGINT)
        os.kill(daemon.pid, signal.SIGCONT)
        assert daemon.exit_code() in (-signal.SIGTERM, -signal.SIGINT)
        assert not daemon.socket.exists()
