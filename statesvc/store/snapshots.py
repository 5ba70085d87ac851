"""The snapshot file, version 1: everything stored, in one file that notices every change to it.

Owns the format: writing, reading, verifying, inspecting. Must not know where rows come from or go to, nor requests.
Everything here blocks; memory stays at about a block, whatever the file holds.

    line      statesvc-snapshot 1
    part      letter, length of its content, a checksum of these two, the content, a digest
      H       header: JSON, see `Header`
      B       block: rows as msgpack, zlib; as many of them as there are
      F       footer: JSON, see `Footer`; nothing follows

The digest of a part covers the digest before it, so the last one covers every byte of the file and their order. The
checksum behind a length keeps a damaged one from being believed.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from statesvc_client.errors import BadRequest, NotFound

from .. import failpoints
from ..backends.port import Row
from .places import Place, in_words

FORMAT = "statesvc-snapshot"
VERSION = 1

BLOCK_BYTES = 256 * 1024
"""Rows gathered into a block: enough to compress well, little enough to be done in a few milliseconds."""

MOST_BLOCK_BYTES = 2 * 1024 * 1024 * 1024
"""What a block may unfold to: the largest record a configuration allows, with its marks, and room."""

SYNC_BYTES = 4 * 1024 * 1024
"""Written to disk as it grows: one large sync at the end would hold up the commits of everybody."""

LEVEL = 1
"""Of compression: the fastest; records repeat themselves, more effort gains little."""

_LINE = f"{FORMAT} {VERSION}\n".encode()
_PART = struct.Struct(">cI")
_CHECKSUM = struct.Struct(">I")
_HEAD_BYTES = _PART.size + _CHECKSUM.size
_DIGEST_BYTES = 16
_NAMES = {b"H": "the header", b"B": "block", b"F": "the footer"}

Told = TypeVar("Told", bound=Struct)

_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


class Header(Struct, rename="camel", kw_only=True, frozen=True):
    """What the file says before its rows."""

    epoch: str
    cursor: str
    """The place in the log of that epoch which the rows are as of."""
    created_at: str
    backend: str
    version: str
    """Of the daemon that wrote it."""
    rows: int
    """As many as were expected; on some engines there may be a few more or less."""


class Footer(Struct, rename="camel", kw_only=True):
    """What the file says after its rows."""

    rows: int = 0
    tombstones: int = 0
    kinds: dict[str, int] = {}
    """Living records by kind."""
    highest_token: int = 0
    """No fencing token up to the snapshot was higher."""

    def count(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        for row in rows:
            self.highest_token = max(self.highest_token, row.token)
            if row.deleted:
                self.tombstones += 1
            else:
                self.kinds[row.kind] = self.kinds.get(row.kind, 0) + 1


class Summary(NamedTuple):
    """What a whole snapshot holds."""

    header: Header
    footer: Footer
    bytes: int


# --- writing -------------------------------------------------------------------------------------------------------


class Writer:
    """A snapshot on its way into a file. `finish` makes it one; until then nothing there passes for one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = place.make()
        self._digest = _chained(b"", _LINE)
        self._unsynced = 0
        self.bytes = 0
        self.footer = Footer()

    def begin(self, header: Header) -> None:
        self._write(_LINE)
        self._put(b"H", msgspec.json.encode(header))

    def add(self, rows: list[Row]) -> None:
        """One block."""
        self.footer.count(rows)
        self._put(b"B", zlib.compress(_encode_rows(rows), LEVEL))
        if failpoints.armed:
            failpoints.reach("snapshot.inside")

    def finish(self) -> Footer:
        """The file is whole, safely on disk, and has its name."""
        self._put(b"F", msgspec.json.encode(self.footer))
        with in_words(self._place.shown):
            os.fsync(self._file)
        if failpoints.armed:
            failpoints.reach("snapshot.whole")
        self._place.keep()
        self._close()
        return self.footer

    def abandon(self) -> None:
        """Leave nothing behind. Harmless once it is finished or abandoned."""
        if self._file >= 0:
            self._place.abandon()
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)

    def _put(self, letter: bytes, content: bytes) -> None:
        head = _head(letter, len(content))
        self._digest = _chained(self._digest, head, content)
        self._write(head + content + self._digest)

    def _write(self, data: bytes) -> None:
        with in_words(self._place.shown):
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            self.bytes += len(data)
            self._unsynced += len(data)
            if self._unsynced >= SYNC_BYTES:
                os.fdatasync(self._file)
                self._unsynced = 0


def _head(letter: bytes, length: int) -> bytes:
    part = _PART.pack(letter, length)
    return part + _CHECKSUM.pack(zlib.crc32(part))


def _chained(before: bytes, *data: bytes) -> bytes:
    digest = blake2b(before, digest_size=_DIGEST_BYTES)
    for each in data:
        digest.update(each)
    return digest.digest()


# --- reading -------------------------------------------------------------------------------------------------------


