"""What well-behaved clients notice of the others: `python -m tests.faults.crowds [--seconds N] [--only ..] [-o json]`.

Owns the comparison: the median time of a victim's write and of its read with the attackers, with a burner in their
place that takes as much of the processor as they did, and alone; and what the daemon's memory and descriptors came to.
Must not know what an attacker does: that is in crowds_attackers.py.

    promise   with the attackers, neither median is more than twice what it is with the burner; the daemon's memory
              and descriptors stay within what the limits imply; who does nothing wrong is not thrown out; when they
              are gone, so are their descriptors

Times of one machine at one time: the three are measured in turn, again and again, and compared with each other alone.
"""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.daemon.harness import ROOT, SECONDS, Client, Daemon, environment, until
from tests.faults import program
from tests.faults.soak.sampling import sockets, taken

MIB = 1024 * 1024
FRAME = 10 * MIB
OUTPUT = MIB
"""The default limits of a frame and of the output that waits for a client."""

RATIO = 2.0
IDLE_BYTES = 8 * 1024
"""What a connection costs that says nothing."""

SLACK_BYTES = 48 * MIB
"""What the daemon itself may grow by meanwhile: caches of rows and of pages, and what an allocator keeps."""

RESERVED = 64
"""Descriptors for everything but clients: files of the engine, the loop, the log."""

RECORDS = 10_000
LARGE = 12
LARGE_BYTES = 700_000


class Attack(NamedTuple):
    """One sort of attackers, and what the limits let them cost."""

    sort: str
    size: int
    """Connections in each process."""
    processes: int = 1
    each_bytes: int = IDLE_BYTES
    """What a connection may make the daemon hold."""
    promised: bool = True
    """Whether others are to notice little of it. Clients that do nothing wrong, and much of it, are fully served."""
    descriptors: int = 0
    """The daemon's limit on open files, if it is to have one of its own."""
    is_let_be: bool = False
    """Whether its connections break no rule, so that every one of them has to be held."""

    @property
    def connections(self) -> int:
        return self.size * self.processes

    def most_bytes(self) -> int:
        """What the daemon may grow by at most. A connection that sends costs its unfinished frame and the copy that is
        looked at; one that asks and does not read costs the output limit and the reply that went beyond it."""
        return SLACK_BYTES + self.connections * self.each_bytes

    def most_descriptors(self) -> int:
        return self.descriptors or self.connections + RESERVED

    def least_descriptors(self) -> int:
        return self.connections if self.is_let_be else 0


def not_reading(reply_bytes: int) -> int:
    """What it costs that somebody asks for a reply of that size and does not take it."""
    return OUTPUT + reply_bytes


SENDING = 2 * FRAME

ATTACKS = {
    attack.sort: attack
    for attack in (
        Attack("never_reading", 8, each_bytes=not_reading(LARGE_BYTES)),
        Attack("slow_writing", 200),
        Attack("giant_line", 2, each_bytes=SENDING),
        Attack("idle", 5000, processes=2, is_let_be=True),
        Attack("flood", 300, each_bytes=0, descriptors=256),
        Attack("brackets", 2, each_bytes=SENDING),
        Attack("regex", 4, each_bytes=not_reading(0)),  # nothing is found
        Attack("slow_listing", 8, each_bytes=not_reading(LARGE * LARGE_BYTES)),
        Attack("hogs", 4, each_bytes=OUTPUT, promised=False),
    )
}


# --- victims -------------------------------------------------------------------------------------------------------


class Times(NamedTuple):
    """Seconds that each write and each read of the victims took."""

    writes: list[float]
    reads: list[float]

    def add(self, other: Times) -> None:
        self.writes.extend(other.writes)
        self.reads.extend(other.reads)

    def medians(self) -> tuple[float, float]:
        """Not a number where nothing was measured."""
        return (
            statistics.median(self.writes) if self.writes else math.nan,
            statistics.median(self.reads) if self.reads else math.nan,
        )


