"""Inputs for one connection: frames put together, kept ones mangled, all of it cut into pieces.

Owns how a stream of bytes is made and cut. Must not know what is answered to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import get_args

from .grammar import Grammar, Mangling, Seen
from .target import LIMITS, Ending, Input

CORPUS = Path(__file__).parents[2] / "testdata" / "corpus"

COUNTS = (1, 1, 1, 1, 2, 4, 8, 16, 32)
"""Frames of an input: one alone is judged most strictly, many are what a pipeline looks like."""

HELLOS = (
    b'{"op":"hello","client":"client-1","name":"n"}',
    b'{"op":"hello","client":"client-2","name":"m","ack":"last"}',
    b'{"op":"hello","client":"client-3","ack":"each","name":"n"}',
    b'{"op":"hello"}',
)
GIANTS = (
    b"[]," * (LIMITS.frame_bytes // 3 - 1),
    b"[]," * (LIMITS.frame_bytes // 3 + 1),
    b"[" * (LIMITS.frame_bytes - 1),
    b'{"a":' * (LIMITS.frame_bytes // 6),
    b'{"op":"update","jobId":"a","job":{"x":"' + b"x" * (LIMITS.record_bytes + 1000) + b'"}}',
    b'{"op":"update","jobId":"a","job":{"x":"' + b"x" * (LIMITS.record_bytes - 1000) + b'"}}',
    b'{"op":"ping","x":"' + b"y" * (LIMITS.frame_bytes - 20) + b'"}',
    b'{"op":"ping","x":"' + b"y" * (LIMITS.frame_bytes - 19) + b'"}',
    b'{"op":"create","job":{"uuid":"a","x":' + b"9" * 60_000 + b"}}",
    b'"' + b"\\u" * 60_000,
)
"""Frames about as long as a limit."""


def corpus() -> dict[str, bytes]:
    """The streams that are kept, by name."""
    return {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}


def frames_of(given: Input) -> list[bytes]:
    """The lines an input holds. The last of them counts if it gets its newline, or is too long already."""
    *lines, rest = b"".join(given.pieces).split(b"\n")
    return [*lines, rest] if given.ending == "answered" or len(rest) > LIMITS.frame_bytes else lines


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    ends = [0, *sorted(places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(ends)]


class Inputs:
    """An endless stream of them. The same seed makes the same one, as far as the daemon answers the same."""

    def __init__(self, random: Random, kept: Sequence[bytes] = ()) -> None:
        self.seen = Seen()
        self._random = random
        self._grammar = Grammar(random, self.seen)
        self._mangling = Mangling(random)
        self._kept = kept
        self._last = b'{"op":"ping"}'

    def __iter__(self) -> Iterator[Input]:
        while True:
            yield self.next()

    def next(self) -> Input:
        grammar, random = self._grammar, self._random.random
        stream = self._stream()
        ending: Ending = "answered" if random() < 0.9 else grammar.one_of(get_args(Ending))
        return Input(self._pieces(stream), ending, admin=random() < 0.5, slow=random() < 0.05)

    def _stream(self) -> bytes:
        random = self._random.random
        if self._kept and random() < 0.1:
            kept = self._grammar.one_of(self._kept)
            return kept if random() < 0.2 else self._mangling.mangled(kept, self._last)
        lines = [self._line() for _ in range(self._grammar.one_of(COUNTS))]
        if random() < 0.4:
            lines.insert(0, self._grammar.one_of(HELLOS))
        if random() < 0.001:
            lines.append(self._grammar.one_of(GIANTS))
        return (b"\r\n" if random() < 0.03 else b"\n").join(lines)

    def _line(self) -> bytes:
        line = self._grammar.frame()
        if self._random.random() < 0.15:
            line = self._mangling.mangled(line, self._last)
        if len(line) < 4096:
            self._last = line
        return line

    def _pieces(self, stream: bytes) -> list[bytes]:
        random = self._random.random
        how = random()
        if how < 0.7:
            return [stream]
        if how < 0.72 and len(stream) < 600:
            return [stream[at : at + 1] for at in range(len(stream))]
        return cut(stream, [int(random() * len(stream)) for _ in range(1 + int(random() * 3))])
