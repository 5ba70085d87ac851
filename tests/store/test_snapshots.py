"""The snapshot file notices every change to it, lies only where it may, and is there wholly or not at all."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.port import Keys, Row
from statesvc.store import places
from statesvc.store.snapshots import Header, Reader, Writer, inspect
from statesvc_client.errors import BadRequest, Exists, NoSpace, NotFound, StateError

HEADER = Header(
    epoch="0123456789abcdef",
    cursor="17",
    created_at="2025-10-26T00:00:00.000000000Z",
    backend="memory",
    version="0.1.0",
    rows=4,
)


def row(name: str, *, kind: str = "job", deleted: int = 0, token: int = 0, size: int = 10) -> Row:
    keys = Keys(created=-5, updated=2**62, status="QUEUED", priority=1.5, labels=(("", "leased"), ("team", "red")))
    body = b"" if deleted else b'{"uuid":"%s","pad":"%s"}' % (name.encode(), b"x" * size)
    return Row(kind, name, f"uid-{name}", 3, keys, body, b"\x91marks", deleted, token)


ROWS = [row("a"), row("b", deleted=7), row("L", kind="lock", token=9), row("c")]


def save(data: Path, rows: list[Row], name: str = "s.snapshot", *, per_block: int = 2) -> Path:
    with places.find(data, name, make=True) as place:
        writer = Writer(place)
        writer.begin(HEADER)
        for begin in range(0, len(rows), per_block):
            writer.add(rows[begin : begin + per_block])
        writer.finish()
    return data / name


def read(path: Path) -> list[Row]:
    reader = Reader(os.open(path, os.O_RDONLY), path.name)
    try:
        return [each for rows in reader.blocks() for each in rows]
    finally:
        reader.close()


def why_refused(path: Path) -> str:
    with pytest.raises(BadRequest) as refused:
        inspect(path)
    assert str(path) in refused.value.text
    return refused.value.text


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def damaged(data: Path):
    """Puts other bytes into a snapshot's place."""

    def damaged(content: bytes) -> Path:
        path = data / "damaged.snapshot"
        path.write_bytes(content)
        return path

    return damaged


# --- what it holds -------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(data):
    assert read(save(data, ROWS)) == ROWS


def test_an_empty_store_makes_a_snapshot_too(data):
    path = save(data, [])
    assert read(path) == []
    assert inspect(path).footer.kinds == {}


def test_inspecting_tells_what_a_snapshot_holds(data):
    path = save(data, ROWS)
    header, footer, size = inspect(path)
    assert header == HEADER
    assert (footer.rows, footer.tombstones, footer.kinds, footer.highest_token) == (4, 1, {"job": 2, "lock": 1}, 9)
    assert size == path.stat().st_size


# --- every change is noticed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_flip_of_any_byte_is_refused_by_name(data, damaged, mask):
    whole = save(data, ROWS).read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= mask
        why_refused(damaged(bytes(flipped)))


def test_a_flip_inside_a_block_names_the_block_and_its_place(data, damaged):
    whole = bytearray(save(data, ROWS).read_bytes())
    second = whole.index(b"B", whole.index(b"B\0") + 1)
    whole[second + 20] ^= 4
    text = why_refused(damaged(bytes(whole)))
    assert text.endswith(f"block 2 at byte {second} does not match its checksum")


def test_a_cut_at_any_length_is_refused_by_name(data, damaged):
    whole = save(data, ROWS).read_bytes()
    for length in range(len(whole)):
        why_refused(damaged(whole[:length]))


@pytest.mark.parametrize("tail", [b"\0", b"\n", b"F", b"x" * 100_000])
def test_anything_behind_the_end_is_refused(data, damaged, tail):
    whole = save(data, ROWS).read_bytes()
    assert f"{len(tail)} bytes follow its end at byte {len(whole)}" in why_refused(damaged(whole + tail))


def test_blocks_in_another_order_or_missing_or_of_another_snapshot_are_refused(data, damaged):
    whole, other = save(data, ROWS).read_bytes(), save(data, list(reversed(ROWS)), "o.snapshot").read_bytes()
    head, first, second, foot = parts(whole)
    _, foreign, _, _ = parts(other)
    for content in (head + second + first + foot, head + second + foot, head + first + foot, head + first + foreign):
        why_refused(damaged(content))
    why_refused(damaged(head + foreign + second + foot))
    why_refused(damaged(head + first + first + second + foot))


