"""A lease this process holds, as far as it can know.

Owns the time it is good for and who is told when it is not any more. Must not know connections or threads' work: it is
told what was confirmed. Any thread may ask it.

A lease is good for `ttl` seconds from the moment its last confirmed renewal was *sent*: the daemon's own time begins
later, so the holder stops before anybody else can be given the record. The clock also runs while the machine sleeps. A
process that was stopped for too long sees that for itself, before it acts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from .errors import LeaseLost


def clock() -> float:
    """Seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """One claim on one record."""

    def __init__(
        self, kind: str, id: str, token: int, holder: str, ttl: float, sent: float, epoch: str | None = None
    ) -> None:
        self.kind = kind
        self.id = id
        self.token = token
        self.holder = holder
        self.ttl = ttl
        self.deadline = sent + ttl
        self.epoch = epoch
        """The life of the store it was taken in, where that is known: in another the same token may be another's."""
        self.outlived = False
        """The store is known to be in another life."""
        self.cancel_requested = False
        """Somebody asked for the end of what is done under this lease."""
        self.released = False
        self._lost: str | None = None
        self._listeners: list[Callable[[], object]] = []
        self._told = False
        self._telling = threading.Lock()

    def __repr__(self) -> str:
        return f"Lease({self.kind} {self.id!r}, token {self.token}{', lost' if self.lost else ''})"

    @property
    def lost(self) -> bool:
        """Whether somebody else may have it. Once true, always true."""
        if self._lost is None and not self.released and clock() >= self.deadline:
            self._lost = f"it was not renewed for {self.ttl:g} s"
        return self._lost is not None

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held."""
        if self.lost:
            raise LeaseLost(f"the lease of {self.kind} {self.id} (token {self.token}) is lost: {self._lost}")
        if self.released:
            raise LeaseLost(f"the lease of {self.kind} {self.id} (token {self.token}) was given back")

    def confirm(self, sent: float, *, cancel_requested: bool) -> None:
        """The daemon renewed it, asked at `sent`."""
        self.deadline = max(self.deadline, sent + self.ttl)
        self.cancel_requested = self.cancel_requested or cancel_requested

    def lose(self, why: str) -> None:
        if self._lost is None and not self.released:
            self._lost = why

    def is_of_another(self, epoch: str | None) -> bool:
        """Whether it was taken in another life of the store than this, as far as both are known."""
        return None not in (self.epoch, epoch) and self.epoch != epoch

    def lose_to(self, epoch: str | None) -> None:
        """The store was in this life after the lease was taken."""
        if self.is_of_another(epoch):
            self.outlived = True
            self.lose(f"the store has a new epoch ({epoch}, was {self.epoch})")

    def token_to_send(self) -> int:
        """The token, for the daemon to judge by. Raises `LeaseLost` where it could take it for another's."""
        if self.outlived:
            self.check()
        return self.token

    def orphan(self, why: str) -> None:
        """In a forked child: it is the parent's, and the lock may be held by a thread that is not here."""
        self._telling = threading.Lock()
        self._listeners.clear()
        self.lose(why)

    def when_lost(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Call this once it is lost, on the thread that notices; at once if that was told before.

        Returns how to leave: after that it is not called any more, and not kept.
        """
        with self._telling:
            told = self._told
            if not told:
                self._listeners.append(tell)
        if told:
            tell()
        return partial(self._forget, tell)

    def _forget(self, tell: Callable[[], object]) -> None:
        with self._telling:
            if tell in self._listeners:
                self._listeners.remove(tell)

    def tell_lost(self) -> list[Exception]:
        """Call the listeners, once; returns what they raised."""
        with self._telling:
            self._told = True
            listeners, self._listeners = self._listeners, []
        problems = []
        for tell in listeners:
            try:
                tell()
            except Exception as problem:  # noqa: BLE001 - one listener must not keep the others from hearing it
                problems.append(problem)
        return problems
