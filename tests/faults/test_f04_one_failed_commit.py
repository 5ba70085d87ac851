"""F4: one commit finds no space and the next would find some: what was decided on the first fails with it.

Owns that one outcome. Must not know how writes are gathered into commits.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.daemon.harness import Client
from tests.faults.disk import failing

CLIENTS = 3
WRITES = 300
"""Of each client."""

PACE_SECONDS = 0.002
UNDER_WAY_MICROSECONDS = 300_000
"""One client sends its writes one by one, and the commit that fails takes so long: others are decided on what it
writes meanwhile."""


def increment(seq: int) -> dict[str, Any]:
    return {"op": "update", "jobId": "counter", "inc": {"n": 1}, "upsert": True, "seq": seq, "floor": 1}


def send_one_by_one(client: Client) -> None:
    for seq in range(2, WRITES + 1):
        client.send(increment(seq))
        time.sleep(PACE_SECONDS)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_writes_decided_on_a_commit_that_found_no_space_fail_with_it_and_are_taken_when_they_come_again(folder):
    fault = f"pwrite64:error=ENOSPC:delay_enter={UNDER_WAY_MICROSECONDS}:when=40"
    no_space_once = failing(folder, ("log.db-wal",), fault)
    with no_space_once.serving() as daemon, ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.hello(f"client-{number}")
        # In a commit of its own, which is a few system calls: the one that fails comes later, and the counter is there.
        first = clients[0].ask(**increment(1))
        one_by_one = threading.Thread(target=send_one_by_one, args=(clients[0],))
        one_by_one.start()
        for client in clients[1:]:
            client.send(*map(increment, range(1, WRITES + 1)))
        one_by_one.join()
        replies = [[client.reply() for _ in range(WRITES - (client is clients[0]))] for client in clients]
        replies[0].insert(0, first)
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
