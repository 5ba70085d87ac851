"""Connecting to a daemon that is just starting."""

from __future__ import annotations

import socket
import time
from pathlib import Path


def connect(path: Path, seconds: float = 20.0) -> socket.socket:
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return connection
