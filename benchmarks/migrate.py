"""What it takes to move a store from engine to engine while it is written to, with one run killed on the way.

    python benchmarks/migrate.py [--records 20000] [--rate 50] [--redis URL] [--dynamodb ENDPOINT] [-o json]

sqlite -> redis -> dynamodb -> sqlite. On every leg a daemon serves the source, a writer changes and makes records at a
steady rate, and a holder keeps a lock. The first copy of each leg is killed on the way; it is run again, then the
cut-over is made, and the next daemon begins on what arrived. In the end every acknowledged write must be there, once.

Without addresses it starts a Redis-compatible server and a played DynamoDB of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

GIVE_UP_SECONDS = 600.0
BATCH = 500
CHANGED = 200
"""Records that are changed again and again."""

KILLED_AT_PERCENT = 40
"""How much of the first copy of each leg is done when it is killed, or a little more."""

LEGS = ("sqlite", "redis", "dynamodb", "sqlite")


def environment() -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    return {**plain, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}


class Client:
    """One connection, lines out and in."""

    def __init__(self, path: Path) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            self._sock = socket.socket(socket.AF_UNIX)
            try:
                self._sock.connect(str(path))
                break
            except OSError:
                self._sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._sock.settimeout(GIVE_UP_SECONDS)
        self._lines = self._sock.makefile("rb")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._sock.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
        reply: dict[str, Any] = json.loads(self._lines.readline())
        return reply

    def done(self, op: str, **fields: Any) -> dict[str, Any]:
        reply = self.ask(op, **fields)
        assert reply["success"], reply
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._sock.close()


@contextmanager
def daemon(config: Path, path: Path) -> Iterator[Path]:
    """A daemon that serves, until the block ends."""
    command = [sys.executable, "-m", "statesvc", "serve", "--config", str(config), "--log-level", "error"]
    process = subprocess.Popen(command, env=environment())
    try:
        with Client(path) as client:
            deadline = time.monotonic() + GIVE_UP_SECONDS
            while client.ask("get", jobId="nobody").get("code") != "not_found":
                assert time.monotonic() < deadline, "the engine does not open"
                time.sleep(0.05)
        yield path
    finally:
        process.terminate()
        process.wait(GIVE_UP_SECONDS)


class Load:
    """A writer and a holder; what was acknowledged is remembered over all legs."""

    def __init__(self, rate: float) -> None:
        self._pause = 1 / rate
        self.changes: Counter[str] = Counter()
        self.made: list[str] = []
        self.token: int | None = None
        self._stop = threading.Event()
        self._problem: BaseException | None = None

    @contextmanager
    def on(self, path: Path) -> Iterator[None]:
        """Go on until the store is frozen."""
        self._stop.clear()
        threads = [threading.Thread(target=self._guarded, args=(work, path)) for work in (self._write, self._hold)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._problem is not None:
            raise self._problem

    def _guarded(self, work: Any, path: Path) -> None:
        try:
            with Client(path) as client:
                client.done("hello", name="load")
                work(client)
        except BaseException as problem:  # noqa: BLE001 - told where the thread is joined
            self._problem = problem

    def _write(self, client: Client) -> None:
        number = len(self.made)
        while not self._stop.wait(self._pause):
            name = f"job-{number % CHANGED}"
            for op, fields in (
                ("update", {"jobId": name, "inc": {"writes": 1}}),
                ("create", {"job": {"uuid": f"late-{number}", "status": "QUEUED"}}),
            ):
                reply = client.ask(op, **fields)
                if not reply["success"]:
                    assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied"), reply
                    return
                if op == "update":
                    self.changes[name] += 1
                else:
                    self.made.append(f"late-{number}")
            number += 1

    def _hold(self, client: Client) -> None:
        if self.token is None:
            claimed = client.done("claim", kind="lock", id="leader", holder="bench", ttl=600)
            self.token = claimed["records"][0]["lease"]["token"]
        while not self._stop.wait(0.2):
            client.done("renew", kind="lock", id="leader", token=self.token)

    def check(self, path: Path, records: int) -> None:
        """Everything acknowledged is there, once."""
        with Client(path) as client:
            client.done("hello", name="check")
            for name, count in self.changes.items():
                found = client.done("get", jobId=name)["job"]
                assert found["writes"] == count, (name, found["writes"], count)
            for name in self.made:
                client.done("get", jobId=name)
            client.done("renew", kind="lock", id="leader", token=self.token)
            total = client.done("list", limit=1, count=True)["total"]
            assert total == records + len(self.made), (total, records, len(self.made))
            assert client.done("check").get("problems", []) == []


def command(source: Path, target: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "statesvc", "migrate", "--from", str(source), "--to", str(target), *words]


def migrate(source: Path, target: Path, *words: str) -> dict[str, Any]:
    """One run, to its end."""
    began = time.monotonic()
    done = subprocess.run(
        command(source, target, "-o", "json", *words),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=GIVE_UP_SECONDS,
    )
    report: dict[str, Any] = {**json.loads(done.stdout), "wallSeconds": round(time.monotonic() - began, 2)}
    return report


def killed_migrate(source: Path, target: Path) -> int:
    """One run, killed on the way; returns how many percent were copied by then, as a terminal was told."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        command(source, target), env=environment(), stdout=subprocess.DEVNULL, stderr=child, text=True
    )
    os.close(child)
    shown, percent = b"", 0
    try:
        while percent < KILLED_AT_PERCENT and (some := os.read(parent, 4096)):
            shown = shown[-200:] + some
            percent = max([0, *(int(each) for each in re.findall(rb"copying .*?(\d+)%", shown))])
    except OSError:  # how a terminal says that the other side is gone
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.close(parent)
    return percent


