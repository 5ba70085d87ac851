"""Where a store is moved to: rows as they are, and a row of its own that says how far the move is.

Owns writing and removing rows, and the marker. Must not know where rows come from.

The target is frozen from before the first row until the move is complete, so that no daemon on it takes a write in
between. That it is complete is noted in the very unit that ends the freeze: no kill falls in between, and a freeze that
is found later is not ours to end. What is written there nobody is told of: its log begins with the first write after
the move.

Each run writes the marker before anything else, and rows only while it is as that run left it: one that stood still
while another went on, and perhaps completed the move, writes nothing more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from statesvc_client.errors import Busy, Conflict, StateError
from statesvc_client.wire import printable

from .. import failpoints
from ..backends.epoch_names import token_floor
from ..backends.port import REMOVED, Cursor, Dump, Key, LogEntry, Row, Stamp, Write
from ..store import own
from .fingerprints import Fingerprint, fingerprint
from .holdings import Holding

MARKER: Key = (own.KIND, "migration")
"""The row that says whose copy a store is."""

SWEEPER: Key = ("lock", "_sweeper")
"""Which daemon does the duties: each store's own."""

BATCH_ROWS = 1000
BATCH_BYTES = 4 * 1024 * 1024
"""What is handed to the engine in one commit, whichever comes first. Each engine cuts it as it likes."""

ATTEMPTS = 8
"""How often a row is written that another keeps changing, or whose fate stays unknown, before it is given up."""

Ledger = dict[str, dict[str, Fingerprint]]
"""What is stored: kind, id, fingerprint."""

LeftOut = Callable[[Row], bool]
"""Whether a record is not worth moving: it is about to vanish where it goes."""


