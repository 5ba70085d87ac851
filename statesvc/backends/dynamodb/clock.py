"""The time of day at DynamoDB, as its replies tell it.

Owns that clock. Must not know calls, or what goes by it. Our own time of day may be wrong and may jump; what is stored
with a time to go must not be gone for that, nor go in no time. So the service's is learned from the `Date` of replies,
and goes on between them by a clock that only goes forward.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from ... import logs

log = logs.get(__name__)

SKEW_SECONDS = 60
"""Clocks that differ by less are called the same: the service allows for five minutes in a signature."""

DATE_SECONDS = 1.0
"""What a `Date` leaves open: it is cut to seconds."""


def elapsed() -> float:
    """Seconds since some moment, those the machine slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServiceClock:
    """Ours, until a reply has told the time."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        """How far it is ahead of `elapsed`."""
        self._date: str | None = None
        self._told = 0.0

    def now(self) -> float:
        """In seconds since 1970."""
        return time.time() if self._ahead is None else self._ahead + elapsed()

    def learn(self, date: str | None, took: float) -> None:
        """A reply was received just now, so many seconds after it was asked for; it was made in between, on that date.

        What is known is kept as far as that allows: dates cut to seconds do not make the clock go back and forth.
        """
        if date is None or date == self._date:
            return
        try:
            made = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        self._date = date
        least = made - elapsed()
        most = least + DATE_SECONDS + took
        self._ahead = (least + most) / 2 if self._ahead is None else min(max(self._ahead, least), most)
        self._tell_skew()

    def _tell_skew(self) -> None:
        skew = self.now() - time.time()
        if abs(skew - self._told) >= SKEW_SECONDS:
            self._told = skew
            log.warning("dynamodb_clock_skewed", seconds=round(skew))
