"""The asyncio store against a daemon that misbehaves exactly as told: every write arrives, once, in order."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from statesvc_client import Closed, FlushTimeout, Job, NotCached, OutboxFull, StateStore, blocking
from statesvc_client.calls import epoch_of
from statesvc_client.desk import Desk
from statesvc_client.errors import Denied, InvalidTransition, NotFound, StateError, Unavailable
from statesvc_client.link import LOOKS, Silence
from tests.client.conftest import held, until, until_soon
from tests.client.test_following import shows

FAST = {"connect_seconds": 10.0, "close_seconds": 10.0}


@pytest.fixture(autouse=True)
def quick_reconnects(monkeypatch):
    """Back-off is tested on its own; here it only costs time."""
    from statesvc_client.options import Options

    monkeypatch.setattr(Options, "backoff_cap", 0.05)


def store(scripted, **options) -> StateStore:
    return StateStore.connect(scripted.path, **{**FAST, **options})


def once_and_in_order(scripted, count: int) -> None:
    assert scripted.order == list(range(1, count + 1))


async def test_the_ten_lines_of_the_design_run(scripted):
    scripted.records["job-1"] = {"uuid": "job-1", "status": "RUNNING"}
    async with store(scripted, warm=False) as state:
        state.create(Job(uuid="job-1", status="PENDING", command="echo hi"))
        state.update("job-1", status="RUNNING", pid=4242)
        assert state.get("job-1") == {"uuid": "job-1", "status": "RUNNING", "command": "echo hi", "pid": 4242}
        await state.flush()
        reply = await state.call("list", filter={"status": "RUNNING"})
        assert reply["jobs"] == [{"uuid": "job-1", "status": "RUNNING"}]
    once_and_in_order(scripted, 2)
    assert scripted.hellos[0]["ack"] == "last"
    assert len(scripted.hellos[0]["client"]) == 32


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_connection_cut_at_any_write_loses_nothing_and_doubles_nothing(scripted, where):
    cuts = scripted.cut_before if where == "before" else scripted.cut_after
    cuts.update(range(1, 40, 3))
    async with store(scripted) as state:
        for number in range(40):
            state.update(f"j{number % 4}", n=number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        await state.flush(30)
        assert state.counters.queued == 0
        assert state.counters.reconnects >= 5
    once_and_in_order(scripted, 40)


async def test_writes_made_while_the_daemon_is_away_arrive_when_it_comes(scripted):
    await scripted.stop()
    async with store(scripted, connect_seconds=0.05) as state:
        for number in range(200):
            state.create({"uuid": f"j{number}"})
        assert not state.connected
        with pytest.raises(FlushTimeout) as late:
            await state.flush(0.01)
        assert late.value.waiting == 200
        await scripted.start()
        await state.flush(30)
    once_and_in_order(scripted, 200)


@pytest.mark.parametrize("code", ["busy", "unavailable", "no_space", "internal"])
async def test_a_write_the_daemon_cannot_take_now_is_sent_again_with_all_behind_it(scripted, code):
    scripted.failures[3] = [{"code": code, "outcome": "not_applied"}] * 2
    async with store(scripted) as state:
        for number in range(10):
            state.update("j", n=number)
        await state.flush(30)
        assert state.counters.rejected == 0
    once_and_in_order(scripted, 10)
    assert [frame.get("again", False) for frame in scripted.frames if frame["seq"] == 3] == [False, True, True]


async def test_a_rejected_write_is_taken_back_and_told(scripted):
    scripted.records["j"] = {"uuid": "j", "status": "RUNNING", "revision": 4, "uid": "u"}
    scripted.failures[1] = [{"code": "invalid_transition", "outcome": "not_applied"}]
    told = []
    async with store(scripted, on_rejected=lambda write, error: told.append((write, error))) as state:
        also = []
        stop = state.on_rejected(lambda write, _: also.append(write.id))
        state.update("j", status="PENDING")
        state.update("j", note="kept")
        assert held(state, "j")["status"] == "PENDING"
        await state.flush(30)
        assert held(state, "j")["status"] == "RUNNING"
        assert held(state, "j")["note"] == "kept"
        assert [(write.id, write.fields, type(error)) for write, error in told] == [
            ("j", {"status": "PENDING"}, InvalidTransition)
        ]
        stop()
        assert also == ["j"]
        assert (state.counters.rejected, state.counters.acked) == (1, 1)


async def test_a_callback_that_fails_stops_nothing(scripted, caplog):
    scripted.failures[1] = [{"code": "exists", "outcome": "not_applied"}]

    def broken(_write, _error):
        raise RuntimeError("a bug of the agent")

    async with store(scripted, on_rejected=broken) as state:
        state.create({"uuid": "j"})
        state.create({"uuid": "k"})
        await state.flush(30)
    assert "a callback of the state store failed" in caplog.text
    assert scripted.order == [2]


async def test_an_unknown_outcome_is_asked_again_and_then_reported_as_such(scripted):
    unknown = {"code": "conflict", "outcome": "unknown"}
    scripted.failures[1] = [unknown]
    scripted.failures[2] = [unknown, unknown]
    told = []
    async with store(scripted, on_rejected=lambda write, error: told.append((write.seq, error.outcome))) as state:
        for number in range(3):
            state.update("j", n=number)
        await state.flush(30)
    assert scripted.order == [1, 3]
    assert told == [(2, "unknown")]


@pytest.mark.parametrize("code", ["busy", "unavailable", "no_space"])
async def test_a_write_is_never_given_up_for_a_daemon_that_cannot_take_it_for_now(scripted, code):
    scripted.failures[2] = [{"code": code, "outcome": "unknown"}] * 12
    async with store(scripted, unknown_tries=2) as state:
        for number in range(3):
            state.update("j", n=number)
        await state.flush(30)
        assert state.counters.rejected == 0
    once_and_in_order(scripted, 3)


async def test_a_write_that_fails_whenever_it_is_tried_is_given_up_after_so_many_tries_in_a_row(scripted):
    tried, away = {"code": "internal", "outcome": "unknown"}, {"code": "unavailable", "outcome": "unknown"}
    scripted.failures[1] = [tried, tried, away, tried, tried, tried]
    told = []
    async with store(
        scripted, unknown_tries=2, on_rejected=lambda write, error: told.append((write.seq, error.code, error.outcome))
    ) as state:
        for number in range(2):
            state.update("j", n=number)
        await state.flush(30)
    assert scripted.failures[1] == []
    assert scripted.order == [2]
    assert told == [(1, "internal", "unknown")]


async def test_an_answer_that_does_not_say_whom_it_concerns_is_found_out_one_by_one(scripted):
    nameless = {"code": "too_large", "outcome": "not_applied", "named": False}
    scripted.failures[4] = [nameless, nameless, nameless]
    told = []
    async with store(scripted, on_rejected=lambda write, _: told.append(write.seq)) as state:
        for number in range(8):
            state.update("j", n=number)
        await state.flush(30)
    assert told == [4]
    assert scripted.order == [1, 2, 3, 5, 6, 7, 8]


async def test_a_silent_daemon_is_given_up_and_met_again(scripted):
    scripted.silent = True
    async with store(scripted, answer_seconds=0.2) as state:
        state.update("j", n=1)
        await scripted.until(lambda: len(scripted.frames) > 0)
        scripted.silent = False
        await state.flush(30)
        assert state.counters.resent >= 1
    once_and_in_order(scripted, 1)


async def test_a_write_that_has_just_left_is_not_taken_for_silence_however_long_nothing_was_heard(
    scripted, monkeypatch
):
    looks: list[bool] = []
    judge = Silence.is_too_long

    def noted(silence: Silence, heard: float, *, owed: bool) -> bool:
        looks.append(owed)
        return judge(silence, heard, owed=owed)

    monkeypatch.setattr(Silence, "is_too_long", noted)
    async with store(scripted, answer_seconds=2.0) as state:
        link = state._core._link
        assert link is not None
        assert link._connection is not None
        link._connection.heard -= 1000.0  # as if nothing had been asked for that long
        scripted.silent = True
        state.update("j", n=1)
        await scripted.until(lambda: len(scripted.frames) > 0)
        await until_soon(lambda: True in looks, "a look while the write is under way")
        scripted.speak()
        await state.flush(30)
        assert (state.counters.resent, state.counters.reconnects) == (0, 0)


def test_silence_is_what_lasted_from_look_to_look_while_an_answer_was_owed():
    silence = Silence()
    assert not any(silence.is_too_long(1.0, owed=False) for _ in range(100)), "nothing was asked"
    quiet = [silence.is_too_long(1.0, owed=True) for _ in range(LOOKS + 1)]
    assert quiet == [False] * LOOKS + [True]
    assert not any(silence.is_too_long(heard, owed=True) for heard in range(2, 100)), "slow, but it answers"
    assert not any(silence.is_too_long(100.0, owed=look % LOOKS > 0) for look in range(100)), "each was answered"


async def test_a_daemon_that_never_answers_hello_does_not_hold_up_leaving(scripted):
    scripted.deaf = True
    unflushed: list[Any] = []
    async with store(scripted, connect_seconds=0.05, close_seconds=0.05, on_unflushed=unflushed.append) as state:
        state.update("j", n=1)
    assert unflushed[0].unflushed == 1
    assert not unflushed[0].clean


async def test_leaving_tells_what_is_left_and_later_writes_are_refused(scripted):
    scripted.silent = True
    state = await store(scripted)
    state.update("j", n=1)
    report = await state.close(0.05)
    assert report.unflushed == 1
    assert (await state.close()) is report
    with pytest.raises(Closed):
        state.update("j", n=2)
    with pytest.raises(Closed):
        await state.call("ping")


async def test_an_error_inside_the_context_is_not_hidden_by_leaving(scripted):
    async def agent() -> None:
        async with store(scripted) as state:
            state.update("j", n=1)
            raise RuntimeError("the agent's own")

    with pytest.raises(RuntimeError, match="the agent's own"):
        await agent()
    once_and_in_order(scripted, 1)


async def test_the_floor_never_passes_what_is_undecided(scripted):
    async with store(scripted) as state:
        for number in range(100):
            state.update("j", n=number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await state.flush(30)
    for frame in scripted.frames:
        assert 1 <= frame["floor"] <= frame["seq"]
    assert scripted.frames[-1]["floor"] > 1


async def test_the_window_stays_within_what_the_daemon_allows(scripted):
    scripted.limits["requestsInFlight"] = 5
    scripted.silent = True
    async with store(scripted, close_seconds=0.05) as state:
        for number in range(50):
            state.update("j", n=number)
        await scripted.until(lambda: len(scripted.frames) >= 5)
        with pytest.raises(FlushTimeout):
            await state.flush(0.1)
        assert len(scripted.frames) == 5


async def test_a_write_larger_than_this_daemons_frames_is_rejected_and_holds_up_nothing(scripted):
    scripted.limits["frameBytes"] = 10_000
    told = []
    async with store(scripted, on_rejected=lambda write, error: told.append((write.id, error.code))) as state:
        state.update("small", n=1)
        state.update("large", text="x" * 20_000)
        state.update("small", n=2)
        await state.flush(30)
    assert told == [("large", "too_large")]
    assert scripted.order == [1, 3]


async def test_a_new_epoch_is_told_and_the_cache_is_read_anew(scripted):
    scripted.records["j"] = {"uuid": "j", "revision": 9, "uid": "u", "a": 9}
    epochs = []
    async with store(scripted, on_epoch=lambda before, now: epochs.append((before, now))) as state:
        assert held(state, "j")["a"] == 9
        scripted.records["j"] = {"uuid": "j", "revision": 2, "uid": "u", "a": 2}
        scripted.epoch = "epoch-2"
        scripted.cut_all()
        await until_soon(lambda: epochs and held(state, "j")["a"] == 2, "the older truth")
        assert epochs == [("epoch-1", "epoch-2")]
        assert state.counters.epochs == 1


async def test_saying_hello_again_loses_nothing_and_doubles_nothing(scripted):
    async with store(scripted, warm=False) as state:
        link = state._core._link
        assert link is not None
        scripted.silent = True
        for number in range(5):
            state.create({"uuid": str(number)})
        await scripted.until(lambda: len(scripted.frames) == 5)
        scripted.silent, scripted.epoch = False, "epoch-2"
        link.greet_again()
        await state.flush(10)
        once_and_in_order(scripted, 5)
        assert state.counters.epochs == 1
    assert len(scripted.hellos) == 2


async def test_hello_is_said_again_though_one_was_under_way(scripted):
    """What it is told may be older."""
    async with store(scripted, warm=False) as state:
        link = state._core._link
        assert link is not None

        def restored(_: dict[str, Any]) -> None:
            scripted.on_frame = lambda _: None
            scripted.epoch = "epoch-2"
            link.greet_again()

        scripted.on_frame = restored
        scripted.cut_link()
        await until_soon(lambda: state.counters.epochs, "the new epoch")
        state.create({"uuid": "j"})
        await state.flush(10)
    once_and_in_order(scripted, 1)
    assert len(scripted.hellos) == 3


async def test_a_new_epoch_lets_go_of_records_that_are_not_followed(scripted):
    scripted.records["j"] = {"uuid": "j", "revision": 9, "uid": "u", "a": 9}
    async with store(scripted, warm=False) as state:
        await state.fetch("j")
        assert held(state, "j")["a"] == 9
        scripted.records["j"] = {"uuid": "j", "revision": 2, "uid": "u", "a": 2}
        scripted.epoch = "epoch-2"
        scripted.cut_all()
        await until_soon(lambda: state.counters.epochs, "the new epoch")
        with pytest.raises(NotCached):
            state.get("j")
        await state.fetch("j")
        assert held(state, "j")["a"] == 2


@pytest.mark.parametrize("warm", [True, False])
async def test_an_answer_of_the_epoch_before_brings_nothing_back(scripted, warm):
    async with store(scripted, warm=warm) as state:
        scripted.records["j"] = {"uuid": "j", "revision": 9, "uid": "u", "a": 9}
        scripted.thinking = True
        answer = asyncio.create_task(state.call("get", jobId="j"))
        await scripted.until(lambda: bool(scripted.thought))
        scripted.thinking = False
        scripted.records["j"] = {"uuid": "j", "revision": 2, "uid": "u", "a": 2}
        scripted.epoch = "epoch-2"
        scripted.cut_link()
        await until_soon(lambda: state.counters.epochs, "the new epoch")
        if warm:
            await until_soon(lambda: shows(state, "j"), "the cache to be read anew")
        scripted.answer()
        assert (await answer)["job"]["a"] == 9
        if not warm:
            with pytest.raises(NotCached):
                state.get("j")
            await state.fetch("j")
        assert held(state, "j")["a"] == 2


async def asked_before_a_new_epoch(scripted, state, op, **fields):
    """A call that is under way while the link hears of another epoch."""
    scripted.silent = True
    answer = asyncio.create_task(state.call(op, **fields))
    await scripted.until(lambda: len(scripted.frames) == 1)
    scripted.epoch = "epoch-2"
    scripted.cut_link()
    await until_soon(lambda: state.counters.epochs, "the new epoch")
    return answer


async def test_what_a_call_wrote_in_the_epoch_before_is_not_shown(scripted):
    scripted.tells["retry"] = {"job": {"uuid": "j", "revision": 9, "uid": "u", "a": 9}}
    async with store(scripted, warm=False) as state:
        answer = await asked_before_a_new_epoch(scripted, state, "retry", jobId="j")
        scripted.speak()
        assert (await answer)["job"]["a"] == 9
        with pytest.raises(NotCached):
            state.get("j")


@pytest.mark.parametrize(
    ("op", "fields", "told"),
    [
        ("create", {"job": {"uuid": "j"}}, {}),
        ("claim", {}, {"jobs": [{"uuid": "j", "revision": 9, "uid": "u", "a": 9}]}),
        ("txn", {"ops": [{"op": "update", "jobId": "j", "job": {"a": 1}}]}, {"results": [{"success": True}]}),
    ],
)
async def test_what_a_call_wrote_when_the_epoch_changed_is_asked_for(scripted, op, fields, told):
    scripted.tells[op] = told
    async with store(scripted, warm=False) as state:
        answer = await asked_before_a_new_epoch(scripted, state, op, **fields)
        scripted.records["j"] = {"uuid": "j", "revision": 1, "uid": "v", "a": 1}
        scripted.speak()
        await answer
        await until_soon(lambda: shows(state, "j", a=1), "what the store holds now")


async def test_what_a_call_deleted_when_the_epoch_changed_is_shown_no_more(scripted):
    scripted.records["j"] = {"uuid": "j", "revision": 1, "uid": "u"}
    async with store(scripted, warm=False) as state:
        answer = await asked_before_a_new_epoch(scripted, state, "delete", jobId="j")
        await state.fetch("j")
        assert shows(state, "j")
        scripted.records.clear()
        scripted.speak()
        await answer
        await until_soon(lambda: state.get("j") is None, "the deletion")


def test_a_store_that_has_nothing_to_do_sleeps(daemon, monkeypatch):
    """Between two writes it is woken once, and falls asleep once."""
    asleep: list[Desk] = []
    plain = Desk.fall_asleep

    def counted(desk: Desk) -> None:
        asleep.append(desk)
        plain(desk)

    monkeypatch.setattr(Desk, "fall_asleep", counted)
    with blocking.StateStore.connect(daemon.path, connect_seconds=30) as state:
        for number in range(20):
            state.update("j", n=number, upsert=True)
            state.flush(30)
            until(lambda: state._desk.asleep, "the sender to sleep")
            state.call("ping")
        assert 20 <= len(asleep) < 60


async def test_a_refused_hello_is_raised_on_entering(scripted):
    scripted.refuse_hello = {"success": False, "code": "denied", "error": "uid 7 may not connect"}
    with pytest.raises(Denied, match="uid 7"):
        async with store(scripted):
            pass


async def test_a_daemon_that_must_be_there_and_is_not_is_told_on_entering(socket_folder):
    with pytest.raises(Unavailable, match="no daemon answered"):
        async with StateStore.connect(socket_folder / "none", connect_seconds=0.05, require_connection=True):
            pass


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_a_call_sees_the_writes_made_before_it(scripted):
    async with store(scripted) as state:
        for number in range(300):
            state.update("j", n=number)
        with pytest.raises(NotFound):
            await state.call("get", jobId="j")
        assert len(scripted.order) == 300


async def test_a_call_whose_connection_is_cut_is_asked_again(scripted):
    async with store(scripted) as state:
        scripted.cut_after.add(1)
        reply = await state.call("create", job={"uuid": "j"})
        assert reply["success"]
    assert [frame.get("again", False) for frame in scripted.frames] == [False, True]
    assert len(scripted.applied) == 1


@pytest.mark.parametrize("code", ["unavailable", "busy", "denied"])
async def test_a_daemon_that_refuses_to_talk_leaves_open_what_became_of_a_call_it_had_taken(scripted, code):
    async with store(scripted, warm=False) as state:
        await state.call("list")  # so that there is a connection to ask on
        scripted.cut_after.add(1)
        scripted.refuse_hello = {"success": False, "code": code, "error": "as told"}
        with pytest.raises(StateError) as refused:
            await state.call("create", job={"uuid": "j"})
        assert (refused.value.code, refused.value.outcome) == (code, "unknown")
        assert len(scripted.applied) == 1
        with pytest.raises(StateError) as refused:
            await state.call("create", job={"uuid": "k"})
        assert (refused.value.code, refused.value.outcome) == (code, "not_applied"), "it was never sent"
        scripted.refuse_hello = None


@pytest.mark.parametrize(("code", "outcome"), [("busy", "unknown"), ("conflict", "not_applied")])
async def test_only_a_decision_about_a_call_sent_again_says_that_it_was_not_applied(scripted, code, outcome):
    async with store(scripted) as state:
        scripted.cut_before.add(1)
        scripted.failures[1] = [{"code": code, "outcome": "not_applied"}]
        with pytest.raises(StateError) as refused:
            await state.call("create", job={"uuid": "j"})
        assert (refused.value.code, refused.value.outcome) == (code, outcome)
        assert [frame.get("again", False) for frame in scripted.frames] == [True]


async def test_a_call_gives_up_at_its_deadline_and_says_what_it_does_not_know(scripted):
    async with store(scripted) as state:
        scripted.deaf = True
        with pytest.raises(Unavailable) as read:
            await state.call("get", jobId="j", timeout=0.1)
        assert read.value.outcome == "not_applied"
        with pytest.raises(Unavailable) as write:
            await state.call("create", job={"uuid": "j"}, timeout=0.1)
        assert write.value.outcome == "unknown"
        scripted.deaf = False
        with pytest.raises(NotFound):
            await state.call("get", jobId="j")


async def test_calls_run_side_by_side_and_connections_are_used_again(scripted):
    async with store(scripted, warm=False) as state:
        await asyncio.gather(*(state.call("list") for _ in range(20)))
        before = len(scripted.hellos)
        await asyncio.gather(*(state.call("list") for _ in range(20)))
        assert len(scripted.hellos) == before <= 9


async def test_an_answer_is_of_the_epoch_it_tells_and_so_are_those_that_come_behind_it(scripted):
    async with store(scripted, warm=False) as state:
        assert epoch_of(await state.call("retry", jobId="j")) == "epoch-1"
        scripted.tells["renew"] = {"epoch": "epoch-2"}  # restored, with every connection kept
        for op in ("renew", "retry"):
            assert epoch_of(await state.call(op, jobId="j", token=1)) == "epoch-2"
        scripted.epoch = "epoch-3"
        scripted.cut_all()
        assert epoch_of(await state.call("retry", jobId="j")) == "epoch-3"


async def test_snake_case_keywords_are_spelled_as_the_wire_does(scripted):
    seen: list[dict[str, Any]] = []
    scripted.on_frame = seen.append
    async with store(scripted, warm=False) as state:
        await state.call("list", sort_by="id", sort_desc=True)
    assert {"op": "list", "sortBy": "id", "sortDesc": True} in seen


# --- the cache -------------------------------------------------------------------------------------------------------


async def test_the_cache_is_warm_on_entering_and_knows_what_is_absent(scripted):
    for number in range(3):
        scripted.records[f"j{number}"] = {"uuid": f"j{number}", "revision": 1}
    async with store(scripted) as state:
        assert len(state) == 3
        assert sorted(job["uuid"] for job in state) == ["j0", "j1", "j2"]
        assert "j1" in state
        assert "j9" not in state
        assert state.get("j9") is None
        assert await state.fetch("j9") is None


async def test_without_warming_the_cache_says_that_it_cannot_tell(scripted):
    scripted.records["j"] = {"uuid": "j", "revision": 1}
    async with store(scripted, warm=False) as state:
        with pytest.raises(NotCached):
            state.get("j")
        assert await state.fetch("j") == {"uuid": "j", "revision": 1}
        assert state.get("j") == {"uuid": "j", "revision": 1}
        state.update("unseen", a=1)
        with pytest.raises(NotCached):
            state.get("unseen")


async def test_outside_its_filter_the_cache_cannot_tell(scripted):
    async with store(scripted, cache_filter={"nodeId": "n1"}) as state:
        with pytest.raises(NotCached):
            state.get("elsewhere")


async def test_the_true_record_is_read_after_a_rejection(scripted):
    scripted.failures[1] = [{"code": "exists", "outcome": "not_applied"}]
    async with store(scripted) as state:
        scripted.records["j"] = {"uuid": "j", "revision": 7, "owner": "another"}
        state.create({"uuid": "j", "owner": "me"})
        assert held(state, "j")["owner"] == "me"
        await state.flush(30)
        await until_soon(lambda: "j" in state, "the record another made")
        assert held(state, "j")["owner"] == "another"


async def test_what_was_acknowledged_is_shown_whatever_an_answer_says_that_was_given_before(scripted):
    scripted.records["j"] = {"uuid": "j", "uid": "u1", "revision": 1, "n": 0}
    async with store(scripted, warm=False) as state:
        state.create(
            {"uuid": "j", "n": 0}
        )  # its uid is not told, so nothing but the order of things says what is older
        await state.flush()
        scripted.silent = scripted.thinking = True
        state.update("j", n=1)
        question = {"op": "get", "jobId": "j"}
        answer = asyncio.create_task(state._core.ask(question, asyncio.get_running_loop().time() + 30))
        await scripted.until(lambda: bool(scripted.thought) and len(scripted.frames) == 2)
        scripted.speak()
        await state.flush(30)
        scripted.answer()
        await answer
        assert held(state, "j")["n"] == 1


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_on_the_loop_a_full_outbox_raises_and_room_waits(scripted):
    async with store(scripted, max_records=10) as state:
        for number in range(10):
            state.create({"uuid": f"j{number}"})
        with pytest.raises(OutboxFull):
            state.create({"uuid": "one too many"})
        assert state.counters.dropped == 1
        await state.room()
        state.create({"uuid": "after"})
        await state.flush(30)
        assert state.counters.acked == 11


async def test_room_has_a_deadline(scripted):
    scripted.silent = True
    async with store(scripted, max_records=1, close_seconds=0.05) as state:
        state.create({"uuid": "j"})
        with pytest.raises(OutboxFull):
            await state.room(0.05)


async def test_another_thread_waits_for_room(scripted):
    async with store(scripted, max_records=5) as state:

        def work() -> None:
            for number in range(200):
                state.create({"uuid": f"j{number}"})

        await asyncio.to_thread(work)
        await state.flush(30)
    once_and_in_order(scripted, 200)


async def test_many_threads_keep_the_order_of_each(scripted):
    async with store(scripted) as state:

        def work(name: str) -> None:
            for number in range(300):
                state.update(name, n=number)

        await asyncio.gather(*(asyncio.to_thread(work, f"t{number}") for number in range(4)))
        await state.flush(30)
    for name in ("t0", "t1", "t2", "t3"):
        assert [f["job"]["n"] for f in scripted.applied.values() if f["jobId"] == name] == list(range(300))


async def test_two_stores_in_one_process_are_two_clients(scripted):
    async with store(scripted) as one, store(scripted) as two:
        one.update("j", n=1)
        two.update("j", n=2)
        await one.flush(30)
        await two.flush(30)
    assert len({client for client, _ in scripted.applied}) == 2


async def test_secrets_do_not_reach_the_log(scripted, caplog):
    caplog.set_level(logging.DEBUG, "statesvc_client")
    scripted.failures[1] = [{"code": "bad_request", "outcome": "not_applied"}]
    async with store(scripted) as state:
        state.create({"uuid": "j", "secretEnvironment": {"KEY": "hunter2"}})
        await state.flush(30)
    assert "rejected" in caplog.text
    assert "hunter2" not in caplog.text
