"""Who comes in when many come at once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.daemon.harness import Daemon, serving, until

LIMIT = 21


def alone(daemon: Daemon) -> bool:
    """Whether those who came before are forgotten."""
    with daemon.connect() as client:
        reply = client.ask("health")
        return reply["success"] and reply["measures"]["clients"] == 1


def test_as_many_as_the_limit_allows_come_in_at_once(folder: Path):
    with serving(folder, backend="memory", settings={"limits__clients": LIMIT}) as daemon:
        for _ in range(5):
            until(lambda: alone(daemon), "a daemon without clients")
            with ExitStack() as open_ones:
                # One less than the limit: that of `alone` may be on its way out.
                clients = [open_ones.enter_context(daemon.connect()) for _ in range(LIMIT - 1)]
                assert [client.ask("ping")["success"] for client in clients] == [True] * len(clients)
