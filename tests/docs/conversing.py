"""Conversations in documents: blocks of lines, of which those with `op` are sent and the others have to come back.

A reply line need not be whole: what it shows must be there. A request without one must succeed. Lines with an event are
those of a watch; they may come before or after the reply they stand behind.
"""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from pathlib import Path
from typing import Any

from tests.docs.talking import connect

SECONDS = 60.0

Json = dict[str, Any]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def shows(shown: Any, found: Any) -> bool:
    """Whether what is found is what is shown, objects as far as they are shown."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(name in found and shows(shown[name], found[name]) for name in shown)
    if isinstance(shown, list):
        return isinstance(found, list) and len(shown) == len(found) and all(map(shows, shown, found))
    return bool(shown == found)


class Conversation:
    """One connection on which a block is played."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._connection.settimeout(SECONDS)
        self._stream = self._connection.makefile("rwb")
        self._events: deque[Json] = deque()

    def play(self, block: str) -> None:
        reply: Json = {"success": True}
        expected = True
        for line in block.splitlines():
            shown = json.loads(line)
            if "op" in shown:
                assert expected or reply["success"], reply
                reply, expected = self._ask(line), False
            elif "event" in shown:
                assert shows(shown, found := self._next_event()), (line, found)
            else:
                assert shows(shown, reply), (line, reply)
                expected = True
        assert expected or reply["success"], reply

    def _ask(self, line: str) -> Json:
        self._stream.write(line.encode() + b"\n")
        self._stream.flush()
        while "event" in (received := self._receive()):
            self._events.append(received)
        return received

    def _next_event(self) -> Json:
        return self._events.popleft() if self._events else self._receive()

    def _receive(self) -> Json:
        line = self._stream.readline()
        assert line, "the daemon ended the connection"
        received: Json = json.loads(line)
        return received

    def close(self) -> None:
        self._stream.close()
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
