"""A daemon without its socket: the real server, store and engine, and connections that are fed bytes by hand.

Owns the transport that stands in for the socket, and how an input is fed and its end awaited. Must not know what is fed
or judge what comes back. Duties come when they are called, so that nothing moves the state but what was fed. Limits are
low, so that small inputs reach them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from statesvc import backends, logs
from statesvc.config import Settings
from statesvc.config.model import Limits
from statesvc.connection import Connection
from statesvc.server import AN_ADMIN, Server
from statesvc.store.writes import Caller

from .judging import Broken, demand

LIMITS = Limits(
    frame_bytes=128 * 1024,
    frame_values=2000,
    depth=64,
    record_bytes=32 * 1024,
    requests_in_flight=64,
    output_bytes=64 * 1024,
    list_limit=100,
    list_default=20,
    watches=8,
    marks_clients=4,
)

PATIENCE_SECONDS = 20.0
"""How long the last reply may take before it counts as missing."""

END = b'{"op":"ping","requestId":"~the end~"}\n'
ENDED = b'{"requestId":"~the end~","success":true}\n'

Ending = Literal["answered", "eof", "hung up", "lost"]
"""How a connection ends: after its last reply, by a client that only stops sending, or is gone, or without a word."""


class Input(NamedTuple):
    """What one connection is fed."""

    pieces: Sequence[bytes]
    ending: Ending = "answered"
    admin: bool = False
    slow: bool = False
    """It takes no replies until everything is sent."""


class Heard(NamedTuple):
    """What one connection was told."""

    lines: list[bytes]
    complete: bool
    """Everything that was fed was answered."""


@cache
def _with_peer() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


@cache
def _without_peer() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    pair[1].close()
    return pair


class Pipe(asyncio.Transport):
    """Takes what the daemon sends; says when a chosen line has come, or when nothing more will."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self.said: list[bytes] = []
        self.is_over = False
        self.is_lost = False
        self.has_ended = False
        """The last request was answered."""
        self.takes = True
        self.has_peer = True
        self._high = 0
        self._untaken = 0
        self._reading = True
        self._changed: asyncio.Future[None] | None = None

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def changed(self, seconds: float) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._changed], timeout=seconds)

    @property
    def may_be_fed(self) -> bool:
        return self._reading and not self.is_over

    @property
    def goes_on(self) -> bool:
        """There is nothing to wait for before the next piece, if only because none is wanted."""
        return self.may_be_fed or self.is_done

    @property
    def is_done(self) -> bool:
        """Nothing more is to come."""
        return self.is_over or self.has_ended

    # --- what the daemon calls -------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.has_peer:  # else nobody hears it, and of reads there is nothing to hear
            self.said.append(bytes(data))
        if ENDED in data:
            self.has_ended = True
        if not self.takes:
            before, self._untaken = self._untaken, self._untaken + len(data)
            if before <= self._high < self._untaken:
                asyncio.get_running_loop().call_soon(self._stall)
        self._tell()

    def _stall(self) -> None:
        if not self.takes and self.connection is not None and not self.is_lost:
            self.connection.pause_writing()

    def take_all(self) -> None:
        """Read what was sent, from here on at once."""
        stalled = self._untaken > self._high
        self.takes, self._untaken = True, 0
        if stalled and self.connection is not None and not self.is_lost and not self.connection._writable:
            self.connection.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._tell()

    def is_closing(self) -> bool:
        return self.is_over

    def write_eof(self) -> None:
        self.is_over = True
        self._tell()

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """A socket whose other side is there, or is not."""
        return (_with_peer() if self.has_peer else _without_peer())[0] if name == "socket" else default

    def lose(self) -> None:
        """The connection is gone; the daemon hears of it in the loop's next turn, as from a socket."""
        self.is_over = True
        if not self.is_lost and self.connection is not None:
            self.is_lost = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)
        self._tell()


