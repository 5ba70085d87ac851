"""Commits: units sent as transactions, and what became of each.

Owns the order of units, repeating and telling our own writes from those of others. Must not know how transactions are
built (building.py), lanes are kept (lanes.py) or the log is read.

Units that share a record go one after the other, the others side by side. Many small ones go together in one
transaction: those that are refused leave it, the others are sent again.

What became of a transaction whose reply was lost is never guessed: its slot in the log says. If the slot is there and
ours, it was applied. If not, its number is made void, and then it can never be applied any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from statesvc_client.errors import BadRequest, Internal, StateError, Unavailable

from ... import logs
from ..port import REMOVED, UNIT_WRITES, Key, Result, Row, Stamp, Unit, Write
from .building import Builder, Draft, Transaction
from .calls import Cancelled, ConditionFailed, Lost, Reason
from .faults import PASSING_REASONS
from .fetching import Fetcher, Found
from .items import check_fits, is_expired, text
from .known import Known, Memory
from .lanes import Holding, OwnLane
from .layout import WID, Item
from .slots import Place, Slot

log = logs.get(__name__)

CONDITION = "ConditionalCheckFailed"
"""Why an action of a transaction failed: its condition did not hold."""

TOGETHER_UNITS = 25
TOGETHER_BYTES = 500_000
TOGETHER_ACTIONS = 80
TOGETHER_FROM = 8
"""Units of one write go together in one transaction, within these bounds, when at least so many are to be committed."""

ATTEMPTS = 12
"""Times a unit is built again because what it was built on changed, hidden from its stamp."""

TOGETHER_ATTEMPTS = 3
"""Times units are tried together before each is tried alone."""

AGAIN_SECONDS = 0.01
"""Pause before that, at most; longer each time."""

FIND_OUT_SECONDS = 5.0
"""What finding out about a lost reply may take."""

LATER_SECONDS = 2.0
"""How often a number whose fate could not be found out is looked at again."""

Verdict = Result | None
"""What became of a unit; None to try it again."""


class _Sent(NamedTuple):
    """A transaction under way, and the numbers of the log it holds."""

    units: Sequence[Unit]
    transaction: Transaction
    lane: OwnLane | None
    place: Place | None


class _Run(NamedTuple):
    """One commit."""

    batch: Sequence[Unit]
    verdicts: list[Verdict]
    until: float


class Committer:
    """Brings units into the tables."""

    def __init__(
        self, fetcher: Fetcher, memory: Memory, holding: Holding, builder: Builder, connections: int
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._memory = memory
        self._holding = holding
        self._builder = builder
        self._free = asyncio.Semaphore(connections)
        self._later: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.applied: Callable[[Iterable[Row]], None] = lambda _: None
        """Is told what was committed."""
        self.wrote: Callable[[OwnLane, Slot], None] = lambda _lane, _slot: None
        """Is told which slot now stands in a lane."""
        self.settled: Callable[[OwnLane], None] = lambda _: None
        """Is told when more of a lane is settled."""

    async def end(self) -> None:
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    async def settled_all(self) -> None:
        """Return when no commit is under way: nobody may begin another."""
        await self._idle.wait()

    # --- batches -----------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Unit], until: float) -> list[Result]:
        """Commit what can be by then, by the clock of the loop. Nothing is sent later; what was is asked about."""
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._commit(batch, until)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _commit(self, batch: Sequence[Unit], until: float) -> list[Result]:
        if (most := max(map(len, batch), default=0)) > UNIT_WRITES:
            raise BadRequest(f"a unit holds {most} writes; the limit is {UNIT_WRITES}")
        if missing := self._not_known(batch):
            try:
                async with asyncio.timeout_at(until):
                    await self.read(missing)
            except TimeoutError:
                raise _too_late() from None
        verdicts: list[Verdict] = [self._refusal(unit) for unit in batch]
        ways = chains(batch)
        run = _Run(batch, verdicts, until)
        if len(ways) == 1:
            await self._whole_chain(run, ways[0])
        else:
            await asyncio.gather(*(self._whole_chain(run, way) for way in ways))
        return ["conflict" if verdict is None else verdict for verdict in verdicts]

    async def _whole_chain(self, run: _Run, way: list[list[int]]) -> None:
        """What goes wrong in one chain is told of its own units: the others are stored, or not, on their own."""
        try:
            await self._chain(run, way)
        except Exception:
            log.exception("dynamodb_commit_failed")
            for place in (place for group in way for place in group):
                if run.verdicts[place] is None:
                    run.verdicts[place] = "unknown"

    def _refusal(self, unit: Unit) -> StateError | None:
        """Why a unit cannot be stored at all: a record of it is too large."""
        try:
            for write in unit:
                if write.row.deleted != REMOVED:
                    check_fits(write.row, self._fetcher.tables)
        except StateError as refused:
            return refused
        return None

    def _not_known(self, batch: Sequence[Unit]) -> list[Key]:
        """The records that are written on a state nobody here has seen."""
        first: dict[Key, Write] = {}
        for unit in batch:
            for write in unit:
                first.setdefault(write.row.key, write)
        # What was decided on a guess that is gone is decided again, on a read: that is not ours to make.
        return [key for key, write in first.items() if write.basis is None and not self._knows(write)]

    async def read(self, keys: Sequence[Key]) -> dict[Key, Found]:
        """The newest stored records; which states they are in is remembered, for writes that build on them."""
        before = self._memory.time
        found = await self._fetcher.records(keys)
        for key in keys:
            self._saw(key, found.get(key), before)
        return found

    def _knows(self, write: Write) -> bool:
        """Whether the state a write was decided on is the one last seen, as far as the write tells."""
        if write.expects is None:
            return True
        known = self._memory.get(write.row.key)
        if known is None or known.stamp != write.expects:
            return False
        return write.basis is None or known.row is write.basis or known.row == write.basis

    def _saw(self, key: Key, found: Found | None, began: int) -> None:
        """A record was read, by a call that began at that time of the memory."""
        self._memory.saw(key, None if found is None else Known.of(found), began)

    async def _chain(self, run: _Run, chain: list[list[int]]) -> None:
        """Groups of units, one after the other; the units of a group go together.

        What builds on a refused unit is refused, too, even if another write has made a row of the very same stamp.
        """
        refused: set[tuple[Key, Stamp]] = set()
        for group in chain:
            for place in group:
                if any((write.row.key, write.expects) in refused for write in run.batch[place]):
                    run.verdicts[place] = "conflict"
            async with self._free:
                await self._group(run, group)
            for place in group:
                if run.verdicts[place] != "applied":
                    refused.update((write.row.key, write.row.stamp) for write in run.batch[place])

    async def _group(self, run: _Run, group: list[int]) -> None:
        for attempt in range(ATTEMPTS):
            left = [place for place in group if run.verdicts[place] is None]
            if not left:
                return
            if attempt:
                await asyncio.sleep(random.uniform(0, attempt * AGAIN_SECONDS))
            for some in [left] if attempt < TOGETHER_ATTEMPTS else [[place] for place in left]:
                await self._try(run, some)
        for place in group:
            if run.verdicts[place] is None:
                run.verdicts[place] = "conflict"

    async def _try(self, run: _Run, some: list[int]) -> None:
        going = [place for place in some if self._may_apply(run.batch[place])]
        for place in set(some) - set(going):
            run.verdicts[place] = "conflict"
        if not going:
            return
        found = await self._sent([run.batch[place] for place in going], run.until)
        for place, verdict in zip(going, found, strict=True):
            run.verdicts[place] = verdict

    def _may_apply(self, unit: Unit) -> bool:
        """Not when it builds on what was refused earlier in the batch, or what a read has shown to be otherwise."""
        return all(map(self._knows, unit))

    # --- one transaction ---------------------------------------------------------------------------------------------

    async def _sent(self, units: Sequence[Unit], until: float) -> list[Verdict]:
        try:
            draft = self._builder.draft(units)
            sent = await self._placed(units, draft, until)
        except StateError as refused:
            return [refused] * len(units)
        try:
            await self._call(sent.transaction, until)
        except Cancelled as cancelled:
            return await self._judged(sent, cancelled.reasons, unsure=cancelled.unsure)
        except ConditionFailed as failed:
            reasons = [Reason(CONDITION, failed.item)]
            return await self._judged(sent, reasons, unsure=failed.unsure)
        except Lost:
            return await self._found_out(sent)
        except StateError as failed:
            if failed.outcome == "unknown":
                return await self._found_out(sent)
            self._void(sent)
            return [failed] * len(units)
        except asyncio.CancelledError:
            self._find_out_later(sent)
            raise
        self._applied(sent)
        return ["applied"] * len(units)

    async def _placed(self, units: Sequence[Unit], draft: Draft, until: float) -> _Sent:
        """With numbers in the log, when there is something to tell."""
        if not draft.entries:
            return _Sent(units, self._builder.transaction(draft, None), None, None)
        lane, place = await self._place(len(draft.parts), until)
        try:
            return _Sent(units, self._builder.transaction(draft, place), lane, place)
        except BaseException:
            lane.give_back(place.number, len(draft.parts))
            raise

    async def _place(self, count: int, until: float) -> tuple[OwnLane, Place]:
        """Numbers in the lane that is ours, once there is room in it."""
        while True:
            lane = self._holding.lane
            if (now := lane.take_now(count)) is not None:
                return lane, Place(lane.number, now)
            try:
                async with asyncio.timeout_at(until):
                    first = await lane.take(count)
            except TimeoutError:
                why = "the fate of too many commits is not known yet: DynamoDB does not answer in time"
                raise Unavailable(why) from None
            if lane is self._holding.lane:
                return lane, Place(lane.number, first)
            lane.give_back(first, count)  # another lane was taken meanwhile

    async def _call(self, transaction: Transaction, until: float) -> None:
        await self._put_hints(transaction.hints_before, until)
        seconds = until - asyncio.get_running_loop().time()
        if seconds <= 0:
            raise _too_late()
        if transaction.is_single:
            ((operation, request),) = transaction.actions[0].items()
            await self._fetcher.call(f"{operation}Item", request, seconds=seconds)
            return
        request = {"TransactItems": transaction.actions, "ClientRequestToken": transaction.wid}
        await self._fetcher.call("TransactWriteItems", request, seconds=seconds)

    async def _put_hints(self, hints: Sequence[Item], until: float) -> None:
        """Those the transaction has no room for. Nothing has been committed when they cannot be put."""
        if not hints:
            return
        puts = [{"PutRequest": {"Item": item}} for item in hints]
        try:
            async with asyncio.timeout_at(until):
                await self._fetcher.write_all(self._fetcher.tables.companion, puts)
        except TimeoutError:
            raise _too_late() from None
        except StateError as failed:
            raise type(failed)(failed.text) from None

    # --- what became of it -------------------------------------------------------------------------------------------

    def _applied(self, sent: _Sent) -> None:
        transaction = sent.transaction
        for row, trail in transaction.rows:
            if row.deleted == REMOVED:
                self._memory.forget(row.key)
            else:
                self._memory.made(row.key, Known.made(row, transaction.wid, trail))
        if sent.lane is not None and transaction.slot is not None:
            slot = transaction.slot
            sent.lane.bytes += slot.bytes
            self.wrote(sent.lane, slot)
            if sent.lane.done(slot.place.number, slot.parts):
                self.settled(sent.lane)
        self.applied(row for row, _ in transaction.rows)

    def _void(self, sent: _Sent) -> None:
        """It came to nothing, for sure, and its numbers may be used again."""
        slot = sent.transaction.slot
        if sent.lane is not None and slot is not None and sent.lane.give_back(slot.place.number, slot.parts):
            self.settled(sent.lane)

    def _lost_place(self, sent: _Sent) -> None:
        """It came to nothing, for sure, and its numbers can never be used again."""
        slot = sent.transaction.slot
        if sent.lane is not None and slot is not None and sent.lane.done(slot.place.number, slot.parts):
            self.settled(sent.lane)

    async def _judged(self, sent: _Sent, reasons: Sequence[Reason], *, unsure: bool = False) -> list[Verdict]:
        """A condition did not hold: it was our own write that came before, or that of somebody else."""
        transaction = sent.transaction
        if any(reason.item and text(reason.item, WID) == transaction.wid for reason in reasons):
            self._applied(sent)
            return ["applied"] * len(sent.units)
        if any(owner == -1 and reason.item for owner, reason in zip(transaction.owners, reasons, strict=True)):
            self._lost_place(sent)
            if sent.lane is not None:
                try:
                    await self._holding.contested(sent.lane)
                except StateError as problem:
                    return [problem] * len(sent.units)
        elif unsure and sent.lane is not None:
            # An earlier try may still be on its way. It can never come once its number is void.
            told, *_ = found = await self._found_out(sent)
            if not isinstance(told, StateError) or told.outcome != "not_applied":
                return found
        else:
            self._void(sent)
        if unsure and sent.lane is None:
            # An earlier try of a write without a slot may have been applied, and overtaken since.
            return ["unknown"] * len(sent.units)
        return self._judged_one_by_one(sent, reasons)

    def _judged_one_by_one(self, sent: _Sent, reasons: Sequence[Reason]) -> list[Verdict]:
        for code in {reason.code for reason in reasons} - PASSING_REASONS - {CONDITION}:
            log.error("dynamodb_refused", operation="TransactWriteItems", code=code, text="")
            return [Internal(f"DynamoDB refused a transaction of the daemon: {code}")] * len(sent.units)
        verdicts: list[Verdict] = [None] * len(sent.units)
        writes = iter([write for unit in sent.units for write in unit])
        for owner, reason in zip(sent.transaction.owners, reasons, strict=True):
            write = next(writes) if owner >= 0 else None
            if write is not None and reason.code == CONDITION:
                verdicts[owner] = self._verdict(write, reason.item) or verdicts[owner]
        return verdicts

    def _verdict(self, write: Write, item: Item | None) -> Verdict:
        """A conflict, unless the newest state still is, or carries the stamp of, what the write was decided on."""
        key, tables = write.row.key, self._fetcher.tables
        if item is None or is_expired(item, tables, self._fetcher.now()):
            self._memory.forget(key)
            return "conflict"
        self._saw(key, Found(self._fetcher.row_of(item, key), item), self._memory.time)
        return None if write.expects is not None and self._knows(write) else "conflict"

    # --- lost replies ------------------------------------------------------------------------------------------------

    async def _found_out(self, sent: _Sent) -> list[Verdict]:
        """No reply told. What is stored tells, or is made to."""
        count = len(sent.units)
        try:
            async with asyncio.timeout(FIND_OUT_SECONDS):
                was_applied = await self._look(sent)
        except (Lost, StateError, TimeoutError):
            self._find_out_later(sent)
            why = "DynamoDB did not answer in time, and whether the write was applied could not be found out"
            return [Unavailable(why, outcome="unknown")] * count
        if was_applied is None:
            return ["unknown"] * count
        if was_applied:
            return ["applied"] * count
        return [Unavailable("DynamoDB did not answer in time; nothing was written")] * count

    async def _look(self, sent: _Sent) -> bool | None:
        """Whether it was applied; None when that cannot be told any more. Settles its numbers."""
        slot, transaction = sent.transaction.slot, sent.transaction
        if slot is None:
            return await self._look_at_records(sent)
        there = await self._holding.seal(slot.place)
        if there == transaction.wid:
            self._applied(sent)
            return True
        self._lost_place(sent)
        return False

    async def _look_at_records(self, sent: _Sent) -> bool | None:
        found = await self.read([row.key for row, _ in sent.transaction.rows])
        if any(text(each.item, WID) == sent.transaction.wid for each in found.values()):
            self._applied(sent)
            return True
        return None

    def _find_out_later(self, sent: _Sent) -> None:
        """The number must not stay open: readers would wait for it."""
        if sent.place is None:
            return
        task = asyncio.create_task(self._look_until_known(sent), name="dynamodb-find-out")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _look_until_known(self, sent: _Sent) -> None:
        while True:
            try:
                await self._look(sent)
            except (Lost, StateError):
                await asyncio.sleep(random.uniform(0, LATER_SECONDS))
            else:
                return


def _too_late() -> Unavailable:
    return Unavailable("DynamoDB did not take the write in time; nothing was written")


def chains(batch: Sequence[Unit]) -> list[list[list[int]]]:
    """Which units go one after the other, in groups that go together.

    Units that share a record are a chain of their own, in their order. Of the others some go together, if many.
    """
    alone, sharing = _by_records(batch)
    together = [place for place in alone if len(batch[place]) == 1] if len(alone) >= TOGETHER_FROM else []
    groups = _groups(batch, together)
    single = [[place] for place in alone if place not in set(together)]
    return [
        *([group] for group in groups),
        *([group] for group in single),
        *([[place] for place in chain] for chain in sharing),
    ]


def _by_records(batch: Sequence[Unit]) -> tuple[list[int], list[list[int]]]:
    """Units that share no record with another, and those that do, by what they share."""
    last_of: dict[Key, int] = {}
    joined = list(range(len(batch)))
    """For each unit an earlier one of the same chain, or itself."""

    def first_of(place: int) -> int:
        while joined[place] != place:
            place = joined[place] = joined[joined[place]]
        return place

    for place, unit in enumerate(batch):
        for write in unit:
            before = last_of.get(write.row.key, place)
            one, other = sorted((first_of(before), first_of(place)))
            joined[other] = one
            last_of[write.row.key] = place
    members: dict[int, list[int]] = {}
    for place in range(len(batch)):
        members.setdefault(first_of(place), []).append(place)
    return [chain[0] for chain in members.values() if len(chain) == 1], [
        chain for chain in members.values() if len(chain) > 1
    ]


def _costs(write: Write) -> tuple[int, int]:
    """Bytes and actions a write takes up in a transaction, about: its record, and the hints that come and go."""
    row, expects = write.row, write.expects
    hints = len(row.keys.labels) + (row.keys.owner is not None)
    return 2 * len(row.body) + len(row.marks), 1 + (hints if expects is None else 2 * hints)


def _groups(batch: Sequence[Unit], places: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    units = size = actions = 0
    for place in places:
        costs = _costs(batch[place][0])
        full = units >= TOGETHER_UNITS or size + costs[0] > TOGETHER_BYTES or actions + costs[1] > TOGETHER_ACTIONS
        if not groups or full:
            groups.append([])
            units = size = actions = 0
        groups[-1].append(place)
        units, size, actions = units + 1, size + costs[0], actions + costs[1]
    return groups
