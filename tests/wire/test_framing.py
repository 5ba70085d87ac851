"""Framing: however a stream is cut, the same lines come out."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client.framing import LineSplitter

STREAM = b'{"op":"ping"}\n\n{"a":"\xc3\xbc"}\r\n{}\npartial'
LINES = [b'{"op":"ping"}', b"", b'{"a":"\xc3\xbc"}\r', b"{}"]


def fed(splitter: LineSplitter, pieces: list[bytes]) -> list[bytes]:
    return [line for piece in pieces for line in splitter.feed(piece)]


def cut(stream: bytes, places: tuple[int, ...]) -> list[bytes]:
    ends = [0, *places, len(stream)]
    return [stream[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize("cuts", [0, 1, 2])
def test_every_way_to_cut_a_stream_gives_the_same_lines(cuts: int):
    for places in combinations(range(len(STREAM) + 1), cuts):
        splitter = LineSplitter(100)
        assert fed(splitter, cut(STREAM, places)) == LINES
        assert splitter.held == len(b"partial")
        assert not splitter.too_large


def test_a_stream_fed_byte_by_byte_gives_the_same_lines():
    assert fed(LineSplitter(100), [bytes([byte]) for byte in STREAM]) == LINES


def test_a_line_as_long_as_the_limit_passes_and_a_longer_one_does_not_wherever_it_is_cut():
    for extra, lines in ((0, [b"a", b"x" * 10, b"b"]), (1, [b"a"])):
        stream = b"a\n" + b"x" * (10 + extra) + b"\nb\n"
        for places in combinations(range(len(stream) + 1), 2):
            splitter = LineSplitter(10)
            assert fed(splitter, cut(stream, places)) == lines
            assert splitter.too_large is bool(extra)


def test_a_line_that_never_ends_is_given_up_at_the_limit_and_holds_nothing():
    splitter = LineSplitter(1000)
    for _ in range(1000):
        splitter.feed(b"x" * 100)
        assert splitter.held <= 1000
    assert splitter.too_large
    assert splitter.held == 0
    assert splitter.feed(b"\nmore\n") == []


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    tail=st.binary(max_size=10).map(lambda line: line.replace(b"\n", b"")),
    data=st.data(),
)
def test_any_stream_cut_anywhere_gives_the_lines_it_holds(lines: list[bytes], tail: bytes, data: st.DataObject):
    stream = b"".join(line + b"\n" for line in lines) + tail
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    splitter = LineSplitter(30)
    assert fed(splitter, cut(stream, tuple(places))) == lines
    assert splitter.held == len(tail)


@given(
    lines=st.lists(st.integers(0, 20).map(lambda size: b"x" * size), max_size=8),
    limit=st.integers(1, 20),
    data=st.data(),
)
def test_lines_before_one_that_is_too_long_are_still_handed_out(lines: list[bytes], limit: int, data: st.DataObject):
    stream = b"".join(line + b"\n" for line in lines)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    splitter = LineSplitter(limit)
    good = next((place for place, line in enumerate(lines) if len(line) > limit), len(lines))
    assert fed(splitter, cut(stream, tuple(places))) == lines[:good]
    assert splitter.too_large is (good < len(lines))
