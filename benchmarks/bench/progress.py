"""What is shown while it runs, on standard error: one line that changes on a terminal; elsewhere a line a measure,
and one now and then while a measure takes long."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from .shape import Case, Measure

QUIET_SECONDS = 15.0
"""Where lines cannot be changed, nothing is said for so long."""


class Progress:
    """Says what is under way, and for how long."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._changes = self._stream.isatty()
        self._began = time.monotonic()
        self._since = self._said = self._began
        self._head = ""

    def begin(self, number: int, count: int, measure: Measure) -> None:
        self._head = f"[{number:2}/{count}] {measure.name:<12} {measure.title}"
        self._since = time.monotonic()
        self._show("")

    def step(self, round: int, case: Case) -> None:
        self._show(f"round {round}: {case.work}, {case.who}, {case.at}")

    def tell(self, text: str) -> None:
        """Something else that takes a while."""
        self._show(text)

    def tell_failure(self, text: str) -> None:
        """It stays to be read, and the run goes on."""
        print(f"{self._erase()}could not be measured: {text}", file=self._stream, flush=True)

    def end(self) -> None:
        now = time.monotonic()
        took = f"{now - self._since:5.1f} s, {now - self._began:5.0f} s in all"
        print(f"{self._erase()}{self._head}: {took}", file=self._stream, flush=True)
        self._said = now

    def _show(self, text: str) -> None:
        if self._changes:
            print(f"{self._erase()}{self._head}  {text}"[:150], end="", file=self._stream, flush=True)
        elif (now := time.monotonic()) - self._said > QUIET_SECONDS:
            print(f"{self._head}  {text}", file=self._stream, flush=True)
            self._said = now

    def _erase(self) -> str:
        return "\r\x1b[K" if self._changes else ""
