"""Writing without reading first: what is guessed, what a wrong guess costs, and that nobody is ever told of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from statesvc.backends.dynamodb import known, tails
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.known import Known, Memory
from statesvc.backends.port import Guess, Row, Write
from statesvc.store.claims import Claims
from statesvc.store.store import Store
from statesvc.store.syncing import sync
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import StateError
from tests.dynamodb.engines import Place, place_at, whole_log
from tests.dynamodb.servers import Tables, TroubledEndpoint
from tests.engines.rows import after, born, buried, commit, fill, hidden, removed, row

A = ("job", "a")
ONE_WRITE = {"TransactWriteItems": 1}
BACKGROUND = "UpdateItem"
"""Others are told how far the lane reaches."""


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: what is counted are the calls of a commit."""
    monkeypatch.setattr(tails, "TRUST_SECONDS", float("inf"))


@pytest.fixture
async def place(endpoint: str, tables: Tables) -> AsyncIterator[Place]:
    async with place_at(endpoint, tables) as made:
        await made.make()
        yield made


class Counted:
    """What is called while the block runs."""

    def __init__(self, engine: DynamodbEngine) -> None:
        self._engine = engine
        self.calls: dict[str, int] = {}

    def __enter__(self) -> dict[str, int]:
        self._before = dict(self._engine._calls.made)
        return self.calls

    def __exit__(self, *_: object) -> None:
        made = {name: count - self._before.get(name, 0) for name, count in self._engine._calls.made.items()}
        self.calls |= {name: count for name, count in made.items() if count and name != BACKGROUND}


def on(guess: Guess | None, **keys: Any) -> Write:
    """The write that follows a guess."""
    assert guess is not None
    assert guess.row is not None
    return after(guess.row, **keys)._replace(basis=guess.row)


# --- the engine ------------------------------------------------------------------------------------------------------


async def test_what_was_written_or_read_is_guessed_and_nothing_else(place: Place):
    async with place.opened() as engine, place.opened() as other:
        a, b = await fill(engine, [row("a"), row("b")])
        assert (engine.guess(A), other.guess(A)) == (Guess(a), None)
        await other.get([A])
        assert other.guess(A) == Guess(a)
        step, end = after(a), buried(b)
        await commit(engine, [(step,), (end,)])
        assert (engine.guess(A), engine.guess(b.key)) == (Guess(step.row), Guess(end.row))
        await commit(engine, [(removed(end.row),)])
        assert engine.guess(b.key) is None
    assert engine.guess(A) is None


