"""What the cache learns from the daemon: every record at the start, every change from then on, and what is in doubt.

Owns warming up, following, reading records anew, and taking in what answers say. Must not know connections: it is told
how to ask and how to follow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec

from .adapter_errors import Closed
from .backoff import Backoff
from .cache import Cache, Read
from .calls import is_numbered
from .desk import Desk
from .errors import Gone, NotFound, StateError
from .feed import Decoder, Line, Take
from .images import Answered, Image
from .options import Options

log = logging.getLogger("statesvc_client")

FETCH_SECONDS = 0.1
"""Between two tries to read a record that own writes keep touching."""

SLICE_EVENTS = 32
"""Events taken in before the lock is let go: about a tenth of a millisecond."""

Ask = Callable[[str, dict[str, Any], float | None], Awaitable[dict[str, Any]]]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
Follow = Callable[[dict[str, Any], Decoder[Image], Take[Image]], Awaitable[None]]
"""Follow a watch until it cannot go on."""

_decoder = msgspec.json.Decoder(Line[Image])


class Learner:
    """Keeps the caches of a desk in touch with the daemon."""

    def __init__(self, desk: Desk, options: Options, ask: Ask, spawn: Spawn, follow: Follow) -> None:
        self._desk = desk
        self._options = options
        self._ask = ask
        self._spawn = spawn
        self._follow = follow
        self._fetching = False
        self._keeping: list[asyncio.Task[Any]] = []
        self._cold: set[str] = set()
        """Kinds that were not read yet."""
        self._warm = asyncio.Event()
        self.on_news: Callable[[], None] = lambda: None
        """Told whenever a cache may show something else."""
        self.on_listed_again: Callable[[], None] = lambda: None
        """Told when the log could not be followed any more: it was compacted, or the store began another life."""

    # --- warming up and following ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """The daemon is there: read everything, the first time, and what was in doubt."""
        if self._options.warm and not self._keeping:
            self._keep_all(forced=False)
        self.fetch_wanted()

    def start_over(self) -> None:
        """State the daemon had acknowledged may be lost: what the caches hold has to be read anew, and what is not read
        as a whole is let go."""
        for cache in self._desk.caches.values():
            self._desk.with_lock(cache.start_over)
            if not self._options.warm or cache.kind not in self._options.kinds:
                self._desk.with_lock(cache.distrust)
        if self._options.warm:
            for task in self._keeping:
                task.cancel()
            self._keep_all(forced=True)

    def _keep_all(self, *, forced: bool) -> None:
        self._cold = set(self._options.kinds)
        self._warm.clear()
        self._keeping = [self._spawn(self._keep(kind, forced=forced)) for kind in self._options.kinds]

    async def until_warm(self) -> None:
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                if self._keeping:
                    await self._warm.wait()
        except TimeoutError:
            log.warning("the cache is still being warmed; until then get() may raise NotCached")

    async def _keep(self, kind: str, *, forced: bool) -> None:
        """Read every record, then follow what happens to them; where that is not possible any more, begin again."""
        cache = self._desk.caches[kind]
        backoff = Backoff(self._options.backoff_base, self._options.backoff_cap)
        again = False
        while True:
            as_of = await self._until_listed(cache, forced=forced)
            if again:  # not before: a watch ends as soon as a restore begins, and a list is answered when it is over
                self.on_listed_again()
            again = True
            forced = False  # from here on, older is old again
            self._cold.discard(kind)
            if not self._cold:
                self._warm.set()
            if as_of is None or not self._options.follow or not await self._follow_from(cache, as_of):
                cache.followed = False
                return
            await asyncio.sleep(backoff.next())

    async def _follow_from(self, cache: Cache, as_of: str) -> bool:
        """Follow as long as possible; returns whether to read everything anew and go on."""
        request = {**self._scope(cache.kind), "after": as_of}
        try:
            await self._follow(request, _decoder, partial(self._observe, cache))
        except Gone as problem:
            log.info("changes of kind %s cannot be followed from here (%s): reading them anew", cache.kind, problem)
            return True
        except StateError as problem:
            log.warning("the daemon will not tell of changes of kind %s: %s", cache.kind, problem)
        return False

    def _observe(self, cache: Cache, images: list[Image]) -> None:
        for start in range(0, len(images), SLICE_EVENTS):
            self._desk.with_lock(partial(cache.images.observe_all, images[start : start + SLICE_EVENTS]))
        self.fetch_wanted()
        self.on_news()

    async def _until_listed(self, cache: Cache, *, forced: bool) -> str | None:
        while True:
            try:
                return await self._list(cache, forced=forced)
            except StateError as problem:
                log.warning("the cache could not be warmed yet: %s", problem)
                await asyncio.sleep(self._options.backoff_cap)

    async def _list(self, cache: Cache, *, forced: bool) -> str | None:
        """Read every record within the scope, page by page, as far as the cache can hold them.

        Returns where to follow from: the place of the first page, because those read later may hold later changes, and
        what comes twice is recognised by its revision.
        """
        read = self._desk.with_lock(partial(_begin_listing, cache, followed=self._options.follow))
        seen: set[str] = set()
        fields: dict[str, Any] = {**self._scope(cache.kind), "limit": self._options.page_records}
        as_of: str | None = None
        try:
            while True:
                reply = await self._ask("list", fields, None)
                as_of = as_of or reply.get("asOf")
                records = reply["jobs" if cache.kind == "job" else "records"]
                self._desk.with_lock(partial(_take_page, cache, records, read, seen, forced))
                fields["cursor"] = reply.get("nextCursor")
                if not fields["cursor"] or len(seen) >= cache.most:
                    break
            complete = not fields["cursor"] and not cache.scoped and len(seen) <= cache.most
            self._desk.with_lock(lambda: cache.learn_all(seen, read, complete=complete))
            self.fetch_wanted()
            self.on_news()
        finally:
            self._desk.with_lock(partial(_end_listing, cache, read))
        return as_of

    def _scope(self, kind: str) -> dict[str, Any]:
        scope = self._options.cache_filter
        return {"kind": kind} if scope is None else {"kind": kind, "filter": scope}

    # --- answers ---------------------------------------------------------------------------------------------------

    async def learn_from(self, message: dict[str, Any], asked: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """The answer, once the cache has taken in what it says."""
        if is_numbered(message["op"]) and message["op"] != "delete":
            epochs, moments = self._desk.tally.epochs, self._desk.with_lock(lambda: self._moments(message))
            reply = await asked
            self._desk.tally.duplicates += bool(reply.get("duplicate"))
            # In another epoch it may tell of what was lost since, or be the first word of what was written there.
            if epochs == self._desk.tally.epochs:
                self._desk.with_lock(lambda: self._learn_written(message["op"], message, reply, moments))
            else:
                self._desk.with_lock(lambda: self._doubt_written(message["op"], message, reply))
            self.fetch_wanted()
            return reply
        cache = self._desk.caches[message.get("kind", "job")]
        read = self._desk.with_lock(partial(cache.begin_read, flushed=False))
        try:
            reply = await asked
            self._desk.with_lock(lambda: self._learn(message["op"], message, reply, read))
        except NotFound:
            if message["op"] == "get":
                self._desk.with_lock(lambda: cache.learn_absent(_target(message), read))
            raise
        finally:
            self._desk.with_lock(lambda: cache.end_read(read))
        self.fetch_wanted()
        return reply

    def _learn(self, op: str, message: dict[str, Any], reply: dict[str, Any], read: Read) -> None:
        """What an answer to a question says. Called with the desk's lock held.

        Own writes may have touched a record while the question was under way; about those it says nothing.
        """
        cache = self._desk.caches[message.get("kind", "job")]
        if op == "get":
            cache.learn(_record(reply) or {}, read)
        elif op == "list":
            for record in reply.setdefault("jobs" if cache.kind == "job" else "records", []):
                cache.learn(record, read)
        elif op == "delete" and read.void:
            self._doubt_written(op, message, reply)
        elif op == "delete":
            cache.learn_absent(_target(message), read)

    def _moments(self, message: dict[str, Any]) -> dict[str, int]:
        """When a call is asked, for each kind it may tell of. Called with the desk's lock held."""
        kinds = {part.get("kind", "job") for part in (message, *(message.get("ops") or ()))}
        return {kind: self._desk.caches[kind].images.moment for kind in kinds}

    def _learn_written(self, op: str, message: dict[str, Any], reply: dict[str, Any], moments: dict[str, int]) -> None:
        """What an answer to a write says that was asked at these moments. Called with the desk's lock held."""
        for write, part, result in _each_write(op, message, reply):
            cache = self._desk.caches[part.get("kind", "job")]
            records = _records(result)
            for record in records:
                cache.images.observe(_image_of(record, cache.id_field), moments[cache.kind])
            written = _written(part, cache.id_field)
            if write in ("create", "update", "sync"):
                # Answers to writes leave secrets out, or the records altogether: what was written is asked for.
                cache.wanted |= dict.fromkeys(written)
            elif not records and not cache.followed:
                cache.wanted |= dict.fromkeys(id for id in written if id in cache.views)

    def _doubt_written(self, op: str, message: dict[str, Any], reply: dict[str, Any]) -> None:
        """Ask for what a write concerned whose answer cannot be taken in. Called with the desk's lock held."""
        for _, part, result in _each_write(op, message, reply):
            cache = self._desk.caches[part.get("kind", "job")]
            cache.wanted |= dict.fromkeys(_written(part, cache.id_field) + _ids(_records(result), cache.id_field))

    async def fetch(self, id: str, kind: str, timeout: float | None) -> dict[str, Any] | None:
        try:
            reply = await self._ask("get", {"jobId": id} if kind == "job" else {"kind": kind, "id": id}, timeout)
        except NotFound:
            return None
        return _record(reply)

    # --- what is in doubt ------------------------------------------------------------------------------------------

    def fetch_wanted(self) -> None:
        if not self._fetching and any(cache.wanted for cache in self._desk.caches.values()):
            self._fetching = True
            self._spawn(self._fetch_all_wanted())

    async def _fetch_all_wanted(self) -> None:
        """Ask for records whose true state is not known; what cannot be asked now is asked after reconnecting."""
        try:
            while wanted := self._desk.wanted():
                for kind, ids in wanted.items():
                    for start in range(0, len(ids), self._options.page_records):
                        await self._fetch_page(kind, ids[start : start + self._options.page_records])
                self.on_news()
                # What own writes touched meanwhile is still wanted; it may be a busy record.
                await asyncio.sleep(FETCH_SECONDS if self._desk.wanted() else 0)
        except (StateError, Closed) as problem:
            log.debug("records were not read anew: %s", problem)
        finally:
            self._fetching = False

    async def _fetch_page(self, kind: str, ids: list[str]) -> None:
        cache = self._desk.caches[kind]
        read = self._desk.with_lock(cache.begin_read)
        try:
            reply = await self._ask("list", {"kind": kind, "filter": {"ids": ids}, "limit": len(ids)}, None)
            found = {record.get(cache.id_field) for record in reply["jobs" if kind == "job" else "records"]}
            if not reply.get("nextCursor"):
                for id in [id for id in ids if id not in found]:
                    self._desk.with_lock(partial(cache.learn_absent, id, read))
        finally:
            self._desk.with_lock(partial(cache.end_read, read))


