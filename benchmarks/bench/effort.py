"""How much of the time the load generator itself was at work while a clock ran. The rest is what it waited for.

Owns that one number. Must not know what is measured. Where it is high, the client is what limits the figure beside it,
not the server.
"""

from __future__ import annotations

import time
from typing import Self


class Effort:
    """Processor time of this process beside the time that passed, over all blocks since it was last asked for."""

    def __init__(self) -> None:
        self._passed = self._worked = 0.0

    def __enter__(self) -> Self:
        self._passed -= time.perf_counter()
        self._worked -= time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._worked += time.process_time()
        self._passed += time.perf_counter()

    def taken(self) -> float | None:
        """The share, and begin anew; None when no clock ran."""
        passed, worked = self._passed, self._worked
        self._passed = self._worked = 0.0
        return worked / passed if passed > 0 else None


OWN = Effort()
"""Of this process. Clocks run inside it: `with OWN:`."""
