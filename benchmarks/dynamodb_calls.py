"""What DynamoDB costs the daemon itself: against an endpoint that answers at once, in a process of its own.

    python benchmarks/dynamodb_calls.py [calls] [connections]

Prints calls a second and processor time a call, for one process that does nothing else, beside what aiohttp takes with
botocore's signer; then conditional writes a second of a whole daemon, through its socket, with the processor time and
the calls of each. Fewer than eight clients have each write in a call of its own; where more come together, up to 25
share one. What the daemon calls by itself, a few times a second, is counted as well. The endpoint and whoever asks take
processor time, too: on a machine with few processors, or with other work, the processor time is the figure to go by.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import uvloop
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

from statesvc.backends.dynamodb.calls import Access, Calls  # noqa: E402 - found only now, as all that follows
from tests.daemon.harness import Daemon  # noqa: E402
from tests.dynamodb.servers import MADE_UP, REGION, Program, own_tables  # noqa: E402
from tests.fleet.daemons import daemon  # noqa: E402

ROUNDS = 3
REQUEST = {"TableName": "joblet-jobs", "Key": {"jobId": {"S": "j" * 36}}, "ConsistentRead": True}
PIPELINE = 64
TICKS = os.sysconf("SC_CLK_TCK")


# --- calls -----------------------------------------------------------------------------------------------------------


async def measure_calls(url: str, count: int, connections: int) -> None:
    calls = Calls(Access(region=REGION, endpoint=url, connections=connections))
    signer = SigV4Auth(Credentials(*list(MADE_UP.values())[:2]), "dynamodb", REGION)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def ours() -> None:
            await calls.call("GetItem", REQUEST)

        async def theirs() -> None:
            headers = {"X-Amz-Target": "DynamoDB_20120810.GetItem", "Content-Type": "application/x-amz-json-1.0"}
            request = AWSRequest("POST", f"{url}/", headers, msgspec.json.encode(REQUEST))
            signer.add_auth(request)
            async with session.post(url, data=request.body, headers=dict(request.headers.items())) as reply:
                msgspec.json.decode(await reply.read())

        try:
            await calls.open()
            for _ in range(ROUNDS):
                await _measure("aiohttp, botocore", theirs, count, connections)
                await _measure("call", ours, count, connections)
        finally:
            await calls.close()


async def _measure(what: str, call: Callable[[], Awaitable[None]], count: int, at_once: int) -> None:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await call()

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(at_once)))
    took, used = time.perf_counter() - began, time.process_time() - used
    print(f"{what:24} {count / took:8,.0f} a second   {used / count * 1e6:6.0f} us of processor time")


# --- a daemon --------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How writes come to the daemon."""

    name: str
    clients: int
    deep: int
    """Requests each of them has under way."""


def ways(connections: int) -> tuple[Way, ...]:
    # Fewer than eight that come together go each on their own.
    return (
        Way("one at a time", 1, 1),
        Way("7 clients", 7, 1),
        Way(f"{connections} clients", connections, 1),
        Way(f"pipelines of {PIPELINE}", 4, PIPELINE),
    )


def job(name: str, status: str) -> dict[str, Any]:
    command = "python -m train --config /srv/jobs/config.yml --epochs 20 --seed 7"
    return {"uuid": name, "status": status, "command": command, "nodeId": f"node-{name[-1]}"}


def creates(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield msgspec.json.encode({"op": "create", "job": job(f"{prefix}-{number:06}", "PENDING")}) + b"\n"


def updates(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield msgspec.json.encode({"op": "update", "job": job(f"{prefix}-{number:06}", "RUNNING")}) + b"\n"


class Asking(asyncio.Protocol):
    """A client that keeps so many requests under way, until there are none left."""

    def __init__(self, requests: Iterator[bytes], deep: int) -> None:
        self._requests = requests
        self._deep = deep
        self._open = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send(self._deep)

    def data_received(self, data: bytes) -> None:
        if b'"success":false' in data:
            self.done.set_exception(AssertionError(data[:500]))
            return
        answered = data.count(b"\n")
        self._open -= answered
        self._send(answered)

    def _send(self, most: int) -> None:
        some = [request for _, request in zip(range(most), self._requests, strict=False)]
        self._open += len(some)
        if some:
            self._transport.write(b"".join(some))
        elif not self._open and not self.done.done():
            self._transport.close()
            self.done.set_result(None)


async def measure_writes(there: Daemon, what: str, way: Way, requests: list[bytes]) -> None:
    loop, left = asyncio.get_running_loop(), iter(requests)
    calls, used, began = _calls(there), _used(there), time.perf_counter()
    clients = [
        (await loop.create_unix_connection(lambda: Asking(left, way.deep), str(there.socket)))[1]
        for _ in range(way.clients)
    ]
    await asyncio.gather(*(client.done for client in clients))
    took, used, calls = time.perf_counter() - began, _used(there) - used, _calls(there) - calls
    each, count = f"{used / len(requests) * 1e6:6.0f} us of processor time", len(requests)
    print(f"{what}, {way.name:16} {count / took:8,.0f} a second   {each}   {calls / count:5.2f} calls")


def _calls(there: Daemon) -> int:
    with there.connect() as client:
        return int(client.ask("health")["measures"]["calls"])


def _used(there: Daemon) -> float:
    """Seconds of processor time the daemon has taken."""
    fields = Path(f"/proc/{there.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure_daemon(there: Daemon, count: int, connections: int) -> None:
    for way in ways(connections):
        some = count if way.clients > 1 else count // 10
        for number in range(ROUNDS):
            name = f"{way.clients}-{way.deep}-{number}"
            await measure_writes(there, "create", way, list(creates(name, some)))
            await measure_writes(there, "update", way, list(updates(name, some)))


def main(count: int, connections: int) -> None:
    os.environ.update(MADE_UP)
    endpoint = Program("tests.dynamodb.canned")
    given = {"endpoint": endpoint.url, "region": REGION, "table_name": own_tables().jobs, "connections": connections}
    values = {f"storage.dynamodb.{name}": value for name, value in given.items()}
    try:
        with (
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            tempfile.TemporaryDirectory() as folder,
            daemon(Path(folder) / "d", "dynamodb", values, env=MADE_UP) as there,
        ):
            runner.run(measure_calls(endpoint.url, count, connections))
            there.serving()
            runner.run(measure_daemon(there, count, connections))
    finally:
        endpoint.end()


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:3]]
    main(*(words + [10_000, 32][len(words) :]))
