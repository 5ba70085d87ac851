"""What can go wrong inside the adapter itself, before or without an answer of the daemon.

Owns the errors an agent may have to catch; what the daemon answers is in errors.py. Must not know sockets or files.

    AdapterError
    ├── NotCached       the cache does not hold this record and cannot say that it is absent    (a LookupError)
    ├── OutboxFull      the bound is reached and nothing could be merged; the write was not taken
    ├── FlushTimeout    some writes were not acknowledged within the deadline                   (a TimeoutError)
    ├── LeaseHeld       somebody else holds it, and it did not come free in time                (a TimeoutError)
    ├── Closed          the store was closed; the write was not taken
    ├── SpoolError      the spool file cannot be used
    │   ├── SpoolBusy       another process holds it
    │   ├── SpoolUnsafe     not a private regular file of ours
    │   ├── SpoolCorrupt    damaged before its end; left untouched
    │   └── SpoolFailed     the disk refused a record; the write was not taken
    └── SpawnFailed     the daemon did not come up
"""

from __future__ import annotations


class AdapterError(Exception):
    """A failure on this side of the socket."""


class NotCached(AdapterError, LookupError):
    """Outside the cache's scope: ask the daemon with `fetch` or `call("get", ...)`."""


class OutboxFull(AdapterError):
    """Too much is waiting; the write was not taken."""


class FlushTimeout(AdapterError, TimeoutError):
    """The deadline passed with writes still waiting. They stay queued and go on being sent."""

    def __init__(self, waiting: int, seconds: float) -> None:
        super().__init__(
            f"{waiting} writes were not acknowledged within {seconds:g} s; they stay queued: is the daemon running?"
        )
        self.waiting = waiting
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[FlushTimeout], tuple[int, float]]:
        """An error may cross to another process; its text alone does not make one again."""
        return type(self), (self.waiting, self.seconds)


class LeaseHeld(AdapterError, TimeoutError):
    """Somebody else holds the lock, or the name; waiting did not help."""


class Closed(AdapterError):
    """The store was closed."""


class SpoolError(AdapterError):
    """The spool file cannot be used."""


class SpoolBusy(SpoolError):
    """Another process holds the spool."""


class SpoolUnsafe(SpoolError):
    """The path is no private regular file of this user."""


class SpoolCorrupt(SpoolError):
    """Damage before the end of the spool: what follows it cannot be trusted to be complete."""


class SpoolFailed(SpoolError):
    """The disk refused a record."""


class SpawnFailed(AdapterError):
    """The daemon did not come up: how it ended and the last it said."""

    def __init__(self, text: str, exit_code: int | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
