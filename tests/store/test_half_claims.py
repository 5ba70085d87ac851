"""A claim of several records, some of which cannot be taken: it says what it got, and never that it got nothing when it
may have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from statesvc.backends.port import Row
from statesvc.backends.sqlite import SqliteEngine
from statesvc.store.claims import Claims
from statesvc.store.leasing import is_leased
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import Internal, NoSpace, StateError, Unavailable
from statesvc_client.wire import Claim, Create
from tests.engines.weak import WeakEngine, WeakStorage

HERE = Caller(said_hello=True)
JOBS = [f"job-{number:03}" for number in range(400)]
"""So many that they are not taken in one turn."""
FEW = JOBS[:3]

Commit = Callable[[Any], Awaitable[Any]]


def failing_from(number: int, failure: StateError, commit: Commit) -> Commit:
    """The same, but that one of the commits to come fails, and all behind it."""
    count = 0

    async def counted(what: Any) -> Any:
        nonlocal count
        count += 1
        if count >= number:
            raise failure
        return await commit(what)

    return counted


async def queued(store: Store, names: Sequence[str]) -> None:
    for name in names:
        await store.write(Create(kind="job", record={"uuid": name, "status": "QUEUED"}), HERE)


def claim(limit: int) -> Claim:
    return Claim(kind="job", holder="me", ttl=30.0, limit=limit)


async def leased(store: Store, names: Sequence[str]) -> set[str]:
    rows: list[Row | None] = await store.look([("job", name) for name in names])
    return {row.id for row in rows if row is not None and is_leased(row)}


@pytest.fixture
async def alone(tmp_path) -> AsyncIterator[Store]:
    """A store on an engine that nobody else uses."""
    engine = SqliteEngine(tmp_path / "store")
    await engine.open()
    store = Store(engine)
    store.start()
    await queued(store, JOBS)
    yield store
    await store.stop()
    await engine.close()


async def claimed_in_two_commits(store: Store, failure: StateError, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Ask for everything; all but the first commit fail."""
    monkeypatch.setattr(store.engine, "_append", failing_from(2, failure, store.engine._append))  # type: ignore[attr-defined]
    try:
        return (await Claims(store).claim(claim(len(JOBS)), HERE, set())).rows
    finally:
        await store.commits.settled()
        monkeypatch.undo()


async def test_what_was_committed_before_the_disk_was_full_is_the_answer(alone, monkeypatch):
    rows = await claimed_in_two_commits(alone, NoSpace("the disk is full"), monkeypatch)
    assert {row.id for row in rows} == await leased(alone, JOBS)
    assert 0 < len(rows) < len(JOBS)


async def test_while_a_commit_may_have_been_made_the_claim_may_have_been_too(alone, monkeypatch):
    with pytest.raises(Internal) as raised:
        await claimed_in_two_commits(alone, Internal("the disk failed", outcome="unknown"), monkeypatch)
    assert raised.value.outcome == "unknown"


@pytest.fixture
async def shared() -> AsyncIterator[Store]:
    engine = WeakEngine(WeakStorage(unknown=0.0))
    store = Store(engine)
    store.start()
    await queued(store, FEW)
    engine.storage.catch_up()
    yield store
    await store.stop()


async def test_what_was_taken_before_a_shared_engine_went_away_is_the_answer(shared, monkeypatch):
    away = failing_from(3, Unavailable("the engine is away"), shared.engine.commit)
    monkeypatch.setattr(shared.engine, "commit", away)
    rows = (await Claims(shared).claim(claim(len(FEW)), HERE, set())).rows
    assert len(rows) == 2
    assert {row.id for row in rows} == await leased(shared, FEW)


async def test_a_claim_that_got_nothing_says_why(shared, monkeypatch):
    away = failing_from(1, Unavailable("the engine is away"), shared.engine.commit)
    monkeypatch.setattr(shared.engine, "commit", away)
    with pytest.raises(Unavailable) as raised:
        await Claims(shared).claim(claim(1), HERE, set())
    assert raised.value.outcome == "not_applied"
    assert await leased(shared, FEW) == set()
