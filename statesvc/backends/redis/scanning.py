"""Where a scan of a hash stands, and in which server process.

Owns when a scan begins again. Must not know what is scanned, or how it is asked for. Each process has an order of its
own for what is in a hash: with a cursor that another one gave out, it would pass over rows without a word. A scan that
begins again names rows it has named before: whoever scans remembers them.
"""

from __future__ import annotations

from statesvc_client.errors import Unavailable

from .facts import read_info
from .scripting import Command

START = b"0"
"""The cursor at the beginning, and again at the end."""

BEGINNINGS = 8
"""One more for each server that takes over. Where that happens again and again, nobody comes to an end."""

WHO_ANSWERS: Command = ("INFO", "server")
"""Goes with each step, on its connection."""


def process_in(told: bytes) -> str:
    """The run id in what `WHO_ANSWERS` was answered."""
    return read_info(told).get("run_id", "")


class Scan:
    """One scan: from beginning to end in one process, with as many beginnings as that takes."""

    def __init__(self) -> None:
        self.cursor = START
        self.is_over = False
        self._process = ""
        self._beginnings = 0

    def stepped(self, process: str, cursor: bytes) -> None:
        """A step from where it stood was answered, by this process, with this cursor."""
        if self.cursor != START and process != self._process:
            self.cursor = START
            return
        if self.cursor == START:
            self._begin_in(process)
        self.cursor, self.is_over = cursor, cursor == START

    def _begin_in(self, process: str) -> None:
        if self._beginnings == BEGINNINGS:
            raise Unavailable(f"redis was replaced {BEGINNINGS} times while a kind was being read; begin again")
        self._process = process
        self._beginnings += 1
