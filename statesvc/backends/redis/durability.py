"""What an acknowledgement is worth on a server: the lowest level it can be shown to reach, unless settings say.

Owns that judgement. Must not know connections.
"""

from __future__ import annotations

from .epochs import Trust
from .facts import Facts


def durability_of(facts: Facts, trust: Trust) -> str:
    """memory, os, disk or replicated, as the table of levels has them."""
    if trust.durability != "auto":
        return trust.durability
    if trust.wait_replicas:
        return "replicated"
    if not facts.aof:
        return "memory"
    # A server that does not say how it syncs may well leave it to the system.
    return "disk" if facts.fsync == "always" else "os"
