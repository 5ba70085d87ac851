"""F6: the daemon is stopped or restarting: the agent writes on, and everything arrives afterwards, once, in order.

How long a call takes meanwhile is measured by `python -m tests.faults.away`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statesvc_client import OutboxFull
from statesvc_client import StateStore as AsyncStore
from statesvc_client.blocking import StateStore
from tests.daemon.harness import SECONDS, serving, until
from tests.faults.away import FACES, MAX_BYTES, MAX_RECORDS, WAYS, Call, Outcome, away

AWAY_SECONDS = 0.7


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_while_the_daemon_is_away_arrives_once_and_in_order(folder, face, way):
    assert away(folder, face, way, AWAY_SECONDS).broken() == []


def test_a_daemon_that_is_silent_for_longer_than_it_is_waited_for_is_met_again(folder):
    with (
        serving(folder) as daemon,
        StateStore.connect(str(daemon.socket), connect_seconds=SECONDS, answer_seconds=0.3) as state,
    ):
        daemon.signal(signal.SIGSTOP)
        try:
            for _ in range(500):
                state.update("counter", inc={"n": 1}, upsert=True)
            found = state.get("counter")
            assert (found or {}).get("n") == 500, "own writes are seen at once"
            until(lambda: not state.connected, "patience to run out")
        finally:
            daemon.signal(signal.SIGCONT)
        state.flush(SECONDS)
        job = state.call("get", jobId="counter")["job"]
        assert (job["n"], job["revision"]) == (500, 500)


BOUNDS = {"max_records": (50, "queued"), "max_bytes": (20_000, "queued_bytes")}
"""Bounds of the queue, each with the counter that it bounds."""


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("face", FACES)
def test_a_queue_that_is_full_says_so_and_loses_nothing_of_what_it_took(folder, face, bound):
    most, counter = BOUNDS[bound]
    options: dict[str, Any] = {"connect_seconds": SECONDS, bound: most, "when_full": "error"}

    def fill(state: StateStore | AsyncStore) -> list[str]:
        daemon.signal(signal.SIGSTOP)
        try:
            taken = list(created_until_full(state.create))
            assert most / 2 < getattr(state.counters, counter) <= most
            return taken
        finally:
            daemon.signal(signal.SIGCONT)

    async def on_a_loop() -> list[str]:
        async with AsyncStore.connect(str(daemon.socket), **options) as state:
            taken = fill(state)
            await state.flush(SECONDS)
            return taken

    def blocking() -> list[str]:
        with StateStore.connect(str(daemon.socket), **options) as state:
            taken = fill(state)
            state.flush(SECONDS)
            return taken

    with serving(folder) as daemon:
        taken = asyncio.run(on_a_loop()) if face == "asyncio" else blocking()
        with daemon.connect() as client:
            jobs = client.ask("list", limit=1000)["jobs"]
        assert {job["uuid"] for job in jobs} == set(taken)


def created_until_full(create: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """The jobs that the queue took before it said that it is full."""
    for number in range(10_000):
        try:
            create({"uuid": f"job-{number}", "status": "PENDING"})
        except OutboxFull:
            return
        yield f"job-{number}"
    pytest.fail("it never said that it is full")


def test_an_agent_goes_through_restart_after_restart(folder):
    """Each while writes are on their way, not after."""

    async def play() -> None:
        with serving(folder) as daemon:
            async with AsyncStore.connect(str(daemon.socket), connect_seconds=SECONDS) as state:
                for number in range(1, 1501):
                    state.update("counter", inc={"n": 1}, upsert=True)
                    if number % 500 == 0:
                        daemon.kill()
                        daemon.start()
                    if number % 20 == 0:
                        await asyncio.sleep(0.001)
                await state.flush(2 * SECONDS)
                job = (await state.call("get", jobId="counter"))["job"]
                assert (job["n"], job["revision"]) == (1500, 1500)

    asyncio.run(play())


# --- that it would be seen -----------------------------------------------------------------------------------------

GOOD = Outcome("asyncio", "stopped", 1.0, [Call(0.0001, 0.0001)] * 1000, 3, [0, 1, 2], 2, 200)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({}, []),
        ({"arrived": [0, 2, 1]}, ["out of order"]),
        ({"arrived": [0, 1]}, ["arrived as 2"]),
        ({"calls": []}, ["nothing was written"]),
        ({"queued": 0}, ["nothing waited"]),
        ({"queued": MAX_RECORDS + 1}, ["beyond the queue's bounds"]),
        ({"queued_bytes": MAX_BYTES + 1}, ["beyond the queue's bounds"]),
        ({"calls": [Call(0.1, 0.0001)] * 11 + GOOD.calls}, ["11 of 1011 calls"]),
        ({"calls": [Call(0.1, 0.0001)] * 9 + GOOD.calls}, []),
        ({"calls": [Call(0.001, 0.001)] * 2 + GOOD.calls}, ["of the processor"]),
    ],
)
def test_what_is_planted_is_named(planted, words):
    outcome = GOOD._replace(**planted)
    found = [*outcome.broken(), *outcome.slow()]
    assert len(found) == len(words)
    assert all(word in problem for word, problem in zip(words, found, strict=True))
    assert outcome.figures()["waited"] == outcome.queued