def parts(whole: bytes) -> list[bytes]:
    """Line and header, two blocks, the footer."""
    begins, at = [], whole.index(b"\n") + 1
    while at < len(whole):
        begins.append(at)
        at += 9 + int.from_bytes(whole[at + 1 : at + 5], "big") + 16
    bounds = [0, *begins[1:], len(whole)]
    return [whole[begin:end] for begin, end in pairwise(bounds)]


def test_a_newer_format_is_refused_by_its_version(data, damaged):
    whole = save(data, ROWS).read_bytes()
    text = why_refused(damaged(whole.replace(b"snapshot 1\n", b"snapshot 2\n", 1)))
    assert "version 2" in text
    assert "reads 1" in text


@pytest.mark.parametrize("content", [b"", b"{}", b"SQLite format 3\0" + b"\0" * 100])
def test_what_is_no_snapshot_is_refused(data, damaged, content):
    save(data, [])
    why_refused(damaged(content))


def test_a_folder_and_a_missing_file_are_refused_by_inspect(tmp_path):
    why_refused(tmp_path)
    with pytest.raises(NotFound):
        inspect(tmp_path / "missing.snapshot")


def test_memory_stays_at_a_block_however_large_the_file(data):
    import tracemalloc

    rows = [row(f"job-{number}", size=1000) for number in range(4000)]
    path = save(data, rows, per_block=100)
    del rows
    tracemalloc.start()
    try:
        assert inspect(path).footer.rows == 4000
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


# --- wholly or not at all ------------------------------------------------------------------------------------------


def test_a_snapshot_is_for_its_owner_alone(data):
    path = save(data, ROWS, "deep/er/s.snapshot")
    assert path.stat().st_mode & 0o7777 == 0o600
    for folder in (data, data / "deep", data / "deep" / "er"):
        assert folder.stat().st_mode & 0o7777 == 0o700


