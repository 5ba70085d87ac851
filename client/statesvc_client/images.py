"""What the log says about records, put beside what the cache shows: newer is taken, older is not, doubt is asked.

Owns when the image of a record, as it was at one revision, may replace what is shown. Must not know connections, nor
how images come: in the order of the log for each record, or inside an answer. Whoever calls holds the lock.

Own writes come back as images too, some time before or after they are acknowledged, and an acknowledgement does not
say which revision a write made. What is shown after own writes were applied is therefore a guess, at the lowest
revision it can have: the image of that revision confirms it if it says the same, and so does any answer to what was
asked after the last of those writes was decided. Otherwise somebody else wrote in between, and the record is read
anew. So nothing shown is ever replaced by something older, and an agent that alone writes its records asks for
nothing, unless it deletes what it has only just made, or changes at once what it has made where only some records are
followed: whose late images come then cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from .spelling import SECRET

if TYPE_CHECKING:
    from .cache import Cache
    from .writes import Write

ENDED_MOST = 4096
"""Records whose ended lives are remembered until the log tells of their end."""

_UNFORESEEN = frozenset(
    {"uid", "revision", "createdAt", "updatedAt", "startedAt", "completedAt", "expiresAt", "lease", SECRET}
)
"""What the daemon adds or leaves out, and so says nothing about whose image it is."""

_ADDED = _UNFORESEEN - {"lease"}

_OVER = frozenset({"deleted", "left"})

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Image(Struct, gc=False):
    """A record as it was at one revision. Spelled as an event of the log, which is decoded to it."""

    id: str
    uid: str | None = None
    revision: int = 0
    body: Raw = field(default=Raw(), name="record")
    """Empty once it is deleted, or has left what is followed, or where an event has so much to say that the record does
    not fit its line. Decoded when it is looked at: most of a busy record's are not."""
    type: str = ""
    cursor: str = ""

    @property
    def is_over(self) -> bool:
        """It is deleted, or has left what is followed."""
        return self.type in _OVER

    @property
    def left(self) -> bool:
        """It lives on, outside of what is followed."""
        return self.type == "left"

    def record(self) -> dict[str, Any]:
        return _decode(self.body)


class Answered(Image, gc=False):
    """A record as an answer showed it."""

    body: Raw = field(default=Raw(b"{}"), name="record")
    shown: dict[str, Any] = {}

    def record(self) -> dict[str, Any]:
        return self.shown.copy()


class Guess(NamedTuple):
    """What is known of own applied writes that no image has confirmed."""

    fields: dict[str, Any] | None
    """What they have set: an image of this life that has it too, at the revision shown, holds them all. None where only
    the whole record can tell."""
    since: int
    """The moment at which the last of them was decided."""


