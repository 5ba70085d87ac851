"""The Redis engine beside redis-py on the same server: the same rows, by the same script, in the same pipelines.

    python benchmarks/redis_engine.py [--jobs 4096] [--rounds 5] [--pipeline 64] [--numbered]

One connection to a daemon sends prepared frames in pipelines: creates, updates that change the status, gets. redis-py
with hiredis runs the daemon's own commit script by EVALSHA, a call for each write, with arguments that were made before
the clock runs, in pipelines of the same length; its gets are HGETs of the stored rows. Both write records, indexes, log
and histories, each into a namespace of its own. They take turns every few pipelines, so that both meet the same other
work on the machine. `--numbered` lets the client say who it is and number its writes, which then leave their marks in
the rows, on both sides.

Prints requests a second in the best and in the median turn, the ratio of each to redis-py, and the processor time a
request takes in the daemon, the server and the client.
redis-py decides nothing: rows, conditions and events were made for it. A third line shows what it reaches with as many
units a call as a daemon puts into one, which is as fast as the server can be made to go.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

import msgspec  # noqa: E402 - found only now, as all that follows
import redis  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.bench.lines import RECEIVE_BYTES, reach  # noqa: E402
from statesvc import backends  # noqa: E402
from statesvc.backends.memory import MemoryEngine  # noqa: E402
from statesvc.backends.port import Row, Write  # noqa: E402
from statesvc.backends.redis import commits, guesses, rows, scripting  # noqa: E402
from statesvc.backends.redis.meta import FORMAT  # noqa: E402
from statesvc.backends.redis.names import Names, namespace_key  # noqa: E402
from statesvc.config.model import assemble  # noqa: E402
from statesvc.store.store import Store  # noqa: E402
from statesvc.store.writes import Caller, Subject  # noqa: E402
from statesvc_client import wire  # noqa: E402
from tests.fleet.daemons import daemon  # noqa: E402
from tests.redis.servers import HOST, Server  # noqa: E402

OPS = ("create", "update", "get")
CLIENT = "bench"

Frame = dict[str, Any]


class Work(NamedTuple):
    """The jobs of one round: what is sent for each, op by op."""

    creates: list[Frame]
    updates: list[Frame]
    gets: list[Frame]


def work_of(round_: int, jobs: int, seqs: Iterator[int] | None) -> Work:
    """Jobs of about 200 bytes. With `seqs` every write has a number."""

    def numbered(frame: Frame) -> Frame:
        if seqs is None:
            return frame
        seq = next(seqs)
        return {**frame, "seq": seq, "floor": seq}

    ids = [f"job-{round_:03d}-{number:08d}" for number in range(jobs)]
    return Work(
        [numbered({"op": "create", "requestId": str(at), "job": job(name, at)}) for at, name in enumerate(ids)],
        [
            numbered({"op": "update", "requestId": str(at), "jobId": name, "job": {"status": "RUNNING", "pid": at}})
            for at, name in enumerate(ids)
        ],
        [{"op": "get", "requestId": str(at), "jobId": name} for at, name in enumerate(ids)],
    )


def job(name: str, number: int) -> Frame:
    return {
        "uuid": name,
        "status": "PENDING",
        "command": "python",
        "args": ["train.py", "--epochs", str(number)],
        "nodeId": f"node-{number % 16}",
        "labels": {"team": "a"},
    }


class Side(Protocol):
    """Something that can be sent the work."""

    name: str

    def prepare(self, work: Work) -> None:
        """Make everything that can be made before the clock runs."""

    def turns(self, op: str) -> list[Callable[[], None]]:
        """All of one op, to be sent and answered turn by turn."""


TURN = 4
"""Pipelines before the other side has its turn."""


def in_pipelines(items: Sequence[Any], length: int) -> Iterable[Sequence[Any]]:
    return (items[at : at + length] for at in range(0, len(items), length))


# --- the daemon ------------------------------------------------------------------------------------------------------


class Daemon:
    """One connection with prepared bytes."""

    name = "statesvc"

    def __init__(self, path: Path, pipeline: int, *, numbered: bool) -> None:
        self._pipeline = pipeline
        self._sock = reach(str(path))
        self._prepared: dict[str, list[tuple[bytes, int]]] = {}
        self._exchange(encoded([{"op": "hello", **({"client": CLIENT} if numbered else {})}]), 1)

    def prepare(self, work: Work) -> None:
        self._prepared = {
            op: [(encoded(some), len(some)) for some in in_pipelines(frames, self._pipeline)]
            for op, frames in zip(OPS, work, strict=True)
        }

    def turns(self, op: str) -> list[Callable[[], None]]:
        return [partial(self._run, some) for some in in_pipelines(self._prepared[op], TURN)]

    def _run(self, pipelines: Sequence[tuple[bytes, int]]) -> None:
        for sent, count in pipelines:
            self._exchange(sent, count)

    def _exchange(self, sent: bytes, count: int) -> None:
        self._sock.sendall(sent)
        lines = 0
        while lines < count:
            data = self._sock.recv(RECEIVE_BYTES)
            if not data or b'"success":false' in data:
                raise SystemExit(f"the daemon refused: {data[:400]!r}")
            lines += data.count(b"\n")

    def close(self) -> None:
        self._sock.close()


def encoded(frames: Sequence[Frame]) -> bytes:
    return b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)


# --- redis-py --------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A namespace that is there, and the epoch it is in."""

    key: bytes
    names: Names
    epoch: str


