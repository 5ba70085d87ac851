"""The disk is full, or fails: a write is refused or unknown, never acknowledged and lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import stores
from tests.daemon.harness import Client, Daemon, Reply, refused, serving, until

IO_FAILURE = 74
NO_ENGINE = 69

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


# --- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(folder) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root only")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(place: Path) -> Path:
    """Take all the space there is; removing the file gives it back."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass
    return ballast


def create(client: Client, name: str, seq: int | None = None, **more: Any) -> Reply:
    job = {"uuid": name, "status": "PENDING", "labels": {"of": "disk"}, "pad": "x" * 2000}
    return client.ask("create", job=job, **({} if seq is None else {"seq": seq}), **more)


def names(client: Client, **filter: Any) -> set[str]:
    reply = client.ask("list", limit=1000, **({"filter": filter} if filter else {}))
    assert reply["success"], reply
    return {job["uuid"] for job in reply["jobs"]}


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart(folder, small_disk):
    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello("w")
        taken = {f"job-{number}" for number in range(20)}
        assert all(create(client, name, seq + 1)["success"] for seq, name in enumerate(sorted(taken)))
        ballast = fill_up(small_disk)

        seq = 20
        while True:  # what is left in the file's own pages may take a few more
            seq += 1
            reply = create(client, f"late-{seq}", seq)
            if not reply["success"]:
                break
            taken.add(f"late-{seq}")
        assert (reply["code"], reply["outcome"], reply["seq"]) == ("no_space", "not_applied", seq)
        behind = create(client, f"late-{seq + 1}", seq + 1)
        assert (behind["code"], behind["outcome"]) == ("unavailable", "not_applied")

        with daemon.connect() as reader:
            reader.hello()
            assert names(reader) == taken
            assert names(reader, status="PENDING") == taken
            assert names(reader, labels={"of": "disk"}) == taken
            assert reader.ask("get", jobId="job-3")["job"]["pad"] == "x" * 2000
            assert reader.ask("get", jobId=f"late-{seq}")["code"] == "not_found"

        ballast.unlink()
        until(lambda: create(client, f"late-{seq}", seq, again=True)["success"], "the space to be noticed")
        assert create(client, f"late-{seq + 1}", seq + 1, again=True)["success"]
        taken |= {f"late-{seq}", f"late-{seq + 1}"}
        assert names(client) == taken
        assert daemon.stop() == 0

    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello()
        assert names(client) == taken


def test_a_store_killed_on_a_full_disk_has_all_that_was_acknowledged(folder, small_disk):
    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello()
        taken = {name for name in (f"job-{number}" for number in range(20)) if create(client, name)["success"]}
        ballast = fill_up(small_disk)
        for number in range(100):
            if create(client, f"late-{number}")["success"]:
                taken.add(f"late-{number}")
        daemon.kill()
        ballast.unlink()
        with daemon.serving().connect() as again:
            again.hello()
            assert names(again) == taken


def test_an_engine_that_has_no_space_to_open_is_waited_for(folder, small_disk):
    (small_disk / "data").mkdir(mode=0o700)
    (small_disk / "data" / "lock").write_text("1234567")
    ballast = fill_up(small_disk)
    with Daemon(folder, data=small_disk / "data").start() as daemon:
        daemon.wait_for_ping()
        with daemon.connect() as client:
            reply = create(client, "job-1")
            assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied")
            assert "disk is full" in reply["error"]
            ballast.unlink()
            until(lambda: create(client, "job-1")["success"], "the engine to open")
        assert daemon.events("engine_unavailable")
        assert daemon.stop() == 0


def test_an_engine_that_is_required_ends_the_daemon_when_it_cannot_be_opened(folder, small_disk):
    (small_disk / "data").mkdir(mode=0o700)
    (small_disk / "data" / "lock").write_text("1234567")
    fill_up(small_disk)
    code, said = refused(folder, "--require-backend", data=small_disk / "data")
    assert code == NO_ENGINE
    assert '"event": "engine_unavailable"' in said
    assert "disk is full" in said


def test_a_file_size_limit_ends_the_daemon_and_loses_nothing(folder):
    limited = ["sh", "-c", 'ulimit -f 600; exec "$@"', "sh"]
    with Daemon(folder, under=limited).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        acknowledged = _write_until_refused(client)
        assert daemon.exit_code() == IO_FAILURE
    assert_acknowledged_are_there(folder, acknowledged)


def _write_until_refused(client: Client) -> set[str]:
    """Create records until one is not acknowledged, which must be told as unknown; then nothing may be any more."""
    acknowledged: set[str] = set()
    for number in range(10_000):
        reply = create(client, f"job-{number}", number + 1)
        if not reply["success"]:
            assert reply["outcome"] == "unknown", reply
            break
        acknowledged.add(f"job-{number}")
    return acknowledged


