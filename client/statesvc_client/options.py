"""Every option of a store, with its default and its unit.

Owns the numbers. Must not know what is done with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from .errors import StateError
from .writes import Write

RejectedCallback = Callable[[Write, StateError], object]
EpochCallback = Callable[[str, str], object]
WhenFull = Literal["block", "error"]


class OptionFields(TypedDict, total=False):
    """The keywords of `connect` and `spawn`; what they mean stands at `Options`."""

    name: str
    node_id: str | None
    connect_seconds: float
    require_connection: bool
    call_seconds: float
    close_seconds: float
    answer_seconds: float
    max_records: int
    max_bytes: int
    when_full: WhenFull
    block_seconds: float
    spool: str | os.PathLike[str] | None
    spool_sync: bool
    warm: bool
    follow: bool
    kinds: Sequence[str]
    cache_filter: dict[str, Any] | None
    cache_records: int
    on_rejected: RejectedCallback | None
    on_epoch: EpochCallback | None
    on_unflushed: Callable[[Any], object] | None


def _program() -> str:
    return f"{os.path.basename(sys.argv[0] if sys.argv else '') or 'python'}[{os.getpid()}]"


@dataclass(frozen=True)
class Options:
    """How a store behaves."""

    name: str = ""
    """Who is calling, for people to read; the program and its process id unless given."""
    node_id: str | None = None
    """The node this agent is on, told to the daemon."""
    connect_seconds: float = 5.0
    """How long entering waits for the daemon and for a warm cache. Then work begins without: writes wait their turn."""
    require_connection: bool = False
    """Raise when the daemon was not there within `connect_seconds`. `spawn` always does."""
    call_seconds: float = 30.0
    """The deadline of a `call` that names none."""
    close_seconds: float = 10.0
    """How long leaving waits for what is still in the outbox."""
    answer_seconds: float = 30.0
    """Silence of the daemon, with writes in flight, after which the connection is given up and made anew."""
    max_records: int = 100_000
    """Writes that may wait."""
    max_bytes: int = 64 * 1024 * 1024
    """Bytes of frames that may wait."""
    when_full: WhenFull = "block"
    """What a write does when the outbox is full and nothing could be merged."""
    block_seconds: float = 10.0
    """How long `block` waits for room before it raises `OutboxFull`."""
    spool: str | os.PathLike[str] | None = None
    """A file that what waits is also written to."""
    spool_sync: bool = False
    """Sync the spool in each call: survives a power failure, at milliseconds a call."""
    warm: bool = True
    """Fill the cache by `list` at the start."""
    follow: bool = True
    """Keep the warmed cache by `watch`: what other clients change shows up."""
    kinds: Sequence[str] = ("job",)
    """The kinds that are warmed and followed; others are cached as far as own writes and calls tell."""
    cache_filter: dict[str, Any] | None = None
    """A `list` filter: the scope of the warmed cache."""
    cache_records: int = 100_000
    """Records of one kind that are held."""
    on_rejected: RejectedCallback | None = None
    """Called with (write, error) for each write the daemon refused."""
    on_epoch: EpochCallback | None = None
    """Called with (before, now) when the daemon may have lost acknowledged state."""
    on_unflushed: Callable[[Any], object] | None = None
    """Called with the report when leaving had to leave something behind."""

    backoff_base: float = 0.05
    """Seconds: the range the first wait before a new try is drawn from."""
    backoff_cap: float = 5.0
    """Seconds: the widest such range."""
    window_bytes: int = 256 * 1024
    """Bytes of writes in flight."""
    window_records: int = 512
    """Writes in flight. The daemon keeps a mark for each of them on its record, so more is not always faster."""
    slice_records: int = 128
    """Writes sent or decided before others get their turn: about a tenth of a millisecond."""
    linger_seconds: float = 0.0
    """How long the sender looks for more before it sleeps; waking it costs the caller a system call."""
    page_records: int = 250
    """Records asked for at once when the cache is warmed."""
    call_connections: int = 8
    """Calls under way at once; more wait."""
    unknown_tries: int = 8
    """How often a write is sent again that the daemon tried and answered `unknown`, before that is reported as its
    outcome."""

    def __post_init__(self) -> None:
        if self.when_full not in ("block", "error"):
            raise ValueError(f'when_full must be "block" or "error", not {self.when_full!r}')
        for bound in ("max_records", "max_bytes", "cache_records"):
            if getattr(self, bound) < 1:
                raise ValueError(f"{bound} must be at least 1, not {getattr(self, bound)}")
        if not self.name:
            object.__setattr__(self, "name", _program())
