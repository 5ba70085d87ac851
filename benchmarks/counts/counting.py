"""Counts what this thread executes: calls of Python functions, calls into C, bytecodes. Nothing is timed.

Owns the interpreter's hooks while it counts. Must not know what is executed, except that the driver's own files are
left out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

OWN = str(Path(__file__).parent)
"""Code below it feeds the daemon, and is no part of it."""


class Counter:
    """What has been counted so far, over all blocks."""

    def __init__(self) -> None:
        self.calls = 0
        """Of Python functions; going on with a coroutine is one as well."""
        self.c_calls = 0
        self.bytecodes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this block what begins or goes on in it. The collector rests: when it comes is chance."""
        hooks, collected = (sys.getprofile(), sys.gettrace()), gc.isenabled()
        gc.disable()
        sys.setprofile(self._called)
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.setprofile(hooks[0])
            sys.settrace(hooks[1])
            if collected:
                gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_filename.startswith(OWN):
            return
        if event == "call":
            self.calls += 1
        elif event == "c_call":
            self.c_calls += 1

    def _entered(self, frame: FrameType, _event: str, _: Any) -> Any:
        if frame.f_code.co_filename.startswith(OWN):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._executed

    def _executed(self, _frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self.bytecodes += 1
        return self._executed
