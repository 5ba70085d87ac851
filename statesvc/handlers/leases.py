"""Leases on the wire: claim and renew. What gives a lease back is an ordinary write.

Owns the shape of their replies. Must not decide who gets a lease.
"""

from __future__ import annotations

from collections.abc import Awaitable

from statesvc_client import wire

from ..answers import Answer, Coming, Handler, Session, put_records, replied, succeeded
from ..store.claims import Claims
from ..store.store import Store
from .records import RecordHandlers


class LeaseHandlers:
    """Ops on leases."""

    def __init__(self, store: Store, claims: Claims, records: RecordHandlers) -> None:
        self._store = store
        self._claims = claims
        self._records = records

    def table(self) -> dict[type[wire.Request], Handler]:
        return {wire.Claim: self._claim, wire.Renew: self._renew}

    async def _claim(self, request: wire.Claim, session: Session) -> Answer:
        replayed = session.admit(request)
        if request.wait and session.connection.is_hung_up():
            session.hang_up()  # it withdrew what it was to wait for, before we came to look at it
        claimed = await self._claims.claim(request, session.caller, session.waits, replayed=replayed)
        reply = succeeded(request, duplicate=claimed.duplicate, epoch=self._epoch(session))
        # Whoever runs a job needs all of it, secrets included: a claim is a read as well.
        put_records(reply, request.kind, [row.body for row in claimed.rows])
        return replied(reply, request)

    def _renew(self, request: wire.Renew, session: Session) -> Answer | Coming | Awaitable[Answer]:
        if request.job is None and request.record is None:
            return self._renew_bare(request, session)
        return self._records.write(request, session)

    async def _renew_bare(self, request: wire.Renew, session: Session) -> Answer:
        session.admit(request)
        kept, after = await self._store.renew(request)
        reply = succeeded(request, lease=kept.lease, cancel_requested=kept.cancel_requested, revision=kept.row.revision)
        reply.epoch = self._epoch(session)
        return replied(reply, request, after)

    def _epoch(self, session: Session) -> str | None:
        """A lease belongs to an epoch: whoever gets or keeps one has to know which."""
        return session.unknown_epoch(self._store.engine.epoch)