async def test_a_write_on_a_guess_is_one_call(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a")])
        step = on(engine.guess(A), labels=(("x", "y"),))
        with Counted(engine) as calls:
            assert await engine.commit([(step,)]) == ["applied"]
        assert calls == ONE_WRITE
        assert await engine.get([A]) == [step.row]


async def test_an_outdated_guess_is_a_conflict_and_the_next_one_is_what_was_in_the_way(place: Place):
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(engine, [row("a")])
        await other.get([A])
        theirs = after(a, status="theirs")
        assert await other.commit([(theirs,)]) == ["applied"]
        with Counted(engine) as calls:
            assert await engine.commit([(on(engine.guess(A)),)]) == ["conflict"]
        assert calls == ONE_WRITE
        assert engine.guess(A) == Guess(theirs.row)
        mine = on(engine.guess(A), status="mine")
        assert await engine.commit([(mine,)]) == ["applied"]
        assert [entry.row for entry in await whole_log(other)] == [a, theirs.row, mine.row]


async def test_a_record_that_is_there_after_all_is_told_to_whoever_would_make_it(place: Place):
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(other, [row("a")])
        assert await engine.commit([born("a", uid="mine")]) == ["conflict"]
        assert engine.guess(A) == Guess(a)


async def test_a_change_nobody_was_told_of_makes_a_guess_wrong(place: Place):
    """A renewal leaves the stamp as it is. A write decided on what was before it must not undo it."""
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(engine, [row("a")])
        await other.get([A])
        beat = hidden(a, body=b'{"beat":2}', ready="5")
        assert await other.commit([(beat,)]) == ["applied"]
        assert await engine.commit([(on(engine.guess(A)),)]) == ["conflict"]
        assert await other.get([A]) == [beat.row]
        assert engine.guess(A) == Guess(beat.row)
        assert await engine.commit([(on(engine.guess(A)),)]) == ["applied"]


async def test_a_guess_that_was_read_anew_meanwhile_is_wrong_as_well(place: Place):
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(engine, [row("a")])
        decided = on(engine.guess(A))
        await other.get([A])
        beat = hidden(a, body=b'{"beat":2}')
        assert await other.commit([(beat,)]) == ["applied"]
        assert await engine.get([A]) == [beat.row]
        with Counted(engine) as calls:
            assert await engine.commit([(decided,)]) == ["conflict"]
        assert calls == {}


async def test_a_guess_that_was_forgotten_is_a_conflict_that_costs_nothing(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a")])
        decided = on(engine.guess(A))
        engine._life.memory.forget(A)
        with Counted(engine) as calls:
            assert await engine.commit([(decided,)]) == ["conflict"]
        assert calls == {}


async def test_a_record_that_is_gone_is_a_conflict_and_no_longer_guessed(place: Place):
    async with place.opened() as engine, place.opened() as other:
        (a,) = await fill(engine, [row("a")])
        await other.get([A])
        await commit(other, [(removed(a),)])
        assert await engine.commit([(on(engine.guess(A)),)]) == ["conflict"]
        assert engine.guess(A) is None
        assert await engine.get([A]) == [None]


async def test_what_another_hand_can_change_unseen_is_not_guessed(place: Place):
    await place.put(place.tables.jobs, {"jobId": {"S": "a"}, "jobStatus": {"S": "RUNNING"}})
    async with place.opened() as engine:
        (found,) = await engine.get([A])
        assert found is not None
        assert engine.guess(A) is None
        step = after(found)
        assert await engine.commit([(step,)]) == ["applied"]
        assert engine.guess(A) == Guess(step.row)


async def test_what_the_log_tells_of_others_is_not_guessed_any_more(place: Place):
    async with place.opened() as engine, place.opened() as other:
        a, b = await fill(engine, [row("a"), row("b")])
        await other.get([A])
        await other.commit([(after(a),)])
        assert len(await whole_log(engine)) == 3
        assert engine.guess(A) is None
        assert engine.guess(b.key) == Guess(b)


# --- bounds ----------------------------------------------------------------------------------------------------------


def state_of(name: str, size: int) -> Known:
    return Known.made(msgspec.structs.replace(row(name), body=b"x" * size, marks=b""), f"w-{name}", ())


def rows_kept(memory: Memory, names: list[str]) -> list[str]:
    return [name for name in names if (state := memory.get(("job", name))) is not None and state.row is not None]


def test_rows_are_kept_within_a_bound_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known, "MOST_ROWS_BYTES", 1000)
    memory, names = Memory(), ["a", "b", "c", "d"]
    for name in names[:3]:
        memory.made(("job", name), state_of(name, 300))
    memory.saw(("job", "a"), state_of("a", 300), memory.time)
    memory.made(("job", "d"), state_of("d", 300))
    assert rows_kept(memory, names) == ["a", "c", "d"]
    assert memory.bytes == 900
    memory.made(("job", "a"), state_of("a", 10))
    memory.forget(("job", "c"))
    assert memory.bytes == 310


def test_a_large_row_is_not_kept_but_its_state_is():
    memory = Memory()
    memory.made(A, state_of("a", known.MOST_ROW_BYTES + 1))
    state = memory.get(A)
    assert state is not None
    assert (state.row, state.stamp, memory.bytes) == (None, ("uid-a", 1), 0)


# --- the rules above -------------------------------------------------------------------------------------------------

WHO = Caller(said_hello=True, client="c1")


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {"uuid": name, "status": "QUEUED", "nodeId": "n1", **fields}


@asynccontextmanager
async def stored(engine: DynamodbEngine) -> AsyncIterator[Store]:
    await fill(engine, [row(f"first-{engine._life.holding.holder}")])  # what is done once is done
    store = Store(engine)
    store.start()
    try:
        yield store
    finally:
        await store.stop()


async def revisions_told(engine: DynamodbEngine) -> list[int]:
    return [entry.row.revision for entry in await whole_log(engine) if entry.row.key == A]


class Numbered:
    """A client that numbers its writes."""

    def __init__(self, store: Store, caller: Caller = WHO) -> None:
        self.store = store
        self._caller = caller
        self._seq = 0

    async def write(self, request: Any) -> Row:
        self._seq += 1
        request.seq = request.floor = self._seq
        decided = await self.store.write(request, self._caller)
        if decided.refused is not None:
            raise decided.refused
        assert decided.row is not None
        return decided.row


async def test_every_write_to_one_record_is_one_call(place: Place):
    async with place.opened() as engine, stored(engine) as store:
        client, claims = Numbered(store), Claims(store)

        async def cost(request: Any) -> dict[str, int]:
            with Counted(engine) as calls:
                await client.write(request)
            return calls

        assert await cost(wire.Create(job=job("a", labels={"x": "y"}))) == ONE_WRITE
        assert await cost(wire.Update(job_id="a", job={"progress": 1})) == ONE_WRITE
        assert await cost(wire.Emit(job_id="a", event=wire.Told(type="seen"))) == ONE_WRITE
        (held,) = (await claims.claim(wire.Claim(job_id="a", holder="me", status="RUNNING"), WHO, set())).rows
        with Counted(engine) as calls:
            await store.renew(wire.Renew(job_id="a", token=held.token))
        assert calls == {"PutItem": 1}
        assert await cost(wire.Renew(job_id="a", token=held.token, job={"progress": 2})) == ONE_WRITE
        assert await cost(wire.Release(job_id="a", token=held.token, status="COMPLETED")) == ONE_WRITE
        assert await cost(wire.Delete(job_id="a")) == ONE_WRITE
        assert await cost(wire.Create(job=job("a"))) == ONE_WRITE
        assert await engine.check() == []


@pytest.mark.parametrize(("records", "calls_made"), [(25, 1), (100, 4)])
async def test_a_sync_of_new_records_is_a_call_for_every_25(place: Place, records: int, calls_made: int):
    async with place.opened() as engine, stored(engine) as store:
        new = [job(f"job-{number:03}", labels={"team": "a", "tier": "b"}) for number in range(records)]
        with Counted(engine) as calls:
            report = await sync(store, wire.Sync(jobs=new), Caller())
        assert (report.applied, report.unchanged, report.rejected) == (records, 0, [])
        assert calls == {"TransactWriteItems": calls_made}
        report = await sync(store, wire.Sync(jobs=[*new[5:], job("more")]), Caller())
        assert (report.applied, report.unchanged, report.rejected) == (1, records - 5, [])
        assert await engine.check() == []


async def test_an_answer_is_never_read_off_a_guess(place: Place):
    """Another daemon takes the record away, and ends it: whoever guesses otherwise is told the truth."""
    async with (
        place.opened() as engine, place.opened() as other, stored(engine) as here, stored(other) as there
    ):  # fmt: skip
        near, far = Numbered(here), Numbered(there, Caller(said_hello=True, client="c2"))
        made = await near.write(wire.Create(job=job("a")))
        await far.write(wire.Delete(job_id="a"))
        again = await near.write(wire.Create(job=job("a")))
        assert again.uid != made.uid
        await far.write(wire.Update(job_id="a", job={"status": "FAILED"}))
        with pytest.raises(StateError) as refused:
            await near.write(wire.Update(job_id="a", job={"status": "RUNNING"}))
        assert refused.value.code == "invalid_transition"
        with pytest.raises(StateError) as refused:
            await near.write(wire.Create(job=job("a")))
        assert refused.value.code == "exists"
        await far.write(wire.Delete(job_id="a"))
        with pytest.raises(StateError) as refused:
            await near.write(wire.Update(job_id="a", job={"x": 1}))
        assert refused.value.code == "not_found"


async def test_writes_through_two_daemons_on_each_others_outdated_guesses_lose_nothing(place: Place):
    async with (
        place.opened() as engine, place.opened() as other, stored(engine) as here, stored(other) as there
    ):  # fmt: skip
        near, far = Numbered(here), Numbered(there, Caller(said_hello=True, client="c2"))
        await near.write(wire.Create(job=job("a", count=0)))
        for _ in range(5):
            await far.write(wire.Update(job_id="a", inc={"count": 1}))
            await near.write(wire.Update(job_id="a", inc={"count": 1}))
        (found,) = await other.get([A])
        assert found is not None
        assert msgspec.json.decode(found.body)["count"] == 10
        assert await revisions_told(engine) == list(range(1, 12))


async def test_renewals_through_another_daemon_are_not_undone_by_an_update(place: Place):
    async with (
        place.opened() as engine, place.opened() as other, stored(engine) as here, stored(other) as there
    ):  # fmt: skip
        near = Numbered(here)
        await near.write(wire.Create(job=job("a")))
        (held,) = (await Claims(here).claim(wire.Claim(job_id="a", holder="me", status="RUNNING"), WHO, set())).rows
        for _ in range(3):
            kept, _ = await there.renew(wire.Renew(job_id="a", token=held.token))
        updated = await near.write(wire.Update(job_id="a", job={"x": 1}))
        assert msgspec.json.decode(updated.body)["lease"]["beat"] == kept.lease.beat


@pytest.fixture
def troubled(endpoint: str) -> Iterator[TroubledEndpoint]:
    proxy = TroubledEndpoint(endpoint, seed=4)
    proxy.only = frozenset({"TransactWriteItems"})
    yield proxy
    proxy.end()


@pytest.mark.parametrize("fault", ["drop", "fail_after", "garble"])
async def test_a_write_on_a_guess_whose_reply_is_lost_is_applied_once(
    place: Place, troubled: TroubledEndpoint, fault: Any
):
    async with place.opened(endpoint=troubled.url) as engine, stored(engine) as store:
        client = Numbered(store)
        troubled.next(fault)
        await client.write(wire.Create(job=job("a", count=0)))
        troubled.next(fault)
        updated = await client.write(wire.Update(job_id="a", inc={"count": 1}))
        assert troubled.faults[fault] == 2
        assert (updated.revision, msgspec.json.decode(updated.body)["count"]) == (2, 1)
        assert await revisions_told(engine) == [1, 2]
