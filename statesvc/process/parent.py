"""Ends a spawned daemon together with the agent that spawned it.

Owns how the parent's death is learned of. Does not know what the daemon does then.

It is a pipe. The agent keeps the write end and passes the read end on (`--parent-fd N`); when the agent dies,
however it dies, the kernel closes the write end and we read end-of-file. It needs no polling, follows the
process and has no race: a parent that died before we looked is end-of-file at once.

Not PR_SET_PDEATHSIG: it fires when the *thread* that spawned us ends, so an agent that spawns from a worker
thread would lose its daemon when that thread is done.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from statesvc.process.errors import BadInheritance

if TYPE_CHECKING:  # asyncio takes tens of milliseconds to import, and the loop comes in from above
    from asyncio import AbstractEventLoop

# Bytes read at once from the pipe; a parent has nothing to say on it, whatever comes is dropped.
_READ_BYTES = 4096


class ParentWatch:
    """An inherited pipe being watched for its end. `stop` forgets it."""

    __slots__ = ("_fd", "_loop", "_on_death")

    def __init__(self, loop: AbstractEventLoop, fd: int, on_death: Callable[[], object]) -> None:
        self._loop = loop
        self._fd = fd
        self._on_death = on_death
        loop.add_reader(fd, self._look)

    def stop(self) -> None:
        """Stop watching and close the descriptor. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _look(self) -> None:
        try:
            said = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""  # a socket reset by its dying owner
        if not said:
            self.stop()
            self._on_death()


def watch_parent(loop: AbstractEventLoop, fd: int, on_death: Callable[[], object]) -> ParentWatch:
    """Call `on_death` once, on the loop, when no writer of the pipe or socket `fd` is left. Owns `fd`."""
    check_watchable(fd)
    os.set_inheritable(fd, False)
    return ParentWatch(loop, fd, on_death)


def check_watchable(fd: int) -> None:
    """BadInheritance unless it is a pipe or a socket. To be asked before we open any ourselves, at the same number."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise BadInheritance(f"descriptor {fd}, meant to tell of the parent's end, is not open") from error
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise BadInheritance(f"descriptor {fd}, meant to tell of the parent's end, is neither pipe nor socket")
