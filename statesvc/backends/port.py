"""The port every engine implements: conditional commits, queries, the log.

Owns the values that cross between rules and engines. An engine stores what it is given and decides nothing; it must not
know lifecycles, patches or the wire. The rules above must not know SQL, scripts or files.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from statesvc_client.errors import StateError, Unavailable

Key = tuple[str, str]
"""Kind and id of a record."""

Stamp = tuple[str, int]
"""Uid and revision: which state of which record a decision was made on."""

Cursor = str
"""A place in the log. Only the engine that gave it out can read it; "" is the place before the oldest kept entry."""

SortField = Literal[
    "created", "updated", "started", "completed", "scheduled", "priority", "status", "id", "ready", "due", "deleted"
]
"""By `ready` only records that may be claimed are walked, by `due` only those that wait for a time, by `deleted` only
tombstones, which no other walk meets."""

NULLABLE_SORTS = frozenset({"started", "completed", "scheduled", "priority", "status"})
"""Sort keys a listed record may lack; such records come last."""

LINK = ""
"""The name of labels the rules set themselves, such as ("", "leased"): engines index them like any other label."""


class Keys(Struct, array_like=True, frozen=True, gc=False):
    """What the indexes of an engine are made of. Times are UTC nanoseconds, cut to 64 bits."""

    created: int
    updated: int
    status: str | None = None
    node: str | None = None
    owner: str | None = None
    started: int | None = None
    completed: int | None = None
    scheduled: int | None = None
    priority: int | float | None = None
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted. The user's labels with text values, and the links of the rules, whose name is `LINK`."""
    ready: str | None = None
    """Where the record stands in its kind's queue, as text that sorts; None unless it may be claimed."""
    due: int | None = None
    """When the daemon has to look at the record again: its time to become ready, or its deadline."""


REMOVED = -1
"""In `Row.deleted`: the row is to be removed for good, tombstone and all."""


class Row(Struct, array_like=True, frozen=True, gc=False):
    """A record as engines keep it: what is needed to find it, and the record itself as the bytes clients are sent."""

    kind: str
    id: str
    uid: str
    revision: int
    keys: Keys
    body: bytes
    marks: bytes = b""
    deleted: int = 0
    """When it became a tombstone, in nanoseconds; 0 for a living record; `REMOVED` for one that is to vanish."""
    token: int = 0
    """The newest fencing token given out for this id, over all its lives."""

    @property
    def key(self) -> Key:
        return (self.kind, self.id)

    @property
    def stamp(self) -> Stamp:
        return (self.uid, self.revision)


def sort_key(row: Row, sort: SortField) -> Any:
    """What a row is sorted by in the order asked for; None when it lacks it."""
    if sort == "id":
        return row.id
    return row.deleted if sort == "deleted" else getattr(row.keys, sort)


class Was(Struct, array_like=True, frozen=True, gc=False):
    """Index keys a change has replaced, for those who follow the log through a filter."""

    node: str | None = None
    owner: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


class Event(Struct, array_like=True, frozen=True, gc=False):
    """What the log says happened."""

    type: str
    at: int
    before: str | None = None
    after: str | None = None
    """The status before and after, where it changed."""
    was: Was | None = None
    """What filters may ask for, before the change, where it changed."""
    message: str | None = None
    data: bytes | None = None
    """What a client gave to `emit`; `data` is JSON."""


class Write(NamedTuple):
    """One conditional write: it applies only while the stored row still carries the stamp `expects` (None: no row).

    Without an event nobody is told: the row is replaced, and neither `read_log` nor `history` ever shows it. Such a
    write leaves the revision as it is. A row whose `deleted` is `REMOVED` is taken out for good.
    """

    row: Row
    expects: Stamp | None
    event: Event | None
    basis: Row | None = None
    """The very row it was decided on, where that was a guess of the engine's. Hidden writes may have changed the stored
    one since, long ago, and leave the stamp as it is: such a write is a `conflict` unless that row still is what is
    stored. Only engines that guess have to heed it."""


class Guess(NamedTuple):
    """What is most likely stored: a row, or none."""

    row: Row | None


Unit = tuple[Write, ...]
"""Writes that happen together or not at all."""

UNIT_WRITES = 64
"""Writes a unit may hold. The narrowest engine takes 100 items in one transaction, log entries and some of the index
included. The rules never make a larger one."""

