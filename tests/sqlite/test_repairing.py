"""Whatever is wrong in a store is found by its check; what can be made again is, and what cannot is named."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from statesvc.backends.port import DataCorrupt, EngineBroken, Event, LogKept, Query, Row, Write
from statesvc.backends.sqlite import SqliteEngine, checking, files, opening, repairing, salvaging
from statesvc.backends.sqlite.files import Checkpoints, open_writer
from statesvc.backends.sqlite.offline import check_folder, repair_folder
from statesvc.backends.sqlite.paths import Paths, sides
from statesvc.backends.sqlite.salvaging import salvage
from statesvc.backends.sqlite.state import StateFile, decode_row
from statesvc.backends.sqlite.storing import columns_of
from statesvc.process.errors import AlreadyRunning
from statesvc_client.errors import NoSpace, Unavailable
from tests.engines.rows import after, buried, hidden, removed
from tests.sqlite.filling import change, compact, content, crashed, create, damage, look, opened

JOBS = 40


@pytest.fixture
async def store(tmp_path) -> Path:
    """A closed store in which records were made, changed, buried, removed and changed without a word."""
    async with opened(tmp_path / "store") as engine:
        rows = await create(
            engine, [f"job-{number:02d}" for number in range(JOBS)], at=10, node="n1", labels=(("team", "red"),)
        )
        for number in range(5):
            step = after(rows[number], node="n2", labels=(("team", "blue"),))
            await engine.commit([(step._replace(event=Event("updated", 20)),)])
        await engine.commit([(buried(rows[10]),), (removed(rows[11]),), (hidden(rows[12], token=7),)])
        await create(engine, ["job-11"], at=30)
        await create(engine, ["last"], at=40)
    return tmp_path / "store"


@pytest.fixture
async def cut_store(store) -> Path:
    """The same, its log cut down to the last two commits."""
    async with opened(store) as engine:
        await compact(engine, LogKept(since=30, most_bytes=1 << 40))
        assert [entry.row.id for entry in await engine.read_log("", 100)] == ["job-11", "last"]
    return store


async def seen(folder: Path) -> dict[str, object]:
    """Everything that can be asked for."""
    async with opened(folder) as engine:
        answers: dict[str, object] = {"rows": await content(engine)}
        for term in (("label:team", "red"), ("label:team", "blue"), ("node", "n1"), ("node", "n2"), None):
            answers[str(term)] = await engine.query(Query(kind="job", limit=100, term=term))
        for number in range(JOBS):
            key = ("job", f"job-{number:02d}")
            answers[f"history of {key[1]}"] = await engine.history(key, "", 100)
        return answers


async def repaired(folder: Path, *problems: str) -> list[str]:
    """The check finds these problems, a repair while serving cures them; the check after it finds nothing."""
    async with opened(folder) as engine:
        found = await engine.check()
        assert found
        for problem in problems:
            assert any(re.search(problem, text) for text in found), (problem, found)
        done = await engine.repair()
        assert await engine.check() == []
        assert await engine.repair() == []
    assert check_folder(folder) == []
    return done


FAULTS = {
    "a column": (
        "UPDATE record SET node = 'n2' WHERE id = 'job-07'",
        "job job-07: its index columns differ",
        "job job-07: its index columns were written again from the record",
    ),
    "a place in the queue": (
        "UPDATE record SET ready = 'x', due = 5 WHERE id = 'job-08'",
        "job job-08: its index columns differ",
        "job job-08: its index columns were written again from the record",
    ),
    "the id of a row": (
        "UPDATE record SET id = 'strange' WHERE id = 'job-08'",
        "job strange: its index columns differ",
        "job job-08: its index columns were written again from the record",
    ),
    "a tombstone that lives": (
        "UPDATE record SET deleted = NULL WHERE id = 'job-10'",
        "job job-10: its index columns differ",
        "job job-10: its index columns were written again from the record",
    ),
    "a label that is missing": (
        "DELETE FROM label WHERE id = 'job-03'",
        "job job-03: its labels differ",
        "job job-03: its labels were written again from the record",
    ),
    "a label too many": (
        "INSERT INTO label VALUES ('job', 'team', 'green', 1, 'job-03')",
        "job job-03: its labels differ",
        "job job-03: its labels were written again from the record",
    ),
    "a label of a record that has none": (
        "INSERT INTO label VALUES ('job', 'team', 'red', 1, 'job-11')",
        "job job-11: its labels differ",
        "job job-11: its labels were written again from the record",
    ),
    "a label of nobody": (
        "INSERT INTO label VALUES ('job', 'team', 'red', 1, 'nobody')",
        "1 rows of label belong to no record",
        "state.db: 1 rows of label that belonged to no record were removed",
    ),
    "a history of nobody": (
        "INSERT INTO history VALUES (99999, 1)",
        "1 rows of history belong to no record",
        "state.db: 1 rows of history that belonged to no record were removed",
    ),
    "an entry its history lacks": (
        "DELETE FROM history WHERE position = 3",
        "job job-02: its history differs from the log",
        "the history of all records was made again from the log",
    ),
    "an entry of another record's history": (
        "UPDATE history SET record = (SELECT rowid FROM record WHERE id = 'job-09') WHERE position = 3",
        "job job-02: its history differs from the log",
        "the history of all records was made again from the log",
    ),
    "an entry in two histories": (
        "INSERT INTO history SELECT rowid, 3 FROM record WHERE id = 'job-09'",
        "1 rows of history name no entry of the log",
        "the history of all records was made again from the log",
    ),
    "an index that is missing": (
        "DROP INDEX record_created",
        "its index record_created is missing",
        "state.db: its index record_created was missing and was made again",
    ),
    "a record that is missing": (
        "DELETE FROM record WHERE id = 'job-05'",
        "job job-05 is not what the log says",
        "job job-05: its record was not what the log says and was taken from the log again",
    ),
    "bytes of a record": (
        "UPDATE record SET data = CAST(data || x'00' AS BLOB) WHERE id = 'job-06'",
        "job job-06 does not match its checksum",
        "job job-06: its record was damaged and was taken from the log again",
    ),
    "the checksum of a record": (
        "UPDATE record SET checksum = 1 WHERE id = 'job-12'",
        "job job-12 does not match its checksum",
        "job job-12: its record was damaged and was taken from the log again",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_can_be_made_again_is_made_again_while_serving(store, name):
    damage, problem, sentence = FAULTS[name]
    before = await seen(store)
    change(store / "state.db", damage)
    assert sentence in await repaired(store, problem)
    assert await seen(store) == before


@pytest.mark.parametrize("name", FAULTS)
async def test_what_can_be_made_again_is_made_again_in_a_folder_nobody_serves(store, name):
    damage, problem, sentence = FAULTS[name]
    before = await seen(store)
    change(store / "state.db", damage)
    assert any(problem in text for text in check_folder(store))
    assert sentence in repair_folder(store)
    assert check_folder(store) == []
    assert repair_folder(store) == []
    assert await seen(store) == before


async def test_everything_wrong_at_once_is_made_right_at_once(store):
    before = await seen(store)
    apart = [name for name in FAULTS if name not in ("the id of a row", "a record that is missing")]
    for name in apart:
        change(store / "state.db", FAULTS[name][0])
    done = repair_folder(store)
    assert {FAULTS[name][2] for name in apart} <= set(done)
    assert check_folder(store) == []
    assert await seen(store) == before


async def test_a_history_that_cannot_be_made_again_to_its_end_stays_as_it_was(store, monkeypatch):
    """One entry is missing, of one record. All others must not lose theirs to its repair."""
    change(store / "state.db", "DELETE FROM history WHERE position = 3")
    before = await seen(store)
    truly = repairing._Repair._told

    def until_the_disk_is_full(*arguments: Any) -> Iterator[tuple[int, int]]:
        yield from islice(truly(*arguments), 10)
        raise apsw.FullError("disk full")

    with monkeypatch.context() as full:
        full.setattr(repairing._Repair, "_told", until_the_disk_is_full)
        (told,) = repair_folder(store)
    assert "cannot be repaired" in told
    assert await seen(store) == before
    assert "the history of all records was made again from the log" in repair_folder(store)


async def test_an_index_with_wrong_entries_is_made_again(store):
    before = await seen(store)
    with closing(open_writer(store / "state.db")) as db:
        sql = db.execute("SELECT sql FROM sqlite_master WHERE name = 'record_node'").get
        db.execute("DROP INDEX record_node")
        db.execute(f"{sql} AND node <> 'n1'")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'record_node'", (sql,))
    done = await repaired(store, "missing from index record_node")
    assert done == ["state.db: its indexes were made again"]
    assert await seen(store) == before


async def test_a_missing_index_of_the_log_is_made_again(store):
    change(store / "log.db", "DROP INDEX batch_back")
    assert "log.db: its index batch_back was missing and was made again" in await repaired(store, "batch_back")


async def test_a_record_that_says_something_else_than_the_log_is_taken_from_the_log(store):
    """Its own checksum is right: only the log can tell."""
    before = await seen(store)
    data = look(store / "state.db", "SELECT data FROM record WHERE id = 'job-20'")
    row: Row = msgspec.structs.replace(decode_row(data), revision=99)
    *_, data, checksum = columns_of(row)
    change(store / "state.db", "UPDATE record SET data = ?, checksum = ? WHERE id = 'job-20'", data, checksum)
    (done,) = await repaired(store, "job job-20 is not what the log says")
    assert done == "job job-20: its record was not what the log says and was taken from the log again"
    assert await seen(store) == before


async def test_a_record_that_came_back_is_removed_again(store):
    """Removed by the log, and once more in the state."""
    before = await seen(store)
    async with opened(store) as engine:
        (last,) = [row for key, row in (await content(engine)).items() if key == ("job", "last")]
        await engine.commit([(removed(last),)])
    columns = columns_of(last)
    marks = ", ".join("?" * len(columns))
    names = (
        "kind, id, status, node, owner, created, updated, started, completed, scheduled, priority, ready, due, deleted"
    )
    change(store / "state.db", f"INSERT INTO record ({names}, data, checksum) VALUES ({marks})", *columns)
    await repaired(store, "job last is not what the log says")
    rows = before["rows"]
    assert isinstance(rows, dict)
    assert (await seen(store))["rows"] == {key: row for key, row in rows.items() if key != ("job", "last")}


async def test_a_damaged_record_that_the_log_no_longer_has_is_named_and_left(cut_store):
    change(cut_store / "state.db", "UPDATE record SET checksum = checksum + 1 WHERE id IN ('job-06', 'job-11')")
    lost = "job job-06: its record is damaged and the log no longer has it: restore it from a snapshot"
    async with opened(cut_store) as engine:
        assert sorted(await engine.repair()) == [
            lost,
            "job job-11: its record was damaged and was taken from the log again",
        ]
        assert [text for text in await engine.check() if "job-06" in text]
    assert repair_folder(cut_store) == [lost]
    assert look(cut_store / "state.db", "SELECT count(*) FROM record WHERE id = 'job-06'") == 1


async def test_a_repaired_record_is_served_as_repaired(store):
    change(store / "state.db", "UPDATE record SET checksum = checksum + 1 WHERE id = 'job-06'")
    async with opened(store) as engine:
        with pytest.raises(Exception, match="checksum"):
            engine.peek(("job", "job-06"))
        await engine.repair()
        row = engine.peek(("job", "job-06"))
        assert row is not None
        assert row.revision == 1


async def test_a_log_whose_chain_is_broken_is_named_and_nothing_is_made_from_it(store):
    digest = b"0123456789abcdef"
    change(store / "log.db", "UPDATE batch SET digest = ? WHERE first = 41", digest)
    change(store / "state.db", "UPDATE record SET checksum = checksum + 1 WHERE id = 'job-06'")
    async with opened(store) as engine:
        done = await engine.repair()
    assert any("entry 41 does not match its checksum" in text and "cannot be made again" in text for text in done)
    assert any(text.startswith("job job-06: its record is damaged") for text in done)


async def test_the_check_finds_nothing_while_others_write(tmp_path):
    """It looks at one moment of both files."""
    async with opened(tmp_path / "store", apply_seconds=0.001) as engine:
        rows = await create(engine, [f"job-{number:03d}" for number in range(300)])
        done = asyncio.Event()

        async def write() -> None:
            newest = {row.key: row for row in rows}
            while not done.is_set():
                for key, row in list(newest.items())[:50]:
                    step = after(row)
                    await engine.commit([(step,)])
                    newest[key] = step.row

        writing = asyncio.create_task(write())
        for _ in range(10):
            assert await engine.check() == []
        done.set()
        await writing


@pytest.mark.parametrize("look", ["check", "repair"])
async def test_commits_and_checkpoints_do_not_wait_for_a_look_at_the_whole(store, look, monkeypatch):
    change(store / "state.db", "DELETE FROM history WHERE position = 3")
    monkeypatch.setattr(Checkpoints, "PAGES", 8)
    # Waiting for readers to let go would take this long each time.
    monkeypatch.setattr(files, "BUSY_MILLISECONDS", 100_000)
    begun, go_on = threading.Event(), threading.Event()
    held = {"check": (checking, "_in_records"), "repair": (repairing._Repair, "_told")}[look]
    truly = getattr(*held)

    def held_up(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return truly(*arguments)

    async with opened(store, apply_seconds=0.001 if look == "check" else 600) as engine:
        monkeypatch.setattr(*held, held_up)
        looking = asyncio.create_task(getattr(engine, look)())
        assert await asyncio.to_thread(begun.wait, 30)
        try:
            for number in range(200):
                await create(engine, [f"late-{number:03d}"], pad=2000)
        finally:
            go_on.set()
        assert await looking
        assert not engine._files.log.views | engine._files.state.views


# --- damaged pages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["record", "record_key", "label", "history", "fact", "sqlite_schema"])
async def test_a_state_with_a_damaged_page_is_made_again_from_a_complete_log(store, name):
    before = await seen(store)
    damage(store / "state.db", name)
    assert check_folder(store)
    (done,) = repair_folder(store)
    assert done.startswith("state.db was made again from the log")
    assert check_folder(store) == []
    assert await seen(store) == before


@pytest.mark.parametrize("name", ["record_key", "record_created", "label", "history"])
async def test_a_page_of_an_index_is_no_loss_once_the_log_is_cut(cut_store, name):
    before = await seen(cut_store)
    damage(cut_store / "state.db", name)
    assert check_folder(cut_store)
    done = repair_folder(cut_store)
    assert done[0] == f"state.db had damaged pages: its {JOBS + 1} intact records were written into a new file"
    assert check_folder(cut_store) == []
    assert await seen(cut_store) == before


async def test_records_on_a_damaged_page_are_taken_from_the_kept_log(cut_store):
    """The newest page holds nothing but what the log still has."""
    async with opened(cut_store) as engine:
        for number in range(60):
            await create(engine, [f"new-{number}"], at=50)
    before = await seen(cut_store)
    damage(cut_store / "state.db", "record", which=-1)
    (done,) = repair_folder(cut_store)
    assert re.match(r"state\.db had damaged pages: its \d+ intact records .* new file, \d+ more were taken from", done)
    assert check_folder(cut_store) == []
    assert await seen(cut_store) == before


@pytest.fixture
async def churned_store(cut_store) -> Path:
    """One whose kept log tells of every way a record can go, some of them old ones."""
    async with opened(cut_store) as engine:
        rows = {name: row for (_, name), row in (await content(engine)).items()}
        changed = after(rows["job-00"], node="n3", labels=(("team", "red"), ("team", "green")))
        again, born = (Write(rows[name], None, Event("created", 50)) for name in ("job-02", "job-04"))
        grown = after(again.row)
        for step in (
            *(changed, after(changed.row), hidden(rows["job-01"], token=9)),
            *(removed(rows["job-02"]), again, grown, removed(grown.row)),
            *(buried(rows["job-03"]), removed(rows["job-04"]), born),
        ):
            assert await engine.commit([(step,)]) == ["applied"]
        await create(engine, ["job-05b"])
    return cut_store


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_the_kept_log_replayed_over_what_it_has_led_to_changes_nothing(churned_store, is_cut_off, monkeypatch):
    """However small the steps are, and if it is cut off between any two of them."""
    before = await seen(churned_store)
    salvage(Paths.below(churned_store), "FULL", "as if it were damaged")
    monkeypatch.setattr(opening, "REPLAY_ENTRIES", 1)
    if is_cut_off:
        with monkeypatch.context() as full:
            full.setattr(StateFile, "apply", fails_behind_one())
            for _ in range(look(churned_store / "log.db", "SELECT count(*) FROM batch") - 1):
                with pytest.raises(NoSpace):
                    check_folder(churned_store)
    assert await seen(churned_store) == before
    assert check_folder(churned_store) == []


def fails_behind_one() -> Any:
    """An `apply` that finds the disk full every second time."""
    truly, times = StateFile.apply, count()

    def apply(state: StateFile, *arguments: Any) -> None:
        if next(times) % 2:
            raise apsw.FullError("disk full")
        truly(state, *arguments)

    return apply


async def test_what_the_new_state_is_to_be_brought_up_to_is_on_the_disk_before_it_at_level_os_too(cut_store):
    async with opened(cut_store, durability="os") as engine:
        await create(engine, ["late"])
        left = crashed(cut_store, cut_store.with_name("left"))
    salvage(Paths.below(left), "NORMAL", "as if it were damaged")
    for side in sides(left / "log.db"):
        side.unlink(missing_ok=True)  # nothing of the log is there alone
    async with opened(left, durability="os") as engine:
        assert engine.peek(("job", "late")) is not None
        assert [entry.row.id for entry in await engine.history(("job", "late"), "", 100)] == ["late"]
        assert await engine.check() == []


async def assert_refused_and_left(folder: Path, why: str) -> None:
    before = {name: (folder / name).read_bytes() for name in ("state.db", "log.db")}
    with pytest.raises(DataCorrupt, match=why):
        repair_folder(folder)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not (folder / "incoming").exists()


async def test_a_damaged_state_beside_a_log_that_lost_its_tail_is_left_as_it_is(cut_store):
    shutil.copy(cut_store / "log.db", cut_store.with_name("early"))
    async with opened(cut_store) as engine:
        await create(engine, ["late"])
    shutil.copy(cut_store.with_name("early"), cut_store / "log.db")
    (cut_store / "watermark").unlink()
    damage(cut_store / "state.db", "record_created")
    await assert_refused_and_left(cut_store, "tail is lost")


async def test_a_damaged_state_that_was_at_another_entry_than_the_log_has_is_left_as_it_is(cut_store):
    change(cut_store / "state.db", "UPDATE fact SET value = x'00' WHERE name = 'applied_digest'")
    damage(cut_store / "state.db", "record_created")
    await assert_refused_and_left(cut_store, "disagree about entry")


async def test_a_damaged_state_beside_a_log_that_cannot_be_replayed_is_left_as_it_is(cut_store):
    change(cut_store / "log.db", "UPDATE batch SET payload = CAST(payload || x'00' AS BLOB) WHERE entries = 1")
    damage(cut_store / "state.db", "record_created")
    await assert_refused_and_left(cut_store, r"log\.db.* does not match its checksum")


async def test_records_on_a_damaged_page_that_nothing_else_has_are_named_and_the_files_left_as_they_are(cut_store):
    damage(cut_store / "state.db", "record")
    shutil.copytree(cut_store, cut_store.with_name("copy"))
    with pytest.raises(DataCorrupt, match=r"job job-0\d, .*restore a snapshot"):
        repair_folder(cut_store)
    for name in ("state.db", "log.db"):
        assert (cut_store / name).read_bytes() == (cut_store.with_name("copy") / name).read_bytes()
    assert not (cut_store / "incoming").exists()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_state_that_is_empty_or_gone_is_no_reason_to_touch_the_rest(cut_store, is_there):
    (cut_store / "state.db").unlink()
    (cut_store / "state.db-wal").write_bytes(b"whoever wrote this may want it back")
    if is_there:
        (cut_store / "state.db").touch()
    with pytest.raises(DataCorrupt, match=r"state\.db is"):
        repair_folder(cut_store)
    with pytest.raises(DataCorrupt, match=r"state\.db is"):
        await SqliteEngine(cut_store).open()
    assert (cut_store / "state.db").exists() == is_there
    assert not is_there or (cut_store / "state.db").read_bytes() == b""
    assert (cut_store / "state.db-wal").read_bytes() == b"whoever wrote this may want it back"


@pytest.mark.parametrize("name", ["record", "record_key", "record_created", "label", "history"])
async def test_a_state_with_a_damaged_page_is_made_again_while_serving(store, name):
    before = await seen(store)
    damage(store / "state.db", name)
    (done,) = await repaired(store, r"state\.db: ")
    assert done.startswith("state.db was made again from the log")
    assert await seen(store) == before


@pytest.mark.parametrize("name", ["record_key", "record_created", "label", "history"])
async def test_a_page_of_an_index_is_no_loss_while_serving_once_the_log_is_cut(cut_store, name):
    before = await seen(cut_store)
    damage(cut_store / "state.db", name)
    done = await repaired(cut_store, r"state\.db: ")
    assert done[0] == f"state.db had damaged pages: its {JOBS + 1} intact records were written into a new file"
    assert await seen(cut_store) == before


async def test_records_on_a_damaged_page_that_nothing_else_has_are_named_and_the_rest_is_served_on(cut_store):
    damage(cut_store / "state.db", "record")
    async with opened(cut_store) as engine:
        (said,) = await engine.repair()
        assert re.search(r"job job-0\d, .* the log no longer has them: restore a snapshot", said)
        await create(engine, ["later"])
        assert [entry.row.id for entry in await engine.read_log("", 100)] == ["job-11", "last", "later"]
        assert await engine.check()


async def test_commits_wait_while_damaged_pages_are_made_again(store, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> str:
        begun.set()
        assert go_on.wait(30)
        return salvage(*arguments)

    monkeypatch.setattr("statesvc.backends.sqlite.engine.salvage", slowly)
    damage(store / "state.db", "label")
    async with opened(store) as engine:
        asked = asyncio.create_task(engine.repair())
        assert await asyncio.to_thread(begun.wait, 30)
        asked.cancel()  # whoever asked may be gone: it comes to its end
        with pytest.raises(Unavailable, match="not open"):
            engine.peek(("job", "job-20"))
        committing = asyncio.create_task(create(engine, ["late"]))
        go_on.set()
        await asyncio.wait_for(committing, 30)
        assert engine.peek(("job", "job-20")) is not None
        assert await engine.check() == []


async def test_a_file_that_cannot_be_opened_for_a_check_is_no_reason_to_make_it_again(store, monkeypatch):
    """As when every descriptor is taken by clients."""

    def refused(*_: Any) -> None:
        raise apsw.CantOpenError("unable to open database file")

    async with opened(store) as engine:
        files = engine._files
        with monkeypatch.context() as taken:
            taken.setattr(checking, "open_reader", refused)
            (said,) = await engine.repair()
        assert said == f"{store}: unable to open database file: check the disk, then try again"
        assert engine._files is files
        assert await engine.check() == []


async def test_a_damaged_log_cannot_be_repaired_and_is_named(store):
    damage(store / "log.db", "batch")
    assert any("log.db" in text for text in check_folder(store))
    with pytest.raises(DataCorrupt, match=r"log\.db is damaged.*restore a snapshot"):
        repair_folder(store)


async def test_a_log_that_cannot_be_opened_is_refused_by_name(store):
    (store / "log.db").write_bytes(b"no database" * 1000)
    assert any("log.db" in text for text in check_folder(store))
    with pytest.raises(DataCorrupt, match=r"log\.db"):
        repair_folder(store)


# --- folders -------------------------------------------------------------------------------------------------------


async def test_a_folder_that_is_served_is_left_to_its_daemon(store):
    async with opened(store):
        with pytest.raises(AlreadyRunning):
            check_folder(store)
        with pytest.raises(AlreadyRunning):
            repair_folder(store)


def test_a_folder_without_a_store_is_told_and_nothing_is_made_in_it(tmp_path):
    for look_at in (check_folder, repair_folder):
        with pytest.raises(DataCorrupt, match="holds no store"):
            look_at(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_checking_a_folder_that_was_killed_brings_it_up_to_its_log(tmp_path):
    async with opened(tmp_path / "store", apply_seconds=60) as engine:
        await create(engine, ["a", "b"])
        shutil.copytree(tmp_path / "store", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    assert check_folder(tmp_path / "copy") == []
    async with opened(tmp_path / "copy") as engine:
        assert len(await content(engine)) == 2


async def test_a_broken_engine_is_not_what_a_check_leaves_behind(store):
    engine = SqliteEngine(store)
    await engine.open()
    assert await engine.check() == []
    await create(engine, ["later"])
    await engine.close()


@pytest.mark.parametrize("problem", [apsw.IOError("disk I/O error"), apsw.FullError("database or disk is full")])
def test_a_disk_that_fails_in_a_repair_is_not_called_damage(cut_store, monkeypatch, problem):
    damage(cut_store / "state.db", "record_created")
    before = (cut_store / "state.db").read_bytes()

    def failing(*_: object) -> None:
        raise problem

    monkeypatch.setattr(salvaging, "_copy", failing)
    with pytest.raises(EngineBroken, match="then try again"):
        repair_folder(cut_store)
    assert (cut_store / "state.db").read_bytes() == before
