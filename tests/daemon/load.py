"""Writers that pipeline numbered writes, remember what was acknowledged, and know what must be there.

Owns the model the daemon is compared with. Must not know how the daemon is started or ended.

A writer has records of its own, whose every write it can predict, and counters it shares with the other writers. The
life of an own record goes round: created, changed, counted up, changed, deleted, created again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.daemon.harness import Client, Reply

WINDOW = 48
"""Writes a writer has under way."""

ROUND = ("create", "patch", "count", "set", "delete")
COUNTERS = ("shared-0", "shared-1")


@dataclass
class Shape:
    """What an own record looks like after a number of writes; None stands for a record that is not there."""

    fields: dict[str, Any] | None


def shape(writes: int) -> Shape:
    """After `writes` writes. `step` and `twin` always travel together: one without the other is half a write."""
    if writes == 0:
        return Shape(None)
    round_, place = divmod(writes - 1, len(ROUND))
    if ROUND[place] == "delete":
        return Shape(None)
    born = round_ * len(ROUND) + 1
    fields: dict[str, Any] = {"revision": place + 1, "step": writes, "count": int(place >= ROUND.index("count"))}
    fields["twin"] = {"step": born if place < ROUND.index("patch") else _last_told(round_, place)}
    return Shape(fields)


def _last_told(round_: int, place: int) -> int:
    """The newest write of this round that named `twin`: counting up does not."""
    base = round_ * len(ROUND) + 1
    return base + (place if ROUND[place] != "count" else place - 1)


def request(name: str, number: int) -> dict[str, Any]:
    """The `number`th write to an own record."""
    kind = ROUND[(number - 1) % len(ROUND)]
    if kind == "create":
        labels = {"round": str(number)}
        return {
            "op": "create",
            "job": {"uuid": name, "step": number, "count": 0, "twin": {"step": number}, "labels": labels},
        }
    if kind == "patch":
        return {
            "op": "update",
            "jobId": name,
            "job": {"step": number, "twin": {"step": number}, "labels": {"more": "1"}},
        }
    if kind == "count":
        return {"op": "update", "jobId": name, "inc": {"count": 1, "step": 1}}
    if kind == "set":
        return {"op": "update", "jobId": name, "set": {"step": number, "/twin/step": number}}
    return {"op": "delete", "jobId": name}


@dataclass
class Sent:
    """A write that was sent: which record it was for, and its place in that record's life."""

    seq: int
    name: str
    number: int
    request: dict[str, Any]


@dataclass
class Tally:
    """Writes to one record: sent, and acknowledged for sure."""

    sent: int = 0
    acked: int = 0


