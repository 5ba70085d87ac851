"""Work that blocks, done beside the event loop on a thread of its own.

Owns that one thread. Must not know what the work is. Not the loop's executor: that one refuses work while the program
ends, and that is when a daemon is stopped and a spool synced for the last time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


async def on_a_thread(work: Callable[[], object]) -> None:
    """Return when the work is done, or raise what it raised. Given up by its caller, the work still ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        problem: BaseException | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - it is raised where it was asked for
            problem = raised
        try:
            loop.call_soon_threadsafe(_settle, done, problem)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            pass

    thread = threading.Thread(target=run, name="statesvc-work", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending and starts no thread: better late than never
        work()
        return
    await done


def _settle(done: asyncio.Future[None], problem: BaseException | None) -> None:
    if done.done():
        return
    if problem is None:
        done.set_result(None)
    else:
        done.set_exception(problem)
