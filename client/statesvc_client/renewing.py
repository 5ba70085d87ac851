"""Renewal: a thread with a connection of its own keeps every lease of a store, whatever the event loop is doing.

Owns when a lease is renewed and noticing that it is lost: because the daemon says so, because the store began a new
life, or because its time is over. Must not know what the leases are for. A renewal carries no number: sent twice it is
the same.

Nothing here waits for an answer: requests go out as leases fall due, answers are taken as they come, and the thread
sleeps until the next moment anything has to happen. A daemon that hangs cannot keep a holder from learning in time that
its lease is over.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Iterable
from typing import Any

from . import wire
from .backoff import Backoff
from .connection import PeerCheck, listener_of
from .errors import StateError
from .framing import LineSplitter
from .greeting import decoded, error_of, hello
from .lease import Lease, clock
from .options import Options
from .wire import Received
from .writes import named

log = logging.getLogger("statesvc_client")

RENEWALS_PER_TTL = 3
"""Two may be lost before the lease is."""

RETRY_SECONDS = (0.05, 1.0)
"""The range of the first wait before another try, and the widest."""

_REPLY_BYTES = 1024 * 1024
_RECEIVE_BYTES = 64 * 1024


class _Kept:
    """A lease and when it is renewed."""

    __slots__ = ("due", "lease", "sent")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.due = lease.deadline - lease.ttl + lease.ttl / RENEWALS_PER_TTL
        self.sent: float | None = None
        """When the renewal that is under way was sent."""


class _Wire:
    """A connection that never blocks. Raises `OSError` when it is of no use any more."""

    def __init__(self, path: str, check_peer: PeerCheck) -> None:
        self._splitter = LineSplitter(_REPLY_BYTES)
        self._unsent = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
            check_peer(listener_of(self._socket))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def awaited(self) -> int:
        """What `poll` is to wait for."""
        return select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN

    def add(self, message: dict[str, Any]) -> None:
        """Put a message behind those that wait to be sent."""
        self._unsent += wire.encode_line(message)

    def send(self) -> None:
        """Send of what waits as much as is taken now: the daemon has answers to give before it takes more."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass

    def receive(self) -> list[bytes]:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        return self._splitter.feed(data)

    def close(self) -> None:
        self._socket.close()


