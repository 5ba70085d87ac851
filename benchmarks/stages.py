"""Where the time of a request goes: what each stage of the hot path takes, in microseconds of processor time.

    python -m benchmarks.stages [--requests N] [--rounds N] [-o json]

Owns driving each stage with what the stage before it made. Must not know how long anything should take: that is what
the benchmarks are for. The whole, driven through a real connection without a socket, stands beside the stages. They are
warmer alone, so their sum is less than the whole; what is left of it is dispatch and the line of replies. What was done
about each is in docs/PROFILES.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench import frames
from benchmarks.bench.lines import Talker
from benchmarks.counts.driving import connected
from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Write
from statesvc.server import COLLECTOR
from statesvc.store import marks, records
from statesvc.store.queueing import Times
from statesvc.store.store import Store
from statesvc.store.writes import Caller, Subject
from statesvc_client import wire
from statesvc_client.framing import LineSplitter

PIPELINE = 64
CALLER = Caller(said_hello=True, client="stages")
LIMITS = wire.Limits()

Costs = dict[str, float]
"""Microseconds a request, by stage."""


def numbered(heads: Iterable[bytes], first: int = 1) -> list[bytes]:
    """Whole frames, with the numbers a client of the adapter's kind gives them."""
    return [b'%b,"seq":%d,"floor":%d}' % (head, first + at, first) for at, head in enumerate(heads)]


class Stages:
    """One round: every stage on its own, all on the same requests."""

    def __init__(self, requests: int) -> None:
        self._names = frames.names("job", 0, requests)
        self.costs: Costs = {}

    def run(self) -> Costs:
        store = Store(MemoryEngine())
        creates = numbered(frames.creates(self._names))
        self._timed("framing", LineSplitter(LIMITS.frame_bytes).feed, _pipelines(creates), PIPELINE)
        rows = self._writes("create", store, creates, {})
        updates = numbered(map(frames.update, self._names), len(creates) + 1)
        self._writes("update", store, updates, {write.row.id: write for write in rows})
        gets = [head + b"}" for head in map(frames.get, self._names)]
        self._timed("get: decode", _decoded, gets)
        self._timed("reply", lambda write: wire.record_line("1", "job", write.row.body), rows)
        return self.costs

    def _writes(self, op: str, store: Store, sent: Sequence[bytes], before: dict[str, Write]) -> list[Write]:
        requests = self._timed(f"{op}: decode", _decoded, sent)
        about = self._timed(f"{op}: address", store.addressed, requests)
        subjects = [Subject(kind, key[1], before[key[1]].row if before else None) for key, _, kind in about]
        asked = list(zip(requests, (fields for _, fields, _ in about), subjects, strict=True))
        made = self._timed(f"{op}: decide", lambda each: _decided(store, *each), asked)
        shown = [records.decode(write.row.body) for write in made]
        kind = about[0][2]
        self._timed(
            f"{op}: of that, index keys", lambda each: records.index_keys(kind, each, Times(1, 1), None, 1), shown
        )
        self._timed(f"{op}: of that, encode", records.encode, shown)
        self._timed(f"{op}: of that, marks", lambda each: _marked(*each), list(zip(requests, subjects, strict=True)))
        self._timed(f"{op}: pending", lambda write: store.commits.add((write,)), made)
        asyncio.run(self._commit(f"{op}: commit", store, made))
        return made

    async def _commit(self, stage: str, store: Store, made: Sequence[Write]) -> None:
        """In order, because a commit builds on what came before it: so it is done once."""
        begun = time.process_time()
        for start in range(0, len(made), PIPELINE):
            await store.engine.commit([(write,) for write in made[start : start + PIPELINE]])
        self.costs[stage] = (time.process_time() - begun) / len(made) * 1e6

    def _timed(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], each: int = 1) -> list[Any]:
        begun = time.process_time()
        done = [work(item) for item in items]
        self.costs[stage] = (time.process_time() - begun) / len(items) / each * 1e6
        return done


def _decoded(frame: bytes) -> wire.AnyRequest:
    return wire.decode_request(frame, LIMITS)


def _decided(store: Store, request: Any, fields: wire.Fields, subject: Subject) -> Write | int | None:
    return store.decide(request, fields, subject, CALLER, replayed=False)


def _marked(request: Any, subject: Subject) -> bytes:
    return marks.with_write(subject.row.marks if subject.row else b"", CALLER.client, request, 2, LIMITS.marks_clients)


def _pipelines(sent: Sequence[bytes]) -> list[bytes]:
    return [
        b"".join(frame + b"\n" for frame in sent[start : start + PIPELINE]) for start in range(0, len(sent), PIPELINE)
    ]


async def whole(backend: str, requests: int) -> Costs:
    """What a request takes from bytes in to bytes out, on the loop's thread and all others."""
    costs: Costs = {}
    names = frames.names("whole", 0, requests)
    with tempfile.TemporaryDirectory() as folder:
        async with connected(backend, Path(folder)) as client:
            for op, heads in (
                ("create", frames.creates(names)),
                ("update", [frames.update(name) for name in names]),
                ("get", [frames.get(name) for name in names]),
            ):
                batches = client.writes(heads, PIPELINE) if op != "get" else Talker.reads(heads, PIPELINE)
                begun = time.process_time()
                for batch in batches:
                    await client.exchange(batch)
                costs[f"{op}: the whole, {backend}"] = (time.process_time() - begun) / requests * 1e6
    return costs


def measured(requests: int, rounds: int) -> Costs:
    """The best of some rounds."""
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECTOR)
    best: Costs = {}
    for _ in range(rounds):
        found = Stages(requests).run()
        for backend in ("memory", "sqlite"):
            found |= uvloop.run(whole(backend, requests))
        best = {stage: min(cost, best.get(stage, cost)) for stage, cost in found.items()}
    gc.set_threshold(*usual)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    asked = parser.parse_args()
    costs = measured(asked.requests, asked.rounds)
    if asked.output == "json":
        print(json.dumps(costs, indent=1))
    else:
        print("\n".join(f"{stage:<36} {cost:8.2f} us" for stage, cost in sorted(costs.items(), key=_op_first)))


def _op_first(item: tuple[str, float]) -> str:
    return item[0].partition(":")[0]


if __name__ == "__main__":
    main()
