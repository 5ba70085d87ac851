"""A store on each engine with clocks that stand still, and its background duties done by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.port import Engine, Row
from statesvc.store import administration, retention
from statesvc.store.claims import Claims
from statesvc.store.clock import SECOND, Clock
from statesvc.store.duties import Done, Duties
from statesvc.store.racing import Decided
from statesvc.store.records import decode
from statesvc.store.retention import Kept, Retention
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import StateError
from tests.engines.addresses import EVERY, QUICK, caught_up

DAY = 86_400


class HandClock(Clock):
    """Goes forward when told to; the wall clock may be set to anything."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000 * SECOND
        self.run = 1000.0

    def now(self) -> int:
        return self.wall

    def steady(self) -> float:
        return self.run

    def elapsed(self) -> float:
        return self.run

    def forward(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)
        self.run += seconds


class World:
    """One daemon's rules without its socket."""

    def __init__(self, engine: Engine, kept: Kept | None = None, clock: HandClock | None = None) -> None:
        self.engine = engine
        self.clock = clock or HandClock()
        self.store = Store(engine, clock=self.clock)
        self.claims = Claims(self.store)
        self.kept = kept or Kept(30 * DAY, 7 * DAY, 1 << 30, 60)
        self.duties = Duties(self.store, self.claims, Retention(self.store, self.kept))
        self.me = Caller(said_hello=True, client="me", name="me")
        self._seqs = iter(range(1, 1_000_000))

    def text(self, seconds: float = 0) -> str:
        """A time that far from now."""
        return self.store.moment().text(self.clock.wall + int(seconds * SECOND))

    async def write(self, request: Any, caller: Caller | None = None) -> dict[str, Any]:
        """A write to one record; raises why it was refused."""
        who = caller or self.me
        decided: Decided
        if self.engine.immediate:
            decided = self.store.write_now(request, who)
            await self.store.commits.settled()
        else:
            decided = await self.store.write(request, who)
        if decided.refused is not None:
            raise decided.refused
        assert decided.row is not None
        return decode(decided.row.body) if decided.row.body else {}

    async def create(self, name: str, kind: str = "job", **fields: Any) -> dict[str, Any]:
        """A record, QUEUED if it is a job and nothing else is said."""
        if kind in ("job", "task"):
            fields = {"status": "QUEUED", **fields}
        return await self.write(wire.Create(kind=kind, id=name, record=fields))

    async def update(self, name: str, kind: str = "job", token: int | None = None, **fields: Any) -> dict[str, Any]:
        return await self.write(wire.Update(kind=kind, id=name, record=fields, token=token))

    async def get(self, name: str, kind: str = "job") -> dict[str, Any] | None:
        row = await self.row(name, kind)
        return None if row is None or row.deleted else decode(row.body)

    async def status(self, name: str, kind: str = "job") -> str | None:
        found = await self.get(name, kind)
        return None if found is None else found.get("status")

    async def row(self, name: str, kind: str = "job") -> Row | None:
        (row,) = await self.store.look([(kind, name)])
        return row

    async def row_of_new(self, name: str, **fields: Any) -> Row:
        await self.create(name, **fields)
        row = await self.row(name)
        assert row is not None
        return row

    async def claim(self, caller: Caller | None = None, **fields: Any) -> list[dict[str, Any]]:
        await self.caught_up()
        claimed = await self.claims.claim(wire.Claim(**fields), caller or self.me, set())
        return [decode(row.body) for row in claimed.rows]

    async def lock(self, name: str = "lock", holder: str = "a", **fields: Any) -> int | None:
        """The token, or None when another holds it."""
        claimed = await self.claim(kind="lock", id=name, holder=holder, **fields)
        return claimed[0]["lease"]["token"] if claimed else None

    async def renew(self, name: str, token: int, kind: str = "lock", ttl: float | None = None) -> wire.Lease:
        kept, after = await self.store.renew(wire.Renew(kind=kind, id=name, token=token, ttl=ttl))
        if after is not None:
            await after.wait()
        return kept.lease

    async def round(self) -> Done:
        """Whatever is due now, noticed by the engine that may be late too."""
        await self.caught_up()
        if not self.engine.immediate:
            await self.duties.catch_up()
        return await self.duties.round()

    async def pass_by(self, seconds: float) -> Done:
        """Time passes and the duties are done, as they are by a daemon that runs."""
        await self.round()
        self.clock.forward(seconds)
        return await self.round()

    async def caught_up(self) -> None:
        await caught_up(self.engine)

    async def restarted(self) -> World:
        """Another daemon on the same data that knows nothing yet; this one has ended."""
        await self.duties.stop()
        other = World(self.engine, self.kept, self.clock)
        other.store.start()
        return other


async def code_of(attempt: Any) -> str:
    """The code a request is refused with."""
    try:
        await attempt
    except StateError as refused:
        return refused.code
    raise AssertionError("it was not refused")


@pytest.fixture(autouse=True)
def no_other_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has to hear of a freeze here: it would wait for as long as another's commit may take."""

    async def at_once(_: Engine, **__: bool) -> None:
        pass

    for module in (administration, retention):
        monkeypatch.setattr(module, "until_heeded", at_once)


@pytest.fixture(params=QUICK)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine = EVERY[request.param].make(tmp_path)()
    await engine.open()
    made = World(engine)
    made.store.start()
    async with asyncio.timeout(120):
        yield made
        await made.store.stop()
        problems = await engine.check()
        await engine.close()
    assert problems == []
