"""What retention does to a large store: live jobs stay, file space comes back, requests are answered as before.

    python benchmarks/retention.py [--jobs 200000] [--live 2000]

A daemon gets that many jobs that ended long ago and some that live. A client then creates, updates and reads, one
request at a time, first alone and then while a sweep removes everything that is old; both are printed side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

from tests.daemon.harness import Client, Daemon, serving  # noqa: E402 - found only now

BATCH = 1000
LONG_AGO = "2020-01-01T00:00:00Z"


def fill(daemon: Daemon, jobs: int, live: int) -> None:
    with Client(daemon.socket, 300.0) as client:
        names = [(f"old-{number}", "COMPLETED") for number in range(jobs)]
        names += [(f"live-{number}", "RUNNING") for number in range(live)]
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            client.send(
                *(
                    {
                        "op": "create",
                        "job": {"uuid": name, "status": status, "command": "x" * 100, "completedAt": LONG_AGO},
                    }
                    for name, status in some
                )
            )
            for _ in some:
                assert client.reply()["success"]


def latencies(daemon: Daemon, until: threading.Event, seconds: float) -> list[float]:
    """Seconds a request took, one after the other, until told to stop or the time is over."""
    taken: list[float] = []
    number = 0
    with Client(daemon.socket, 300.0) as client:
        client.hello(f"prober-{time.monotonic_ns()}")
        deadline = time.monotonic() + seconds
        while not until.is_set() and time.monotonic() < deadline:
            number += 1
            name = f"probe-{time.monotonic_ns()}"
            for request in (
                {"op": "create", "job": {"uuid": name, "status": "RUNNING"}},
                {"op": "update", "jobId": name, "job": {"status": "COMPLETED"}},
                {"op": "get", "jobId": f"live-{number % 100}"},
            ):
                began = time.perf_counter()
                client.send(request)
                assert client.reply()["success"]
                taken.append(time.perf_counter() - began)
    return sorted(taken)


def shown(taken: list[float]) -> str:
    p50, p99, p999 = (taken[int(len(taken) * share)] * 1000 for share in (0.5, 0.99, 0.999))
    worst = taken[-1] * 1000
    return f"{len(taken):7} requests   p50 {p50:6.2f}   p99 {p99:6.2f}   p99.9 {p999:7.2f}   max {worst:7.2f} ms"


def sizes(daemon: Daemon) -> dict[str, float]:
    return {file.name: file.stat().st_size / 1e6 for file in sorted(daemon.data.glob("*.db*"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--live", type=int, default=2_000)
    asked = parser.parse_args()
    kept = {"retention__log_seconds": 1, "retention__terminal_seconds": 3600, "retention__interval_seconds": 3600}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), settings=kept) as daemon:
        fill(daemon, asked.jobs, asked.live)
        print("files, MB:", json.dumps({name: round(size, 1) for name, size in sizes(daemon).items()}))
        print("alone   ", shown(latencies(daemon, threading.Event(), 10.0)))
        over, done = threading.Event(), {}

        def sweep() -> None:
            with Client(daemon.socket, 1800.0) as client:
                done.update(client.ask("sweep"))
            over.set()

        began = time.perf_counter()
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        print("sweeping", shown(latencies(daemon, over, 1800.0)))
        sweeper.join()
        print(f"swept in {time.perf_counter() - began:.1f} s:", json.dumps(done.get("done", done)))
        time.sleep(2.0)
        with Client(daemon.socket, 300.0) as client:
            done.update(client.ask("sweep"))
            print("again:", json.dumps(done.get("done", done)))
            counts = client.ask("stats")["counts"]
        print("files, MB:", json.dumps({name: round(size, 1) for name, size in sizes(daemon).items()}))
        print("left:", json.dumps(counts))
    return 0 if counts.get("RUNNING") == asked.live else 1


if __name__ == "__main__":
    sys.exit(main())
