"""One blocking conversation with the daemon: connect, say hello, ask, read the answer.

Must not know commands or output. JSON is Python's own here: a person's numbers come back as they were given,
however large, and speed is not the point.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from statesvc_client import wire
from statesvc_client.errors import Denied, Internal, StateError, Unavailable, from_reply

_RECEIVE_BYTES = 256 * 1024

# Above the largest frame a daemon can be configured to send; a daemon is trusted, a wrong socket is not.
_LONGEST_REPLY_BYTES = 1 << 30


Told = Callable[[int, int], None]
"""Hears how much of how much is done."""


def _unheard(_done: int, _total: int) -> None:
    """For work whose progress nobody asked for."""


class Session:
    """A connection on which updates are merge patches, because it said hello.

    Without an introduction it can ask for health alone: a daemon whose engine is away has no greeting to give.
    """

    def __init__(self, path: Path, timeout: float, client: str | None = None, *, introduced: bool = True) -> None:
        self._path = path
        self.timeout = timeout
        self._unread = bytearray()
        self._requests = 0
        self._socket = _connected(path, timeout)
        self.greeting: dict[str, Any] = {}
        if introduced:
            self._introduce(client)

    def _introduce(self, client: str | None) -> None:
        try:
            self.greeting = self.ask("hello", name="statesvc-cli", client=client, protocol=wire.PROTOCOL)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The reply to one request; a reply that says no is raised. Fields that are None are not sent."""
        return self._asked(op, fields, _unheard)

    def ask_for_work(self, op: str, told: Told, **fields: Any) -> dict[str, Any]:
        """The same for long work: until the reply comes, `told` hears how far it is."""
        return self._asked(op, {**fields, "progress": True}, told)

    def follow(self) -> Iterator[dict[str, Any]]:
        """Every line that comes from here on, however long it takes. Raises `Unavailable` when the daemon goes."""
        while True:
            try:
                line = self._next(None)
            except OSError as problem:
                raise Unavailable(f"the connection broke: {problem.strerror}") from None
            yield line

    def _asked(self, op: str, fields: dict[str, Any], told: Told) -> dict[str, Any]:
        self._requests += 1
        request = {"op": op, "requestId": str(self._requests)}
        request.update((name, value) for name, value in fields.items() if value is not None)
        try:
            reply = self._exchange(json.dumps(request, separators=(",", ":")).encode() + b"\n", told)
        except Unavailable as problem:
            problem.outcome = "unknown" if wire.OPS[op].writes else "not_applied"
            raise
        if reply.get("success") is not True:
            raise refusal(reply)
        return reply

    def _exchange(self, line: bytes, told: Told) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout
        try:
            self._send(line, deadline)
            reply = self._next(deadline)
            while isinstance(progress := reply.get("progress"), dict):
                told(progress.get("done", 0), progress.get("total", 0))
                reply = self._next(deadline)
            return reply
        except TimeoutError:
            text = f"no answer from {self._path} within {self.timeout:g} seconds"
            raise Unavailable(text) from None
        except OSError as problem:
            raise Unavailable(f"the connection broke: {problem.strerror}") from None

    def _send(self, line: bytes, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            # A daemon that refuses us says why before it hangs up; that line is still there to be read.
            pass

    def _next(self, deadline: float | None) -> dict[str, Any]:
        return _decoded(self._receive(deadline), self._path)

    def _receive(self, deadline: float | None) -> bytes:
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > _LONGEST_REPLY_BYTES:
                raise Internal(f"{self._path} sends a line without end; is it statesvc?")
            self._socket.settimeout(None if deadline is None else _left(deadline))
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise Unavailable("the daemon closed the connection without an answer")
            self._unread += data
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(path: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except OSError as problem:
        connection.close()
        raise _unreachable(path, problem) from None
    return connection


def _unreachable(path: Path, problem: OSError) -> StateError:
    if problem.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"no permission for {path}; the daemon's access.socket_mode and access.uids decide who may")
    why = problem.strerror or str(problem)
    advice = f"is the daemon running? start it with: statesvc serve --socket {path}"
    return Unavailable(f"cannot connect to {path}: {why}; {advice}")


def _decoded(line: bytes, path: Path) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Internal(f"{path} does not answer in the protocol of statesvc")
    return reply


def refusal(reply: dict[str, Any]) -> StateError:
    """The error a line carries."""
    text = str(reply.get("error") or "the daemon gave no reason")
    record = reply.get("job", reply.get("record"))
    return from_reply(str(reply.get("code", "internal")), text, reply.get("outcome"), record)