class Renewer:
    """Keeps leases. `keep`, `drop` and `lose` may be called from any thread."""

    def __init__(self, path: str, options: Options, check_peer: PeerCheck) -> None:
        self._path = path
        self._options = options
        self._check_peer = check_peer
        self._lock = threading.Lock()
        self._kept: dict[Lease, _Kept] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wake_read = self._wake_write = -1
        # The thread's own:
        self._wire: _Wire | None = None
        self._asked: dict[int, _Kept] = {}
        self._older: list[Lease] = []
        """Leases that are older than our hello: when it is answered with another epoch than theirs, they are lost."""
        self._requests = 0
        self._retry_at = 0.0
        self._backoff = Backoff(*RETRY_SECONDS)

    # --- from any thread -------------------------------------------------------------------------------------------

    def keep(self, lease: Lease) -> None:
        with self._lock:
            if self._closed:
                return
            self._kept[lease] = _Kept(lease)
            if self._thread is None:
                self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                self._thread = threading.Thread(target=self._run, name="statesvc-renewal", daemon=True)
                self._thread.start()
        self._wake()

    def drop(self, lease: Lease) -> None:
        """Renew it no more. One that is lost is let go of once those who listen were told."""
        if lease.lost:
            self._wake()
            return
        with self._lock:
            self._kept.pop(lease, None)

    def lose(self, kind: str, id: str, token: int, why: str) -> None:
        """The daemon said elsewhere that a lease is lost."""
        for lease in self._all_kept():
            if (lease.kind, lease.id, lease.token) == (kind, id, token):
                lease.lose(why)
        self._wake()

    def lose_all(self, before: str, now: str) -> None:
        """The store was told to be in another epoch than before: that one is over, and with it its leases."""
        for lease in self._all_kept():
            if lease.epoch == before:
                lease.lose_to(now)
        self._wake()

    def look(self) -> None:
        """Look at once for leases that are lost; one was, elsewhere."""
        self._wake()

    def _all_kept(self) -> list[Lease]:
        with self._lock:
            return list(self._kept)

    def close(self) -> None:
        """Renew nothing any more; what is held lapses."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._wake()
            if thread is not threading.current_thread():
                thread.join(5)

    def abandon_in_child(self) -> None:
        """After a fork: the leases are the parent's, and so is the connection."""
        for lease in self._kept:
            lease.orphan(f"it belongs to the process this one was forked from ({os.getppid()})")
        self._kept = {}
        if self._wire is not None:
            self._wire.close()
        self._close_pipe()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b".")
        except OSError:  # the pipe is full, or gone: the thread is awake, or has ended
            pass

    def _close_pipe(self) -> None:
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake_write = -1

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed:
                self._sleep(self._turn())
        except Exception:  # a bug of ours: the leases lapse, and their holders see it by the clock
            log.exception("the renewal of leases failed")
        finally:
            self._disconnect()
            with self._lock:
                self._close_pipe()

    def _turn(self) -> float | None:
        """Do what is due; returns how many seconds may be slept."""
        self._exchange()
        self._tell_lost()
        with self._lock:
            kept = list(self._kept.values())
        now = clock()
        self._give_up_on_silence(kept, now)
        due = [each for each in kept if each.sent is None and each.due <= now]
        if due and now >= self._retry_at:
            self._renew(due)
        return self._next_moment(kept)

    def _next_moment(self, kept: Iterable[_Kept]) -> float | None:
        moments = [each.lease.deadline for each in kept]
        moments += [max(each.due, self._retry_at) if each.sent is None else _patience(each) for each in kept]
        return max(0.0, min(moments) - clock()) if moments else None

    def _sleep(self, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._wire is not None:
            poll.register(self._wire.fileno(), self._wire.awaited)
        # Rounded up: woken a moment early there would be nothing to do yet.
        poll.poll(None if seconds is None else int(seconds * 1000) + 1)
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def _tell_lost(self) -> None:
        with self._lock:
            lost = [lease for lease in self._kept if lease.lost]
            for lease in lost:
                del self._kept[lease]
        for lease in lost:
            log.warning("lost: %r", lease)
            for problem in lease.tell_lost():
                log.error("a callback for a lost lease failed", exc_info=problem)

    def _give_up_on_silence(self, kept: Iterable[_Kept], now: float) -> None:
        if any(each.sent is not None and _patience(each) <= now for each in kept):
            self._fail(TimeoutError("no answer to a renewal"))

    def _renew(self, due: Iterable[_Kept]) -> None:
        try:
            connection = self._connected()
            for kept in due:
                self._requests += 1
                lease = kept.lease
                kept.sent = clock()
                self._asked[self._requests] = kept
                about = {"token": lease.token, "ttl": lease.ttl, "requestId": self._requests}
                connection.add({"op": "renew", **named(lease.kind, lease.id), **about})
            connection.send()
        except (OSError, StateError) as problem:
            self._fail(problem)

    def _connected(self) -> _Wire:
        if self._wire is None:
            self._wire = _Wire(self._path, self._check_peer)
            with self._lock:  # before the hello is sent: of what is taken later, its answer may be the older one
                self._older = list(self._kept)
            self._wire.add(hello(self._options, None, "each"))
        return self._wire

    def _exchange(self) -> None:
        """Send what could not be sent before, and take the answers that have come."""
        if self._wire is None:
            return
        try:
            self._wire.send()
            while True:
                for line in self._wire.receive():
                    self._take(decoded(line))
        except BlockingIOError:
            pass
        except (OSError, StateError) as problem:
            self._fail(problem)

    def _take(self, reply: Received) -> None:
        kept = self._asked.pop(reply.request_id, None) if isinstance(reply.request_id, int) else None
        if kept is None:
            self._take_welcome(reply)
            return
        sent, kept.sent = kept.sent, None
        if reply.success and sent is not None:
            self._backoff.reset()
            kept.lease.confirm(sent, cancel_requested=reply.cancel_requested)
            kept.lease.lose_to(reply.epoch)  # told where it is another than our hello heard of
            kept.due = sent + kept.lease.ttl / RENEWALS_PER_TTL
            return
        error = error_of(reply)
        if error.retryable:
            kept.due = clock() + self._backoff.next()
        else:
            kept.lease.lose(str(error))

    def _take_welcome(self, reply: Received) -> None:
        """The answer to our hello. What the store knows in a new life about a lease of the one before is not of it."""
        if not reply.success:
            raise error_of(reply)
        for lease in self._older:
            lease.lose_to(reply.epoch)
        self._older = []

    def _fail(self, problem: Exception) -> None:
        log.debug("leases are not renewed for now: %s", problem)
        self._disconnect()
        self._retry_at = clock() + self._backoff.next()

    def _disconnect(self) -> None:
        connection, self._wire = self._wire, None
        if connection is not None:
            connection.close()
        for kept in self._asked.values():
            kept.sent = None
        self._asked.clear()


def _patience(kept: _Kept) -> float:
    """When an answer is waited for no longer."""
    return (kept.sent or 0.0) + kept.lease.ttl / RENEWALS_PER_TTL
