"""F9: a write that took effect and was never answered comes again, to a record that had too many others to know it.

Owns that one outcome, from the agent's side of it. Must not know how a record keeps what it has taken.
"""

from __future__ import annotations

import signal

from statesvc_client.blocking import StateStore
from tests.daemon.harness import SECONDS, Daemon

MOST = 4
"""Clients whose writes a record remembers."""


def test_a_write_that_the_record_forgot_is_not_applied_again(folder):
    limits = {"limits__marks_clients": MOST}
    path = folder / "agent.sock"
    path.symlink_to(folder / "s.sock")
    dying = Daemon(folder, settings={**limits, "failpoints": "reply.before=kill"}).serving()
    with dying, StateStore.connect(str(path), connect_seconds=SECONDS) as state:
        state.update("counter", inc={"n": 1}, upsert=True)
        assert dying.exit_code() == -signal.SIGKILL
        path.unlink()  # the others come first
        with Daemon(folder, settings=limits).serving() as daemon:
            for number in range(MOST + 1):
                with daemon.connect() as other:
                    other.hello(f"other-{number}")
                    assert other.ask("update", jobId="counter", inc={"n": 10}, seq=1)["success"]
            path.symlink_to(daemon.socket)
            state.flush(SECONDS)
            assert state.counters.rejected == 1, "what nobody knows is told, not guessed"
            with daemon.connect() as client:
                assert client.ask("get", jobId="counter")["job"]["n"] == 1 + 10 * (MOST + 1)


def test_a_client_goes_on_behind_such_a_write_with_another_hello(folder):
    remembering = Daemon(folder, backend="memory", settings={"limits__marks_clients": MOST})
    with remembering.serving() as daemon, daemon.connect() as client:
        client.hello("one")
        assert client.ask("update", jobId="counter", inc={"n": 1}, upsert=True, seq=1)["success"]
        for number in range(MOST + 1):
            with daemon.connect() as other:
                other.hello(f"other-{number}")
                assert other.ask("update", jobId="counter", inc={"n": 10}, seq=1)["success"]
        for _ in range(2):
            again = client.ask("update", jobId="counter", inc={"n": 1}, upsert=True, seq=1, again=True)
            assert (again["code"], again["outcome"]) == ("conflict", "unknown")
        assert client.ask("create", job={"uuid": "next"}, seq=2)["code"] == "unavailable"
        client.hello("one")
        assert client.ask("create", job={"uuid": "next"}, seq=2)["success"]
