"""F4: one commit finds no space and the next would find some: what was decided on the first fails with it.

Owns that one outcome. Must not know how writes are gathered into commits.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults.disk import failing

CLIENTS = 3
WRITES = 300
"""Of each client, all sent at once: while a commit is under way, others are decided on what it writes."""


def increment(seq: int) -> dict[str, Any]:
    return {"op": "update", "jobId": "counter", "inc": {"n": 1}, "upsert": True, "seq": seq, "floor": 1}


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_writes_decided_on_a_commit_that_found_no_space_fail_with_it_and_are_taken_when_they_come_again(folder):
    no_space_once = failing(folder, ("log.db-wal",), "pwrite64:error=ENOSPC:when=40")
    with no_space_once.serving() as daemon, ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.hello(f"client-{number}")
            client.send(*map(increment, range(1, WRITES + 1)))
        replies = [[client.reply() for _ in range(WRITES)] for client in clients]
        taken = [sum(reply["success"] for reply in each) for each in replies]
        refused = [reply for each in replies for reply in each if not reply["success"]]
        assert "no_space" in {reply["code"] for reply in refused}
        assert {reply["outcome"] for reply in refused} == {"not_applied"}
        assert clients[0].ask("get", jobId="counter")["job"]["n"] == sum(taken)
        for client, seq in zip(clients, taken, strict=True):
            client.send(*({**increment(again), "again": True} for again in range(seq + 1, WRITES + 1)))
        for client, seq in zip(clients, taken, strict=True):
            assert all(client.reply()["success"] for _ in range(seq, WRITES))
        assert clients[0].ask("get", jobId="counter")["job"]["n"] == CLIENTS * WRITES
        assert daemon.stop() == 0
