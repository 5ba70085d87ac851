"""The log is read from memory at its end and from the file further back, and nobody can tell the difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from statesvc.backends.port import Event, Query, Write
from statesvc.backends.sqlite import SqliteEngine, recent
from statesvc.backends.sqlite.reading import LogReader
from statesvc_client.errors import Internal
from tests.engines.rows import after, born, buried, fill, hidden, removed, row
from tests.sqlite.filling import PAGE_BYTES, change, compact, create, opened, pages_of

A = ("job", "a")


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteEngine]:
    """A store that remembers twenty entries; the rest is read from its file."""
    monkeypatch.setattr(recent, "MOST_ENTRIES", 20)
    async with opened(tmp_path / "store", durability="os", apply_seconds=0.01) as engine:
        yield engine
        assert await engine.check() == []


async def write(engine: SqliteEngine, count: int = 90) -> list[tuple[str, int]]:
    """Commits of one to five writes, every third write hidden; what the log should tell."""
    told: list[tuple[str, int]] = []
    newest = {each.id: each for each in await fill(engine, [row(name) for name in "abcde"])}
    told += [(name, 1) for name in "abcde"]
    number = 0
    while number < count:
        batch = []
        for name in "abcde"[: 1 + number % 5]:
            step = hidden(newest[name], token=number) if number % 3 == 0 else after(newest[name])
            newest[name] = step.row
            batch.append((step,))
            told += [] if step.event is None else [(name, step.row.revision)]
            number += 1
        assert set(await engine.commit(batch)) == {"applied"}
    return told


async def test_every_cursor_leads_to_the_same_entries_whether_from_memory_or_from_the_file(engine):
    told = await write(engine)
    whole = await engine.read_log("", 1000)
    assert [(entry.row.id, entry.row.revision) for entry in whole] == told
    for place, entry in enumerate(whole):
        for limit in (1, 7, 1000):
            assert await engine.read_log(entry.cursor, limit) == whole[place + 1 :][:limit], (place, limit)


async def test_every_history_is_the_same_whether_from_memory_or_from_the_file(engine):
    await write(engine)
    whole = await engine.read_log("", 1000)
    for name in "abcde":
        expected = [entry for entry in whole if entry.row.id == name]
        assert await engine.history(("job", name), "", 1000) == expected
        for place, entry in enumerate(expected):
            assert await engine.history(("job", name), entry.cursor, 3) == expected[place + 1 :][:3]


async def test_who_reads_at_the_end_never_touches_the_file(engine, monkeypatch):
    await write(engine)
    cursor = await engine.position()

    def touched(*_):
        raise AssertionError("the file was read")

    monkeypatch.setattr(LogReader, "behind", touched)
    for number in range(50):
        await fill(engine, [row(f"late-{number}")])
        await engine.log_grew(cursor, 30)
        (entry,) = await engine.read_log(cursor, 10)
        assert entry.row.id == f"late-{number}"
        cursor = entry.cursor


async def test_what_is_remembered_stays_within_its_bounds(engine, monkeypatch):
    kept = engine._log._recent
    for number in range(300):
        await fill(engine, [row(f"job-{number}")])
        assert kept._entries <= 20
        assert len(kept._firsts) <= 2 * 64 + 20
    monkeypatch.setattr(recent, "MOST_BYTES", 3000)
    await fill(engine, [row("large")])
    assert kept._bytes <= 3000
    assert len(await engine.read_log("", 1000)) == 301


async def test_a_page_of_large_records_ends_early_and_nothing_is_left_out(engine, monkeypatch):
    monkeypatch.setattr("statesvc.backends.sqlite.reading.PAGE_BYTES", 1)
    await write(engine)
    read, cursor = [], ""
    while page := await engine.read_log(cursor, 1000):
        read += page
        cursor = page[-1].cursor
    told, cursor = [], ""
    while page := await engine.history(A, cursor, 1000):
        told += page
        cursor = page[-1].cursor
    assert told == [entry for entry in read if entry.row.key == A]
    assert [entry.row.revision for entry in told] == list(range(1, len(told) + 1))


async def test_a_batch_that_was_changed_is_told_and_not_shown(tmp_path):
    async with opened(tmp_path / "store") as engine:
        for name in "abc":
            await fill(engine, [row(name, node="node-1")])
    sql = "UPDATE batch SET payload = CAST(replace(payload, 'node-1', 'node-2') AS BLOB)"
    change(tmp_path / "store" / "log.db", sql)
    async with opened(tmp_path / "store") as engine:
        with pytest.raises(Internal, match=r"log\.db: the batch at entry 1 "):
            await engine.read_log("", 10)
        with pytest.raises(Internal, match=r"log\.db: the batch at entry 2 "):
            await engine.history(("job", "b"), "", 10)
        assert await engine.get([("job", "b")]) == [row("b", node="node-1")]


async def test_a_batch_in_another_place_is_told_and_not_shown(tmp_path):
    """Each batch is whole, and the chain of digests still says that they were exchanged."""
    async with opened(tmp_path / "store") as engine:
        for name in "abcd":
            await fill(engine, [row(name)])
    path = tmp_path / "store" / "log.db"
    for step in ("first = -first WHERE first IN (2, 3)", "first = 5 + first WHERE first < 0"):
        change(path, f"UPDATE batch SET {step}")
    async with opened(tmp_path / "store") as engine:
        with pytest.raises(Internal, match="does not match its checksum"):
            await engine.read_log("1", 10)
        assert [entry.row.id for entry in await engine.read_log("", 1)] == ["a"]


@pytest.mark.parametrize(
    ("file", "sql", "entry"),
    [
        ("log.db", "DELETE FROM batch WHERE first = 2", 2),
        ("state.db", "UPDATE history SET position = 1 WHERE position = 2", 1),
        ("state.db", "UPDATE history SET position = 3 WHERE position = 2", 3),
    ],
    ids=["none", "another's", "a hidden one"],
)
async def test_an_entry_that_is_not_what_a_history_names_is_told_and_not_left_out(tmp_path, file, sql, entry):
    async with opened(tmp_path / "store") as engine:
        for name in "abcd":
            (made,) = await fill(engine, [row(name)])
            if name == "b":
                assert await engine.commit([(hidden(made, token=1),)]) == ["applied"]
    change(tmp_path / "store" / file, sql)
    async with opened(tmp_path / "store") as engine:
        with pytest.raises(Internal, match=rf"log\.db is damaged: entry {entry} is not what the history .* says"):
            await engine.history(("job", "b"), "", 10)
        assert [entry.row.id for entry in await engine.history(A, "", 10)] == ["a"]


async def test_no_history_is_shorter_because_a_page_of_the_log_lies_in_the_place_of_another(tmp_path):
    path = tmp_path / "store" / "log.db"
    async with opened(tmp_path / "store") as engine:
        for number in range(60):
            await create(engine, [f"job-{number:02d}"], pad=300)
    pages, whole = pages_of(path, "batch"), path.read_bytes()
    source, target = ((page - 1) * PAGE_BYTES for page in pages[1:3])
    path.write_bytes(whole[:target] + whole[source : source + PAGE_BYTES] + whole[target + PAGE_BYTES :])
    damaged: list[str] = []
    async with opened(tmp_path / "store") as engine:
        for number in range(60):
            try:
                (entry,) = await engine.history(("job", f"job-{number:02d}"), "", 10)
            except Internal as problem:
                damaged.append(problem.text)
            else:
                assert entry.cursor == str(number + 1)
    assert damaged
    assert all(text.startswith("log.db") for text in damaged)


async def test_a_history_that_is_cut_while_it_is_read_is_no_damage(engine, monkeypatch):
    await write(engine)
    whole = await engine.history(A, "", 1000)
    truly = engine._positions

    async def positions(*asked: Any) -> list[int]:
        found = await truly(*asked)
        await compact(engine)
        return found

    monkeypatch.setattr(engine, "_positions", positions)
    left = await engine.history(A, "", 1000)
    assert left == [entry for entry in await engine.read_log("", 1000) if entry.row.key == A]
    assert len(left) < len(whole)


async def test_a_reader_does_not_see_what_is_committed_and_not_yet_known_to_be(engine, monkeypatch):
    """The commit thread is ahead of the loop: a cursor from there would be beyond the end."""
    await write(engine)
    behind = LogReader.behind
    reading, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def late(reader, *arguments):
        asyncio.run_coroutine_threadsafe(wait(), loop).result()
        return behind(reader, *arguments)

    async def wait():
        reading.set()
        await go_on.wait()

    monkeypatch.setattr(LogReader, "behind", late)
    position = await engine.position()
    page = asyncio.create_task(engine.read_log("", 1000))
    await reading.wait()
    await fill(engine, [row("later")])
    go_on.set()
    assert (await page)[-1].cursor == position


# --- while the disk is full ------------------------------------------------------------------------------------------


@pytest.fixture
async def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteEngine]:
    """A store whose state has some records and cannot take more."""
    async with opened(tmp_path / "store", apply_seconds=0.01) as engine:
        rows = await fill(engine, [row("a", labels=(("x", "1"),)), row("b"), row("c"), row("d", kind="kv")])
        for each in rows:
            await engine.commit([(after(each, labels=each.keys.labels),)])
        assert len(await engine.query(Query(kind="job", limit=10))) == 3
        with monkeypatch.context() as disk:

            def full(*_):
                raise apsw.FullError

            disk.setattr(engine._files.state, "apply", full)
            await fill(engine, [row("e")])
            await until(lambda: engine._applying.stuck)
            yield engine
        await until(lambda: not engine._applying.stuck)
        assert await engine.check() == []


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def newest(engine: SqliteEngine, name: str, kind: str = "job"):
    found = engine.peek((kind, name))
    assert found is not None
    return found


async def revisions(engine: SqliteEngine, name: str, after: str = "", limit: int = 100) -> list[tuple[str, int]]:
    return [(entry.row.uid, entry.row.revision) for entry in await engine.history(("job", name), after, limit)]


async def test_history_goes_on_while_the_state_cannot_follow(stuck):
    await stuck.commit([(after(newest(stuck, "a")),), (hidden(newest(stuck, "b"), token=3),)])
    await stuck.commit([(after(newest(stuck, "a")),)])
    assert await revisions(stuck, "a") == [("uid-a", number) for number in (1, 2, 3, 4)]
    assert await revisions(stuck, "a", limit=3) == [("uid-a", number) for number in (1, 2, 3)]
    third = (await stuck.history(A, "", 3))[-1].cursor
    assert await revisions(stuck, "a", third) == [("uid-a", 4)]
    assert await revisions(stuck, "b") == [("uid-b", 1), ("uid-b", 2)]
    assert await revisions(stuck, "e") == [("uid-e", 1)]


async def test_removals_count_while_the_state_cannot_follow(stuck):
    await stuck.commit([(removed(newest(stuck, "a")),), (removed(newest(stuck, "b")),)])
    await stuck.commit([born("b", uid="again"), (removed(newest(stuck, "e")),), (buried(newest(stuck, "c")),)])
    assert stuck.peek(A) is None
    assert await revisions(stuck, "a") == await revisions(stuck, "e") == []
    assert await revisions(stuck, "b") == [("again", 1)]
    assert [each.id for each in await stuck.query(Query(kind="job", limit=10))] == ["b"]
    assert await stuck.query(Query(kind="job", limit=10, term=("label:x", "1"))) == []
    assert [each.id for each in await stuck.query(Query(kind="job", limit=10, sort="deleted"))] == ["c"]
    assert await stuck.kinds() == ["job", "kv"]


async def test_a_kind_that_only_waits_is_named(stuck):
    await fill(stuck, [row("x", kind="volume"), row("y", kind="ip")])
    assert await stuck.kinds() == ["ip", "job", "kv", "volume"]


# --- made again ------------------------------------------------------------------------------------------------------


async def test_a_state_made_again_from_the_log_has_hidden_writes_removals_and_histories(tmp_path):
    folder = tmp_path / "store"
    async with opened(folder) as engine:
        rows = await fill(engine, [row(name, labels=(("n", name),)) for name in "abcd"])
        await engine.commit([(after(rows[0], labels=(("n", "new"),)),), (hidden(rows[1], token=5, due=9),)])
        await engine.commit([(removed(rows[2]),), (buried(rows[3]),)])
        again = Write(row("c", uid="again"), None, Event("created", 9))
        await engine.commit([(again,)])
        expected = await everything(engine)
    for left in folder.glob("state*"):
        left.unlink()
    async with opened(folder) as engine:
        assert await everything(engine) == expected
        assert await revisions(engine, "c") == [("again", 1)]
        assert await engine.check() == []


async def everything(engine: SqliteEngine) -> list[object]:
    keys = [("job", name) for name in "abcd"]
    return [
        await engine.get(keys),
        [await engine.history(key, "", 100) for key in keys],
        [await engine.query(Query(kind="job", limit=10, sort=sort)) for sort in ("id", "due", "deleted")],
        [await engine.query(Query(kind="job", limit=10, term=("label:n", name))) for name in (*"abcd", "new")],
        await engine.read_log("", 100),
        await engine.position(),
    ]
