"""Everybody at once, on one namespace: every record's history has an order, one holder a lease, every job ends once.

That the verdicts would notice is shown on engines that break the port's rules: each of them is found out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from statesvc import logs
from statesvc.backends.port import Cursor, Key, LogEntry, Result, Row, Unit
from tests.daemon.harness import serving
from tests.engines.weak import WeakEngine, WeakStorage
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures
from tests.socket.talking import Daemon, settings_for

SHORT = Plan(operations=1500, jobs=60, cold=40, ttl=1.0)
SLOW = Plan(operations=300, mixed=8, lockers=3, workers=3, jobs=15, hot=4, cold=20, ttl=3.0)
"""For engines that take long over each call."""


def judge(race: Race) -> None:
    print("\n".join(figures(race)))
    assert faults(race) == []
    assert race.story.ops
    assert race.story.completed


# --- daemons as processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_one_daemon_keeps_every_promise_under_a_mixed_load(socket_folder: Path, backend: str):
    with serving(socket_folder, backend=backend) as daemon:
        race = Race([daemon.socket], SHORT)
        asyncio.run(race.run())
        judge(race)


# --- daemons on the weak engine --------------------------------------------------------------------------------------

StartFleet = Callable[[type[WeakEngine]], Awaitable[list[Path]]]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log belongs to the process, which is not ours alone."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setattr(logs, "_write", lambda _: None)


async def start(folder: Path, engine: WeakEngine) -> Daemon:
    folder.mkdir(mode=0o700)
    return await Daemon(engine, settings_for(folder)).start()


@pytest.fixture
async def start_fleet(socket_folder: Path, quiet: None) -> AsyncIterator[StartFleet]:
    """Starts three daemons of this process on one storage."""
    daemons: list[Daemon] = []

    async def start_three(engine: type[WeakEngine]) -> list[Path]:
        storage = WeakStorage(seed=5, unknown=0.1)
        for number in range(3):
            daemons.append(await start(socket_folder / str(number), engine(storage)))  # noqa: PERF401 - to be stopped
        return [socket_folder / str(number) / "s.sock" for number in range(3)]

    yield start_three
    for daemon in daemons:
        await daemon.store.commits.settled()
        assert await daemon.stop() == 0


async def test_daemons_on_the_weak_engine_keep_every_promise_under_a_mixed_load(start_fleet: StartFleet):
    race = Race(await start_fleet(WeakEngine), SHORT)
    await race.run()
    judge(race)


class Late(WeakEngine):
    """Answers some time after it has applied: other daemons see what was written, and build on it, before."""

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        results = await super().commit(batch)
        await asyncio.sleep(self.storage.chance.choice([0.0, 0.01, 0.03]))
        return results


async def test_daemons_on_an_engine_that_answers_late_keep_every_promise(start_fleet: StartFleet):
    race = Race(await start_fleet(Late), SHORT)
    await race.run()
    judge(race)


class Held(WeakEngine):
    """Answers commits of `kv` when it is let; they are applied at once."""

    def __init__(self, storage: WeakStorage) -> None:
        super().__init__(storage)
        self.let = asyncio.Event()
        self.let.set()

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        results = await super().commit(batch)
        if any(write.row.kind == "kv" for unit in batch for write in unit):
            await self.let.wait()
        return results


ASKED_MEANWHILE = {
    "a read": {"op": "get", "kind": "kv", "id": "k"},
    "a refusal": {"op": "update", "kind": "kv", "id": "k", "record": {"by": "late"}, "ifRevision": 7},
}


@pytest.mark.parametrize("asked", ASKED_MEANWHILE.values(), ids=ASKED_MEANWHILE)
async def test_what_another_daemon_acknowledged_is_seen_also_while_an_own_commit_waits_for_its_answer(
    socket_folder: Path, quiet: None, asked: dict[str, Any]
):
    """The own commit was applied long ago, and another was built on it: what it led to is not the newest any more."""
    storage = WeakStorage(seed=1, unknown=0.0)
    held, other = Held(storage), WeakEngine(storage)
    one, two = await start(socket_folder / "0", held), await start(socket_folder / "1", other)
    first, second, through_other = await one.client("a"), await one.client("b"), await two.client("c")
    await through_other.ok("create", kind="kv", record={"id": "k", "by": "birth"})
    held.let.clear()
    first.send({"op": "update", "kind": "kv", "id": "k", "record": {"by": "one"}})
    while storage.rows["kv", "k"].revision < 2:
        await asyncio.sleep(0)
    newest = (await through_other.ok("update", kind="kv", id="k", record={"by": "two"}))["record"]
    second.send(asked)
    await first_turns()
    held.let.set()
    reply = await second.receive()
    assert reply["record"]["revision"] == newest["revision"] == 3
    for daemon in (one, two):
        assert await daemon.stop() == 0


async def first_turns() -> None:
    """Give a request the time to be read, and to wait for what it waits for."""
    for _ in range(200):
        await asyncio.sleep(0)


class Forgetful(WeakEngine):
    """Says that a unit was applied, and did not."""

    def _attempt(self, unit: Unit) -> Result:
        return "applied" if self.storage.chance.random() < 0.02 else super()._attempt(unit)


class Careless(WeakEngine):
    """Applies what was decided on a state that is gone."""

    def _attempt(self, unit: Unit) -> Result:
        result = super()._attempt(unit)
        if result == "conflict" and self.storage.chance.random() < 0.5:
            for row, _, event, _ in unit:
                self.storage._store(row, event)
            return "applied"
        return result


class Lying(WeakEngine):
    """Says that a unit met a conflict, and applied it."""

    def _attempt(self, unit: Unit) -> Result:
        result = super()._attempt(unit)
        return "conflict" if result == "applied" and self.storage.chance.random() < 0.1 else result


class Stale(WeakEngine):
    """Reads what was there a while ago."""

    def __init__(self, storage: WeakStorage) -> None:
        super().__init__(storage)
        self._before: dict[Key, Row | None] = {}

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        rows = await super().get(keys)
        found = [
            self._before.get(key, row) if self.storage.chance.random() < 0.1 else row
            for key, row in zip(keys, rows, strict=True)
        ]
        self._before.update(zip(keys, rows, strict=True))
        return found


class Leaky(WeakEngine):
    """Leaves entries of the log out for one of its readers."""

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        entries = await super().read_log(after, limit)
        return [entry for entry in entries if entry is entries[-1] or self.storage.chance.random() > 0.02]


@pytest.mark.parametrize("engine", [Forgetful, Careless, Lying, Stale, Leaky])
async def test_an_engine_that_breaks_the_rules_is_found_out(start_fleet: StartFleet, engine: type[WeakEngine]):
    race = Race(await start_fleet(engine), Plan(operations=1500, jobs=10, ttl=1.0, settles=2.0, insists=2.0))
    await race.run()
    found = faults(race)
    print(f"{len(found)} faults, such as {found[:3]}")
    assert found


class Tailless(WeakEngine):
    """Once it is told to, says of records few ask for that a write was applied, and did not."""

    is_told = False
    dropped: ClassVar[list[Row]] = []
    """States that were never stored."""

    def _attempt(self, unit: Unit) -> Result:
        is_quiet = len(unit) == 1 and unit[0].row.key[1].startswith("cold-")
        if not (self.is_told and is_quiet):
            return super()._attempt(unit)
        if not unit[0].row.deleted:
            self.dropped.append(unit[0].row)
        return "applied"


async def test_the_last_writes_that_were_acknowledged_and_dropped_are_found_though_nobody_came_by_later(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
):
    """Log, lists and last reads agree with each other, and not with what the writers were told."""
    monkeypatch.setattr(Tailless, "is_told", False)
    monkeypatch.setattr(Tailless, "dropped", [])
    race = Race(
        await start_fleet(Tailless),
        Plan(until_told=True, hot=1, cold=2000, jobs=10, deaths=0.0, ttl=1.0, settles=2.0, insists=2.0),
    )

    async def meanwhile() -> None:
        await race.more(1000)
        monkeypatch.setattr(Tailless, "is_told", True)
        while len(Tailless.dropped) < 10:
            await race.more(1)
        race.end()

    await race.run(meanwhile)
    found = faults(race)
    assert any(": lost: " in fault for fault in found)
    # A state that is not there is lost; a delete that is not there has left everything as it was.
    assert [fault for fault in found if ": lost: " not in fault and ": applied nowhere: delete" not in fault] == []
