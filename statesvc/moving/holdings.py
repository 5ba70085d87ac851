"""A store held open here, engine and all, for a move: read, written to, frozen and thawed as a whole.

Owns the order of opening and closing it. Must not know addresses, nor what is moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from ..backends.port import BeingReplaced, DataCorrupt, Engine
from ..store import own
from ..store.administration import Administration
from ..store.adopting import adopted
from ..store.heeding import until_heeded
from ..store.kinds import Kinds
from ..store.store import Store

REPLACED_SECONDS = 90.0
"""How long a store is waited for in which everything is being replaced. Long enough that, if whoever was at it is gone,
this engine finishes it: an earlier run of this very move, as a rule."""

PAUSE_SECONDS = 1.0


class Damaged(Exception):
    """What is stored there cannot be trusted."""

    exit_code = 65


class Holding:
    """An open engine, and the rules for what is done to it as a whole."""

    def __init__(self, engine: Engine, kinds: Kinds, data: Path) -> None:
        self.engine = engine
        self.store = Store(engine, kinds=kinds)
        engine.adopt = partial(adopted, self.store)
        self._administration = Administration(self.store, data)

    async def open(self, say: Callable[[str], None] = lambda _: None) -> Self:
        """Raises `AlreadyRunning` when a daemon has the data to itself. `say` hears what is waited for."""
        self.engine.own()
        try:
            await self._open_engine(say)
            await self._administration.load()
        except DataCorrupt as corrupt:
            await self.engine.close()
            raise Damaged(str(corrupt)) from None
        except BaseException:
            await self.engine.close()
            raise
        self.store.start()
        return self

    async def _open_engine(self, say: Callable[[str], None]) -> None:
        until, said = time.monotonic() + REPLACED_SECONDS, False
        while True:
            try:
                return await self.engine.open()
            except BeingReplaced as replaced:
                if time.monotonic() >= until:
                    raise
                if not said:
                    say(f"{replaced.text}: waiting for it, or to go on with it if nobody does")
                    said = True
            await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        await self._administration.stop()
        await self.store.stop()
        await self.engine.close()

    async def is_frozen(self) -> bool:
        """As it is stored now: where others reach the store, they freeze and thaw it too."""
        return await own.is_there(self.store, own.FREEZE)

    async def freeze(self) -> None:
        """From the return of this on no daemon changes a record there."""
        await self._administration.freeze()

    async def thaw(self) -> None:
        await self._administration.thaw()

    async def until_thaw_is_heeded(self) -> None:
        """Return when every daemon there takes writes: the freeze has just been ended."""
        await until_heeded(self.engine, under_way=False)
