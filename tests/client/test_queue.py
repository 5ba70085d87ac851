"""Queues: a job is worked on once, ends as its block ended, and its own writes come before its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from statesvc_client import LeaseLost, StateStore, blocking, claiming, get_current_job, job_context
from statesvc_client.learning import Learner
from tests.client.conftest import RealDaemon, until_soon
from tests.client.scripted import ScriptedDaemon
from tests.client.test_following import shows

SECONDS = 30


def connect(daemon: RealDaemon, **options: Any) -> StateStore:
    return StateStore.connect(daemon.path, connect_seconds=SECONDS, **options)


def connect_blocking(daemon: RealDaemon, **options: Any) -> blocking.StateStore:
    return blocking.StateStore.connect(daemon.path, connect_seconds=SECONDS, **options)


def queued(id: str, **fields: Any) -> dict[str, Any]:
    return {"uuid": id, "status": "QUEUED", **fields}


async def stored(state: StateStore, id: str) -> dict[str, Any]:
    record: dict[str, Any] = (await state.call("get", jobId=id))["job"]
    return record


async def claimed(state: StateStore, **options: Any) -> Any:
    job = await state.queue(**options).claim()
    assert job is not None
    return job


async def test_the_best_ready_job_is_claimed_and_completed_by_leaving_its_block(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create(queued("low", priority="low"))
        state.create(queued("high", priority="high", command="echo"))
        queue = state.queue(holder="worker-1")
        job = await queue.claim()
        assert job is not None
        assert (job.id, job.claimed["command"], job.holder) == ("high", "echo", "worker-1")
        async with job:
            assert state.get("high") == job.record
            assert (job.record["status"], job.record["lease"]["token"]) == ("RUNNING", job.token)
            job.progress(percent=50)
            assert job.record["percent"] == 50
        record = await stored(state, "high")
        assert (record["status"], record["percent"], "lease" in record) == ("COMPLETED", 50, False)
        job = await queue.claim()
        assert job is not None
        assert job.id == "low"
        assert await queue.claim() is None


async def test_a_block_that_fails_fails_its_job_and_the_daemon_tries_again(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create(queued("j", maxRetries=1, retryDelay=0))
        for expected in ("SCHEDULED", "FAILED"):
            job = await state.queue().claim(wait=SECONDS)
            assert job is not None
            with pytest.raises(ZeroDivisionError):
                async with job:
                    _ = 1 / 0
            record = await stored(state, "j")
            assert record["status"] in (expected, "QUEUED" if expected == "SCHEDULED" else expected)
            assert record["error"] == "ZeroDivisionError: division by zero"
        assert record["retryCount"] == 1
        state.retry("j")
        await state.flush(SECONDS)
        await state.until(lambda: shows(state, "j", status="QUEUED"), SECONDS)


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("caf\ud800"), "ValueError: caf?"),
        (Mute(), "Mute: its text could not be had (ZeroDivisionError)"),
    ],
    ids=["half a character", "no text"],
)
async def test_a_block_fails_its_job_whatever_the_text_of_its_error(daemon: RealDaemon, error: Exception, told: str):
    async with connect(daemon) as state:
        state.create(queued("j", maxRetries=0))
        with pytest.raises(type(error)):
            async with await claimed(state, ttl=600):
                raise error
        record = await stored(state, "j")
        assert (record["status"], record["error"]) == ("FAILED", told)


async def test_what_a_block_raises_is_not_hidden_by_a_job_that_cannot_be_given_back(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch
):
    def cannot(*_: Any, **__: Any) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    async with connect(daemon) as state:
        state.create(queued("j"))
        job = await claimed(state, ttl=600)
        monkeypatch.setattr(claiming, "release", cannot)
        with pytest.raises(ZeroDivisionError):
            async with job:
                _ = 1 / 0
        assert state._core.renewer._kept == {}, "nobody renews it any more, so it lapses"


async def test_a_block_that_is_cancelled_gives_its_job_back_untried(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create(queued("j", maxRetries=0))
        job = await claimed(state)

        async def work() -> None:
            async with job:
                entered.set()
                await asyncio.Event().wait()

        entered = asyncio.Event()
        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await stored(state, "j")
        assert (record["status"], record.get("retryCount", 0)) == ("QUEUED", 0)


async def test_a_job_can_be_ended_by_hand(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create(queued("j"))
        async with await claimed(state) as job:
            await job.release("STOPPED", exitCode=3)
        record = await stored(state, "j")
        assert (record["status"], record["exitCode"]) == ("STOPPED", 3)
        state.create(queued("later"))
        job = await claimed(state)
        await job.release(delay=3600)
        assert (await stored(state, "later"))["status"] == "SCHEDULED"
        assert await state.queue().claim() is None


async def test_a_release_comes_behind_the_jobs_own_writes_and_happens_once_though_the_daemon_is_killed(
    daemon: RealDaemon,
):
    async with connect(daemon) as state:
        state.create(queued("j", log=[]))
        async with await claimed(state, ttl=600) as job:
            for number in range(500):
                job.update(append={"log": [number]})
            daemon.kill()
            daemon.start()
        record = await stored(state, "j")
        assert (record["status"], record["log"]) == ("COMPLETED", list(range(500)))
        events = [event.type for event in await state.history("j")]
        assert events.count("released") == 1
        assert events[-1] == "released"


async def test_with_the_daemon_away_the_release_waits_in_the_outbox_and_the_worker_goes_on(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch
):
    async with connect(daemon) as state:
        state.create(queued("j"))
        await state.flush(SECONDS)
        job = await state.queue(ttl=600).claim()
        assert job is not None
        daemon.kill()
        with monkeypatch.context() as impatient:
            impatient.setattr(state._core, "options", replace(state._core.options, call_seconds=0.2))
            async with job:
                job.progress(percent=100)
        assert state.counters.queued == 2
        daemon.start()
        await state.flush(SECONDS)
        assert (await state.fetch("j") or {})["status"] == "COMPLETED"


async def test_whoever_works_on_a_job_hears_that_it_was_cancelled(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon, warm=False) as other:
        state.create(queued("j"))
        state.create(queued("waits", priority="low"))
        async with await claimed(state, ttl=0.6) as job:
            assert not job.cancelled
            other.cancel("j")
            other.cancel("waits")
            await until_soon(lambda: job.cancelled, "the word")
            await until_soon(lambda: job._lease.cancel_requested, "a renewal to bring it too")
            await job.release()
        assert [(await stored(state, id))["status"] for id in ("j", "waits")] == ["CANCELED", "CANCELED"]


async def test_a_job_that_was_lost_cannot_be_ended_by_who_lost_it(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as other:
        state.create(queued("j"))
        job = await claimed(state, ttl=0.5)
        assert job._lease is not None
        state._core.renewer.drop(job._lease)
        again = await other.queue().claim(wait=SECONDS)
        assert again is not None
        assert again.token > job.token
        assert job.lost
        with pytest.raises(LeaseLost):
            job.progress(percent=1)
        with pytest.raises(LeaseLost):
            await job.release("COMPLETED")
        assert (await stored(state, "j"))["status"] == "RUNNING"
        async with again:
            again.check()


async def test_whoever_works_on_a_job_is_told_when_its_release_is_refused(scripted: ScriptedDaemon):
    told = asyncio.Event()
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state, on_lost=told.set)
        lost = asyncio.create_task(job.until_lost())
        await asyncio.sleep(0)
        scripted.failures[1] = [{"code": "lease_lost", "outcome": "not_applied"}]
        with pytest.raises(LeaseLost):
            await job.release("COMPLETED")
        await asyncio.wait_for(lost, SECONDS)
        await asyncio.wait_for(told.wait(), SECONDS)


async def test_renewing_by_hand_brings_progress_and_the_word_of_a_lost_lease(daemon: RealDaemon):
    async with connect(daemon) as state:
        state.create(queued("j"))
        job = await claimed(state, ttl=600)
        await job.renew({"percent": 10})
        assert (await stored(state, "j"))["percent"] == 10
        state.cancel("j")
        await job.renew()
        assert job.cancelled
        state.delete("j")
        with pytest.raises(LeaseLost):
            await job.renew({"percent": 20})
        assert job.lost


async def test_a_job_of_another_life_of_the_store_is_not_renewed_into_somebody_elses(daemon: RealDaemon):
    """In the new life somebody holds a job of the same name with the very same token."""
    daemon.stop()
    daemon.start("memory")
    async with connect(daemon, warm=False) as state:
        state.create(queued("j"))
        job = await claimed(state, ttl=600)
        daemon.kill()
        daemon.start("memory")
        async with connect(daemon, warm=False) as other:
            other.create(queued("j"))
            theirs = await claimed(other, ttl=600)
            assert theirs.token == job.token
            with pytest.raises(LeaseLost):
                await job.renew({"percent": 10})
            assert job.lost
            record = await stored(other, "j")
            assert (record["lease"]["token"], "percent" in record) == (theirs.token, False)
            await theirs.renew({"percent": 20})


async def test_a_queue_can_be_iterated_and_filtered(daemon: RealDaemon):
    async with connect(daemon) as state:
        for number in range(6):
            state.create({"id": f"t{number}", "status": "QUEUED", "labels": {"odd": str(number % 2)}}, kind="task")
        done = []
        async for task in state.queue("task", {"labels": {"odd": "1"}}).jobs():
            async with task:
                done.append(task.id)
            if len(done) == 3:
                break
        assert sorted(done) == ["t1", "t3", "t5"]
        left = await state.call("list", kind="task", filter={"status": "QUEUED"})
        assert sorted(task["id"] for task in left["records"]) == ["t0", "t2", "t4"]


async def test_a_job_whose_block_is_left_in_another_task_is_given_back(daemon: RealDaemon):
    async def worked_on(queue: Any) -> AsyncGenerator[Any, None]:
        async for job in queue.jobs():
            async with job:
                yield job

    async with connect(daemon) as state:
        state.create(queued("j"))
        jobs = worked_on(state.queue(ttl=600))
        job = await anext(jobs)
        await asyncio.create_task(jobs.aclose())
        assert not job.held
        record = await stored(state, "j")
        assert (record["status"], "lease" in record) == ("QUEUED", False)


async def test_waiting_for_a_job_ends_when_one_comes(daemon: RealDaemon):
    async with connect(daemon) as state, connect(daemon) as other:
        waiting = asyncio.create_task(state.queue(ttl=0.3).claim(wait=SECONDS))
        await until_soon(lambda: getattr(state._core._calls, "_busy", ()), "it to wait")
        await asyncio.sleep(0.5)  # longer than the ttl: what is claimed then must still be good
        other.create(queued("j"))
        job = await waiting
        assert job is not None
        job.check()
        async with job:
            pass


def test_many_threads_work_on_every_job_once(daemon: RealDaemon):
    done: list[str] = []

    def work(state: blocking.StateStore) -> None:
        queue = state.queue()
        while (job := queue.claim()) is not None:
            with job:
                current = get_current_job()
                assert current.job_id == job.id
                done.append(job.id)

    with connect_blocking(daemon) as state:
        for number in range(60):
            state.create(queued(f"j{number:02}"))
        threads = [threading.Thread(target=work, args=(state,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(done) == [f"j{number:02}" for number in range(60)]
        assert state.stats()["counts"] == {"COMPLETED": 60}
        assert get_current_job() is None


# --- leases of another epoch -----------------------------------------------------------------------------------------


async def claimed_of(scripted: ScriptedDaemon, state: StateStore, on_lost: Any = None, **told: Any) -> Any:
    """A job whose claim tells this."""
    lease = {"token": 1, "holder": "me", "ttl": 600.0}
    scripted.tells["claim"] = {"jobs": [{"uuid": "j", "status": "RUNNING", "lease": lease}], **told}
    return await claimed(state, ttl=600, on_lost=on_lost)


def hang_up_calls(state: StateStore) -> None:
    """The outbox's connection stays, and with it what it was told."""
    calls = state._core._calls
    assert calls is not None
    for line in calls._idle:
        line.asking.close()