class Victims:
    """A few clients of a daemon, each asking for one thing after the other."""

    def __init__(self, daemon: Daemon, clients: int = 4) -> None:
        self._clients = [daemon.connect() for _ in range(clients)]
        self._number = 0
        for client in self._clients:
            client.hello(f"victim-{id(client)}")

    def work(self, seconds: float) -> Times:
        """Go on for a while; everything asked is answered as it should be."""
        times = Times([], [])
        until_ = time.monotonic() + seconds
        while time.monotonic() < until_:
            for client in self._clients:
                self._number += 1
                self._one_round(client, f"victim-{self._number}", times)
        return times

    def _one_round(self, client: Client, name: str, times: Times) -> None:
        seq = self._number * 2
        job = {"uuid": name, "status": "PENDING", "command": "echo hi"}
        _ask(client, times.writes, op="create", job=job, seq=seq, floor=seq)
        _ask(client, times.writes, op="update", jobId=name, job={"status": "RUNNING"}, seq=seq + 1, floor=seq + 1)
        found = _ask(client, times.reads, op="get", jobId=name)
        listed = _ask(client, times.reads, op="list", filter={"ids": [name]})
        if found["job"]["status"] != "RUNNING" or listed["jobs"] != [found["job"]]:
            raise AssertionError(f"{name} was answered as {found} and {listed}")

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _ask(client: Client, times: list[float], **request: Any) -> dict[str, Any]:
    began = time.perf_counter()
    client.send(request)
    reply = client.reply()
    times.append(time.perf_counter() - began)
    if not reply["success"]:
        raise AssertionError(f"{request} was answered {reply}")
    return reply


# --- attackers -----------------------------------------------------------------------------------------------------


