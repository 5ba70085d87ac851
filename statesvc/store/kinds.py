"""Kinds are data: one declaration each, with id field, lifecycle, queue, indexed fields, ownership and retention.

Owns which states exist and which moves are allowed; how known fields are spelled is shared with the client. Must not
know requests or records. A kind that is not declared is a plain record without a lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from statesvc_client.errors import BadRequest
from statesvc_client.spelling import FIELDS_OF, JOB_ID_ALIASES, Spelling, spelling
from statesvc_client.wire import printable

GIVEN_AT_BIRTH = frozenset({"createdAt", "startedAt", "completedAt"})
"""Managed fields a client may give when a record is made."""

_JOB_LIFECYCLE = """
PENDING       -> INITIALIZING SCHEDULED QUEUED RUNNING FAILED CANCELED
INITIALIZING  -> SCHEDULED QUEUED RUNNING FAILED STOPPED CANCELED
SCHEDULED     -> INITIALIZING QUEUED RUNNING FAILED CANCELED
QUEUED        -> SCHEDULED INITIALIZING RUNNING FAILED CANCELED
RUNNING       -> STOPPING COMPLETED FAILED STOPPED CANCELED TIMEOUT
STOPPING      -> STOPPED COMPLETED FAILED CANCELED TIMEOUT
COMPLETED     ->
FAILED        ->
STOPPED       ->
CANCELED      ->
TIMEOUT       ->
"""


_OPERATION_LIFECYCLE = """
idle      -> queued running
queued    -> idle running stopped failed
running   -> idle paused stopped completed failed
paused    -> idle running stopped completed failed
stopped   -> idle queued running
completed -> idle queued running
failed    -> idle queued running
"""

_WORKER_LIFECYCLE = """
starting -> running paused draining stopping stopped failed
running  -> paused draining stopping stopped failed
paused   -> running draining stopping stopped failed
draining -> running stopping stopped failed
stopping -> stopped failed
stopped  -> starting running
failed   -> starting running
"""


def _table(text: str) -> dict[str, frozenset[str]]:
    rows = (line.split("->") for line in text.strip().splitlines())
    return {state.strip(): frozenset(after.split()) for state, after in rows}


@dataclass(frozen=True)
class Queue:
    """The part states play in a queue."""

    waiting: str
    """Ready as soon as nothing holds it back."""
    delayed: str
    """Ready once its time has come."""
    completed: str
    failed: str
    canceled: str
    timeout: str
    stopping: Mapping[str, str]
    """States on the way to an end, and the end a record in them comes to when its holder is gone."""

    @cached_property
    def claimable(self) -> frozenset[str]:
        return frozenset({self.waiting, self.delayed})

    @cached_property
    def retried(self) -> frozenset[str]:
        """Ends that are not final for the retry policy, and that `retry` takes back."""
        return frozenset({self.failed, self.timeout})


@dataclass(frozen=True)
class Lifecycle:
    """States and the moves between them."""

    edges: Mapping[str, frozenset[str]]
    claimed: str
    """Entering this state sets `startedAt`."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    restarts: frozenset[str] = frozenset()
    """Terminal states that may be left: the record begins anew, and forgets when it started and ended."""
    queue: Queue | None = None

    @cached_property
    def terminal(self) -> frozenset[str]:
        """States without a way out, and those declared to be left only by beginning anew."""
        return self.restarts | {state for state, after in self.edges.items() if not after}

    @cached_property
    def timed(self) -> frozenset[str]:
        """States whose beginning is noted in the record."""
        return self.terminal | {self.claimed}

    @cached_property
    def onward(self) -> frozenset[tuple[str, str]]:
        """Moves along an edge by which nothing is begun anew, nor given back to a queue."""
        returned_to = frozenset() if self.queue is None else self.queue.claimable
        return frozenset(
            (state, next_one)
            for state, after in self.edges.items()
            for next_one in after
            if state not in self.terminal and (next_one not in returned_to or state in self.unstarted)
        )

    @cached_property
    def live(self) -> tuple[str, ...]:
        return tuple(state for state in self.edges if state not in self.terminal)

    @cached_property
    def unstarted(self) -> frozenset[str]:
        """States a record is in before it runs: the claimed state is still ahead."""
        return frozenset(state for state in self.live if self.claimed in self.edges[state]) - {self.claimed}

    @cached_property
    def reachable(self) -> Mapping[str, frozenset[str]]:
        """Every state that can come after a state, over any number of moves."""
        return {state: self._closure(state) for state in self.edges}

    @cached_property
    def _names(self) -> dict[str, str]:
        """Spellings seen as they are written most, and by lower case all others."""
        names = {state: state for state in self.edges} | dict(self.aliases)
        return {spelled.lower(): state for spelled, state in names.items()} | names

    def _closure(self, start: str) -> frozenset[str]:
        seen: set[str] = set()
        ahead = set(self.edges[start])
        while ahead:
            state = ahead.pop()
            seen.add(state)
            ahead |= self.edges[state] - seen
        return frozenset(seen)

    def canonical(self, status: object) -> str:
        """The state a client means, or `BadRequest` naming the known ones."""
        if isinstance(status, str):
            known = self._names.get(status) or self._names.get(status.lower())
            if known is not None:
                return known
        shown = printable(status) if isinstance(status, str) else f"a {type(status).__name__}"
        raise BadRequest(f"unknown status {shown}; known: {' '.join(self.edges)}")

    def extended(self, more: Mapping[str, Sequence[str]]) -> Lifecycle:
        """This lifecycle with further states and moves; a state only named as a target is terminal."""
        edges = dict(self.edges)
        for state, after in more.items():
            edges[self._new(state)] = edges.get(self._new(state), frozenset()) | {self._new(name) for name in after}
        for target in {name for after in edges.values() for name in after}:
            edges.setdefault(target, frozenset())
        return replace(self, edges=edges)

    def _new(self, state: str) -> str:
        """A state of the configuration in the spelling of this lifecycle."""
        known = self._names.get(state.lower())
        if known is not None:
            return known
        return state.lower() if any(name.islower() for name in self.edges) else state.upper()


