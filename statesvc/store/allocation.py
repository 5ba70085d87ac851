"""Allocation: a record whose id is the lowest free address of a network.

Owns what is remembered of each network, and how an address is taken, found again and taken back. Must not know the
arithmetic of addresses: that is in addresses.py.

What is remembered only says where to look. An address is taken by a conditional create of its record, so it is never
given out twice, whatever is remembered. A record of any other id that names an address of the network keeps it from
being given out as well, from when this daemon has seen it. An owned address is free once its owner has ended: when
nothing else is left, such addresses are taken back here, before the ordinary clean-up comes to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec.structs import replace

from statesvc_client.errors import BadRequest, Busy, Conflict, NotFound, StateError
from statesvc_client.wire import Create, Fields, printable

from ..backends.port import LINK, Key, Query, Row, Stamp, Unit, Write
from . import queries, writes
from .addresses import Pool, Taken, read_loosely, read_number, read_pool, text_of
from .consistency import record_of
from .leasing import is_leased, origin_of
from .racing import ATTEMPTS
from .records import MADE, checked_id, decode
from .store import Store
from .turns import Turns
from .writes import NOBODY, Caller, Subject, living

KIND = "ip"
NETWORK = "network"

MOST_NETWORKS = 64
MOST_ADDRESSES = 1_000_000
"""What is remembered in all, at about a hundred bytes an address; the network asked for last is always remembered."""

SHARED_SECONDS = 1.0
"""How long something is remembered where other daemons give out addresses too, and take them back unseen."""

STEP = 64
"""Addresses looked at, or taken back, together."""


class Allocated(NamedTuple):
    """The record of an address, and whether this very request had made it before."""

    row: Row
    duplicate: bool = False


class _Asked(NamedTuple):
    """A request for an address, read."""

    network: str
    fields: Fields
    caller: Caller
    made: tuple[str, str] | None
    """The label by which the record is found when the request comes again."""


class _Known:
    """What is remembered of one network."""

    def __init__(self, name: str, epoch: str, since: float) -> None:
        self.name = name
        self.epoch = epoch
        self.since = since
        self.taken = Taken()
        self.filled = False
        self.owners_seen = False
        """Every owner was looked at since; from then on their ends are noticed."""
        self.noticed: set[str] = set()
        """Records heard of while the stored ones are still being read: what is read of those may be old."""
        self.turn = asyncio.Lock()
        self._link = (LINK, f"{NETWORK}={name}")
        self._named: dict[str, int] = {}
        """The address that a record names, where that is not the one its id stands for."""
        self._pool: tuple[Stamp, Pool | str] | None = None
        """What the network's record describes, or why it describes nothing."""

    def anew(self, since: float) -> _Known:
        """The same network, nothing known about its addresses."""
        other = _Known(self.name, self.epoch, since)
        other._pool = self._pool
        return other

    def pool(self, network: Row) -> Pool:
        if self._pool is None or self._pool[0] != network.stamp:
            self._pool = (network.stamp, self._read_pool(network))
        if isinstance(self._pool[1], str):
            raise BadRequest(self._pool[1])
        return self._pool[1]

    def _read_pool(self, network: Row) -> Pool | str:
        try:
            return read_pool(self.name, decode(network.body))
        except BadRequest as refused:
            return refused.text

    def concerns(self, row: Row) -> bool:
        return row.id.startswith(f"{self.name}/") or self._link in row.keys.labels or row.id in self._named

    def note(self, row: Row) -> None:
        """The record of an address came, changed or went."""
        if not self.filled:
            self.noticed.add(row.id)
        self.count(row)

    def count(self, row: Row) -> None:
        network, _, address = row.id.rpartition("/")
        number = read_number(address) if network == self.name else None
        if number is not None and row.deleted:
            self.taken.free(number)
        elif number is not None:
            self.taken.take(number, row.keys.owner)
        self._count_named(row, None if number is None else address, number)

    def _count_named(self, row: Row, address: str | None, number: int | None) -> None:
        before = self._named.pop(row.id, None)
        if before is not None:
            self.taken.unname(before)
        record = None if row.deleted or self._link not in row.keys.labels else record_of(row)
        named = None if record is None else record.get("address")
        other = read_loosely(named) if isinstance(named, str) and named != address else None
        if other is not None and other != number:
            self._named[row.id] = other
            self.taken.name(other)

    def key(self, number: int) -> Key:
        return (KIND, f"{self.name}/{text_of(number)}")


