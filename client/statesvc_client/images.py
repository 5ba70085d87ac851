"""What the log says about records, put beside what the cache shows: newer is taken, older is not, doubt is asked.

Owns when the image of a record, as it was at one revision, may replace what is shown. Must not know connections, nor
how images come: in the order of the log for each record, or inside an answer. Whoever calls holds the lock.

Own writes come back as images too, some time before or after they are acknowledged, and an acknowledgement does not say
which revision a write made. What is shown after own writes were applied is therefore a guess, at the lowest revision it
can have: the image of that revision confirms it if it says the same. Otherwise somebody else wrote in between, and the
record is read anew. So nothing shown is ever replaced by something older, and an agent that alone writes its records
asks for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from .cache import Cache

ENDED_MOST = 4096
"""Records whose ended lives are remembered until the log tells of their end."""

_UNFORESEEN = frozenset(
    {"uid", "revision", "createdAt", "updatedAt", "startedAt", "completedAt", "expiresAt", "lease", "secretEnvironment"}
)
"""What the daemon adds or leaves out, and so says nothing about whose image it is."""

_SECRET = "secretEnvironment"  # noqa: S105 - the name of a field, not a secret

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Image(NamedTuple):
    """A record as it was at one revision."""

    id: str
    uid: str | None
    revision: int
    body: msgspec.Raw | dict[str, Any] | None
    """None once it is deleted, or has left what is followed."""
    left: bool = False
    """It lives on, outside of what is followed."""

    def record(self) -> dict[str, Any]:
        return _decode(self.body) if isinstance(self.body, msgspec.Raw) else dict(self.body or {})


class Images:
    """How far what a cache shows is known to be true."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.guessed: set[str] = set()
        """Records that show own applied writes which no image has confirmed."""
        self._waiting: dict[str, Image] = {}
        """The last image of records with undecided writes of our own, or in doubt: what it says cannot be told yet."""
        self._ended: dict[str, list[str | None]] = {}
        """Lives that are known to be over, by their uids (None: never learned); images of them are still to come."""

    # --- own writes ------------------------------------------------------------------------------------------------

    def settled(self, id: str) -> None:
        """The last undecided write of a record was decided."""
        cache = self._cache
        if cache.followed and type(cache.views.get(id)) is dict:
            self.guessed.add(id)
        self._take_up(id)

    def unsettled(self, id: str) -> None:
        """A write had another fate than was foreseen: what is shown is a guess."""
        if self._cache.followed and type(self._cache.views.get(id)) is dict:
            self.guessed.add(id)

    def ended(self, id: str, uid: str | None) -> None:
        """A life is known to be over, and the log will tell of it."""
        cache = self._cache
        if cache.followed and not cache.listing:
            lives = self._ended.setdefault(id, [])
            if uid is None or uid not in lives:
                lives.append(uid)
            if len(self._ended) > ENDED_MOST:
                del self._ended[next(iter(self._ended))]

    def read(self, id: str) -> None:
        """The record was read, and is shown as it was then. What the log said meanwhile comes on top."""
        self.guessed.discard(id)
        self._take_up(id)

    def _take_up(self, id: str) -> None:
        """Look at the image that had to wait. Those before it were not kept, so less can be told from it."""
        image = self._waiting.pop(id, None)
        if image is None:
            return
        lives = self._ended.get(id, [])
        if self._cache.views.get(id) is not None:
            self.observe(image)
        elif image.body is None:
            self._forget_life(id, image.uid)
        elif image.uid not in lives:
            self._ended.pop(id, None)  # another life: what was ended here has been told of
            self._ask(id)  # it began since, or is over by now: the next answer will tell

    def _forget_life(self, id: str, uid: str | None) -> None:
        lives = self._ended.get(id, [])
        for known in (uid, None):
            if known in lives:
                lives.remove(known)
                break
        if not lives:
            self._ended.pop(id, None)

    def begin_listing(self) -> None:
        """What was deleted before this moment, no image behind the listing tells of."""
        self._ended.clear()

    def start_over(self) -> None:
        """The log goes on from elsewhere: other lives, other revisions."""
        self._waiting.clear()
        self._ended.clear()

    # --- what the log says -----------------------------------------------------------------------------------------

    def observe(self, image: Image) -> None:
        """Take in what the log says, as far as it is news."""
        if self._cache.has_own(image.id) or image.id in self._cache.wanted:
            self._keep_for_later(image)
        elif not self._is_of_an_ended_life(image):
            known = self._cache.views.get(image.id)
            if known is None:
                self._observe_unheld(image)
            else:
                self._observe_held(image, known)

    def _keep_for_later(self, image: Image) -> None:
        kept = self._waiting.get(image.id)
        if kept is None or kept.uid != image.uid or kept.revision <= image.revision:
            self._waiting[image.id] = image

    def _is_of_an_ended_life(self, image: Image) -> bool:
        ended = self._ended.get(image.id, ())
        if image.uid not in ended and None not in ended:
            return False
        lives = self._ended[image.id]
        if image.uid not in lives:
            if self._cache.views.get(image.id) is not None:
                self._ask(image.id)  # made again since, and neither life was read: nobody can say which one this is
            lives[lives.index(None)] = image.uid
        if image.body is None:
            self._forget_life(image.id, image.uid)
        return True

    def _observe_unheld(self, image: Image) -> None:
        """A record that is absent or not known."""
        cache = self._cache
        if image.body is None:
            return
        if image.revision == 1 or not cache.knows(image.id):
            self._take(image, image.record(), {})
        elif cache.scoped:
            self._ask(image.id)  # it may have been made outside of what is followed
        # Otherwise its life was over before we knew that it is absent: a new one begins with revision 1.

    def _observe_held(self, image: Image, known: dict[str, Any]) -> None:
        uid, revision = known.get("uid"), known.get("revision", 0)
        if uid is not None and uid != image.uid:
            if image.body is not None or image.id in self.guessed:
                self._ask(image.id)  # of an earlier life, or of the next one
        elif image.body is None:
            if uid is None or image.id in self.guessed:
                self._ask(image.id)  # of this life, or of the one before that our writes were made to
            else:
                self._take_away(image)
        elif image.revision >= revision:
            record = image.record()
            if image.id in self.guessed and (image.revision > revision or not _says_the_same(record, known)):
                self._ask(image.id)
            else:
                self._take(image, record, known)

    def _take(self, image: Image, record: dict[str, Any], known: dict[str, Any]) -> None:
        if _SECRET in known and _SECRET not in record:
            record[_SECRET] = known[_SECRET]  # the log holds no secrets, and does not say that one went
        self.guessed.discard(image.id)
        self._cache.take(image.id, record, other_life=known.get("uid") != image.uid)

    def _take_away(self, image: Image) -> None:
        if image.left or self._cache.scoped:
            self._cache.take_unknown(image.id)
        else:
            self._cache.take_absent(image.id)

    def _ask(self, id: str) -> None:
        self._cache.wanted[id] = None


def _says_the_same(image: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether an image holds what is shown, leaving aside what only the daemon writes."""
    return _foreseen(image) == _foreseen(known) and _token(image) == _token(known)


def _foreseen(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _UNFORESEEN}


def _token(record: dict[str, Any]) -> Any:
    lease = record.get("lease")
    return lease.get("token") if isinstance(lease, dict) else None