async def make(values: dict[str, Any]) -> None:
    """Make a namespace as a daemon does."""
    engine = backends.make(assemble({"backend": "redis", **values}))
    await engine.open()
    await engine.close()


def place_of(server: Server, namespace: str) -> Place:
    uvloop.run(make(server.settings(namespace=namespace)))
    key = namespace_key(namespace)
    generation, epoch = server.say("HMGET", key, "generation", "epoch")
    return Place(key, Names(key, generation), epoch.decode())


class Deciding:
    """Makes the writes that a daemon would make of the same requests."""

    def __init__(self, *, numbered: bool) -> None:
        # Its engine is never asked: decisions need rows, and those are at hand.
        self._store = Store(MemoryEngine())
        self._caller = Caller(said_hello=True, client=CLIENT if numbered else "")
        self._rows: dict[str, Row] = {}

    def write(self, request: Any) -> Write:
        key, fields, kind = self._store.addressed(request)
        subject = Subject(kind, key[1], self._rows.get(key[1]))
        made = self._store.decide(request, fields, subject, self._caller, replayed=False)
        if not isinstance(made, Write):
            raise SystemExit(f"{request} was not taken")
        before = self._rows.get(key[1])
        self._rows[key[1]] = made.row
        return made._replace(basis=before)


def digest(row: Row) -> str:
    return guesses.digest_of(rows.pack(row))


