"""Histories out of a model: what clients would be told by a store that makes no mistakes, with every kind of bad luck.

Owns a simulated record store in which each request takes effect at one moment between being sent and being answered,
and stores that make one mistake. Must not know how histories are checked.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tests.fleet.linearizability import Key, Logged, Op

ACTIONS = ("create", "update", "update", "update", "delete", "get", "get")
"""What clients ask for, each as often as it is named."""


@dataclass
class Kept:
    """A record as the model keeps it."""

    uid: str = ""
    revision: int = 0
    tag: str = ""
    lives: bool = False


@dataclass
class Model:
    """Makes a history of so many operations. All of it comes from the seed."""

    seed: int = 0
    clients: int = 8
    records: int = 4
    unknown: float = 0.1
    """The share of writes whose answer is lost; half of those are applied, perhaps much later."""
    seconds: float = 1.0
    """How long a request takes, on average."""
    actions: Sequence[str] = ACTIONS
    history: list[Op] = field(default_factory=list)
    log: dict[Key, list[Logged]] = field(default_factory=dict)
    _kept: dict[Key, Kept] = field(default_factory=dict)
    _made: int = 0

    def run(self, operations: int) -> Self:
        chance = random.Random(self.seed)
        # What happens when: a client sends its next request, or a request takes effect.
        agenda: list[tuple[float, int, str, Op | None]] = []
        for number in range(self.clients):
            heapq.heappush(agenda, (chance.random(), number, f"c{number}", None))
        for turn in range(self.clients, self.clients + 2 * operations):
            if not agenda:
                break
            now, _, client, asked = heapq.heappop(agenda)
            if asked is not None:
                self._take_effect(asked)
                continue
            asked = self._ask(chance, client, now)
            lost = asked.action != "get" and chance.random() < self.unknown
            effect = now + chance.expovariate(2 / self.seconds)
            answered = effect + chance.expovariate(2 / self.seconds)
            if lost:
                self.history.append(asked._replace(outcome="unknown", returned=math.inf))
                if chance.random() < 0.5:
                    late = effect + chance.choice([0.0, 5 * self.seconds])
                    heapq.heappush(agenda, (late, turn, client, asked._replace(outcome="unknown")))
            else:
                heapq.heappush(agenda, (effect, turn, client, asked._replace(returned=answered)))
            heapq.heappush(agenda, (answered + chance.random() * self.seconds, -turn, client, None))
        return self

    def _ask(self, chance: random.Random, client: str, now: float) -> Op:
        key = ("kv", f"k{chance.randrange(self.records)}")
        action = chance.choice(self.actions)
        self._made += 1
        condition = self._kept.get(key, Kept()).revision if chance.random() < 0.4 else None
        return Op(
            key,
            client,
            action,  # type: ignore[arg-type]
            now,
            math.inf,
            "ok",
            tag=f"t{self._made}" if action in {"create", "update"} else "",
            if_revision=condition if action in {"update", "delete"} else None,
        )

    def _take_effect(self, asked: Op) -> None:
        told = self._decide(asked, self._kept.setdefault(asked.key, Kept()))
        if asked.outcome != "unknown":
            self.history.append(told)

    def _decide(self, asked: Op, kept: Kept) -> Op:
        if asked.action == "create":
            if kept.lives:
                return asked._replace(outcome="not_applied", found="present")
            kept.uid, kept.revision = f"u{asked.tag}", 0
            return self._applied(asked, kept)
        if not kept.lives:
            return asked._replace(outcome="ok" if asked.action == "get" else "not_applied", found="absent")
        if asked.action == "get":
            return self._met(asked._replace(tag=kept.tag), kept)
        if asked.if_revision not in {None, kept.revision}:
            return self._met(asked._replace(outcome="not_applied", met=kept.tag), kept)
        return self._applied(asked, kept)

    def _applied(self, asked: Op, kept: Kept) -> Op:
        kept.revision += 1
        kept.tag, kept.lives = asked.tag, asked.action != "delete"
        self.log.setdefault(asked.key, []).append(Logged(kept.uid, kept.revision, kept.tag, not kept.lives))
        if not kept.lives:
            return asked
        return self._met(asked, kept)

    @staticmethod
    def _met(asked: Op, kept: Kept) -> Op:
        return asked._replace(found="state", uid=kept.uid, revision=kept.revision)


# --- stores that make one mistake ------------------------------------------------------------------------------------

FAULTLESS_EFFECTS = 300
"""Requests that took effect as they should before the mistake."""


@dataclass
class AppliesTwice(Model):
    """A change takes effect once more, when others have come in between."""

    has_erred: bool = False
    _effects: int = 0
    _change: Op | None = None

    def _take_effect(self, asked: Op) -> None:
        super()._take_effect(asked)
        self._effects += 1
        kept = self._kept[asked.key]
        if self._effects < FAULTLESS_EFFECTS or self.has_erred or not kept.lives:
            return
        was_applied = kept.tag == asked.tag
        if self._change is None:
            self._change = asked if was_applied and asked.action == "update" and asked.if_revision is None else None
        elif was_applied and asked.key == self._change.key:
            self._decide(self._change, kept)
            self.has_erred = True


@dataclass
class BringsBack(Model):
    """Somebody who asks after a delete was acknowledged is shown the record as it was before."""

    has_erred: bool = False
    _effects: int = 0
    _delete: Op | None = None
    _before: Kept = field(default_factory=Kept)

    def _take_effect(self, asked: Op) -> None:
        self._effects += 1
        if self._delete is not None and not self.has_erred and self._is_fooled(asked, self._delete):
            self.history.append(self._met(asked._replace(tag=self._before.tag), self._before))
            self.has_erred = True
            return
        before = replace(self._kept.get(asked.key, Kept()))
        super()._take_effect(asked)
        is_over = before.lives and not self._kept[asked.key].lives
        if self._effects >= FAULTLESS_EFFECTS and self._delete is None and is_over and asked.outcome == "ok":
            self._delete, self._before = asked, before

    @staticmethod
    def _is_fooled(asked: Op, delete: Op) -> bool:
        return asked.action == "get" and asked.key == delete.key and asked.invoked > delete.returned