class Pools:
    """Gives out addresses."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Known] = {}

    def committed(self, units: Sequence[Unit]) -> None:
        """Is told of every commit."""
        if self._known:
            for unit in units:
                for write in unit:
                    self._notice(write.row)

    def _notice(self, row: Row) -> None:
        """An address came or went, or an owner ended."""
        if row.kind == KIND:
            for known in self._known.values():
                if known.concerns(row):
                    known.note(row)
        if row.deleted or self._store.kinds[row.kind].is_terminal(row.keys.status):
            for known in self._known.values():
                known.taken.owner_ended(f"{row.kind}/{row.id}")

    async def allocate(self, request: Create, caller: Caller, *, replayed: bool = False) -> Allocated:
        """The lowest free address, now taken. `replayed`: its seq has passed on this connection before."""
        self._store.check_thawed()
        asked = self._read(request, caller)
        if request.again or replayed:
            server = self._store.engine.server
            before = await self._made_before(asked)
            if before is not None:
                await self._store.engine.assure(server)
                return Allocated(before, duplicate=True)
            if replayed:
                raise Conflict(f"write {request.seq} came before on this connection and was answered then")
        # Addresses that were named before this request came are noticed once their records are committed.
        await self._store.commits.settled()
        for _ in range(ATTEMPTS):
            known, pool = await self._look_up(asked.network)
            allocated = await self._take_lowest(asked, known)
            if allocated is not None:
                return allocated
            if not await self._take_back(known):
                raise Conflict(f"network {printable(asked.network)} has no free address ({pool.size} in use)")
        raise Busy(f"the addresses of network {printable(asked.network)} keep changing; send the request again")

    def _read(self, request: Create, caller: Caller) -> _Asked:
        store, network = self._store, request.from_ or ""
        if request.kind != KIND:
            raise BadRequest(f"from allocates an address, for kind {KIND}; {printable(request.kind)} has no pool")
        kind = store.kinds[KIND]
        fields = writes.payload(request, kind) or {}
        checked_id(store.kinds[NETWORK], network, store.limits.id_chars)
        for name in (kind.id_field, "address"):
            if fields.get(name) or (name == kind.id_field and request.target):
                raise BadRequest(f"from allocates the address: leave {name} out, or leave from out and name the id")
        if fields.get(NETWORK, network) != network:
            raise BadRequest(f"from and network differ: {printable(network)} and {printable(str(fields[NETWORK]))}")
        origin = origin_of(request, caller)
        return _Asked(network, fields, caller, None if origin is None else (LINK, f"{MADE}{origin}"))

    async def _made_before(self, asked: _Asked) -> Row | None:
        """What this very request made when it first came, if it is still there."""
        if asked.made is None:
            return None
        await self._store.commits.settled()
        query = Query(kind=KIND, limit=1, term=(f"label:{LINK}", asked.made[1]))
        found = await self._store.look([row.key for row in await self._store.engine.query(query)])
        return next((row for row in found if row is not None and asked.made in row.keys.labels), None)

    # --- what is remembered ----------------------------------------------------------------------------------------

    async def _look_up(self, name: str) -> tuple[_Known, Pool]:
        (row,) = await self._store.look([(NETWORK, name)])
        network = living(row)
        if network is None:
            await self._store.commits.settled()
            raise NotFound(f"network {printable(name)} not found")
        known = self._remembered(name)
        pool = known.pool(network)
        async with known.turn:
            try:
                await self._make_ready(known, pool)
            except BaseException:
                self._forget(known)
                raise
        return known, pool

    def _remembered(self, name: str) -> _Known:
        store = self._store
        known, now = self._known.pop(name, None), store.clock.steady()
        if known is not None and known.epoch != store.engine.epoch:
            known = None  # everything was replaced
        if known is not None and not store.engine.immediate and now - known.since > SHARED_SECONDS:
            known = known.anew(now)
        self._known[name] = known = known or _Known(name, store.engine.epoch, now)
        self._make_room()
        return known

    def _make_room(self) -> None:
        """Forget networks nobody asked for lately, so that memory stays bounded."""
        total = sum(len(known.taken) for known in self._known.values())
        while len(self._known) > 1 and (len(self._known) > MOST_NETWORKS or total > MOST_ADDRESSES):
            oldest = next(iter(self._known.values()))
            total -= len(oldest.taken)
            self._forget(oldest)

    def _forget(self, known: _Known) -> None:
        if self._known.get(known.name) is known:
            del self._known[known.name]

    async def _make_ready(self, known: _Known, pool: Pool) -> None:
        turns = Turns()
        if not known.filled:
            await self._fill(known, turns)
        while known.taken.follow(pool):
            await turns.pause()

    async def _fill(self, known: _Known, turns: Turns) -> None:
        """Read which addresses are out. What is committed meanwhile is noticed, and newer."""
        await self._store.commits.settled()
        walk = Query(kind=KIND, limit=queries.FIRST_STEP, term=(f"label:{LINK}", f"{NETWORK}={known.name}"))
        async with aclosing(queries.walked(self._store.engine, walk)) as rows:
            async for row in rows:
                if row.id not in known.noticed:
                    known.count(row)
                await turns.pause()
        known.filled = True
        known.noticed.clear()

    # --- taking ----------------------------------------------------------------------------------------------------

    async def _take_lowest(self, asked: _Asked, known: _Known) -> Allocated | None:
        """Take the lowest address that is free; None when there is none left."""
        turns = Turns()
        while (number := known.taken.lowest()) is not None:
            # At once, so that whoever comes next looks at another.
            known.taken.take(number, None)
            try:
                made, other = await self._take(asked, known.key(number), text_of(number))
            except StateError as error:
                if error.stops_the_writer():
                    self._forget(known)
                else:
                    known.taken.free(number)
                raise
            if made is not None:
                known.taken.take(number, made.row.keys.owner)
                return made
            known.taken.take(number, None if other is None else other.keys.owner)
            await turns.pause()
        return None

    async def _take(self, asked: _Asked, key: Key, address: str) -> tuple[Allocated | None, Row | None]:
        """Make the record of an address; or say who has it."""
        store, kind = self._store, self._store.kinds[KIND]
        checked_id(kind, key[1], store.limits.id_chars)
        fields = {**asked.fields, NETWORK: asked.network, "address": address}
        uids: set[str] = set()
        seen: list[Row | None] = [None]

        def decide(rows: list[Row | None]) -> Unit | None:
            seen[:] = rows
            subject = Subject(kind, key[1], rows[0])
            if subject.living is not None:
                return None
            # No mark: it is found again by its label, whichever address it got.
            write = writes.born(None, fields, subject, asked.caller, store.moment())
            uids.add(write.row.uid)
            return (_labelled(write, asked.made),)

        server = store.engine.server
        unit = await store.attempt([key], decide)
        if unit is not None:
            return Allocated(unit[0].row), None
        row = seen[0]
        if row is not None and row.uid in uids:
            await store.engine.assure(server)
            return Allocated(row), None  # committed after all, and changed since
        if row is not None and asked.made is not None and asked.made in row.keys.labels:
            await store.engine.assure(server)
            return Allocated(row, duplicate=True), None
        return None, row

    # --- taking back -----------------------------------------------------------------------------------------------

    async def _take_back(self, known: _Known) -> bool:
        """Free addresses whose owners have ended; whether there is any use in looking for a free one again."""
        async with known.turn:
            # Whatever was decided so far, by others too, is settled before anybody is told that nothing is left.
            await self._store.commits.settled()
            if self._known.get(known.name) is not known or known.taken.lowest() is not None:
                return True
            if not known.owners_seen or not self._store.engine.immediate:
                known.owners_seen = True
                await self._look_at_owners(known)
            while known.taken.ended and known.taken.lowest() is None:
                some = sorted(known.taken.ended)[:STEP]
                known.taken.ended.difference_update(some)
                await asyncio.gather(*(self._take_back_one(known, number) for number in some))
            return known.taken.lowest() is not None

    async def _look_at_owners(self, known: _Known) -> None:
        numbers, turns = list(known.taken.owners), Turns()
        for start in range(0, len(numbers), STEP):
            some = numbers[start : start + STEP]
            rows = await self._store.look([known.key(number) for number in some])
            for number, row in zip(some, map(living, rows), strict=True):
                if row is None:
                    known.taken.free(number)
                elif await self._owner_has_ended(row):
                    known.taken.ended.add(number)
            await turns.pause()

    async def _owner_has_ended(self, row: Row) -> bool:
        key = _owner(row)
        return key is not None and self._has_ended((await self._store.look([key]))[0])

    def _has_ended(self, owner: Row | None) -> bool:
        """Whether an owner was there and is no longer: one that never came may still come."""
        if owner is None:
            return False
        return bool(owner.deleted) or self._store.kinds[owner.kind].is_terminal(owner.keys.status)

    async def _take_back_one(self, known: _Known, number: int) -> None:
        store, key = self._store, known.key(number)
        (row,) = await store.look([key])
        owner = None if row is None else _owner(row)
        keys = [key] if owner is None else [key, owner]
        gone = [False]

        def decide(rows: list[Row | None]) -> Unit | None:
            row = living(rows[0])
            gone[0] = row is None
            if row is None or owner is None or _owner(row) != owner or is_leased(row) or not self._has_ended(rows[1]):
                return None
            return (writes.bury(None, row, NOBODY, store.moment()),)

        if await store.attempt(keys, decide) is not None or gone[0]:
            known.taken.free(number)


def _labelled(write: Write, label: tuple[str, str] | None) -> Write:
    if label is None:
        return write
    keys = write.row.keys
    return write._replace(row=replace(write.row, keys=replace(keys, labels=tuple(sorted((*keys.labels, label))))))


def _owner(row: Row) -> Key | None:
    kind, slash, name = (row.keys.owner or "").partition("/")
    return (kind, name) if slash and kind and name else None
