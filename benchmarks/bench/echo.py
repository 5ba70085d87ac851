"""The limit: a bare uvloop server that sends back what it hears. No frame is looked at.

    python -m benchmarks.bench.echo SOCKET

Every reply of a daemon written in Python takes at least this; what is above it is the daemon's own work.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.WriteTransport", transport).write

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(Echo, path)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
