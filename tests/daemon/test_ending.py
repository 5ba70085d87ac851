"""The daemon is told to end: what it has read is answered and kept, and it is gone within its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, environment, serving, until
from tests.daemon.load import COUNTERS, Writer

AGENT = """
import os, subprocess, sys
read_end, write_end = os.pipe()
daemon = subprocess.Popen([*sys.argv[1:], "--parent-fd", str(read_end)], pass_fds=[read_end])
print(daemon.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_told_to_end_under_load_answers_what_it_has_read_and_keeps_it(folder, number):
    daemon = Daemon(folder).serving()
    writers = [Writer(daemon.socket, f"w{place}", ack="last" if place % 2 else "each") for place in range(4)]
    with daemon:
        threads = [threading.Thread(target=writer.write_until_cut_off, args=(200,)) for writer in writers]
        for thread in threads:
            thread.start()
        for writer in writers:
            writer.reached.wait()
        daemon.signal(number)
        assert daemon.exit_code() == 0
        for thread in threads:
            thread.join()
        assert [problem for writer in writers for problem in writer.problems] == []
        assert daemon.events("stopped")[0]["exit_code"] == 0
        assert not daemon.socket.exists()

    with serving(folder) as daemon, daemon.connect() as client:
        assert daemon.events("log_replayed") == [], "everything was applied before it ended"
        assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []
        for writer in writers:
            writer.finish()
        for name in COUNTERS:
            total = client.ask("get", jobId=name)["job"]["total"]
            assert total == sum(writer.tallies[name].sent for writer in writers)


def test_everything_sent_before_the_signal_and_read_is_answered(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        client.send(*({"op": "create", "job": {"uuid": f"job-{n}"}, "requestId": n} for n in range(300)))
        assert client.reply()["success"]  # so it has read them: they came in one piece
        daemon.signal(signal.SIGTERM)
        answered = 1
        while replies := client.replies():
            assert all(reply["success"] for reply in replies)
            answered += len(replies)
        assert answered == 300
        assert daemon.exit_code() == 0


def stuck_client(daemon: Daemon) -> Client:
    """A client that has asked for more than it takes, so that a drain has to wait for it."""
    client = daemon.connect()
    client.ask("create", job={"uuid": "big", "pad": "x" * 1_000_000})
    client.send(*({"op": "get", "jobId": "big"} for _ in range(50)))
    return client


def test_a_client_that_takes_no_replies_holds_up_the_end_for_the_deadline_only(folder):
    with serving(folder, "--drain-seconds", "0.3") as daemon, stuck_client(daemon):
        assert daemon.stop() == 0
        (line,) = daemon.events("connections_aborted")
        assert (line["level"], line["connections"]) == ("warning", 1)


def test_a_second_signal_ends_the_daemon_at_once(folder):
    with serving(folder, "--drain-seconds", "3600") as daemon, stuck_client(daemon):
        daemon.signal(signal.SIGTERM)
        until(lambda: daemon.events("draining"), "the drain to begin")
        assert daemon.process is not None
        assert daemon.process.poll() is None
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == -signal.SIGTERM
        assert daemon.events("ending_at_once")
        assert not daemon.socket.exists()
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="big")["success"]


def test_the_end_of_the_parent_and_one_signal_are_not_two_signals(folder):
    read_end, write_end = os.pipe()
    flags = ("--parent-fd", str(read_end), "--drain-seconds", "1")
    with serving(folder, *flags, pass_fds=[read_end]) as daemon, stuck_client(daemon):
        os.close(read_end)
        os.close(write_end)
        until(lambda: daemon.events("draining"), "the drain to begin")
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        assert daemon.events("ending_at_once") == []
        assert [line["reason"] for line in daemon.events("draining")] == ["parent_gone"]


def test_a_daemon_that_drains_takes_no_new_clients(folder):
    with serving(folder, "--drain-seconds", "3600") as daemon, stuck_client(daemon):
        daemon.signal(signal.SIGTERM)
        until(lambda: not daemon.socket.exists(), "the socket to go")
        with pytest.raises(OSError):
            daemon.connect()


def test_a_daemon_told_to_end_while_it_replays_ends(folder, tmp_path):
    with serving(folder) as daemon, daemon.connect() as client:
        for first in range(0, 6000, 2000):
            client.send(
                *({"op": "create", "job": {"uuid": f"job-{n}", "pad": "x" * 500}} for n in range(first, first + 2000))
            )
            assert all(client.reply()["success"] for _ in range(2000))
        daemon.kill()
    for file in folder.glob("data/state.db*"):
        file.unlink()
    with Daemon(folder).start() as daemon:
        until(lambda: daemon.events("listening"), "the socket")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.stderr
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-5999")["success"]


def test_a_spawned_daemon_ends_with_its_parent_and_keeps_everything(folder):
    daemon = Daemon(folder)
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, *daemon.command],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    until(daemon._pings, "the spawned daemon")
    with daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        agent.kill()
        until(lambda: not _alive(pid), "the daemon to end with its parent")
        said = agent.communicate()[1].decode()
    assert '"reason": "parent_gone"' in said
    assert '"exit_code": 0' in said
    assert not daemon.socket.exists()
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]


def _alive(pid: int) -> bool:
    """A process that has ended and waits to be looked after by init counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_memory_daemon_ends_cleanly_and_says_that_all_is_gone(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        before = client.hello()
        assert before["durability"] == "memory"
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        assert daemon.stop() == 0
        with daemon.serving().connect() as again:
            assert again.hello()["epoch"] != before["epoch"]
            assert again.ask("get", jobId="job-1")["code"] == "not_found"
    assert os.listdir(folder / "data") == [] if (folder / "data").exists() else True
