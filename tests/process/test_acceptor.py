"""The door: everybody who is welcome comes in, whoever is not is told, and a closed door leaves nobody behind."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from statesvc.process.acceptor import AT_ONCE, Acceptor


class Guest(asyncio.Protocol):
    """Says hello, and knows how many there are."""

    inside: set[Guest]

    def __init__(self, inside: set[Guest]) -> None:
        self.inside = inside

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self.inside.add(self)
        transport.write(b"hello\n")


@pytest.fixture
def listening(socket_folder: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(socket_folder / "s"))
        sock.listen(100)
        yield sock


async def greeting(path: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    said = await reader.readline()
    writer.transport.abort()
    return said


async def test_more_than_are_taken_at_once_all_come_in(listening):
    inside: set[Guest] = set()
    acceptor = Acceptor(listening, lambda _: Guest(inside))
    said = await asyncio.gather(*(greeting(listening.getsockname()) for _ in range(5 * AT_ONCE)))
    assert said == [b"hello\n"] * 5 * AT_ONCE
    await acceptor.close()
    for guest in inside:
        guest.transport.abort()


async def test_who_is_not_welcome_is_told_and_does_not_come_in(listening):
    def welcome(connection: socket.socket) -> None:
        connection.send(b"no\n")

    acceptor = Acceptor(listening, welcome)
    assert await asyncio.gather(*(greeting(listening.getsockname()) for _ in range(10))) == [b"no\n"] * 10
    await acceptor.close()


async def test_closing_waits_for_those_who_were_let_in_and_takes_no_more(listening):
    inside: set[Guest] = set()
    path = listening.getsockname()
    acceptor = Acceptor(listening, lambda _: Guest(inside))
    clients = [await asyncio.open_unix_connection(path) for _ in range(3 * AT_ONCE)]
    await acceptor.close()
    with pytest.raises(OSError, match="refused"):
        await asyncio.open_unix_connection(path)
    for guest in inside:
        guest.transport.abort()
    for _, writer in clients:
        writer.transport.abort()
