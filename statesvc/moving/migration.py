"""The move itself: copy, follow, and with the cut-over freeze, follow to the end, settle, verify, hand over.

Owns this order, and what an interrupted move goes on from. Must not know engines, addresses or the command line.

    admitted     the target is empty, or the copy of this very source that an earlier run left
    copied       everything was compared once; the place in the source's log is noted in the target's marker
    followed     what the log told since is there too
    settled      source and target were read through and nothing differed; only then, and with the source frozen,
                 the move is complete, and the target takes writes

Any step may be cut short, by a kill too, and done again: what is there already is found by its fingerprint and not
written twice. What nobody is told of (a promoted record, a tombstone that went) is in no log: settling finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from msgspec import Struct, convert, to_builtins

from statesvc_client.errors import Conflict, Gone
from statesvc_client.wire import printable

from .. import failpoints
from ..backends.epoch_names import token_floor
from ..backends.port import Cursor, Key, Row
from ..store import own
from .fingerprints import Counting, Tally, fingerprint, whole
from .sources import Source
from .target import MARKER, Ledger, Marker, Target, another_move, is_moved, read_marker

MOST_ROUNDS = 5
"""How often source and target are compared until nothing differs. Under a freeze the second time is the last, unless a
store forgets records by itself."""

MOST_NAMED = 10
"""Differing records that are named."""

NEARLY_THERE = 20
"""Reads of the log in a row that brought little: while others go on writing that is as close as one gets."""

LITTLE = 100

NOTED_SECONDS = 5.0
"""How often the place in the log is noted while it is followed."""

Tell = Callable[[str, int, int], None]
"""Hears what is being done, and how much of how much of it is."""

_SEEN = b""
"""In a ledger: this one was met in the source too."""


class Differs(Exception):
    """Source and target do not hold the same though nobody writes."""

    exit_code = 65


class Compared(Struct, kw_only=True):
    """What one reading of both sides came to."""

    cursor: Cursor
    """Where the source's log stood before it was read."""
    source: dict[str, Tally]
    target: dict[str, Tally]
    written: int
    removed: int
    left_out: int
    floor: int
    """The source's floor of tokens."""
    named: list[str]

    @property
    def differing(self) -> int:
        return self.written + self.removed


class Report(Struct, kw_only=True, rename="camel"):
    """What became of a move."""

    source: str
    target: str
    complete: bool = False
    """The target has taken the place of the source."""
    already: bool = False
    """It had before; nothing was done."""
    source_frozen: bool = False
    target_frozen: bool = False
    """It takes no writes: the move is not complete, or it was found so afterwards, which is not for us to end."""
    equal: bool = False
    """Nothing differed when both sides were read last."""
    differing: int = 0
    """Records that did, and were written again: others went on writing meanwhile."""
    written: int = 0
    removed: int = 0
    followed: int = 0
    """Entries of the source's log that were taken over."""
    left_out: int = 0
    """Records that the target would forget at once, by their age."""
    token_floor: int = 0
    kinds: dict[str, dict[str, Tally]] = {}
    whole: dict[str, Tally] = {}
    seconds: float = 0.0
    frozen_seconds: float = 0.0


