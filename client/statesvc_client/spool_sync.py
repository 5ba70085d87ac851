"""Syncing the spool beside the work: the floor the daemon is told follows what is on disk.

Owns when a sync is due and what its failure means. Must not know the spool's format.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from .desk import Desk
from .threads import on_a_thread

log = logging.getLogger("statesvc_client")

SYNC_SECONDS = 0.2
"""How far the numbers the daemon may forget lag behind, with a spool: one sync of the file in this time."""


class SpoolSync:
    """At most one sync at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._under_way = False

    def due(self) -> Coroutine[Any, Any, None] | None:
        """The sync to be run now, if there is one."""
        if self._desk.spool is None or self._under_way:
            return None
        self._under_way = True
        return self._run()

    async def _run(self) -> None:
        """Let the floor follow what is on disk."""
        try:
            await asyncio.sleep(SYNC_SECONDS)
            begun = self._desk.begin_spool_sync()
            if begun is not None:
                await on_a_thread(lambda: self._sync_now(*begun))
        finally:
            self._under_way = False

    def _sync_now(self, fd: int, floor: int) -> None:
        """On a thread of its own, to its end: a descriptor must not be closed under a sync that was given up."""
        try:
            os.fdatasync(fd)
            self._desk.end_spool_sync(floor)
        except OSError as problem:
            log.warning("the spool could not be synced: %s", problem)
            self._desk.spool_sync_failed(fd)
        finally:
            os.close(fd)
