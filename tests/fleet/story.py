"""What a load did and was told: the history the checker judges, and what is counted on the way.

Owns how replies become operations of a history. Must not know who asks, nor what is checked afterwards.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tests.fleet.linearizability import Key, Op
from tests.fleet.lines import Json, Told

Action = Literal["create", "update", "delete", "get"]


class Guarded(NamedTuple):
    """Something done under a lease that was accepted, a claim included."""

    key: Key
    token: int
    invoked: float
    returned: float
    what: str


@dataclass
class Story:
    """Everything that happened, as the clients saw it."""

    ops: list[Op] = field(default_factory=list)
    claims: list[Guarded] = field(default_factory=list)
    guarded: list[Guarded] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    """By tag: the token an accepted write was guarded by."""
    unplaced: dict[str, tuple[str, Told]] = field(default_factory=dict)
    """By tag: claims that may have got a record nobody named; the log tells which."""
    vain: dict[str, Json] = field(default_factory=dict)
    """By tag: answers to claims that were told to have got nothing."""
    completed: Counter[str] = field(default_factory=Counter)
    """How often somebody was told to have completed a job."""
    perhaps_completed: Counter[str] = field(default_factory=Counter)
    counted: Counter[Key] = field(default_factory=Counter)
    """How often a counter was counted up for sure."""
    perhaps_counted: Counter[Key] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By op: how long each took until it was settled."""
    tries: int = 0
    problems: list[str] = field(default_factory=list)
    _tags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def tag(self) -> str:
        """What one write leaves in the record, and no other."""
        return f"t{next(self._tags)}"

    def note(self, op: str, told: Told) -> None:
        """Count a request."""
        self.seconds[op].append(told.seconds)
        self.tries += told.tries
        if not told.reply["success"]:
            self.codes[told.code] += 1
            if told.code == "internal" and told.reply["outcome"] != "unknown":
                self.problems.append(f"{op}: {told.reply}")

    def add(self, client: str, action: Action, key: Key, told: Told, tag: str = "", **more: Any) -> None:
        """Put what one request meant for one record into the history."""
        self.ops.append(_op(client, action, key, told, told.record, tag, **more))

    def add_part(self, client: str, key: Key, told: Told, record: Json | None, tag: str) -> None:
        """The same for one record of several."""
        self.ops.append(_op(client, "update", key, told, record, tag))


def _op(
    client: str, action: Action, key: Key, told: Told, record: Json | None, tag: str, if_revision: int | None = None
) -> Op:
    op = Op(key, client, action, told.invoked, told.returned, told.outcome, tag, if_revision=if_revision)
    if told.outcome == "unknown":
        return op
    if told.code == "not_found":
        return op._replace(found="absent", outcome="ok" if action == "get" else "not_applied")
    if told.code == "exists":
        return op._replace(found="present")
    if record is None or "revision" not in record or (action == "delete" and told.outcome == "ok"):
        return op
    met = str(record.get("by", ""))
    op = op._replace(found="state", uid=record["uid"], revision=record["revision"])
    if action == "get":
        return op._replace(tag=met)
    if told.outcome == "ok":
        # An answer to a claim that came again shows the record as it is now, not as the claim made it.
        return op if met == tag else op._replace(found="", uid="", revision=0)
    return op._replace(met=met)
