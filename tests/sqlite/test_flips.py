"""A flipped bit anywhere in a closed store: refused, reported, or without any effect on what is read."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.port import DataCorrupt, LogKept, Query
from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import open_file
from statesvc.backends.sqlite.log import FORMAT
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.errors import StateError
from statesvc_client.wire import Create, Update

JOBS = 120
TRIALS = 40

Content = dict[str, Any]


async def make(folder: Path) -> Content:
    engine = SqliteEngine(folder)
    await engine.open()
    store = Store(engine)
    store.start()
    for number in range(JOBS):
        job = {"uuid": name(number), "status": ("PENDING", "RUNNING")[number % 2], "labels": {"of": str(number % 3)}}
        store.write_now(Create(job={**job, "pad": "x" * 200}), Caller(said_hello=True))
        if number % 3 == 0:
            store.write_now(Update(job_id=name(number), job={"step": number}), Caller(said_hello=True))
        if number % 10 == 0:
            await store.commits.settled()
    await store.stop()
    content = await read_all(engine)
    await engine.close()
    return content


async def cut_log(folder: Path) -> None:
    """From here on the state cannot be made again."""
    engine = SqliteEngine(folder)
    await engine.open()
    while await engine.compact(LogKept(since=1 << 62, most_bytes=1 << 40)):
        pass
    await engine.close()


def name(number: int) -> str:
    return f"job-{number:04d}"


async def read_all(engine: SqliteEngine) -> Content:
    """Every record by its key, and every way to list them."""
    content: Content = {name(number): engine.peek(("job", name(number))) for number in range(JOBS)}
    walks = [("status", "PENDING"), ("status", "RUNNING"), *(("label:of", str(number)) for number in range(3)), None]
    for term in walks:
        content[str(term)] = await engine.query(Query(kind="job", limit=1000, term=term))
    content["by id"] = await engine.query(Query(kind="job", limit=1000, sort="id"))
    return content


async def outcome(folder: Path, expected: Content) -> str:
    """What became of a damaged store: refused, reported while reading, right or wrong."""
    engine = SqliteEngine(folder)
    try:
        await engine.open()
    except DataCorrupt:
        return "refused"
    finally:
        if not engine._is_open:
            await engine.close()
    try:
        return await _read(engine, expected)
    finally:
        engine._broken = None
        await engine.close()


async def _read(engine: SqliteEngine, expected: Content) -> str:
    try:
        if await read_all(engine) == expected:
            return "right"
    except (StateError, TypeError, ValueError):
        return "reported"
    return "WRONG"


@pytest.mark.parametrize("cut", [False, True], ids=["whole log", "cut log"])
@pytest.mark.parametrize("file", ["log.db", "state.db", "watermark", "state.watermark"])
async def test_a_flipped_bit_never_leads_to_a_wrong_answer_that_nothing_notices(tmp_path, file, cut):
    expected = await make(tmp_path / "store")
    if cut:
        await cut_log(tmp_path / "store")
    chance = random.Random(file)
    outcomes: dict[str, int] = {}
    for _ in range(TRIALS):
        damaged = tmp_path / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(tmp_path / "store", damaged)
        raw = bytearray((damaged / file).read_bytes())
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        (damaged / file).write_bytes(raw)
        found = await outcome(damaged, expected)
        outcomes[found] = outcomes.get(found, 0) + 1
    print(file, outcomes)
    assert "WRONG" not in outcomes, outcomes


async def test_the_check_of_a_store_finds_a_flip_in_any_entry_of_its_log(tmp_path):
    await make(tmp_path / "store")
    db = open_file(tmp_path / "store" / "log.db", FORMAT, "FULL")
    payload = db.execute("SELECT payload FROM batch WHERE first = 1").get
    db.execute("UPDATE batch SET payload = ? WHERE first = 1", (payload.replace(b"x" * 9, b"xxxxyxxxx", 1),))
    db.close()
    engine = SqliteEngine(tmp_path / "store")
    await engine.open()
    problems = await engine.check()
    await engine.close()
    assert problems
    assert "does not match its checksum" in problems[0]