class Migration:
    """One run of a move."""

    def __init__(self, source: Source, target: Target, tell: Tell = lambda _what, _done, _total: None) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._report = Report(source=source.backend, target=target.backend)
        self._began = time.monotonic()
        self.froze = False
        """The source is frozen, by this run."""
        self.handing_over = False
        """The target takes writes, or is being told to: what came of that may not be known."""

    async def run(self, *, cut_over: bool, replace: bool = False) -> Report:
        if self._target.epoch == self._source.epoch:
            raise Conflict("source and target are the same store: name another place to move it to")
        marker = await self._admitted(replace=replace)
        if marker.completed_at is not None:
            return await self._earlier(marker)
        self._report.target_frozen = True
        if marker.cursor is None:
            await self._copy(marker)
        await self._follow(marker)
        if cut_over:
            await self._cut_over(marker)
        else:
            await self._look(marker)
            self._report.seconds = self._elapsed(self._began)
        return self._report

    def _elapsed(self, since: float) -> float:
        return round(time.monotonic() - since, 3)

    # --- the target ------------------------------------------------------------------------------------------------

    async def _admitted(self, *, replace: bool) -> Marker:
        """The marker of a target that is ours to write to, frozen."""
        target, source = self._target, self._source
        marker = await target.marker()
        if marker is not None and marker.epoch == source.epoch and (marker.completed_at is None or not replace):
            if marker.completed_at is None:
                await self._go_on(marker)
            return marker
        if not replace:
            await self._check_empty(marker)
        await target.freeze()
        fresh = target.new_marker(source.backend, source.epoch)
        fresh.revision = 0 if marker is None else marker.revision
        if not replace:
            # Somebody may have written to it until it was frozen.
            if not await target.is_empty():
                if await target.marker() != marker:
                    raise another_move()  # which needs it frozen
                await target.thaw()
                raise self._taken(marker)
            await target.mark(fresh)
        else:
            await target.start_over(fresh)
        return fresh

    async def _go_on(self, marker: Marker) -> None:
        # Before anything else: whoever else is at it, or stands still, neither writes nor completes it from here on.
        await self._target.mark(marker)
        if not await self._target.is_frozen():
            # Somebody thawed it. One that is frozen still has been heeded: a marker was written after that.
            await self._target.freeze()

    async def _check_empty(self, marker: Marker | None) -> None:
        if not await self._target.is_empty():
            raise self._taken(marker)

    def _taken(self, marker: Marker | None) -> Conflict:
        if marker is None:
            what = "holds records of its own"
        elif marker.completed_at is None:
            what = (
                f"holds part of another {marker.backend} store (epoch {marker.epoch}), moved from {marker.began_at} on"
            )
        else:
            what = f"holds another {marker.backend} store (epoch {marker.epoch}), moved here at {marker.completed_at}"
        return Conflict(f"the target {what}: choose an empty one, or give --replace to have all of it removed first")

    async def _earlier(self, marker: Marker) -> Report:
        """The move was completed before: the target may have been written to since, so its records are left alone."""
        if await self._moved_on(marker.cursor or ""):
            raise Conflict(
                f"the target took over at {marker.completed_at}, and the source was written to since: "
                "give --replace to have all of the target removed and moved again"
            )
        report = convert({**(marker.report or {}), "already": True}, Report)
        report.target_frozen = await self._target.is_frozen()
        return report

    async def _moved_on(self, cursor: Cursor) -> bool:
        """Whether records of the source changed behind a place in its log."""
        try:
            while entries := await self._source.read_log(cursor):
                if any(is_moved(entry.row) for entry in entries):
                    return True
                cursor = entries[-1].cursor
        except Gone:
            return True
        return False

    # --- copying and following -------------------------------------------------------------------------------------

    async def _copy(self, marker: Marker) -> None:
        compared = await self._compare("copying")
        marker.cursor = compared.cursor
        await self._target.mark(marker)

    async def _follow(self, marker: Marker) -> None:
        """Take over what the log tells, until it tells nothing or hardly anything new."""
        little, noted = 0, time.monotonic()
        begun = marker.cursor
        while little < NEARLY_THERE or self.froze:
            try:
                entries = await self._source.read_log(marker.cursor or "")
            except Gone:
                # It was cut behind us: everything is compared instead.
                await self._copy(marker)
                continue
            if not entries:
                break
            self._report.written += await self._target.forward(entries)
            marker.cursor = entries[-1].cursor
            self._report.followed += len(entries)
            self._tell("following", self._report.followed, 0)
            little = little + 1 if len(entries) < LITTLE else 0
            if time.monotonic() - noted > NOTED_SECONDS:
                noted = time.monotonic()
                await self._target.mark(marker)
                begun = marker.cursor
        if marker.cursor != begun:
            await self._target.mark(marker)

    # --- comparing -------------------------------------------------------------------------------------------------

    async def _compare(self, what: str) -> Compared:
        """Read both sides through, and write what differs."""
        target = self._target
        ledger = await target.ledger(lambda done, total: self._tell("reading the target", done, total))
        theirs = Counting()
        for kind, prints in ledger.items():
            theirs.add(kind, prints.values())
        dump = await self._source.dump()
        ours = Counting()
        compared = Compared(
            cursor=dump.cursor, source={}, target=theirs.tallies(), written=0, removed=0, left_out=0,
            floor=token_floor(self._source.epoch), named=[],
        )  # fmt: skip
        done = 0
        async with aclosing(dump.rows) as pages:  # type: ignore[type-var]  # all of them are generators
            async for rows in pages:
                await self._compare_page(rows, ledger, ours, compared)
                done += len(rows)
                self._tell(what, done, max(done, dump.total))
        extra = [(kind, id) for kind, prints in ledger.items() for id, known in prints.items() if known != _SEEN]
        for key in extra:
            _name(compared, key, "is in the target alone")
        await target.remove(extra)
        compared.removed = len(extra)
        compared.source = ours.tallies()
        self._take_down(compared)
        return compared

    async def _compare_page(self, rows: list[Row], ledger: Ledger, ours: Counting, compared: Compared) -> None:
        new: list[Row] = []
        changed: list[Row] = []
        for row in rows:
            if not is_moved(row):
                self._heed_own(row, compared)
                continue
            if self._target.left_out(row):
                compared.left_out += 1
                continue
            of_kind = ledger.setdefault(row.kind, {})
            known = of_kind.get(row.id)
            if known == _SEEN:
                continue  # a store that others write to may hand a record out twice
            print_ = fingerprint(row)
            ours.add(row.kind, (print_,))
            of_kind[row.id] = _SEEN
            if known is None:
                new.append(row)
                _name(compared, row.key, "is in the source alone")
            elif known != print_:
                changed.append(row)
                _name(compared, row.key, f"differs (revision {row.revision} in the source)")
        await self._target.put(new, new=True)
        await self._target.put(changed)
        compared.written += len(new) + len(changed)

    def _heed_own(self, row: Row, compared: Compared) -> None:
        """What the source's daemons keep about themselves stays there; some of it matters."""
        if row.key == own.TOKENS:
            compared.floor = max(compared.floor, row.token)
        if row.key == MARKER and own.is_ours(row) and read_marker(row).completed_at is None:
            raise Conflict("the source is itself the target of a move that is not complete: complete that one first")

    def _take_down(self, compared: Compared) -> None:
        report = self._report
        report.written += compared.written
        report.removed += compared.removed
        report.left_out = compared.left_out
        report.differing = compared.differing
        report.equal = compared.source == compared.target
        report.kinds = {
            kind: {"source": compared.source.get(kind, Tally()), "target": compared.target.get(kind, Tally())}
            for kind in sorted({*compared.source, *compared.target})
        }
        report.whole = {"source": whole(compared.source), "target": whole(compared.target)}

    async def _look(self, marker: Marker) -> None:
        """Without a cut-over: compare once more, and take over what came meanwhile."""
        compared = await self._compare("verifying")
        marker.cursor = compared.cursor
        await self._target.mark(marker)
        await self._follow(marker)

    # --- the cut-over ----------------------------------------------------------------------------------------------

    async def _cut_over(self, marker: Marker) -> None:
        self._tell("freezing the source", 0, 0)
        began = time.monotonic()
        self.froze = True
        await self._source.freeze()
        self._report.source_frozen = True
        if failpoints.armed:
            failpoints.reach("migrate.frozen")
        await self._follow(marker)
        compared = await self._settled(marker)
        self._report.token_floor = await self._target.raise_floor(compared.floor)
        self._report.complete, self._report.target_frozen = True, False
        self._report.seconds, self._report.frozen_seconds = self._elapsed(self._began), self._elapsed(began)
        marker.report = self._kept()
        if failpoints.armed:
            failpoints.reach("migrate.complete")
        await self._check_frozen()
        self.handing_over = True
        await self._target.hand_over(marker)

    async def _settled(self, marker: Marker) -> Compared:
        """Nobody writes: compare until nothing differs. That comparison is the verification."""
        for _ in range(MOST_ROUNDS):
            compared = await self._compare("verifying")
            is_same = not compared.differing and compared.source == compared.target
            # A commit that was under way when the source was frozen may end late, where engines are far away.
            if is_same and not await self._moved_on(compared.cursor):
                return compared
            marker.cursor = compared.cursor
            await self._target.mark(marker)
        await self._check_frozen()
        records = "\n".join(compared.named)
        raise Differs(
            f"source and target still differ in {compared.differing} records though the source is frozen:\n{records}"
        )

    async def _check_frozen(self) -> None:
        if not await self._source.is_frozen():
            self.froze = False
            raise Conflict(
                "the source was thawed while it was moved, and takes writes: the target is not complete; "
                "the same command freezes it again and goes on"
            )

    def _kept(self) -> dict[str, Any]:
        report: dict[str, Any] = to_builtins(self._report)
        return report


def _name(compared: Compared, key: Key, how: str) -> None:
    if len(compared.named) < MOST_NAMED:
        compared.named.append(f"{key[0]} {printable(key[1], 256)} {how}")
