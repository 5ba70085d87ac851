"""What a disk may hold after the power was lost: everything that was synced, and anything of what was not.

Owns the storage model. Must not know what the files are for, or how a store judges them.

    a write     that no sync covered is there, is not, or is torn at a sector; of an append any part may be there
    their order means nothing: a later one may be there without an earlier one
    a size      may be there without the bytes, which then are zeros, or whatever the blocks held before
    a file      that was cut short is so or is not; if not, nothing is there of what was written to it since
    a name      that was made, moved or taken away may not be so, unless its folder was synced; a rename is one step

Two readings of the first two, both of them used: writes survive one by one, as if each went to the disk on its own;
and every sector shows some moment of its own, as a page cache leaves them that was written back here and there.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from .operations import ROOT, File, Image, Naming, Operation, Recording, Sync, Truncate, Write

SECTOR_BYTES = 512

DataOperation = Write | Truncate


class Loss(NamedTuple):
    """One way to lose what was not synced."""

    names: Callable[[list[Naming]], list[Naming]]
    """Which changes of names are kept, in their order."""
    content: Callable[[bytes, list[DataOperation]], bytes]
    """What is in a file that held something and was then written to."""


class Disk:
    """A disk that follows a recording."""

    def __init__(self, recording: Recording) -> None:
        self._done = 0
        self._files = recording.files
        self._safe: dict[File, bytes] = {}
        self._safe_names: dict[File, dict[str, File]] = {ROOT: {}}
        self._unsafe: dict[File, list[tuple[int, DataOperation]]] = defaultdict(list)
        self._unsafe_names: list[tuple[int, Naming]] = []
        for number, (path, content) in enumerate(recording.before.items(), 1):
            self._lay(number, path, content)

    def _lay(self, file: File, path: str, content: bytes | None) -> None:
        *folders, name = path.split("/")
        at = ROOT
        for each in folders:
            at = self._safe_names[at][each]
        self._safe_names[at][name] = file
        if content is None:
            self._safe_names[file] = {}
        else:
            self._safe[file] = content

    # --- following -----------------------------------------------------------------------------------------------

    def take(self, operation: Operation) -> None:
        match operation:
            case Write(file) | Truncate(file):
                self._unsafe[file].append((self._done, operation))
            case Naming():
                self._unsafe_names.append((self._done, operation))
            case Sync(file, covers):
                self._sync(file, covers)
        self._done += 1

    def _sync(self, file: File, covers: int) -> None:
        if (waiting := self._unsafe.pop(file, None)) is not None:
            self._safe[file] = applied(self._safe.get(file, b""), [each for at, each in waiting if at < covers])
            if late := [(at, each) for at, each in waiting if at >= covers]:
                self._unsafe[file] = late
        # A move between two folders is safe when the one is that it leads to.
        covered = [at < covers and each.changes[-1][0] == file for at, each in self._unsafe_names]
        rename_all(
            self._safe_names, [each for (_, each), safe in zip(self._unsafe_names, covered, strict=True) if safe]
        )
        self._unsafe_names = [each for each, safe in zip(self._unsafe_names, covered, strict=True) if not safe]

    # --- after a power loss --------------------------------------------------------------------------------------

    def unsafe(self) -> list[Write | Truncate | Naming]:
        """What was done and not synced, in its order."""
        every = [*self._unsafe_names, *(each for waiting in self._unsafe.values() for each in waiting)]
        return [operation for _, operation in sorted(every, key=lambda each: each[0])]

    def everything(self) -> Image:
        return self.left_by(ALL)

    def left_by(self, loss: Loss) -> Image:
        """The folder as it is found afterwards."""
        names = {folder: dict(inside) for folder, inside in self._safe_names.items()}
        rename_all(names, loss.names([each for _, each in self._unsafe_names]))
        return dict(self._walk(names, ROOT, "", loss))

    def _walk(
        self, names: dict[File, dict[str, File]], folder: File, prefix: str, loss: Loss
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, file in sorted(names[folder].items()):
            if file in names:
                yield prefix + name, None
                yield from self._walk(names, file, f"{prefix}{name}/", loss)
            else:
                yield prefix + name, self._content(file, loss)

    def _content(self, file: File, loss: Loss) -> bytes:
        safe = self._safe.get(file, b"")
        waiting = self._unsafe.get(file)
        return loss.content(safe, [each for _, each in waiting]) if waiting else safe


def applied(content: bytes, operations: list[DataOperation]) -> bytes:
    image = bytearray(content)
    for operation in operations:
        apply(image, operation)
    return bytes(image)


def apply(image: bytearray, operation: DataOperation) -> None:
    match operation:
        case Truncate(_, size):
            resize(image, size)
        case Write(_, offset, data):
            if len(image) < offset:
                resize(image, offset)
            image[offset : offset + len(data)] = data


def resize(image: bytearray, size: int) -> None:
    if len(image) > size:
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


def rename_all(names: dict[File, dict[str, File]], kept: list[Naming]) -> None:
    for naming in kept:
        for folder, name, file in naming.changes:
            if file is None:
                names.setdefault(folder, {}).pop(name, None)
            else:
                names.setdefault(folder, {})[name] = file
                if naming.what == "mkdir":
                    names.setdefault(file, {})


# --- ways to lose something ----------------------------------------------------------------------------------------

ALL = Loss(lambda names: names, applied)
"""Nothing is lost: the process was merely killed."""

NOTHING = Loss(lambda _: [], lambda safe, _: safe)
"""All that was not synced is lost."""


def without(missing: Write | Truncate | Naming) -> Loss:
    """One operation is lost, whatever came behind it."""

    def content(safe: bytes, operations: list[DataOperation]) -> bytes:
        if isinstance(missing, Truncate) and any(each is missing for each in operations):
            return applied(safe, operations[: [each is missing for each in operations].index(True)])
        return applied(safe, [each for each in operations if each is not missing])

    return Loss(lambda names: [each for each in names if each is not missing], content)


class AnyLoss:
    """Something of everything, by chance; counts what it did."""

    def __init__(self, chance: random.Random, debris: bytes, cleared: Collection[File] = ()) -> None:
        """`debris`: what blocks may hold that were given to a file and never written, but for files whose blocks are
        `cleared` first."""
        self._chance = chance
        self._debris = debris
        self._cleared = cleared
        self.done: Counter[str] = Counter()

    def loss(self) -> Loss:
        return Loss(self._names, self._content)

    def _names(self, names: list[Naming]) -> list[Naming]:
        chance = self._chance
        way = chance.randrange(4)
        if way == 0 or not names:
            return names
        if way == 1:
            kept = names[: chance.randrange(len(names))]
        else:
            share = chance.random()
            kept = [each for each in names if chance.random() < share]
        for each in names:
            if not any(each is other for other in kept):
                self.done[f"{each.what} undone"] += 1
        return kept

    def _content(self, safe: bytes, operations: list[DataOperation]) -> bytes:
        way = self._chance.randrange(8)
        if way == 0:
            return applied(safe, operations)
        if way == 1:
            self.done["dropped"] += len(operations)
            return safe
        upto = len(operations)
        if self._chance.random() < 0.5:
            upto = self._chance.choice(
                [at for at, each in enumerate(operations) if isinstance(each, Truncate)] or [upto]
            )
            self.done["truncate undone"] += upto < len(operations)
        if upto == 0:
            return safe
        return (self._by_writes if way <= 4 else self._by_sectors)(safe, operations[:upto])

    # --- one by one ----------------------------------------------------------------------------------------------

    def _by_writes(self, safe: bytes, operations: list[DataOperation]) -> bytes:
        chance, image, whole = self._chance, bytearray(safe), bytearray(safe)
        share, torn = chance.random(), chance.choice((0.0, 0.1, 0.5))
        was_dropped = False
        for operation in operations:
            apply(whole, operation)
            if isinstance(operation, Truncate):
                apply(image, operation)
            elif chance.random() >= share:
                self.done["dropped"] += 1
                was_dropped = True
            else:
                self.done["reordered"] += was_dropped
                for part in self._torn(image, operation) if chance.random() < torn else [operation]:
                    apply(image, part)
        return self._grown(image, len(whole), operations[0].file)

    def _torn(self, image: bytearray, write: Write) -> Iterator[Write]:
        self.done["torn"] += 1
        chance, (file, offset, data) = self._chance, write
        if offset >= len(image) and chance.random() < 0.5:
            yield Write(file, offset, data[: chance.randrange(len(data) + 1)])
            return
        share = chance.random()
        for begin, end in sectors(offset, len(data)):
            if chance.random() < share:
                yield Write(file, begin, data[begin - offset : end - offset])

    def _grown(self, image: bytearray, largest: int, file: File) -> bytes:
        """The size may have reached the disk where the bytes have not."""
        begin, chance = len(image), self._chance
        if largest > begin and chance.random() < 0.5:
            resize(image, chance.choice((largest, chance.randint(begin, largest))))
            image[begin:] = self._never_written(len(image) - begin, file)
        return bytes(image)

    def _never_written(self, length: int, file: File) -> bytes:
        if not self._debris or file in self._cleared or self._chance.random() < 0.5:
            self.done["zero-filled"] += 1
            return bytes(length)
        self.done["stale blocks"] += 1
        at = self._chance.randrange(len(self._debris))
        return (self._debris[at:] + self._debris * (1 + length // len(self._debris)))[:length]

    # --- every sector at its own moment --------------------------------------------------------------------------

    def _by_sectors(self, safe: bytes, operations: list[DataOperation]) -> bytes:
        chance = self._chance
        sizes, versions = moments(safe, operations)
        share = chance.choice((0.0, 0.02, 0.5, 0.9, 0.98, 1.0))
        image = bytearray(safe)
        resize(image, max(sizes))
        grown = max(sizes) - sizes[0]
        if grown > 0:
            image[sizes[0] :] = self._never_written(grown, operations[0].file)
        old = 0
        for begin, contents in versions.items():
            moment = len(contents) - 1 if chance.random() < share else chance.randrange(len(contents))
            old += moment < len(contents) - 1
            if begin < sizes[0] or moment:
                image[begin : begin + SECTOR_BYTES] = contents[moment]
        self.done["reordered"] += 0 < old < len(versions)
        self.done["dropped"] += old
        resize(image, sizes[-1] if chance.random() < 0.5 else chance.choice(sizes))
        return bytes(image)


def moments(safe: bytes, operations: list[DataOperation]) -> tuple[list[int], dict[int, list[bytes]]]:
    """The sizes a file went through, and of every sector that was touched the contents it had, one after the other.

    All of it since the file was last cut short: what was behind the cut is gone for good then.
    """
    image = bytearray(safe)
    sizes = [len(image)]
    versions: dict[int, list[bytes]] = {}
    for operation in operations:
        before = len(image)
        apply(image, operation)
        if isinstance(operation, Truncate):
            sizes = [len(image)]
            versions = {at: contents for at, contents in versions.items() if at < len(image)}
            continue
        sizes.append(len(image))
        begin = min(operation.offset, before)
        for first, _ in sectors(begin, operation.offset + len(operation.data) - begin):
            at = first // SECTOR_BYTES * SECTOR_BYTES
            contents = versions.setdefault(at, [_sector(safe if at < sizes[0] else b"", at)])
            contents.append(_sector(image, at))
    return sizes, versions


def _sector(image: bytes | bytearray, at: int) -> bytes:
    return bytes(image[at : at + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


def sectors(offset: int, length: int) -> Iterator[tuple[int, int]]:
    """A range cut at the borders of sectors."""
    end = offset + length
    while offset < end:
        border = min(end, (offset // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield offset, border
        offset = border
