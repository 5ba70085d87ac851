"""Heeding what another daemon on the same store was told: freeze and thaw, and the floor of fencing tokens.

Owns how soon such an order is known here, and that nothing is written while it may have been missed. Must not know who
gave it. Only for shared engines: elsewhere every order comes by here.

A daemon looks every half second. One that has not been able to for a second and a half looks again before it writes. So
whoever freezes the store knows that, a little later, nobody writes any more: also not a daemon that stood still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statesvc_client.errors import StateError

from .. import logs
from ..backends.port import Engine
from . import own
from .batches import Bar
from .store import Store

log = logs.get(__name__)

LOOK_SECONDS = 0.5
TRUST_SECONDS = 1.5
"""How old what is known may be for writes to be taken without another look."""

FROZEN = Bar("the store is frozen: writes are taken again after thaw")


async def until_heeded(engine: Engine, *, under_way: bool = True) -> None:
    """Return when every daemon heeds an order that was just given: each has looked, or will before it commits. What it
    had `under_way` has ended as well, if that matters."""
    if not engine.immediate:
        await asyncio.sleep(TRUST_SECONDS + (engine.commit_seconds if under_way else 0))


class Heeding:
    """Keeps what is known of the store as a whole fresh."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known_at = store.clock.steady()
        self._looking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Look for as long as the daemon serves."""
        if self._store.engine.immediate:
            return
        self._store.commits.await_orders = self._await_orders
        while True:
            try:
                await self.look()
            except StateError:
                pass  # writes look for themselves, and are told
            except Exception:  # whatever it is, the next look may be better
                log.exception("duty_failed", duty="heeding")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        store = self._store
        began, bar = store.clock.steady(), store.commits.bar
        frozen, tokens = await store.engine.get([own.FREEZE, own.TOKENS])
        store.patience.answered()
        self._known_at = began
        if tokens is not None:
            store.raise_token_floor(tokens.token)
        if store.commits.bar is not bar:
            return  # an order was given here meanwhile: it is newer than what was read
        if bar is None and own.is_ours(frozen):
            store.commits.bar = FROZEN
            log.warning("frozen", why="by order of another daemon")
        elif bar is FROZEN and not own.is_ours(frozen):
            store.commits.bar = None
            log.info("thawed")

    def _await_orders(self) -> Callable[[], Awaitable[None]] | None:
        age = self._store.clock.steady() - self._known_at
        return None if age <= TRUST_SECONDS else self._look_first

    async def _look_first(self) -> None:
        """Many writers may be in doubt at once: one look is enough for all of them."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look(), name="heeding")
        await asyncio.shield(self._looking)
