"""A proxy between a daemon and its server that can be away, hang, or swallow what the server answers.

Owns connections and what passes through them, in a thread of its own, so that tests that block can use it. Must not
know what the bytes mean: who is on the other end of a connection is told by `side`, which is given its first bytes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Self, TypeVar

from tests.listening import Listener

SECONDS = 30.0
CHUNK_BYTES = 65536

Mode = Literal["pass", "hang", "swallow"]
"""`hang`: nothing comes through in either direction, and connections stand. `swallow`: only answers are lost."""

T = TypeVar("T")


class Proxy:
    """Listens on a port of its own and passes everything on to `port`."""

    def __init__(self, port: int, side: Callable[[bytes], str] = lambda _: "") -> None:
        """`side` names who speaks on a connection, so that a hang can be for some of them."""
        self._behind = port
        self._side = side
        self.port = 0
        self.swallowed = 0
        """Bytes of answers that never arrived."""
        self._mode: Mode = "pass"
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = Listener(self._accepted)
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._delay = 0.0
        self._hung: frozenset[str] = frozenset()
        """Sides for which nothing comes through; none: for all of them."""
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.calm()
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- trouble -----------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Nobody listens any more, and every connection is cut."""
        self._do(self._close())

    def come_back(self) -> None:
        """At the same address."""
        self._do(self._listen())

    def cut(self) -> None:
        """Every connection ends; new ones are welcome."""
        self._do(self._cut())

    def hang(self, *sides: str) -> None:
        """For those sides alone, or for everybody."""
        self._do(self._set("hang", frozenset(sides)))

    def swallow(self) -> None:
        self._do(self._set("swallow"))

    def slow(self, seconds: float) -> None:
        """Everything takes that much longer, each way."""
        self._delay = seconds

    def calm(self) -> None:
        """What was held back by a hang goes on its way; what was swallowed never comes."""
        self._do(self._set("pass"))

    # --- in its thread -----------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _set(self, mode: Mode, hung: frozenset[str] = frozenset()) -> None:
        self._mode, self._hung, self._delay = mode, hung, 0.0
        if mode == "hang":
            self._open.clear()
        else:
            self._open.set()

    async def _listen(self) -> None:
        self.port = self._listener.open(self.port)

    def _accepted(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)

    async def _close(self) -> None:
        await self._listener.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._keep(asyncio.current_task())
        try:
            behind = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        first = asyncio.get_running_loop().create_future()
        for source, sink, answers in ((reader, behind[1], False), (behind[0], writer, True)):
            self._keep(asyncio.create_task(self._pass(source, sink, first, answers=answers)))

    def _keep(self, task: asyncio.Task[None] | None) -> None:
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, side: asyncio.Future[str], *, answers: bool
    ) -> None:
        self._writers.add(sink)
        try:
            while data := await source.read(CHUNK_BYTES):
                if not answers and not side.done():
                    side.set_result(self._side(data))
                await self._lets_through(side)
                await asyncio.sleep(self._delay)
                if answers and self._mode == "swallow":
                    self.swallowed += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()

    async def _lets_through(self, side: asyncio.Future[str]) -> None:
        while not self._open.is_set() and (not self._hung or (side.done() and side.result() in self._hung)):
            await self._open.wait()
