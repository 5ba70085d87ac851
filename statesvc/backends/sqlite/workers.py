"""The engine's threads: one that does one thing after the other, and a few that read.

Owns threads and how work reaches them. Must not know what the work is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import apsw

from statesvc_client.errors import Unavailable

from .files import unreadable

NOT_OPEN = "the store is not open"
"""What those are told who had begun when the store was closed, or another one took its place."""

READERS = 2
"""Threads for reading a file: as many as the cores of a small host."""


class Closable(Protocol):
    def close(self) -> None: ...


Found = TypeVar("Found")
Reader = TypeVar("Reader", bound=Closable)


class Worker:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        if self._is_stopped:
            raise Unavailable(NOT_OPEN)
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    async def run(self, task: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self.submit(task))

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            if not future.set_running_or_notify_cancel():
                continue  # whoever wanted it has gone
            try:
                future.set_result(task())
            except BaseException as problem:  # noqa: BLE001 - it belongs to whoever waits for the future
                future.set_exception(problem)

    def stop(self) -> None:
        self._is_stopped = True
        self._tasks.put(None)
        self._thread.join()


class ReaderPool(Generic[Reader]):
    """Threads that read a file, each through a connection of its own."""

    def __init__(self, path: Path, reader: Callable[[Path], Reader]) -> None:
        self._mine = threading.local()
        # Opened now: when every descriptor is taken by clients it would be too late.
        self._path = path
        self._all = [reader(path) for _ in range(READERS)]
        self._free = list(self._all)
        self._is_closed = False
        self._threads = ThreadPoolExecutor(READERS, "statesvc-read", initializer=self._take_one)

    async def run(self, read: Callable[[Reader], Found]) -> Found:
        if self._is_closed:
            raise Unavailable(NOT_OPEN)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)
        except apsw.Error as problem:
            raise unreadable(self._path, problem) from None

    def _read(self, read: Callable[[Reader], Found]) -> Found:
        reader: Reader = self._mine.reader
        return read(reader)

    def _take_one(self) -> None:
        self._mine.reader = self._free.pop()

    async def close(self) -> None:
        """In a thread: who reads from a disk that does not answer is waited for, and must not hold up the loop."""
        self._is_closed = True
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._threads.shutdown()
        for reader in self._all:
            reader.close()
