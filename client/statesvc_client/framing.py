"""Bytes to lines: the framing of the protocol, with no I/O and no JSON in it.

Owns where one frame ends and the next begins, and the bound on a frame's length. Must not know what a frame means.
"""

from __future__ import annotations


class LineSplitter:
    """Collects bytes and hands out whole lines, without their newline.

    Once a line grows past `limit` bytes the stream cannot be trusted any more: `too_large` is set, everything held is
    dropped, and what comes after is ignored. Lines completed before that are still handed out.
    """

    __slots__ = ("_chunks", "_held", "limit", "too_large")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.too_large = False
        self._chunks: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the unfinished line."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived; return the lines it completed."""
        if self.too_large:
            return []
        longest_possible = self._held + len(data)
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and self._held:
            self._chunks.append(lines[0])
            lines[0] = b"".join(self._chunks)
            self._chunks.clear()
            self._held = 0
        if tail:
            # Chunks are joined only when their line ends: a long line costs its length, not its square.
            self._chunks.append(tail)
            self._held += len(tail)
        return lines if longest_possible <= self.limit else self._within_limit(lines)

    def _within_limit(self, lines: list[bytes]) -> list[bytes]:
        for place, line in enumerate(lines):
            if len(line) > self.limit:
                self._overflow()
                return lines[:place]
        if self._held > self.limit:
            self._overflow()
        return lines

    def _overflow(self) -> None:
        self.too_large = True
        self.drop()

    def drop(self) -> None:
        """Let go of the unfinished line: nobody will end it."""
        self._chunks.clear()
        self._held = 0
