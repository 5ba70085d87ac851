"""Where the files of a store are.

Owns their names. Must not know what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SIDES = ("-wal", "-shm")
"""What SQLite puts beside a database; never to be left behind, or taken for another one's."""

NEW = ".new"
"""Behind the name of a file that is not whole yet."""

MARK_NAME = "watermark"
"""What of the log is known to be safe."""

UNSYNCED_NAME = "unsynced"
"""That something may not be safe, while the log is written without syncing."""


class Paths(NamedTuple):
    """The files of a store."""

    folder: Path
    log: Path
    state: Path
    watermark: Path
    state_watermark: Path
    unsynced: Path
    incoming: Path
    """A folder: the store that is about to take the place of this one."""

    @classmethod
    def below(cls, folder: Path) -> Paths:
        names = ("log.db", "state.db", MARK_NAME, "state.watermark", UNSYNCED_NAME, "incoming")
        return cls(folder, *(folder / name for name in names))

    @property
    def notes(self) -> list[Path]:
        """What is said about the databases outside of them."""
        return [self.watermark, self.state_watermark, self.unsynced]

    @property
    def files(self) -> list[Path]:
        """All that a store consists of."""
        return [self.log, *sides(self.log), self.state, *sides(self.state), *self.notes]


def unfinished(path: Path) -> Path:
    return path.with_name(path.name + NEW)


def sides(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in SIDES]


def size_with_wal(path: Path) -> int:
    """Bytes a database takes on the disk."""
    size = 0
    for each in (path, path.with_name(path.name + "-wal")):
        try:
            size += os.stat(each).st_size
        except FileNotFoundError:
            pass
    return size
