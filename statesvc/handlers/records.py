"""Single records, lists and syncs: create, update, delete, release, cancel, retry, emit, get, list, sync.

Owns the shape of their replies. Must not decide anything about a record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from statesvc_client import wire
from statesvc_client.errors import NotFound, StateError
from statesvc_client.wire import Limits, Rejected, Reply

from ..answers import Answer, Coming, Handler, Session, failed, put_records, replied, succeeded
from ..backends.port import Row
from ..store.batches import Batch
from ..store.following import Bookmark, place_of
from ..store.frames import ENVELOPE_BYTES
from ..store.leasing import lease_of
from ..store.listing import Paging, list_records
from ..store.racing import Decided, Precedence
from ..store.records import decode, without_secrets
from ..store.store import PointWrite, Store
from ..store.syncing import SyncReport, sync

Item = TypeVar("Item")

Fail = Callable[[wire.Request, Session, Exception], Answer]
"""Makes a failure's answer."""


class RecordHandlers:
    """Ops on records."""

    def __init__(self, store: Store, limits: Limits, paging: Paging, fail: Fail) -> None:
        self._store = store
        self._limits = limits
        self._paging = paging
        self._fail = fail
        self.write: Handler = self._write_now if store.engine.immediate else self._write
        """Answers a write to one record."""

    def table(self) -> dict[type[wire.Request], Handler]:
        point = (wire.Create, wire.Update, wire.Delete, wire.Release, wire.Cancel, wire.Retry)
        return {
            **dict.fromkeys(point, self.write),
            wire.Emit: self._emit,
            wire.Get: self._get_now if self._store.engine.immediate else self._get,
            wire.List: self._list,
            wire.Sync: self._sync,
        }

    def _write_now(self, request: PointWrite, session: Session) -> Answer:
        replayed = session.admit(request)
        return self.written(request, session, self._store.write_now(request, session.caller, replayed=replayed))

    def _write(self, request: PointWrite, session: Session) -> Coming:
        replayed = session.admit(request)
        precedence = Precedence(partial(session.check_order, request), partial(session.failed, request), session)
        place = Coming()
        tell = partial(self._told, place, request, session, partial(self.written, request, session))
        self._store.write_soon(request, session.caller, tell, replayed=replayed, precedence=precedence)
        return place

    def _told(
        self,
        place: Coming,
        request: wire.Request,
        session: Session,
        answer_to: Callable[[Decided], Answer],
        outcome: Decided | Exception,
    ) -> None:
        """Put the answer into its place, whatever happens."""
        if isinstance(outcome, Exception):
            answer = self._fail(request, session, outcome)
        else:
            try:
                answer = answer_to(outcome)
            except Exception as problem:  # noqa: BLE001 - the frame gets its reply
                answer = self._fail(request, session, problem)
        place.put(answer)

    def written(self, request: PointWrite, session: Session, decided: Decided) -> Answer:
        if decided.refused is not None:
            answer = self._fail(request, session, decided.refused)
            answer.after = decided.after
            return answer
        if session.ack_last and request.seq is not None:
            weight = 0 if decided.row is None else len(decided.row.body) + len(decided.row.marks)
            return Answer(b"", decided.after, request, silent=True, weight=weight)
        row = decided.row
        if row is not None and row.body and decided.duplicate_of is None and type(request) is not wire.Renew:
            line = wire.record_line(request.request_id, request.kind, without_secrets(row.body))
            return Answer(line, decided.after, request)
        if decided.duplicate_of is not None:
            reply = succeeded(request, duplicate=True, revision=decided.duplicate_of)
        elif type(request) is wire.Renew:
            reply = succeeded(request, epoch=session.unknown_epoch(self._store.engine.epoch))
            _put_lease(reply, row)
        else:
            reply = succeeded(request)
        return replied(reply, request, decided.after)

    async def _emit(self, request: wire.Emit, session: Session) -> Answer:
        """The reply names the place in the log behind the event, which is known once it is committed. Of one that was
        added long before it is not looked for, and no other is told: who watched from there would miss events."""
        replayed = session.admit(request)
        store, caller = self._store, session.caller
        before = Bookmark(store.engine.epoch, await store.engine.position())
        if store.engine.immediate:
            decided = store.write_now(request, caller, replayed=replayed)
        else:
            decided = await store.write(request, caller, replayed=replayed)
        answer = self.written(request, session, decided)
        if answer.silent or decided.refused is not None or decided.row is None or decided.duplicate_of is not None:
            return answer
        if decided.after is not None:
            await decided.after.wait()
            if decided.after.failure is not None:
                return answer  # it depends on that commit, and comes out as what became of it
        cursor = await place_of(store, before, decided.row)
        reply = succeeded(request, cursor=cursor, revision=decided.row.revision)
        return replied(reply, request, decided.after)

    def _get_now(self, request: wire.Get, _: Session) -> Answer:
        return _found(request, *self._store.get_now(request))

    def _get(self, request: wire.Get, session: Session) -> Coming:
        place = Coming()
        tell = partial(self._told, place, request, session, lambda found: _found(request, found.row, found.after))
        self._store.get_soon(request, tell, session)
        return place

    async def _list(self, request: wire.List, session: Session) -> Answer:
        page = await list_records(self._store, request, session.caller, self._paging)
        reply = succeeded(
            request,
            next_cursor=page.next_cursor,
            as_of=page.as_of,
            truncated=page.truncated,
            total=page.total,
        )
        # Joblet's agents expect an empty list to be left out; everybody else reads the same from either.
        if page.rows or session.caller.said_hello:
            put_records(reply, request.kind, [row.body for row in page.rows])
        return replied(reply, request)

    async def _sync(self, request: wire.Sync, session: Session) -> Answer:
        replayed = session.admit(request)
        report = await sync(self._store, request, session.caller, replayed=replayed)
        if session.ack_last and request.seq is not None and not report.rejected:
            return Answer(b"", None, request, silent=True)
        reply = succeeded(request, applied=report.applied, unchanged=report.unchanged)
        self._put_lists(reply, request.kind, report)
        return replied(reply, request)

    def _put_lists(self, reply: Reply, kind: str, report: SyncReport) -> None:
        """What was refused and what was missing, as far as a frame holds it."""
        room = self._limits.frame_bytes // 2
        rejected, missing = report.rejected, report.missing or []
        shown = [_rejected(kind, name, error) for name, error in _fitting(rejected, room, _rejected_bytes)]
        named = _fitting(missing, room, _name_bytes)
        reply.rejected, reply.missing = shown or None, named or None
        reply.truncated = len(shown) < len(rejected) or len(named) < len(missing)


