"""The load generators: bytes made beforehand, a plain socket, newlines counted in what comes back.

Owns sending and timing. Must not know what the frames mean, beyond that a reply has `"success":true` in it. Nothing is
decoded while the clock runs; that all replies were successes is checked afterwards.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from .effort import OWN
from .shape import Failed

RECEIVE_BYTES = 1 << 16
"""What one call takes at most. Each call makes room for as much; from 128 KiB on that is a mapping of its own, as long
as the process has freed nothing larger, and takes longer than everything else a small reply costs. Figures would depend
on what was measured before."""

WAIT_SECONDS = 120
CLOCK = time.perf_counter
CLOCK_NS = time.perf_counter_ns


class Batch(NamedTuple):
    """Frames that are sent at once."""

    data: bytes
    replies: int
    last_seq: int = 0
    """Of the numbered ones: what an acknowledgement of all of them names."""


def check(heard: bytes, count: int) -> None:
    """All of them succeeded, or it was no measurement."""
    if heard.count(b'"success":true') == count and b'"success":false' not in heard:
        return
    bad = next((line for line in heard.split(b"\n") if b'"success":true' not in line), heard[:300])
    raise Failed(f"a request failed: {bad[:300].decode(errors='replace')}")


def reach(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        # The kernel's own deadline: with one of Python's every call would first ask whether it may be made.
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", WAIT_SECONDS, 0))
    return sock


class Talker:
    """One connection that numbers its writes as the adapter does, or is a plain client without `hello`."""

    def __init__(self, path: str, client: str = "", ack: str = "each") -> None:
        self.sock = reach(path)
        self._seq = 0
        self._numbered = bool(client)
        self._ack_last = ack == "last"
        if client:
            self.ask(b'{"op":"hello","client":"%b","ack":"%b","protocol":1}\n' % (client.encode(), ack.encode()))

    # --- before the clock runs -------------------------------------------------------------------------------------

    def writes(self, heads: Sequence[bytes], depth: int) -> list[Batch]:
        """Frames of writes; each names the first unanswered one as its floor."""
        if not self._numbered:
            return self.reads(heads, depth)
        made = []
        for start in range(0, len(heads), depth):
            some, floor = heads[start : start + depth], self._seq + 1
            frames = [b'%b,"seq":%d,"floor":%d}\n' % (head, floor + at, floor) for at, head in enumerate(some)]
            self._seq += len(some)
            made.append(Batch(b"".join(frames), len(some), self._seq))
        return made

    @staticmethod
    def reads(heads: Sequence[bytes], depth: int) -> list[Batch]:
        parts = (heads[start : start + depth] for start in range(0, len(heads), depth))
        return [Batch(b"".join(head + b"}\n" for head in part), len(part)) for part in parts]

    # --- while it runs ---------------------------------------------------------------------------------------------

    def rate(self, batches: Sequence[Batch]) -> float:
        """Requests a second: each batch is sent once the one before it is answered."""
        count = sum(batch.replies for batch in batches)
        return count / self.seconds(batches)

    def seconds(self, batches: Sequence[Batch]) -> float:
        if self._ack_last and batches and batches[0].last_seq:
            return self._acknowledged(batches)
        took, heard = self.exchange(batches)
        check(heard, sum(batch.replies for batch in batches))
        return took

    def exchange(self, batches: Sequence[Batch]) -> tuple[float, bytes]:
        """Seconds until all batches are answered, and what was answered, whatever it says."""
        heard: list[bytes] = []
        send, receive, hear = self.sock.sendall, self.sock.recv, heard.append
        with OWN:
            began = CLOCK()
            for data, count, _ in batches:
                send(data)
                missing = count
                while missing > 0:
                    some = receive(RECEIVE_BYTES)
                    if not some:
                        raise Failed("the connection was closed")
                    missing -= some.count(b"\n")
                    hear(some)
            took = CLOCK() - began
        return took, b"".join(heard)

    def _acknowledged(self, batches: Sequence[Batch]) -> float:
        """With `ack: last`: a run of writes is answered by one line that names the last of them."""
        heard = b""
        with OWN:
            began = CLOCK()
            for data, _, last in batches:
                self.sock.sendall(data)
                ending, heard = b'"acked":%d,' % last, b""
                while ending not in heard:
                    some = self.sock.recv(RECEIVE_BYTES)
                    if not some:
                        raise Failed("the connection was closed")
                    heard += some
                    if b'"success":false' in heard:
                        raise Failed(f"a write failed: {heard[:300].decode(errors='replace')}")
            return CLOCK() - began

    def times(self, batches: Sequence[Batch]) -> list[int]:
        """Nanoseconds of each request, one at a time."""
        heard: list[bytes] = []
        taken: list[int] = []
        send, receive = self.sock.sendall, self.sock.recv
        with OWN:
            for data, _, _ in batches:
                began = CLOCK_NS()
                send(data)
                some = receive(RECEIVE_BYTES)
                while not some.endswith(b"\n"):
                    more = receive(RECEIVE_BYTES)
                    if not more:
                        raise Failed("the connection was closed")
                    some += more
                taken.append(CLOCK_NS() - began)
                heard.append(some)
        check(b"".join(heard), len(batches))
        return taken

    def ask(self, line: bytes) -> bytes:
        """One request outside of what is timed."""
        self.sock.sendall(line)
        heard = b""
        while not heard.endswith(b"\n"):
            some = self.sock.recv(RECEIVE_BYTES)
            if not some:
                raise Failed("the connection was closed")
            heard += some
        check(heard, 1)
        return heard

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Lane:
    """One connection among many: what it still has to send, and what it heard."""

    __slots__ = ("heard", "left", "missing", "receive", "send")

    def __init__(self, sock: socket.socket, frames: Sequence[bytes]) -> None:
        self.send, self.receive = sock.sendall, sock.recv
        self.left = list(reversed(frames))
        self.heard: list[bytes] = []
        self.missing = 0


def drive(socks: Sequence[socket.socket], frames: Sequence[Sequence[bytes]], newlines: int = 1) -> tuple[float, bytes]:
    """Seconds until all frames of all connections are answered, one in flight on each; and what was answered.

    `newlines` is how many a reply has: Redis answers a GET with two lines.
    """
    lanes = {sock.fileno(): _Lane(sock, some) for sock, some in zip(socks, frames, strict=True) if some}
    under_way = len(lanes)
    with select.epoll(len(lanes)) as poll, OWN:
        for number in lanes:
            poll.register(number, select.EPOLLIN)
        began = CLOCK()
        for lane in lanes.values():
            lane.missing = newlines
            lane.send(lane.left.pop())
        while under_way:
            ready = poll.poll(WAIT_SECONDS)
            if not ready:
                raise Failed(f"{under_way} connections wait for a reply that does not come")
            for number, _ in ready:
                under_way -= _step(lanes[number], newlines)
        took = CLOCK() - began
    return took, b"".join(some for lane in lanes.values() for some in lane.heard)


def _step(lane: _Lane, newlines: int) -> bool:
    """Take what came, send the next; whether that was the last."""
    some = lane.receive(RECEIVE_BYTES)
    if not some:
        raise Failed("a connection was closed")
    lane.heard.append(some)
    lane.missing -= some.count(b"\n")
    if lane.missing > 0:
        return False
    if not lane.left:
        return True
    lane.missing = newlines
    lane.send(lane.left.pop())
    return False