def sent(scripted: ScriptedDaemon) -> list[str]:
    return [frame["op"] for frame in scripted.frames]


@pytest.mark.parametrize("told_before", [False, True], ids=["told by its hello", "told before"])
async def test_nothing_is_sent_under_a_lease_once_another_epoch_was_told(scripted: ScriptedDaemon, told_before: bool):
    lost = asyncio.Event()
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state)
        job._claimed().when_lost(partial(asyncio.get_running_loop().call_soon_threadsafe, lost.set))
        scripted.epoch = "epoch-2"
        hang_up_calls(state)
        if told_before:
            await state.call("ping")
        with pytest.raises(LeaseLost, match="new epoch"):
            await job.renew({"percent": 10})
        await asyncio.wait_for(lost.wait(), SECONDS)
        for refused in (job.txn([]), job.release("COMPLETED")):
            with pytest.raises(LeaseLost, match="new epoch"):
                await refused
        for act in (job.update, job.guard, partial(job.context.set_data, "a", 1)):
            with pytest.raises(LeaseLost, match="new epoch"):
                act()
        assert sent(scripted) == ["claim"]


async def test_a_transaction_is_not_sent_under_a_lease_of_another_epoch(scripted: ScriptedDaemon):
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state)
        scripted.epoch = "epoch-2"
        hang_up_calls(state)
        with pytest.raises(LeaseLost, match="new epoch"):
            await job.txn([])
        await asyncio.wait_for(job.until_lost(), SECONDS)
        assert sent(scripted) == ["claim"]


