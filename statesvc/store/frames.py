"""What fits into the frame of a reply.

Owns the room in it. Must not know what is put there.
"""

from __future__ import annotations

ENVELOPE_BYTES = 8192
"""Room in a reply's frame for everything but the records: envelope, cursor, commas."""

OWN_BYTES = 4096
"""Of that, for what the daemon itself adds to a record of the largest size: a lease, times, why it ended."""


class Room:
    """What is left in a frame. The first fits in any case: whatever is stored can be sent, also what was written when
    frames were allowed to be larger. Otherwise nobody would ever get beyond it."""

    def __init__(self, frame_bytes: int) -> None:
        self._whole = self._left = frame_bytes - ENVELOPE_BYTES

    def is_for(self, size: int) -> bool:
        return self._left == self._whole or size < self._left

    def give(self, size: int) -> None:
        self._left -= size + 1
