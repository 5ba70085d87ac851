"""Pages of lanes that were read lately: whoever catches up from an old place reads each of them once, not once a slot.

Owns which pages are kept. Must not know how they are read. What a page holds never changes: slots are written once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .slots import Slot

MOST_PAGES = 16
"""Enough for a few readers that catch up on a few lanes at once; DynamoDB hands out a megabyte a page at most."""


class Page(NamedTuple):
    """All slots of a lane behind one number, up to another."""

    after: int
    upto: int
    slots: list[Slot]

    def next(self, after: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.place.number > after), None)


class Pages:
    """The pages used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Page] = OrderedDict()

    def find(self, lane: int, after: int) -> Page | None:
        """The page in which to go on behind a number."""
        for key, page in self._kept.items():
            if key[0] == lane and page.after <= after < page.upto:
                self._kept.move_to_end(key)
                return page
        return None

    def keep(self, lane: int, page: Page) -> Page:
        self._kept[lane, page.after] = page
        while len(self._kept) > MOST_PAGES:
            self._kept.popitem(last=False)
        return page
