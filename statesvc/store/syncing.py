"""A sync: many records brought forward, each on its own.

Owns the order of a sync and its report. Must not know what a single write does: that is in writes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from statesvc_client.errors import BadRequest, Busy, Conflict, ServiceFault, StateError
from statesvc_client.wire import Fields, Sync

from ..backends.port import Row, Write
from . import queries, writes
from .batches import Batch
from .leasing import is_leased
from .racing import ATTEMPTS, perhaps_applied, stepped_back
from .records import identify, spelled
from .store import Store
from .together import in_order
from .turns import WRITING_SECONDS, Turns
from .writes import Caller, Subject

PROBE = 25
"""Records brought forward before the others on a shared engine, as if all of them were new: what the narrowest engine
commits in one call. If they are, so most likely are the others, and none is read."""

TOGETHER = 100
"""Records brought forward side by side on a shared engine: one read, and one commit or a few."""


class SyncReport(NamedTuple):
    """What a sync did."""

    applied: int
    unchanged: int
    rejected: list[tuple[str, StateError]]
    missing: list[str] | None


async def sync(store: Store, request: Sync, caller: Caller, *, replayed: bool = False) -> SyncReport:
    """Create what is missing, bring forward what moved, report the rest. `replayed`: its seq has passed on this
    connection before, so nothing is written any more."""
    return await _Sync(store, request, caller, replayed=replayed).run()


class _Sync:
    """One sync while it goes on."""

    def __init__(self, store: Store, request: Sync, caller: Caller, *, replayed: bool) -> None:
        self._store = store
        self._request = request
        self._caller = caller
        self._replayed = replayed
        self._kind = store.kinds[request.kind]
        self._applied = 0
        self._unchanged = 0
        self._rejected: list[tuple[str, StateError]] = []
        self._batches: list[Batch] = []
        self._turns = Turns(WRITING_SECONDS)
        self._marked = bool(caller.client) and request.seq is not None
        self._all_new = not (request.again or replayed or store.engine.immediate)
        """Whether nothing of it was found to be there yet. A sync that is sent again most likely finds itself."""
        self._found_done = request.mode == "replace"
        """Whether the answer rests on what was read: then others may have written it, and not be answered yet. What a
        `replace` has buried before is not even met again."""
        self._server = store.engine.server

    async def run(self) -> SyncReport:
        self._store.check_thawed()
        sent = self._sent()
        try:
            await self._bring_all_forward(sent)
            missing = await self._not_sent(sent) if self._request.scope else None
            await self._settled()
            if self._found_done:
                await self._store.engine.assure(self._server)
        except ServiceFault as failure:
            # Some of the records may be in: only sending the sync again tells.
            raise type(failure)(failure.text, outcome="unknown") from None
        return SyncReport(self._applied, self._unchanged, self._rejected, missing)

    def _sent(self) -> dict[str, Fields]:
        """The records by id. One that cannot be read refuses the whole frame."""
        request, kind = self._request, self._kind
        given = request.jobs if request.jobs is not None else request.records
        if not given:
            raise BadRequest(f"{'jobs' if kind.name == 'job' else 'records'} array is required")
        if request.mode == "replace" and request.scope is None:
            raise BadRequest("mode replace needs a scope: it deletes what lies inside it and was not sent")
        sent: dict[str, Fields] = {}
        for number, record in enumerate(given):
            try:
                fields = spelled(kind, record)
                name = identify(kind, "", fields, self._store.limits.id_chars)
            except BadRequest as problem:
                raise BadRequest(f"element {number}: {problem.text}") from None
            if name in sent:
                raise BadRequest(f"element {number}: {name} is sent twice")
            sent[name] = fields
        return sent

    async def _bring_all_forward(self, sent: dict[str, Fields]) -> None:
        """One after the other; where every record is a journey, a good number of them together."""
        names, done = list(sent), 0
        while done < len(names):
            together = 1 if self._store.engine.immediate else TOGETHER if done or not self._all_new else PROBE
            some = names[done : done + together]
            if together == 1:
                await self._bring_forward(some[0], sent[some[0]])
            else:
                await in_order(self._bring_forward(name, sent[name]) for name in some)
            done += together
            await self._turns.pause()

    async def _bring_forward(self, name: str, fields: Fields) -> None:
        def decide(subject: Subject) -> Write | None:
            return writes.sync(self._request, fields, subject, self._caller, self._store.moment())

        try:
            await self._change(name, decide, may_be_new="uid" not in fields)
        except StateError as refused:
            # A record that no longer knows whether it was written never will: one more sending would not tell more.
            if refused.stops_the_writer() and not isinstance(refused, Conflict):
                raise
            self._rejected.append((name, refused))

    async def _not_sent(self, sent: dict[str, Fields]) -> list[str]:
        """Records inside the scope that the sync did not name; `replace` buries those that nobody has a lease on."""
        store, scope = self._store, self._request.scope
        given = queries.Filter(node_id=scope.node_id if scope else None)
        planned = queries.plan(given, self._kind, queries.Order("created", descending=True))
        await store.commits.settled()
        absent: list[str] = []
        async with aclosing(queries.candidates(store.engine, planned, None)) as rows:
            async for row in rows:
                if row.id not in sent and queries.passes(row, planned.tests) and not self._had_its_say(row):
                    absent.append(row.id)
                await self._turns.pause()
        if self._request.mode == "replace" and not self._replayed:
            for start in range(0, len(absent), TOGETHER):
                await in_order(self._change(name, self._decide_burial) for name in absent[start : start + TOGETHER])
                await self._turns.pause()
        return absent

    def _had_its_say(self, row: Row | None) -> bool | Conflict:
        """Whether this very sync, or a later write of its client, has had its say about the record: then it stays.

        Where the record no longer knows, the answer is why: to write it might undo what came since.
        """
        try:
            return self._store.earlier_answer(self._request, row, self._caller) is not None
        except Conflict as refused:
            return True if refused.outcome == "not_applied" else refused.with_traceback(None)

    def _decide_burial(self, subject: Subject) -> Write | None:
        row, scope = subject.living, self._request.scope
        if row is None or scope is None or row.keys.node != scope.node_id or is_leased(row):
            return None
        if self._had_its_say(row):
            return None  # others came since it was looked for
        return writes.bury(self._request, row, self._caller, self._store.moment())

    async def _change(self, name: str, decide: Callable[[Subject], Write | None], *, may_be_new: bool = False) -> None:
        """One record: decide, commit, count; on a shared engine again after every lost race."""
        store, key = self._store, (self._kind.name, name)
        unsure: list[Write] = []
        for tried in range(ATTEMPTS):
            await stepped_back(tried)
            row: Row | None = None
            after: Batch | None = None
            guessed = may_be_new and self._all_new and not tried and store.commits.pending(key) is None
            if not guessed:
                row, after = store.newest(key) if store.engine.immediate else (await store.read(key), None)
                self._all_new = self._all_new and row is None
            if any(row == write.row for write in unsure):
                self._found_done = True
                self._applied += 1
                return
            try:
                write = self._decided(Subject(self._kind, name, row), decide, unsure)
            except StateError:
                if guessed:
                    continue  # nothing but a write is decided on a guess
                raise
            if write is None:
                self._found_done = True
                self._unchanged += 1
                self._depend_on(after)
                return
            if store.engine.immediate:
                self._depend_on(store.commits.add((write,)))
                self._applied += 1
                return
            result = await store.commit(write)
            if result == "applied":
                self._applied += 1
                return
            if result == "unknown":
                unsure.append(write)
            self._all_new = False
        raise Busy(f"{self._kind.name} {name} keeps changing; send the sync again")

    def _decided(
        self, subject: Subject, decide: Callable[[Subject], Write | None], unsure: Sequence[Write]
    ) -> Write | None:
        """What is to be written; None when it is there."""
        earlier = self._had_its_say(subject.row)
        if earlier is True:
            return None
        barred = earlier or self._answered_before()
        overtaken = self._are_overtaken(unsure, subject.row)
        try:
            write = decide(subject)
        except StateError as refused:
            raise perhaps_applied(refused.text) if overtaken else barred or refused from None
        if write is not None and barred:
            raise barred
        if write is not None and overtaken:
            raise perhaps_applied(f"{self._kind.name} {subject.id} was changed by another")
        return write

    def _answered_before(self) -> Conflict | None:
        if not self._replayed:
            return None
        return Conflict(f"sync {self._request.seq} came before on this connection and was answered then")

    def _are_overtaken(self, unsure: Sequence[Write], row: Row | None) -> bool:
        """Whether commits of unknown fate can no longer be told from some that never were. To write again would undo
        what another wrote after them. Marks tell; so does an older record in the place of those."""
        if not unsure or self._marked:
            return False
        if row is not None and all(self._store.made_before(row.uid, write.row.uid) for write in unsure):
            return False
        return (row and row.stamp) != unsure[-1].expects

    def _depend_on(self, batch: Batch | None) -> None:
        if batch is not None and (not self._batches or self._batches[-1] is not batch):
            self._batches.append(batch)

    async def _settled(self) -> None:
        """Wait for every commit the sync took part in; raises when one of them failed."""
        for batch in self._batches:
            await batch.wait()
            if batch.failure is not None:
                raise batch.failure
