"""F7: a client that takes no replies costs a bounded amount, measured once the daemon had every chance to do more.

Owns that one measure. Must not know how replies are held back.
"""

from __future__ import annotations

from tests.daemon.harness import serving

KIB, MIB = 1024, 1024 * 1024

ASKED = 800
"""Replies of 128 KiB that would take 100 MiB together, were they all made."""

TURNS = 300
"""Requests of another client meanwhile: as many turns of the daemon's loop."""


def test_replies_that_nobody_takes_are_not_made(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as silent, daemon.connect() as other:
        assert silent.ask("create", job={"uuid": "large", "pad": "x" * 128 * KIB})["success"]
        before = daemon.peak_bytes()
        silent.send_raw(b'{"op":"get","jobId":"large"}\n' * ASKED)
        for _ in range(TURNS):
            assert other.ask("ping")["success"]
        assert daemon.peak_bytes() - before < 32 * MIB