class Target:
    """One daemon for many inputs."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.store = server._store
        self.limits = server._limits
        self.problems: list[str] = []
        """Exceptions that nobody caught, and errors that were logged."""

    @property
    def watchers(self) -> int:
        return len(self.server._connections)

    def connect(self, *, admin: bool = False) -> tuple[Connection, Pipe]:
        caller = AN_ADMIN if admin else Caller()
        server = self.server
        connection = Connection(server._dispatcher, server._bounds, server._connections.discard, caller)
        pipe = Pipe()
        pipe.connection = connection
        server._connections.add(connection)
        connection.connection_made(pipe)
        return connection, pipe

    async def position(self) -> object:
        await self.store.commits.settled()
        return await self.store.engine.position()

    async def feed(self, given: Input) -> Heard:
        """Feed one connection from its first byte to its end."""
        connection, pipe = self.connect(admin=given.admin)
        pipe.takes = not given.slow
        try:
            complete = await self._fed(given, connection, pipe)
        finally:
            pipe.lose()
            await _turns(2)
            if connection._task is not None:
                # What it began goes on without it, and must not be taken for what the next one did.
                await asyncio.wait([connection._task], timeout=PATIENCE_SECONDS)
        return Heard(_lines(pipe.said), complete)

    async def _fed(self, given: Input, connection: Connection, pipe: Pipe) -> bool:
        """Feed, and wait for its end; whether every frame was answered."""
        pieces = [*given.pieces, b"\n" + END] if given.ending == "answered" else given.pieces
        for piece in pieces:
            if not pipe.may_be_fed:
                await self._until(lambda: pipe.goes_on, pipe, connection)
            if not pipe.goes_on:
                return False  # it waits on purpose, and takes no more until then
            if not pipe.may_be_fed:
                break
            connection.data_received(piece)
        return await self._ended(given.ending, connection, pipe)

    async def _ended(self, ending: Ending, connection: Connection, pipe: Pipe) -> bool:
        """Whether every frame was answered."""
        if ending == "lost" or pipe.is_over:
            return pipe.is_over and ending != "lost"
        if ending != "answered":
            pipe.has_peer = ending == "eof"
            connection.eof_received()
        if not pipe.takes:
            await _turns(3)
            pipe.take_all()
        await self._until(lambda: pipe.is_done, pipe, connection)
        return pipe.is_done

    async def _until(self, true: Any, pipe: Pipe, connection: Connection) -> None:
        """Let the daemon work until it is; or until it waits on purpose, which is withdrawn with its connection."""
        for _ in range(64):
            if true():
                return
            await asyncio.sleep(0)
        pipe.take_all()
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        session = connection._session
        while not true() and not (session.lingers if connection._ending else session._waits):
            late = asyncio.get_running_loop().time() >= deadline
            demand(not late, f"no answer, and nothing that is waited for: {_standing(connection) if late else ''}")
            await pipe.changed(0.02)

    async def ask(self, connection: Connection, pipe: Pipe, **request: Any) -> dict[str, Any]:
        """A request of a good client, and its reply."""
        pipe.said.clear()
        connection.data_received(msgspec.json.encode(request) + b"\n")
        await self._until(lambda: pipe.said and pipe.said[-1].endswith(b"\n"), pipe, connection)
        lines = _lines(pipe.said)
        demand(len(lines) == 1, f"{len(lines)} lines to a good client's {request['op']}")
        return msgspec.json.decode(lines[0])

    def check_calm(self) -> None:
        """Nothing was thrown or logged that a client must not be able to cause."""
        if self.problems:
            raise Broken("; ".join(self.problems))


def _standing(connection: Connection) -> str:
    """How far a connection is that does not go on."""
    under_way = [repr(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    congested = connection._dispatcher.congestion
    return f"line {connection._line}, frames {connection._frames}, congested {congested}, under way {under_way}"[:3000]


def _lines(said: list[bytes]) -> list[bytes]:
    whole = b"".join(said)
    demand(not whole or whole.endswith(b"\n"), "a line without its end", whole[-200:])
    return [line + b"\n" for line in whole.split(b"\n")[:-1] if line + b"\n" != ENDED]


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(backend: str, folder: Path, limits: Limits = LIMITS) -> AsyncIterator[Target]:
    """A daemon with an empty store that hears whatever goes wrong in it."""
    settings = Settings(backend=backend, socket=folder / "s", data=folder / "data", limits=limits)
    server = Server(settings, backends.make(settings))
    target = Target(server)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: target.problems.append(_shown(told)))
    before, logs._write = logs._write, lambda line: _note(target, line)
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: target.problems.append(f"dropped: {told.exc_value!r}")
    server._engine.own()
    try:
        await server._is_decided()
        yield target
        for connection in list(server._connections):
            connection.abort()
        await _turns(3)
        await server._close()
        target.check_calm()
    finally:
        logs._write, sys.unraisablehook = before, hook
        loop.set_exception_handler(None)


def _note(target: Target, line: Any) -> None:
    if line.level == "error" or "exc_info" in line.values:
        target.problems.append(f"logged: {line.event} {_told(line.values)}")


def _told(values: dict[str, Any]) -> str:
    problem = values.get("exc_info")
    return "".join(traceback.format_exception(problem)) if isinstance(problem, BaseException) else repr(values)


def _shown(told: dict[str, Any]) -> str:
    return f"the loop: {told.get('message')} {_told({'exc_info': told.get('exception')})}"
