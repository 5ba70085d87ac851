"""Snapshots and restores of a running daemon: what stops, and what goes on."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.daemon.harness import serving
from tests.daemon.jobs import fill, finished

JOBS = 1500


# --- stopped in between --------------------------------------------------------------------------------------------


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
        fill(client, JOBS)
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
        for seq in range(1, 8001):
            job = {"uuid": f"job-{seq}", "pad": os.urandom(10_000).hex()}
            client.send({"op": "create", "job": job, "seq": seq, "floor": seq})
        while client.reply().get("acked") != 8000:
            pass
        before = daemon.peak_bytes()
        done = client.ask("snapshot", path="s.snapshot")["done"]
        assert client.ask("restore", path="s.snapshot")["success"]
        assert done["bytes"] > 80 * 1024 * 1024
        assert daemon.peak_bytes() - before < done["bytes"] // 2
