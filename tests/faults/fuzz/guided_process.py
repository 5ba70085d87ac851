"""The process that a coverage-guided fuzzer takes over: the daemon without its socket, every branch of it watched.

    python -m tests.faults.fuzz.guided_process OPTIONS-OF-LIBFUZZER FOLDER...

Owns how an input becomes a connection. Must not know what a reply has to be. An input is a plain stream of bytes, as a
client would send it; how it is cut follows from the bytes themselves, so that a kept input does the same each time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import zlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

RENEWED_INPUTS = 5000
"""After so many inputs everything is replaced by an empty snapshot."""

CANNOT = 2
"""There is no atheris here."""

Result = TypeVar("Result")


def main() -> int:
    try:
        import atheris  # type: ignore[import-untyped]
    except ImportError:
        print("atheris is not installed; .ci/requirements-fuzz.txt has it", file=sys.stderr)
        return CANNOT
    # What is imported in here is watched.
    with atheris.instrument_imports(include=["statesvc", "statesvc_client"], enable_loader_override=False):
        from . import inside  # noqa: F401 - and with it the whole daemon
    with tempfile.TemporaryDirectory(prefix="guided-") as folder:
        # A merge starts this program again, by the words it was started with.
        words = f"{sys.executable} -m tests.faults.fuzz.guided_process"
        atheris.Setup([words, *sys.argv[1:]], Fuzzed(Path(folder)).take)
        atheris.Fuzz()
    return 0


class Fuzzed:
    """A daemon on a loop that turns only while an input is fed."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._inputs = 0
        self._run(self._start(folder))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

    async def _start(self, folder: Path) -> None:
        from .inside import GoodClient
        from .judging import Exchange
        from .target import serving

        self._serving = serving("memory", folder)
        self._target = await self._serving.__aenter__()
        self._exchange = Exchange(self._target.limits)
        self._good = GoodClient(self._target)
        await self._good.introduce()

    def take(self, stream: bytes) -> None:
        """One input; raises what it broke."""
        self._run(self._one(stream))

    async def _one(self, stream: bytes) -> None:
        from .inside import judged

        await judged(self._target, self._exchange, cut_by_itself(stream))
        self._inputs += 1
        if self._inputs % 64 == 0:
            await self._good.go_on()
        if self._inputs % RENEWED_INPUTS == 0:
            await self._good.empty()


def cut_by_itself(stream: bytes) -> Any:
    """The stream in pieces, its end and who sends it, all as its checksum says."""
    from .inputs import cut
    from .target import Input

    dice = zlib.crc32(stream)
    places = [dice % len(stream), (dice >> 8) % len(stream)] if stream and dice % 4 == 0 else []
    return Input(cut(stream, places), "eof" if dice % 16 == 1 else "answered", admin=dice % 2 == 0)


if __name__ == "__main__":
    sys.exit(main())
