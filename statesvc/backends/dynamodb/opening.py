"""Opening the two tables: whether they can be served, by what they are walked, and taking part in their epoch.

Owns what an open engine has. Must not know the port's calls.

A table of jobs that Joblet made is opened as it is. Until its jobs have been put into our indexes, which `statesvc
init` does, it is gone through as a whole by everything that lists. Its companion is made here when it has the name
that follows from the table's; a companion that the configuration names is expected to be there, lest a slip of the pen
begin an empty store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from statesvc_client.errors import Unavailable

from ... import logs
from ..port import BeingReplaced
from .calls import Calls, InUse, Lost
from .committing import FIND_OUT_SECONDS
from .fetching import Fetcher
from .hints import Hints
from .items import Adopt
from .kinds import KnownKinds
from .known import Recent
from .layout import INDEXES, Tables
from .life import Life
from .registry import FORMAT, Meta, Registry, Seen
from .tables import Wanted, definition, describe, inspect
from .tails import TRUST_SECONDS
from .walks import Walks
from .whole import Loads, Whole

if TYPE_CHECKING:
    from ...config.model import Dynamodb

log = logs.get(__name__)

DAY_SECONDS = 86_400

_REPLACED = "everything in the tables is being replaced"

LAG_SECONDS = 1.0
"""By how much a look at the registry may lag behind what was written."""

MADE_LOOKS, LOOK_SECONDS = 120, 0.5
"""How often it is looked whether the companion is there, and how long is waited in between. It takes ten seconds."""


class Opened:
    """What an open engine has."""

    def __init__(self, fetcher: Fetcher, options: Dynamodb, replaced: Callable[[], None], loads: Loads) -> None:
        self._options = options
        self._replaced = replaced
        self._loads = loads
        self._walked = False
        self._barred = ""
        self._renewing = asyncio.Lock()
        """Whoever has replaced everything also sees, when it looks, that everything was replaced."""
        self.fetcher = fetcher
        self.registry = Registry(fetcher)
        self.recent = Recent(max(options.index_lag_seconds, 1.0))
        self.walks = Walks(fetcher, Hints(fetcher), self.recent)
        self.whole = Whole(
            fetcher, self.registry, TRUST_SECONDS + LAG_SECONDS + options.timeout_seconds + FIND_OUT_SECONDS
        )
        self.kinds = KnownKinds(fetcher, self.registry, self.recent)
        self.life: Life

    def check_not_barred(self) -> None:
        """Raises while the tables must not be used: they are being replaced, or are for newer versions."""
        if self._barred:
            raise Unavailable(self._barred)

    async def leave(self) -> None:
        """Everything is to be replaced: nothing is written or read until the new epoch is taken part in."""
        self._barred = _REPLACED
        await self.life.leave()

    async def begin(self, *, indexed: bool) -> None:
        walked = indexed and await self.fetcher.is_empty(self.fetcher.tables.jobs)
        seen = await self._loaded(await self.registry.found(walked=walked))
        self._walked = meta_of(seen).walked
        if not (indexed and self._walked):
            log.warning("jobs_not_indexed", table=self.fetcher.tables.jobs)
            self._use_indexes(use=False)
        await self._begin_life(seen)

    async def begin_anew(self) -> None:
        """Take part in the epoch that has begun, if another has."""
        async with self._renewing:
            seen = await self.registry.look()
            if meta_of(seen).loading:
                await self.leave()
            seen = await self._loaded(seen)
            if meta_of(seen).epoch != self.life.epoch:
                await self.life.end()
                self.recent.clear()
                await self._begin_life(seen)
            self._barred = ""

    async def _loaded(self, seen: Seen) -> Seen:
        """What the registry says when no load is under way: one that was abandoned is finished. Raises while another
        is at it, or may be."""
        meta = meta_of(seen)
        _check_format(meta)
        if not meta.loading:
            return seen
        if not self._loads.is_abandoned(meta):
            raise BeingReplaced(_REPLACED)
        log.warning("load_finished_for_another", epoch=meta.loading)
        await self.whole.take_over(meta)
        return await self.registry.look()

    async def _begin_life(self, seen: Seen) -> None:
        life = Life(self.fetcher, self.registry, meta_of(seen).epoch, self._options, self.recent)
        self.kinds.begin(life.epoch)
        self.kinds.take_in(seen)
        try:
            await life.begin(seen, self._looked)
        except BaseException:
            await life.end()  # it may hold a lane by now
            raise
        self.life = life

    def _use_indexes(self, *, use: bool) -> None:
        self.fetcher.tables = self.fetcher.tables._replace(walked=use)

    def _looked(self, seen: Seen) -> None:
        """What every look at the registry shows."""
        self.kinds.take_in(seen)
        meta = meta_of(seen)
        if meta.walked and not self._walked:
            # Somebody has made the indexes since, and put every job into them.
            self._walked = True
            self._use_indexes(use=True)
        if meta.epoch != self.life.epoch or meta.loading or meta.oldest > FORMAT:
            self._barred = _too_new(meta) or _REPLACED
            self._replaced()

    def measures(self) -> dict[str, int]:
        tails = self.life.tails
        return {
            "lanes": len(tails.lanes),
            "lanesOfOthers": len(tails.held),
            "logBytesInMemory": sum(tail.bytes for tail in tails.lanes.values()),
            "recordsKnown": len(self.life.memory),
        }


def meta_of(seen: Seen) -> Meta:
    if seen.meta is None:
        raise Unavailable("the companion table has lost its registry: run `statesvc init`")
    return seen.meta


def _check_format(meta: Meta) -> None:
    if too_new := _too_new(meta):
        raise Unavailable(too_new)


def _too_new(meta: Meta) -> str:
    """Why this version must not write to the tables; "" when it may."""
    if meta.oldest <= FORMAT:
        return ""
    why = f"the tables are of format {meta.format}, and this version writes {FORMAT}"
    return f"{why}; they take {meta.oldest} or newer: use a newer version"


def fetcher_on(calls: Calls, options: Dynamodb, key: str, adopt: Adopt) -> Fetcher:
    """The tables the configuration names, with jobs under this key."""
    wanted = Wanted.of(options)
    tables = Tables(wanted.jobs, wanted.companion, key, wanted.ttl_attribute, options.ttl_days * DAY_SECONDS)
    return Fetcher(calls, tables, adopt, options.timeout_seconds)


async def open_tables(
    calls: Calls, options: Dynamodb, adopt: Adopt, replaced: Callable[[], None], loads: Loads
) -> Opened:
    wanted, ours = Wanted.of(options), frozenset(shape.name for shape in INDEXES)
    if not options.companion_table:
        await _make_companion(calls, wanted)
    found = await inspect(calls, wanted)
    for lacking in found.lacking:
        log.warning("index_missing", what=lacking)
    if not found.indexes[wanted.companion] >= ours:
        raise Unavailable(f"table {wanted.companion!r} lacks indexes: make them with `statesvc init`")
    opened = Opened(fetcher_on(calls, options, found.key, adopt), options, replaced, loads)
    await opened.begin(indexed=found.indexes[wanted.jobs] >= ours)
    return opened


async def _make_companion(calls: Calls, wanted: Wanted) -> None:
    """Give a table of jobs its companion, if it has none."""
    if await describe(calls, wanted.companion) is not None or await describe(calls, wanted.jobs) is None:
        return
    try:
        await calls.call("CreateTable", definition(wanted, wanted.companion))
    except (InUse, Lost):
        pass  # another daemon was quicker, or our own first try whose reply was lost
    else:
        log.warning("companion_made", table=wanted.companion)
    for _ in range(MADE_LOOKS):
        table = await describe(calls, wanted.companion)
        if table is not None and table.status == "ACTIVE":
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise Unavailable(f"table {wanted.companion!r} is still being made: try again")
