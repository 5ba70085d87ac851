"""The cache of one kind: what the daemon is known to hold, with the agent's own undecided writes on top.

Owns what `get` shows, taking a rejected write back, and the bound on records held. Must not know threads, sockets or
the outbox; whoever calls a changing method holds the lock. `views` alone is read without it: one dict lookup. What the
log tells of records goes through images.py.

A settled record costs nothing but its dict. Undecided writes of a record hang together, and the oldest keeps the state
below it, so that a rejected one can be taken out and the rest put on again. The states in between are not kept: a long
list that is appended to would be held once for each write. A record is replaced, never changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from . import foresight
from .errors import StateError
from .images import Images
from .patch import Fields
from .writes import UNKNOWN, Seen, Unknown, Write

View = Fields | None

_FIELDS_ONLY = frozenset({"create", "update"})
_PLAIN_OPS = frozenset({"create", "update", "emit"})

EVICT_STEPS = 64
"""Records looked at in one call to find one that can be let go."""


class Read:
    """A question under way. What own writes touch until its answer has come, it cannot speak about."""

    __slots__ = ("doubted", "let_go", "touched", "void")

    def __init__(self, doubted: Iterable[str], touched: Iterable[str]) -> None:
        self.doubted = set(doubted)
        """Records whose true state was wanted before it was asked and still is: its answer tells, whatever is known."""
        self.touched = set(touched)
        self.let_go: set[str] = set()
        """Records that had to make room meanwhile: they may have been newer than it says."""
        self.void = False
        """The store began another life meanwhile: its answer may be of the one before."""


class Cache:
    """Records of one kind."""

    def __init__(self, kind: str, most: int, *, scoped: bool = False) -> None:
        self.kind = kind
        self.most = most
        self.scoped = scoped
        """Only records that match a filter are followed."""
        self.id_field = "uuid" if kind == "job" else "id"
        self.views: dict[str, View] = {}
        """What `get` returns: a record, or None when it is known to be absent."""
        self.complete = False
        """Every record is held, so what is not held is absent."""
        self.followed = False
        """Images of every change come, sooner or later."""
        self.listing = False
        """Every record is being read."""
        self.images = Images(self)
        self.live = 0
        self.wanted: dict[str, None] = {}
        """Records whose true state has to be asked for."""
        self.own: dict[str, Write] = {}
        """The newest undecided write of each record; the earlier ones hang on it."""
        self._order: deque[str] = deque()
        self._reads: list[Read] = []

    # --- own writes ------------------------------------------------------------------------------------------------

    def note(self, write: Write) -> None:
        """Show a write that was just made."""
        id = write.id
        before = self.views.get(id, UNKNOWN)
        newest = self.own.get(id)
        if newest is not None:
            newest.later, write.earlier = write, newest
        else:
            write.below = before
            if type(before) is dict:
                write.revision = before.get("revision")
        self.own[id] = write
        if write.flat and type(before) is dict and write.more is None:
            # The common case, an update by plain fields of a record that is shown, and so without calls.
            self.views[id] = after = before | write.fields
            after.pop("updatedAt", None)
        else:
            self._note_with_care(write, before)
        if self._reads:
            self._touch(id)

    def _note_with_care(self, write: Write, before: Seen) -> None:
        if before is UNKNOWN:
            if self.complete and write.earlier is None:
                before = write.below = None
            elif self._reads:
                # The listing under way cannot speak about this record any more, and nothing else does.
                self.wanted[write.id] = None
        self._show(write.id, _put_on(before, write))

    def note_merged(self, write: Write) -> None:
        """Show a write that became part of the newest undecided one."""
        before: Seen = self.views.get(write.id, UNKNOWN)
        self._show(write.id, _put_on(before, write))
        self._touch(write.id)

    def forget_merged(self, gone: Write) -> None:
        """A noted write became part of the one before it: what is shown stays."""
        self._unlink(gone)

    def applied_all(self, decided: list[Write]) -> None:
        """Writes were taken by the daemon, each the oldest undecided one of its record."""
        own, views, waiting = self.own, self.views, self.images.waiting
        self.images.moment += len(decided)
        for write in decided:
            id = write.id
            view = views.get(id)
            if (
                view is None
                or own.get(id) is not write
                or write.earlier is not None
                or write.more is not None
                or write.doubtful
                or write.op not in _FIELDS_ONLY
            ):
                self.applied(write)
                continue
            # The common case, a record with nothing else of ours under way, and so nearly without calls.
            del own[id]
            write.below = None
            revision = 0 if write.op == "create" else write.revision
            if id in waiting and write.flat and self.images.confirmed_at_once(write, view):
                continue
            if revision is not None:
                views[id] = view = view.copy()
                view["revision"] = revision + 1
            if self.followed:
                self.images.guess(id, write.fields if write.flat and "uid" in view else None)
            if id in waiting:
                self.images.take_up(id)
        for _ in decided:
            if len(views) <= self.most:
                break
            self.evict()

    def applied(self, write: Write) -> None:
        """The oldest undecided write of a record was taken by the daemon."""
        if write.id not in self.own:
            return
        revision = _revision_after(write)
        later = write.later
        self._unlink(write)
        if write.op not in _PLAIN_OPS:
            self._applied_with_care(write)
        if later is not None:
            later.below, _ = foresight.foreseen(write.below, write)
            later.revision = revision
            self.images.unsettled(write.id)
            later.misled = write.doubtful
            later.doubtful = later.doubtful or later.misled
        elif write.doubtful:
            # It succeeded where it should not have: the record was not what we thought.
            self.wanted[write.id] = None
            self._hide(write.id)
            self.images.unsettled(write.id)
        else:
            self._settle(write.id, revision)
        write.below = None

    def _applied_with_care(self, write: Write) -> None:
        if write.op == "delete":
            self.images.ended(write.id, _uid(write.below))
            if write.id in self.own:
                self.wanted[write.id] = None  # made again at once: which of two lives an image is of could not be told
        elif not self.followed and not foresight.is_certain(write):
            self.wanted[write.id] = None

    def rejected(self, write: Write, error: StateError) -> None:
        """Take a write back: the state below it, with the later own writes put on again."""
        if write.id not in self.own:
            return
        self.images.moment += 1
        view = _state_below(write)
        if error.code == "not_found":
            self._note_over(write.id, view)
            view = None
        elif error.code == "exists" and view is None:
            view = UNKNOWN
        earlier, later = write.earlier, write.later
        self._unlink(write)
        if later is not None:
            later.revision = None if error.code == "not_found" else write.revision
            if earlier is None:
                later.below = view
                later.misled = write.misled and error.code != "not_found"
        while later is not None:
            view = _put_on(view, later)
            later = later.later
        self._show(write.id, view)
        if error.code != "not_found":
            self.wanted[write.id] = None  # it is not what we thought it was
        write.below = None
        if write.id not in self.own:
            self.images.unsettled(write.id)
            if view is None:
                self._settle(write.id, None)

    def forget_own(self) -> None:
        """The undecided writes belong to somebody else now; what they showed stays as it is."""
        self.images.guess_all(self.own)
        self.own.clear()
        self._reads.clear()
        self.images.start_over()
        self.followed = self.listing = False

    def start_over(self) -> None:
        """The store began another life: what was asked in the one before tells nothing any more."""
        self.complete = False
        self.images.start_over()
        for read in self._reads:
            read.void = True

    def distrust(self) -> None:
        """The daemon may have lost what it told: nothing is shown of it but what own writes stand on, and that is asked
        for once they are decided."""
        for id in self.views.keys() - self.own.keys():
            self._hide(id)
        self.wanted |= dict.fromkeys(self.own)

    def _unlink(self, write: Write) -> None:
        earlier, later = write.earlier, write.later
        if earlier is not None:
            earlier.later = later
        if later is not None:
            later.earlier = earlier
        elif earlier is not None:
            self.own[write.id] = earlier
        else:
            del self.own[write.id]
        write.earlier = write.later = None

    def _settle(self, id: str, revision: int | None) -> None:
        """No own write of the record is undecided any more."""
        view = self.views.get(id, UNKNOWN)
        if type(view) is dict:
            if revision is not None:
                self.views[id] = {**view, "revision": revision}
        elif view is None and self.complete:
            self._hide(id)
        self.images.settled(id)
        if len(self.views) > self.most:
            self.evict()

    def _touch(self, id: str) -> None:
        for read in self._reads:
            read.touched.add(id)

    # --- what the daemon says --------------------------------------------------------------------------------------

    def begin_read(self, *, flushed: bool = True) -> Read:
        """Whoever asks without having the writes made before decided first may be answered before they are."""
        read = Read(self.wanted, () if flushed else self.own)
        self._reads.append(read)
        return read

    def end_read(self, read: Read) -> None:
        if read in self._reads:
            self._reads.remove(read)

    def learn(self, record: Fields, read: Read, *, forced: bool = False) -> None:
        """Take in a record as the daemon holds it, unless it is older than what is known.

        `forced` after a change of epoch, where older may be true.
        """
        id = record.get(self.id_field)
        if not isinstance(id, str) or not self._can_tell(id, read):
            return
        known = self.views.get(id)
        is_doubted = forced or id in read.doubted or id in self.images.guessed
        if known is not None and not is_doubted and _is_older(record, known):
            return
        if known is not None and known.get("uid") != record.get("uid"):
            self._touch(id)  # two answers about two lives of a record: the one taken first stays
        self._answered(id)
        self._show(id, record)
        self.images.read(id)

    def learn_absent(self, id: str, read: Read) -> None:
        if self._can_tell(id, read):
            self._note_over(id, self.views.get(id))
            self._show_absent(id)
            self.images.read(id)

    def _can_tell(self, id: str, read: Read) -> bool:
        """Whether an answer can speak about a record."""
        return not (read.void or id in self.own or id in read.touched or (id in read.let_go and id not in self.views))

    def _note_over(self, id: str, seen: Seen) -> None:
        """What was seen is not there any more."""
        uid = _uid(seen)
        if uid is not None:
            self.images.ended(id, uid)

    def _answered(self, id: str) -> None:
        """What was wanted is known. Other answers on their way may be older."""
        self.wanted.pop(id, None)
        for read in self._reads:
            read.doubted.discard(id)

    def _show_absent(self, id: str) -> None:
        self.images.moment += 1
        self._answered(id)
        if self.complete:
            self._hide(id)
        else:
            self._show(id, None)

    def knows(self, id: str) -> bool:
        """Whether a record that is not held is known to be absent."""
        return self.complete or id in self.views

    def take(self, id: str, record: Fields, *, other_life: bool) -> None:
        """Show what the log said. An answer that is under way must not bring an earlier life back."""
        if other_life and self._reads:
            self._touch(id)
        if self.views.get(id) is not None:
            self.views[id] = record  # the common case: one record for another
        else:
            self._show(id, record)

    def take_absent(self, id: str) -> None:
        self._touch(id)
        self._show_absent(id)

    def take_unknown(self, id: str) -> None:
        self._touch(id)
        self._hide(id)

    def learn_all(self, seen: Iterable[str], read: Read, *, complete: bool) -> None:
        """A whole listing was taken in: what it did not hold is not there, or is beyond the cache's scope."""
        stale = self.views.keys() - set(seen) - self.own.keys() - read.touched
        for id in stale:
            self._hide(id)
        # Own writes kept the listing from speaking about these, and the log is followed from its beginning on: what
        # happened to them just before that, nobody would tell, nor an answer that is under way.
        self.wanted |= dict.fromkeys(read.touched)
        for id in list(read.touched):
            self._touch(id)
        self.complete = complete and not read.let_go

    # --- what is held ----------------------------------------------------------------------------------------------

    def _show(self, id: str, view: Seen) -> None:
        views = self.views
        old = views.get(id, UNKNOWN)
        if isinstance(view, Unknown):
            if old is not UNKNOWN:
                self._hide(id)
            return
        views[id] = view
        if old is UNKNOWN:
            self._order.append(id)
            if len(views) > self.most:
                self.evict()
            elif len(self._order) > 2 * len(views) + 1024:
                self._order = deque(views)
            old = None
        if (old is None) is not (view is None):
            self.live += 1 if old is None else -1

    def _hide(self, id: str) -> None:
        self.images.moment += 1
        self.images.guessed.pop(id, None)
        if self.views.pop(id, None) is not None:
            self.live -= 1

    def evict(self) -> None:
        """Let go of the records held longest. One with own undecided writes is needed to take them back, and one whose
        own writes the log has not come to yet, to know what is older than they are; that up to twice the bound, for
        the log may be out of reach.

        Looks at a few at a time: while all are needed the bound is passed, and kept again once they are settled.
        """
        for _ in range(min(EVICT_STEPS, len(self._order))):
            if len(self.views) <= self.most:
                return
            id = self._order.popleft()
            if id in self.own or (id in self.images.guessed and len(self.views) <= 2 * self.most):
                self._order.append(id)
            elif id in self.views:
                self._hide(id)
                self.complete = False
                for read in self._reads:
                    read.let_go.add(id)


