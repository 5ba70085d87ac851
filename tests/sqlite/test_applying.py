"""The state follows the log while commits go on: nothing is looked for that is not there yet."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from statesvc.backends.port import Event, Query, Write
from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import Checkpoints
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import NoSpace
from statesvc_client.wire import Create
from tests.engines.rows import after, buried, commit, fill, row

AGENT = Caller(said_hello=True)


def create(store: Store, number: int):
    job = {"uuid": f"job-{number:04d}", "labels": {"place": str(number % 5)}}
    return store.write_now(Create(job=job), AGENT)


@pytest.fixture
async def engine(tmp_path):
    """An engine that begins to apply at every opportunity."""
    engine = SqliteEngine(tmp_path / "store", apply_seconds=0.002)
    await engine.open()
    yield engine
    assert engine._broken is None
    await engine.close()


async def test_labels_of_records_whose_commit_is_under_way_wait_for_it(engine):
    store = Store(engine)
    store.start()
    for number in range(400):
        decided = create(store, number)
        if number % 3 == 0:
            await decided.after.wait()
            await asyncio.sleep(0)
    await store.stop()
    for place in range(5):
        rows = await engine.query(Query(kind="job", limit=1000, term=("label:place", str(place)), descending=False))
        assert [row.id for row in rows] == [f"job-{number:04d}" for number in range(place, 400, 5)]
    assert await engine.check() == []


async def test_labels_of_a_record_that_was_refused_leave_nothing_behind(engine, monkeypatch):
    store = Store(engine)
    store.start()

    def full(_changes):
        raise apsw.FullError

    with monkeypatch.context() as disk:
        disk.setattr(engine._files.log, "append", full)
        refused = create(store, 1)
        await refused.after.wait()
        assert isinstance(refused.after.failure, NoSpace)
    decided = create(store, 2)
    await decided.after.wait()
    assert decided.after.failure is None
    assert [row.id for row in await engine.query(Query(kind="job", limit=10, term=("label:place", "2")))] == [
        "job-0002"
    ]
    assert await engine.query(Query(kind="job", limit=10, term=("label:place", "1"))) == []
    await store.stop()


async def test_a_long_wal_is_moved_into_its_file_while_commits_go_on(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(Checkpoints, "PAGES", 50)
    store = Store(engine)
    store.start()
    wal = tmp_path / "store" / "log.db-wal"
    longest = 0
    for number in range(600):
        await create(store, number).after.wait()
        longest = max(longest, wal.stat().st_size)
    await store.stop()
    assert longest < 4 * 50 * 4120, "the WAL grows although nothing holds it"


async def test_a_record_made_again_and_changed_in_one_batch_leaves_its_tombstone_behind(engine):
    first = row("a", status="QUEUED", ready="1")
    await fill(engine, [first])
    grave = buried(first)
    await commit(engine, [(grave,)])
    assert await engine.check() == []  # applied, too
    reborn = row("a", uid="another", status="RUNNING")
    await commit(engine, [(Write(reborn, grave.row.stamp, Event("created", 1)),), (after(reborn, status="RUNNING"),)])
    assert await engine.check() == []
    assert [found.id for found in await engine.query(Query(kind="job", limit=9, term=("status", "RUNNING")))] == ["a"]
