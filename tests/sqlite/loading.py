"""A program to be killed: loads records into the store of a folder, up to some change of names or some sync.

python -m tests.sqlite.loading FOLDER CALLS
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from statesvc.backends.port import Row
from tests.engines.rows import row
from tests.sqlite.filling import opened

RECORDS = 60


async def pages() -> AsyncIterator[list[Row]]:
    for begin in range(0, RECORDS, 20):
        yield [row(f"new-{number:02d}", labels=(("new", "yes"),)) for number in range(begin, begin + 20)]


async def main(folder: Path, calls: int) -> None:
    async with opened(folder) as engine:
        die_at_call(calls)
        await engine.load(pages())


def die_at_call(number: int) -> None:
    """End without a trace right before that call, in whichever thread it is made."""
    counter = itertools.count(1)

    def counted(call: Any) -> Any:
        def counting(*args: Any, **options: Any) -> Any:
            if next(counter) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counting

    for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync"):
        setattr(os, name, counted(getattr(os, name)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
