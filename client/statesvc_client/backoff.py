"""Back-off with full jitter: how long to wait before the next try.

Owns the growth and the cap. Must not know what is tried; randomness comes in from above.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Each failure doubles the range the wait is drawn from; a success starts over."""

    def __init__(self, base: float, cap: float, draw: Callable[[], float] = random.random) -> None:
        self.base = base
        self.cap = cap
        self._draw = draw
        self._range = base

    def next(self) -> float:
        """Seconds to wait now. Drawn from the whole range, so that many clients do not come back together."""
        wait = self._draw() * self._range
        self._range = min(self.cap, self._range * 2)
        return wait

    def reset(self) -> None:
        self._range = self.base