def configured(folder: Path, number: int, backend: str, storage: dict[str, Any]) -> tuple[Path, Path]:
    """A configuration file, and the socket of its daemon."""
    path = folder / f"{number}.sock"
    state = {"backend": backend, "socket": str(path), "data": str(folder / f"data-{number}"), "storage": storage}
    config = folder / f"{number}.yml"
    config.write_text(json.dumps({"state": state}))
    config.chmod(0o600)
    return config, path


def servers(stack: ExitStack, redis: str | None, dynamodb: str | None) -> dict[str, dict[str, Any]]:
    """What reaches the shared engines, as sections of the configuration."""
    name = f"bench-{uuid4().hex[:8]}"
    if redis is None:
        from tests.redis.servers import Server

        redis = stack.enter_context(Server()).url
    from statesvc.backends.redis.access import read_url

    reached = {key: str(value) if isinstance(value, Path) else value for key, value in read_url(redis).items()}
    if dynamodb is None:
        from tests.dynamodb import servers as played

        os.environ.update(played.environment())
        dynamodb = stack.enter_context(played.moto()).url
    tables = {"table_name": name, "endpoint": dynamodb, "region": os.environ.get("AWS_REGION", "us-east-1")}
    return {
        "sqlite": {},
        "redis": {"redis": {**reached, "namespace": name}},
        "dynamodb": {"dynamodb": {**tables, "read_capacity": 0, "write_capacity": 0}},
    }


def fill(path: Path, records: int) -> None:
    with Client(path) as client:
        for begin in range(0, records, BATCH):
            numbers = range(begin, min(records, begin + BATCH))
            jobs = [{"uuid": f"job-{n}", "status": "QUEUED", "nodeId": f"n-{n % 7}", "pad": "x" * 80} for n in numbers]
            assert client.done("sync", jobs=jobs)["applied"] == len(jobs)


def leg(source: tuple[Path, Path], target: tuple[Path, Path], load: Load) -> dict[str, Any]:
    (from_file, path), (to_file, _) = source, target
    subprocess.run(
        [sys.executable, "-m", "statesvc", "init", "--config", str(to_file)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    with daemon(from_file, path), load.on(path):
        killed = killed_migrate(from_file, to_file)
        copied = migrate(from_file, to_file)
        moved = migrate(from_file, to_file, "--cut-over")
    assert moved["complete"]
    assert moved["whole"]["source"] == moved["whole"]["target"], moved["whole"]
    return {
        "killedAtPercent": killed,
        "copySeconds": copied["wallSeconds"],
        "cutOverSeconds": moved["wallSeconds"],
        "frozenSeconds": moved["frozenSeconds"],
        "writtenAfterTheKill": copied["written"],
        "followed": copied["followed"] + moved["followed"],
        "rows": moved["whole"]["target"]["rows"],
        "digest": moved["whole"]["target"]["digest"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=50.0, help="changes a second, and as many new records")
    parser.add_argument("--legs", default=",".join(LEGS), help="engines, in their order")
    parser.add_argument("--redis", help="redis://..., else a server is started")
    parser.add_argument("--dynamodb", help="an endpoint, else one is played")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statesvc-migrate-"))
    try:
        with ExitStack() as stack:
            results = run(given, folder, servers(stack, given.redis, given.dynamodb))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.output == "json":
        print(json.dumps(results))


def run(given: argparse.Namespace, folder: Path, storage: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    engines = given.legs.split(",")
    stops = [configured(folder, number, name, storage[name]) for number, name in enumerate(engines)]
    load = Load(given.rate)
    with daemon(*stops[0]) as path:
        fill(path, given.records)
    results = []
    for number, (source, target) in enumerate(pairwise(stops)):
        before, after = engines[number : number + 2]
        result = {"leg": f"{before} -> {after}", **leg(source, target, load)}
        results.append(result)
        if given.output == "text":
            print("  ".join(f"{name} {value}" for name, value in result.items()), flush=True)
    with daemon(*stops[-1]) as path:
        load.check(path, given.records)
    if given.output == "text":
        print(f"{sum(load.changes.values())} changes and {len(load.made)} new records, all there, once")
    return results


if __name__ == "__main__":
    main()
