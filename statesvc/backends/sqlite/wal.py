"""What lies in a WAL behind its last good commit, and which WAL it is.

Owns the reading of a WAL's headers, and its way onto the disk. Must not know what the pages mean, and never writes.

SQLite takes a WAL up to the first frame that does not match its checksum and says nothing about the rest. A log's
commit is synced before the next one begins, so a crash leaves at most one unfinished commit there. More than one means
that something in the middle was damaged, and that what follows it was safely written once.
"""

from __future__ import annotations

import os
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


Salts = tuple[int, int]
"""Two numbers that every frame carries; they change whenever the WAL begins anew."""


class Tail(NamedTuple):
    """What SQLite did not take: bytes of the WAL's own frames, and how many commits end in them."""

    bytes: int
    commits: int
    taken: int = 0
    """Frames that SQLite did take."""
    salts: Salts | None = None


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def frames(db: apsw.Connection) -> int:
    """How many frames of the WAL SQLite knows of."""
    return max(0, db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])


def unread_tail(db: apsw.Connection, path: Path) -> Tail:
    """The part of a freshly opened database's WAL that SQLite left out."""
    taken = frames(db)
    try:
        with wal_of(path).open("rb") as wal:
            return _behind(wal, taken, _FRAME.size + db.pragma("page_size"))
    except FileNotFoundError:
        return Tail(0, 0)


def synced_salts(path: Path) -> Salts | None:
    """Put a database's WAL onto the disk; returns what marks its frames, None when there is nothing in it.

    Raises OSError when it cannot be opened now, and SQLite's own error when the disk fails: nothing may be built on
    the file then. SQLite never locks a WAL, so opening and closing it here takes no lock away.
    """
    try:
        fd = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        os.fsync(fd)
        return _own_salts(os.pread(fd, _HEADER.size, 0))
    except OSError as failed:
        raise apsw.IOError(f"{wal_of(path).name} cannot be synced: {failed.strerror}") from failed
    finally:
        os.close(fd)


def _behind(wal: BinaryIO, taken: int, frame_bytes: int) -> Tail:
    salts = _own_salts(wal.read(_HEADER.size))
    size = commits = 0
    place = _HEADER.size + taken * frame_bytes
    while True:
        wal.seek(place)
        raw = wal.read(frame_bytes)
        if len(raw) < _FRAME.size:
            return Tail(size, commits, taken, salts)
        frame = _FRAME.unpack_from(raw)
        salts = salts or (frame[2], frame[3])
        if frame[2:4] == salts:
            size += len(raw)
            commits += frame[1] != 0 and len(raw) == frame_bytes
        place += frame_bytes


def _own_salts(raw: bytes) -> Salts | None:
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
    return (header[4], header[5]) if (first, second) == header[6:8] else None
