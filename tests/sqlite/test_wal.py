"""What SQLite leaves out of a WAL without a word is counted, also where it is the end of a commit that suffered."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import apsw
import pytest

from statesvc.backends.port import DataCorrupt, Keys, Row
from statesvc.backends.sqlite.files import close_untouched
from statesvc.backends.sqlite.log import Change, LogFile
from statesvc.backends.sqlite.paths import Paths
from statesvc.backends.sqlite.restoring import declare_complete, finish
from statesvc.backends.sqlite.wal import Tail, frames, unread_tail

FRAME = 24 + 4096


@pytest.fixture
def store(tmp_path) -> Path:
    """A file and its WAL, whose three commits leave a file of four pages each time, as a crash leaves them."""
    db = apsw.Connection(str(tmp_path / "db"))
    db.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x)")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    for number in range(3):
        db.execute("BEGIN; INSERT INTO a VALUES (?); INSERT INTO b VALUES (?); COMMIT", (number, number))
    assert db.pragma("page_count") == 4
    copy = tmp_path / "crashed"
    copy.mkdir()
    for name in ("db", "db-wal"):
        shutil.copy(tmp_path / name, copy / name)
    db.close()
    return copy


def tail_after(store: Path, place: int, mask: int) -> Tail:
    raw = bytearray((store / "db-wal").read_bytes())
    raw[place] ^= mask
    (store / "db-wal").write_bytes(raw)
    return tail_of(store / "db")


def tail_of(path: Path) -> Tail:
    db = apsw.Connection(str(path))
    try:
        db.execute("PRAGMA journal_mode = WAL")  # reads the WAL, as whoever opens a file does
        return unread_tail(db, path)
    finally:
        close_untouched(db)


def frame(store: Path, number: int) -> int:
    """Where a frame begins."""
    assert len((store / "db-wal").read_bytes()) == 32 + 6 * FRAME
    return 32 + number * FRAME


def test_a_commit_whose_only_size_bit_is_lost_still_counts(store):
    """Four pages are one bit. Without it, two commits would look like one that was torn."""
    place = frame(store, 3) + 7
    assert struct.unpack_from(">I", (store / "db-wal").read_bytes(), place - 3) == (4,)
    assert tail_after(store, place, 4)[:3] == (4 * FRAME, 2, 2)


def test_a_frame_that_merely_does_not_end_a_commit_is_not_taken_for_one(store):
    assert tail_after(store, frame(store, 4) + 500, 1)[:3] == (2 * FRAME, 1, 4)


def test_a_page_that_a_power_loss_left_a_little_older_is_not_taken_for_the_end_of_a_commit(store):
    """Followed backwards, the checksum of such a frame leads to a note of small numbers that nobody wrote."""
    raw = bytearray((store / "db-wal").read_bytes())
    place = frame(store, 4) + 24
    order = ">" if raw[3] & 1 else "<"
    (three,) = struct.unpack(f"{order}I", struct.pack(">I", 3))
    older = [(word - three) & 0xFFFFFFFF for word in struct.unpack_from(f"{order}II", raw, place)]
    struct.pack_into(f"{order}II", raw, place, *older)
    (store / "db-wal").write_bytes(raw)
    assert tail_of(store / "db")[:3] == (2 * FRAME, 1, 4)


@pytest.mark.parametrize("salt", [8, 12])
@pytest.mark.parametrize(
    ("number", "expected"), [(3, (4 * FRAME, 2, 2)), (4, (2 * FRAME, 1, 4)), (5, (2 * FRAME, 1, 4))]
)
def test_a_frame_with_a_damaged_salt_is_not_taken_for_a_leftover(store, salt, number, expected):
    assert tail_after(store, frame(store, number) + salt, 16)[:3] == expected


def test_a_damaged_header_leaves_everything_out_and_says_so(store):
    assert tail_after(store, 17, 1)[:3] == (6 * FRAME, 3, 0)


@pytest.mark.parametrize("zeros", [32, 4096])
def test_zeros_in_place_of_the_header_are_no_header_of_an_empty_wal(store, zeros):
    """Their checksum is zero, as they say themselves."""
    wal = store / "db-wal"
    wal.write_bytes(bytes(zeros) + wal.read_bytes()[zeros:])
    assert tail_of(store / "db")[:3] == (6 * FRAME, 3, 0)


def test_a_file_that_grew_by_a_commit_which_did_not_get_there_says_so(store):
    wal = store / "db-wal"
    wal.write_bytes(wal.read_bytes()[: -2 * FRAME] + bytes(2 * FRAME))
    assert tail_of(store / "db")[:3] == (2 * FRAME, 0, 4)


def test_leftovers_of_an_earlier_wal_are_none_of_it(tmp_path):
    path = tmp_path / "log.db"
    log = LogFile(path, "FULL", new=True)
    log.db.execute("CREATE TABLE t (x)")
    for _ in range(3):
        log.db.execute("INSERT INTO t VALUES (zeroblob(9000))")
    log.settle()
    log.db.execute("INSERT INTO t VALUES (1)")  # begins anew at the front of the WAL
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("log.db", "log.db-wal", "watermark"):
        shutil.copy(tmp_path / name, copy / name)
    log.abandon()
    assert tail_of(copy / "log.db").bytes == 0


class Wal:
    """A file with one record, and a WAL that begins anew over what was in it before."""

    def __init__(self, path: Path, pages: int = 2) -> None:
        self._path = path
        self._db = db = apsw.Connection(str(path / "db"))
        db.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0").fetchall()
        db.execute("CREATE TABLE t (x); INSERT INTO t VALUES (0)")
        while db.pragma("page_count") < pages:
            db.execute("CREATE TABLE IF NOT EXISTS more (x); INSERT INTO more VALUES (zeroblob(3900))")
        self.begin_anew()

    def begin_anew(self) -> None:
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def commit(self, content: bytes) -> int:
        """How many frames there are then."""
        self._db.execute("UPDATE t SET x = ?", (content,))
        return frames(self._db)

    def fill(self, upto: int) -> None:
        """Commits of one frame each."""
        while (number := self.commit(random.randbytes(40))) < upto:
            pass
        assert number == upto

    @property
    def raw(self) -> bytes:
        return (self._path / "db-wal").read_bytes()

    def tail_if(self, raw: bytes) -> Tail:
        """What a crash that leaves this of the WAL would let one find."""
        crashed = self._path / "crashed"
        crashed.mkdir(exist_ok=True)
        shutil.copy(self._path / "db", crashed / "db")
        (crashed / "db-wal").write_bytes(raw)
        (crashed / "db-shm").unlink(missing_ok=True)
        return tail_of(crashed / "db")


NOTE_APART = 41
"""A frame whose note is the end of one sector, and its salts are in the next."""


def over_short_commits(path: Path, began: int) -> tuple[Wal, bytes]:
    """A WAL whose last commit is long and begins at this frame, over frames that each ended a commit in the one before;
    and its bytes before that commit."""
    wal = Wal(path)
    wal.fill(60)
    wal.begin_anew()
    wal.fill(began)
    before = wal.raw
    wal.commit(bytes(60_000))
    return wal, before


def test_a_commit_torn_inside_the_note_of_a_frame_is_one_commit(tmp_path):
    """Not written, the sector shows the note of an earlier WAL, where that frame ended a commit."""
    wal, before = over_short_commits(tmp_path, 38)
    place = 32 + NOTE_APART * FRAME
    torn = with_sectors(wal.raw, before, [place // 512])
    assert struct.unpack_from(">I", torn, place + 4) != (0,)
    assert wal.tail_if(torn).commits == 1


def test_a_commit_torn_anywhere_is_at_most_one_commit(tmp_path):
    """Also where the page suffered, too: then nothing tells any more which note the frame was made with."""
    wal, before = over_short_commits(tmp_path, 38)
    assert most_commits(wal, before, 38) == 1


def test_a_commit_torn_anywhere_over_pages_that_are_nearly_the_same_is_at_most_one_commit(tmp_path):
    """From such pages a checksum leads to a note of small numbers, which looks like one and which nobody wrote."""
    chance, wal = random.Random(1), Wal(tmp_path)

    def with_some_digits() -> bytes:
        return bytes(48 + (chance.randrange(10) if at % 509 == 0 else 0) for at in range(60_000))

    for _ in range(5):
        wal.commit(with_some_digits())
    wal.begin_anew()
    upto = 0
    while upto <= NOTE_APART:
        began, before = upto, wal.raw
        upto = wal.commit(with_some_digits())
    assert most_commits(wal, before, began) == 1


def most_commits(wal: Wal, before: bytes, began: int) -> int:
    """How many at most seem to end behind this frame, if some sectors of what was written since are as before."""
    chance, after = random.Random(1), wal.raw
    sectors = range((32 + began * FRAME) // 512, len(after) // 512)
    older = [[sector for sector in sectors if chance.random() < 0.05] for _ in range(400)]
    return max(wal.tail_if(with_sectors(after, before, each)).commits for each in older)


def with_sectors(raw: bytes, other: bytes, sectors: Iterable[int]) -> bytes:
    """Some sectors from another moment."""
    mixed = bytearray(raw)
    for sector in sectors:
        mixed[sector * 512 : (sector + 1) * 512] = other[sector * 512 : (sector + 1) * 512]
    return bytes(mixed)


@pytest.mark.parametrize(("pages", "number"), [(7, NOTE_APART - 1), (7, NOTE_APART), (128, NOTE_APART - 3)])
def test_one_flipped_bit_before_the_last_commit_leaves_two_that_were_safely_written(tmp_path, pages, number):
    """Wherever in the frame it is: its note, its salts, its checksum, its page. Also where the size is a single bit.

    Of seven pages and a note apart, none of the bits looks as if the note were merely older; of other sizes some do."""
    wal = Wal(tmp_path, pages)
    wal.fill(number + 2)
    raw, first = wal.raw, 8 * (32 + number * FRAME)
    for bit in (*range(8 * 24), *range(8 * 24, 8 * FRAME, 31)):
        flipped = bytearray(raw)
        flipped[(first + bit) // 8] ^= 1 << bit % 8
        tail = wal.tail_if(bytes(flipped))
        assert (tail.commits, tail.taken) == (2, number), bit


def test_what_one_power_loss_left_in_a_wal_is_no_damage_to_the_next(tmp_path):
    """Both tear a commit that nobody was told of; the first one at the front of a WAL that had just begun anew."""

    def opened() -> LogFile:
        return LogFile(tmp_path / "log.db", "FULL", new=not (tmp_path / "log.db").exists())

    def lose_power(log: LogFile, torn_frame: int) -> None:
        log.abandon()
        (tmp_path / "log.db-shm").unlink()
        with (tmp_path / "log.db-wal").open("r+b") as wal:
            wal.seek(32 + torn_frame * FRAME)
            wal.write(bytes(FRAME))

    log = opened()
    log.append([change("told", 100)])
    log.settle()
    log.append([change("torn", 40_000)])
    lose_power(log, 0)
    log = opened()
    assert log.end.position == 1
    log.append([change("told too", 100)])
    told = frames(log._db)
    log.append([change("torn too", 9_000)])
    lose_power(log, told)
    assert opened().end.position == 2


def change(name: str, size: int) -> Change:
    return Change(None, Row("kv", name, "uid", 1, Keys(created=1, updated=1), bytes(size)))


@pytest.mark.parametrize("content", [b"", b"log.db", b"log.db\n", b"log.dc\nstate.db", b"log.db\nstate.d", b"\xff"])
def test_a_damaged_note_of_what_is_complete_moves_nothing(tmp_path, content):
    paths = Paths.below(tmp_path)
    paths.incoming.mkdir()
    for name in ("log.db", "state.db"):
        (tmp_path / name).write_text("old")
        (paths.incoming / name).write_text("new")
    declare_complete(paths, paths.log, paths.state)
    (paths.incoming / "complete").write_bytes(content)
    with pytest.raises(DataCorrupt, match="complete is damaged"):
        finish(paths)
    assert [(tmp_path / name).read_text() for name in ("log.db", "state.db")] == ["old", "old"]
    assert (paths.incoming / "log.db").read_text() == "new"