async def test_a_transaction_is_not_sent_once_its_lease_is_known_to_be_of_another_epoch(scripted: ScriptedDaemon):
    """It becomes known while the writes made before are flushed; the connection of the call heard of nothing."""
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state)
        scripted.silent = True
        state.create({"uuid": "x"})
        asked = asyncio.create_task(job.txn([]))
        await scripted.until(lambda: len(scripted.frames) == 2)
        scripted.silent, scripted.epoch = False, "epoch-2"
        scripted.cut_link()
        with pytest.raises(LeaseLost, match="new epoch"):
            await asked
        assert sent(scripted) == ["claim", "create", "create"]


async def test_a_renewal_answered_in_another_epoch_is_none(scripted: ScriptedDaemon):
    """The store was restored with every connection kept."""
    scripted.tells["renew"] = {"epoch": "epoch-2"}
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state)
        with pytest.raises(LeaseLost, match="new epoch"):
            await job.renew()
        await asyncio.wait_for(job.until_lost(), SECONDS)


async def test_a_lease_is_not_lost_to_a_connection_that_was_told_of_an_earlier_epoch(scripted: ScriptedDaemon):
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        await asyncio.gather(state.call("ping"), state.call("ping"))
        assert len(scripted.hellos) == 3
        scripted.epoch = "epoch-2"
        job = await claimed_of(scripted, state, epoch="epoch-2")
        scripted.thinking = True
        busy = asyncio.create_task(state.call("ping"))  # over the connection of the claim
        await scripted.until(lambda: bool(scripted.thought))
        await job.renew()
        assert len(scripted.hellos) == 4, "it asked anew"
        scripted.answer()
        await busy
        assert job.held
        await job.release()