@dataclass
class Writer:
    """One client. Its own thread writes until the daemon is gone or it is told to stop."""

    path: Path
    client: str
    ack: str = "each"
    records: int = 12
    goal: int = 0
    """Acknowledgements after which `reached` is set."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    unanswered: deque[Sent] = field(default_factory=deque)
    acknowledged: int = 0
    problems: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)
    resent: int = 0
    duplicates: int = 0
    epoch: str = ""
    _seq: int = 0
    _acked_seq: int = 0
    _turn: int = 0

    def __post_init__(self) -> None:
        self.own = [f"{self.client}-{number}" for number in range(self.records)]
        self.tallies = {name: Tally() for name in (*self.own, *COUNTERS)}

    # --- writing ---------------------------------------------------------------------------------------------------

    def write_until_cut_off(self, goal: int) -> None:
        """Send again what was not answered, then go on; returns when the connection breaks, or when told to stop."""
        self.goal = self.acknowledged + goal
        self.reached.clear()
        try:
            self._write()
        except TimeoutError:
            self.problems.append(f"{self.client}: {len(self.unanswered)} writes were not answered in time")
        except OSError:
            pass  # cut off
        except Exception as bug:  # noqa: BLE001 - it is a thread: nobody else would hear of it
            self.problems.append(f"{self.client}: {bug!r}")
        finally:
            self.reached.set()

    def _write(self) -> None:
        with Client(self.path) as client:
            self._meet(client.hello(self.client, ack=self.ack))
            self._send_again(client)
            while not (self.stopping.is_set() and not self.unanswered):
                self._top_up(client)
                self._take(client.replies())

    def _meet(self, hello: Reply) -> None:
        """While the machine runs on, nothing acknowledged may be missing, and the epoch says so."""
        if self.epoch and hello["epoch"] != self.epoch:
            self.problems.append(f"{self.client}: epoch {self.epoch} became {hello['epoch']}")
        self.epoch = hello["epoch"]

    def finish(self) -> None:
        """Have every write answered that was ever sent."""
        self.stopping.set()
        self.write_until_cut_off(0)
        assert not self.unanswered, f"{self.client}: {len(self.unanswered)} writes were never answered"

    def _send_again(self, client: Client) -> None:
        self.resent += len(self.unanswered)
        client.send(*({**sent.request, "again": True, "floor": self._floor()} for sent in self.unanswered))

    def _top_up(self, client: Client) -> None:
        if self.stopping.is_set() or len(self.unanswered) > WINDOW // 2:
            return
        client.send(*(self._next() for _ in range(WINDOW - len(self.unanswered))))

    def _floor(self) -> int:
        return self.unanswered[0].seq if self.unanswered else self._seq

    def _next(self) -> dict[str, Any]:
        self._seq += 1
        self._turn += 1
        names = [*self.own, *COUNTERS]
        name = names[self._turn % len(names)]
        tally = self.tallies[name]
        tally.sent += 1
        body = (
            {"op": "update", "jobId": name, "inc": {"total": 1}, "upsert": True}
            if name in COUNTERS
            else request(name, tally.sent)
        )
        asked = {**body, "requestId": self._seq, "seq": self._seq, "floor": self._floor()}
        self.unanswered.append(Sent(self._seq, name, tally.sent, asked))
        return asked

    # --- answers ---------------------------------------------------------------------------------------------------

    def _take(self, replies: list[Reply]) -> None:
        if not replies:
            raise ConnectionError("the daemon closed the connection")
        for reply in replies:
            if reply.get("success") and "acked" in reply:
                self._acked_upto(reply["acked"])
            elif reply.get("success"):
                self.duplicates += bool(reply.get("duplicate"))
                self._acked_upto(reply["requestId"])
            else:
                self.problems.append(f"{self.client}: {reply}")
                self._acked_upto(int(reply["requestId"]))
        if self.acknowledged >= self.goal:
            self.reached.set()

    def _acked_upto(self, seq: int) -> None:
        if seq <= self._acked_seq:
            self.problems.append(f"{self.client}: {seq} acknowledged after {self._acked_seq}")
        self._acked_seq = seq
        while self.unanswered and self.unanswered[0].seq <= seq:
            done = self.unanswered.popleft()
            self.acknowledged += 1
            self.tallies[done.name].acked = done.number

    # --- what must be there ----------------------------------------------------------------------------------------

    def missing_or_torn(self, client: Client) -> list[str]:
        """Own records that are not what a number of writes between the acknowledged and the sent ones makes."""
        client.send(*({"op": "get", "jobId": name} for name in self.own))
        return [problem for name in self.own if (problem := self._judge(name, client.reply()))]

    def _judge(self, name: str, reply: Reply) -> str:
        tally = self.tallies[name]
        seen = _seen(reply.get("job"))
        for writes in range(tally.acked, tally.sent + 1):
            if shape(writes).fields == seen:
                tally.acked = writes  # it was there once, so it has to stay
                return ""
        return f"{name}: {tally.acked} writes acknowledged, {tally.sent} sent, found {reply}"


@contextmanager
def writing(writers: Sequence[Writer], goal: int, *, wait_for: Sequence[Writer] | None = None) -> Iterator[None]:
    """All of them write, each in a thread of its own. The block begins when these (all, unless told) have come to their
    goal, and has to end the daemon: that is what ends the threads."""
    threads = [threading.Thread(target=writer.write_until_cut_off, args=(goal,)) for writer in writers]
    for writer in writers:
        writer.reached.clear()  # before the threads: what an earlier block left must not count for this one
    for thread in threads:
        thread.start()
    for writer in writers if wait_for is None else wait_for:
        writer.reached.wait()
    yield
    for thread in threads:
        thread.join()


class Count(NamedTuple):
    """A counter that all of them share: what it is, and the writes to it."""

    name: str
    total: int
    acked: int
    sent: int


def counts(client: Client, writers: Sequence[Writer]) -> list[Count]:
    return [_count(client, name, [writer.tallies[name] for writer in writers]) for name in COUNTERS]


def _count(client: Client, name: str, tallies: list[Tally]) -> Count:
    total = client.ask("get", jobId=name).get("job", {}).get("total", 0)
    return Count(name, total, sum(each.acked for each in tallies), sum(each.sent for each in tallies))


def _seen(job: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if job is None else {name: job.get(name) for name in ("revision", "step", "count", "twin")}
