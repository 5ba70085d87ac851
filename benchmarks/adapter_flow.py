"""How many writes a second the adapter gets through, from the agent's calls until everything is flushed.

    python benchmarks/adapter_flow.py [--jobs 20000] [--rounds 3] [--targets sink,echo,memory,sqlite]
                                      [--faces asyncio,uvloop,blocking] [--no-follow]

Makes jobs of about 200 bytes and takes each through two changes of state, fire and forget, then `flush`. Beside it, in
the same run and in turn: redis-py with pipelines of 64 SET on a Redis-compatible server that keeps nothing on disk.
`sink` is a stand-in for the daemon that only acknowledges, `echo` one that also tells whoever watches, so they show the
adapter's own limit, without and with a cache that follows. `cpu` is processor time a write, of the whole agent (the
call, encoding, sending, acknowledgements, the cache until it has heard of everything) and of the server. Each figure is
the best of its rounds. Nothing is asserted about time: machines differ, the ratio stays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from statesvc_client import aio, blocking  # noqa: E402 - found only now
from tests.redis import servers  # noqa: E402

YIELD_EVERY = 64
"""Calls between two moments in which an asyncio agent lets its loop run."""
PIPELINE = 64
RECORD = {"command": "python train.py --epochs 10", "nodeId": "node-1", "owner": "alice", "labels": {"team": "a"}}
STATES = ("RUNNING", "COMPLETED")
STAND_INS = ("sink", "echo")
_TICKS = os.sysconf("SC_CLK_TCK")


class Lap(NamedTuple):
    """One stretch of a round."""

    writes: int
    seconds: float
    agent_cpu: float
    server_cpu: float


class Watch:
    """Measures stretches of one agent and its server."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self._seconds = 0.0
        self.laps: dict[str, Lap] = {}
        self._begin()

    def _begin(self) -> None:
        self._since = (time.perf_counter(), time.process_time(), self._server_cpu())

    def _server_cpu(self) -> float:
        if self._server is None:
            return 0.0
        fields = Path(f"/proc/{self._server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def flushed(self) -> None:
        """Everything is acknowledged; what follows costs the processor but holds nobody up."""
        self._seconds = time.perf_counter() - self._since[0]

    def lap(self, name: str, writes: int) -> None:
        _, agent, server = self._since
        self.laps[name] = Lap(writes, self._seconds, time.process_time() - agent, self._server_cpu() - server)
        self._begin()


def job(number: int) -> dict[str, Any]:
    return {"uuid": f"job-{number:08}", "status": "PENDING", "name": f"training run {number}", **RECORD}


def updates(state: Any, jobs: int) -> Iterator[None]:
    for status in STATES:
        for number in range(jobs):
            state.update(f"job-{number:08}", status=status, pid=number)
            yield


def creates(state: Any, jobs: int) -> Iterator[None]:
    for number in range(jobs):
        state.create(job(number))
        yield


async def run_asyncio(options: dict[str, Any], jobs: int) -> dict[str, Lap]:
    async with aio.StateStore.connect(**options["store"]) as state:
        watch = Watch(options["pid"])
        for name, calls in (("create", creates), ("update", updates)):
            made = 0
            for _ in calls(state, jobs):
                made += 1
                if not made % YIELD_EVERY:
                    await asyncio.sleep(0)
            await state.flush(120)
            watch.flushed()
            await state.until(heard_of_all(state), 120)
            watch.lap(name, made)
        check(state, jobs)
    return watch.laps


def run_blocking(options: dict[str, Any], jobs: int) -> dict[str, Lap]:
    with blocking.StateStore.connect(**options["store"]) as state:
        watch = Watch(options["pid"])
        for name, calls in (("create", creates), ("update", updates)):
            made = sum(1 for _ in calls(state, jobs))
            state.flush(120)
            watch.flushed()
            state.until(heard_of_all(state), 120)
            watch.lap(name, made)
        check(state, jobs)
    return watch.laps


def heard_of_all(state: Any) -> Callable[[], bool]:
    """Whether the cache has heard of every write that was acknowledged."""
    images = state._desk.caches["job"].images  # noqa: SLF001 - nothing else tells
    return lambda: not images.guessed


def check(state: Any, jobs: int) -> None:
    counters = state.counters
    assert (counters.acked, counters.rejected, counters.queued) == (3 * jobs - counters.merged, 0, 0), counters
    assert all(state.get(f"job-{number:08}")["status"] == STATES[-1] for number in range(jobs))


def run_redis(server: servers.Server, jobs: int) -> dict[str, Lap]:
    import redis

    client = redis.Redis(unix_socket_path=server.socket_path)
    client.flushall()
    bodies = [(f"job-{number:08}", json.dumps(job(number)).encode()) for number in range(jobs)]
    watch = Watch(server.pid)
    for name, rounds in (("create", 1), ("update", len(STATES))):
        for _ in range(rounds):
            for start in range(0, jobs, PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for key, body in bodies[start : start + PIPELINE]:
                    pipeline.set(key, body)
                pipeline.execute()
        watch.flushed()
        watch.lap(name, jobs * rounds)
    client.close()
    return watch.laps


# --- the other side ------------------------------------------------------------------------------------------------


class Said(msgspec.Struct, rename="camel"):
    """What the stand-in reads of a request."""

    op: str
    seq: int = 0
    job_id: str = ""
    job: dict[str, Any] = {}


class StandIn(asyncio.Protocol):
    """Acknowledges whatever comes, one line for each piece that is read. With `tells` whoever watches is told of it."""

    tells = False
    watcher: Any = None
    untold: ClassVar[list[bytes]] = []
    records: ClassVar[dict[str, dict[str, Any]]] = {}
    decode_lines = staticmethod(msgspec.json.Decoder(Said).decode_lines)
    encode = staticmethod(msgspec.json.Encoder().encode)

    def __init__(self) -> None:
        self._rest = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not newline:
            return
        if b'"seq":' not in whole:
            self._answer(whole)
        elif self.tells:
            said = self.decode_lines(whole)
            self._transport.write(b'{"acked":%d,"success":true}\n' % said[-1].seq)
            self.untold.append(b"".join(map(self._event, said)))
            self._tell()
        else:
            last = int(whole[whole.rindex(b'"seq":') + 6 :].partition(b",")[0])
            self._transport.write(b'{"acked":%d,"success":true}\n' % last)

    def _answer(self, line: bytes) -> None:
        if b'"op":"hello"' in line:
            self._transport.write(b'{"success":true,"protocol":1,"epoch":"e","durability":"memory"}\n')
        else:
            self._transport.write(b'{"success":true,"jobs":[],"asOf":"e.1","cursor":"e.1"}\n')
        if b'"op":"watch"' in line:
            StandIn.watcher = self._transport
            self._tell()

    def _tell(self) -> None:
        if self.watcher is not None:
            self.watcher.write(b"".join(self.untold))
            self.untold.clear()

    def _event(self, said: Said) -> bytes:
        now = "2030-01-01T00:00:00.000000Z"
        before = self.records.get(said.job_id) or {"uid": "u" * 20, "revision": 0, "createdAt": now}
        record = {**before, **said.job, "revision": before["revision"] + 1, "updatedAt": now}
        self.records[said.job_id] = record
        event: dict[str, Any] = {
            "cursor": f"e.{said.seq}",
            "type": "updated",
            "kind": "job",
            "id": said.job_id,
            "at": now,
        }
        event |= {"revision": record["revision"], "uid": record["uid"], "record": record}
        return self.encode({"requestId": "", "event": event}) + b"\n"


def stand_in(path: str, *, tells: bool) -> None:
    import uvloop

    StandIn.tells = tells

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(StandIn, path)
        await server.serve_forever()

    uvloop.run(serve())


@contextmanager
def target(name: str) -> Iterator[dict[str, Any]]:
    """A daemon on an engine of its own, or the sink: where it is, and which process."""
    with tempfile.TemporaryDirectory(prefix="statesvc-") as folder:
        path = os.path.join(folder, "s")
        if name in STAND_INS:
            command = [sys.executable, __file__, "--stand-in", name, path]
        else:
            command = [sys.executable, "-m", "statesvc", "serve", "--backend", name, "--socket", path]
            command += ["--data", os.path.join(folder, "data")]
        with open(os.path.join(folder, "log"), "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        try:
            until_served(path)
            yield {"store": {"path": path, "follow": name != "sink"}, "pid": process.pid}
        finally:
            process.terminate()
            process.wait(30)


def environment() -> dict[str, str]:
    """Without settings of this machine's own, and with this very tree."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    return {**plain, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}


def until_served(path: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


# --- the table -----------------------------------------------------------------------------------------------------

Results = dict[str, list[dict[str, Lap]]]


def contestants(stack: ExitStack, given: argparse.Namespace) -> dict[str, Callable[[], dict[str, Lap]]]:
    server = stack.enter_context(servers.Server())
    runs: dict[str, Callable[[], dict[str, Lap]]] = {"redis-py, volatile": lambda: run_redis(server, given.jobs)}

    def on(name: str, face: str, loop: Any) -> dict[str, Lap]:
        with target(name) as options:
            options["store"]["follow"] &= not given.no_follow
            if face == "blocking":
                return run_blocking(options, given.jobs)
            with asyncio.Runner(loop_factory=loop) as runner:
                return runner.run(run_asyncio(options, given.jobs))

    for name in given.targets.split(","):
        for face in given.faces.split(","):
            loop = None
            if face == "uvloop":
                import uvloop

                loop = uvloop.new_event_loop
            runs[f"{name}, {face}"] = lambda name=name, face=face, loop=loop: on(name, face, loop)  # type: ignore[misc]
    return runs


def table(results: Results) -> Iterator[str]:
    yield f"{'':24}{'':8}{'a second':>10}{'of redis':>10}{'agent cpu us':>14}{'server cpu us':>14}"
    for stretch in ("create", "update"):
        laps = {name: [one[stretch] for one in rounds] for name, rounds in results.items()}
        rates = {name: max(lap.writes / lap.seconds for lap in taken) for name, taken in laps.items()}
        beside = next(iter(rates.values()))
        for name, taken in laps.items():
            agent = min(1e6 * lap.agent_cpu / lap.writes for lap in taken)
            server = min(1e6 * lap.server_cpu / lap.writes for lap in taken)
            yield f"{name:24}{stretch:8}{rates[name]:10.0f}{rates[name] / beside:10.2f}{agent:14.2f}{server:14.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", default="sink,echo,memory,sqlite")
    parser.add_argument("--faces", default="asyncio,blocking", help="asyncio, uvloop (the same on uvloop), blocking")
    parser.add_argument("--no-follow", action="store_true", help="do not follow changes: the cache as own writes tell")
    parser.add_argument("--stand-in", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stand_in:
        stand_in(given.stand_in[1], tells=given.stand_in[0] == "echo")
        return
    results: Results = {}
    with ExitStack() as stack:
        runs = contestants(stack, given)
        for _ in range(given.rounds):
            for name, run in runs.items():
                results.setdefault(name, []).append(run())
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
