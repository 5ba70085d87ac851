"""Memory that goes back: what a large request took is the system's again once the request is over.

Owns what the C library is told about it. Must not know what memory is used for.

Left to itself, the C library learns to keep what it is given back: every large block that is freed raises the size from
which it returns one, up to 32 MiB, and large blocks then lie among the small ones and leave holes that stay. And it
gives each thread an arena of its own, so that whatever one of them once needed stays set aside for it. After a few
giant frames, or a snapshot in each of its threads, a daemon would keep tens of megabytes for good. And what lies free
between things that stay is nobody's, but counts as ours until it is handed back page by page.

It costs those who use large blocks: a write to a record of 900 KB takes about a third more of the processor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

LARGE_BYTES = 128 * 1024
"""From this size on a block is given back by itself. The C library begins with this; said aloud it stays so."""

ARENAS = 2
"""Threads share these. Most of what they do they do in turn, so they hardly ever wait for each other here."""

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def give_large_blocks_back() -> None:
    """Have the C library do so from here on. Before threads are started that have much to do."""
    _tell("mallopt", _M_MMAP_THRESHOLD, LARGE_BYTES)
    _tell("mallopt", _M_ARENA_MAX, ARENAS)


def give_free_pages_back() -> None:
    """Now. Takes a fraction of a millisecond, in which whoever wants memory waits."""
    _tell("malloc_trim", 0)


def _tell(function: str, *values: int) -> None:
    """Call it where there is one: glibc has it, others keep less to themselves."""
    try:
        getattr(_c_library(), function)(*values)
    except (OSError, AttributeError):
        pass


@cache
def _c_library() -> Any:
    """Once: each comes with a class of its own, which stays until somebody looks for cycles. That is seldom, and three
    kilobytes every ten seconds are a megabyte an hour."""
    import ctypes  # here: the socket does not wait for it

    return ctypes.CDLL(None)
