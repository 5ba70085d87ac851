"""What lies in a WAL behind its last good commit.

Owns the reading of a WAL's frame headers. Must not know what the pages mean, and never writes.

SQLite takes a WAL up to the first frame that does not match its checksum and says nothing about the rest. A log's
commit is synced before the next one begins, so a crash leaves at most one unfinished commit there. More than one means
that something in the middle was damaged, and that what follows it was safely written once.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import apsw

_HEADER = struct.Struct(">8I")
"""Magic, version, page size, number of the checkpoint, two salts, two checksums."""

_FRAME = struct.Struct(">6I")
"""Page, size of the database when the frame ends a commit or 0, two salts, two checksums."""

_BIG_ENDIAN_SUMS = 0x377F0683
"""The magic of a WAL whose checksums take words in this order; the other order's is one less."""


class Tail(NamedTuple):
    """What SQLite did not take: bytes of the WAL's own frames, and how many commits end in them."""

    bytes: int
    commits: int


def unread_tail(db: apsw.Connection, path: Path) -> Tail:
    """The part of a freshly opened database's WAL that SQLite left out."""
    taken = max(0, db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
    try:
        with path.with_name(path.name + "-wal").open("rb") as wal:
            return _behind(wal, taken, _FRAME.size + db.pragma("page_size"))
    except FileNotFoundError:
        return Tail(0, 0)


def _behind(wal: BinaryIO, taken: int, frame_bytes: int) -> Tail:
    salts = _own_salts(wal.read(_HEADER.size))
    size = commits = 0
    place = _HEADER.size + taken * frame_bytes
    while True:
        wal.seek(place)
        raw = wal.read(frame_bytes)
        if len(raw) < _FRAME.size:
            return Tail(size, commits)
        frame = _FRAME.unpack_from(raw)
        salts = salts or frame[2:4]
        if frame[2:4] == salts:
            size += len(raw)
            commits += frame[1] != 0 and len(raw) == frame_bytes
        place += frame_bytes


def _own_salts(raw: bytes) -> tuple[int, ...] | None:
    """What marks the frames of this WAL, not leftovers of an earlier one. None when the header is damaged: then SQLite
    has taken nothing, and the first frame says it."""
    if len(raw) < _HEADER.size:
        return None
    header = _HEADER.unpack(raw)
    order = ">" if header[0] == _BIG_ENDIAN_SUMS else "<"
    first = second = 0
    for one, two in struct.iter_unpack(f"{order}II", raw[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return header[4:6] if (first, second) == header[6:8] else None