class Strangers:
    """Processes beside the victims, for as long as a block takes, however it ends."""

    def __init__(self, sort: str, path: Path, processes: int, size: float) -> None:
        self._sort = sort
        self._command = [sys.executable, "-m", "tests.faults.crowds_attackers", sort, str(path), str(size)]
        self._count = processes
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                process = subprocess.Popen(self._command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
                self.processes.append(process)
            for process in self.processes:
                if process.stdout is None or process.stdout.readline() != b"ready\n":
                    raise AssertionError(f"{self._sort} did not come about")
        except BaseException:
            self._end()
            raise
        return self

    def cpu_seconds(self) -> float:
        """What they have taken of the processor so far."""
        return sum(taken(process.pid).cpu for process in self.processes)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        gone = [process.returncode for process in self.processes if process.poll() is not None]
        self._end()
        if gone and kind is None:
            raise AssertionError(f"{self._sort} ended by itself, with {gone}")

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(SECONDS)
            if process.stdout is not None:
                process.stdout.close()


# --- a comparison --------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What came out for one attack."""

    sort: str
    connections: int
    share: float
    """Of one processor, that the attackers took."""
    alone: tuple[float, float]
    burner: tuple[float, float]
    attack: tuple[float, float]
    """Medians in seconds, of writes and of reads."""
    asked: int
    """What the victims asked while they were attacked."""
    grown_bytes: int
    most_bytes: int
    descriptors: int
    """The most that were open; of an attack that is let be, the fewest."""
    least_descriptors: int
    most_descriptors: int
    promised: bool

    @property
    def ratios(self) -> tuple[float, float]:
        return self.attack[0] / self.burner[0], self.attack[1] / self.burner[1]

    def broken(self) -> list[str]:
        """The promises that did not hold."""
        problems = [
            f"{what} took {ratio:.2f} times as long as with a burner"
            for what, ratio in zip(("writes", "reads"), self.ratios, strict=True)
            if self.promised and not ratio <= RATIO  # nor is it where nothing was measured
        ]
        return problems + self.costs_too_much()

    def costs_too_much(self) -> list[str]:
        problems = [] if self.asked else ["the victims asked for nothing"]
        if self.grown_bytes > self.most_bytes:
            problems.append(f"memory grew by {self.grown_bytes / MIB:.0f} MiB, above {self.most_bytes / MIB:.0f}")
        if self.descriptors > self.most_descriptors:
            problems.append(f"{self.descriptors} descriptors were open, above {self.most_descriptors}")
        if self.descriptors < self.least_descriptors:
            problems.append(f"{self.descriptors} descriptors were open: not all of {self.connections} were held")
        return problems

    def figures(self) -> dict[str, float | str]:
        """Times in milliseconds."""
        times: dict[str, float | str] = {}
        for place, what in enumerate(("writes", "reads")):
            for mode, medians in (("alone", self.alone), ("burner", self.burner), ("attack", self.attack)):
                times[f"{what} {mode}"] = round(1000 * medians[place], 3)
            times[f"{what} ratio"] = round(self.ratios[place], 2)
        return {
            "connections": self.connections,
            "asked": self.asked,
            "cpu": round(self.share, 2),
            **times,
            "MiB grown": f"{self.grown_bytes / MIB:.0f} of {self.most_bytes / MIB:.0f}",
            "descriptors": f"{self.descriptors} of {self.most_descriptors}",
        }


@contextmanager
def crowded(folder: Path, attack: Attack, backend: str = "sqlite", records: int = RECORDS) -> Iterator[Daemon]:
    """A daemon with something in it, and with as many descriptors as the attack lets it have."""
    limit = attack.descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    under = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"]
    with Daemon(folder, backend=backend, under=under).serving() as daemon:
        with daemon.connect() as client:
            client.hello("filler", ack="last")
            client.send(
                *(
                    {"op": "create", "job": {"uuid": "a" * 200 + str(number), "a": {"b": {}}}, "seq": number + 1}
                    for number in range(records)
                )
            )
            until(lambda: client.reply().get("acked") == records, "the store to fill")
            for number in range(LARGE):
                large = {"id": f"large-{number}", "value": "x" * LARGE_BYTES}
                client.send({"op": "create", "kind": "kv", "record": large, "seq": records + number + 1})
            until(lambda: client.reply().get("acked") == records + LARGE, "the store to fill")
        yield daemon


def measured(
    folder: Path,
    attack: Attack,
    *,
    seconds: float,
    rounds: int,
    backend: str = "sqlite",
    records: int = RECORDS,
    compared: bool = True,
) -> Outcome:
    """The victims' times in turn: with the attackers, and to compare, with the burner and alone."""
    with crowded(folder, attack, backend, records) as daemon, ExitStack() as closing:
        victims = Victims(daemon)
        closing.callback(victims.close)
        victims.work(min(seconds, 0.5))
        times = {mode: Times([], []) for mode in ("attack", "burner", "alone")}
        daemon.reset_peak()
        before = daemon.peak_bytes()
        at_rest = sockets(daemon.pid)
        held, shares = [], []
        for _ in range(rounds):
            with Strangers(attack.sort, daemon.socket, attack.processes, attack.size) as strangers:
                # Who has connected is in line, and not let in yet.
                until(lambda: sockets(daemon.pid) >= attack.least_descriptors(), "the attackers to be let in")
                began, used = time.monotonic(), strangers.cpu_seconds()
                times["attack"].add(victims.work(seconds))
                share = (strangers.cpu_seconds() - used) / (time.monotonic() - began)
                held.append(taken(daemon.pid).descriptors)
            shares.append(share)
            until(lambda: sockets(daemon.pid) <= at_rest, "the attackers' connections to be forgotten")
            if compared:
                with Strangers("burn", daemon.socket, attack.processes, share / attack.processes):
                    times["burner"].add(victims.work(seconds))
                times["alone"].add(victims.work(seconds))
        descriptors = (min if attack.is_let_be else max)(held, default=0)
        return Outcome(
            attack.sort, attack.connections, statistics.fmean(shares) if shares else math.nan,
            times["alone"].medians(), times["burner"].medians(), times["attack"].medians(),
            len(times["attack"].writes) + len(times["attack"].reads),
            daemon.peak_bytes() - before, attack.most_bytes(),
            descriptors, attack.least_descriptors(), attack.most_descriptors(), attack.promised,
        )  # fmt: skip


# --- the program ---------------------------------------------------------------------------------------------------


def options() -> ArgumentParser:
    parser = program.options("crowds", __doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of attack, burner and alone in turn")
    parser.add_argument("--backend", default="sqlite", choices=["memory", "sqlite"])
    parser.add_argument("--only", nargs="+", choices=sorted(ATTACKS), default=list(ATTACKS))
    return parser


def main() -> int:
    asked = options().parse_args()
    figures, broken = {}, []
    for sort in asked.only:
        program.say(f"{sort} ...")
        with program.scratch() as folder:
            attack = ATTACKS[sort]
            outcome = measured(folder, attack, seconds=asked.seconds, rounds=asked.rounds, backend=asked.backend)
        figures[sort] = outcome.figures()
        broken += [f"{sort}: {problem}" for problem in outcome.broken()]
    return program.ended(asked, figures, broken)


if __name__ == "__main__":
    sys.exit(main())