def assert_acknowledged_are_there(folder: Path, acknowledged: set[str]) -> None:
    with serving(folder) as daemon, daemon.connect() as client:
        assert stores.everything(client).keys() >= acknowledged
        assert daemon.stop() == 0


# --- a disk that fails ---------------------------------------------------------------------------------------------


@contextmanager
def failing(folder: Path, *faults: str, only: str = "log.db") -> Iterator[Daemon]:
    """A daemon whose system calls on one file of the store and its WAL fail as told."""
    data = folder / "data"
    strace = [
        "strace", "-f", "-qq", "-o", str(folder / "trace"), "-y",
        "-P", str(data / only), "-P", str(data / f"{only}-wal"),
        "-e", "trace=fsync,fdatasync,pwrite64,write", *(part for fault in faults for part in ("-e", f"inject={fault}")),
    ]  # fmt: skip
    with Daemon(folder, under=strace) as daemon:
        yield daemon.serving()


def prepared(folder: Path) -> None:
    """A store with a record, closed: what is synced from here on is what the test does."""
    with serving(folder) as daemon, daemon.connect() as client:
        assert create(client, "first")["success"]
        assert daemon.stop() == 0


def calls(folder: Path) -> list[str]:
    """The traced calls that begin a sync, and whether they were made to fail."""
    lines = (folder / "trace").read_text().splitlines()
    return [line for line in lines if re.search(r"\b(fsync|fdatasync)\(", line)]


@needs_strace
@pytest.mark.parametrize("when", [3, 12])
def test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again(folder, when):
    prepared(folder)
    with failing(folder, f"fdatasync,fsync:error=EIO:when={when}") as daemon, daemon.connect() as client:
        client.hello("w")
        replies = _pipelined_until_closed(client)
        acknowledged = {reply["requestId"] for reply in replies if reply["success"]}
        first_failure = next(place for place, reply in enumerate(replies) if not reply["success"])
        assert all(reply["success"] for reply in replies[:first_failure])
        assert not any(reply["success"] for reply in replies[first_failure:]), "acknowledged after a failed sync"
        assert replies[first_failure]["outcome"] == "unknown"
        assert daemon.exit_code() == IO_FAILURE
        assert daemon.events("engine_broken")
    synced = calls(folder)
    failed = next(place for place, line in enumerate(synced) if "INJECTED" in line)
    assert synced[failed + 1 :] == [], "a file whose sync failed was synced again"
    assert_acknowledged_are_there(folder, acknowledged | {"first"})


def _pipelined_until_closed(client: Client) -> list[Reply]:
    """Twenty writes at a time, until the daemon ends the connection; everything it said."""
    replies: list[Reply] = []
    try:
        for first in range(0, 2000, 20):
            client.send(
                *(
                    {"op": "create", "job": {"uuid": f"job-{number}"}, "seq": number + 1, "requestId": f"job-{number}"}
                    for number in range(first, first + 20)
                )
            )
            while len(replies) < first + 20:
                more = client.replies()
                if not more:
                    return replies
                replies += more
    except OSError:
        pass
    return replies


@needs_strace
def test_a_failed_write_to_the_log_is_unknown_and_ends_the_daemon(folder):
    prepared(folder)
    with failing(folder, "pwrite64:error=EIO:when=20") as daemon, daemon.connect() as client:
        client.hello("w")
        acknowledged = _write_until_refused(client)
        assert daemon.exit_code() == IO_FAILURE
    assert_acknowledged_are_there(folder, acknowledged | {"first"})


@needs_strace
def test_a_failed_sync_while_the_idle_log_is_tidied_up_ends_the_daemon(folder):
    prepared(folder)
    settings = {"storage__sqlite__idle_seconds": 0.05}
    trace = ["strace", "-f", "-qq", "-o", str(folder / "trace"), "-y", "-P", str(folder / "data" / "log.db")]
    fault = ["-e", "trace=fsync,fdatasync", "-e", "inject=fdatasync,fsync:error=EIO:when=1"]
    with Daemon(folder, under=[*trace, *fault], settings=settings).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "job-1", 1)["success"]
        assert daemon.exit_code() == IO_FAILURE
    assert len(calls(folder)) == 1, "a file whose sync failed was synced again"
    assert_acknowledged_are_there(folder, {"first", "job-1"})


@needs_strace
def test_a_state_that_cannot_be_written_ends_the_daemon_and_the_log_brings_it_back(folder):
    prepared(folder)
    with failing(folder, "pwrite64:error=EIO:when=1", only="state.db") as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "job-1", 1)["success"]
        assert daemon.exit_code() == IO_FAILURE
    assert_acknowledged_are_there(folder, {"first", "job-1"})
