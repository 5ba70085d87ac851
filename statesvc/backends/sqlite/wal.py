"""What lies in a WAL behind its last good commit, and which WAL it is.

Owns the reading of a WAL's headers, and its way onto the disk. Must not know what the pages mean, and writes nothing
but what is there.

SQLite takes a WAL up to the first frame that does not match its checksum and says nothing about the rest. A log's
commit is synced before the next one begins, so a crash leaves at most one unfinished commit there. More than one means
that something in the middle was damaged, and that what follows it was safely written once.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import apsw

_HEADER = struct.Struct(">8I")
"""Magic, version, page size, number of the checkpoint, two salts, two checksums."""

_FRAME = struct.Struct(">6I")
"""Page, size of the database when the frame ends a commit or 0, two salts, two checksums."""

_NOTE = struct.Struct(">2I")
"""The first two of a frame: what its checksum covers beside the page itself."""

_BIG_ENDIAN_SUMS = bytes.fromhex("377f0683")
_LITTLE_ENDIAN_SUMS = bytes.fromhex("377f0682")
"""The magic of a WAL whose checksums take words in this order."""

_WORD = 0xFFFFFFFF

SECTOR_BYTES = 512
"""What a disk writes whole or not at all, at least."""

PIECE_BYTES = 1024 * 1024
"""What is written anew of a WAL at a time."""


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
    taken, page_bytes = frames(db), db.pragma("page_size")
    try:
        with wal_of(path).open("rb") as wal:
            most_pages = (path.stat().st_size + os.fstat(wal.fileno()).st_size) // page_bytes
            return _behind(wal, taken, _FRAME.size + page_bytes, most_pages)
    except FileNotFoundError:
        return Tail(0, 0)


def pages(path: Path, taken: int, page_bytes: int) -> set[int]:
    """The pages in the frames that SQLite took."""
    if not taken:
        return set()
    with wal_of(path).open("rb") as wal:
        places = (_HEADER.size + number * (_FRAME.size + page_bytes) for number in range(taken))
        return {int.from_bytes(os.pread(wal.fileno(), 4, place), "big") for place in places}


def write_anew(path: Path) -> None:
    """Write a database's WAL over with its own bytes, before anybody reads them.

    After a sync that failed the system shows what is not on the disk, and calls the next sync a success: it has nothing
    left to write. What is written again gets there with the next sync, or makes that one fail too.
    """
    try:
        fd = os.open(wal_of(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        place = 0
        while piece := os.pread(fd, PIECE_BYTES, place):
            place += os.pwrite(fd, piece, place)
    finally:
        os.close(fd)


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


def _behind(wal: BinaryIO, taken: int, frame_bytes: int, most_pages: int) -> Tail:
    header = wal.read(_HEADER.size)
    salts = _own_salts(header)
    place = _HEADER.size + taken * frame_bytes
    ends = _Ends(header, _frame_before(wal, place, frame_bytes) if taken else None, most_pages)
    size = commits = 0
    while True:
        wal.seek(place)
        raw = wal.read(frame_bytes)
        if len(raw) < _FRAME.size:
            return Tail(size, commits, taken, salts)
        frame = _FRAME.unpack_from(raw)
        if salts is None and any(frame):
            salts = (frame[2], frame[3])
        # Frames left over from an earlier WAL have neither salt; a damaged one has at least one of them. None was ever
        # written with a page 0: the file has grown by it, and what it held did not get there.
        if not any(frame):
            size += len(raw)
        elif salts is not None and (frame[2] == salts[0] or frame[3] == salts[1]):
            size += len(raw)
            commits += len(raw) == frame_bytes and ends.is_end(frame, raw, place)
        place += frame_bytes


def _frame_before(wal: BinaryIO, place: int, frame_bytes: int) -> bytes:
    wal.seek(place - frame_bytes)
    return wal.read(_FRAME.size)


class _Ends:
    """Tells which frames end a commit, frame by frame, also where it is that very note which suffered.

    A flipped bit may have made a size of none, or none of a size. And where a sector of the disk ends behind the note,
    the note may be of an earlier WAL and the rest of this one: so a power loss left it. But a frame's checksum can be
    followed backwards, from its end through the page, to the note it was made with, if the page is whole. If it is not,
    that leads to any two numbers, or to small ones where the page is nearly right. So it is believed only as far as it
    says what may have happened to the note that stands there.
    """

    def __init__(self, header: bytes, last: bytes | None, most_pages: int) -> None:
        """`last` is the header of the frame before the first one, if there is one."""
        self._order = _order(header)
        before = _FRAME.unpack(last)[4:6] if last else _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))[6:8]
        self._sums: Sequence[int] = before
        self._most_pages = most_pages

    def is_end(self, frame: Sequence[int], raw: bytes, place: int) -> bool:
        before, self._sums = self._sums, frame[4:6]
        page, size = frame[:2]
        made_page, made_size = _note(self._order, raw[_FRAME.size :], before, self._sums)
        if size == 0:  # unless it was a single bit, and that was lost
            return made_page == page <= made_size <= self._most_pages and made_size.bit_count() == 1
        if (place + _NOTE.size) % SECTOR_BYTES:
            return True  # the note is as old as the salts beside it
        if made_size == 0 and 1 <= made_page <= self._most_pages:
            return False  # an older note stands there; hardly ever a flipped bit looks like that, too
        checked = raw[: _NOTE.size] + raw[_FRAME.size :]
        return _is_right_but_for_a_bit(self._order, checked, before, self._sums)


def _note(order: str, data: bytes, before: Sequence[int], after: Sequence[int]) -> tuple[int, int]:
    """The page and the size that lead from one checksum to the other over this data."""
    first, second = after
    for one, two in reversed(list(struct.iter_unpack(f"{order}II", data))):
        second = (second - two - first) & _WORD
        first = (first - one - second) & _WORD
    words = ((first - before[0] - before[1]) & _WORD, (second - before[1] - first) & _WORD)
    page, size = _NOTE.unpack(struct.pack(f"{order}II", *words))
    return page, size


def _is_right_but_for_a_bit(order: str, data: bytes, before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether the one checksum leads to the other over this data, or would if not for a single flipped bit in any of
    the three.

    They are sums, so what they are wrong by can be followed backwards on its own, until it is one bit of a word.
    """
    first, second = ((told - made) & _WORD for told, made in zip(after, _sums(order, data, before), strict=True))
    if first == second == 0 or _is_one_bit(first, second):
        return True
    for _ in range(len(data) // _NOTE.size):
        second = (second - first) & _WORD
        if _is_one_bit(first, second):  # by so much the two words differ that were taken in here
            return True
        first = (first - second) & _WORD
    return _is_one_bit(first, second)


def _is_one_bit(first: int, second: int) -> bool:
    """Whether one of two words is wrong by as much as a bit that was set or taken away."""
    wrong = first or second
    return 0 in (first, second) and 1 in (wrong.bit_count(), (-wrong & _WORD).bit_count())


def _own_salts(raw: bytes) -> Salts | None:
    """What marks the frames of this WAL, not leftovers of an earlier one. None when the header is damaged: then SQLite
    has taken nothing, and the first frame says it that is not zeros."""
    # The checksum alone would take zeros for a header: theirs is zero.
    if len(raw) < _HEADER.size or raw[:4] not in (_BIG_ENDIAN_SUMS, _LITTLE_ENDIAN_SUMS):
        return None
    header = _HEADER.unpack(raw)
    return (header[4], header[5]) if _sums(_order(raw), raw[:24]) == header[6:8] else None


def _order(header: bytes) -> str:
    """In which order the words of a WAL are taken for its checksums."""
    return ">" if header[:4] == _BIG_ENDIAN_SUMS else "<"


def _sums(order: str, data: bytes, before: Sequence[int] = (0, 0)) -> tuple[int, ...]:
    """The checksum of SQLite's WALs, going on from the one before."""
    first, second = before
    for one, two in struct.iter_unpack(f"{order}II", data):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return (first, second)
