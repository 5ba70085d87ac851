"""The spool: what waits in the outbox, in a private file, so that it survives the agent's own crash.

Owns the file's format, its safety and its damage. Must not know the daemon, the cache or when a write is sent.

    statesvc-spool 1\n
    then records: 4 bytes mark, 4 bytes length, 4 bytes CRC-32 of length and payload (big-endian), payload

A payload is `H {"client": ..}` (once, first), `W <seq> <frame>` for a write, `M <seq> <gone> <frame>` when the write
`gone` became part of `seq`, `A <seq>` when everything up to `seq` is decided, `D <seq>` when that one write is.
The mark holds bytes that no payload can hold, so whatever stands behind a damaged record is found again: damage with
whole records behind it is corruption and refused by name; without, it is a torn tail, cut off and reported. Records of
writes that were decided before the damage do not count: an emptied file begins with an `A`, and a power loss may leave
behind it what was in the file before.

A write's number must not pass out of the daemon's memory (by `floor`) before the file knows that it is decided, or a
crash would send it again to a daemon that no longer recognises it. `durable_floor` is therefore what has been synced,
not merely written: it holds after a power failure too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from .adapter_errors import SpoolBusy, SpoolCorrupt, SpoolFailed, SpoolUnsafe
from .writes import Write, restored

MAGIC = b"statesvc-spool 1\n"
MARK = b"\x00\xffSV"
_HEAD = struct.Struct(">4sII")
_LONGEST = 64 * 1024 * 1024
"""Bytes a payload may claim; more is damage."""

COMPACT_BYTES = 16 * 1024 * 1024
"""Bytes of decided records before the file is written anew; below that a rewrite costs more than it frees."""

SEQ_JUMP = 1_000_000
"""Added to the highest number found at start: one that was lost with a torn tail may be known to the daemon."""


class Header(msgspec.Struct):
    """Whose writes these are."""

    client: str


class Found(NamedTuple):
    """What an existing spool held."""

    client: str | None
    waiting: list[Write]
    next_seq: int
    torn_bytes: int


class Spool:
    """An open spool file, held by this process alone."""

    def __init__(self, path: str, *, sync_each: bool = False) -> None:
        self.path = path
        self.sync_each = sync_each
        self._fd = _open_private(path)
        self._client = ""
        self._size = 0
        self._garbage = 0
        self._floor = 0
        self._synced_floor = 0
        self._live: dict[int, int] = {}
        """The bytes each waiting write takes in the file."""
        self._live_bytes = 0
        self._last = 0
        """The highest number it has held."""
        self._unsound = False
        """A sync of this file failed. The kernel forgets what it could not write, so a later success would say nothing
        about it: the file is not synced again, and nothing is promised on it, until a new one takes its place."""

    # --- start -----------------------------------------------------------------------------------------------------

    def load(self) -> Found:
        """Read what an earlier run left. A torn tail is not kept."""
        data = _read_all(self._fd)
        if not data:
            return Found(None, [], 1, 0)
        scan = _Scan(self.path, data)
        waiting = scan.waiting()
        if not waiting:
            return Found(None, [], 1, scan.torn_bytes)
        return Found(scan.client, waiting, scan.highest + SEQ_JUMP, scan.torn_bytes)

    def begin(self, client: str, waiting: Iterable[Write]) -> None:
        """Write the file anew with what waits; from here on it is kept up to date."""
        self._client = client
        self._rewrite(list(waiting))

    # --- keeping up ------------------------------------------------------------------------------------------------

    def add(self, write: Write) -> None:
        self._hold(write.seq, self._append(b"W %d %b" % (write.seq, write.frame()), sync=self.sync_each))

    def merge(self, kept: int, gone: int, frame: bytes) -> None:
        """The write `kept` takes in the write `gone` (0: one that was never spooled) and now reads `frame`."""
        size = self._append(b"M %d %d %b" % (kept, gone, frame), sync=self.sync_each)
        self._drop(gone)
        self._drop(kept)
        self._hold(kept, size)

    def decided_upto(self, seq: int, done: Iterable[Write]) -> None:
        """Everything up to `seq` is decided, `done` since the last time."""
        for write in done:
            self._drop(write.seq)
        self._floor = max(self._floor, seq + 1)
        self._note(_decided_upto(seq))

    def decided_one(self, write: Write) -> None:
        self._drop(write.seq)
        self._note(b"D %d" % write.seq)

    def _hold(self, seq: int, size: int) -> None:
        self._live[seq] = size
        self._live_bytes += size
        self._last = max(self._last, seq)

    def _drop(self, seq: int) -> None:
        size = self._live.pop(seq, 0)
        self._live_bytes -= size
        self._garbage += size

    @property
    def durable_floor(self) -> int:
        return self._synced_floor

    @property
    def wants_sync(self) -> bool:
        return self._synced_floor < self._floor and not self._unsound

    @property
    def is_unsound(self) -> bool:
        return self._unsound

    @property
    def wants_compaction(self) -> bool:
        if self._unsound:
            return True
        if not self._live:
            return self._garbage > 0
        return self._garbage > max(COMPACT_BYTES, self._live_bytes)

    def begin_sync(self) -> tuple[int, int]:
        """A descriptor to sync, which takes milliseconds and is done without the lock, and the floor it will stand for.

        A descriptor of its own: a compaction may put another file in place meanwhile.
        """
        return os.dup(self._fd), self._floor

    def end_sync(self, floor: int) -> None:
        self._synced_floor = max(self._synced_floor, floor)

    def sync_failed(self, fd: int) -> None:
        """A descriptor that `begin_sync` gave could not be synced."""
        if os.path.sameopenfile(fd, self._fd):
            self._unsound = True

    def compact(self, waiting: list[Write]) -> None:
        """Drop what is decided. Empty is the common case and costs two calls."""
        if waiting or self._unsound:
            self._rewrite(waiting)
            return
        start = len(MAGIC) + len(_record(self._header()))
        os.ftruncate(self._fd, start)
        self._size, self._garbage = start, 0
        self._live.clear()
        self._live_bytes = 0
        # A power loss may leave what was cut off behind what comes next: this tells that it is over.
        with contextlib.suppress(SpoolFailed):
            self._append(_decided_upto(self._last))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _header(self) -> bytes:
        return b"H " + msgspec.json.encode(Header(self._client))

    def _append(self, payload: bytes, *, sync: bool = False) -> int:
        """Add a record, whole and synced if it has to be, or leave the file as it was and raise `SpoolFailed`."""
        if sync and self._unsound:
            raise SpoolFailed(f"{self.path} could not be synced before and is not trusted; the write was not taken")
        record = _record(payload)
        try:
            written = os.write(self._fd, record)
            if written != len(record):
                raise OSError(errno.ENOSPC, f"only {written} of {len(record)} bytes fit")
            if sync:
                self._sync()
        except OSError as problem:
            self._take_back()
            raise SpoolFailed(f"{self.path}: {problem.strerror}; the write was not taken") from problem
        self._size += written
        return written

    def _sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._unsound = True
            raise

    def _take_back(self) -> None:
        """Cut off a record that was refused."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:  # then it may stay; a new file, which is due now, will not have it
            self._unsound = True

    def _note(self, payload: bytes) -> None:
        """A note that something is decided. Without it the daemon is asked again, which is safe.

        Not synced here: the floor follows when `begin_sync` has its turn.
        """
        try:
            self._garbage += self._append(payload)
        except SpoolFailed:
            self._floor = self._synced_floor

    def _rewrite(self, waiting: list[Write]) -> None:
        """A new file beside the old one, locked and synced before it takes its place: there is always a whole one."""
        beside = f"{self.path}.new"
        try:
            os.unlink(beside)
        except FileNotFoundError:
            pass
        fd = _open_private(beside)
        records = [_record(b"W %d %b" % (write.seq, write.frame())) for write in waiting]
        content = MAGIC + _record(self._header()) + b"".join(records)
        try:
            _write_all(fd, content)
            os.fsync(fd)
            os.rename(beside, self.path)
        except OSError as problem:
            os.close(fd)
            raise SpoolFailed(f"{beside}: {problem.strerror}") from problem
        os.close(self._fd)  # from here on the new file is the one, whatever happens
        self._fd = fd
        self._unsound = False
        self._size, self._garbage = len(content), 0
        self._live = {write.seq: len(record) for write, record in zip(waiting, records, strict=True)}
        self._live_bytes = sum(self._live.values())
        self._last = max(self._live, default=self._last)
        try:
            _sync_folder(self.path)
        except OSError as problem:
            self._unsound = True
            raise SpoolFailed(f"the folder of {self.path}: {problem.strerror}") from problem
        self._synced_floor = self._floor


