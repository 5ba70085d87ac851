"""An endpoint that answers every call with one small item, as fast as it can: `python -m tests.dynamodb.canned`.

Owns nothing but that reply. For measuring what a call costs the client.
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from typing import cast

import uvloop

ITEM = b'{"Item":{"jobId":{"S":"job-1"},"revision":{"N":"7"},"record":{"S":"' + b"x" * 400 + b'"}}}'
REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\nx-amz-crc32: %d\r\ncontent-length: %d\r\n\r\n"
    % (zlib.crc32(ITEM), len(ITEM))
) + ITEM


class Canned(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            self._transport.write(REPLY)


async def _serve() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(Canned, "127.0.0.1", 0)
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 1024) else None)
    await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
