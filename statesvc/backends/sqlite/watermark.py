"""The watermark: a small file outside SQLite that names the last entry known to be safe.

Owns that file. SQLite cannot tell a log that lost its tail from one that never had it; this can, for a store that was
closed or idle. Must not know what the entries are.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from ... import logs

log = logs.get(__name__)


class Watermark(Struct, frozen=True):
    """The log had this entry, with this digest, safely on the disk."""

    epoch: str
    position: int
    digest: str

    @classmethod
    def of(cls, epoch: str, position: int, digest: bytes) -> Watermark:
        return cls(epoch, position, digest.hex())


def read(path: Path) -> Watermark | None:
    """The watermark, or None when there is none that can be trusted."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    text, _, checksum = raw.rstrip(b"\n").rpartition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError
        return msgspec.json.decode(text, type=Watermark)
    except (ValueError, msgspec.DecodeError):
        log.warning("watermark_damaged", path=str(path), effect="a lost tail of the log would not be noticed")
        return None


def write(path: Path, mark: Watermark) -> None:
    """Replace the watermark; after a crash either the old or the new one is there."""
    text = msgspec.json.encode(mark)
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, text + b" %08x\n" % zlib.crc32(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(fresh, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