def _decided_upto(seq: int) -> bytes:
    return b"A %d" % seq


def _record(payload: bytes) -> bytes:
    return _HEAD.pack(MARK, len(payload), _checksum(payload)) + payload


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "big")))


def _open_private(path: str) -> int:
    """A regular file of ours that nobody else may read, locked; never through a symlink."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as problem:
        raise SpoolUnsafe(f"{path}: {problem.strerror}; a spool is a regular file in a folder of yours") from problem
    try:
        _check_private(path, fd)
        _lock(path, fd)
        _check_still_there(path, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_private(path: str, fd: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise SpoolUnsafe(f"{path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise SpoolUnsafe(f"{path} belongs to uid {found.st_uid}, not to us ({os.geteuid()})")
    if found.st_mode & 0o077:
        raise SpoolUnsafe(f"{path} has mode {found.st_mode & 0o777:04o}; it must be 0600")
    if found.st_nlink > 1:
        raise SpoolUnsafe(f"{path} has {found.st_nlink} names; it must have one")


def _lock(path: str, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpoolBusy(f"{path} is held by another process; give each agent a spool of its own") from None


def _check_still_there(path: str, fd: int) -> None:
    """Between opening and locking, its holder may have put a new file in its place."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        raise SpoolBusy(f"{path} was replaced while it was opened; try again") from None
    if not os.path.samestat(there, os.fstat(fd)):
        raise SpoolBusy(f"{path} was replaced while it was opened; try again")


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    chunks = []
    place = 0
    while place < size:
        chunk = os.pread(fd, size - place, place)
        if not chunk:
            break
        chunks.append(chunk)
        place += len(chunk)
    return b"".join(chunks)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _other_version(data: bytes) -> str:
    """In words, what the first line says when it is one of ours."""
    name, _, version = data.partition(b"\n")[0].partition(b" ")
    if name != MAGIC.split()[0] or not version.isdigit():
        return ""
    return f" of version 1, but of version {version[:20].decode()}: it takes the newer adapter that wrote it"


