"""The blocking twin: the same promises for agents built on threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from statesvc_client import Closed, FlushTimeout, NotCached, OutboxFull, SpawnFailed
from statesvc_client.blocking import StateStore
from statesvc_client.errors import InvalidTransition, NotFound
from tests.client.conftest import RealDaemon, held, plain_environment, until


@pytest.fixture
def state(daemon: RealDaemon) -> Iterator[StateStore]:
    with StateStore.connect(daemon.path, connect_seconds=30) as store:
        yield store


def test_it_does_what_the_asyncio_face_does(state):
    told = []
    state.on_rejected(lambda write, error: told.append((write.id, type(error))))
    state.create({"uuid": "job-1", "status": "PENDING"})
    state.update("job-1", status="RUNNING", pid=4242)
    state.update("job-1", inc={"tries": 2}, append={"log": ["a"]})
    state.update("job-1", status="PENDING")
    assert held(state, "job-1")["pid"] == 4242
    state.flush(30)
    assert told == [("job-1", InvalidTransition)]
    truth = state.call("get", jobId="job-1")["job"]
    assert (truth["status"], truth["tries"], truth["log"], truth["revision"]) == ("RUNNING", 2, ["a"], 3)
    assert state.get("job-1") == truth
    state.delete("job-1")
    assert state.get("job-1") is None
    with pytest.raises(NotFound):
        state.call("get", jobId="job-1")
    assert len(state) == 0
    assert list(state) == []


def test_many_threads_write_and_read_at_once(state):
    def work(name: str) -> None:
        state.create({"uuid": name, "status": "PENDING"})
        for number in range(100):
            state.update(name, n=number)
            assert held(state, name)["n"] == number
        state.flush(30)
        assert state.call("get", jobId=name)["job"]["n"] == 99

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(job["revision"] for job in state) == [101] * 6


def test_an_uncached_record_can_be_fetched(daemon):
    with StateStore.connect(daemon.path, connect_seconds=30) as first:
        first.create({"uuid": "j"})
    with StateStore.connect(daemon.path, connect_seconds=30, warm=False) as second:
        with pytest.raises(NotCached):
            second.get("j")
        assert (second.fetch("j") or {})["uuid"] == "j"
        assert second.fetch("k") is None


def test_a_full_outbox_makes_the_caller_wait_and_then_raises(socket_folder):
    with StateStore.connect(
        socket_folder / "none", connect_seconds=0, max_records=3, block_seconds=0.05, close_seconds=0
    ) as state:
        for number in range(3):
            state.create({"uuid": f"j{number}"})
        with pytest.raises(OutboxFull):
            state.create({"uuid": "one too many"})
        with pytest.raises(FlushTimeout):
            state.flush(0.01)
        assert state.counters.queued == 3


def test_a_caller_that_waits_for_room_goes_on_when_there_is_some(daemon):
    with StateStore.connect(daemon.path, connect_seconds=30, max_records=10) as state:
        for number in range(500):
            state.create({"uuid": f"j{number}"})
        state.flush(30)
        assert state.counters.dropped == 0
    assert len(state) == 500


def test_closing_twice_is_closing_once(daemon):
    state = StateStore.connect(daemon.path, connect_seconds=30)
    state.create({"uuid": "j"})
    report = state.close()
    assert report.clean
    assert state.close() is report
    with pytest.raises(Closed):
        state.create({"uuid": "k"})
    with pytest.raises(Closed):
        state.call("ping")


def test_a_program_that_just_ends_still_gets_its_writes_out(daemon):
    script = """
import sys
from statesvc_client.blocking import StateStore
state = StateStore.connect(sys.argv[1], connect_seconds=30)
for number in range(1000):
    state.create({"uuid": f"j{number}"})
"""
    subprocess.run([sys.executable, "-c", script, daemon.path], env=plain_environment(), check=True, timeout=60)
    with StateStore.connect(daemon.path, connect_seconds=30) as state:
        assert len(state) == 1000


def test_spawning_and_leaving(tmp_path):
    lines: list[str] = []
    with StateStore.spawn("sqlite", data=tmp_path / "data", log=lines.append, start_seconds=60) as state:
        pid = state.daemon_pid
        state.create({"uuid": "j"})
        state.flush(30)
    assert pid is not None
    assert state.daemon_pid is None
    assert all(line.startswith("[STATE] ") for line in lines)
    with StateStore.spawn("sqlite", data=tmp_path / "data", log=lines.append, start_seconds=60) as state:
        assert held(state, "j")["revision"] == 1


def test_a_daemon_that_cannot_start_is_told_with_its_own_words(tmp_path):
    with pytest.raises(SpawnFailed) as failed:
        StateStore.spawn("no-such-engine", data=tmp_path, log=lambda _: None, start_seconds=60)
    assert failed.value.exit_code == 78
    assert "no-such-engine" in str(failed.value)
    until(lambda: threading.active_count() < 10, "no threads left behind")
