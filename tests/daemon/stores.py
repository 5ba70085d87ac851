"""Stores to be damaged: made once by a real daemon, then copied for each test.

Owns what is in them and how to tell that all of it is still there. Must not know the files inside.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any, NamedTuple

from tests.daemon.harness import Client, Daemon, until

JOBS = 60


class Stores(NamedTuple):
    """Copies of one store at moments of its life, and what it held at the end."""

    early: Path
    """Closed when it had a third of its records."""
    closed: Path
    idle: Path
    """Of a daemon that was killed after it had been idle for a while."""
    busy: Path
    """Of a daemon that was killed right behind its last acknowledgement."""
    other: Path
    """Another store altogether, closed."""
    records: dict[str, dict[str, Any]]


def make(folder: Path) -> Stores:
    early, closed, idle, busy, other = (folder / name for name in ("early", "closed", "idle", "busy", "other"))
    with Daemon(
        folder, settings={"storage__sqlite__idle_seconds": 0.2, "storage__sqlite__apply_seconds": 0.1}
    ) as daemon:
        fill(daemon.serving(), 0, JOBS // 3)
        assert daemon.stop() == 0
        shutil.copytree(daemon.data, early)
        fill(daemon.serving(), JOBS // 3, JOBS)
        until(lambda: _is_settled(daemon), "the watermark of an idle store")
        daemon.kill()
        shutil.copytree(daemon.data, idle)
        with daemon.serving().connect() as client:
            records = everything(client)
        assert daemon.stop() == 0
        shutil.copytree(daemon.data, closed)
    with Daemon(folder, data=folder / "busy-data") as daemon:
        fill(daemon.serving(), 0, JOBS)
        daemon.kill()
        shutil.copytree(daemon.data, busy)
    with Daemon(folder, data=folder / "other-data") as daemon:
        fill(daemon.serving(), 0, JOBS)
        assert daemon.stop() == 0
        shutil.copytree(daemon.data, other)
    return Stores(early, closed, idle, busy, other, records)


def fill(daemon: Daemon, first: int, beyond: int) -> None:
    """Create records and touch the ones that were there, each write in a commit of its own."""
    with daemon.connect() as client:
        client.hello()
        for number in range(first, beyond):
            job = {
                "uuid": f"job-{number:03d}",
                "status": "PENDING",
                "labels": {"third": str(number % 3)},
                "pad": "x" * 300,
            }
            assert client.ask("create", job=job)["success"]
        for number in range(0, beyond, 2):
            assert client.ask("update", jobId=f"job-{number:03d}", inc={"touched": 1})["success"]


def _is_settled(daemon: Daemon) -> bool:
    """Whether the log has come to rest at its last entry: 60 creations and 40 updates were made."""
    return is_at_rest(daemon.data, JOBS + JOBS // 2 + JOBS // 3 // 2)


def is_at_rest(data: Path, position: int) -> bool:
    """Whether the watermark names this entry, and nothing of the log is left to be moved out of its WAL."""
    mark = data / "watermark"
    if not mark.exists() or f'"position":{position},'.encode() not in mark.read_bytes():
        return False
    index = (data / "log.db-shm").read_bytes()  # how many frames there are, and how many were moved: SQLite's WAL index
    there, moved = (struct.unpack_from("=I", index, place)[0] for place in (16, 96))
    return bool(there == moved)


def everything(client: Client) -> dict[str, dict[str, Any]]:
    """All records, as `list` and `get` agree on them."""
    jobs = {job["uuid"]: job for job in client.ask("list").get("jobs", [])}
    for name, job in jobs.items():
        assert client.ask("get", jobId=name)["job"] == job
    return jobs
