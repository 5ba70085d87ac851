"""The file descriptors of the process: the first three, and how many clients there are others for.

Owns the standard streams' places and the limit on open files. Knows nothing of clients but that each takes one.
"""

from __future__ import annotations

import os
import resource
import sys

RESERVED = 40
"""For everything but clients: the loop, the log, the socket, locks, and the files of an engine with its readers."""


STANDARD = (0, 1, 2)
"""What a process reads from, writes to and complains to, by its parent's leave."""


def fill_standard_streams() -> None:
    """Put nothing where the parent left out a standard stream: a file or a socket of ours would be taken for it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) in STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)
    # Python has None for a stream that was not there.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


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
