"""The outbox: writes in the order they were made, until each is decided.

Owns order, numbering, bounds, what is in flight and which unsent updates may become one. Must not know threads, files,
sockets or the cache; whoever calls holds the lock.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from . import merging
from .writes import Write

OVERHEAD = 100
"""Bytes of a frame around its body, about: op, id and numbers."""

SCAN_STEPS = 256
"""Writes looked at for merging in one call: the lock is held meanwhile, and a full outbox holds a great many."""

SPARE_SHARE = 32
"""The part of the bounds that is free again before those who wait for room are woken."""

_TRIM = 4096
"""Decided writes kept at the front before the list is cut: cutting costs its length."""


class Merge(NamedTuple):
    """Two updates and what they are together: `both` is to stand in the place of `kept`."""

    kept: Write
    gone: Write
    both: Write


class Outbox:
    """One client's undecided writes."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self._offered_records = max_records
        self.queued = 0
        self.queued_bytes = 0
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.last_seq = 0
        self._writes: list[Write] = []
        self._first = 0
        """Where the oldest undecided write stands, or behind the end."""
        self._next = 0
        """Where the next write to send stands."""
        self._scanned = 0
        """Up to where unsent writes were looked at for merging."""
        self._latest: dict[tuple[str, str], Write] = {}
        """Of what was scanned, the last undecided write of each record."""
        self._steps_left = 0

    # --- in --------------------------------------------------------------------------------------------------------

    def has_room(self, size: int, *, reserve: bool = False) -> bool:
        """The reserve, a quarter on top, is for the last word about a record."""
        share = 4 if reserve else 0
        records = self.max_records + (self.max_records // share if share else 0)
        bytes_ = self.max_bytes + (self.max_bytes // share if share else 0)
        # A write larger than the whole bound may pass when it is alone, or it never could.
        return self.queued < records and (self.queued_bytes + size <= bytes_ or not self.queued)

    def has_spare_room(self) -> bool:
        """Room worth waking somebody for: to wake a thread for a few writes costs more than they do."""
        spare = self.max_records - self.max_records // SPARE_SHARE
        spare_bytes = self.max_bytes - self.max_bytes // SPARE_SHARE
        return not self.queued or (self.queued < spare and self.queued_bytes < spare_bytes)

    def has_bytes(self, more: int) -> bool:
        return self.queued_bytes + more <= self.max_bytes

    def offer(self, write: Write) -> bool:
        """Number and append a write if there is room. The common case, and so without calls."""
        size = self.queued_bytes + len(write.body) + OVERHEAD
        if self.queued >= self._offered_records or size > self.max_bytes:
            return False
        self.last_seq = write.seq = self.last_seq + 1
        self.queued += 1
        self.queued_bytes = size
        self._writes.append(write)
        return True

    def refuse_offers(self) -> None:
        self._offered_records = -1

    def append(self, write: Write) -> None:
        """Append a write that has its number."""
        self.last_seq = max(self.last_seq, write.seq)
        self.queued += 1
        self.queued_bytes += len(write.body) + OVERHEAD
        self._writes.append(write)

    # --- making room -----------------------------------------------------------------------------------------------

    @property
    def all_scanned(self) -> bool:
        """Nothing waits that was not looked at: what can be merged is."""
        return max(self._scanned, self._next) >= len(self._writes)

    def begin_scan(self) -> None:
        """The next `SCAN_STEPS` writes may be looked at."""
        self._scanned = max(self._scanned, self._next)
        self._steps_left = SCAN_STEPS

    def next_merge(self) -> Merge | None:
        """Find two unsent updates of a record that can be one, within the steps left; `accept` makes them one.

        Goes on where it stopped before, so that a full outbox is looked through once, not at every call. A merge that
        is not accepted is found again: to go on past it would let later updates be merged to before it.
        """
        while self._steps_left and self._scanned < len(self._writes):
            self._steps_left -= 1
            write = self._writes[self._scanned]
            if not write.decided:
                merge = self.merge_into_last(write)
                if merge is not None:
                    return merge
                self._latest[write.kind, write.id] = write
            self._scanned += 1
        return None

    def merge_into_last(self, write: Write) -> Merge | None:
        """What the last unsent update of its record and this one are together."""
        kept = self._latest.get((write.kind, write.id))
        both = None if kept is None or kept.sent else merging.merged(kept, write)
        return None if both is None or kept is None else Merge(kept, write, both)

    def accept(self, merge: Merge) -> None:
        kept, gone, both = merge
        self.queued_bytes += len(both.body) - len(kept.body)
        kept.body, kept.fields, kept.more, kept.flat = both.body, both.fields, both.more, both.flat
        kept.doubtful = both.doubtful
        if gone.seq:
            self._scanned += 1
            self._drop(gone)

    def _drop(self, write: Write) -> None:
        write.decided = True
        self.queued -= 1
        self.queued_bytes -= len(write.body) + OVERHEAD
        self._skip_decided()

    # --- out -------------------------------------------------------------------------------------------------------

    def take(self, most: int, most_in_flight: int, most_bytes: int) -> list[Write]:
        """The next writes to send, within the window. A write larger than the window goes alone."""
        taken: list[Write] = []
        queue, place, end = self._writes, self._next, len(self._writes)
        most = min(most, most_in_flight - self.in_flight)
        in_flight, bytes_ = self.in_flight, self.in_flight_bytes
        while len(taken) < most and place < end:
            write = queue[place]
            if not write.decided:
                size = len(write.body) + OVERHEAD
                if bytes_ + size > most_bytes and (in_flight or taken):
                    break
                bytes_ += size
                taken.append(write)
            place += 1
        self._next = place
        self.in_flight, self.in_flight_bytes = in_flight + len(taken), bytes_
        return taken

    def rewind(self) -> None:
        """Nothing is in flight any more: everything undecided is to be sent, from the oldest on."""
        self._next = self._first
        self.in_flight = self.in_flight_bytes = 0

    # --- decided ---------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The lowest seq that is not decided: everything below is."""
        return self._writes[self._first].seq if self._first < len(self._writes) else self.last_seq + 1

    def acknowledged(self, upto: int, most: int) -> list[Write]:
        """Take up to `most` undecided writes with a seq of at most `upto` off the front.

        What one write changes is added up and noted once: this is done for every write there is.
        """
        done: list[Write] = []
        queue, place, end = self._writes, self._first, min(self._next, len(self._writes))
        size = 0
        while len(done) < most and place < end:
            write = queue[place]
            if write.seq > upto:
                break
            place += 1
            if not write.decided:
                write.decided = True
                size += len(write.body) + OVERHEAD
                done.append(write)
        self._first = place
        self._forget_latest(done)
        self._note_decided(len(done), size)
        self._skip_decided()
        return done

    def find(self, seq: int) -> Write | None:
        """The undecided write of this number that was sent."""
        place = bisect_left(self._writes, seq, lo=self._first, key=lambda write: write.seq)
        if place >= self._next or place >= len(self._writes):
            return None
        write = self._writes[place]
        return write if write.seq == seq and not write.decided else None

    def only_in_flight(self) -> Write | None:
        """The write in flight, when there is exactly one."""
        return self._writes[self._first] if self.in_flight == 1 and self._first < self._next else None

    def decide(self, write: Write) -> None:
        write.decided = True
        self._forget_latest([write])
        self._note_decided(1, len(write.body) + OVERHEAD)
        self._skip_decided()

    def waiting(self) -> list[Write]:
        """Every undecided write, oldest first."""
        return [write for write in self._writes[self._first :] if not write.decided]

    def _forget_latest(self, decided: list[Write]) -> None:
        latest = self._latest
        if not latest:
            return  # nothing was scanned: there was always room
        for write in decided:
            if latest.get((write.kind, write.id)) is write:
                del latest[write.kind, write.id]

    def _note_decided(self, count: int, size: int) -> None:
        self.queued -= count
        self.queued_bytes -= size
        if self.in_flight:
            self.in_flight -= count
            self.in_flight_bytes -= size

    def _skip_decided(self) -> None:
        queue, place = self._writes, self._first
        while place < len(queue) and queue[place].decided:
            place += 1
        self._first = place
        if place == len(queue):
            self._forget(place)
            self._latest.clear()
        elif place > _TRIM and place * 2 > len(queue):
            self._forget(place)

    def _forget(self, count: int) -> None:
        del self._writes[:count]
        self._first -= count
        self._next = max(0, self._next - count)
        self._scanned = max(0, self._scanned - count)
