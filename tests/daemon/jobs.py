"""Many jobs for a daemon, and all of them read back.

Owns how they are made and found. Must not know what happens to the daemon in between.
"""

from __future__ import annotations

import os

from tests.daemon.harness import Client, Reply


def fill(client: Client, count: int) -> None:
    """Records that hardly compress: a snapshot of 1,500 has several blocks."""
    client.hello()
    client.send(*({"op": "create", "job": {"uuid": f"job-{n}", "pad": os.urandom(600).hex()}} for n in range(count)))
    assert all(client.reply()["success"] for _ in range(count))


def names(count: int) -> set[str]:
    """Those that `fill` has made."""
    return {f"job-{n}" for n in range(count)}


def jobs_of(client: Client) -> set[str]:
    client.hello()
    found: set[str] = set()
    page = client.ask("list", limit=500)
    while True:
        found |= {job["uuid"] for job in page["jobs"]}
        if "nextCursor" not in page:
            return found
        page = client.ask("list", limit=500, cursor=page["nextCursor"])


def finished(client: Client) -> Reply:
    """The reply behind the lines of progress."""
    while "success" not in (reply := client.reply()):
        pass
    return reply
