"""F13: SIGTERM under load: what was read is answered and kept, exit 0 within the deadline. The parent dies: likewise.

Whatever the daemon is doing (opening, replaying, writing a snapshot) and whoever sits there without moving.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, environment, serving, until
from tests.daemon.load import Writer, counts, writing

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
        with writing(writers, 200):
            daemon.signal(number)
            assert daemon.exit_code() == 0
        assert [problem for writer in writers for problem in writer.problems] == []
        assert daemon.events("stopped")[0]["exit_code"] == 0
        assert not daemon.socket.exists()

    with serving(folder) as daemon, daemon.connect() as client:
        assert daemon.events("log_replayed") == [], "everything was applied before it ended"
        assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []
        for writer in writers:
            writer.finish()
        assert all(each.total == each.sent for each in counts(client, writers))


def test_everything_sent_before_the_signal_and_read_is_answered(folder):
    held = {"failpoints": "commit.before=stop@1"}
    with serving(folder, settings=held) as daemon, daemon.connect() as client:
        client.send(*({"op": "create", "job": {"uuid": f"job-{n}"}, "requestId": n} for n in range(300)))
        # In the first commit, so it has read them: they came in one piece. None of them is answered yet.
        until(lambda: state_of(daemon.pid) == "T", "the daemon to stand still")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        answered = 0
        while replies := client.replies():
            assert all(reply["success"] for reply in replies)
            answered += len(replies)
        assert answered == 300
        assert daemon.exit_code() == 0


def test_a_socket_whose_folder_is_gone_does_not_keep_what_was_read_from_being_answered(folder):
    place = folder / "run"
    place.mkdir(mode=0o700)
    daemon = Daemon(folder, settings={"failpoints": "commit.before=stop@1"})
    daemon.socket = place / "s.sock"
    daemon.command[daemon.command.index("--socket") + 1] = str(daemon.socket)
    with daemon.serving(), daemon.connect() as client:
        client.send({"op": "create", "job": {"uuid": "job-1"}})
        until(lambda: state_of(daemon.pid) == "T", "the daemon to stand still")
        place.rename(folder / "elsewhere")
        place.write_text("no folder any more")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        assert client.reply()["success"]
        assert daemon.exit_code() == 0
        (line,) = daemon.events("socket_not_removed")
        assert (line["level"], line["socket"]) == ("warning", str(daemon.socket))


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


# --- clients that do not move ---------------------------------------------------------------------------------------


def idle(client: Client) -> None:
    """Says nothing at all."""


def half_a_frame(client: Client) -> None:
    client.send_raw(b'{"op":"create","job":{"uuid":"half"')


def a_watcher(client: Client) -> None:
    client.hello("watcher")
    assert client.ask("watch", kind="job")["success"]


def who_waits_for_work(client: Client) -> None:
    client.hello("worker")
    client.send({"op": "claim", "filter": {"status": "QUEUED"}, "holder": "worker", "ttl": 60, "wait": 3600, "seq": 1})


@pytest.mark.parametrize("behave", [idle, half_a_frame, a_watcher, who_waits_for_work])
def test_clients_that_sit_there_do_not_hold_up_the_end_at_all(folder, behave):
    """The deadline is an hour: they are finished, not waited for."""
    with serving(folder, "--drain-seconds", "3600") as daemon:
        clients = [daemon.connect() for _ in range(5)]
        for client in clients:
            behave(client)
        with daemon.connect() as other:  # so that the daemon has read what the others sent
            assert other.ask("create", job={"uuid": "job-1"})["success"]
        assert daemon.stop() == 0
        assert daemon.events("connections_aborted") == []
        for client in clients:
            assert client.is_closed()
            client.close()
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="half")["code"] == "not_found"
        assert client.ask("get", jobId="job-1")["success"]


def test_clients_stopped_in_their_tracks_hold_up_the_end_for_the_deadline_only(folder):
    """All sorts at once, and one that takes no replies."""
    with serving(folder, "--drain-seconds", "0.3") as daemon, stuck_client(daemon):
        others = [daemon.connect() for _ in range(8)]
        for client, behave in zip(others, [idle, half_a_frame, a_watcher, who_waits_for_work] * 2, strict=True):
            behave(client)
        assert daemon.stop() == 0
        (line,) = daemon.events("connections_aborted")
        assert line["connections"] == 1
        for client in others:
            client.close()


def test_a_daemon_that_drains_takes_no_new_clients(folder):
    with serving(folder, "--drain-seconds", "3600") as daemon, stuck_client(daemon):
        daemon.signal(signal.SIGTERM)
        until(lambda: not daemon.socket.exists(), "the socket to go")
        with pytest.raises(OSError):
            daemon.connect()


# --- whatever it is doing -------------------------------------------------------------------------------------------

TO_REPLAY = 6000


def leave_much_to_replay(folder: Path) -> None:
    with serving(folder) as daemon, daemon.connect() as client:
        for first in range(0, TO_REPLAY, 2000):
            client.send(
                *({"op": "create", "job": {"uuid": f"job-{n}", "pad": "x" * 500}} for n in range(first, first + 2000))
            )
            assert all(client.reply()["success"] for _ in range(2000))
        daemon.kill()
    for file in folder.glob("data/state.db*"):
        file.unlink()


def test_a_daemon_told_to_end_before_it_listens_ends_by_the_signal_and_leaves_the_store_alone(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        daemon.kill()
    for _ in range(3):
        with Daemon(folder).start() as daemon:
            assert daemon.stop() in (0, -signal.SIGTERM)
            assert "Traceback" not in daemon.stderr
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]


def test_a_second_signal_in_a_replay_ends_the_daemon_at_once_and_the_next_one_begins_again(folder):
    leave_much_to_replay(folder)
    with Daemon(folder, "--drain-seconds", "3600").start() as daemon:
        until(lambda: daemon.events("listening"), "the socket")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() in (0, -signal.SIGTERM)  # it may have been through with it
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId=f"job-{TO_REPLAY - 1}")["success"]


@pytest.mark.parametrize("point", ["snapshot.inside", "snapshot.whole"])
def test_a_daemon_told_to_end_while_it_writes_a_snapshot_answers_and_leaves_no_half_of_one(folder, point):
    """The daemon stands still inside of it when the signal comes."""
    env = {"STATESVC_FAILPOINTS": f"{point}=stop"}
    with serving(folder, env=env) as daemon, daemon.connect() as client, daemon.connect() as admin:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        admin.send({"op": "snapshot", "path": "snapshots/cut"})
        until(lambda: state_of(daemon.pid) == "T", "the daemon to stand still in the snapshot")
        client.send({"op": "update", "jobId": "job-1", "job": {"uuid": "job-1", "step": 2}})
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        answer = admin.reply()
        assert answer["success"] or answer["code"] == "unavailable", answer
        assert daemon.exit_code() == 0
        assert "Traceback" not in daemon.stderr
    kept = sorted(path.name for path in (folder / "data" / "snapshots").iterdir())
    assert kept == (["cut"] if answer["success"] else [])
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]


def state_of(pid: int) -> str:
    """As the kernel has it: T for one that was stopped, Z for one that has ended and waits to be looked after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_daemon_told_to_end_while_it_replays_ends(folder):
    leave_much_to_replay(folder)
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
    pid = 0
    try:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        until(daemon._pings, "the spawned daemon")
        with daemon.connect() as client:
            assert client.ask("create", job={"uuid": "job-1"})["success"]
            agent.kill()
            until(lambda: state_of(pid) == "Z", "the daemon to end with its parent")
    finally:
        agent.kill()
        if pid and state_of(pid) != "Z":
            os.kill(pid, signal.SIGKILL)
        said = agent.communicate()[1].decode()
    assert '"reason": "parent_gone"' in said
    assert '"exit_code": 0' in said
    assert not daemon.socket.exists()
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-1")["success"]


def test_the_parent_dies_under_load_and_nothing_acknowledged_is_lost(folder):
    read_end, write_end = os.pipe()
    with serving(folder, "--parent-fd", str(read_end), pass_fds=[read_end]) as daemon:
        os.close(read_end)
        writers = [Writer(daemon.socket, f"w{place}", ack="last" if place % 2 else "each") for place in range(3)]
        with writing(writers, 200):
            os.close(write_end)
            assert daemon.exit_code() == 0
        assert [problem for writer in writers for problem in writer.problems] == []
    with serving(folder) as daemon, daemon.connect() as client:
        assert daemon.events("log_replayed") == []
        assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []


def test_a_parent_that_died_before_the_daemon_looked_is_heeded(folder):
    read_end, write_end = os.pipe()
    os.close(write_end)
    with Daemon(folder, "--parent-fd", str(read_end), pass_fds=[read_end]).start() as daemon:
        os.close(read_end)
        assert daemon.exit_code() == 0
        assert [line["reason"] for line in daemon.events("draining")] == ["parent_gone"]
    assert not daemon.socket.exists()


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
