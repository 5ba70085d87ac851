"""Watchers: everything the log tells at one daemon, kept in the order it came.

Owns following a daemon through broken connections, and what must be true of what one watcher saw. Must not know who
writes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.fleet.linearizability import Key, Logged, Stamp
from tests.fleet.lines import Json, Line

PAUSE_SECONDS = 0.05
"""Between two tries to follow a daemon that is away."""


class Seen(NamedTuple):
    """One event."""

    uid: str
    revision: int
    type: str
    tag: str
    token: int | None
    status: str | None

    @property
    def stamp(self) -> Stamp:
        return (self.uid, self.revision)


@dataclass
class Watcher:
    """Follows some kinds at one daemon, from where it begins until it is stopped."""

    path: Path
    kinds: tuple[str, ...]
    seen: defaultdict[Key, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    resumed: int = 0
    """How often it had to go on from a cursor."""
    told: list[str] = field(default_factory=list)
    """Codes by which its watches were ended."""
    gone: list[str] = field(default_factory=list)
    """Texts of what could not be followed any more."""
    cursors: dict[str, str] = field(default_factory=dict)
    """How far each kind was followed. Those of one daemon are good at all others."""
    _standing: set[str] = field(default_factory=set)
    _following: asyncio.Event = field(default_factory=asyncio.Event)

    async def following(self) -> None:
        """Return once every watch stands."""
        await self._following.wait()

    async def run(self) -> None:
        while True:
            try:
                await self._follow(await Line.open(self.path))
            except OSError:
                self.resumed += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self, line: Line) -> None:
        try:
            await line.ask(op="hello", name="watcher")
            for kind in self.kinds:
                line.send(self._request(kind))
            while True:
                self._take(line, await line.receive(None))
        finally:
            line.drop()

    def _request(self, kind: str) -> Json:
        after = self.cursors.get(kind)
        return {"op": "watch", "kind": kind, "requestId": kind, **({"after": after} if after else {})}

    def _take(self, line: Line, got: Json) -> None:
        kind = got["requestId"]
        event = got.get("event")
        if event is not None:
            self.cursors[kind] = event["cursor"]
            self._keep(event)
        elif got["success"]:
            self.cursors.setdefault(kind, got["cursor"])
            self._standing.add(kind)
            if len(self._standing) == len(self.kinds):
                self._following.set()
        else:
            self._ended(line, kind, got)

    def _ended(self, line: Line, kind: str, got: Json) -> None:
        self.told.append(got["code"])
        if got["code"] == "gone":
            self.gone.append(got["error"])
            del self.cursors[kind]
        self.resumed += 1
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, line.send, self._request(kind))

    def _keep(self, event: Json) -> None:
        if event["id"].startswith("_"):
            return  # the daemons' own, and older than the load
        record = event.get("record") or {}
        lease = record.get("lease") or {}
        self.count += 1
        self.seen[event["kind"], event["id"]].append(
            Seen(
                event["uid"],
                event["revision"],
                event["type"],
                str(record.get("by", "")),
                lease.get("token"),
                record.get("status"),
            )
        )

    # --- what must hold ----------------------------------------------------------------------------------------------

    def behind(self, finals: Mapping[Key, Stamp]) -> list[Key]:
        """Records whose newest state has not come yet."""
        return [key for key, stamp in finals.items() if not (seen := self.seen.get(key)) or seen[-1].stamp != stamp]

    def faults(self) -> list[str]:
        """What breaks the order of one record: a gap, a step back, a life that goes on after its end."""
        return [f"{self.path}: {'/'.join(key)}: {text}" for key, seen in self.seen.items() for text in _disorder(seen)]

    def log(self) -> dict[Key, list[Logged]]:
        return {
            key: [Logged(each.uid, each.revision, each.tag, each.type == "deleted", each.token) for each in seen]
            for key, seen in self.seen.items()
        }


def _disorder(seen: Iterable[Seen]) -> list[str]:
    found: list[str] = []
    before: Seen | None = None
    lives: set[str] = set()
    for each in seen:
        if before is None or each.uid != before.uid:
            if each.uid in lives:
                found.append(f"{each.uid} came back at revision {each.revision}")
            if each.revision != 1:
                found.append(f"{each.uid} begins at revision {each.revision}")
            if before is not None and before.type != "deleted":
                found.append(f"{each.uid} began while {before.uid} stood at {before.revision}")
            lives.add(each.uid)
        elif each.revision != before.revision + 1:
            found.append(f"{each.uid}: revision {each.revision} after {before.revision}")
        elif before.type == "deleted":
            found.append(f"{each.uid}: revision {each.revision} after its end")
        before = each
    return found
