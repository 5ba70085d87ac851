"""What a fleet's engine has to hold and to carry: memory, units of capacity and calls over the network, op by op.

    python benchmarks/capacity.py [--jobs 2000] [--engine redis|dynamodb]

One daemon on a server of its own, one client that numbers its writes. Jobs of about 200 bytes are made, read, listed,
claimed, changed, renewed and ended, one request at a time; what each of that costs is counted where it arrives. The
tables it prints are those of docs/FLEET.md.

Redis: memory is what the server says it uses, before and after; round trips are the commands it was sent from outside.
DynamoDB: a proxy in front of a played endpoint reads every request and reply, and counts as DynamoDB does: a unit to
write for each KiB of an item, two in a transaction, and one for each index entry that changes, two when it moves; a
unit to read for each 4 KiB, half of one where the read need not be consistent.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import math
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

import msgspec  # noqa: E402 - found only now, as all that follows

from statesvc import backends  # noqa: E402
from statesvc.backends.dynamodb.layout import INDEXES, KEYS, PK, SK  # noqa: E402
from statesvc.backends.port import LogKept  # noqa: E402
from statesvc.backends.redis.scripting import script  # noqa: E402
from statesvc.config.model import assemble  # noqa: E402
from statesvc.store.claims import Claims  # noqa: E402
from statesvc.store.store import Store  # noqa: E402
from statesvc.store.writes import Caller  # noqa: E402
from statesvc_client import wire  # noqa: E402
from tests.daemon.harness import Client, Daemon, until  # noqa: E402
from tests.dynamodb import servers as dynamodb  # noqa: E402
from tests.dynamodb.serving import Reply, Request  # noqa: E402
from tests.fleet.daemons import a_namespace, daemon, dynamodb_values  # noqa: E402
from tests.redis import servers as redis  # noqa: E402

LONG_TTL = 600.0
"""Of the leases: nothing of them is looked at while something else is counted."""

PAGE = 100
LABELS = 8
"""Of jobs by which the memory of a label is told: one is too little to measure."""

SETTLE_SECONDS = 2.0
"""After its start a daemon looks around once; that is nobody's op."""

KIB, READ_BYTES = 1024, 4096


class Step(NamedTuple):
    """An op that is done to every job, or a few times."""

    name: str
    request: Callable[[str], dict[str, Any]]
    times: int = 0
    """0: once for every job."""
    records: int = 1
    """What one of them does it to."""


def job(name: str) -> dict[str, Any]:
    command = "python -m train --config /srv/jobs/config.yml --epochs 20 --seed 7"
    return {"uuid": name, "status": "QUEUED", "command": command, "nodeId": f"node-{name[-1]}", "priority": 5}


def labelled(name: str) -> dict[str, Any]:
    return {**job(f"l-{name}"), "labels": {"team": "search"}}


def a_hundred(name: str) -> list[dict[str, Any]]:
    return [job(f"s-{name}-{number}") for number in range(PAGE)]


STEPS = (
    Step("create", lambda name: {"op": "create", "job": job(name)}),
    Step("create, with a label", lambda name: {"op": "create", "job": labelled(name)}),
    Step("get", lambda name: {"op": "get", "jobId": name}),
    Step("list, a page of 100", lambda _: {"op": "list", "filter": {"status": "QUEUED"}, "limit": PAGE}, times=5),
    Step("claim", lambda _: {"op": "claim", "filter": {}, "ttl": LONG_TTL}),
    Step("update", lambda name: {"op": "update", "jobId": name, "job": {"progress": 40}}),
    Step("renew", lambda name: {"op": "renew", "jobId": name, "token": 1}),
    Step("release", lambda name: {"op": "release", "jobId": name, "token": 1, "status": "COMPLETED"}),
    Step("sync of 100 new ones, each", lambda name: {"op": "sync", "jobs": a_hundred(name)}, times=2, records=PAGE),
    Step("history", lambda name: {"op": "history", "jobId": name}),
    Step("delete", lambda name: {"op": "delete", "jobId": f"l-{name}"}),
)
NUMBERED = frozenset({"create", "claim", "update", "release", "delete"})


