"""A proxy before the daemon's socket that doubles, delays and cuts off frames, and replays them across reconnects.

Owns connections and lines on their way. Must not know what a write does; of a line it reads who says hello, no more.

What one client sent stays in its order: a stream has one, and no gaps. But before a client is let in again, a part of
what was answered long ago, or all that was not with what never got through, may come to the daemon on a connection
between the two.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict, deque
from pathlib import Path
from random import Random
from typing import Self

from tests.daemon.harness import SECONDS

LINE_BYTES = 1 << 20
ENOUGH_CUTS = 3


class ReplayingProxy:
    """Listens on a socket of its own, in a thread of its own, and passes lines on to `behind`."""

    def __init__(self, path: Path, behind: Path, seed: int) -> None:
        self.path = path
        self._behind = str(behind)
        self._random = Random(seed)
        self.calm = False
        """From here on it passes everything on as it came."""
        self.doubled = self.cut_off = self.replayed = 0
        self._sent: defaultdict[str, list[bytes]] = defaultdict(list)
        """All that each client sent behind its hello, in its order."""
        self._answered: defaultdict[str, int] = defaultdict(int)
        """The highest number that each was told of."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_unix_server(self._accepted, str(self.path), limit=LINE_BYTES)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        daemon: asyncio.StreamWriter | None = None
        answers: asyncio.Task[None] | None = None
        try:
            hello = await reader.readline()
            client = json.loads(hello or b"{}").get("client") or ""
            if client and self._happens(0.7):
                await self._replay(hello, client)
            from_daemon, daemon = await asyncio.open_unix_connection(self._behind, limit=LINE_BYTES)
            ours: deque[bool] = deque()
            answers = asyncio.create_task(self._pass_answers(from_daemon, writer, ours, client))
            self._pass(hello, daemon, ours)
            await self._pass_lines(reader, daemon, ours, self._sent[client] if client else None)
        except (OSError, ValueError):
            pass
        finally:
            if answers is not None:
                answers.cancel()
            for each in (writer, daemon):
                if each is not None:
                    each.transport.abort()

    async def _pass_lines(
        self, reader: asyncio.StreamReader, daemon: asyncio.StreamWriter, ours: deque[bool], sent: list[bytes] | None
    ) -> None:
        """`sent` is None for a connection nobody could send again on: that one is left alone."""
        while line := await reader.readline():
            if sent is not None:
                sent.append(line)
                if self._happens(0.01):
                    self.cut_off += 1
                    return
            self._pass(line, daemon, ours)
            if sent is not None and self._happens(0.1):
                self.doubled += 1
                self._pass(line, daemon, ours, our_own=True)
            if sent is not None and self._happens(0.02):
                await asyncio.sleep(self._random.random() * 0.01)
            if sent is not None and self._happens(0.01):
                self.cut_off += 1
                return
            await daemon.drain()

    def _pass(self, line: bytes, daemon: asyncio.StreamWriter, ours: deque[bool], *, our_own: bool = False) -> None:
        ours.append(our_own)
        daemon.write(line)

    async def _pass_answers(
        self, daemon: asyncio.StreamReader, writer: asyncio.StreamWriter, ours: deque[bool], client: str
    ) -> None:
        """An answer to a line that we doubled is not the client's. Answers to runs of writes belong to nobody."""
        try:
            while line := await daemon.readline():
                if b'"acked"' not in line and b'"event"' not in line and ours and ours.popleft():
                    continue
                self._note_answer(line, client)
                writer.write(line)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()

    async def _replay(self, hello: bytes, client: str) -> None:
        """Send a part of what the client sent before, once more, and wait until the daemon has taken it."""
        sent, answered = self._sent[client], self._answered[client]
        if not sent:
            return
        open_from = next((place for place, line in enumerate(sent) if _seq(line) > answered), len(sent))
        part = sent[open_from:]
        if open_from and self._happens(0.5):
            first = self._random.randrange(open_from)
            part = sent[first : min(first + 50, open_from)]
        reader, writer = await asyncio.open_unix_connection(self._behind, limit=LINE_BYTES)
        self.replayed += len(part)
        writer.write(b"".join((hello, *part, b'{"op":"ping","requestId":"over"}\n')))
        while line := await reader.readline():
            if b'"over"' in line:
                break
        writer.transport.abort()

    def _note_answer(self, line: bytes, client: str) -> None:
        told = json.loads(line)
        number = told.get("acked") or told.get("requestId")
        if told.get("success") and isinstance(number, int):
            self._answered[client] = max(self._answered[client], number)

    @property
    def has_meddled(self) -> bool:
        """In each of its ways, and with more than the first connection."""
        return self.cut_off >= ENOUGH_CUTS and self.doubled > 0 and self.replayed > 0

    def _happens(self, probability: float) -> bool:
        return not self.calm and self._random.random() < probability


def _seq(line: bytes) -> int:
    return int(json.loads(line).get("seq") or 0)
