"""Rows in memory: packed ones read as they were written, and what is kept built is never outdated."""

from __future__ import annotations

from msgspec.structs import replace

from statesvc.backends import packed
from statesvc.backends.packed import PackedRows
from statesvc.backends.port import Keys, Row
from tests.engines.rows import row

KEY = ("job", "a")
FULL = Row(
    "job", "a", "uid", 7,
    Keys(1 << 62, 2, "RUNNING", "n", "o", 3, 4, -5, 1.5, (("", "leased"), ("team", "é")), "0001", 6),
    b"{}", b"\x00marks", 0, 99,
)  # fmt: skip


def test_a_packed_row_reads_as_it_was_written():
    rows = PackedRows()
    for written in (FULL, row("a"), row("a", deleted=7), replace(FULL, keys=replace(FULL.keys, priority=2))):
        rows.put(written)
        rows.pack(written)
        assert isinstance(rows.of_kind["job"]["a"], bytes)
        assert rows.get(KEY) == rows.look(KEY) == written
        assert rows.listed("job", ["a", "b"]) == [written]
        assert rows.passing("job", ["a", "b"]) == [written, None]


def test_only_the_newest_row_is_packed():
    rows = PackedRows()
    old, new = row("a"), row("a", revision=2)
    rows.put(old)
    rows.put(new)
    rows.pack(old)
    assert rows.get(KEY) is new


def test_a_large_row_stays_as_it_is():
    rows = PackedRows()
    large = replace(FULL, body=b"x" * packed.LARGE_BYTES)
    rows.put(large)
    rows.pack(large)
    assert rows.get(KEY) is large


def test_a_row_in_use_stays_built_until_another_is_written():
    rows = PackedRows()
    for revision in (1, 2, 3):
        written = row("a", revision=revision)
        rows.put(written)
        rows.pack(written)
        found = rows.get(KEY)
        assert found == written
        assert rows.get(KEY) is found


def test_so_many_rows_stay_built(monkeypatch):
    monkeypatch.setattr(packed, "MOST_BUILT", 8)
    rows = PackedRows()
    for number in range(100):
        written = row(f"n{number}")
        rows.put(written)
        rows.pack(written)
    for number in [*range(100), *range(99, -1, -1), 50, 51, 50]:
        assert rows.get(("job", f"n{number}")) == row(f"n{number}")
        assert len(rows._built) + len(rows._built_before) <= 8


def test_a_kind_goes_with_its_last_row():
    rows = PackedRows()
    rows.put(row("a"))
    assert len(rows) == 1
    rows.remove(KEY)
    rows.remove(KEY)
    assert (len(rows), rows.get(KEY), rows.look(KEY)) == (0, None, None)
    assert not rows.of_kind
