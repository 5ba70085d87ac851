"""What tests leave behind outside of their process, and how it is taken away: after a test, or when all have run.

Must not know what it is. Loaded by every run, so it loads nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

of_the_test = ExitStack()
"""What the running test made on a server."""

of_the_run = ExitStack()
"""Servers that were started, and connections to them."""

forget: list[Callable[[], None]] = []
"""Told when all have run: what was kept for the next test is of no use any more."""


def tidy() -> None:
    """Behind a test: each thing is taken away, whatever became of the others."""
    of_the_test.pop_all().close()


def end() -> None:
    """Behind the last test."""
    tidy()
    of_the_run.pop_all().close()
    for each in forget:
        each()
