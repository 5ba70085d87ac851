"""How long a daemon takes from exec to its first answered ping, and to its first answered request.

    python benchmarks/start_time.py [--runs 10] [--jobs 100000] [-o json]

An agent that starts the daemon waits 500 ms and pings once; 400 ms is the bar. The ping is answered before the engine
is open; the second column is the time until a record can be read, which for a replay may be longer.
The median of ten runs with a warm file cache is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
BAR_SECONDS = 0.4
GIVE_UP_SECONDS = 60.0
BATCH = 1000

Times = list[tuple[float, float]]


@contextmanager
def daemon(folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'client'}"
    command = [sys.executable, "-m", "statesvc", "serve", "--socket", str(folder / "s.sock"), "--log-level", "error"]
    process = subprocess.Popen([*command, *flags], env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def connected(path: Path) -> socket.socket:
    """As soon as there is somebody to connect to."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
            return sock
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.0005)


def ask(sock: socket.socket, line: bytes, replies: int = 1) -> bytes:
    sock.sendall(line)
    heard = b""
    while heard.count(b"\n") < replies:
        heard += sock.recv(1 << 20)
    return heard


def measure(folder: Path, *flags: str) -> tuple[float, float]:
    """Seconds from exec to the first ping answered, and to the first record read."""
    begin = time.perf_counter()
    with daemon(folder, *flags) as process, connected(folder / "s.sock") as sock:
        ask(sock, b'{"op":"ping"}\n')
        pinged = time.perf_counter() - begin
        while b'"unavailable"' in ask(sock, b'{"op":"get","jobId":"job-1"}\n'):
            pass
        served = time.perf_counter() - begin
        process.send_signal(signal.SIGTERM)
        process.wait()
    return pinged, served


def fill(folder: Path, data: Path, jobs: int) -> None:
    """A store with so many jobs, closed."""
    with daemon(folder, "--data", str(data), "--durability", "os") as process, connected(folder / "s.sock") as sock:
        for first in range(0, jobs, BATCH):
            numbers = range(first, min(jobs, first + BATCH))
            ask(sock, b"".join(map(create, numbers)), len(numbers))
        process.send_signal(signal.SIGTERM)
        process.wait()


def create(number: int) -> bytes:
    job = {
        "uuid": f"job-{number}", "status": "COMPLETED", "command": "/bin/sh -c 'echo hi'",
        "nodeId": f"node-{number % 50}",
        "pid": number, "exitCode": 0, "environment": {"PATH": "/usr/bin:/bin", "HOME": "/"}, "labels": {"team": "red"},
    }  # fmt: skip
    return json.dumps({"op": "create", "job": job}).encode() + b"\n"


def kill_with_a_replay_pending(folder: Path, data: Path, entries: int) -> None:
    """Write faster than the tables follow, and kill: the next start has to replay."""
    with daemon(folder, "--data", str(data), "--durability", "os"), connected(folder / "s.sock") as sock:
        ask(sock, b'{"op":"get","jobId":"job-1"}\n')
        updates = (b'{"op":"update","jobId":"job-%d","inc":{"n":1}}\n' % number for number in range(entries))
        ask(sock, b"".join(updates), entries)


def repeat(runs: int, once: Callable[[], tuple[float, float]]) -> Times:
    once()  # warms the file cache
    return [once() for _ in range(runs)]


def cases(folder: Path, runs: int, jobs: int) -> Iterator[tuple[str, Times]]:
    yield "memory", repeat(runs, lambda: measure(folder, "--backend", "memory"))
    yield "sqlite, empty", repeat(runs, lambda: measure_empty(folder))
    data = folder / "data"
    fill(folder, data, jobs)
    yield f"sqlite, {jobs:,} jobs", repeat(runs, lambda: measure(folder, "--data", str(data)))
    kill_with_a_replay_pending(folder, data, 4000)
    yield f"sqlite, {jobs:,} jobs, killed", repeat(runs, lambda: measure_copy(folder, data))
    for file in data.glob("state.db*"):
        file.unlink()
    yield f"sqlite, {jobs:,} jobs, state.db lost", repeat(min(runs, 3), lambda: measure_copy(folder, data))


def measure_empty(folder: Path) -> tuple[float, float]:
    shutil.rmtree(folder / "empty", ignore_errors=True)
    return measure(folder, "--data", str(folder / "empty"))


def measure_copy(folder: Path, data: Path) -> tuple[float, float]:
    """Each run begins with what the kill left."""
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(data, folder / "copy")
    return measure(folder, "--data", str(folder / "copy"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--jobs", type=int, default=100_000)
    options.add_argument("-o", "--output", choices=["table", "json"], default="table")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statesvc-start-"))
    results = []
    try:
        for name, times in cases(folder, given.runs, given.jobs):
            pings, serves = zip(*times, strict=True)
            results.append({
                "case": name, "runs": len(times), "ping_ms": round(statistics.median(pings) * 1000),
                "slowest_ping_ms": round(max(pings) * 1000), "request_ms": round(statistics.median(serves) * 1000),
                "within_bar": statistics.median(pings) <= BAR_SECONDS,
            })  # fmt: skip
            if given.output == "table":
                print_row(results[-1], first=len(results) == 1)
    finally:
        shutil.rmtree(folder)
    if given.output == "json":
        print(json.dumps(results, indent=2))


def print_row(row: dict[str, object], *, first: bool) -> None:
    if first:
        print(f"{'case':<40} {'ping ms':>8} {'slowest':>8} {'request ms':>11}   bar {BAR_SECONDS * 1000:.0f} ms")
    verdict = "ok" if row["within_bar"] else "MISSED"
    print(
        f"{row['case']:<40} {row['ping_ms']:>8} {row['slowest_ping_ms']:>8} {row['request_ms']:>11}   {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    main()