Result = Literal["applied", "conflict", "unknown"] | StateError
"""What became of a unit. An error is why this one alone failed, such as a record too large for the engine; its
`outcome` tells whether it may have been applied all the same."""


class LogEntry(NamedTuple):
    """A committed change, at its place in the log."""

    cursor: Cursor
    """Where to read on behind this entry."""
    event: Event
    row: Row


class Place(NamedTuple):
    """Where a page ended: the sort key (None among records that lack it) and the id."""

    key: int | float | str | None
    id: str


class Query(Struct, frozen=True, kw_only=True):
    """One walk along one index. `term` narrows it, and goes with sorting by creation only."""

    kind: str
    sort: SortField = "created"
    descending: bool = True
    limit: int
    missing: bool = False
    """Walk the records that lack the sort key, by id, instead of those that have it."""
    term: tuple[str, ...] | None = None
    """A field ("status", "node", "owner") or "label:<name>", and the values it may have; "" means absent.

    All values are looked for at one moment: a record that moves from one to another is met once.
    """
    low: int | str | None = None
    high: int | str | None = None
    """Bounds of the sort key; low is inclusive, high is exclusive."""
    after: Place | None = None


class Dump(NamedTuple):
    """Everything stored, tombstones included, as it was at one place in the log."""

    cursor: Cursor
    total: int
    """How many rows there will be, as far as that is known."""
    rows: AsyncIterator[list[Row]]


class LogKept(NamedTuple):
    """How much of the log is to be kept."""

    since: int
    """Entries older than this may go, in nanoseconds."""
    most_bytes: int


class Step(NamedTuple):
    """One thing an engine needs from outside, such as a table, and how it stands with it."""

    what: str
    state: Literal["there", "made", "missing", "wrong"]
    """`missing` is what would be made, were this not a dry run; `wrong` is what somebody has to put right."""
    detail: str = ""


class DataCorrupt(Exception):
    """What is stored cannot be trusted: which file, what was found, what to do. The daemon refuses to serve it."""


class BeingReplaced(Unavailable):
    """Everything that is stored is being replaced. Whoever is at it may be gone: an engine that is told to open again
    and again finishes it then."""


class EngineBroken(Exception):
    """The engine met a failure it must not go on after, such as a failed fsync. The daemon ends."""


