"""The checker against the plain way: of short histories, possible and not, it accepts exactly those that are."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.fleet.every_order import is_possible
from tests.fleet.histories import ACTIONS, Model
from tests.fleet.linearizability import Logged, Op, violations

KEY = ("kv", "k0")
MODELS = 400
"""Of one seed; each is bent so many times."""
BENDS = 5

BRIEF = ("create", "create", "delete", "delete", "get", "update")
"""What makes many short lives: which delete ended which of them is what has to be searched for."""


# --- histories, bent -------------------------------------------------------------------------------------------------


def untold(op: Op) -> Op:
    """The same request, with an answer that tells nothing of the record."""
    return op._replace(found="", uid="", revision=0)


def another_state(op: Op, log: list[Logged], chance: random.Random) -> Op:
    """A read is answered with any state there ever was."""
    if op.action != "get" or not log:
        return op
    entry = chance.choice(log)
    return op._replace(found="state", uid=entry.uid, revision=entry.revision, tag=entry.tag)


def absent(op: Op, log: list[Logged], chance: random.Random) -> Op:
    return untold(op)._replace(found="absent", tag="") if op.action == "get" else op


def another_time(op: Op, log: list[Logged], chance: random.Random) -> Op:
    shift = chance.uniform(-3, 3)
    return op._replace(invoked=op.invoked + shift, returned=op.returned + shift)


def refused(op: Op, log: list[Logged], chance: random.Random) -> Op:
    return untold(op)._replace(outcome="not_applied") if op.action != "get" and op.outcome == "ok" else op


def acknowledged(op: Op, log: list[Logged], chance: random.Random) -> Op:
    """What was never answered is told to have been applied."""
    return op._replace(outcome="ok", returned=op.invoked + chance.uniform(0.1, 5)) if op.outcome == "unknown" else op


def unanswered(op: Op, log: list[Logged], chance: random.Random) -> Op:
    is_applied = op.action != "get" and op.outcome == "ok"
    return untold(op)._replace(outcome="unknown", returned=math.inf) if is_applied else op


def conditional(op: Op, log: list[Logged], chance: random.Random) -> Op:
    return op._replace(if_revision=chance.randint(1, 3)) if op.action in {"update", "delete"} else op


OF_AN_ANSWER: list[Callable[[Op, list[Logged], random.Random], Op]] = [
    another_state, absent, another_time, another_time, refused, acknowledged, unanswered, conditional,
]  # fmt: skip


def without_its_tail(log: list[Logged], chance: random.Random) -> None:
    log.pop()


def without_an_entry(log: list[Logged], chance: random.Random) -> None:
    del log[chance.randrange(len(log))]


def with_an_entry_again(log: list[Logged], chance: random.Random) -> None:
    last, again = log[-1], chance.choice(log)
    log.append(again._replace(uid=last.uid, revision=last.revision + 1))


def in_another_order(log: list[Logged], chance: random.Random) -> None:
    log.insert(chance.randrange(len(log)), log.pop())


OF_THE_LOG: list[Callable[[list[Logged], random.Random], None]] = [
    without_its_tail, without_an_entry, with_an_entry_again, in_another_order,
]  # fmt: skip


def bent(model: Model, chance: random.Random) -> tuple[list[Op], list[Logged]]:
    """The same with something else said, here and there: that can be a lie, or just as well be true."""
    history, log = list(model.history), list(model.log.get(KEY, ()))
    for _ in range(chance.choice([1, 1, 2])):
        if log and chance.random() < 0.2:
            chance.choice(OF_THE_LOG)(log, chance)
        else:
            place = chance.randrange(len(history))
            history[place] = chance.choice(OF_AN_ANSWER)(history[place], log, chance)
    return history, log


# --- both ways -------------------------------------------------------------------------------------------------------


def in_words(history: list[Op], log: list[Logged]) -> str:
    asked = [f"{op} if {op.if_revision}, met {op.met}" for op in sorted(history, key=lambda op: op.invoked)]
    return "\n".join([*asked, *map(str, log)])


@pytest.mark.parametrize("actions", [ACTIONS, BRIEF], ids=["as usual", "short lives"])
def test_the_checker_accepts_a_short_history_exactly_when_some_order_explains_it(actions: tuple[str, ...]):
    verdicts: Counter[bool] = Counter()
    for seed in range(MODELS):
        chance = random.Random(seed)
        unknown = chance.choice([0.0, 0.2, 0.5])
        model = Model(seed, chance.choice([2, 3, 4]), 1, unknown, actions=actions).run(chance.choice([5, 8, 11]))
        assert is_possible(model.history, model.log.get(KEY, ()))
        for _ in range(BENDS if model.history else 0):
            history, log = bent(model, chance)
            possible, found = is_possible(history, log), violations(history, {KEY: log})
            assert possible == (not found), f"of seed {seed}: {found}\n{in_words(history, log)}"
            verdicts[possible] += 1
    assert min(verdicts[True], verdicts[False]) > MODELS  # else it would be about one of them only
