"""The second daemon, which is killed again and again: its process is not what is measured, its data are.

Owns one round of writing, killing and looking. Must not know the first daemon.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.daemon.harness import Daemon
from tests.daemon.load import Writer, counts, writing
from tests.faults.soak.findings import Tally

WRITERS = 3
LONGEST = 1500
"""Acknowledgements of one writer before a kill, at most."""


class Victim:
    """A daemon, its writers, and what they know of it."""

    def __init__(self, folder: Path, tally: Tally, seed: int) -> None:
        self._tally = tally
        self._chance = random.Random(f"victim/{seed}")
        self._daemon = Daemon(folder)
        self._writers = [
            Writer(self._daemon.socket, f"w{number}", ack="last" if number % 2 else "each") for number in range(WRITERS)
        ]

    @property
    def acknowledged(self) -> int:
        return sum(writer.acknowledged for writer in self._writers)

    @property
    def resent(self) -> int:
        return sum(writer.resent for writer in self._writers)

    def round(self) -> None:
        """Start, look at everything, write, and be killed in the middle of it. Blocks."""
        with self._daemon.serving():
            self._look()
            with writing(self._writers, self._chance.randrange(1, LONGEST), wait_for=self._writers[:1]):
                self._daemon.kill()
        self._tally.faults["second daemon killed"] += 1

    def end(self) -> None:
        """Start once more, have everything answered, and look whether it is all there."""
        with self._daemon.serving():
            for writer in self._writers:
                writer.finish()
            self._look()
            if code := self._daemon.stop():
                self._tally.say_wrong(f"the second daemon ended with {code}: {self._daemon.stderr[-2000:]}")

    def _look(self) -> None:
        with self._daemon.connect() as client:
            for writer in self._writers:
                for problem in writer.missing_or_torn(client):
                    self._tally.say_lost(problem)
                for problem in writer.problems:
                    self._tally.say_wrong(problem)
                writer.problems.clear()
            for count in counts(client, self._writers):
                if count.total < count.acked:
                    self._tally.say_lost(f"{count}")
                if count.total > count.sent:
                    self._tally.say_twice(f"{count}")