class Images:
    """How far what a cache shows is known to be true."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.guessed: dict[str, Guess] = {}
        """Records that show own applied writes which no image has confirmed."""
        self.moment = 0
        """Grows with whatever may make answers old that are under way: own writes decided, records let go of."""
        self.waiting: dict[str, Image] = {}
        """The last image of records with undecided writes of our own, or in doubt: what it says cannot be told yet."""
        self._ended: dict[str, list[str | None]] = {}
        """Lives that are known to be over, by their uids: images of them may still come. None stands for those whose
        uid was never learned: until the log tells of a life that is known, an image of any other is asked about."""

    # --- own writes ------------------------------------------------------------------------------------------------

    def settled(self, id: str) -> None:
        """The last undecided write of a record was decided."""
        cache = self._cache
        if type(cache.views.get(id)) is not dict:
            self.guessed.pop(id, None)
        elif cache.followed:
            self._guess(id, None)
        self.take_up(id)

    def unsettled(self, id: str) -> None:
        """A write had another fate than was foreseen: what is shown is a guess."""
        if self._cache.followed and type(self._cache.views.get(id)) is dict:
            self._guess(id, None)

    def guess(self, id: str, fields: dict[str, Any] | None) -> None:
        """An own write was applied that set these fields, or did more than that."""
        before = self.guessed.get(id)
        if before is not None:
            fields = None if before.fields is None or fields is None else before.fields | fields
        self._guess(id, fields)

    def _guess(self, id: str, fields: dict[str, Any] | None) -> None:
        self.guessed[id] = Guess(fields, self.moment)

    def guess_all(self, ids: Iterable[str]) -> None:
        """Own writes of these records have a fate that nobody will tell."""
        self.moment += 1
        for id in ids:
            self._guess(id, None)

    def ended(self, id: str, uid: str | None) -> None:
        """A life is known to be over, and the log will tell of it."""
        cache = self._cache
        if cache.followed and not cache.listing:
            lives = self._ended.setdefault(id, [])
            if uid not in lives:
                lives.append(uid)
            if len(self._ended) > ENDED_MOST:
                del self._ended[next(iter(self._ended))]

    def read(self, id: str) -> None:
        """The record was read, and is shown as it was then. What the log said meanwhile comes on top."""
        self.guessed.pop(id, None)
        self.take_up(id)

    def confirmed_at_once(self, write: Write, known: dict[str, Any]) -> bool:
        """Show the image of an own write that came before its acknowledgement, if it surely is what is to be shown."""
        id, image = write.id, self.waiting[write.id]
        if (
            known.get("uid") != image.uid
            or image.uid is None
            or write.revision is None
            or image.revision != write.revision + 1
            or not image.body
            or id in self.guessed
            or id in self._ended
            or id in self._cache.wanted
            or SECRET in known
        ):
            return False
        record = image.record()
        if not _holds(record, write.fields):
            return False
        del self.waiting[id]
        self._cache.views[id] = record
        return True

    def take_up(self, id: str) -> None:
        """Look at the image that had to wait. Those before it were not kept, so less can be told from it."""
        image = self.waiting.pop(id, None)
        if image is None:
            return
        lives = self._ended.get(id, [])
        if self._cache.views.get(id) is not None:
            self.observe(image)
        elif image.is_over:
            self._forget_life(id, image.uid)
        elif image.uid not in lives:
            self._ask(id)  # it began since, or is over by now: the next answer will tell

    def _forget_life(self, id: str, uid: str | None) -> None:
        lives = self._ended.get(id, [])
        if uid in lives:
            lives.remove(uid)
        if not lives:
            self._ended.pop(id, None)

    def begin_listing(self) -> None:
        """What was deleted before this moment, no image behind the listing tells of."""
        self._ended.clear()

    def start_over(self) -> None:
        """The log goes on from elsewhere: other lives, other revisions."""
        self.waiting.clear()
        self._ended.clear()

    # --- what the log says -----------------------------------------------------------------------------------------

    def observe_all(self, images: Iterable[Image]) -> None:
        """Take in events of the log, as far as they are news. One comes for each write there is, so the common case,
        the next state of a record that is held and not in doubt, is made out here, nearly without calls."""
        cache, guessed, ended = self._cache, self.guessed, self._ended
        own, wanted, views = cache.own, cache.wanted, cache.views
        for image in images:
            id = image.id
            if id in own or id in wanted:
                self._keep_for_later(image)
                continue
            known = views.get(id)
            if (
                known is None
                or id in ended
                or not image.body
                or image.uid is None
                or known.get("uid") != image.uid
                or SECRET in known
            ):
                self.observe(image)
                continue
            revision = known.get("revision", 0)
            if image.revision < revision:
                continue
            record = _decode(image.body)
            if id in guessed:
                if image.revision > revision or not _confirms(record, known, guessed[id].fields):
                    wanted[id] = None
                    continue
                del guessed[id]
            views[id] = record
        if len(views) > cache.most:
            cache.evict()

    def observe(self, image: Image, asked: int | None = None) -> None:
        """Take in what an event says, or an answer to what was asked at that moment, as far as it is news."""
        id, cache = image.id, self._cache
        if id in cache.own or id in cache.wanted:
            self._keep_for_later(image)
        elif id not in self._ended or not self._is_of_an_ended_life(image):
            known = cache.views.get(id)
            if known is None:
                self._observe_unheld(image, asked)
            else:
                self._observe_held(image, known, asked)

    def _keep_for_later(self, image: Image) -> None:
        kept = self.waiting.get(image.id)
        if kept is not None and kept.uid != image.uid and type(image) is Answered:
            self._ask(image.id)  # it has no place in the log's order: either life may be the later one
        elif kept is None or kept.uid != image.uid or kept.revision <= image.revision:
            self.waiting[image.id] = image

    def _is_of_an_ended_life(self, image: Image) -> bool:
        """Whether there is nothing to take from an image: it is of an ended life, or may be."""
        id, lives = image.id, self._ended[image.id]
        if image.uid in lives:
            if image.is_over:
                self._forget_life(id, image.uid)
            return True
        known = self._cache.views.get(id)
        alive = None if known is None else known.get("uid")
        if alive is None and None in lives:
            if known is not None or not image.is_over:
                self._ask(id)  # nobody can say which life this is
            return True
        if alive == image.uid:
            self._forget_life(id, None)  # the log tells of lives in their order: those before this one are behind us
        return False

    def _observe_unheld(self, image: Image, asked: int | None) -> None:
        """A record that is absent or not known."""
        cache = self._cache
        if not image.body:
            self.moment += 1
        elif asked is not None and asked != self.moment:
            self._ask(image.id)  # it may have been shown since, and let go of, or be gone
        elif image.revision == 1 or not cache.knows(image.id):
            self.guessed.pop(image.id, None)
            self._take(image, image.record(), {})
        elif cache.scoped:
            self._ask(image.id)  # it may have been made outside of what is followed
        # Otherwise its life was over before we knew that it is absent: a new one begins with revision 1.

    def _observe_held(self, image: Image, known: dict[str, Any], asked: int | None) -> None:
        id, uid, revision = image.id, known.get("uid"), known.get("revision", 0)
        if uid is not None and uid != image.uid:
            if id in self.guessed or not image.is_over:
                self._ask(id)  # of an earlier life, or of the next one
        elif image.left and uid is not None and image.revision < revision and id not in self.guessed:
            pass  # what is shown was told of it later
        elif image.is_over:
            if uid is None or id in self.guessed:
                self._ask(id)  # of this life, or of the one before that our writes were made to
            else:
                self._take_away(image)
        elif image.revision >= revision:
            if not image.body:
                if image.revision > revision or id in self.guessed:
                    self._ask(id)
                return
            record = image.record()
            if not self._is_to_be_shown(image, record, known, asked):
                self._ask(id)
                return
            self.guessed.pop(id, None)
            self._take(image, record, known)
        elif uid is None and self._cache.scoped:
            self._ask(id)  # out of sight its life may have ended: this one may be of the next

    def _is_to_be_shown(self, image: Image, record: dict[str, Any], known: dict[str, Any], asked: int | None) -> bool:
        """Whether an image, of this life and no older revision, holds every own write that was applied."""
        guess = self.guessed.get(image.id)
        if asked is not None and not self._cache.followed:
            return asked == self.moment  # nothing else will tell, and no guesses are kept
        if guess is None:
            return True
        if asked is not None and guess.since <= asked and not ("uid" not in known and SECRET in known):
            return True
        return image.revision == known.get("revision", 0) and _confirms(record, known, guess.fields)

    def _take(self, image: Image, record: dict[str, Any], known: dict[str, Any]) -> None:
        if SECRET in known and SECRET not in record:
            record[SECRET] = known[SECRET]  # the log holds no secrets, and does not say that one went
        self._cache.take(image.id, record, other_life=known.get("uid") != image.uid)

    def _take_away(self, image: Image) -> None:
        if image.left or self._cache.scoped:
            self._cache.take_unknown(image.id)
        else:
            self._cache.take_absent(image.id)

    def _ask(self, id: str) -> None:
        self._cache.wanted[id] = None


def _confirms(image: dict[str, Any], known: dict[str, Any], written: dict[str, Any] | None) -> bool:
    """Whether an image holds what own writes have set. Whatever else it says is newer than what is shown."""
    return (written is not None and _holds(image, written)) or _says_the_same(image, known)


def _holds(image: dict[str, Any], written: dict[str, Any]) -> bool:
    for name, value in written.items():  # noqa: SIM110 - half the cost of `all`, or of comparing items
        if name not in image or image[name] != value:
            return False
    return True


def _says_the_same(image: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether an image holds what is shown, leaving aside what only the daemon writes."""
    if known.items() <= image.items() and image.keys() - known.keys() <= _ADDED:
        return True  # the common case: the daemon has added its own to what was foreseen
    return _foreseen(image) == _foreseen(known) and _token(image) == _token(known)


def _foreseen(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _UNFORESEEN}


def _token(record: dict[str, Any]) -> Any:
    lease = record.get("lease")
    return lease.get("token") if isinstance(lease, dict) else None
