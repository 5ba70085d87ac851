"""What the cache learns from the daemon: every record at the start, and again those whose state is in doubt.

Owns warming up, reading records anew, and taking in what answers say. Must not know connections: it is told how to ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from .adapter_errors import Closed
from .cache import Cache, Read
from .desk import Desk
from .errors import NotFound, StateError
from .options import Options

log = logging.getLogger("statesvc_client")

FETCH_SECONDS = 0.1
"""Between two tries to read a record that own writes keep touching."""

Ask = Callable[[str, dict[str, Any], float | None], Awaitable[dict[str, Any]]]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class Learner:
    """Keeps the caches of a desk in touch with the daemon."""

    def __init__(self, desk: Desk, options: Options, ask: Ask, spawn: Spawn) -> None:
        self._desk = desk
        self._options = options
        self._ask = ask
        self._spawn = spawn
        self._fetching = False
        self._warming: asyncio.Task[Any] | None = None

    # --- warming up ------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The daemon is there: read everything, the first time, and what was in doubt."""
        if self._options.warm and self._warming is None:
            self._warming = self._spawn(self._warm())
        self.fetch_wanted()

    def start_over(self) -> None:
        """State the daemon had acknowledged may be lost: what the caches hold has to be read anew."""
        for cache in self._desk.caches.values():
            cache.complete = False
        if self._options.warm:
            if self._warming is not None:
                self._warming.cancel()
            self._warming = self._spawn(self._warm(forced=True))

    async def until_warm(self) -> None:
        if self._warming is not None:
            await asyncio.wait([self._warming], timeout=self._options.connect_seconds)
            if not self._warming.done():
                log.warning("the cache is still being warmed; until then get() may raise NotCached")

    async def _warm(self, *, forced: bool = False) -> None:
        for kind in self._options.kinds:
            while True:
                try:
                    await self._warm_kind(kind, forced=forced)
                    break
                except StateError as problem:
                    log.warning("the cache could not be warmed yet: %s", problem)
                    await asyncio.sleep(self._options.backoff_cap)

    async def _warm_kind(self, kind: str, *, forced: bool) -> None:
        """Read every record within the scope, page by page, as far as the cache can hold them."""
        cache = self._desk.caches[kind]
        read = self._desk.with_lock(cache.begin_read)
        seen: set[str] = set()
        fields: dict[str, Any] = {"kind": kind, "limit": self._options.page_records}
        if self._options.cache_filter is not None:
            fields["filter"] = self._options.cache_filter
        try:
            while True:
                reply = await self._ask("list", fields, None)
                records = reply["jobs" if kind == "job" else "records"]
                self._desk.with_lock(partial(_take_page, cache, records, read, seen, forced))
                fields["cursor"] = reply.get("nextCursor")
                if not fields["cursor"] or len(seen) >= cache.most:
                    break
            complete = not fields["cursor"] and self._options.cache_filter is None and len(seen) <= cache.most
            self._desk.with_lock(lambda: cache.learn_all(seen, read, complete=complete))
            self.fetch_wanted()
        finally:
            self._desk.with_lock(lambda: cache.end_read(read))

    # --- single records --------------------------------------------------------------------------------------------

    def learn(self, op: str, message: dict[str, Any], reply: dict[str, Any], read: Read) -> None:
        """What an answer says about records, the cache takes in. Called with the desk's lock held."""
        kind = message.get("kind", "job")
        cache = self._desk.caches[kind]
        if op == "get":
            cache.learn(reply.get("job", reply.get("record")) or {}, read)
        elif op == "list":
            records = reply.setdefault("jobs" if kind == "job" else "records", [])
            for record in records:
                cache.learn(record, read)
        elif op == "delete":
            cache.learn_absent(target(message), read)
        elif op in ("create", "update", "sync"):
            # Answers to writes leave secrets out, or the records altogether: what was written is asked for.
            cache.wanted |= dict.fromkeys(_written(message, cache.id_field))
            asyncio.get_running_loop().call_soon(self.fetch_wanted)

    async def fetch(self, id: str, kind: str, timeout: float | None) -> dict[str, Any] | None:
        try:
            reply = await self._ask("get", {"jobId": id} if kind == "job" else {"kind": kind, "id": id}, timeout)
        except NotFound:
            return None
        record: dict[str, Any] = reply["job" if kind == "job" else "record"]
        return record

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


def target(message: dict[str, Any]) -> str:
    return str(message.get("jobId") or message.get("id") or "")


def _written(message: dict[str, Any], id_field: str) -> list[str]:
    """The ids of the records a call wrote."""
    records = message.get("jobs") or message.get("records") or [message.get("job") or message.get("record") or {}]
    ids = [target(message), *(record.get(id_field) for record in records if isinstance(record, dict))]
    return [id for id in ids if isinstance(id, str) and id]


def _take_page(cache: Cache, records: list[dict[str, Any]], read: Read, seen: set[str], forced: bool) -> None:
    for record in records:
        seen.add(str(record.get(cache.id_field)))
        cache.learn(record, read, forced=forced)