def _revision_after(write: Write) -> int | None:
    """The lowest revision a record can have now: what was seen, plus one for each own write applied since."""
    if write.op == "create":
        return 1
    if write.op == "delete" or write.revision is None:
        return None
    if write.op == "cancel" and foresight.foreseen(write.below, write)[0] is write.below:
        return write.revision  # it was asked for before, or is over
    if write.more is not None and write.more.upsert and _uid(write.below) is None:
        return None  # it may have made the record anew, and which life was meant is not known either
    return write.revision + 1


def _uid(seen: Seen) -> str | None:
    return seen.get("uid") if isinstance(seen, dict) else None


def _state_below(write: Write) -> Seen:
    """The record without this write and the later ones: what the oldest stands on, with those in between put on."""
    between: list[Write] = []
    oldest = write
    while oldest.earlier is not None:
        oldest = oldest.earlier
        between.append(oldest)
    view = oldest.below
    for earlier in reversed(between):
        view, _ = foresight.foreseen(view, earlier)
    return view


def _put_on(before: Seen, write: Write) -> Seen:
    """The record after a write whose fate is open; one that should be refused is noted as doubtful."""
    after, is_refused = foresight.foreseen(before, write)
    write.doubtful = is_refused or write.misled
    return after


def _is_older(record: dict[str, Any], known: dict[str, Any]) -> bool:
    """Revisions are compared within one life of a record. Of which life own writes were is not known, and an answer
    that none of them touched has seen them all."""
    return record.get("uid") == known.get("uid") and bool(record.get("revision", 0) < known.get("revision", 0))