def _fitting(items: list[Item], room: int, size: Callable[[Item], int]) -> list[Item]:
    """As many items from the front as fit the room."""
    for number, item in enumerate(items):
        room -= size(item)
        if room < ENVELOPE_BYTES:
            return items[:number]
    return items


def _rejected_bytes(item: tuple[str, StateError]) -> int:
    name, error = item
    # Escaped as JSON a character takes six bytes at most, and the names of the fields take their part.
    return 6 * (len(name) + len(error.text)) + 64


def _name_bytes(name: str) -> int:
    return 6 * len(name) + 3


def _put_lease(reply: Reply, row: Row | None) -> None:
    """What a holder is told after a renewal."""
    if row is not None:
        reply.lease, reply.revision = lease_of(row), row.revision
        reply.cancel_requested = bool(decode(row.body).get("cancelRequested"))


def _found(request: wire.Get, row: Row | None, after: Batch | None) -> Answer:
    if row is None:
        error = NotFound(f"{request.kind} not found")
        return replied(failed("get", request.request_id, error, None), request, after)
    return Answer(wire.record_line(request.request_id, request.kind, row.body), after, request)


def _rejected(kind: str, name: str, error: StateError) -> Rejected:
    if kind == "job":
        return Rejected(error.code, error.text, job_id=name)
    return Rejected(error.code, error.text, id=name)
