"""What is most likely stored: rows as this daemon wrote them last, those it wrote long ago forgotten.

Owns a bounded memory of rows. Must not know why a row is asked for. Others change rows as well, some without a new
revision. So a row is kept with the digest of its stored form: what is decided on it is committed only while that very
form is stored.
"""

from __future__ import annotations

from hashlib import sha1

from ..port import Guess, Key, Row
from . import rows

MOST_BYTES = 16 * 1024 * 1024
"""Rows held, about."""

OVERHEAD_BYTES = 700
"""What a row takes beside its record."""


def digest_of(stored: bytes) -> str:
    return sha1(stored).hexdigest()  # noqa: S324 - what scripts can make as well; nobody is kept from anything by it


class Guesses:
    """In two generations: when the young one has taken half of the room, the old one goes."""

    def __init__(self) -> None:
        self._young: dict[Key, tuple[Row, str]] = {}
        self._old: dict[Key, tuple[Row, str]] = {}
        self._young_bytes = 0

    def of(self, key: Key) -> Guess | None:
        found = self._young.get(key) or self._old.get(key)
        return None if found is None else Guess(found[0])

    def digest(self, row: Row) -> str:
        """The digest of the stored form of a row that was guessed."""
        key = row.key
        found = self._young.get(key) or self._old.get(key)
        return found[1] if found is not None and found[0] is row else digest_of(rows.pack(row))

    def note(self, row: Row, stored: bytes) -> None:
        """It was written in this form."""
        self._young[row.kind, row.id] = (row, digest_of(stored))
        self._young_bytes += OVERHEAD_BYTES + len(row.body) + len(row.marks)
        if self._young_bytes > MOST_BYTES // 2:
            self._young, self._old, self._young_bytes = {}, self._young, 0

    def forget(self, key: Key) -> None:
        """It is not what it was, or nobody knows."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        self._young, self._old, self._young_bytes = {}, {}, 0
