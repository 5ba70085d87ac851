"""Time as the rules see it: UTC nanoseconds, and RFC 3339 text for people.

Owns reading, writing and comparing timestamps. Must not decide what happens at a time.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from statesvc_client.errors import BadRequest
from statesvc_client.wire import printable

SECOND = 1_000_000_000
_MOST = 2**63 - 1
"""Sort keys fit 64 bits in every engine; times beyond the years 1677 and 2262 sort at the ends."""

_RFC3339 = re.compile(
    # Digits beyond nanoseconds are kept and mean nothing; some write all that a float has. No limit of a record counts
    # the times that are kept as given, so they have one of their own.
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d{0,32})?(?:([Zz])|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GO_ZERO = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""


class Clock:
    """The wall clock, and one that only goes forward. Tests give the rules another one."""

    def now(self) -> int:
        """What people call the time, in nanoseconds. It may jump."""
        return time.time_ns()

    def steady(self) -> float:
        """Seconds since some moment, for measuring how long something took. It rests while the machine sleeps."""
        return time.monotonic()

    def elapsed(self) -> float:
        """The same with the time the machine slept, as the wall clock has it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Drift:
    """Whether the wall clock still goes as the steady one does: one that jumped must not make things old."""

    MOST_SECONDS = 3600.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._elapsed = clock.now(), clock.elapsed()

    def seconds(self) -> float:
        """How far the wall clock is ahead of where it should be."""
        return (self._clock.now() - self._wall) / SECOND - (self._clock.elapsed() - self._elapsed)

    def trusted(self) -> bool:
        return abs(self.seconds()) <= self.MOST_SECONDS


class Stamper:
    """Writes nanoseconds as text; the part down to the second is made once a second, the same time only once."""

    def __init__(self) -> None:
        self._at = -1
        self._text = ""
        self._second = -1
        self._prefix = ""

    def text(self, at: int) -> str:
        if at != self._at:
            self._at, self._text = at, self._written(at)
        return self._text

    def _written(self, at: int) -> str:
        second, nanos = divmod(at, SECOND)
        if second != self._second:
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._prefix}.{nanos:09d}Z"


def parse(text: object, field: str) -> int:
    """Nanoseconds of an RFC 3339 time; `field` names the culprit when it is none."""
    found = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadRequest(f"{field} must be an RFC 3339 time like 2025-10-26T00:00:00Z, not {_shown(text)}")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    try:
        # A leap second counts as the last second of its minute: it must be storable, not exact.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError as problem:
        raise BadRequest(f"{field} is not a time: {printable(str(text))} ({problem})") from None
    nanos = int((found[7] or "").ljust(9, "0"))
    offset = _offset(found[9], found[10], found[11])
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return clamp((whole - offset) * SECOND + nanos)


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int:
    if sign is None:
        return 0
    seconds = int(hours or 0) * 3600 + int(minutes or 0) * 60
    return -seconds if sign == "-" else seconds


def _shown(value: object) -> str:
    return printable(value) if isinstance(value, str) else f"a {type(value).__name__}"


def clamp(at: int) -> int:
    return max(-_MOST, min(_MOST, at))


def given(value: object) -> bool:
    """Whether a time was really given: null, empty and Go's zero time count as absent."""
    return value is not None and value not in ("", GO_ZERO)
