"""F3, files lost, set back, mixed up or damaged: rebuilt, or refused by name; never silently less than there was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from statesvc.backends.port import DataCorrupt
from statesvc.backends.sqlite.files import open_file
from statesvc.backends.sqlite.log import FORMAT
from statesvc.backends.sqlite.offline import repair_folder
from tests.daemon import stores
from tests.daemon.harness import Daemon, refused, serving
from tests.daemon.stores import Stores
from tests.faults.program import scratch
from tests.sqlite.filling import damage

CORRUPT = 65


@pytest.fixture(scope="module")
def kept() -> Iterator[Stores]:
    with scratch() as place:
        yield stores.make(place)


@pytest.fixture
def data(folder) -> Path:
    return folder / "data"


def put(source: Path, data: Path) -> Path:
    shutil.copytree(source, data)
    return data


def remove(data: Path, name: str) -> None:
    for file in (name, f"{name}-wal", f"{name}-shm"):
        (data / file).unlink(missing_ok=True)


def replace(data: Path, name: str, source: Path) -> None:
    remove(data, name)
    shutil.copy(source / name, data / name)


def assert_all_there(folder: Path, kept: Stores) -> Daemon:
    with serving(folder) as daemon, daemon.connect() as client:
        assert stores.everything(client) == kept.records
        assert daemon.stop() == 0
    return daemon


def assert_refused(folder: Path, *words: str) -> None:
    """Refused with a line that says why."""
    code, said = refused(folder)
    assert code == CORRUPT, said
    assert '"event": "data_corrupt"' in said
    assert all(word in said for word in words), said


def content(data: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in data.iterdir() if file.name != "lock"}


# --- the state can be made again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["closed", "idle", "busy"])
def test_a_store_that_was_left_alone_opens_with_everything(folder, data, kept, moment):
    put(getattr(kept, moment), data)
    with serving(folder) as daemon, daemon.connect() as client:
        found = stores.everything(client)
    assert found.keys() == kept.records.keys()
    assert found == kept.records or moment == "busy"  # another store, with other uids


@pytest.mark.parametrize("moment", ["closed", "idle"])
def test_a_state_that_was_deleted_is_made_again_from_the_log(folder, data, kept, moment):
    remove(put(getattr(kept, moment), data), "state.db")
    daemon = assert_all_there(folder, kept)
    assert daemon.events("log_replayed")[0]["entries"] == 100


def test_a_state_that_was_set_back_is_brought_up_to_the_log(folder, data, kept):
    replace(put(kept.closed, data), "state.db", kept.early)
    daemon = assert_all_there(folder, kept)
    # It lacks what was safely in it. Whether it is whole otherwise cannot be told, so it is made again.
    assert daemon.events("state_made_again")


# --- the log cannot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["closed", "idle", "busy"])
def test_a_store_without_its_log_is_refused(folder, data, kept, moment):
    remove(put(getattr(kept, moment), data), "log.db")
    assert_refused(folder, "log.db is missing")
    assert_refused(folder, "log.db is missing")  # nothing was made up in between


def test_a_watermark_alone_is_enough_to_know_that_there_was_a_log(folder, data, kept):
    put(kept.closed, data)
    remove(data, "log.db")
    remove(data, "state.db")
    assert_refused(folder, "log.db is missing")


@pytest.mark.parametrize("moment", ["closed", "idle", "busy"])
def test_an_emptied_log_is_refused(folder, data, kept, moment):
    remove(put(getattr(kept, moment), data), "log.db")
    (data / "log.db").touch()
    assert_refused(folder, "log.db")


def test_an_emptied_log_is_not_taken_for_a_new_one_though_nothing_else_is_left(folder, data):
    data.mkdir(mode=0o700)
    (data / "log.db").touch(mode=0o600)
    assert_refused(folder, "log.db is damaged: it is empty")


@pytest.mark.parametrize("moment", ["closed", "idle"])
def test_a_log_that_was_set_back_is_refused(folder, data, kept, moment):
    replace(put(getattr(kept, moment), data), "log.db", kept.early)
    assert_refused(folder, "log.db", "tail is lost")
    assert_refused(folder, "log.db", "tail is lost")  # the watermark was not set back with it


@pytest.mark.parametrize("also", [(), ("state.watermark",)], ids=["without its mark", "with its mark"])
def test_a_log_that_was_set_back_together_with_the_state_is_refused(folder, data, kept, also):
    put(kept.closed, data)
    for name in ("log.db", "state.db", *also):
        replace(data, name, kept.early)
    assert_refused(folder, "log.db", "tail is lost")


def test_a_log_that_was_set_back_is_refused_without_a_watermark_too(folder, data, kept):
    put(kept.closed, data)
    replace(data, "log.db", kept.early)
    (data / "watermark").unlink()
    assert_refused(folder, "state.db has applied", "tail is lost")


@pytest.mark.parametrize("marked", [True, False], ids=["by its watermark", "by its state"])
def test_a_repair_does_not_make_a_state_from_a_log_that_lost_its_tail(data, kept, marked):
    put(kept.closed, data)
    replace(data, "log.db", kept.early)
    if not marked:
        (data / "watermark").unlink()
    before = content(data)
    with pytest.raises(DataCorrupt, match="tail is lost"):
        repair_folder(data)
    after = content(data)
    assert {name: after[name] for name in before} == before


def test_a_log_without_its_wal_is_complete_or_refused(folder, data, kept):
    (put(kept.idle, data) / "log.db-wal").unlink()
    assert_all_there(folder, kept)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_log_whose_wal_was_cut_is_complete_or_refused(folder, data, kept, part):
    wal = put(kept.idle, data) / "log.db-wal"
    raw = wal.read_bytes()
    wal.write_bytes(raw[: int(len(raw) * part)])
    assert_refused(folder, "log.db")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9])
def test_damage_in_the_middle_of_the_wal_is_refused_and_what_lies_behind_it_is_left_there(folder, data, kept, part):
    wal = put(kept.busy, data) / "log.db-wal"
    flip(wal, int(wal.stat().st_size * part) + 10)
    before = content(data)
    assert_refused(folder, "log.db-wal is damaged in the middle")
    after = content(data)
    assert {name: after[name] for name in ("log.db", "log.db-wal")} == {
        name: before[name] for name in ("log.db", "log.db-wal")
    }


def test_damage_in_the_last_commit_of_a_busy_store_is_told_as_a_torn_tail_with_its_length(folder, data, kept):
    wal = put(kept.busy, data) / "log.db-wal"
    flip(wal, wal.stat().st_size - 5)
    remove(data, "state.db")
    with serving(folder) as daemon, daemon.connect() as client:
        assert len(stores.everything(client)) == stores.JOBS
        (told,) = daemon.events("torn_tail")
        assert told["bytes"] > 0
        assert told["commits"] == 1


def test_damage_in_the_wal_of_the_state_has_it_made_again(folder, data, kept):
    wal = put(kept.idle, data) / "state.db-wal"
    flip(wal, 40)
    daemon = assert_all_there(folder, kept)
    assert daemon.events("state_made_again")


# --- files of different stores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.db", "state.db", "watermark"])
def test_a_file_of_another_store_is_refused(folder, data, kept, name):
    replace(put(kept.closed, data), name, kept.other)
    assert_refused(folder, "log.db")


def test_a_database_of_another_program_is_refused_and_left_alone(folder, data, kept):
    put(kept.closed, data)
    remove(data, "log.db")
    strange = apsw.Connection(str(data / "log.db"))
    strange.execute("PRAGMA application_id = 77; PRAGMA user_version = 3; CREATE TABLE theirs (x)")
    strange.close()
    before = content(data)
    assert_refused(folder, "another program")
    assert content(data) == before


# --- flipped bytes -------------------------------------------------------------------------------------------------


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def flip_payload(data: Path) -> None:
    """One bit of an early entry of the log, the page around it being right: only the chain can tell."""
    db = open_file(data / "log.db", FORMAT, "FULL")
    payload = db.execute("SELECT payload FROM batch WHERE first = 4").get
    db.execute(
        "UPDATE batch SET payload = ? WHERE first = 4", (bytes([*payload[:30], payload[30] ^ 1, *payload[31:]]),)
    )
    db.close()


@pytest.mark.parametrize("name", ["log.db", "state.db"])
def test_a_flip_on_the_first_page_is_refused(folder, data, kept, name):
    put(kept.closed, data)
    raw = bytearray((data / name).read_bytes())
    raw[2000] ^= 1
    (data / name).write_bytes(raw)
    assert_refused(folder, name, "does not match its checksum")


@pytest.mark.parametrize("table", ["record", "label", "history"])
def test_a_flip_that_an_acknowledged_write_meets_is_told_as_by_a_start_and_costs_no_record(folder, data, kept, table):
    damage(put(kept.closed, data) / "state.db", table, which=-1)
    words = ("state.db is damaged: a page does not match its checksum; remove state.db",)
    with serving(folder) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "late", "labels": {"third": "9"}})["success"]
        assert daemon.exit_code() == CORRUPT
        (told,) = daemon.events("data_corrupt")
        assert all(word in told["why"] for word in words)
        assert daemon.events("engine_broken") == []
    assert_refused(folder, *words)
    remove(data, "state.db")
    with serving(folder) as daemon, daemon.connect() as client:
        found = stores.everything(client)
        assert found.pop("late")["labels"] == {"third": "9"}
        assert found == kept.records


def test_a_flip_in_the_log_is_refused_when_the_state_is_made_from_it(folder, data, kept):
    put(kept.closed, data)
    flip_payload(data)
    remove(data, "state.db")
    assert_refused(folder, "log.db", "does not match its checksum")


def test_a_flip_in_the_log_changes_nothing_that_is_served(folder, data, kept):
    flip_payload(put(kept.closed, data))
    assert_all_there(folder, kept)


@pytest.mark.parametrize("place", [0, 20, -3])
def test_a_flip_in_the_watermark_is_told_and_costs_no_record(folder, data, kept, place):
    put(kept.closed, data)
    raw = bytearray((data / "watermark").read_bytes())
    raw[place] ^= 4
    (data / "watermark").write_bytes(raw)
    daemon = assert_all_there(folder, kept)
    assert daemon.events("watermark_damaged")
    assert assert_all_there(folder, kept).events("watermark_damaged") == []


@pytest.mark.parametrize("name", ["log.db", "state.db"])
def test_a_file_that_is_no_database_any_more_is_refused(folder, data, kept, name):
    put(kept.closed, data)
    raw = (data / name).read_bytes()
    (data / name).write_bytes(b"\0" * 100 + raw[100:])
    assert_refused(folder, name)


@pytest.mark.parametrize("name", ["log.db", "state.db"])
def test_a_file_that_was_cut_is_refused(folder, data, kept, name):
    put(kept.closed, data)
    raw = (data / name).read_bytes()
    (data / name).write_bytes(raw[: len(raw) // 2 // 4096 * 4096])
    assert_refused(folder, str(data))


# --- newer formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.db", "state.db"])
@pytest.mark.parametrize("moment", ["closed", "idle"])
def test_a_newer_format_is_refused_and_left_untouched(folder, data, kept, name, moment):
    put(getattr(kept, moment), data)
    raw = bytearray((data / name).read_bytes())
    raw[60:64] = (2).to_bytes(4, "big")  # the header's user_version
    (data / name).write_bytes(raw)
    before = content(data)
    assert_refused(folder, f"{name} has format 2", "use the newer statesvc")
    assert content(data) == before
