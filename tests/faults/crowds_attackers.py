"""Clients that mean no good, each sort a process: `python -m tests.faults.crowds_attackers SORT SOCKET SIZE`.

Owns what an attacker does to the socket. Must not know who suffers from it, or how that is measured. An attacker says
one line when everything it has is in place, and goes on until it is ended, or who started it is gone. `burn` is
nobody's client: it takes the processor for a share of the time, as a stranger on the same machine would.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.faults import program

MIB = 1024 * 1024
PERIOD_SECONDS = 0.01
"""A burner works for its share of this, then rests."""

BYTE_EVERY_SECONDS = 2.0
GIANT_BYTES = 100 * MIB
BRACKETS = 10_000_000
FITTING_BRACKETS = 3_490_000
"""As many as just fit into a frame of the default limit: it is read to its end and refused for what it holds."""

NESTED = (r"(a*)*b", r"(a|aa)+$", r"(a+)+c", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*)(.*)(.*)(.*)(.*)[^a0-9]")
"""Patterns that take exponential time where alternatives are tried one after the other."""


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def line(**request: Any) -> bytes:
    return json.dumps(request).encode() + b"\n"


def answer(sock: socket.socket) -> bytes:
    """All up to the first newline, or to the end of the connection."""
    chunks = []
    while chunk := sock.recv(MIB):
        chunks.append(chunk)
        if chunk.endswith(b"\n"):
            break
    return b"".join(chunks)


# --- never reading, hardly writing ---------------------------------------------------------------------------------


def never_reading(path: str, size: int) -> None:
    """Ask for a large record as often as the socket takes it, and take no answer."""
    asking = line(op="get", kind="kv", id="large-0") * 1000
    poll, clients = select.poll(), {}

    def another() -> None:
        sock = connected(path)
        sock.setblocking(False)
        clients[sock.fileno()] = sock
        poll.register(sock, select.POLLOUT)

    for _ in range(size):
        another()
    say_ready()
    while True:
        for fd, _ in poll.poll(1000):
            try:
                clients[fd].send(asking)
            except BlockingIOError:
                pass
            except OSError:  # it was given up
                poll.unregister(fd)
                clients.pop(fd).close()
                another()


def slow_writing(path: str, size: int) -> None:
    """Send a frame a byte at a time, one every two seconds on each connection, which is as slow as it goes."""
    frame = line(op="create", job={"uuid": "slow", "pad": "x" * 1000})
    clients = deque((connected(path), 0) for _ in range(size))
    say_ready()
    while True:
        sock, at = clients.popleft()
        try:
            sock.send(frame[at : at + 1])
            clients.append((sock, (at + 1) % len(frame)))
        except OSError:  # it was given up
            sock.close()
            clients.append((connected(path), 0))
        time.sleep(BYTE_EVERY_SECONDS / size)


def slow_listing(path: str, size: int) -> None:
    """Ask for all there is in one frame, and take it a little at a time."""
    asking = line(op="list", kind="kv")
    clients = deque(connected(path) for _ in range(size))
    for sock in clients:
        sock.sendall(asking)
    say_ready()
    while True:
        sock = clients[0]
        clients.rotate(-1)
        chunk = sock.recv(64 * 1024, socket.MSG_DONTWAIT) if select.select([sock], [], [], 0.1)[0] else b""
        if chunk.endswith(b"\n"):
            sock.sendall(asking)
        time.sleep(0.2 / size)


# --- too much ------------------------------------------------------------------------------------------------------


def _frame_after_frame(path: str, size: int, frames: list[bytes]) -> None:
    """Send what is refused, on `size` connections at once; be told so, connect again."""
    clients = [connected(path) for _ in range(size)]
    say_ready()
    for frame in itertools.cycle(frames):
        left = {sock: memoryview(frame) for sock in clients}
        for sock in clients:
            sock.setblocking(False)
        while left:
            for sock in select.select([], list(left), [], 1.0)[1]:
                try:
                    left[sock] = left[sock][sock.send(left[sock][:MIB]) :]
                except OSError:
                    left[sock] = memoryview(b"")
                if not left[sock]:
                    del left[sock]
        for sock in clients:
            sock.setblocking(True)
            if b"too_large" not in answer(sock):
                raise AssertionError("a frame that is too large was not called that")
            sock.close()
        clients = [connected(path) for _ in range(size)]


def giant_line(path: str, size: int) -> None:
    _frame_after_frame(path, size, [b"x" * GIANT_BYTES + b"\n"])


def brackets(path: str, size: int) -> None:
    """Ten million lists in a frame; and as many as fit into one."""
    frames = [b'{"op":"sync","jobs":[' + b"[]," * count + b"[]]}\n" for count in (BRACKETS, FITTING_BRACKETS)]
    _frame_after_frame(path, size, frames)


# --- too many ------------------------------------------------------------------------------------------------------


def idle(path: str, size: int) -> None:
    """Connect, and say nothing."""
    clients = [connected(path) for _ in range(size)]
    say_ready()
    while clients:
        time.sleep(60)


def flood(path: str, size: int) -> None:
    """Hold all the places there are, and connect as fast as it goes, whether let in or not."""
    held = [connected(path) for _ in range(size)]
    late = deque(connected(path) for _ in range(16))
    say_ready()
    while held:
        late.append(connected(path))
        late.popleft().close()


# --- too hard ------------------------------------------------------------------------------------------------------


def regex(path: str, size: int) -> None:
    """List by patterns and paths that let nothing pass, so that as much as possible is looked at."""
    filters: Iterator[dict[str, Any]] = itertools.cycle(
        [{"regex": pattern} for pattern in NESTED]
        + [{"where": {"/a/b/c": 1}, "regex": NESTED[0]}, {"labels": {"no": "where"}, "regex": NESTED[1]}]
    )
    _one_at_a_time(path, size, lambda: line(op="list", filter=next(filters)))


def _one_at_a_time(path: str, size: int, asking: Callable[[], bytes]) -> None:
    clients = [connected(path) for _ in range(size)]
    for sock in clients:
        sock.sendall(line(op="hello"))
        answer(sock)
        sock.sendall(asking())
    say_ready()
    while True:
        for sock in select.select(clients, [], [], 1.0)[0]:
            answer(sock)
            sock.sendall(asking())


def hogs(path: str, size: int) -> None:
    """Pipeline reads and writes without a pause, and take every answer: nothing is wrong with them, but the number."""
    window = b"".join(
        line(op="update", kind="kv", id=f"hog-{number}", inc={"n": 1}, upsert=True) + line(op="get", jobId="none")
        for number in range(64)
    )
    clients = [connected(path) for _ in range(size)]
    owed = dict.fromkeys(clients, 0)
    say_ready()
    while True:
        for sock in clients:
            if owed[sock] == 0:
                sock.sendall(window)
                owed[sock] = window.count(b"\n")
        for sock in select.select(clients, [], [], 1.0)[0]:
            owed[sock] -= sock.recv(MIB).count(b"\n")


# --- nobody's client -----------------------------------------------------------------------------------------------


def burn(share: float) -> None:
    """Take the processor for that share of the time."""
    say_ready()
    while True:
        began = time.monotonic()
        busy = time.thread_time() + share * PERIOD_SECONDS
        while time.thread_time() < busy:
            pass
        rest = began + PERIOD_SECONDS - time.monotonic()
        if rest > 0 and share < 1:
            time.sleep(rest)


SORTS: dict[str, Callable[[str, int], None]] = {
    work.__name__: work
    for work in (
        never_reading, slow_writing, giant_line, idle, flood, brackets, regex, hogs, slow_listing,
    )
}  # fmt: skip


def main(sort: str, path: str, size: str) -> None:
    program.end_with_parent()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        if sort == "burn":
            burn(float(size))
        else:
            SORTS[sort](path, int(size))
    except (KeyboardInterrupt, ConnectionError, BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
