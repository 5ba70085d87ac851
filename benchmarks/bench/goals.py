"""The goals, by name: which figures each compares, and whether it is reached. Honest also when it is not.

Owns the ratios. Must not know how anything was measured. A goal whose figures are missing, because its peer was not
found or its measure was not run, says so instead of being left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import shape
from .measures import adapter, calls, growth, idle, memory, pipelined, shared, single, starting, sustained
from .shape import MEMORY, REDIS, REDIS_ALWAYS, SQLITE, Figure, connected, deep, queued, rounded, shown, stored
from .sizes import Size


class Key(NamedTuple):
    """Which figure."""

    measure: str
    work: str
    who: str
    at: str


@dataclass(frozen=True)
class Goal:
    """`ours` over the best of `theirs`, or `ours` alone, and the bound it is held against."""

    line: str
    name: str
    at_least: bool
    bound: float
    ours: Key
    theirs: tuple[Key, ...] = ()
    unit: str = "times"


class Outcome(NamedTuple):
    """What became of a goal."""

    goal: Goal
    reached: float | None
    """From the best rounds; None when something is missing."""
    by_medians: float | None
    circumstances: str

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached >= self.goal.bound if self.goal.at_least else self.reached <= self.goal.bound

    def as_json(self) -> dict[str, Any]:
        goal = self.goal
        return {
            "line": goal.line, "goal": goal.name, "bound": goal.bound, "atLeast": goal.at_least, "unit": goal.unit,
            "reached": None if self.reached is None else rounded(self.reached),
            "byMedians": None if self.by_medians is None else rounded(self.by_medians),
            "met": self.met, "circumstances": self.circumstances,
        }  # fmt: skip


def _pipelined(work: str, bound: float) -> Goal:
    at = deep(pipelined.DEPTH)
    name = f"{work} on memory in pipelines of {pipelined.DEPTH}, beside redis-py"
    ours, theirs = Key("pipelined", work, MEMORY, at), Key("pipelined", work, REDIS, at)
    return Goal("1", name, at_least=True, bound=bound, ours=ours, theirs=(theirs,))


def _sustained(size: Size, peer: str, bound: float) -> Goal:
    ours = Key("sustained", "create", SQLITE, deep(sustained.DEPTH))
    theirs = tuple(Key("sustained", "create", peer, deep(depth)) for depth in sustained.DEPTHS)
    name = f"{size.sustained:,} durable creates on sqlite without a pause, beside {peer}, its best pipelines"
    return Goal("2", name, at_least=True, bound=bound, ours=ours, theirs=theirs)


def _single(who: str, bound: float) -> Goal:
    keys = [Key("single", "get", each, single.AT) for each in (who, shape.ECHO)]
    name = f"get, one at a time, on {who.removeprefix('statesvc ')}, beside the echo"
    return Goal("3", name, at_least=False, bound=bound, ours=keys[0], theirs=(keys[1],))


def _grown(size: Size) -> Iterable[Goal]:
    small, large = size.stores
    for work in growth.WORKS:
        for who in (SQLITE, MEMORY):
            ours, theirs = (Key("growth", work, who, stored(jobs)) for jobs in (large, small))
            name = f"{work} on {who.removeprefix('statesvc ')}, {stored(large)} beside {stored(small)}"
            yield Goal("5", name, at_least=False, bound=2.0, ours=ours, theirs=(theirs,))
    few, many = size.queues
    for who in (SQLITE, MEMORY):
        ours, theirs = (Key("claiming", "claim", who, queued(jobs)) for jobs in (many, few))
        name = f"claim on {who.removeprefix('statesvc ')}, {queued(many)} beside {queued(few)}"
        yield Goal("5", name, at_least=False, bound=2.0, ours=ours, theirs=(theirs,))


def _connections(size: Size) -> Iterable[Goal]:
    few, many = size.connections
    for work in ("get", "update"):
        for who in (MEMORY, SQLITE):
            ours, theirs = (Key("connections", work, who, connected(count)) for count in (many, few))
            name = f"{work} on {who.removeprefix('statesvc ')}, {connected(many)} beside {few}"
            yield Goal("8", name, at_least=True, bound=0.8, ours=ours, theirs=(theirs,))


def _shared() -> Iterable[Goal]:
    for work in shared.WORKS:
        ours, theirs = (Key("shared", work, who, deep(shared.DEPTH)) for who in (shared.ON_REDIS, shared.SAME_SCRIPT))
        name = f"{work} on the Redis engine in pipelines of {shared.DEPTH}, beside redis-py with the same script"
        yield Goal("9", name, at_least=True, bound=0.5, ours=ours, theirs=(theirs,))
    for work in shared.WORKS:
        ours = Key("shared", work, shared.ON_DYNAMODB, deep(shared.DEPTH))
        name = f"{work} on DynamoDB in pipelines of {shared.DEPTH}, to an endpoint that answers at once"
        yield Goal("9", name, at_least=True, bound=2000.0, unit=shape.A_SECOND, ours=ours)


def goals(size: Size) -> list[Goal]:
    """In the order in which they are shown."""
    large = stored(size.stores[1])
    in_memory, in_redis = (Key("memory", memory.WORK, who, large) for who in (MEMORY, REDIS))
    pings = [Key("starting", starting.PING, SQLITE, at) for at in (large, starting.EMPTY)]
    on_redis = tuple(Key("adapter", "update", REDIS, deep(depth)) for depth in adapter.DEPTHS)
    return [
        _pipelined("create", 3.0),
        _pipelined("update", 3.0),
        _pipelined("get", 2.5),
        _sustained(size, REDIS, 1.5),
        _sustained(size, REDIS_ALWAYS, 3.0),
        _single(MEMORY, 1.25),
        _single(SQLITE, 1.5),
        Goal("4", "durable updates through the adapter, beside redis-py's best pipelines", at_least=True, bound=1.0,
             ours=Key("adapter", "update", SQLITE, adapter.AT), theirs=on_redis),
        Goal("4", "one update call in the agent", at_least=False, bound=5.0, unit=shape.MICROSECONDS,
             ours=Key("calls", "update", SQLITE, calls.AT)),
        Goal("4", "one cached get in the agent", at_least=False, bound=1.0, unit=shape.MICROSECONDS,
             ours=Key("calls", "cached get", SQLITE, calls.AT)),
        *_grown(size),
        Goal("6", f"resident on sqlite with {large}", at_least=False, bound=150.0, unit=shape.MEGABYTES,
             ours=in_memory._replace(who=SQLITE)),
        Goal("6", f"resident on memory with {large}, beside Redis with the same indexes", at_least=False, bound=1.5,
             ours=in_memory, theirs=(in_redis,)),
        Goal("7", f"start to first ping on sqlite, {large} beside none", at_least=False, bound=1.3, ours=pings[0],
             theirs=(pings[1],)),
        *_connections(size),
        Goal("8", f"{idle.PER:,} idle connections", at_least=False, bound=20.0, unit=shape.MEGABYTES,
             ours=Key("idle", idle.WORK, MEMORY, "")),
        *_shared(),
    ]  # fmt: skip


def judged(figures: Sequence[Figure], size: Size, measures: Collection[str]) -> list[Outcome]:
    """Every goal of these measures, with what the figures say about it."""
    return [_outcome(goal, figures) for goal in goals(size) if goal.ours.measure in measures]


def _outcome(goal: Goal, figures: Sequence[Figure]) -> Outcome:
    ours = _found(figures, goal.ours)
    theirs = [found for key in goal.theirs if (found := _found(figures, key))]
    if ours is None or (goal.theirs and not theirs):
        return Outcome(goal, None, None, "not measured" if ours is None else "no such peer found")
    values = [_ratio(ours, theirs, of) for of in (lambda figure: figure.best, lambda figure: figure.median)]
    return Outcome(goal, values[0], values[1], _circumstances(ours, theirs))


def _ratio(ours: Figure, theirs: Sequence[Figure], of: Callable[[Figure], float]) -> float:
    if not theirs:
        return of(ours)
    choose = max if ours.more_is_better else min
    return of(ours) / choose(of(figure) for figure in theirs)


def _found(figures: Sequence[Figure], key: Key) -> Figure | None:
    """The figure of a key; a key without circumstances takes any."""
    return next(
        (each for each in figures if each[:3] == key[:3] and (not key.at or each.at == key.at)),
        None,
    )


def _circumstances(ours: Figure, theirs: Sequence[Figure]) -> str:
    told = f"{shown(ours.best)} {ours.unit}"
    if not theirs:
        return told
    choose = max if ours.more_is_better else min
    return f"{told} : {shown(choose(figure.best for figure in theirs))}"
