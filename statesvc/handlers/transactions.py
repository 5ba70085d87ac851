"""Writes that take more than one record: txn, and the creates that allocate an id or bring a `dedupeKey`.

Owns the shape of their replies. Must not decide anything about a record.
"""

from __future__ import annotations

from collections.abc import Awaitable

from statesvc_client import wire
from statesvc_client.errors import BadRequest, StateError
from statesvc_client.wire import Limits

from ..answers import Answer, Coming, Handler, Session, put_record, replied, succeeded
from ..backends.port import Row
from ..store.allocation import Pools
from ..store.deduplication import may_be_guarded
from ..store.frames import ENVELOPE_BYTES
from ..store.racing import Decided
from ..store.records import without_secrets
from ..store.store import Store
from ..store.transactions import Refused, Transacted, transact
from .records import RecordHandlers


class TransactionHandlers:
    """Ops that take several records. Every other create goes on to the handlers of single records."""

    def __init__(self, store: Store, limits: Limits, pools: Pools, records: RecordHandlers) -> None:
        self._store = store
        self._limits = limits
        self._pools = pools
        self._records = records

    def table(self) -> dict[type[wire.Request], Handler]:
        return {wire.Txn: self._txn, wire.Create: self._create}

    def _create(self, request: wire.Create, session: Session) -> Answer | Coming | Awaitable[Answer]:
        if request.from_ is not None:
            return self._allocate(request, session)
        if may_be_guarded(request.job if request.job is not None else request.record):
            return self._create_guarded(request, session)
        return self._records.write(request, session)

    async def _allocate(self, request: wire.Create, session: Session) -> Answer:
        """Answered in full whatever was agreed on: only the reply tells which address it is."""
        replayed = session.admit(request)
        allocated = await self._pools.allocate(request, session.caller, replayed=replayed)
        reply = succeeded(request)
        if allocated.duplicate:
            reply.duplicate, reply.revision = True, allocated.row.revision
        put_record(reply, request.kind, without_secrets(allocated.row.body))
        return replied(reply, request)

    async def _create_guarded(self, request: wire.Create, session: Session) -> Answer:
        replayed = session.admit(request)
        try:
            done = await transact(self._store, request, [request], session.caller, replayed=replayed)
        except Refused as refused:
            raise refused.error from None
        earlier = None if done.duplicate_of is None else done.duplicate_of[0]
        return self._records.written(request, session, Decided(done.rows[0], duplicate_of=earlier))

    async def _txn(self, request: wire.Txn, session: Session) -> Answer:
        """Answered in full whatever was agreed on: its results are several."""
        replayed = session.admit(request)
        for place, op in enumerate(request.ops):
            _check(place, op)
        try:
            done = await transact(self._store, request, request.ops, session.caller, replayed=replayed)
        except Refused as refused:
            # The reply names a record as its own kind does.
            request.kind = request.ops[refused.place].kind
            raise _of_op(refused.place, refused.error) from None
        return self._transacted(request, done)

    def _transacted(self, request: wire.Txn, done: Transacted) -> Answer:
        if done.duplicate_of is not None:
            results = [wire.Result(revision=revision) for revision in done.duplicate_of]
            return replied(succeeded(request, results=results, duplicate=True), request)
        bodies = [b"" if row is None else without_secrets(row.body) for row in done.rows]
        fits = sum(map(len, bodies)) <= self._limits.frame_bytes - ENVELOPE_BYTES
        results = [
            _result(op, row, body if fits else None)
            for op, row, body in zip(request.ops, done.rows, bodies, strict=True)
        ]
        return replied(succeeded(request, results=results, truncated=not fits), request)


def _check(place: int, op: wire.TxnOp) -> None:
    if op.seq is not None or op.again:
        raise _of_op(place, BadRequest("seq and again belong to the transaction, not to its writes"))
    if isinstance(op, wire.Create) and op.from_ is not None:
        raise _of_op(place, BadRequest("from is not for transactions: allocate first, then name what you got"))


def _of_op(place: int, error: StateError) -> StateError:
    return type(error)(f"op {place}: {error.text}", outcome=error.outcome, record=error.record)


def _result(op: wire.TxnOp, row: Row | None, body: bytes | None) -> wire.Result:
    """The record a write made, nothing for a delete; the revision alone where the records do not fit the frame."""
    result = wire.Result()
    if body is None:
        result.revision = None if row is None else row.revision
    elif body:
        put_record(result, op.kind, body)
    return result