def test_an_abandoned_one_leaves_nothing_behind(data):
    with places.find(data, "s.snapshot", make=True) as place:
        writer = Writer(place)
        writer.begin(HEADER)
        writer.add(ROWS)
        writer.abandon()
    assert list(data.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(data, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with places.find(data, "s.snapshot", make=True) as place:
        writer = Writer(place)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(NoSpace):
            writer.begin(HEADER)
        writer.abandon()
    assert list(data.iterdir()) == []


def test_until_it_is_whole_nothing_has_its_name(data):
    with places.find(data, "s.snapshot", make=True) as place:
        writer = Writer(place)
        writer.begin(HEADER)
        assert not (data / "s.snapshot").exists()
        assert not [path for path in data.iterdir() if path.suffix == places.SUFFIX]
        writer.finish()
    assert [path.name for path in data.iterdir()] == ["s.snapshot"]


def test_a_snapshot_is_on_the_disk_before_it_has_its_name_and_its_name_is_there_before_it_is_told(data, monkeypatch):
    happened: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            happened.append(f"{name} of the folder" if is_folder else name)
            return call(*args, **options)

        return noted

    with places.find(data, "s.snapshot", make=True) as place:
        writer = Writer(place)
        writer.begin(HEADER)
        for name in ("fsync", "link", "rename"):
            monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
        writer.finish()
    assert happened == ["fsync", "link", "fsync of the folder"]


def test_an_existing_file_is_never_overwritten(data):
    path = save(data, ROWS)
    before = path.read_bytes()
    with pytest.raises(Exists):
        save(data, [])
    with places.find(data, "late.snapshot", make=True) as place:
        writer = Writer(place)
        writer.begin(HEADER)
        (data / "late.snapshot").write_text("another was quicker")
        with pytest.raises(Exists):
            writer.finish()
        writer.abandon()
    assert path.read_bytes() == before
    assert sorted(each.name for each in data.iterdir()) == ["late.snapshot", "s.snapshot"]


def test_the_next_snapshot_clears_away_what_a_killed_one_left_and_nothing_else(data):
    data.mkdir(0o700)
    (data / ".killed.snapshot-part").write_text("half")
    (data / ".other.part").write_text("not ours")
    under_way = os.open(data / ".busy.snapshot-part", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(under_way, fcntl.LOCK_EX)
    try:
        save(data, ROWS)
    finally:
        os.close(under_way)
    assert sorted(each.name for each in data.iterdir()) == [".busy.snapshot-part", ".other.part", "s.snapshot"]


# --- where it may lie ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "", "/", ".", "..", "../s.snapshot", "a/../../s.snapshot", "a/../s.snapshot", "./s.snapshot", "a//s.snapshot",
        "/etc/s.snapshot", "/s.snapshot", "s.snapshot/", "state.db", "log.db-wal", "unsynced", "incoming/log.db",
        "restoring-20261118T024904Z/s.snapshot",
        ".snapshot", ".hidden.snapshot", "a\0b.snapshot", "a\nb.snapshot", "x" * 300 + ".snapshot",
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [True, False])
def test_a_path_that_leaves_the_data_folder_or_is_no_snapshot_is_refused(data, path, make):
    data.mkdir(0o700)
    with pytest.raises(BadRequest), places.find(data, path, make=make) as place:
        place.make() if make else place.open()
    assert not [each for each in data.rglob("*") if each.is_file()]


def test_an_absolute_path_below_the_data_folder_is_taken(data):
    path = save(data, ROWS, str(data / "a" / "s.snapshot"))
    assert path.exists()
    with places.find(data, str(path), make=False) as place:
        assert place.shown == "a/s.snapshot"


def test_a_path_beside_the_data_folder_of_the_same_beginning_is_refused(data):
    data.mkdir(0o700)
    with pytest.raises(BadRequest):
        places.find(data, f"{data}-other/s.snapshot", make=True)


def test_no_link_is_followed_neither_folder_nor_file(data, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(0o700)
    save(outside, ROWS)
    data.mkdir(0o700)
    (data / "linked").symlink_to(outside)
    (data / "linked.snapshot").symlink_to(outside / "s.snapshot")
    for path in ("linked/s.snapshot", "linked/new.snapshot", "linked.snapshot"):
        with pytest.raises(BadRequest, match="links are not followed"), places.find(data, path, make=False) as place:
            os.close(place.open())
    with pytest.raises(StateError), places.find(data, "linked/new.snapshot", make=True) as place:
        os.close(place.make())
    with pytest.raises(Exists), places.find(data, "linked.snapshot", make=True) as place:
        os.close(place.make())
    assert [each.name for each in outside.iterdir()] == ["s.snapshot"]


def test_the_data_folder_itself_may_not_be_a_link(data, tmp_path):
    save(tmp_path / "real", ROWS)
    data.symlink_to(tmp_path / "real")
    with pytest.raises(BadRequest):
        places.find(data, "s.snapshot", make=False)


def test_what_others_may_write_to_is_refused(data):
    path = save(data, ROWS, "open/s.snapshot")
    path.chmod(0o602)
    with places.find(data, "open/s.snapshot", make=False) as place, pytest.raises(BadRequest, match="chmod go-w"):
        place.open()
    path.chmod(0o600)
    path.parent.chmod(0o720)
    with pytest.raises(BadRequest, match="chmod go-w"):
        places.find(data, "open/s.snapshot", make=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(data):
    path = save(data, ROWS)
    os.chown(path, 12345, -1)
    with places.find(data, "s.snapshot", make=False) as place, pytest.raises(BadRequest, match="uid 12345"):
        place.open()


def test_a_pipe_is_refused_without_waiting_for_it(data):
    data.mkdir(0o700)
    os.mkfifo(data / "pipe.snapshot", 0o600)
    with places.find(data, "pipe.snapshot", make=False) as place, pytest.raises(BadRequest, match="not a file"):
        place.open()


def test_a_snapshot_that_is_not_there_is_not_found_and_no_folder_is_made(data):
    data.mkdir(0o700)
    with pytest.raises(NotFound):
        places.find(data, "nowhere/s.snapshot", make=False)
    with places.find(data, "s.snapshot", make=False) as place, pytest.raises(NotFound):
        place.open()
    assert list(data.iterdir()) == []
