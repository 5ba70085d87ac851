"""Keys as bytes that sort as the values do, whatever follows them.

Owns the encodings of times, texts and numbers in members of indexes. Must not know which indexes there are, or Redis.
No encoding is the beginning of another one of its sort, so the id behind it decides only between equal keys.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

TIME_BYTES = 8

_OFFSET = 1 << 63
_LAST = (1 << 64) - 1
_time = struct.Struct(">Q").pack

# The first byte of a number: below all, huge negative, negative, zero, positive, huge positive, above all.
_MINUS_INFINITY, _MINUS_HUGE, _MINUS, _ZERO, _PLUS, _HUGE, _INFINITY = range(0x7D, 0x84)

_COMMON_EXPONENT = 0x7000
"""Exponents of every float and of integers of up to 28,000 bits take two bytes, others eight."""

_COMPLEMENT = bytes(255 - byte for byte in range(256))


def of_time(nanoseconds: int) -> bytes:
    """Eight bytes. What does not fit 64 bits counts as the first or last moment that does."""
    try:
        return _time(nanoseconds + _OFFSET)
    except struct.error:
        return _time(0 if nanoseconds < 0 else _LAST)


def of_id(text: str) -> bytes:
    """The last part of a member: nothing follows that it could be confused with."""
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def of_word(text: str) -> bytes:
    """The same as `of_text` for the few words that are used again and again, such as those for states."""
    return of_text(text)


def of_text(text: str) -> bytes:
    """The text with a zero byte behind it. UTF-8 sorts as code points do and never holds a byte of 255."""
    return _ended(text.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1024)
def of_number(number: float) -> bytes:
    """Any int or float, exactly: equal numbers are equal bytes, whichever of the two they are."""
    if number == 0:
        return _ended(bytes((_ZERO,)))
    if number in (math.inf, -math.inf):
        return _ended(bytes((_INFINITY if number > 0 else _MINUS_INFINITY,)))
    exponent, mantissa = _parts(number)
    if abs(exponent) < _COMMON_EXPONENT:
        first, rest = _PLUS, struct.pack(">H", exponent + 0x8000) + _sevens(mantissa)
    else:
        first, rest = _HUGE, struct.pack(">Q", exponent) + _sevens(mantissa)
    if number < 0:
        # The larger, the smaller.
        first, rest = 2 * _ZERO - first, rest.translate(_COMPLEMENT)
    return _ended(bytes((first,)) + rest)


def _parts(number: float) -> tuple[int, int]:
    """Exponent and mantissa: the number is 0.mantissa times two to the exponent, the mantissa's first bit a one."""
    if isinstance(number, int):
        return abs(number).bit_length(), abs(number)
    fraction, exponent = math.frexp(abs(number))
    return exponent, int(fraction * (1 << 53))


def _sevens(mantissa: int) -> bytes:
    """Seven bits a byte from the first one on; the lowest bit of a byte says that there is another."""
    mantissa >>= (mantissa & -mantissa).bit_length() - 1
    count = -(-mantissa.bit_length() // 7)
    mantissa <<= count * 7 - mantissa.bit_length()
    groups = [(mantissa >> shift & 0x7F) << 1 | 1 for shift in range((count - 1) * 7, -1, -7)]
    groups[-1] &= 0xFE
    return bytes(groups)


def _ended(raw: bytes) -> bytes:
    return raw.replace(b"\0", b"\0\xff") + b"\0"
