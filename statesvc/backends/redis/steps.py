"""How much to ask for at a time, so that replies stay small whatever is stored.

Owns that estimate. Must not know what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

REPLY_BYTES = 4 * 1024 * 1024
"""About what one reply may hold."""


class Steps:
    """Things are likely to be as large as those before them: few at first, then as many as are likely to fit."""

    def __init__(self, first: int, most: int) -> None:
        self.count = first
        self._most = most

    def note(self, sizes: Iterable[int]) -> None:
        """These were in the newest reply."""
        seen = list(sizes)
        if seen:
            average = sum(seen) // len(seen) + 1
            self.count = max(1, min(self._most, REPLY_BYTES // average))
