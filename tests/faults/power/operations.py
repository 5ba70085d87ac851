"""What a process did to a folder, as a sequence of operations, and what it said about it on the way.

Owns the shapes of both. Must not know how they were found out, or what a disk makes of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from statesvc.backends.port import Row

# --- what was done -------------------------------------------------------------------------------------------------

File = int
"""A file or a folder, whatever its name is by now."""

ROOT: File = 0
"""The data folder itself."""


class Write(NamedTuple):
    """Bytes were put into a file."""

    file: File
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file was given a size."""

    file: File
    size: int


class Naming(NamedTuple):
    """Names in folders changed, all of them at one moment: made, moved or taken away."""

    what: str
    changes: tuple[tuple[File, str, File | None], ...]
    """Folder, name, and what the name stands for from now on."""


class Sync(NamedTuple):
    """A file or a folder was put onto the disk, as it was when that began."""

    file: File
    covers: int
    """How many operations had been done by then."""


# --- what was said -------------------------------------------------------------------------------------------------


class Begun(Struct, frozen=True, tag=True):
    """A commit begins, or a restore. Until it is told, it may or may not have happened."""

    base: int
    """The step it builds on."""
    epoch: str
    """"" while it is not known."""
    position: int
    """Where the log ends afterwards."""
    rows: list[Row]
    whole: bool = False
    """The rows take the place of everything."""


class Rows(Struct, frozen=True, tag=True):
    """More rows of the step that was begun last."""

    rows: list[Row]


class Epoch(Struct, frozen=True, tag=True):
    """The epoch of a step is known now."""

    step: int
    epoch: str
    position: int


class Told(Struct, frozen=True, tag=True):
    """Somebody was told of a step: that it happened, or what is there since."""

    step: int
    safely: bool = False
    """It was put onto the disk, whatever the level: the store was closed, idle, or restored."""


class Phase(Struct, frozen=True, tag=True):
    """What is going on from here on."""

    name: str


class Kept(Struct, frozen=True, tag=True):
    """A file is finished, and has to stay as it is."""

    path: str


Note = Begun | Rows | Epoch | Told | Phase | Kept

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


def encoded(note: Note) -> bytes:
    return _encode(note) + b"\n"


def decoded(line: bytes) -> Note:
    return _decode(line)


# --- the whole -----------------------------------------------------------------------------------------------------

Operation = Write | Truncate | Naming | Sync | Begun | Rows | Epoch | Told | Phase | Kept

Image = dict[str, bytes | None]
"""Everything in a folder by its path; None for a folder. Folders come before what is in them."""


class Recording(NamedTuple):
    """All of it, and what was there before."""

    name: str
    durability: str
    before: Image
    files: dict[File, str]
    """The last name of each file, as people would call it."""
    operations: list[Operation]
    said: tuple[Note, ...] = ()
    """By the processes before."""


def read_image(folder: Path) -> Image:
    """What a folder holds; SQLite's shared memory left out, for nothing of it outlives a power loss."""
    found = sorted(path for path in folder.rglob("*") if not is_memory(path.name))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in found}


def is_memory(name: str) -> bool:
    return name.endswith("-shm")
