"""Watermarks: small files outside SQLite that name what is known to be safe.

Owns those files. SQLite cannot tell a file that lost its newest commits from one that never had them; these can: for
the log of a store that was closed or idle, and for everything that was ever moved out of a WAL. Must not know what the
entries are.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ... import logs
from .disk import replace
from .wal import Salts, Tail

log = logs.get(__name__)


class Mark(Struct, frozen=True):
    """A file had the log's entries up to here (the state: had applied them), with that much of its WAL on the disk.

    Written before anything of the WAL is moved into the file. So a WAL that ends earlier was damaged, and what SQLite
    shows is a mixture; one that ends there or later was merely cut short by a crash, and what SQLite shows is sound.
    """

    epoch: str
    position: int
    salts: Salts | None = None
    frames: int = 0

    def is_cut_short(self, tail: Tail) -> bool:
        """Whether SQLite took less of the WAL than was safely in it."""
        return self.salts is not None and tail.salts == self.salts and tail.taken < self.frames


class LogMark(Mark, frozen=True, kw_only=True):
    """Of the log: the entry there has this digest."""

    digest: str


AnyMark = TypeVar("AnyMark", bound="Mark")


def read(path: Path, type_: type[AnyMark]) -> AnyMark | None:
    """The mark, or None when there is none that can be trusted."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    text, _, checksum = raw.rstrip(b"\n").rpartition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError
        return msgspec.json.decode(text, type=type_)
    except (ValueError, msgspec.DecodeError):
        log.warning("watermark_damaged", path=str(path), effect="a lost tail would not be noticed")
        return None


def write(path: Path, mark: Mark) -> None:
    """Replace a mark; after a crash either the old or the new one is there."""
    text = msgspec.json.encode(mark)
    replace(path, text + b" %08x\n" % zlib.crc32(text))
