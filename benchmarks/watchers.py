"""What watchers cost those who write: the same changes with nobody watching and with many, side by side in one run.

    python benchmarks/watchers.py [--backend memory|sqlite] [--watchers 0,1,10] [--changes 50000] [--writers 4]

Daemon, writers and watchers run in processes of their own. Prints how fast the writers were, how long behind them the
last watcher had everything, what the daemon used of a processor, and whether each watcher saw all changes, once and in
the same order. Nothing is asserted about time: machines differ, the ratio stays.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from statesvc import backends
from statesvc.config import Settings
from statesvc.config.model import Log
from statesvc.server import Server

IN_FLIGHT = 256
RECORD = {"command": "sleep 1", "nodeId": "node-1", "labels": {"team": "a"}, "note": "x" * 80}


def connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(120)
    sock.connect(path)
    return sock


def lines_of(sock: socket.socket) -> Iterator[bytes]:
    rest = b""
    while data := sock.recv(1 << 20):
        *whole, rest = (rest + data).split(b"\n")
        yield from whole


def write(path: str, writer: int, changes: int, start: Any, tell: Pipe) -> None:
    """Create a job, then change it, again and again, with a bounded number of requests in flight."""
    sock = connected(path)
    frames = [frame(writer, number) for number in range(changes)]
    replies = lines_of(sock)
    start.wait()
    begin = time.perf_counter()
    for at in range(0, changes, IN_FLIGHT):
        part = frames[at : at + IN_FLIGHT]
        sock.sendall(b"".join(part))
        for _ in part:
            reply = next(replies)
            assert b'"success":true' in reply, reply
    tell.send((begin, time.perf_counter()))


def frame(writer: int, number: int) -> bytes:
    job = {"uuid": f"job-{writer}-{number // 5}", **RECORD, "number": number}
    if number % 5 == 0:
        return json.dumps({"op": "create", "job": job}).encode() + b"\n"
    return json.dumps({"op": "update", "jobId": job["uuid"], "job": job}).encode() + b"\n"


def watch(path: str, changes: int, tell: Pipe) -> None:
    """Read every event; the digest is over all lines, which are the same for all watchers."""
    sock = connected(path)
    sock.sendall(b'{"op":"watch","requestId":"w"}\n')
    seen, digest = -1, hashlib.blake2b()
    while seen < changes and (data := sock.recv(1 << 20)):
        if seen < 0:
            reply, _, data = data.partition(b"\n")
            assert b'"success":true' in reply, reply
            tell.send("watching")
            seen = 0
        seen += data.count(b"\n")
        digest.update(data)
    tell.send((time.perf_counter(), seen, digest.hexdigest()))


class Run(NamedTuple):
    """One measurement."""

    watchers: int
    write_seconds: float
    watch_seconds: float
    all_saw_the_same: bool
    daemon_seconds: float = 0.0


def measure(path: str, watchers: int, writers: int, changes: int) -> Run:
    context = multiprocessing.get_context("fork")
    start = context.Event()
    each = changes // writers
    watching, writing = [], []
    for _ in range(watchers):
        ours, theirs = context.Pipe()
        context.Process(target=watch, args=(path, each * writers, theirs), daemon=True).start()
        watching.append(ours)
    for ours in watching:
        assert ours.recv() == "watching"
    for number in range(writers):
        ours, theirs = context.Pipe()
        name = f"{watchers}-{number}"
        context.Process(target=write, args=(path, name, each, start, theirs), daemon=True).start()
        writing.append(ours)
    time.sleep(0.5)
    start.set()
    times = [pipe.recv() for pipe in writing]
    saw = [pipe.recv() for pipe in watching]
    begin = min(begin for begin, _ in times)
    written = max(end for _, end in times)
    return Run(
        watchers,
        written - begin,
        max([written, *(at for at, _, _ in saw)]) - begin,
        len({digest for _, _, digest in saw}) <= 1 and all(seen == each * writers for _, seen, _ in saw),
    )


async def serve(settings: Settings, announce: Any, stop: Any) -> None:
    server = Server(settings, backends.make(settings))
    serving = asyncio.create_task(server.serve(announce=announce))
    await asyncio.to_thread(stop.wait)
    server._signalled("the measurement is over")  # noqa: SLF001 - a signal would end all of us
    await serving


def daemon(settings: Settings, announce: Any, stop: Any, tell: Pipe) -> None:
    gc.set_threshold(50_000, 20, 50)  # as the real one does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, lambda _: announce.set(), stop))
    tell.send(time.process_time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="memory")
    parser.add_argument("--watchers", default="0,1,10")
    parser.add_argument("--changes", type=int, default=50_000)
    parser.add_argument("--writers", type=int, default=4)
    options = parser.parse_args()
    titles = ("watchers", "writes/s", "behind s", "events/s", "daemon cpu s")
    print("".join(f"{title:>14}" for title in titles), " every watcher saw everything")
    for watchers in map(int, options.watchers.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            places = {"socket": Path(folder, "s"), "data": Path(folder, "data")}
            settings = Settings(backend=options.backend, log=Log(level="error"), **places)
            run = one_daemon(settings, watchers, options.writers, options.changes)
        print("".join(f"{figure:14,.6g}" for figure in figures(run, options.changes)), "", run.all_saw_the_same)


def figures(run: Run, changes: int) -> tuple[float, ...]:
    behind = run.watch_seconds - run.write_seconds
    events = run.watchers * changes / run.watch_seconds
    return (run.watchers, changes // run.write_seconds, round(behind, 2), events // 1, round(run.daemon_seconds, 2))


def one_daemon(settings: Settings, watchers: int, writers: int, changes: int) -> Run:
    context = multiprocessing.get_context("fork")
    listening, stop = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    process = context.Process(target=daemon, args=(settings, listening, stop, theirs))
    process.start()
    assert listening.wait(30)
    try:
        run = measure(str(settings.socket), watchers, writers, changes)
    finally:
        stop.set()
    used: float = ours.recv()
    process.join(30)
    return run._replace(daemon_seconds=used)


if __name__ == "__main__":
    main()
