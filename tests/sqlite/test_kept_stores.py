"""Stores of every released format open, and show what was in them. See tests/testdata/make_store.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from statesvc.backends.port import Query
from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import stored_version
from statesvc.backends.sqlite.log import FORMAT as LOG_FORMAT
from statesvc.backends.sqlite.state import FORMAT as STATE_FORMAT
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.wire import Update

KEPT = sorted((Path(__file__).parents[1] / "testdata").glob("store-format-*"))


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def kept(request, tmp_path) -> Path:
    """A copy: what is kept stays as it was left."""
    shutil.copytree(request.param, tmp_path / "store")
    return tmp_path / "store"


def test_there_is_a_kept_store_of_the_newest_formats():
    versions = {(stored_version(path / "log.db"), stored_version(path / "state.db")) for path in KEPT}
    assert (LOG_FORMAT.newest, STATE_FORMAT.newest) in versions


@pytest.mark.parametrize("with_state", [True, False], ids=["as it is", "state made again"])
async def test_a_kept_store_opens_and_shows_its_records(kept, with_state):
    if not with_state:
        for file in kept.glob("state.*"):
            file.unlink()
    expected = json.loads((kept / "records.json").read_text())
    engine = SqliteEngine(kept)
    await engine.open()
    try:
        found = [
            json.loads(row.body)
            for kind in ("job", "volume")
            for row in await engine.query(Query(kind=kind, limit=100, sort="id", descending=False))
        ]
        assert found == expected
        buried = engine.peek(("job", "job-4"))
        assert buried is not None
        assert buried.deleted
        assert await engine.check() == []
        assert await told(engine) == {"job-2": ["created", "updated"], "job-4": ["created", "deleted"], "job-5": []}
        (leased,) = await engine.query(Query(kind="volume", limit=10, term=("label:", "leased")))
        assert (leased.id, leased.token) == ("vol-1", 3)
        assert engine.peek(("job", "job-5")) is None
    finally:
        await engine.close()


async def told(engine: SqliteEngine) -> dict[str, list[str]]:
    """What the history of some records says."""
    return {
        name: [entry.event.type for entry in await engine.history(("job", name), "", 10)]
        for name in ("job-2", "job-4", "job-5")
    }


async def test_a_kept_store_still_knows_which_writes_it_has_taken(kept):
    engine = SqliteEngine(kept)
    await engine.open()
    store = Store(engine)
    store.start()
    try:
        again = Update(job_id="job-2", job={"big": 1}, seq=4, again=True)
        assert store.write_now(again, Caller(said_hello=True, client="agent-1")).duplicate_of == 2
    finally:
        await store.stop()
        await engine.close()
