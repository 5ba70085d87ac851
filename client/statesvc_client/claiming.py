"""Claiming and giving back: how a lease is got, kept and let go, by locks, elections, workers and queues alike.

Owns the request, confirming what took long to come, and the order of a release behind the writes made before it. Must
not know what is done under a lease, nor which face asks.

A claim is a call: it waits on a connection of its own. A release is a write of the outbox: it comes behind the holder's
own writes, happens once, and the lease is renewed until the daemon has decided on it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from . import writes
from .adapter_errors import FlushTimeout
from .backoff import Backoff
from .calls import epoch_of
from .core import Core
from .errors import LeaseLost, NotFound, ServiceFault, StateError
from .lease import Lease, clock
from .renewing import RENEWALS_PER_TTL
from .writes import More, Write, named

log = logging.getLogger("statesvc_client")

LONGEST_WAIT = 60.0
"""Seconds one claim waits with the daemon; whoever waits longer asks again."""

MOST_ERROR_CHARS = 2000
"""Of an error's text, kept with the record it ended."""

TTL_SECONDS = 30.0
"""How long a lease lasts without renewal, unless told otherwise."""


class Claimed(NamedTuple):
    """A lease and the record as it was when it was claimed."""

    lease: Lease
    record: dict[str, Any]


class Release:
    """A lease on its way back."""

    def __init__(self, core: Core, lease: Lease, write: Write) -> None:
        self._core = core
        self._lease = lease
        self._write = write
        self._error: StateError | None = None
        write.on_decided = self._decided

    def _decided(self, error: StateError | None) -> None:
        self._error = error
        if error is None:
            self._lease.released = True
        elif isinstance(error, (LeaseLost, NotFound)):
            self._lease.lose(str(error))
        if error is None or self._lease.lost:
            self._core.renewer.drop(self._lease)

    async def done(self, timeout: float | None = None) -> None:
        """Return once the daemon took it back. Raises what it answered.

        When the daemon is away for longer than that, the release stays queued and is sent when it comes.
        """
        try:
            await self._core.until_decided(
                self._write.seq, self._core.options.call_seconds if timeout is None else timeout
            )
        except FlushTimeout as late:
            self._lease.check()
            log.warning("%s %s is given back once the daemon answers: %s", self._lease.kind, self._lease.id, late)
            return
        if self._error is not None:
            raise self._error


async def claim(core: Core, request: dict[str, Any], ttl: float, wait: float | None) -> Claimed | None:
    """Take a lease, waiting for it up to `wait` seconds (None: for ever). None when it did not come free."""
    await core.begin()
    now = asyncio.get_running_loop().time
    ends = None if wait is None else now() + wait
    backoff = Backoff(core.options.backoff_base, core.options.backoff_cap)
    while True:
        left = LONGEST_WAIT if ends is None else max(0.0, min(LONGEST_WAIT, ends - now()))
        try:
            claimed = await _claim_once(core, {**request, "ttl": ttl, **({"wait": left} if left else {})})
        except ServiceFault as problem:
            if ends is not None:
                raise
            log.warning("still waiting for a lease: %s", problem)
            await asyncio.sleep(backoff.next())
            continue
        if claimed is not None:
            core.renewer.keep(claimed.lease)
            return claimed
        if ends is not None and now() >= ends:
            return None


async def _claim_once(core: Core, request: dict[str, Any]) -> Claimed | None:
    sent = clock()
    reply = await core.call("claim", request, None)
    kind = request.get("kind", "job")
    records = reply.get("jobs" if kind == "job" else "records")
    if not records:
        return None
    record = records[0]
    given = record["lease"]
    id = record["uuid" if kind == "job" else "id"]
    lease = Lease(kind, id, given["token"], given["holder"], given["ttl"], sent, epoch_of(reply))
    if clock() - sent < lease.ttl / RENEWALS_PER_TTL or await _is_confirmed(core, lease):
        return Claimed(lease, record)
    return None


async def _is_confirmed(core: Core, lease: Lease) -> bool:
    """The claim waited: when the lease began is not known, so it begins with a renewal of its own."""
    sent = clock()
    deadline = asyncio.get_running_loop().time() + lease.ttl
    try:
        reply = await core.ask(
            {"op": "renew", **named(lease.kind, lease.id), "token": lease.token, "ttl": lease.ttl}, deadline, lease
        )
        lease.confirm(sent, cancel_requested=bool(reply.get("cancelRequested")))
        lease.lose_to(epoch_of(reply))
        lease.check()
    except (LeaseLost, NotFound) as problem:
        log.warning("%s %s was claimed and lost again before it could be used: %s", lease.kind, lease.id, problem)
        return False
    return True


def release(
    core: Core, lease: Lease, fields: dict[str, Any] | None = None, *, status: str | None = None, delay: float = 0.0
) -> Release:
    """Put a release into the outbox, behind what was written before."""
    write = writes.release(
        lease.kind, lease.id, dict(fields or {}), More(token=lease.token_to_send(), status=status, delay=delay)
    )
    given_back = Release(core, lease, write)
    core.desk.admit(write)
    return given_back


def told(error: BaseException) -> str:
    """An error as a record keeps it, whatever its text is made of: half a character cannot be sent."""
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - that it has no text must not keep it from being told
        text = f"its text could not be had ({type(problem).__name__})"
    return f"{type(error).__name__}: {text}"[:MOST_ERROR_CHARS].encode("utf-8", "replace").decode()
