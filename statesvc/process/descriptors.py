"""How many clients the process has file descriptors for.

Owns the limit on open files. Knows nothing of clients but that each takes one descriptor.
"""

from __future__ import annotations

import resource

RESERVED = 40
"""For everything but clients: the loop, the log, the socket, locks, and the files of an engine with its readers."""


def room_for(clients: int) -> int:
    """How many of the wanted clients fit, after raising our own limit as far as we may and need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = clients + RESERVED
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return clients
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        allowed = soft  # a sandbox may forbid the call; then it is what it is
    return max(1, min(clients, allowed - RESERVED))
