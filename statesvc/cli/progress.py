"""How far long work is, on stderr: a bar on a terminal, lines elsewhere. Must not know what the work is."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

import click

_BAR_CHARS = 30
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 5.0


class Meter:
    """Told how much is done, shows it; gone without a trace from a terminal when the work is over."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._on_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        # The bar is drawn at once; a line is worth it only once people begin to wonder.
        self._next = self._began if self._on_terminal else self._began + _LINE_SECONDS
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)

    def told(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        rate = done / max(now - self._began, 0.001)
        amount = f"{_amount(done, total)} {self._unit}, {rate:,.0f}/s"
        if self._on_terminal:
            click.echo(f"\r\x1b[K{self._what}  {_bar(done, total)}{amount}", nl=False, err=True)
            self._drawn = True
            self._next = now + _REDRAW_SECONDS
        else:
            click.echo(f"{self._what}: {amount}", err=True)
            self._next = now + _LINE_SECONDS


def _bar(done: int, total: int) -> str:
    """Empty when nobody knows how much there is."""
    if total <= 0:
        return ""
    filled = _BAR_CHARS * min(done, total) // total
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}]  "


def _amount(done: int, total: int) -> str:
    return f"{100 * min(done, total) // total}%  {done:,} of {total:,}" if total > 0 else f"{done:,}"