class RedisPy:
    """redis-py with hiredis: pipelines of commands, prepared as far as its interface lets one."""

    def __init__(self, port: int, place: Place, pipeline: int, units: int, *, numbered: bool) -> None:
        self.name = "redis-py" if units == 1 else f"redis-py, {units} units a call"
        self._client: Any = redis.Redis(host=HOST, port=port)
        self._place = place
        self._pipeline = pipeline
        self._units = units
        self._numbered = numbered
        self._script = scripting.script("commit")
        self._client.script_load(self._script.text)
        self._prepared: dict[str, list[tuple[Any, ...]]] = {}

    def prepare(self, work: Work) -> None:
        deciding = Deciding(numbered=self._numbered)
        limits = wire.Limits()
        for op, frames in zip(("create", "update"), work, strict=False):
            requests = (wire.decode_request(msgspec.json.encode(frame), limits) for frame in frames)
            self._prepared[op] = self._calls([deciding.write(request) for request in requests])
        hash_key = self._place.names.rows("job")
        self._prepared["get"] = [("HGET", hash_key, frame["jobId"]) for frame in work.gets]

    def _calls(self, writes: Sequence[Write]) -> list[tuple[Any, ...]]:
        head = (FORMAT, self._place.epoch, 0)
        return [
            self._script.short(
                self._place.key, *head, *commits.Call(commits.parts([(write,) for write in some], digest)).arguments
            )
            for some in in_pipelines(writes, self._units)
        ]

    def turns(self, op: str) -> list[Callable[[], None]]:
        length = self._pipeline if op == "get" else max(1, self._pipeline // self._units)
        return [partial(self._run, op, some, length) for some in in_pipelines(self._prepared[op], TURN * length)]

    def _run(self, op: str, commands: Sequence[tuple[Any, ...]], length: int) -> None:
        for some in in_pipelines(commands, length):
            pipe = self._client.pipeline(transaction=False)
            for command in some:
                pipe.execute_command(*command)
            answers = pipe.execute()
            taken = (answer is not None if op == "get" else b"0" not in answer[2] for answer in answers)
            if not all(taken):
                raise SystemExit(f"the script refused: {answers[0]!r}")

    def close(self) -> None:
        self._client.close()


# --- measuring -------------------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """Seconds of one turn: by the wall, and of processors."""

    wall: float
    daemon: float
    server: float
    client: float


def processor_seconds(pid: int) -> float:
    """What the main thread of a process has used; it does nearly all the work in either of them."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measured(run: Callable[[], None], daemon_pid: int, server_pid: int) -> Spent:
    used = processor_seconds(daemon_pid), processor_seconds(server_pid)
    client, began = time.process_time(), time.perf_counter()
    run()
    wall = time.perf_counter() - began
    return Spent(
        wall,
        processor_seconds(daemon_pid) - used[0],
        processor_seconds(server_pid) - used[1],
        time.process_time() - client,
    )


def walls(spent: Sequence[Spent]) -> tuple[float, float]:
    """The best and the median one."""
    found = [each.wall for each in spent]
    return min(found), statistics.median(found)


def shown(name: str, spent: Sequence[Spent], count: int, reference: Sequence[Spent]) -> str:
    (best, median), (best_there, median_there) = walls(spent), walls(reference)
    daemon_, server, client = (statistics.median(each[at] for each in spent) / count * 1e6 for at in (1, 2, 3))
    return (
        f"  {name:<28}best {count / best:>8,.0f}/s {best_there / best:>5.2f}"
        f"   median {count / median:>8,.0f}/s {median_there / median:>5.2f}"
        f"   daemon {daemon_:>4.0f}   server {server:>4.0f}   client {client:>4.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4096, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pipeline", type=int, default=64)
    parser.add_argument("--numbered", action="store_true", help="writes leave their marks")
    given = parser.parse_args()
    given.jobs -= given.jobs % (TURN * given.pipeline)  # whole turns, so that all of them are alike
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(Server())
        served = stack.enter_context(daemon(folder / "d", "redis", server.settings(namespace="daemon"))).serving()
        sides: list[Daemon | RedisPy] = [Daemon(served.socket, given.pipeline, numbered=given.numbered)]
        for units in (1, given.pipeline):
            place = place_of(server, f"redis-py-{units}")
            sides.append(RedisPy(server.port, place, given.pipeline, units, numbered=given.numbered))
        for side in sides:
            stack.callback(side.close)
        spent = run_rounds(sides, given.rounds, given.jobs, served.pid, server.pid, numbered=given.numbered)
    count = TURN * given.pipeline
    print(f"{given.jobs} jobs a round, {given.rounds} rounds, pipelines of {given.pipeline}, {count} requests a turn;")
    print("ratios to redis-py; microseconds of processor time a request, median")
    for op in OPS:
        print(op)
        for side in sides:
            print(shown(side.name, spent[side.name, op], count, spent[sides[1].name, op]))


def run_rounds(
    sides: Sequence[Side], rounds: int, jobs: int, daemon_pid: int, server_pid: int, *, numbered: bool
) -> dict[tuple[str, str], list[Spent]]:
    spent: dict[tuple[str, str], list[Spent]] = {(side.name, op): [] for side in sides for op in OPS}
    seqs = itertools.count(1) if numbered else None
    for number in range(rounds):
        work = work_of(number, jobs, seqs)
        for side in sides:
            side.prepare(work)
        for op in OPS:
            for turns in zip(*(side.turns(op) for side in sides), strict=True):
                for side, turn in zip(sides, turns, strict=True):
                    spent[side.name, op].append(measured(turn, daemon_pid, server_pid))
    return spent


if __name__ == "__main__":
    main()