@dataclass(frozen=True)
class Kind:
    """One declaration: everything the rules need to know about records of this kind."""

    name: str
    id_field: str = "id"
    lifecycle: Lifecycle | None = None
    id_aliases: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()
    """Top-level fields whose text values get an index beside those every kind has."""
    swept_with_owner: bool = True
    """Whether a record goes when its owner has ended. What can run is never removed under those who run it."""
    keeps_tokens: bool = True
    """Whether tombstones stay for ever once a token was given out. Where they go, a floor below all tokens sees to it
    that none comes again."""

    @cached_property
    def spelling(self) -> Spelling:
        """Its known fields, in any case."""
        return spelling(self.id_field, FIELDS_OF.get(self.name, ()), self.id_aliases)

    @property
    def id_text(self) -> str:
        """How error texts call the id: Joblet's agents know it as jobID."""
        return "jobID" if self.name == "job" else "id"

    @cached_property
    def queue(self) -> Queue | None:
        return None if self.lifecycle is None else self.lifecycle.queue

    def is_terminal(self, status: str | None) -> bool:
        return self.lifecycle is not None and status in self.lifecycle.terminal


_QUEUED_LIFECYCLE = Lifecycle(
    _table(_JOB_LIFECYCLE),
    claimed="RUNNING",
    aliases={"CANCELLED": "CANCELED"},
    queue=Queue(
        waiting="QUEUED",
        delayed="SCHEDULED",
        completed="COMPLETED",
        failed="FAILED",
        canceled="CANCELED",
        timeout="TIMEOUT",
        stopping={"STOPPING": "STOPPED"},
    ),
)

JOB = Kind(
    "job",
    id_field="uuid",
    lifecycle=_QUEUED_LIFECYCLE,
    id_aliases=JOB_ID_ALIASES,
    swept_with_owner=False,
    keeps_tokens=False,
)

DECLARED = (
    JOB,
    Kind("task", lifecycle=_QUEUED_LIFECYCLE, swept_with_owner=False, keeps_tokens=False),
    Kind("volume"),
    Kind("mount", indexed=("volume",)),
    Kind("network"),
    Kind("ip", indexed=("network",)),
    Kind(
        "worker",
        lifecycle=Lifecycle(_table(_WORKER_LIFECYCLE), claimed="running", restarts=frozenset({"stopped", "failed"})),
    ),
    Kind("kv"),
    Kind("lock"),
    Kind(
        "operation",
        lifecycle=Lifecycle(
            _table(_OPERATION_LIFECYCLE),
            claimed="running",
            restarts=frozenset({"completed", "failed", "stopped"}),
        ),
        swept_with_owner=False,
    ),
)
"""Every kind with rules of its own."""

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,63}", re.ASCII)


class Kinds(dict[str, Kind]):
    """The declared kinds, with the configuration's extensions, and plain ones on demand. Every request asks for one."""

    _MOST_PLAIN = 1024
    """Plain kinds remembered; the names come from clients, so there is a bound."""

    def __init__(self, lifecycles: Mapping[str, Mapping[str, Sequence[str]]] | None = None) -> None:
        self._declared = {kind.name: kind for kind in DECLARED}
        for name, more in (lifecycles or {}).items():
            self._declared[name] = self._extend(name, more)
        super().__init__(self._declared)

    def _extend(self, name: str, more: Mapping[str, Sequence[str]]) -> Kind:
        kind = self._declared.get(name, Kind(name))
        lifecycle = kind.lifecycle or Lifecycle({}, claimed="")
        return replace(kind, lifecycle=lifecycle.extended(more))

    def declared(self) -> list[Kind]:
        """Kinds with rules of their own."""
        return list(self._declared.values())

    def __missing__(self, name: str) -> Kind:
        if not _NAME.fullmatch(name):
            rule = "a letter, then up to 63 of lower-case letters, digits, '_', '.' and '-'"
            raise BadRequest(f"kind must be {rule}: {printable(name)}")
        if len(self) - len(self._declared) >= self._MOST_PLAIN:
            self.clear()
            self.update(self._declared)
        return self.setdefault(name, Kind(name))