def _target(message: dict[str, Any]) -> str:
    return str(message.get("jobId") or message.get("id") or "")


def _record(reply: dict[str, Any]) -> dict[str, Any] | None:
    return reply.get("job", reply.get("record"))


def _records(reply: dict[str, Any]) -> list[dict[str, Any]]:
    one = _record(reply)
    return [one] if one is not None else reply.get("jobs") or reply.get("records") or []


def _each_write(
    op: str, message: dict[str, Any], reply: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A write with its answer; of a transaction, each of its writes."""
    if op != "txn":
        yield op, message, reply
        return
    for part, result in zip(message["ops"], reply.get("results", ()), strict=False):
        yield part.get("op", ""), part, result


def _written(message: dict[str, Any], id_field: str) -> list[str]:
    """The ids of the records a call wrote."""
    records = message.get("jobs") or message.get("records") or [_record(message) or {}]
    target = _target(message)
    return [*([target] if target else []), *_ids(records, id_field)]


def _ids(records: list[Any], id_field: str) -> list[str]:
    ids = [record.get(id_field) for record in records if isinstance(record, dict)]
    return [id for id in ids if isinstance(id, str) and id]


def _image_of(record: dict[str, Any], id_field: str) -> Image:
    return Answered(str(record.get(id_field)), record.get("uid"), record.get("revision", 0), shown=record)


def _begin_listing(cache: Cache, *, followed: bool) -> Read:
    cache.followed, cache.listing = followed, True
    cache.images.begin_listing()
    return cache.begin_read()


def _end_listing(cache: Cache, read: Read) -> None:
    cache.listing = False
    cache.end_read(read)


def _take_page(cache: Cache, records: list[dict[str, Any]], read: Read, seen: set[str], forced: bool) -> None:
    for record in records:
        seen.add(str(record.get(cache.id_field)))
        cache.learn(record, read, forced=forced)
