"""A lock in our hands: taken, kept by a thread, given back, over as many connections as it takes.

Owns what counts as lost. Must not know what the lock is for, nor processes and signals.

A lease counts as lost once the daemon says so, or once its ttl has passed since the last renewal it answered was sent:
by then somebody else may hold the lock, whatever this side believes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from statesvc.cli.session import Session
from statesvc_client.errors import LeaseLost, NotFound, ServiceFault, StateError

KIND = "lock"

# One claim waits no longer than this, so that a connection which broke unnoticed is noticed.
_LONGEST_WAIT_SECONDS = 60.0

_RETRY_SECONDS = 0.1

# Renewals a ttl, so that two may fail before the lease is in danger.
_RENEWALS = 3


def now() -> float:
    """Seconds, the time a machine slept included: the lease did not sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Wanted(NamedTuple):
    """A lock as it was asked for."""

    name: str
    holder: str
    ttl: float
    hold: float | None


class Line:
    """Requests over connections that may break. A numbered write whose answer was lost is sent again, and done once."""

    def __init__(self, connect: Callable[[float, str], Session], timeout: float) -> None:
        self.timeout = timeout
        self._connect = connect
        self._client = secrets.token_hex(16)
        self._session: Session | None = None
        self._seq = 0

    def ask(self, op: str, within: float, **fields: Any) -> dict[str, Any]:
        """One try; a connection that failed is not used again."""
        try:
            if self._session is None:
                self._session = self._connect(min(within, self.timeout), self._client)
            self._session.timeout = within
            return self._session.ask(op, kind=KIND, **fields)
        except ServiceFault:
            self.close()
            raise

    def write(self, op: str, until: float, within: float, **fields: Any) -> dict[str, Any]:
        """A numbered write, sent again until it is answered or the time is over."""
        self._seq += 1
        again = None
        while True:
            try:
                return self.ask(op, within, seq=self._seq, floor=self._seq, again=again, **fields)
            except ServiceFault as failure:
                if now() + _RETRY_SECONDS > until:
                    raise
                if not again:
                    click.echo(f"{failure.code}: {failure.text}; trying again", err=True)
            again = True
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class Held:
    """A lock we hold, renewed in the background until it is given back or lost."""

    def __init__(self, line: Line, wanted: Wanted, token: int, sent: float, on_lost: Callable[[], None]) -> None:
        self.token = token
        self.lost: str | None = None
        self._line = line
        self._wanted = wanted
        self._safe_until = sent + wanted.ttl
        self._on_lost = on_lost
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="renewals", daemon=True)

    def keep(self) -> None:
        self._keeper.start()

    def give_back(self) -> None:
        """Raises when that fails: `LeaseLost` when there was nothing to give back any more."""
        self._over.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        if self.lost is None:
            fields = {"id": self._wanted.name, "token": self.token}
            self._line.write("release", self._safe_until, self._line.timeout, **fields)

    def _keep(self) -> None:
        pause = self._wanted.ttl / _RENEWALS
        while not self._over.wait(min(pause, max(0.0, self._safe_until - now()))):
            pause = self._wanted.ttl / _RENEWALS if self._renewed() else min(_RETRY_SECONDS, pause)
            if self.lost is None and now() >= self._safe_until:
                self.lost = f"the daemon did not answer for {self._wanted.ttl:g} seconds"
            if self.lost is not None:
                self._on_lost()
                return

    def _renewed(self) -> bool:
        sent = now()
        within = max(0.01, min(self._wanted.ttl / _RENEWALS, self._line.timeout, self._safe_until - sent))
        try:
            self._line.ask("renew", within, id=self._wanted.name, token=self.token)
        except (LeaseLost, NotFound) as lost:
            self.lost = lost.text
            return False
        except StateError:
            return False
        self._safe_until = sent + self._wanted.ttl
        return True


def take(line: Line, wanted: Wanted, wait: float | None, on_lost: Callable[[], None]) -> Held | None:
    """The lock, or None when it was not free within `wait` seconds; without a number, however long it takes.

    A daemon that is not there at the beginning is an error, one that goes away meanwhile is waited for.
    """
    held = _claimed(line, wanted, now(), on_lost)
    if held is not None or wait == 0:
        return held
    click.echo(f"{wanted.name} is held by another: waiting", err=True)
    until = float("inf") if wait is None else now() + wait
    while held is None and now() < until:
        held = _claimed(line, wanted, until, on_lost)
    return held


def _claimed(line: Line, wanted: Wanted, until: float, on_lost: Callable[[], None]) -> Held | None:
    sent = now()
    wait = max(0.0, min(until - sent, _LONGEST_WAIT_SECONDS))
    fields = {"id": wanted.name, "holder": wanted.holder, "ttl": wanted.ttl, "hold": wanted.hold, "wait": wait or None}
    reply = line.write("claim", until, line.timeout + wait, **fields)
    if not reply.get("records"):
        return None
    token = reply["records"][0]["lease"]["token"]
    if now() - sent < wanted.ttl / _RENEWALS:
        return Held(line, wanted, token, sent, on_lost)
    # Somewhere in all this time the lock became ours: a renewal tells that it still is.
    sent = now()
    try:
        line.write("renew", sent + wanted.ttl, line.timeout, id=wanted.name, token=token)
    except (LeaseLost, NotFound):
        return None
    return Held(line, wanted, token, sent, on_lost)
