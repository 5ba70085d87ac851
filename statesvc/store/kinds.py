"""Kinds are data: one declaration each, with id field, lifecycle and known fields.

Owns which states exist and which moves are allowed; how known fields are spelled is shared with the client. Must not
know requests or records. A kind that is not declared is a plain record without a lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from statesvc_client.errors import BadRequest
from statesvc_client.spelling import JOB_FIELDS, JOB_ID_ALIASES, Spelling, spelling
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


def _table(text: str) -> dict[str, frozenset[str]]:
    rows = (line.split("->") for line in text.strip().splitlines())
    return {state.strip(): frozenset(after.split()) for state, after in rows}


@dataclass(frozen=True)
class Lifecycle:
    """States and the moves between them. A state without a way out is terminal."""

    edges: Mapping[str, frozenset[str]]
    claimed: str
    """Entering this state sets `startedAt`."""
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def terminal(self) -> frozenset[str]:
        return frozenset(state for state, after in self.edges.items() if not after)

    @cached_property
    def live(self) -> tuple[str, ...]:
        return tuple(state for state, after in self.edges.items() if after)

    @cached_property
    def reachable(self) -> Mapping[str, frozenset[str]]:
        """Every state that can come after a state, over any number of moves."""
        return {state: self._closure(state) for state in self.edges}

    @cached_property
    def _names(self) -> dict[str, str]:
        """Spellings seen as they are written most; any other case goes through upper()."""
        return {state: state for state in self.edges} | dict(self.aliases)

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
            known = self._names.get(status) or self._names.get(status.upper())
            if known is not None:
                return known
        shown = printable(status) if isinstance(status, str) else f"a {type(status).__name__}"
        raise BadRequest(f"unknown status {shown}; known: {' '.join(self.edges)}")

    def extended(self, more: Mapping[str, Sequence[str]]) -> Lifecycle:
        """This lifecycle with further states and moves; a state only named as a target is terminal."""
        edges = dict(self.edges)
        for state, after in more.items():
            edges[state.upper()] = edges.get(state.upper(), frozenset()) | {name.upper() for name in after}
        for target in {name for after in edges.values() for name in after}:
            edges.setdefault(target, frozenset())
        return Lifecycle(edges, self.claimed, self.aliases)


@dataclass(frozen=True)
class Kind:
    """One declaration: everything the rules need to know about records of this kind."""

    name: str
    id_field: str = "id"
    lifecycle: Lifecycle | None = None
    fields: tuple[str, ...] = ()
    id_aliases: tuple[str, ...] = ()

    @cached_property
    def spelling(self) -> Spelling:
        """Its known fields, in any case."""
        return spelling(self.id_field, self.fields, self.id_aliases)

    @property
    def id_text(self) -> str:
        """How error texts call the id: Joblet's agents know it as jobID."""
        return "jobID" if self.name == "job" else "id"


JOB = Kind(
    "job",
    id_field="uuid",
    lifecycle=Lifecycle(_table(_JOB_LIFECYCLE), claimed="RUNNING", aliases={"CANCELLED": "CANCELED"}),
    fields=JOB_FIELDS,
    id_aliases=JOB_ID_ALIASES,
)

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,63}", re.ASCII)


class Kinds:
    """The declared kinds, with the configuration's extensions, and plain ones on demand."""

    _MOST_PLAIN = 1024
    """Plain kinds remembered; the names come from clients, so there is a bound."""

    def __init__(self, lifecycles: Mapping[str, Mapping[str, Sequence[str]]] | None = None) -> None:
        self._declared = {JOB.name: JOB}
        self._plain: dict[str, Kind] = {}
        for name, more in (lifecycles or {}).items():
            self._declared[name] = self._extend(name, more)

    def _extend(self, name: str, more: Mapping[str, Sequence[str]]) -> Kind:
        kind = self._declared.get(name, Kind(name))
        lifecycle = kind.lifecycle or Lifecycle({}, claimed="")
        return Kind(kind.name, kind.id_field, lifecycle.extended(more), kind.fields, kind.id_aliases)

    def __getitem__(self, name: str) -> Kind:
        kind = self._declared.get(name) or self._plain.get(name)
        return kind if kind is not None else self._plain_kind(name)

    def _plain_kind(self, name: str) -> Kind:
        if not _NAME.fullmatch(name):
            raise BadRequest(f"kind must be lower-case letters, digits, '_', '.' and '-': {printable(name)}")
        if len(self._plain) >= self._MOST_PLAIN:
            self._plain.clear()
        return self._plain.setdefault(name, Kind(name))
