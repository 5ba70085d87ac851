"""What a snapshot and a restore of a large store take, and what others notice of them.

    python benchmarks/snapshot.py [--jobs 200000] [--backend sqlite] [--rate 500] [-o json]

A writer changes records at a steady rate all the time. A second client sends one request at a time, a read or a write
of one record, and measures each: before, while the snapshot is written, while its file is verified and loaded. Writes
are refused while the store is replaced; how long that takes is told as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
GIVE_UP_SECONDS = 120.0
BATCH = 2000
BEFORE_SECONDS = 5.0


@contextmanager
def daemon(folder: Path, backend: str) -> Iterator[None]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "STATESVC_DATA": str(folder / "data")}
    command = [sys.executable, "-m", "statesvc", "serve", "--socket", str(folder / "s.sock"), "--log-level", "error"]
    process = subprocess.Popen([*command, "--backend", backend], env=env)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Client:
    """One connection, lines out and in."""

    def __init__(self, folder: Path) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            self.sock = socket.socket(socket.AF_UNIX)
            try:
                self.sock.connect(str(folder / "s.sock"))
                break
            except OSError:
                self.sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.lines = self.sock.makefile("rb")

    def send(self, *requests: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))

    def reply(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self.lines.readline())
        return reply

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.send({"op": op, **fields})
        return self.reply()


def job(number: int) -> dict[str, Any]:
    return {
        "uuid": f"job-{number}", "status": "QUEUED" if number % 4 else "COMPLETED", "command": "/bin/sh -c 'echo hi'",
        "nodeId": f"node-{number % 50}", "pid": number, "exitCode": 0, "labels": {"team": "red"}, "step": number * 7919,
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/"},
    }  # fmt: skip


def fill(folder: Path, jobs: int) -> None:
    client = Client(folder)
    client.ask("hello", client="filler", ack="last")
    for first in range(0, jobs, BATCH):
        numbers = range(first, min(jobs, first + BATCH))
        client.send(*({"op": "create", "job": job(n), "seq": n + 1, "floor": n + 1} for n in numbers))
        while client.reply().get("acked") != numbers[-1] + 1:
            pass


class Load:
    """A writer at a steady rate, in a thread of its own."""

    def __init__(self, folder: Path, jobs: int, rate: int) -> None:
        self._client = Client(folder)
        self._client.ask("hello")
        self._jobs, self._rate = jobs, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.writes = 0
        self.refused: list[float] = []
        """When a write was refused."""

    def _write(self) -> None:
        begin = time.perf_counter()
        sent = 0
        while not self._over.is_set():
            due = int((time.perf_counter() - begin) * self._rate)
            for number in range(sent, max(sent, min(due, sent + 100))):
                name = f"job-{number * 31 % self._jobs}"
                if self._client.ask("update", jobId=name, inc={"touched": 1})["success"]:
                    self.writes += 1
                else:
                    self.refused.append(time.perf_counter())
                sent += 1
            time.sleep(0.001)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Probe(Load):
    """One request at a time, each measured."""

    def __init__(self, folder: Path, jobs: int) -> None:
        super().__init__(folder, jobs, 0)
        self.took: list[tuple[float, float]] = []

    def _write(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            name = f"job-{number * 7919 % self._jobs}"
            begin = time.perf_counter()
            if number % 2:
                self._client.ask("get", jobId=name)
            else:
                self._client.ask("update", jobId=name, inc={"probed": 1})
            self.took.append((begin, time.perf_counter() - begin))
            time.sleep(0.002)

    def between(self, begin: float, end: float) -> dict[str, float]:
        took = sorted(took for at, took in self.took if begin <= at < end) or [0.0]

        def part(share: float) -> float:
            return round(took[min(len(took) - 1, int(len(took) * share))] * 1000, 2)

        return {"requests": len(took), "p50_ms": part(0.5), "p99_ms": part(0.99), "max_ms": part(1.0)}


def measure(folder: Path, backend: str, jobs: int, rate: int) -> dict[str, Any]:
    with daemon(folder, backend):
        fill(folder, jobs)
        admin = Client(folder)
        with Load(folder, jobs, rate) as load, Probe(folder, jobs) as probe:
            time.sleep(BEFORE_SECONDS)
            begin = time.perf_counter()
            saved = admin.ask("snapshot", path="s.snapshot")
            written = time.perf_counter()
            assert saved["success"], saved
            time.sleep(1)
            restoring = time.perf_counter()
            restored = admin.ask("restore", path="s.snapshot")
            over = time.perf_counter()
            assert restored["success"], restored
            time.sleep(1)
        refused = [at for at in load.refused if at >= restoring]
        result = {
            "backend": backend, "jobs": jobs, "rows": saved["done"]["rows"], "file_bytes": saved["done"]["bytes"],
            "writes_meanwhile": load.writes, "snapshot_seconds": round(written - begin, 2),
            "restore_seconds": round(over - restoring, 2),
            "writes_refused_seconds": round(max(refused) - min(refused), 2) if refused else 0.0,
            "before": probe.between(begin - BEFORE_SECONDS + 1, begin), "snapshot": probe.between(begin, written),
            "restore": probe.between(restoring, over),
        }  # fmt: skip
        check = time.perf_counter()
        found = admin.ask("check")
        result |= {"check_seconds": round(time.perf_counter() - check, 2), "problems": len(found["problems"])}
        return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=200_000)
    options.add_argument("--backend", default="sqlite")
    options.add_argument("--rate", type=int, default=500, help="writes a second while it is measured")
    options.add_argument("-o", "--output", choices=["table", "json"], default="table")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statesvc-snapshot-"))
    try:
        result = measure(folder, given.backend, given.jobs, given.rate)
    finally:
        shutil.rmtree(folder)
    if given.output == "json":
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


def print_table(result: dict[str, Any]) -> None:
    size = result["file_bytes"] / 1024 / 1024
    print(f"{result['backend']}, {result['jobs']:,} jobs, {result['writes_meanwhile']:,} writes meanwhile")
    print(f"snapshot  {result['snapshot_seconds']:>6.2f} s   {result['rows']:,} rows, {size:.1f} MiB")
    refused = result["writes_refused_seconds"]
    print(f"restore   {result['restore_seconds']:>6.2f} s   writes refused for {refused:.2f} s of it")
    print(f"check     {result['check_seconds']:>6.2f} s   {result['problems']} problems")
    print(f"{'one request at a time':<24} {'requests':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for name in ("before", "snapshot", "restore"):
        row = result[name]
        print(f"{name:<24} {row['requests']:>9} {row['p50_ms']:>8} {row['p99_ms']:>8} {row['max_ms']:>8}")


if __name__ == "__main__":
    main()
