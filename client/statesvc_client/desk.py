"""The desk: where writes are taken in, from any thread, and where their fate is noted.

Owns the lock, and with it the agreement of outbox, cache, spool and counters. Must not know sockets or event loops: it
is told how to wake the sender. The lock is held for an append, a slice of a batch or a note, never while one waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec import Struct

from . import writes
from .adapter_errors import Closed, OutboxFull, SpoolError
from .cache import Cache, View
from .errors import StateError
from .options import Options
from .outbox import OVERHEAD, Merge, Outbox
from .spool import Spool
from .wire import Limits
from .writes import Write

log = logging.getLogger("statesvc_client")


class Counters(Struct, frozen=True, kw_only=True):
    """What happened so far, at one moment."""

    queued: int
    """Writes not decided yet, in flight or waiting."""
    queued_bytes: int
    sent: int
    """Frames sent, resends included."""
    resent: int
    acked: int
    """Writes the daemon applied, or had applied before."""
    rejected: int
    merged: int
    """Writes that became part of another while the outbox was full."""
    dropped: int
    """Writes refused to the caller with `OutboxFull`; none is ever dropped in silence."""
    duplicates: int
    """Calls that the daemon recognised as applied before."""
    connects: int
    reconnects: int
    epochs: int
    """How often the daemon may have lost acknowledged state."""
    spooled: int
    """Writes waiting in the spool file."""
    restored: int
    """Writes an earlier run left in the spool."""
    cached: int

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))


class Tally:
    """Counters while they are counted."""

    def __init__(self) -> None:
        self.sent = self.resent = self.acked = self.rejected = self.merged = 0
        self.dropped = self.duplicates = self.connects = self.epochs = self.restored = 0


class Slice(NamedTuple):
    """Writes to be sent now."""

    data: bytes
    """Their frames."""
    unfit: list[tuple[Write, StateError]]
    """Those that this daemon would not even read, and why: they are not in `data`."""


class _Caches(dict[str, Cache]):
    """A cache for each kind, made when it is first looked for."""

    def __init__(self, options: Options, views: dict[str, dict[str, View]]) -> None:
        super().__init__()
        self._options = options
        self._views = views

    def __missing__(self, kind: str) -> Cache:
        made = self[kind] = Cache(kind, self._options.cache_records, scoped=self._options.cache_filter is not None)
        self._views[kind] = made.views
        return made


def _cannot_wake() -> None:
    """Before the start there is no sender; it looks for itself when it begins."""


class Desk:
    """One client's outbox, caches and spool under one lock."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()
        self.outbox = Outbox(options.max_records, options.max_bytes)
        self.views: dict[str, dict[str, View]] = {}
        self.caches = _Caches(options, self.views)
        self.client = new_client_id()
        self.spool: Spool | None = None
        self._spool_path = options.spool
        """Where a spool is to be opened: at the start, or by a write that is made before it."""
        self.closed = False
        self.wake: Callable[[], None] = _cannot_wake
        self.asleep = False
        """The sender has nothing to do and must be woken."""
        self.own_thread: int | None = None
        """The thread of the sender: it must not wait for room, which only itself can make."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting_for_room = 0
        self.on_progress: Callable[[], None] = _cannot_wake
        for kind in ("job", *options.kinds):
            self.caches[kind]
        if options.spool is not None:
            self.outbox.refuse_offers()  # nothing is taken past it

    def open_spool(self) -> None:
        with self._lock:
            self._open_spool_once()

    def _open_spool_once(self) -> None:
        """Take the spool, with what an earlier run left in it: its writes come first, and its numbers go on."""
        if self._spool_path is None:
            return
        spool = Spool(os.fspath(self._spool_path), sync_each=self.options.spool_sync)
        try:
            found = spool.load()
            spool.begin(found.client or self.client, found.waiting)
        except BaseException:
            spool.close()
            raise
        self.client = found.client or self.client
        if found.torn_bytes:
            log.warning("%s ended in a torn record; %d bytes were cut off", spool.path, found.torn_bytes)
        for write in found.waiting:
            self.outbox.append(write)
            self.caches[write.kind].note(write)
        self.outbox.last_seq = max(self.outbox.last_seq, found.next_seq - 1)
        self.tally.restored = len(found.waiting)
        self.spool, self._spool_path = spool, None

    # --- in, from any thread ---------------------------------------------------------------------------------------

    def admit(self, write: Write) -> None:
        """Take a write in. Costs an append; waits only when the outbox is full."""
        lock = self._lock
        lock.acquire()  # half the cost of `with`
        try:
            if self.spool is None and self.outbox.offer(write):
                self.caches[write.kind].note(write)
            else:
                self._admit_with_care(write)
            if not self.asleep:
                return
            self.asleep = False
        finally:
            lock.release()
        self.wake()

    def _admit_with_care(self, write: Write) -> None:
        """Take a write in where there is a spool, or no room."""
        deadline = time.monotonic() + self.options.block_seconds
        if not self.closed:
            self._open_spool_once()
        if self.spool is not None and self.spool.is_unsound:
            self._compact(self.spool)
        while True:
            if self.closed:
                raise Closed("the store was closed; the write was not taken")
            if self._make_room(len(write.body) + OVERHEAD, reserve=write.is_last_word()):
                break
            if not self.outbox.all_scanned:
                self._let_others_in()
                continue
            if self._merged_into_last(write):
                return
            self._wait_for_room(deadline)
        write.seq = self.outbox.last_seq + 1
        if self.spool is not None:  # first, for it may fail, and then nothing has happened
            self.spool.add(write)
        self.outbox.append(write)
        self.caches[write.kind].note(write)

    def _make_room(self, size: int, *, reserve: bool) -> bool:
        """Merge unsent updates until there is room; the last word about a record may use the reserve.

        So may any write while a full outbox has not been looked through yet: that takes many calls a slice each, and
        whether there is no room is not known before. The reserve has room for more writes than there are slices.
        """
        if self.outbox.has_room(size):
            return True
        self.outbox.begin_scan()
        while (merge := self.outbox.next_merge()) is not None:
            self._accept(merge)
            self.caches[merge.gone.kind].forget_merged(merge.gone)
            if self.outbox.has_room(size):
                return True
        return self.outbox.has_room(size, reserve=reserve or not self.outbox.all_scanned)

    def _let_others_in(self) -> None:
        """Between two slices of a scan: whoever waits for the lock gets it."""
        self._lock.release()
        try:
            time.sleep(0)
        finally:
            self._lock.acquire()

    def _merged_into_last(self, write: Write) -> bool:
        """Make a write that finds no room part of the one before it, as far as the bytes allow."""
        merge = self.outbox.merge_into_last(write)
        if merge is None or not self.outbox.has_bytes(len(merge.both.body) - len(merge.kept.body)):
            return False
        self._accept(merge)
        self.caches[write.kind].note_merged(write)
        return True

    def _accept(self, merge: Merge) -> None:
        if self.spool is not None:  # first, for it may fail, and then nothing has happened
            self.spool.merge(merge.kept.seq, merge.gone.seq, merge.both.frame())
        self.outbox.accept(merge)
        self.tally.merged += 1

    def _wait_for_room(self, deadline: float) -> None:
        """Wait for the sender, or raise: at once under `error`, and where waiting would stop the sender itself."""
        left = deadline - time.monotonic()
        if self.options.when_full == "error" or threading.get_ident() == self.own_thread:
            left = 0.0
        if left <= 0:
            self.tally.dropped += 1
            raise OutboxFull(
                f"{self.outbox.queued} writes ({self.outbox.queued_bytes} bytes) are waiting; the bounds are "
                f"{self.outbox.max_records} and {self.outbox.max_bytes}. The write was not taken"
            )
        self._waiting_for_room += 1
        try:
            self._room.wait(left)
        finally:
            self._waiting_for_room -= 1

    def has_room(self) -> bool:
        return self.outbox.has_room(0)

    # --- out, by the sender ----------------------------------------------------------------------------------------

    def take(self, limits: Limits, most_in_flight: int, *, may_sleep: bool) -> Slice | None:
        """The next writes, as they are sent. With nothing to send and `may_sleep`, the next write wakes the sender."""
        with self._lock:
            most = min(most_in_flight, limits.requests_in_flight, self.options.window_records)
            taken = self.outbox.take(self.options.slice_records, most, self.options.window_bytes)
            if not taken:
                self.asleep = self.asleep or may_sleep
                return None
            slice_ = _slice(taken, self._floor(), limits)
            for write in taken:
                if write.sent:
                    self.tally.resent += 1
                else:
                    write.sent = True
            self.tally.sent += len(taken)
        return slice_

    def fall_asleep(self) -> None:
        with self._lock:
            self.asleep = True

    def _floor(self) -> int:
        floor = self.outbox.floor
        return floor if self.spool is None else min(floor, self.spool.durable_floor)

    def rewind(self) -> None:
        with self._lock:
            self.outbox.rewind()
            self.asleep = False

    # --- decided ---------------------------------------------------------------------------------------------------

    def acknowledged(self, upto: int) -> bool:
        """Note a slice of what the daemon decided; returns whether more is left of it."""
        with self._lock:
            done = self.outbox.acknowledged(upto, self.options.slice_records)
            for kind, applied in _by_kind(done):
                self.caches[kind].applied_all(applied)
            self.tally.acked += len(done)
            if done and self.spool is not None:
                self.spool.decided_upto(done[-1].seq, done)
            self._after_progress()
        for write in done:
            if write.on_decided is not None:
                write.on_decided(None)
        self.on_progress()
        return len(done) == self.options.slice_records

    def reject(self, write: Write, error: StateError) -> None:
        with self._lock:
            if write.decided:
                return
            self.outbox.decide(write)
            self.caches[write.kind].rejected(write, error)
            self.tally.rejected += 1
            if self.spool is not None:
                self.spool.decided_one(write)
            self._after_progress()
        if write.on_decided is not None:
            write.on_decided(error)
        self.on_progress()

    def find(self, seq: int) -> Write | None:
        with self._lock:
            return self.outbox.find(seq)

    def only_in_flight(self) -> Write | None:
        with self._lock:
            return self.outbox.only_in_flight()

    def _after_progress(self) -> None:
        if self.spool is not None and self.spool.wants_compaction:
            self._compact(self.spool)
        if self._waiting_for_room and self.outbox.has_spare_room():
            self._room.notify_all()

    def _compact(self, spool: Spool) -> None:
        try:
            spool.compact(self.outbox.waiting())
        except (SpoolError, OSError) as problem:
            log.warning("the spool was not compacted: %s", problem)

    def begin_spool_sync(self) -> tuple[int, int] | None:
        with self._lock:
            return self.spool.begin_sync() if self.spool is not None and self.spool.wants_sync else None

    def end_spool_sync(self, floor: int) -> None:
        with self._lock:
            if self.spool is not None:
                self.spool.end_sync(floor)

    def spool_sync_failed(self, fd: int) -> None:
        with self._lock:
            if self.spool is not None:
                self.spool.sync_failed(fd)

    # --- the cache's questions -------------------------------------------------------------------------------------

    def with_lock(self, act: Callable[[], Any]) -> Any:
        with self._lock:
            return act()

    def wanted(self) -> dict[str, list[str]]:
        """The ids, by kind, of records whose true state has to be asked for."""
        with self._lock:
            return {kind: list(cache.wanted) for kind, cache in self.caches.items() if cache.wanted}

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> list[Write]:
        """Take nothing more; returns what was left undecided. The spool, if any, keeps it."""
        with self._lock:
            self.closed = True
            self.outbox.refuse_offers()
            left = self.outbox.waiting()
            self._room.notify_all()
            if self.spool is not None:
                self.spool.close()
                self.spool = None
        return left

    def start_over_in_child(self) -> None:
        """After a fork: what waits belongs to the parent, and so do its lock, its spool and its name."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting_for_room = 0
        self.own_thread = None
        self.client = new_client_id()
        self.tally = Tally()
        self.outbox = Outbox(self.options.max_records, self.options.max_bytes)
        spool, self.spool = self.spool, None
        if spool is not None:
            spool.close()
        if self._spool_path is not None:
            self.outbox.refuse_offers()  # the parent never opened it: it is ours, if we start
        for cache in self.caches.values():
            cache.forget_own()
        self.asleep = True

    def counters(self) -> Counters:
        with self._lock:
            tally = vars(self.tally)
            return Counters(
                **tally,
                queued=self.outbox.queued,
                queued_bytes=self.outbox.queued_bytes,
                reconnects=max(0, self.tally.connects - 1),
                spooled=self.outbox.queued if self.spool is not None else 0,
                cached=sum(cache.live for cache in self.caches.values()),
            )


def _by_kind(made: list[Write]) -> Iterable[tuple[str, list[Write]]]:
    """The writes of each kind, in their order; nearly always they are all of one."""
    kinds = {write.kind for write in made}
    if len(kinds) == 1:
        return ((made[0].kind, made),)
    return [(kind, [write for write in made if write.kind == kind]) for kind in kinds]


def _slice(taken: list[Write], floor: int, limits: Limits) -> Slice:
    data = writes.lines(taken, floor)
    if len(data) + writes.ENVELOPE_BYTES <= limits.frame_bytes:
        return Slice(data, [])  # all together fit one frame, and so does each
    judged = [(write, writes.fits(write, limits)) for write in taken]
    fit = [write for write, problem in judged if problem is None]
    return Slice(writes.lines(fit, floor), [(write, problem) for write, problem in judged if problem is not None])


def new_client_id() -> str:
    return os.urandom(16).hex()