async def test_an_outbox_that_is_told_of_a_new_epoch_has_lost_the_leases_of_the_one_before(scripted: ScriptedDaemon):
    async with StateStore.connect(scripted.path, connect_seconds=SECONDS, warm=False) as state:
        job = await claimed_of(scripted, state)
        scripted.epoch = "epoch-2"
        scripted.cut_link()
        await asyncio.wait_for(job.until_lost(), SECONDS)
        with pytest.raises(LeaseLost, match="new epoch"):
            await job.release()
        assert sent(scripted) == ["claim"]


# --- the current job -------------------------------------------------------------------------------------------------


async def test_code_deep_inside_knows_the_current_job(daemon: RealDaemon):
    async def deep() -> None:
        job = job_context()
        job.set_data("user_id", job.metadata["user_id"] + 1)
        job.set_data("a/b", [1])
        assert job.get_data("user_id") == 124, "at once"
        job.trace("auth", "done", {"ok": True})
        job.trace("billing", "started")

    async with connect(daemon) as state:
        state.create(queued("j", metadata={"user_id": 123}, flowId="flow-1"))
        assert get_current_job() is None
        with pytest.raises(LookupError):
            job_context()
        async with await claimed(state, holder="worker-9") as job:
            await asyncio.create_task(deep())
            context = job.context
            assert (context.job_id, context.flow_id, context.worker_id) == ("j", "flow-1", "worker-9")
            assert (context.status, context.error, context.completed_at) == ("RUNNING", None, None)
            assert context.created_at
            assert context.get_data("none", 5) == 5
            log = await context.trace_log()
            assert [(entry["routine_id"], entry["action"], entry["details"]) for entry in log] == [
                ("auth", "done", {"ok": True}),
                ("billing", "started", None),
            ]
            assert all(entry["timestamp"] for entry in log)
        assert get_current_job() is None
        assert (await stored(state, "j"))["data"] == {"user_id": 124, "a/b": [1]}


async def test_who_claims_the_job_it_made_sees_so_though_the_log_is_late(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Learner, "_observe", lambda *_: None)
    async with connect(daemon) as state:
        state.create(queued("j", metadata={"user_id": 123}))
        async with await claimed(state, holder="worker-9") as job:
            assert (job.context.worker_id, job.context.status) == ("worker-9", "RUNNING")
            job.context.set_data("n", 1)
            assert (job.context.worker_id, job.context.status, job.context.get_data("n")) == ("worker-9", "RUNNING", 1)
            assert job.context.metadata == {"user_id": 123}


def test_a_job_can_be_made_the_current_one_without_a_lease(daemon: RealDaemon):
    with connect_blocking(daemon) as state:
        state.create({"uuid": "j", "metadata": {"request": "abc"}})
        with state.job_context("j") as job:
            with state.job_context("other"):
                assert job_context().job_id == "other"
            assert job_context() is job
            assert job.metadata == {"request": "abc"}
            job.set_data("n", 1)
            job.trace("r", "a")
            assert [entry["action"] for entry in job.trace_log()] == ["a"]
        assert state.call("get", jobId="j")["job"]["data"] == {"n": 1}


async def test_a_task_that_lost_its_job_cannot_write_into_it(daemon: RealDaemon):
    rejected: list[type] = []
    async with connect(daemon, on_rejected=lambda _, error: rejected.append(type(error))) as state:
        state.create(queued("j"))
        job = await claimed(state, ttl=600)
        job.context.set_data("n", 1)
        await state.flush(SECONDS)
        await state.call("release", jobId="j", token=job.token)
        job.context.set_data("n", 2)
        await state.flush(SECONDS)
        assert rejected == [LeaseLost]
        assert job.lost
        assert (await stored(state, "j"))["data"] == {"n": 1}
