"""The engine on DynamoDB: what the port asks for, from the rooms of this package.

Owns opening, closing and beginning anew. Must not know rules, nor how anything is done.

    layout, items, slots       where everything lies, and what it looks like
    calls, fetching            asking DynamoDB
    registry, lanes, tails     what all daemons agree on; our lane of the log; everybody's
    building, committing       from units to transactions, and what became of them
    following                  reading the log
    walks, hints, kinds        queries
    whole, checking            everything at once
    tables, preparing, opening the two tables themselves
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from statesvc_client.errors import StateError, Unavailable

from ... import logs
from ..port import Cursor, Dump, Engine, Guess, Key, LogEntry, LogKept, Query, Result, Row, Step, Unit
from .access import Access
from .calls import Calls
from .checking import index_keys
from .committing import FIND_OUT_SECONDS
from .fetching import Found
from .layout import JOB, Item
from .life import Life
from .opening import Opened, fetcher_on, meta_of, open_tables
from .preparing import Preparation
from .registry import Registry
from .tables import JOB_KEYS, Wanted, inspect
from .whole import Loads

if TYPE_CHECKING:
    from ...config.model import Dynamodb

log = logs.get(__name__)

COMMIT_SHARE = 4
"""Of the connections one in so many is for a commit of its own: the units of each take more."""

FIRST_ANEW_SECONDS, LAST_ANEW_SECONDS = 0.5, 10.0
"""How often a daemon looks whether another is done with replacing everything: less and less."""


class DynamodbEngine(Engine):
    """Joblet's table and its companion."""

    name = "dynamodb"
    immediate = False

    def __init__(self, options: Dynamodb) -> None:
        self.durability = "replicated"
        self.epoch = ""
        self.side_by_side = max(1, options.connections // COMMIT_SHARE)
        self.timeout_seconds = options.timeout_seconds
        self.commit_seconds = options.timeout_seconds + FIND_OUT_SECONDS
        self._options = options
        self._calls = Calls(Access.of(options))
        self._loads = Loads()
        self._opened: Opened | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._replacing = False
        """This daemon itself replaces everything just now."""

    # --- open and close ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._calls.open()
        try:
            self._opened = await open_tables(self._calls, self._options, self._adopted, self._replaced, self._loads)
        except BaseException:
            await self._calls.close()
            raise
        self.epoch = self._opened.life.epoch

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.life.end()
        await self._calls.close()

    async def ping(self) -> None:
        await self._open.registry.ping()

    def _adopted(self, key: Key, body: bytes) -> Row:
        """The row of a record of Joblet's. Who knows how may be told later than the engine was made."""
        return self.adopt(key, body)

    @property
    def _open(self) -> Opened:
        if self._opened is None:
            raise Unavailable("the engine is not open")
        self._opened.check_not_barred()
        return self._opened

    @property
    def _life(self) -> Life:
        return self._open.life

    # --- preparing ---------------------------------------------------------------------------------------------------

    async def prepare(self, *, dry_run: bool) -> list[Step]:
        await self._calls.open()
        try:
            wanted = Wanted.of(self._options)
            preparation = Preparation(self._calls, wanted, dry_run=dry_run)
            steps = await preparation.run(self._index_keys_of)
            if preparation.is_whole and not dry_run:
                found = await inspect(self._calls, wanted)
                fetcher = fetcher_on(self._calls, self._options, found.key, self._adopted)
                await Registry(fetcher).all_walked()
            return steps
        finally:
            await self._calls.close()

    def _index_keys_of(self, item: Item) -> Item | None:
        """What an item of Joblet's own needs to be in the indexes; None when no row can be made of it."""
        key = next(name for name in JOB_KEYS if name in item)
        fetcher = fetcher_on(self._calls, self._options, key, self._adopted)
        try:
            return index_keys(Found(fetcher.row_of(item, (JOB, item[key]["S"])), item))
        except StateError as problem:
            log.warning("job_not_indexed", id=item[key]["S"], why=problem.text)
            return None

    # --- rows --------------------------------------------------------------------------------------------------------

    def guess(self, key: Key) -> Guess | None:
        known = None if self._opened is None else self._opened.life.memory.get(key)
        return None if known is None or known.row is None else Guess(known.row)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        if not keys:
            return []
        found = await self._life.committer.read(list(dict.fromkeys(keys)))
        return [found[key].row if key in found else None for key in keys]

    async def query(self, query: Query) -> list[Row]:
        return await self._open.walks.query(query)

    async def count(self, query: Query) -> int:
        return await self._open.walks.count(query)

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        return await self.commit_within(batch, self.timeout_seconds)

    async def commit_within(self, batch: Sequence[Unit], seconds: float) -> list[Result]:
        here, until = self._open, asyncio.get_running_loop().time() + seconds
        unnamed = here.kinds.not_named({write.row.kind for unit in batch for write in unit})
        if unnamed or here.life.tails.is_stale:
            try:
                async with asyncio.timeout_at(until):
                    if here.life.tails.is_stale:
                        await here.life.tails.look()
                    await here.kinds.name(unnamed)
            except TimeoutError:
                raise Unavailable("DynamoDB did not take the write in time; nothing was written") from None
        # Everything may be about to be replaced by now.
        return await self._life.committer.commit(batch, until)

    async def kinds(self) -> list[str]:
        return await self._open.kinds.living()

    # --- the log -----------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        return await self._life.following.position()

    async def position_for_queries(self) -> Cursor:
        return await self._life.following.position_for_queries()

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        return await self._life.following.read(after, limit)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        await self._life.following.grown(after, seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        return await self._life.following.history(key, after, limit)

    async def compact(self, keep: LogKept) -> bool:
        return await self._life.compaction.step(keep)

    # --- the whole ---------------------------------------------------------------------------------------------------

    async def dump(self) -> Dump:
        here = self._open
        life = here.life
        cursor = await life.following.position()
        total = await here.whole.count(await here.kinds.living())
        return Dump(cursor, total, here.whole.rows(life.epoch))

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        self._replacing = True
        try:
            await self._replace(self._open, rows)
        finally:
            self._replacing = False

    async def _replace(self, here: Opened, rows: AsyncIterator[list[Row]]) -> None:
        before = meta_of(await here.registry.look())
        begun = await here.whole.begin(rows, before)
        try:
            await here.leave()
            await here.whole.finish(begun)
            await here.begin_anew()
        except BaseException as problem:
            # There is no way back: it goes on trying to finish, and to take part.
            self._replacing = False
            self._replaced()
            if isinstance(problem, StateError):
                problem.outcome = "unknown"
            raise
        self.epoch = here.life.epoch

    async def check(self) -> list[str]:
        return await self._life.checking.problems()

    async def repair(self) -> list[str]:
        return await self._life.checking.repair()

    def measures(self) -> dict[str, int]:
        found = {"calls": sum(self._calls.made.values()), "callsRepeated": sum(self._calls.repeated.values())}
        return found if self._opened is None else found | self._opened.measures()

    # --- beginning anew ----------------------------------------------------------------------------------------------

    def _replaced(self) -> None:
        """Another daemon replaces everything, or has. Whoever is told of that is not, when it is this one."""
        if not self._replacing and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._begin_anew(), name="dynamodb-anew")

    async def _begin_anew(self) -> None:
        pause = FIRST_ANEW_SECONDS
        while (here := self._opened) is not None:
            try:
                await here.begin_anew()
            except Exception as problem:  # noqa: BLE001 - whatever it is, nothing is served until this was done
                log.warning("not_begun_anew", why=str(problem))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_ANEW_SECONDS)
                continue
            if self.epoch != here.life.epoch:
                self.epoch = here.life.epoch
                log.warning("begun_anew", epoch=self.epoch)
                self.began_anew()
            return
