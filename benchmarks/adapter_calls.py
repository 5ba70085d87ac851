"""What a call of the adapter costs while the daemon is killed again and again, beside an empty call in the same run.

    python benchmarks/adapter_calls.py [--face asyncio|blocking] [--jobs 10000] [--kills 5] [--spool]

Takes every job through three states. Prints percentiles in microseconds, then checks that each job is at its last
state at revision 3 and that cache and daemon agree. Nothing is asserted about time: machines differ, the ratio stays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from statesvc_client import aio, blocking

CLOCK = time.perf_counter_ns
PAUSE_EVERY = 50
"""Calls between two moments in which the agent does something else."""


class Stopwatch:
    """Times a call and, right after it, an empty one."""

    def __init__(self) -> None:
        self.taken: dict[str, list[int]] = {"create": [], "update": [], "get": [], "empty": []}

    def time(self, name: str, call: Callable[..., object], *args: Any, **fields: Any) -> None:
        begin = CLOCK()
        call(*args, **fields)
        between = CLOCK()
        nothing(*args, **fields)
        end = CLOCK()
        self.taken[name].append(between - begin)
        self.taken["empty"].append(end - between)

    def report(self) -> Iterator[str]:
        yield f"{'us':8}{'calls':>8}{'median':>10}{'99 %':>10}{'99.9 %':>10}{'longest':>10}"
        for name, taken in self.taken.items():
            taken.sort()
            places = (0.5, 0.99, 0.999, 1.0)
            shown = (taken[min(len(taken) - 1, int(len(taken) * place))] / 1000 for place in places)
            yield f"{name:8}{len(taken):8}" + "".join(f"{value:10.2f}" for value in shown)


def nothing(*_args: Any, **_fields: Any) -> None:
    """The empty call."""


def steps(state: Any, jobs: int, watch: Stopwatch) -> Iterator[None]:
    """Every call of the run; yields where an agent would do something else."""
    for status in ("PENDING", "RUNNING", "COMPLETED"):
        for number in range(jobs):
            id = f"job-{number}"
            if status == "PENDING":
                watch.time("create", state.create, {"uuid": id, "status": status, "command": "echo hi", "nodeId": "n1"})
            else:
                watch.time("update", state.update, id, status=status, pid=number)
            watch.time("get", state.get, id)
            if number % PAUSE_EVERY == 0:
                yield


def killer(state: Any, kills: int, done: threading.Event) -> None:
    """Kill the daemon, wait until it serves again, and again."""
    for _ in range(kills):
        if done.wait(0.3):
            return
        while not (state.connected and state.daemon_pid):
            if done.wait(0.01):
                return
        os.kill(state.daemon_pid, signal.SIGKILL)


def verdict(jobs: int, listed: list[dict[str, Any]], cached: dict[str, dict[str, Any]]) -> str:
    wrong = [job for job in listed if (job["status"], job["revision"]) != ("COMPLETED", 3)]
    differ = [job for job in listed if any(job[name] != value for name, value in cached[job["uuid"]].items())]
    return (
        f"{len(listed)} of {jobs} jobs, {len(wrong)} not at COMPLETED and revision 3, {len(differ)} differ in the cache"
    )


async def run_asyncio(options: dict[str, Any], jobs: int, kills: int, watch: Stopwatch) -> None:
    async with aio.StateStore.spawn(**options) as state:
        done = threading.Event()
        thread = threading.Thread(target=killer, args=(state, kills, done))
        thread.start()
        for _ in steps(state, jobs, watch):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(thread.join)
        print(await state.flush(120))
        cached = {job["uuid"]: job for job in state}
        listed: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            reply = await state.call("list", limit=1000, **page)
            listed += reply["jobs"]
            if not reply.get("nextCursor"):
                break
            page = {"cursor": reply["nextCursor"]}
        print(verdict(jobs, listed, cached))


def run_blocking(options: dict[str, Any], jobs: int, kills: int, watch: Stopwatch) -> None:
    with blocking.StateStore.spawn(**options) as state:
        done = threading.Event()
        thread = threading.Thread(target=killer, args=(state, kills, done))
        thread.start()
        for _ in steps(state, jobs, watch):
            time.sleep(0.001)
        thread.join()
        print(state.flush(120))
        cached = {job["uuid"]: job for job in state}
        listed: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            reply = state.call("list", limit=1000, **page)
            listed += reply["jobs"]
            if not reply.get("nextCursor"):
                break
            page = {"cursor": reply["nextCursor"]}
        print(verdict(jobs, listed, cached))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--face", choices=("asyncio", "blocking"), default="asyncio")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--spool", action="store_true")
    given = parser.parse_args()
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="statesvc-") as folder:
        options: dict[str, Any] = {
            "backend": "sqlite",
            "data": os.path.join(folder, "data"),
            "log": nothing,
            "spool": os.path.join(folder, "spool") if given.spool else None,
        }
        if given.face == "asyncio":
            asyncio.run(run_asyncio(options, given.jobs, given.kills, watch))
        else:
            run_blocking(options, given.jobs, given.kills, watch)
    print("\n".join(watch.report()))


if __name__ == "__main__":
    main()
