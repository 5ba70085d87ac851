"""Killed in the middle of a snapshot or a restore, a daemon leaves nothing half done; only admins may ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from statesvc.store.snapshots import inspect
from tests.daemon.harness import Client, Daemon, Reply, serving, until
from tests.daemon.load import Writer

JOBS = 1500
STRANGER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def fill(client: Client, count: int = JOBS) -> None:
    """Records that hardly compress: their snapshot has several blocks."""
    client.send(*({"op": "create", "job": {"uuid": f"job-{n}", "pad": os.urandom(600).hex()}} for n in range(count)))
    assert all(client.reply()["success"] for _ in range(count))


def finished(client: Client) -> Reply:
    """The reply behind the lines of progress."""
    while "success" not in (reply := client.reply()):
        pass
    return reply


def snapshots(data: Path) -> list[Path]:
    return list(data.rglob("*.snapshot"))


def jobs_of(client: Client, **filter: Any) -> set[str]:
    client.hello()
    return {job["uuid"] for job in every_job(client, **filter)}


def every_job(client: Client, **filter: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = client.ask("list", limit=500, filter=filter)
    while True:
        found += page["jobs"]
        if "nextCursor" not in page:
            return found
        page = client.ask("list", limit=500, filter=filter, cursor=page["nextCursor"])


# --- killed --------------------------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_a_snapshot_leaves_nothing_that_passes_for_one_and_no_damage(folder):
    daemon = Daemon(folder)
    writers = [Writer(daemon.socket, f"w{number}") for number in range(2)]
    with daemon.serving():
        with daemon.connect() as client:
            fill(client)
            threads = [threading.Thread(target=writer.write_until_cut_off, args=(200,)) for writer in writers]
            for thread in threads:
                thread.start()
            for writer in writers:
                writer.reached.wait()
            client.send({"op": "snapshot", "progress": True})
            assert "progress" in client.reply()
            daemon.kill()
        for thread in threads:
            thread.join()
        assert snapshots(daemon.data) == []
        left = list(daemon.data.rglob("*-part"))
        assert len(left) == 1, "it was not killed in the middle"

        with daemon.serving().connect() as client:
            assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []
            assert client.ask("check")["problems"] == []
            done = client.ask("snapshot")["done"]
            assert inspect(daemon.data / done["path"]).footer.rows == done["rows"]
            assert done["kinds"]["job"] >= JOBS
            assert not left[0].exists(), "what the killed one left is in the way for ever"
        assert daemon.stop() == 0


@needs_strace
@pytest.mark.parametrize("call", ["linkat", "unlinkat"])
def test_a_kill_when_a_snapshot_is_given_its_name_leaves_none_or_a_whole_one(folder, call):
    trace = ["strace", "-f", "-qq", "-o", str(folder / "trace"), "-e", f"trace={call}"]
    with serving(folder, under=[*trace, "-e", f"inject={call}:signal=KILL:when=1"]) as daemon:
        with daemon.connect() as client:
            fill(client, 20)
            client.send({"op": "snapshot", "path": "s.snapshot"})
            with pytest.raises(OSError):
                client.reply()
        daemon.exit_code()
    for found in snapshots(folder / "data"):
        assert inspect(found).footer.rows == 20
    assert bool(snapshots(folder / "data")) == (call == "unlinkat")
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("check")["problems"] == []
        assert client.ask("snapshot")["success"]


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_restore_leaves_the_old_state_or_the_new_one(folder, capsys):
    daemon = Daemon(folder)
    with daemon.serving().connect() as client:
        fill(client)
        assert client.ask("snapshot", path="old.snapshot")["success"]
        client.hello()
        for n in range(JOBS, JOBS + 50):
            assert client.ask("create", job={"uuid": f"job-{n}"})["success"]
        began = time.monotonic()
        assert client.ask("snapshot", path="new.snapshot")["success"]
        assert client.ask("restore", path="old.snapshot")["success"]
        took = time.monotonic() - began
    seen = []
    outcomes = {frozenset(f"job-{n}" for n in range(count)): count for count in (JOBS, JOBS + 50)}
    with daemon:
        for round_ in range(8):
            client = daemon.connect()
            client.send({"op": "restore", "path": "new.snapshot" if round_ % 2 == 0 else "old.snapshot"})
            client.sock.settimeout(took * round_ / 8 or 0.001)
            try:
                client.reply()
            except TimeoutError:
                pass
            daemon.kill()
            client.close()
            with daemon.serving().connect() as client:
                seen.append(outcomes[frozenset(jobs_of(client))])
                assert client.ask("check")["problems"] == []
                assert not (daemon.data / "incoming").exists()
        assert daemon.stop() == 0
    with capsys.disabled():
        print(f"\n{len(seen)} kills during restores left the stores of {seen} jobs")


def test_a_frozen_store_is_frozen_after_a_kill_and_thaws(folder):
    with serving(folder) as daemon:
        with daemon.connect() as client:
            fill(client, 3)
            assert client.ask("freeze")["success"]
            daemon.kill()
        with daemon.serving().connect() as client:
            reply = client.ask("update", jobId="job-1", job={"x": 1})
            assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied")
            assert client.ask("get", jobId="job-1")["success"]
            assert client.ask("thaw")["success"]
            daemon.kill()
        with daemon.serving().connect() as client:
            assert client.ask("update", jobId="job-1", job={"x": 1})["success"]
        assert daemon.stop() == 0


def test_a_daemon_told_to_stop_does_not_wait_for_a_snapshot_and_leaves_nothing_of_it(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        fill(client)
        client.send({"op": "snapshot", "progress": True})
        assert "progress" in client.reply()
        assert daemon.stop() == 0
        reply = finished(client)
        assert (reply["success"], reply["code"]) == (False, "unavailable")
        assert list(daemon.data.rglob("*snapshot*")) == [daemon.data / "snapshots"]
        assert list((daemon.data / "snapshots").iterdir()) == []


# --- a whole life --------------------------------------------------------------------------------------------------


def test_a_lost_store_comes_back_from_a_snapshot_in_an_empty_folder(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        fill(client, 50)
        token = client.ask("claim", kind="lock", id="leader", holder="a")["records"][0]["lease"]["token"]
        assert client.ask("snapshot", path="s.snapshot")["success"]
        # Given out after the snapshot, and known to nobody but its holder once the store is lost.
        assert client.ask("release", kind="lock", id="leader", token=token)["success"]
        late = client.ask("claim", kind="lock", id="leader", holder="b")["records"][0]["lease"]["token"]
        before = client.ask("get", jobId="job-7")["job"]
        assert daemon.stop() == 0
    kept = (daemon.data / "s.snapshot").read_bytes()
    shutil.rmtree(daemon.data)
    with serving(folder) as daemon, daemon.connect() as client:
        (daemon.data / "s.snapshot").write_bytes(kept)
        (daemon.data / "s.snapshot").chmod(0o600)
        assert client.ask("restore", path="s.snapshot")["done"]["kinds"] == {"job": 50, "lock": 1}
        assert client.ask("get", jobId="job-7")["job"] == before
        assert client.ask("release", kind="lock", id="leader", token=token)["success"]
        fresh = client.ask("claim", kind="lock", id="leader", holder="c")["records"][0]["lease"]["token"]
        assert fresh > late
        assert client.ask("update", kind="lock", id="leader", token=late, record={})["code"] == "lease_lost"
        assert daemon.stop() == 0
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-7")["job"] == before
        first = client.ask("claim", kind="lock", id="another", holder="c")["records"][0]["lease"]["token"]
        assert first > late


def test_the_memory_engine_makes_its_data_folder_when_it_is_needed(folder):
    settings = {"data": folder / "made"}
    with serving(folder, backend="memory", settings=settings) as daemon, daemon.connect() as client:
        fill(client, 5)
        assert not (folder / "made").exists()
        done = client.ask("snapshot")["done"]
        assert (folder / "made").stat().st_mode & 0o7777 == 0o700
        assert daemon.stop() == 0
    with serving(folder, backend="memory", settings=settings) as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="job-3")["code"] == "not_found"
        assert client.ask("restore", path=done["path"])["success"]
        assert client.ask("get", jobId="job-3")["success"]


@pytest.mark.slow
def test_memory_stays_bounded_while_a_large_store_is_written_and_brought_back(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        client.hello("filler", ack="last")
        for seq in range(1, 4001):
            job = {"uuid": f"job-{seq}", "pad": os.urandom(10_000).hex()}
            client.send({"op": "create", "job": job, "seq": seq, "floor": seq})
        while client.reply().get("acked") != 4000:
            pass
        before = daemon.peak_bytes()
        done = client.ask("snapshot", path="s.snapshot")["done"]
        assert client.ask("restore", path="s.snapshot")["success"]
        assert done["bytes"] > 40 * 1024 * 1024
        assert daemon.peak_bytes() - before < done["bytes"] // 2


# --- who may -------------------------------------------------------------------------------------------------------

ASK_AS = """
import json, os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect(sys.argv[1])
lines = sock.makefile()
for op in sys.argv[3:]:
    sock.sendall(json.dumps({"op": op, "path": "s.snapshot", "job": {"uuid": "theirs"}}).encode() + b"\\n")
    reply = json.loads(lines.readline())
    print(op, reply.get("code", "ok"))
"""


def answers_to(uid: int, path: Path, *ops: str) -> dict[str, str]:
    """What a process of that user is answered, op by op."""
    command = [sys.executable, "-c", ASK_AS, str(path), str(uid), *ops]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(line.split() for line in said.splitlines())


@needs_root
def test_a_user_who_may_connect_is_no_admin_unless_listed(folder):
    folder.chmod(0o755)
    ops = ("freeze", "thaw", "snapshot", "restore", "check", "sweep")
    settings = {
        "access__socket_mode": "0666",
        "access__uids": f"0,{STRANGER},{STRANGER + 1}",
        "access__admin_uids": str(STRANGER + 1),
    }
    with serving(folder, settings=settings) as daemon:
        denied = answers_to(STRANGER, daemon.socket, "create", *ops)
        assert denied == {"create": "ok", **dict.fromkeys(ops, "denied")}
        assert snapshots(daemon.data) == []
        assert answers_to(STRANGER + 1, daemon.socket, *ops) == dict.fromkeys(ops, "ok")
        until(lambda: snapshots(daemon.data), "the snapshot of an admin")
