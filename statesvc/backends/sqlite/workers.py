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
from typing import Any, TypeVar

import apsw

from .files import unreadable
from .state import StateReader

READERS = 2
"""Threads for queries: as many as the cores of a small host."""

Found = TypeVar("Found")


class Worker:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            try:
                future.set_result(task())
            except BaseException as problem:  # noqa: BLE001 - it belongs to whoever waits for the future
                future.set_exception(problem)

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()


class ReaderPool:
    """Threads that read the state, each through a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._mine = threading.local()
        # Opened now: when every descriptor is taken by clients it would be too late.
        self._path = path
        self._all = [StateReader(path) for _ in range(READERS)]
        self._free = list(self._all)
        self._threads = ThreadPoolExecutor(READERS, "statesvc-read", initializer=self._take_one)

    async def run(self, read: Callable[[StateReader], Found]) -> Found:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)
        except apsw.Error as problem:
            raise unreadable(self._path, problem) from None

    def _read(self, read: Callable[[StateReader], Found]) -> Found:
        reader: StateReader = self._mine.reader
        return read(reader)

    def _take_one(self) -> None:
        self._mine.reader = self._free.pop()

    def close(self) -> None:
        self._threads.shutdown()
        for reader in self._all:
            reader.close()