class Driver:
    """A client that does one thing after the other."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = Client(daemon.socket, 60.0)
        self._client.hello("capacity")
        self._seq = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] in NUMBERED:
            self._seq += 1
            request = {**request, "seq": self._seq, "floor": self._seq}
        self._client.send(request)
        reply = self._client.reply()
        assert reply["success"], (request, reply)
        return reply

    def close(self) -> None:
        self._client.close()


class FollowedDriver(Driver):
    """The same, and the log is followed up to each write before the next one: on a busy machine several of them would
    be read in one go."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        self._watcher = Client(daemon.socket, 60.0)
        assert self._watcher.ask("watch")["success"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        reply = super().ask(request)
        events = len(request["jobs"]) if request["op"] == "sync" else int(request["op"] in NUMBERED)
        for _ in range(events):
            assert "event" in self._watcher.reply()
        return reply

    def close(self) -> None:
        self._watcher.close()
        super().close()


def names_of(jobs: int) -> list[str]:
    return [f"job-{number:06}" for number in range(jobs)]


# --- Redis -----------------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """Bytes."""

    waiting: float
    ended: float
    label: float
    entry: float


class Trips(NamedTuple):
    """Round trips of one op: of the request itself, and of the daemon that follows the log."""

    own: float
    following: float


class Monitor:
    """What a server is sent from outside, as MONITOR shows it; what scripts do inside is left out."""

    def __init__(self, server: redis.Server, namespace: str) -> None:
        self._server = server
        self._meta = f'"{{{namespace}}}"'
        self._scripts = {script(path.stem).digest: path.stem for path in _script_files()}
        self.seen: Counter[str] = Counter()
        self._marks = 0
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._socket.makefile("r", encoding="utf-8", errors="replace") as lines:
            try:
                for line in lines:
                    self._take(line)
            except OSError:
                return

    def _take(self, line: str) -> None:
        found = re.match(r'\+[\d.]+ \[\d+ (\S+)\] "(\w+)" ?(.*)', line)
        if not found or found[1] == "lua":
            return
        command, rest = found[2].upper(), found[3]
        if command == "ECHO":
            self._marks += 1
        elif command == "EVALSHA":
            self.seen[self._scripts.get(rest.split('"')[1], "script")] += 1
        elif command == "HMGET" and rest.startswith(self._meta):
            self.seen["meta"] += 1
        elif ":r:_statesvc" in rest or '"_sweeper"' in rest:
            self.seen["upkeep"] += 1
        else:
            self.seen[command] += 1

    def catch_up(self) -> None:
        """Wait until everything is seen that the server was sent so far."""
        before = self._marks
        self._server.say("ECHO", "mark")
        until(lambda: self._marks > before, "the last lines of MONITOR")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


def _script_files() -> Iterator[Path]:
    folder = Path(__file__).parents[1] / "statesvc" / "backends" / "redis" / "scripts"
    return (path for path in folder.glob("*.lua") if path.stem not in {"prelude", "changes"})


def trips(seen: Counter[str], times: int, *, writes: bool) -> Trips:
    """Every plain read brings the namespace's hash along in the same round trip; what is left are looks at it alone."""
    scripts = sum(seen[path.stem] for path in _script_files())
    reads = seen["HMGET"]
    looks = seen["meta"] - reads - seen["XRANGE"] - seen["upkeep"]
    following = seen["XREAD"] + seen["XRANGE"] + looks
    if writes:
        return Trips((scripts + reads) / times, following / times)
    return Trips((scripts + reads + looks) / times, 0.0)


def measure_redis(jobs: int) -> tuple[Memory, dict[str, Trips]]:
    namespace = a_namespace()
    with tempfile.TemporaryDirectory() as folder, redis.Server() as server:
        values = server.settings(namespace=namespace)
        with daemon(Path(folder) / "d", "redis", values) as served:
            served.serving()
            time.sleep(SETTLE_SECONDS)
            moved = _moved_redis(server, namespace, served, jobs)
        memory = _memory(server, values, jobs)
    return memory, moved


def _moved_redis(server: redis.Server, namespace: str, served: Daemon, jobs: int) -> dict[str, Trips]:
    """A few jobs, one by one: their calls are counted, their memory is not."""
    driver, monitor = FollowedDriver(served), Monitor(server, namespace)
    found: dict[str, Trips] = {}
    names = names_of(min(jobs, 100))
    try:
        for step in STEPS:
            before = monitor.seen.copy()
            times = step.times or len(names)
            for number in range(times):
                driver.ask(step.request(names[number]))
            monitor.catch_up()
            writes = step.request("x")["op"] not in {"get", "list", "history"}
            found[step.name] = trips(monitor.seen - before, times * step.records, writes=writes)
    finally:
        driver.close()
        monitor.close()
    return found


def _memory(server: redis.Server, reached: dict[str, Any], jobs: int) -> Memory:
    """Without daemons, and each store on the server alone: tables that grow in steps must not be another's."""

    def filled(make: Callable[[str], dict[str, Any]], *, whole_life: bool = False) -> tuple[float, float]:
        server.say("FLUSHALL", "SYNC")
        values = {**reached, "backend": "redis", "storage.redis.namespace": a_namespace()}
        return asyncio.run(_filled(server, values, [make(name) for name in names_of(jobs)], whole_life=whole_life))

    filled(job, whole_life=True)  # the server learns the scripts, once
    waiting, _ = filled(job)
    ended, entry = filled(job, whole_life=True)
    with_labels, _ = filled(lambda name: job(name) | {"labels": {f"label-{each}": "value" for each in range(LABELS)}})
    return Memory(waiting, ended, (with_labels - waiting) / LABELS, entry)


async def _filled(
    server: redis.Server, values: dict[str, Any], jobs: list[dict[str, Any]], *, whole_life: bool
) -> tuple[float, float]:
    """Bytes a job, without its log, and bytes an entry of the log."""
    engine = backends.make(assemble(values))
    await engine.open()
    store, caller = Store(engine), Caller(said_hello=True, client="capacity", name="capacity")
    store.start()
    numbers = itertools.count(1)

    async def each(request: Callable[[str], dict[str, Any]]) -> None:
        for start in range(0, len(jobs), PAGE):
            requests = [request(each["uuid"]) | {"seq": next(numbers)} for each in jobs[start : start + PAGE]]
            await asyncio.gather(*(store.write(_decoded(one), caller) for one in requests))

    try:
        empty, by_name = _used(server), {each["uuid"]: each for each in jobs}
        await each(lambda name: {"op": "create", "job": by_name[name]})
        if whole_life:
            claims = Claims(store)
            for _ in jobs:
                claim = {"op": "claim", "filter": {}, "ttl": LONG_TTL, "seq": next(numbers)}
                await claims.claim(_decoded(claim), caller, set())
            await each(lambda name: {"op": "update", "jobId": name, "job": {"progress": 40}})
            await each(lambda name: {"op": "release", "jobId": name, "token": 1, "status": "COMPLETED"})
        entries, with_log = engine.measures()["logEntries"], _used(server)
        while await engine.compact(LogKept(since=2**62, most_bytes=0)):
            pass
        without_log = _used(server)
    finally:
        await store.stop()
        await engine.close()
    return (without_log - empty) / len(jobs), (with_log - without_log) / entries


def _decoded(request: dict[str, Any]) -> Any:
    return wire.decode_request(msgspec.json.encode(request), wire.Limits())


def _used(server: redis.Server) -> int:
    """Bytes in use, once what is being freed in the background is gone; without buffers, which come and go."""
    until(lambda: _info(server, "lazyfree_pending_objects") == 0, "the server to rest")
    return _info(server, "used_memory") - _info(server, "mem_clients_normal")


def _info(server: redis.Server, name: str) -> int:
    found = re.search(rf"^{name}:(\d+)".encode(), server.say("INFO", "memory"), re.MULTILINE)
    assert found, name
    return int(found[1])


# --- DynamoDB --------------------------------------------------------------------------------------------------------


class Units(NamedTuple):
    """What was asked of DynamoDB for something."""

    calls: float = 0.0
    read: float = 0.0
    write: float = 0.0

    def plus(self, other: Units) -> Units:
        return Units(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Units) -> Units:
        return Units(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def over(self, times: float) -> Units:
        return Units(*(part / times for part in self))


Bill = dict[str, Units]
"""By what it was for: record, log, indexes, labels; upkeep and registry are nobody's op."""

UPKEEP = ("upkeep", "registry")


class Meter(dynamodb.TroubledEndpoint):
    """Passes everything on, and counts what it costs."""

    def __init__(self, upstream: str) -> None:
        self._items: dict[tuple[str, str], dict[str, Any]] = {}
        self._bill: dict[str, Units] = defaultdict(Units)
        self._sizes: dict[str, list[int]] = defaultdict(list)
        self._lock = threading.Lock()
        super().__init__(upstream)

    def bill(self) -> Bill:
        with self._lock:
            return dict(self._bill)

    async def _pass(self, request: Request) -> Reply:
        reply = await super()._pass(request)
        if reply.status == 200:
            with self._lock:
                self._count(request.operation, msgspec.json.decode(request.body), msgspec.json.decode(reply.body))
        return reply

    @property
    def sizes(self) -> dict[str, float]:
        """Bytes of an item, by what it is for: the mean of those written in transactions."""
        with self._lock:
            return {what: sum(each) / len(each) for what, each in self._sizes.items()}

    def _charge(self, what: str, *, read: float = 0.0, write: float = 0.0, calls: float = 0.0) -> None:
        self._bill[what] = self._bill[what].plus(Units(calls, read, write))

    def _count(self, operation: str, asked: dict[str, Any], told: dict[str, Any]) -> None:
        match operation:
            case "TransactWriteItems":
                kinds = [self._wrote(*next(iter(action.items())), 2) for action in asked["TransactItems"]]
                self._charge(next((each for each in kinds if each != "upkeep"), "upkeep"), calls=1)
            case "PutItem" | "DeleteItem":
                self._charge(self._wrote(operation.removesuffix("Item"), asked, 1), calls=1)
            case "UpdateItem":
                self._charge(_what(asked["TableName"], asked["Key"]), write=1, calls=1)
            case "BatchWriteItem":
                self._batch_written(asked["RequestItems"])
            case "BatchGetItem":
                self._fetched(asked["RequestItems"], told)
            case "GetItem":
                self._charge(_what(asked["TableName"], asked["Key"]), read=_to_read([told.get("Item") or {}]), calls=1)
            case "Query" | "Scan":
                self._walked(asked, told)

    def _wrote(self, verb: str, request: dict[str, Any], factor: int) -> str:
        """Charge the table and its indexes for one write."""
        table = request["TableName"]
        new = request.get("Item")
        key = new or request["Key"]
        what, place = _what(table, key), (table, _place(key))
        old = self._items.pop(place, None)
        if verb == "Put" and new is not None:
            self._items[place] = new
            self._sizes[what].append(_size(new))
        size = max(_size(old or {}), _size(new or {}))
        self._charge(what, write=factor * max(1, math.ceil(size / KIB)))
        moved = sum(_index_writes(old or {}, new or {}, shape.hash, shape.range) for shape in INDEXES)
        if moved:
            self._charge("indexes" if what == "record" else what, write=moved)
        return what

    def _batch_written(self, tables: dict[str, Any]) -> None:
        for table, requests in tables.items():
            for each in requests:
                ((verb, request),) = each.items()
                what = self._wrote(verb.removesuffix("Request"), {"TableName": table, **request}, 1)
            self._charge(what, calls=1)

    def _fetched(self, tables: dict[str, Any], told: dict[str, Any]) -> None:
        charged: set[str] = set()
        for table, wanted in tables.items():
            found = {_place(item): item for item in told.get("Responses", {}).get(table, [])}
            for key in wanted["Keys"]:
                what = _what(table, key)
                charged.add(what)
                self._charge(what, read=_to_read([found.get(_place(key), {})]))
        self._charge(next((each for each in charged if each not in UPKEEP), "upkeep"), calls=1)

    def _walked(self, asked: dict[str, Any], told: dict[str, Any]) -> None:
        values = asked.get("ExpressionAttributeValues", {})
        if "IndexName" in asked:
            what = "indexes"
        else:
            pk = next((value["S"] for name, value in values.items() if name in {":lane", ":registry", ":trait"}), "")
            what = _what("", {PK: {"S": pk}})
        share = 1.0 if asked.get("ConsistentRead") else 0.5
        self._charge(what, read=share * _to_read(told.get("Items", [])), calls=1)


def _place(item: dict[str, Any]) -> str:
    if PK in item:
        return f"{item[PK]['S']}\n{item.get(SK, {}).get('S', '')}"
    return str((item.get("jobId") or item["job_uuid"])["S"])


def _what(_table: str, item: dict[str, Any]) -> str:
    """What an item is for."""
    pk = item.get(PK, {}).get("S", "")
    if pk.startswith(("r#_statesvc#", "r#lock#_sweeper", "x#lock#")):
        return "upkeep"
    if pk == "lanes":
        return "registry"
    return {"l": "log", "x": "labels"}.get(pk.partition("#")[0], "record")


def _index_writes(old: dict[str, Any], new: dict[str, Any], hash: str, range: str) -> int:
    before, after = (
        [item[name] for name in (hash, range)] if {hash, range} <= item.keys() else None for item in (old, new)
    )
    if before is None or after is None:
        return int(before is not after)
    if before != after:
        return 2
    return int(hash == "walk" and old.get(KEYS) != new.get(KEYS))


def _size(item: dict[str, Any]) -> int:
    """As DynamoDB counts: names and values, numbers by two digits a byte."""
    total = 0
    for name, value in item.items():
        ((kind, held),) = value.items()
        if kind == "B":
            length = len(base64.b64decode(held))
        else:
            length = len(held) // 2 + 2 if kind == "N" else len(str(held).encode())
        total += len(name.encode()) + length
    return total


def _to_read(items: list[dict[str, Any]]) -> int:
    return max(1, math.ceil(sum(map(_size, items)) / READ_BYTES))


class Cost(NamedTuple):
    """What everything took."""

    bills: dict[str, Bill]
    """By op."""
    alone: Units
    """Of one daemon, a second, while nothing is asked of it."""
    waiting: Units
    """The same while a record waits for a time."""
    beside: Units
    """The same of one beside it, which has no duties."""
    followed: Units
    """Of another daemon, for one write of this one."""
    sizes: dict[str, float]


@contextmanager
def metered(folder: Path, values: dict[str, Any], upstream: str) -> Iterator[tuple[Daemon, Meter]]:
    env = dynamodb.environment()
    with Meter(upstream) as meter:
        reached = {**values, "storage.dynamodb.endpoint": meter.url}
        with daemon(folder, "dynamodb", reached, env=env) as served:
            yield served.serving(), meter


def measure_dynamodb(jobs: int, idle_seconds: float = 10.0) -> Cost:
    os.environ.update(dynamodb.environment())
    with tempfile.TemporaryDirectory() as name, dynamodb.moto() as server:
        folder = Path(name)
        values = dynamodb_values(server.url)
        with metered(folder / "a", values, server.url) as (first, meter):
            time.sleep(SETTLE_SECONDS)
            bills = _billed(first, meter, names_of(jobs))
            sizes = meter.sizes
            alone = _idle(meter, idle_seconds)
            _one_waits(first)
            waiting = _idle(meter, idle_seconds)
            with metered(folder / "b", values, server.url) as (_, other):
                time.sleep(SETTLE_SECONDS)
                beside = _idle(other, idle_seconds)
                followed = _followed(first, other, beside, jobs)
    return Cost(bills, alone, waiting, beside, followed, sizes)


def _billed(served: Daemon, meter: Meter, names: list[str]) -> dict[str, Bill]:
    driver = Driver(served)
    bills: dict[str, Bill] = {}
    for step in STEPS:
        before, times = meter.bill(), step.times or len(names)
        for number in range(times):
            driver.ask(step.request(names[number]))
        bills[step.name] = _difference(meter.bill(), before, times * step.records)
    driver.close()
    return bills


def _difference(after: Bill, before: Bill, times: float) -> Bill:
    return {what: units.minus(before.get(what, Units())).over(times) for what, units in after.items()}


def _total(bill: Bill) -> Units:
    found = Units()
    for what, units in bill.items():
        if what not in UPKEEP:
            found = found.plus(units)
    return found


def _idle(meter: Meter, seconds: float) -> Units:
    before, began = meter.bill(), time.monotonic()
    time.sleep(seconds)
    spent = _difference(meter.bill(), before, time.monotonic() - began)
    found = Units()
    for units in spent.values():
        found = found.plus(units)
    return found


def _one_waits(served: Daemon) -> None:
    driver = Driver(served)
    driver.ask({"op": "create", "job": {**job("later"), "status": "SCHEDULED", "scheduledAt": "2199-01-01T00:00:00Z"}})
    driver.close()
    time.sleep(SETTLE_SECONDS)


def _followed(writer: Daemon, other: Meter, idle: Units, jobs: int) -> Units:
    """One write at a time, so that none shares a read with another: the most it can cost."""
    driver = Driver(writer)
    before, began = other.bill(), time.monotonic()
    for name in names_of(jobs):
        driver.ask({"op": "create", "job": job(f"f-{name}")})
    time.sleep(1.5)  # until the other has read it all
    spent, seconds = _difference(other.bill(), before, 1.0), time.monotonic() - began
    driver.close()
    found = Units()
    for units in spent.values():
        found = found.plus(units)
    return found.minus(idle.over(1 / seconds)).over(jobs)


# --- tables ----------------------------------------------------------------------------------------------------------


def shown(number: float) -> str:
    """As people read it: round numbers where they are meant to be, one digit behind the point elsewhere."""
    return f"{abs(round(number))}" if abs(number - round(number)) < 0.05 else f"{number:.1f}"


def show_redis(memory: Memory, moved: dict[str, Trips]) -> None:
    print("\n| in Redis | bytes |\n|---|---|")
    print(f"| a job that waits | {memory.waiting:.0f} |")
    print(f"| a job that has ended | {memory.ended:.0f} |")
    print(f"| a label | {memory.label:.0f} |")
    print(f"| an entry of the log | {memory.entry:.0f} |")
    print("\n| op | round trips | to follow the log, in every daemon |\n|---|---|---|")
    for name, each in moved.items():
        print(f"| {name} | {shown(each.own)} | {shown(each.following)} |")


def show_dynamodb(cost: Cost) -> None:
    print("\n| op | calls | units to read | units to write | written for |\n|---|---|---|---|---|")
    for name, bill in cost.bills.items():
        total = _total(bill)
        parts = ", ".join(
            f"{what} {shown(bill[what].write)}"
            for what in ("record", "log", "indexes", "labels")
            if what in bill and bill[what].write >= 0.05
        )
        print(f"| {name} | {shown(total.calls)} | {shown(total.read)} | {shown(total.write)} | {parts} |")
    print("\n| in every daemon | calls | units to read | units to write |\n|---|---|---|---|")
    for name, units in (
        ("a second of nothing, the one with the duties", cost.alone),
        ("the same, while something waits for a time", cost.waiting),
        ("a second of nothing, any other", cost.beside),
        ("a write by another daemon", cost.followed),
    ):
        print(f"| {name} | {shown(units.calls)} | {shown(units.read)} | {shown(units.write)} |")
    print("\n| an item of | bytes |\n|---|---|")
    for what in ("record", "log", "labels"):
        print(f"| {what} | {cost.sizes[what]:.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("redis", "dynamodb"))
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds for which an idle daemon is watched")
    asked = parser.parse_args()
    if asked.engine != "dynamodb":
        show_redis(*measure_redis(asked.jobs))
    if asked.engine != "redis":
        show_dynamodb(measure_dynamodb(min(asked.jobs, 200), asked.idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