class Marker(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How far a move into this store is."""

    id: str = MARKER[1]
    uid: str = own.KIND
    revision: int = 1
    backend: str
    """Of the source."""
    epoch: str
    began_at: str
    updated_at: str
    cursor: Cursor | None = None
    """Up to where the source's log has been followed; None until everything has been copied once."""
    completed_at: str | None = None
    """Writes are taken here since."""
    report: dict[str, Any] | None = None
    """What a complete move came to."""


_decode_marker = msgspec.json.Decoder(Marker).decode


def read_marker(row: Row) -> Marker:
    return _decode_marker(row.body)


def is_moved(row: Row) -> bool:
    """Whether a row goes along: what the daemons of a store keep about themselves does not."""
    return row.kind != own.KIND and row.key != SWEEPER


class Target:
    """A store that is being moved into."""

    def __init__(self, holding: Holding, left_out: LeftOut = lambda _: False) -> None:
        self._holding = holding
        self._engine = holding.engine
        self._store = holding.store
        self.left_out = left_out
        self.backend = holding.engine.name
        self.floor = 0
        """No token up to this one may be given out again."""
        self._left: Row | None = None
        """The marker as it was written here last."""

    @property
    def epoch(self) -> str:
        return self._engine.epoch

    async def is_frozen(self) -> bool:
        return await self._holding.is_frozen()

    async def freeze(self) -> None:
        await self._holding.freeze()

    async def thaw(self) -> None:
        await self._holding.thaw()

    async def hand_over(self, marker: Marker) -> None:
        """Complete the move. From the return of this on every daemon here takes writes."""
        marker.completed_at = self.now()
        await self._mark(marker, thawing=True)
        await self._holding.until_thaw_is_heeded()

    async def close(self) -> None:
        await self._holding.close()

    # --- what is there ---------------------------------------------------------------------------------------------

    async def is_empty(self) -> bool:
        """Whether nothing is stored but what daemons keep about themselves."""
        if not set(await self._engine.kinds()) - {own.KIND, SWEEPER[0]}:
            async for rows in _pages(await self._engine.dump()):
                if any(is_moved(row) for row in rows):
                    return False
            return True
        return False

    async def ledger(self, tell: Callable[[int, int], None]) -> Ledger:
        """A fingerprint of everything that is stored."""
        ledger: Ledger = {}
        dump = await self._engine.dump()
        seen = 0
        async for rows in _pages(dump):
            for row in rows:
                if is_moved(row) and not self.left_out(row):
                    ledger.setdefault(row.kind, {})[row.id] = fingerprint(row)
            seen += len(rows)
            tell(seen, max(seen, dump.total))
        return ledger

    # --- rows ------------------------------------------------------------------------------------------------------

    async def put(self, rows: Sequence[Row], *, new: bool = False) -> None:
        """Store rows as they are, whatever is there. `new`: nothing is, as far as is known."""
        for some in _batches(rows):
            expected = {} if new else await self._stamps(row.key for row in some)
            await self._write(some, expected)

    async def forward(self, entries: Iterable[LogEntry]) -> int:
        """Store what the log tells of, where it is news; returns how many rows that were."""
        newest = {entry.row.key: entry.row for entry in entries if self._goes_along(entry.row)}
        if not newest:
            return 0
        expected = await self._stamps(newest)
        news = [row for key, row in newest.items() if _is_news(row, expected.get(key))]
        for some in _batches(news):
            await self._write(some, expected)
        return len(news)

    def _goes_along(self, row: Row) -> bool:
        return is_moved(row) and row.deleted != REMOVED and not self.left_out(row)

    async def remove(self, keys: Sequence[Key]) -> None:
        """Take rows out for good. Their tokens must not come again."""
        for begin in range(0, len(keys), BATCH_ROWS):
            found = [row for row in await self._engine.get(keys[begin : begin + BATCH_ROWS]) if row is not None]
            self.floor = max([self.floor, *(row.token for row in found)])
            gone = [msgspec.structs.replace(row, deleted=REMOVED) for row in found]
            await self._write(gone, {row.key: row.stamp for row in found})

    async def _stamps(self, keys: Iterable[Key]) -> dict[Key, Stamp]:
        found = await self._engine.get(list(keys))
        return {row.key: row.stamp for row in found if row is not None}

    async def _write(self, rows: Sequence[Row], expected: Mapping[Key, Stamp]) -> None:
        for _ in range(ATTEMPTS):
            # After what is expected was read: whatever another changes from here on is a conflict.
            await self._check_ours()
            results = await self._engine.commit([(Write(row, expected.get(row.key), None),) for row in rows])
            if failpoints.armed:
                failpoints.reach("migrate.inside")
            for row, result in zip(rows, results, strict=True):
                if isinstance(result, StateError):
                    raise _of_record(row, result)
            unsure = [row for row, result in zip(rows, results, strict=True) if result != "applied"]
            if not unsure:
                return
            found = {row.key: row for row in await self._engine.get([row.key for row in unsure]) if row is not None}
            rows = [row for row in unsure if not _stands(row, found.get(row.key))]
            expected = {key: row.stamp for key, row in found.items()}
            if not rows:
                return
        kind, name = rows[0].key
        raise Busy(f"{kind} {name} keeps changing in the target: a daemon that is not frozen writes there")

    async def _check_ours(self) -> None:
        (found,) = await self._engine.get([MARKER])
        if found != self._left:
            raise another_move()

    # --- the marker and other rows of the daemon's own -------------------------------------------------------------

    async def marker(self) -> Marker | None:
        """Whose copy this store is, if it is one."""
        (found,) = await self._engine.get([MARKER])
        return read_marker(found) if found is not None and own.is_ours(found) else None

    def new_marker(self, backend: str, epoch: str) -> Marker:
        return Marker(revision=0, backend=backend, epoch=epoch, began_at=self.now(), updated_at="")

    def now(self) -> str:
        moment = self._store.moment()
        return moment.text(moment.now)

    async def mark(self, marker: Marker) -> None:
        """Note how far the move is. Raises when another one has noted something since."""
        await self._mark(marker, thawing=False)

    async def _mark(self, marker: Marker, *, thawing: bool) -> None:
        expects = (own.KIND, marker.revision) if marker.revision else None
        marker.revision += 1
        marker.updated_at = self.now()
        row = self._marked(marker)
        for _ in range(ATTEMPTS):
            end_of_freeze = await self._end_of_freeze() if thawing else ()
            (result,) = await self._engine.commit([(Write(row, expects, None), *end_of_freeze)])
            if isinstance(result, StateError):
                raise result
            (found,) = await self._engine.get([MARKER]) if result != "applied" else (row,)
            if found == row:
                self._left = row
                return
            if (None if found is None else found.stamp) != expects:
                raise another_move()
        raise Busy("how far the move is cannot be noted in the target: its answers stay unknown")

    async def _end_of_freeze(self) -> tuple[Write, ...]:
        (found,) = await self._engine.get([own.FREEZE])
        return () if found is None else (own.removal(found),)

    def _marked(self, marker: Marker) -> Row:
        plain = own.row(self._store, MARKER)
        return msgspec.structs.replace(plain, revision=marker.revision, body=msgspec.json.encode(marker))

    async def start_over(self, marker: Marker) -> None:
        """Forget everything that is stored, under a new epoch; it is a frozen target from then on."""
        async for rows in _pages(await self._engine.dump()):
            self.floor = max([self.floor, *(row.token for row in rows)])
        self.floor = max(self.floor, token_floor(self.epoch))
        marker.revision += 1
        marker.updated_at = self.now()
        store = self._store
        self._left = self._marked(marker)
        ours = [self._left, own.row(store, own.FREEZE), own.row(store, own.TOKENS, token=self.floor)]
        await self._engine.load(_one_page(ours))

    async def raise_floor(self, least: int) -> int:
        """Keep tokens above all that were given out in the source, or here before; returns up to which."""
        (stored,) = await self._engine.get([own.TOKENS])
        floor = max(self.floor, least, stored.token if stored is not None else 0)
        if floor > (stored.token if stored is not None else 0):
            await own.keep(self._store, own.row(self._store, own.TOKENS, token=floor))
        return floor


async def _pages(dump: Dump) -> AsyncIterator[list[Row]]:
    async with aclosing(dump.rows) as pages:  # type: ignore[type-var]  # all of them are generators
        async for rows in pages:
            yield rows


async def _one_page(rows: list[Row]) -> AsyncIterator[list[Row]]:
    yield rows


def _batches(rows: Sequence[Row]) -> Iterable[list[Row]]:
    some: list[Row] = []
    room = BATCH_BYTES
    for row in rows:
        some.append(row)
        room -= len(row.body) + len(row.marks)
        if room <= 0 or len(some) == BATCH_ROWS:
            yield some
            some, room = [], BATCH_BYTES
    if some:
        yield some


def another_move() -> Conflict:
    return Conflict("another migrate writes to the same target, or did: let one of them end")


def _of_record(row: Row, refused: StateError) -> StateError:
    """What the engine will not take, with the name of the record."""
    text = f"{row.kind} {printable(row.id, 256)} cannot be moved: {refused.text}"
    return type(refused)(text, outcome=refused.outcome)


def _is_news(row: Row, stored: Stamp | None) -> bool:
    """A copy may be ahead of the place in the log it was taken at: within one life of a record nothing goes back."""
    return stored is None or stored[0] != row.uid or stored[1] < row.revision


def _stands(row: Row, stored: Row | None) -> bool:
    if row.deleted == REMOVED:
        return stored is None
    return stored is not None and fingerprint(stored) == fingerprint(row)