class _Scan:
    """What the bytes of a spool say."""

    def __init__(self, path: str, data: bytes) -> None:
        self.client: str | None = None
        self.highest = 0
        self.torn_bytes = 0
        self._frames: dict[int, bytes] = {}
        self._decided = 0
        self._path = path
        self._data = data
        for place, payload in self._payloads():
            try:
                self._take(payload)
            except (ValueError, msgspec.DecodeError) as problem:
                raise SpoolCorrupt(f"{path}: the record at byte {place} makes no sense: {problem}") from None

    def waiting(self) -> list[Write]:
        if self._frames and self.client is None:
            raise SpoolCorrupt(f"{self._path} holds writes but not whose they are")
        try:
            waiting = sorted(item for item in self._frames.items() if item[0] > self._decided)
            return [restored(frame, seq) for seq, frame in waiting]
        except (msgspec.DecodeError, KeyError, ValueError, TypeError) as problem:
            raise SpoolCorrupt(f"{self._path}: a write in it cannot be read: {problem}") from None

    def _payloads(self) -> Iterator[tuple[int, bytes]]:
        data = self._data
        if not data.startswith(MAGIC):
            if MAGIC.startswith(data):
                self.torn_bytes = len(data)
                return
            raise SpoolCorrupt(f"{self._path} does not begin like a spool{_other_version(data)}; it is left as it is")
        place = len(MAGIC)
        while place < len(data):
            payload = self._payload_at(place)
            if payload is None:
                self._check_is_tail(place)
                self.torn_bytes = len(data) - place
                return
            yield place, payload
            place += _HEAD.size + len(payload)

    def _payload_at(self, place: int) -> bytes | None:
        if place + _HEAD.size > len(self._data):
            return None
        mark, length, checksum = _HEAD.unpack_from(self._data, place)
        start = place + _HEAD.size
        if mark != MARK or length > _LONGEST or start + length > len(self._data):
            return None
        payload = self._data[start : start + length]
        return payload if _checksum(payload) == checksum else None

    def _check_is_tail(self, damaged: int) -> None:
        """Whole records behind a damaged one mean damage, not a write that was cut off; but for those of writes that
        were decided before it, which a power loss has brought back."""
        place = self._data.find(MARK, damaged + 1)
        while place >= 0:
            payload = self._payload_at(place)
            if payload is not None and not self._is_over(payload):
                raise SpoolCorrupt(
                    f"{self._path} is damaged at byte {damaged}, and whole records follow at byte {place}: writes may "
                    "be missing in between. It is left as it is; move it away to start without it"
                )
            place = self._data.find(MARK, place + 1)

    def _is_over(self, payload: bytes) -> bool:
        """Whether a record is of nothing but writes that are known to be decided."""
        number = payload.partition(b" ")[2].partition(b" ")[0]
        return number.isdigit() and int(number) <= self._decided

    def _take(self, payload: bytes) -> None:
        kind, _, rest = payload.partition(b" ")
        if kind == b"H":
            self.client = msgspec.json.decode(rest, type=Header).client
            return
        number, _, rest = rest.partition(b" ")
        seq = int(number)
        self.highest = max(self.highest, seq)
        if kind == b"W":
            self._frames[seq] = rest
        elif kind == b"M":
            gone, _, frame = rest.partition(b" ")
            self._frames.pop(int(gone), None)
            self._frames[seq] = frame
        elif kind == b"A":
            self._decided = max(self._decided, seq)
        elif kind == b"D":
            self._frames.pop(seq, None)
        else:
            raise ValueError(f"unknown kind {kind!r}")
