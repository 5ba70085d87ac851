"""A scripted daemon as a process: `fake_daemon.py serve --socket <path> ...`. Says `ended` when it is told to end, and
ends with its parent.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.client.scripted import ScriptedDaemon


def given(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


async def main() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(int(given("--parent-fd")), ended.set)
    daemon = ScriptedDaemon(Path(given("--socket")))
    await daemon.start()
    await ended.wait()
    print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