class Engine(ABC):
    """A place where rows live.

    `immediate` engines answer `peek` at once and never see a conflict from elsewhere, because this process owns their
    data. Others answer only through `get`, and every commit may lose a race.
    A failed commit raises an error of the client's tree with its true outcome; a driver's own error never leaves.
    Every call that leaves the process has a deadline: an engine that is away or hangs answers `Unavailable` in time.
    """

    name: ClassVar[str]
    immediate: ClassVar[bool] = False
    side_by_side: int = 1
    """Commits that may be under way at once. Units that share a record are never in two of them."""
    timeout_seconds: float = math.inf
    """How long a request may wait without an answer to anybody, in line or for its own call, before it is told so."""
    commit_seconds: float = 0.0
    """What a commit may take at most: so long after it was handed over nothing of it is applied any more."""
    durability: str
    epoch: str
    server: int = 0
    """Goes up when another server takes the place of the one that answered; the epoch may stay. What was read from one
    the next may lack, unless it was safe."""
    broke: Callable[[EngineBroken | DataCorrupt], None] = staticmethod(lambda _: None)
    began_anew: Callable[[], None] = staticmethod(lambda: None)
    """Is told after `epoch` has changed under a running daemon: acknowledged state may have been lost."""
    adopt: Callable[[Key, bytes], Row] = staticmethod(lambda _key, _body: _nobody_adopts())
    """Makes the row of a record that came into the store by another hand, from its id and its JSON: revision 0."""

    def on_broken(self, tell: Callable[[EngineBroken | DataCorrupt], None]) -> None:
        """Whom to tell when the engine can no longer serve, and why: it failed, or came upon damage it cannot pass."""
        self.broke = tell

    def own(self) -> None:  # noqa: B027 - engines that nobody else can open have nothing to lock
        """Claim what only one daemon may have, before anything is opened. Raises when another has it."""

    @abstractmethod
    async def open(self) -> None:
        """Make ready to serve: create, migrate, replay."""

    @abstractmethod
    async def close(self) -> None:
        """Finish everything handed over, then let go."""

    @abstractmethod
    async def ping(self) -> None:
        """Raise unless a read would work now."""

    async def prepare(self, *, dry_run: bool) -> list[Step]:  # noqa: ARG002 - most engines need nothing
        """Make what the engine needs from outside, or with `dry_run` only look; call it instead of `open`."""
        return []

    async def assure(self, read_from: int | None = None) -> None:  # noqa: B027 - mostly what can be read is safe
        """Return once everything that can be read now is as safe as `durability` says; raises, with outcome
        `unknown`, when it is not in time.

        A commit that answers `applied` is. One whose answer was lost may be readable and not yet that safe. `read_from`
        is what `server` was before the reads that count: where it is another by now, nobody knows what they are worth.
        """

    def peek(self, key: Key) -> Row | None:
        """The newest committed row, tombstones included, without waiting. Immediate engines only."""
        raise NotImplementedError

    def guess(self, key: Key) -> Guess | None:  # noqa: ARG002 - most engines have no idea
        """What is most likely stored, without asking; None: no idea. It may be outdated, so nobody is told of it. A
        write may be decided on it, with that row as its `basis`: its commit tells whether it was right."""
        return None

    @abstractmethod
    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The newest committed rows, tombstones included."""

    @abstractmethod
    async def query(self, query: Query) -> list[Row]:
        """Living rows in the order asked for, at most `limit`. Fewer than `limit` means the walk is over."""

    async def count(self, query: Query) -> int:
        """How many rows the whole walk would yield. Engines that can count without fetching do it their way."""
        total, rows = 0, await self.query(query)
        while len(rows) == query.limit:
            total += len(rows)
            last = rows[-1]
            query = replace(query, after=Place(None if query.missing else sort_key(last, query.sort), last.id))
            rows = await self.query(query)
        return total + len(rows)

    @abstractmethod
    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        """Apply units, each wholly or not at all, each on its own; they are then as safe as `durability` says.

        Units of one batch that share a record are applied in their order, so that one may build on the one before. One
        that expects the stamp of a row which an earlier unit of the batch would have made, and did not, is `conflict`
        even if the stored row carries that stamp: it is another's, made meanwhile, and not what was built on.
        `conflict` means that nothing of the unit is stored; `unknown` that a read has to tell. A unit of more than
        `UNIT_WRITES` may be refused with `BadRequest`, and then nothing of the batch is stored.
        """

    async def commit_within(self, batch: Sequence[Unit], seconds: float) -> list[Result]:  # noqa: ARG002 - see below
        """The same when only so much is left of `timeout_seconds`, because those who wait for it have waited before.
        Engines that have no such time take theirs."""
        return await self.commit(batch)

    @abstractmethod
    async def kinds(self) -> list[str]:
        """The kinds there are rows of, tombstones included, sorted."""

    # --- the log ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def position(self) -> Cursor:
        """The place behind the newest committed entry."""

    async def position_for_queries(self) -> Cursor:
        """A place behind which every entry is that a query made after this call may miss. Where queries see everything
        committed that is `position`; elsewhere it lies as far back as queries may."""
        return await self.position()

    @abstractmethod
    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        """Entries behind `after`, oldest first. Raises `Gone` when some behind it are no longer kept.

        An engine may hand out fewer than `limit`; only an empty list says that there are no more for now.
        """

    @abstractmethod
    async def log_grew(self, after: Cursor, seconds: float) -> None:
        """Return when there may be entries behind `after`, or when the time is over."""

    @abstractmethod
    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        """Kept entries of one record behind `after`, oldest first. What is no longer kept is simply not there."""

    @abstractmethod
    async def compact(self, keep: LogKept) -> bool:
        """One small step of cutting the log and giving space back; True while there is more to do.

        Short enough to be done while serving. Only what is applied and synced is ever cut.
        """

    # --- the whole -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def dump(self) -> Dump:
        """Everything there is, while others go on writing."""

    @abstractmethod
    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        """Replace everything by these rows, under a new epoch and with an empty log: wholly or not at all.

        Nothing else may be under way: the caller has stopped all writes and waited for those under way.
        """

    @abstractmethod
    async def check(self) -> list[str]:
        """What is inconsistent, in words; empty when all is well."""

    @abstractmethod
    async def repair(self) -> list[str]:
        """Make again what can be made again from what is intact, such as indexes; returns what was done, in words."""

    def measures(self) -> dict[str, int]:
        """Figures for people: sizes in bytes, entries waiting. Names are camelCase."""
        return {}


def _nobody_adopts() -> NoReturn:
    raise NotImplementedError("whoever opens an engine with records of other hands says how they are adopted")
