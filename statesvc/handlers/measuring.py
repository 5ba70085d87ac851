"""How things are: stats, stuck, health.

Owns the shape of their replies. Must not count or judge anything.
"""

from __future__ import annotations

from statesvc_client import __version__, wire

from ..answers import Answer, Handler, Session, replied, succeeded
from ..store.health import Health
from ..store.statistics import count_records
from ..store.store import Store
from ..store.stuck import find_stuck


class MeasureHandlers:
    """Ops that look and change nothing."""

    def __init__(self, store: Store, health: Health) -> None:
        self._store = store
        self._health = health

    def table(self) -> dict[type[wire.Request], Handler]:
        return {wire.Stats: self._stats, wire.Stuck: self._stuck, wire.Health: self._report}

    async def _stats(self, request: wire.Stats, _: Session) -> Answer:
        found = await count_records(self._store, request)
        reply = succeeded(
            request,
            total=found.total,
            counts=found.counts,
            durations=found.durations or None,
            truncated=found.truncated,
        )
        return replied(reply, request)

    async def _stuck(self, request: wire.Stuck, _: Session) -> Answer:
        found = await find_stuck(self._store, request)
        return replied(succeeded(request, stuck=found.unmoved, truncated=found.truncated), request)

    async def _report(self, request: wire.Health, _: Session) -> Answer:
        """Answered also while nothing else is: the engine may be away."""
        report, engine = await self._health.report(), self._store.engine
        reply = succeeded(
            request,
            live=True,
            ready=report.ready,
            checks=report.checks,
            measures=report.measures,
            version=__version__,
            backend=engine.name,
            durability=engine.durability,
            epoch=engine.epoch or None,
        )
        return replied(reply, request)
