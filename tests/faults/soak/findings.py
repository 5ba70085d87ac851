"""What was done and what went wrong, as far as it must be remembered for hours: counts, and a few words.

Owns the tally that everybody who works adds to. Must not know who they are. What grows with the time is counted, not
kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.fleet.lines import Told

MOST_WORDS = 100
MOST_ALIKE = 5
"""What is kept to be read, in all and of those that begin alike; the rest is counted."""

ALIKE = 30
"""Letters by which two are alike."""


@dataclass
class Tally:
    """Everything that is added up over a run."""

    operations: Counter[str] = field(default_factory=Counter)
    """By op, what was answered in the end."""
    heard: Counter[str] = field(default_factory=Counter)
    """By code, every answer, those to tries that were made again included."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind, what was done to the daemon."""
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    words: list[str] = field(default_factory=list)
    _told: int = 0
    _seconds: list[float] = field(default_factory=list, repr=False)

    def note(self, op: str, told: Told) -> None:
        self.operations[op] += 1
        self._seconds.append(told.seconds)
        if told.outcome == "unknown":
            self.say_wrong(f"{op}: its fate was never known: {told.reply}")

    def latencies(self) -> list[float]:
        """Seconds each request took since this was last asked for."""
        seconds, self._seconds = self._seconds, []
        return seconds

    def news(self) -> list[str]:
        """What was said of things that must not be since this was last asked for."""
        news, self._told = self.words[self._told :], len(self.words)
        return news

    # --- what must not be --------------------------------------------------------------------------------------------

    def say_lost(self, words: str) -> None:
        self.lost += 1
        self._keep(f"lost: {words}")

    def say_twice(self, words: str) -> None:
        self.twice += 1
        self._keep(f"twice: {words}")

    def say_wrong(self, words: str) -> None:
        self.wrong += 1
        self._keep(f"wrong: {words}")

    def _keep(self, words: str) -> None:
        alike = sum(kept.startswith(words[:ALIKE]) for kept in self.words)
        if len(self.words) < MOST_WORDS and alike < MOST_ALIKE:
            self.words.append(words[:2000])
