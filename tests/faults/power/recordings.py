"""Lives of stores, recorded: what their processes do, and the same again after a power loss.

Owns which lives there are. Must not know what becomes of the recordings.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .disk import NOTHING, Disk
from .judging import lay_out
from .operations import Image, Note, Recording, encoded, read_image
from .tracing import NOTES, STORE, Place, Tracer, run_traced

WORKLOAD = "tests.faults.power.workload"

AFTER_SNAPSHOT = "restore,work,burst,compact,work,idle,work,close"

LIVES = {
    "life": [
        "open,work,burst,idle,work,compact,work,close,open,work,purge,compact,snapshot,work,burst," + AFTER_SNAPSHOT
    ],
    "long": [",".join(["open", *["work"] * 16, "close"])],
    "short": ["open,work,burst,idle,burst,work,close"],
    "kills": ["open,work,idle,compact,forever", "open,work,forever", "open,work,compact,work,close"],
}
"""What the processes do, one behind the other; those that go on forever are killed as they sync something."""

AGAIN = "open,work,compact,idle,work,close"
"""What is done with a store that a power loss left, before the next."""

BEFORE_FAILED_SYNC = "open,forever"
AFTER_FAILED_SYNC = "open,work,compact,idle,work,close"
"""What is done until a sync fails, and what by the next process."""

ALL_LIVES = (
    *(("life", "disk"), ("kills", "disk"), ("life", "disk"), ("long", "disk")),
    *(("life", "os"), ("kills", "os")),
)
"""Those of a campaign, each with its level."""


def record_all(scratch: Path, seed: int) -> list[Recording]:
    lives = [record(scratch, *life, f"{seed}.{number}") for number, life in enumerate(ALL_LIVES)]
    return [*lives, record_after_failed_sync(scratch, f"{seed}.{len(lives)}")]


def record(scratch: Path, name: str, durability: str, seed: str, planted: str = "") -> Recording:
    """One life of a store, of several processes if some are killed. `planted`: a level in place of the one promised."""
    base = scratch / f"record-{name}-{durability}-{seed}"
    (base / "0" / STORE).mkdir(parents=True, mode=0o700)
    tracer = Tracer(base, {"0": {}})
    chance = random.Random(f"{name} {durability} {seed}")
    for number, script in enumerate(LIVES[name]):
        # At level os hardly anything but checkpoints is synced.
        kill = chance.randint(*((20, 45) if durability == "disk" else (5, 15))) if script.endswith("forever") else 0
        command = ["-m", WORKLOAD, str(base / "0"), planted or durability, "first", f"{seed} {number}", script]
        run_traced(command, base / "trace", kill)
        tracer.read(base / "trace")
    made = tracer.places["0"].recording(f"{name} {durability} {seed}", durability)
    shutil.rmtree(base)
    return made


def record_after_failed_sync(scratch: Path, seed: str) -> Recording:
    """The next life of a store whose WALs could not be synced: the processes see in them what the disk has not, and a
    sync puts nothing of it there that was not written again."""
    base = scratch / f"failed-sync-{seed}"
    (base / "0" / STORE).mkdir(parents=True, mode=0o700)
    tracer = Tracer(base, {"0": {}})
    command = ["-m", WORKLOAD, str(base / "0"), "disk", "first"]
    run_traced([*command, f"{seed} before", BEFORE_FAILED_SYNC], base / "trace", random.Random(seed).randint(13, 18))
    tracer.read(base / "trace")
    first = tracer.places["0"]
    tracer = Tracer(base, {"0": _without_failed_syncs(first)})
    run_traced([*command, f"{seed} after", AFTER_FAILED_SYNC], base / "trace")
    tracer.read(base / "trace")
    said = tuple(each for each in first.operations if isinstance(each, Note))
    made = tracer.places["0"].recording(f"failed sync {seed}", "disk", said)
    shutil.rmtree(base)
    return made


def _without_failed_syncs(place: Place) -> Image:
    """What the disk has of a folder, if nothing more of a WAL can be put there."""
    disk = Disk(Recording("", "disk", place.before, place.files, place.operations))
    for operation in place.operations:
        disk.take(operation)
    safe, seen = disk.left_by(NOTHING), read_image(place.folder)
    return {path: safe.get(path, b"") if path.endswith("-wal") else content for path, content in seen.items()}


class Left(NamedTuple):
    """A folder after a power loss, and what had been said by then."""

    name: str
    durability: str
    image: Image
    said: tuple[Note, ...]


def record_again(scratch: Path, left: Sequence[Left], seed: str) -> list[Recording]:
    """The opening of stores that a power loss left, and some work on them, by one process."""
    base = scratch / "again"
    shutil.rmtree(base, ignore_errors=True)
    for number, each in enumerate(left):
        lay_out(each.image, base / str(number) / STORE)
        (base / str(number) / NOTES).write_bytes(b"".join(map(encoded, each.said)))
    tracer = Tracer(base, {str(number): each.image for number, each in enumerate(left)})
    folders = ",".join(str(base / name) for name in tracer.places)
    run_traced(["-m", WORKLOAD, folders, left[0].durability, "second", seed, AGAIN], base / "trace")
    tracer.read(base / "trace")
    places = zip(tracer.places.values(), left, strict=True)
    made = [place.recording(f"{each.name}, again", each.durability, each.said) for place, each in places]
    shutil.rmtree(base)
    return made
