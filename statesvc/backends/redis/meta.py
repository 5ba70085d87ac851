"""What the hash of a namespace says: format, epoch, generation, and how far the log reaches.

Owns the reading of that hash and the formats this daemon knows. Must not know connections or judge anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statesvc_client.errors import Unavailable

FORMAT = 1
"""The form in which this daemon writes rows, indexes and log."""

OLDEST = 1
"""The oldest form whose daemons may still write beside this one."""

FIELDS = ("format", "oldest", "epoch", "generation", "server", "seq", "start", "logBytes")


class Meta(NamedTuple):
    """One namespace at one moment."""

    format: int
    oldest: int
    epoch: str
    generation: bytes
    server: str
    """The server that was last found to have everything, or was given a new epoch."""
    seq: int
    """The number of the newest log entry."""
    start: int
    """The number of the newest log entry that was cut."""
    log_bytes: int


def read_meta(reply: Sequence[bytes | None]) -> Meta | None:
    """None when there is no such namespace."""
    form, oldest, epoch, generation, server, seq, start, size = reply
    if epoch is None or generation is None:
        return None
    return Meta(
        int(form or 0),
        int(oldest or 0),
        epoch.decode(),
        generation,
        (server or b"").decode(),
        int(seq or 0),
        int(start or 0),
        int(size or 0),
    )


def too_new(namespace: str, oldest: int) -> Unavailable:
    return Unavailable(
        f"the namespace {namespace} is of a newer release: it is written in format {oldest} or newer, "
        f"and this daemon writes format {FORMAT}; update this daemon"
    )
