"""Watchers: one process that reads many connections and counts the lines that come, until each has them all.

Owns the receiving end of fan-out. Must not know what an event looks like, only how many newlines it has.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

from .lines import CLOCK, RECEIVE_BYTES, WAIT_SECONDS, reach
from .shape import Failed


class Asked(NamedTuple):
    """How to ask for events, and how long what comes is."""

    request: bytes
    reply_newlines: int
    event_newlines: int


OF_STATESVC = Asked(b'{"op":"watch","requestId":"w"}\n', 1, 1)
CHANNEL = "changes"
OF_REDIS = Asked(b"*2\r\n$9\r\nSUBSCRIBE\r\n$7\r\nchanges\r\n", 6, 7)


@contextmanager
def listeners(path: str, asked: Asked, count: int, events: int) -> Iterator[Callable[[], float]]:
    """So many watchers, all asked for when the block begins. What is given waits until each has had so many events,
    and returns when that was, by the clock of lines.py, which all processes share."""
    if not count:
        yield CLOCK
        return
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_listen, args=(path, asked, count, events, theirs), daemon=True)
    process.start()
    try:
        _heard(ours)
        yield lambda: _heard(ours)
    finally:
        process.kill()
        process.join()
        process.close()


def _heard(pipe: Pipe) -> float:
    if not pipe.poll(WAIT_SECONDS):
        raise Failed("watchers wait for events that do not come")
    said = pipe.recv()
    if isinstance(said, str):
        raise Failed(said)
    return float(said)


def _listen(path: str, asked: Asked, count: int, events: int, tell: Pipe) -> None:
    try:
        with ExitStack() as stack:
            socks = [stack.enter_context(closing(reach(path))) for _ in range(count)]
            for sock in socks:
                _begin(sock, asked)
            tell.send(CLOCK())
            tell.send(_all_had(socks, events * asked.event_newlines))
    except (Failed, OSError) as failed:
        tell.send(str(failed))


def _begin(sock: socket.socket, asked: Asked) -> None:
    sock.sendall(asked.request)
    heard = b""
    while heard.count(b"\n") < asked.reply_newlines:
        heard += sock.recv(RECEIVE_BYTES)
    if b'"success":false' in heard or heard.startswith(b"-"):
        raise Failed(f"a watch was refused: {heard[:200].decode(errors='replace')}")


def _all_had(socks: list[socket.socket], newlines: int) -> float:
    by_number = {sock.fileno(): sock for sock in socks}
    missing = dict.fromkeys(by_number, newlines)
    digests = {number: hashlib.blake2b() for number in by_number}
    with select.epoll(len(socks)) as poll:
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        while any(left > 0 for left in missing.values()):
            for number, _ in poll.poll(WAIT_SECONDS) or _nothing_comes():
                some = by_number[number].recv(RECEIVE_BYTES)
                if not some or b'"code":"busy"' in some:
                    raise Failed("a watcher was ended")
                missing[number] -= some.count(b"\n")
                digests[number].update(some)
    done = CLOCK()
    if len({digest.digest() for digest in digests.values()}) != 1:
        raise Failed("watchers were told different things")
    return done


def _nothing_comes() -> list[tuple[int, int]]:
    raise Failed("watchers wait for events that do not come")