class Reader:
    """A snapshot being read, block by block. Whatever is wrong with it is said by name: the file, what, and where."""

    header: Header
    footer: Footer
    """Both are there once `blocks` has ended."""

    def __init__(self, file: int, shown: str) -> None:
        """Takes the open file over: it is closed with this."""
        self._file = file
        self._shown = shown
        self.size = os.fstat(file).st_size
        self.position = 0
        self._digest = b""
        self._block = 0

    def blocks(self) -> Iterator[list[Row]]:
        """All rows, each block checked before it is handed over. Ends only after the whole file was found good."""
        self._begin()
        seen = Footer()
        while True:
            letter, content = self._part()
            if letter == b"F":
                break
            if letter == b"H":
                raise self._damaged("it has a second header")
            rows = self._rows(content)
            seen.count(rows)
            yield rows
        self.footer = self._decoded(content, Footer, "the footer")
        self._check_end(seen)

    def close(self) -> None:
        os.close(self._file)

    def _begin(self) -> None:
        with in_words(self._shown):
            os.lseek(self._file, 0, os.SEEK_SET)
        self.position = self._block = 0
        self._check_line()
        letter, content = self._part()
        if letter != b"H":
            raise self._damaged("it begins without a header")
        self.header = self._decoded(content, Header, "the header")

    def _check_end(self, seen: Footer) -> None:
        footer = self.footer
        seen.highest_token = max(seen.highest_token, footer.highest_token)
        if seen != footer:
            raise self._damaged(f"it holds {seen.rows} rows, and its footer tells of {footer.rows}, or of other kinds")
        if self.position != self.size or self._take(1):
            raise self._damaged(f"{max(1, self.size - self.position)} bytes follow its end at byte {self.position}")

    def _check_line(self) -> None:
        line = self._take(len(_LINE))
        if line != _LINE:
            raise self._not_ours(line)
        self._digest = _chained(b"", line)

    def _not_ours(self, begin: bytes) -> BadRequest:
        name, _, version = begin.strip().partition(b" ")
        if not begin:
            return self._damaged("it is empty")
        if name == FORMAT.encode() and version.isdigit() and int(version) != VERSION:
            text = f"{self._shown} is of version {version.decode()} of the format; this daemon reads {VERSION}"
            return BadRequest(f"{text}: use a newer one")
        if _LINE.startswith(begin):
            return self._damaged(f"it ends at byte {len(begin)}, in its first line")
        return BadRequest(f"{self._shown} is not a snapshot, or its first line is damaged")

    def _part(self) -> tuple[bytes, bytes]:
        """The next part: its letter and its content."""
        begin = self.position
        head = self._take(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            raise self._damaged(f"it ends at byte {self.size}, without its footer")
        letter, length = _PART.unpack_from(head)
        if _CHECKSUM.unpack_from(head, _PART.size)[0] != zlib.crc32(head[: _PART.size]) or letter not in _NAMES:
            raise self._damaged(f"what begins at byte {begin} is not a part of a snapshot")
        self._block += letter == b"B"
        if begin + _HEAD_BYTES + length + _DIGEST_BYTES > self.size:
            raise self._damaged(f"it ends at byte {self.size}, within {self._named(letter)}, which began at {begin}")
        content, digest = self._take(length), self._take(_DIGEST_BYTES)
        self._digest = _chained(self._digest, head, content)
        if digest != self._digest:
            raise self._damaged(f"{self._named(letter)} at byte {begin} does not match its checksum")
        return letter, content

    def _named(self, letter: bytes) -> str:
        return f"block {self._block}" if letter == b"B" else _NAMES[letter]

    def _take(self, length: int) -> bytes:
        with in_words(self._shown):
            pieces: list[bytes] = []
            while length and (piece := os.read(self._file, length)):
                pieces.append(piece)
                length -= len(piece)
        data = b"".join(pieces)
        self.position += len(data)
        return data

    def _rows(self, content: bytes) -> list[Row]:
        try:
            unfolding = zlib.decompressobj()
            data = unfolding.decompress(content, MOST_BLOCK_BYTES)
            if not unfolding.eof:
                raise self._damaged(f"block {self._block} is larger than a block can be")
            return _decode_rows(data)
        except (zlib.error, msgspec.MsgspecError) as problem:
            raise self._damaged(f"block {self._block} cannot be read: {problem}") from None

    def _decoded(self, content: bytes, cls: type[Told], what: str) -> Told:
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as problem:
            raise self._damaged(f"{what} cannot be read: {problem}") from None

    def _damaged(self, what: str) -> BadRequest:
        return BadRequest(f"{self._shown} is damaged: {what}")


def inspect(path: str | Path) -> Summary:
    """What a snapshot holds, after all of it was verified; raises what is wrong with it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"{path} is not there") from None
    except OSError as problem:
        raise BadRequest(f"{path} cannot be opened: {problem.strerror}") from None
    reader = Reader(file, str(path))
    try:
        for _ in reader.blocks():
            pass
        return Summary(reader.header, reader.footer, reader.size)
    finally:
        reader.close()
