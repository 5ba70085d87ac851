"""Lives of stores, recorded: what their processes do, and the same again after a power loss.

Owns which lives there are. Must not know what becomes of the recordings.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .judging import lay_out
from .operations import Image, Note, Recording, encoded
from .tracing import NOTES, STORE, Tracer, run_traced

WORKLOAD = "tests.faults.power.workload"

AFTER_SNAPSHOT = "restore,work,burst,compact,work,idle,work,close"

LIVES = {
    "life": [
        "open,work,burst,idle,work,compact,work,close,open,work,purge,compact,snapshot,work,burst," + AFTER_SNAPSHOT
    ],
    "short": ["open,work,burst,idle,burst,work,close"],
    "kills": ["open,work,idle,compact,forever", "open,work,forever", "open,work,compact,work,close"],
}
"""What the processes do, one behind the other; those that go on forever are killed as they sync something."""

AGAIN = "open,work,compact,idle,work,close"
"""What is done with a store that a power loss left, before the next."""

ALL_LIVES = (("life", "disk"), ("kills", "disk"), ("life", "disk"), ("life", "os"), ("kills", "os"))
"""Those of a campaign, each with its level."""


def record_all(scratch: Path, seed: int) -> list[Recording]:
    return [record(scratch, *life, f"{seed}.{number}") for number, life in enumerate(ALL_LIVES)]


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
