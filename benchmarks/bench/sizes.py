"""How much of everything is done: the full form, the quick one, and the smallest that still runs everything.

Owns the numbers. Must not know what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The amounts of one form. Unless something else is said, they are of one round."""

    name: str
    says: str
    """How a table made of it introduces itself."""
    rounds: int
    seconds: float
    """No further round of a measure begins after so many: a slow machine has fewer, not a longer run."""
    least_rounds: int
    """So many there are all the same: one alone has no median."""
    requests: int
    """Requests of one kind in pipelines, and over many connections."""
    pages: int
    slow_writes: int
    """Writes that each wait for the disk alone."""
    sustained: int
    """Writes without a pause."""
    long_rounds: int
    """Of what takes long: the writes without a pause, and watchers."""
    singles: int
    """Requests one at a time."""
    connections: tuple[int, int]
    updates: int
    """Through the adapter. Times the rounds, at most what its cache holds."""
    calls: int
    stores: tuple[int, int]
    """Jobs of a small and of a large store."""
    grown_writes: int
    """Few beside the small store, so that it stays small."""
    queues: tuple[int, int]
    claims: int
    changes: int
    """What watchers are told of."""
    watchers: int
    idle: int
    """Connections that say nothing."""


FULL = Size(
    name="full", says="Full form", rounds=5, seconds=150.0, least_rounds=2, requests=20_000, pages=300,
    slow_writes=1_000, sustained=500_000, long_rounds=3, singles=5_000, connections=(50, 1_000), updates=15_000,
    calls=20_000, stores=(10_000, 1_000_000), grown_writes=1_920, queues=(1_000, 100_000), claims=200,
    changes=40_000, watchers=10, idle=10_000,
)  # fmt: skip

QUICK = Size(
    name="quick", says="Quick form: stores, queues and runs are smaller than the goals name", rounds=3, seconds=5.0,
    least_rounds=2, requests=2_048, pages=40, slow_writes=100, sustained=16_384, long_rounds=2, singles=1_000,
    connections=(50, 1_000), updates=2_048, calls=4_000, stores=(4_000, 32_000), grown_writes=640,
    queues=(500, 5_000), claims=80, changes=4_096, watchers=10, idle=10_000,
)  # fmt: skip

TINY = Size(
    name="tiny", says="Smallest form: only shows that everything runs", rounds=1, seconds=60.0, least_rounds=1,
    requests=256, pages=4, slow_writes=8, sustained=1_024, long_rounds=1, singles=20, connections=(2, 8), updates=200,
    calls=100, stores=(400, 800), grown_writes=64, queues=(20, 60), claims=5, changes=100, watchers=2, idle=20,
)  # fmt: skip

SIZES = {size.name: size for size in (FULL, QUICK, TINY)}
