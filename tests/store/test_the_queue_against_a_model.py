"""Leases and the queue against a plain model: any sequence of claims, failures, lapses and time ends as it should."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from statesvc.backends.port import Engine
from statesvc.store import readiness
from statesvc_client import wire
from statesvc_client.errors import StateError
from tests.engines.addresses import EVERY, examples
from tests.engines.weak import WeakEngine, WeakStorage
from tests.store.conftest import World

NAMES = ["a", "b", "c", "d"]
LOCKS = ["l", "m"]
TTL = 10.0
TERMINAL = {"COMPLETED", "FAILED", "CANCELED", "TIMEOUT", "STOPPED"}
TIMEOUT = 25


class Job:
    """What a job is to somebody who reads the documentation."""

    def __init__(self, born: int, priority: int, retries: int | None, needs: list[str], timeout: bool) -> None:
        self.born, self.priority, self.retries, self.needs, self.timeout = born, priority, retries, needs, timeout
        self.status = "QUEUED"
        self.count = 0
        self.token = 0
        self.seen: float | None = None
        """When its holder last gave a sign of life; None while nobody has it."""
        self.began = 0.0
        self.not_before = 0.0
        self.cancelled = False

    def back(self, now: float, delay: float = 0) -> None:
        self.status = "SCHEDULED" if delay else "QUEUED"
        self.not_before = now + delay
        self.seen = None

    def end(self, status: str) -> None:
        self.status, self.seen = status, None


class QueueMachine(RuleBasedStateMachine):
    """Four jobs that may depend on those before them, two locks, and time."""

    engine_name = "memory"

    def make_engine(self) -> Engine:
        return EVERY[self.engine_name].make(Path(self.folder.name))()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.world = World(self.make_engine())
        self.wait(self.begin())
        self.jobs: dict[str, Job] = {}
        self.locks: dict[str, tuple[int, float | None]] = dict.fromkeys(LOCKS, (0, None))
        self.births = 0

    async def begin(self) -> None:
        await self.world.engine.open()
        self.world.store.start()

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def teardown(self) -> None:
        self.wait(self.end())
        self.loop.close()
        self.folder.cleanup()

    async def end(self) -> None:
        await self.world.store.stop()
        assert await self.world.engine.check() == []
        await self.world.engine.close()

    @property
    def now(self) -> float:
        return self.world.clock.run

    # --- the model's duties ------------------------------------------------------------------------------------------

    def duties(self) -> None:
        for job in self.jobs.values():
            if job.seen is not None and self.now - job.seen >= TTL:
                self.lapse(job)
        for job in self.jobs.values():
            if job.status == "RUNNING" and job.timeout and self.now - job.began >= TIMEOUT:
                self.fail(job, "TIMEOUT")
        for _ in NAMES:
            for job in self.jobs.values():
                if job.status in ("QUEUED", "SCHEDULED") and self.fates(job) & (TERMINAL - {"COMPLETED"}):
                    job.end("FAILED")
        for name, (token, seen) in self.locks.items():
            if seen is not None and self.now - seen >= TTL:
                self.locks[name] = (token, None)

    def fates(self, job: Job) -> set[str]:
        return {self.jobs[name].status for name in job.needs}

    def lapse(self, job: Job) -> None:
        job.seen = None
        if job.status != "RUNNING":
            return
        if job.cancelled:
            job.end("CANCELED")
        elif job.retries is None or job.count < job.retries:
            job.count += 1
            job.back(self.now)
        else:
            job.end("FAILED")

    def fail(self, job: Job, status: str) -> None:
        if job.cancelled:
            job.end("CANCELED")
        elif job.count < (job.retries or 0):
            job.count += 1
            job.back(self.now, 8 * 2 ** (job.count - 1))
        else:
            job.end(status)

    def ready(self) -> list[str]:
        waiting = [
            (-job.priority, job.born, name)
            for name, job in self.jobs.items()
            if job.status in ("QUEUED", "SCHEDULED") and self.now >= job.not_before and self.fates(job) <= {"COMPLETED"}
        ]
        return [name for *_, name in sorted(waiting)]

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES), priority=st.sampled_from([1, 5, 10]), retries=st.sampled_from([None, 0, 1, 2]),
        depends=st.booleans(), timeout=st.booleans(),
    )  # fmt: skip
    def create(self, name, priority, retries, depends, timeout):
        needs = [other for other in self.jobs if depends and other < name]
        fields: dict[str, Any] = {"priority": priority, "maxRetries": retries, "retryDelay": 8, "dependsOn": needs}
        if timeout:
            fields["timeout"] = TIMEOUT
        self.world.clock.forward(0.001)
        if name in self.jobs:
            assert self.refused(self.world.create(name, **fields)) == "exists"
            return
        self.wait(self.world.create(name, **fields))
        self.births += 1
        self.jobs[name] = Job(self.births, priority, retries, needs, timeout)
        self.settle()

    @rule(limit=st.integers(1, 3))
    def claim(self, limit):
        claimed = self.wait(self.world.claim(limit=limit, ttl=TTL))
        expected = self.ready()[:limit]
        assert [record["uuid"] for record in claimed] == expected
        for record in claimed:
            job = self.jobs[record["uuid"]]
            job.status, job.seen, job.began, job.token = "RUNNING", self.now, self.now, job.token + 1
            assert record["lease"]["token"] == job.token

    @rule(name=st.sampled_from(NAMES), stale=st.booleans(), status=st.sampled_from([None, "COMPLETED", "FAILED"]))
    def release(self, name, stale, status):
        job = self.jobs.get(name)
        token = max(1, (job.token if job else 1) - stale)
        request = wire.Release(id=name, token=token, status=status)
        if job is None or job.seen is None or token != job.token:
            assert self.refused(self.world.write(request)) == "lease_lost"
            return
        self.wait(self.world.write(request))
        if status == "COMPLETED":
            job.end("COMPLETED")
        elif status == "FAILED":
            self.fail(job, "FAILED")
        elif job.cancelled:
            job.end("CANCELED")
        else:
            job.back(self.now)
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def renew(self, name):
        job = self.jobs.get(name)
        if job is None or job.seen is None:
            assert self.refused(self.world.renew(name, max(1, job.token if job else 1), "job")) == "lease_lost"
            return
        self.wait(self.world.renew(name, job.token, "job"))
        job.seen = self.now

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name):
        job = self.jobs.get(name)
        request = wire.Cancel(id=name)
        if job is None:
            assert self.refused(self.world.write(request)) == "not_found"
        elif job.status in TERMINAL - {"CANCELED"}:
            assert self.refused(self.world.write(request)) == "invalid_transition"
        else:
            self.wait(self.world.write(request))
            if job.status == "RUNNING":
                job.cancelled = True
            else:
                job.end("CANCELED")
            self.settle()

    @rule(name=st.sampled_from(NAMES))
    def retry(self, name):
        job = self.jobs.get(name)
        request = wire.Retry(id=name)
        if job is None or job.status not in ("FAILED", "TIMEOUT"):
            code = "not_found" if job is None else "invalid_transition"
            assert self.refused(self.world.write(request)) == code
            return
        self.wait(self.world.write(request))
        job.back(self.now)
        job.count, job.cancelled = 0, False
        self.settle()

    @rule(name=st.sampled_from(LOCKS))
    def lock(self, name):
        token = self.wait(self.world.lock(name, ttl=TTL))
        last, seen = self.locks[name]
        if seen is not None:
            assert token is None
        else:
            assert token == last + 1
            self.locks[name] = (token, self.now)

    @rule(name=st.sampled_from(LOCKS))
    def unlock(self, name):
        token, seen = self.locks[name]
        request = wire.Release(kind="lock", id=name, token=max(1, token))
        if seen is None:
            assert self.refused(self.world.write(request)) == "lease_lost"
        else:
            self.wait(self.world.write(request))
            self.locks[name] = (token, None)

    @rule(seconds=st.sampled_from([1, 6, 11, 30]))
    def time_passes(self, seconds):
        # As much as passes between two looks at most: what happens in between happens at the end.
        self.settle()
        self.world.clock.forward(seconds)
        self.settle()

    def settle(self) -> None:
        """The daemon does its duties until there is nothing left to do, and so does the model."""
        for _ in range(len(NAMES) + 1):
            self.wait(self.world.round())
        self.duties()

    def refused(self, attempt: Any) -> str:
        try:
            self.wait(attempt)
        except StateError as refusal:
            return refusal.code
        raise AssertionError("it was not refused")

    # --- looking -----------------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_where_the_model_says(self):
        for name, job in self.jobs.items():
            record = self.wait(self.world.get(name))
            assert record["status"] == job.status, name
            assert (record.get("retryCount") or 0) == job.count
            assert ("lease" in record) == (job.seen is not None)
            assert ("completedAt" in record) == (job.status in TERMINAL)
            assert ("startedAt" in record) >= (job.status == "RUNNING")


class WeakQueueMachine(QueueMachine):
    def make_engine(self) -> Engine:
        return WeakEngine(WeakStorage(seed=3, unknown=0.2))


def machine_on(name: str) -> type[QueueMachine]:
    """The machine with its records on that engine."""
    if name == "weak":
        return WeakQueueMachine
    return type(f"QueueMachineOn{name.title()}", (QueueMachine,), {"engine_name": name})


@pytest.mark.parametrize("name", list(EVERY))
def test_any_sequence_of_claims_and_failures_ends_where_the_model_ends(name: str):
    run_machine(machine_on(name), examples(name, 60 if name == "memory" else 25))


def test_the_same_holds_when_only_the_very_front_of_the_queue_is_in_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readiness, "FRONT", 1)
    monkeypatch.setattr(readiness, "LOW", 1)
    run_machine(QueueMachine, 40)


def run_machine(machine: type[QueueMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
