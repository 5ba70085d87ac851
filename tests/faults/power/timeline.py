"""What a store must and may hold: every step that was begun, what it builds on, and which of them somebody knows of.

Owns the promise. Must not know disks or engines.

Steps form a tree: one that was cut off by a crash may not have happened, and the next one builds on what was found.
At level `disk` everything somebody was told of is there, in the epoch it was told in. At level `os` a power loss may
take what was told, from the end on, but then the epoch is another. What was put onto the disk stays at both.
"""

from __future__ import annotations

from statesvc.backends.port import REMOVED, Key, Row

from .operations import Begun, Epoch, Kept, Operation, Phase, Rows, Told

Content = dict[Key, Row]

NOTHING_YET = -1
"""The step before any: there is no store, or a new one."""


class Broken(Exception):
    """A promise was broken."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Step:
    """The store after a commit or a restore."""

    def __init__(self, begun: Begun, base: Content) -> None:
        self.base = begun.base
        self.epoch = begun.epoch
        self.position = begun.position
        self.whole = begun.whole
        self.content: Content = {} if begun.whole else dict(base)
        self.rows: list[Row] = []
        self.take(begun.rows)

    def take(self, rows: list[Row]) -> None:
        self.rows += rows
        for row in rows:
            if row.deleted == REMOVED:
                self.content.pop(row.key, None)
            else:
                self.content[row.key] = row


class Timeline:
    """Follows what is said in a recording."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.steps: list[Step] = []
        self.told = NOTHING_YET
        self.safe = NOTHING_YET
        self.phase = ""
        self.kept: list[str] = []

    def take(self, note: Operation) -> None:
        match note:
            case Begun():
                base = {} if note.base == NOTHING_YET else self.steps[note.base].content
                self.steps.append(Step(note, base))
            case Rows(rows):
                self.steps[-1].take(rows)
            case Epoch(step, epoch, position):
                self.steps[step].epoch, self.steps[step].position = epoch, position
            case Told(step, safely):
                self.told = step
                if safely or self.durability == "disk":
                    self.safe = step
            case Phase(name):
                self.phase = name
            case Kept(path):
                self.kept.append(path)

    @property
    def under_way(self) -> bool:
        """Something was begun that nobody knows the end of."""
        return len(self.steps) - 1 > self.told

    def find(self, epoch: str, position: int, content: Content) -> int:
        """The step a store is at that was found like this; raises `Broken` when it must not be there."""
        if self.safe == NOTHING_YET and not content and position == 0:
            return NOTHING_YET
        alike = [number for number, step in enumerate(self.steps) if step.position == position]
        alike = [number for number in alike if self.steps[number].content == content]
        if not alike:
            raise Broken(
                "mixture",
                f"at entry {position} it holds something that never was: {self._difference(position, content)}",
            )
        standing = [number for number in alike if self._is_behind(number, self.safe)]
        if not standing:
            raise Broken("loss", f"it is at step {alike[-1]}, but somebody knows of step {self.safe}")
        known = [number for number in standing if self.steps[number].epoch in ("", epoch)]
        if known and (self.durability == "disk" or self._is_behind(known[-1], self.told)):
            return known[-1]
        if self.durability == "disk":
            raise Broken("epoch", f"it is at step {standing[-1]} as it should be, but in another epoch")
        if known:
            raise Broken("untold loss", f"it is at step {known[-1]} and {self.told} was told, in the same epoch")
        return standing[-1]

    def _is_behind(self, step: int, other: int) -> bool:
        """Whether a step is another one, or builds on it."""
        while step > other:
            step = self.steps[step].base
        return step == other

    def _difference(self, position: int, content: Content) -> str:
        nearest = min(self.steps, key=lambda step: abs(step.position - position), default=None)
        expected = {} if nearest is None else nearest.content
        differing = sorted(key for key in {*expected, *content} if expected.get(key) != content.get(key))
        ends = sorted({step.position for step in self.steps})[-5:]
        return (
            f"{len(content)} records, {len(differing)} not as at the nearest step: {differing[:5]}; steps end at {ends}"
        )

    def log_of(self, step: int) -> dict[int, Row]:
        """What the log says at each position, up to a step, back to the last restore."""
        told: dict[int, Row] = {}
        while step != NOTHING_YET and not self.steps[step].whole:
            at = self.steps[step]
            told.update(zip(range(at.position - len(at.rows) + 1, at.position + 1), at.rows, strict=True))
            step = at.base
        return told
