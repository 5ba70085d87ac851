"""The store against a plain model: any sequence of writes on any engine ends where a dictionary would."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from statesvc.backends.port import Engine
from statesvc.store.clock import Clock
from statesvc.store.listing import list_records
from statesvc.store.racing import Decided
from statesvc.store.records import decode
from statesvc.store.store import Store
from statesvc.store.syncing import sync
from statesvc.store.writes import Caller
from statesvc_client.errors import StateError
from statesvc_client.wire import Create, Delete, Get, List, Request, Sync, Update
from tests.engines.addresses import EVERY, caught_up, examples
from tests.engines.weak import WeakEngine, WeakStorage

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = (
    st.none() | st.integers(0, 3) | st.dictionaries(st.sampled_from("xy"), st.none() | st.integers(0, 3), max_size=2)
)
FIELDS = st.dictionaries(st.sampled_from(["f", "g"]), VALUES, max_size=2)
ORDER = {"PENDING": 0, "RUNNING": 1, "COMPLETED": 2}
STATES = st.sampled_from([None, *ORDER])


class Ticking(Clock):
    """A clock that goes forward and back."""

    def __init__(self) -> None:
        self.at = 1_700_000_000_000_000_000

    def now(self) -> int:
        self.at += 1_000_000_000 if self.at % 3 else -2_000_000_000
        return self.at


def merged(target: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class StoreMachine(RuleBasedStateMachine):
    """Records by name, each a plain dictionary with its revision; tombstones by name."""

    engine_name = "memory"

    def make_engine(self) -> Engine:
        return EVERY[self.engine_name].make(Path(self.folder.name))()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.engine = self.make_engine()
        self.store = Store(self.engine, clock=Ticking())
        self.loop.run_until_complete(self.begin())
        self.model: dict[str, dict[str, Any]] = {}
        self.buried: set[str] = set()
        self.uids: set[str] = set()
        self.last: tuple[Request, int] | None = None
        self.seq = 0
        self.updated: dict[str, int] = {}

    async def begin(self) -> None:
        await self.engine.open()
        self.store.start()

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.stop())
        assert self.loop.run_until_complete(self.engine.check()) == []
        self.loop.run_until_complete(self.engine.close())
        self.loop.close()
        self.folder.cleanup()

    # --- doing -------------------------------------------------------------------------------------------------------

    def do(self, request: Any, caller: Caller) -> Decided | StateError:
        return self.loop.run_until_complete(self._do(request, caller))

    async def _do(self, request: Any, caller: Caller) -> Decided | StateError:
        try:
            if self.engine.immediate:
                decided = self.store.write_now(request, caller)
                await self.store.commits.settled()
            else:
                decided = await self.store.write(request, caller)
        except StateError as refused:
            return refused
        return decided.refused or decided

    def caller(self, hello: bool) -> Caller:
        return Caller(said_hello=True, client="c") if hello else Caller()

    def numbered(self, hello: bool) -> dict[str, Any]:
        self.seq += 1
        return {"seq": self.seq, "floor": max(1, self.seq - 3)} if hello else {}

    def born(self, name: str, fields: dict[str, Any], status: str | None) -> None:
        self.model[name] = {"revision": 1, "status": status, "fields": dict(fields)}
        self.buried.discard(name)

    @rule(name=NAMES, fields=FIELDS, status=STATES, hello=st.booleans())
    def create(self, name, fields, status, hello):
        request = Create(job_id=name, job={**fields, **({"status": status} if status else {})}, **self.numbered(hello))
        result = self.do(request, self.caller(hello))
        if name in self.model:
            assert getattr(result, "code", None) == "exists"
            return
        assert isinstance(result, Decided)
        assert result.row is not None
        assert result.row.uid not in self.uids
        self.uids.add(result.row.uid)
        self.updated.pop(name, None)
        self.born(name, fields, status)
        self.remember(request, hello, 1)

    @rule(name=NAMES, fields=FIELDS, status=STATES, hello=st.booleans(), upsert=st.booleans(), inc=st.integers(0, 2))
    def update(self, name, fields, status, hello, upsert, inc):
        job = {**fields, **({"status": status} if status else {})}
        request = Update(job_id=name, job=job, upsert=upsert, inc={"n": inc} if inc else None, **self.numbered(hello))
        result = self.do(request, self.caller(hello))
        record = self.model.get(name)
        if record is None:
            self.update_of_nothing(request, result, name, fields, status, hello, inc)
            return
        old = record["status"]
        if status and old and not self.may_move(old, status, hello):
            assert getattr(result, "code", None) == "invalid_transition"
            return
        assert isinstance(result, Decided)
        before = record["fields"]
        record["fields"] = merged(before, fields) if hello else {**before, **fields}
        if inc:
            record["fields"]["n"] = record["fields"].get("n", 0) + inc
        record["status"] = status or old
        record["revision"] += 1
        self.remember(request, hello, record["revision"])

    def update_of_nothing(self, request, result, name, fields, status, hello, inc):
        overtook = not hello and status and name not in self.buried
        if not (request.upsert or overtook):
            assert getattr(result, "code", None) == "not_found"
            return
        assert isinstance(result, Decided)
        assert result.row is not None
        assert result.row.uid not in self.uids
        self.uids.add(result.row.uid)
        self.updated.pop(name, None)
        made = merged({}, fields) if hello else dict(fields)
        self.born(name, {**made, **({"n": inc} if inc else {})}, status)
        self.remember(request, hello, 1)

    def may_move(self, old: str, new: str, hello: bool) -> bool:
        if old == new:
            return True
        if hello:
            return (old, new) in {("PENDING", "RUNNING"), ("RUNNING", "COMPLETED")}
        return ORDER[new] > ORDER[old]

    @rule(name=NAMES, hello=st.booleans(), wrong=st.booleans())
    def delete(self, name, hello, wrong):
        record = self.model.get(name)
        revision = None if record is None or not wrong else record["revision"] + 1
        request = Delete(job_id=name, if_revision=revision, **self.numbered(hello))
        result = self.do(request, self.caller(hello))
        if record is None:
            assert getattr(result, "code", None) == "not_found"
        elif wrong:
            assert getattr(result, "code", None) == "conflict"
        else:
            assert isinstance(result, Decided)
            del self.model[name]
            self.buried.add(name)
            self.remember(request, hello, record["revision"] + 1)

    def remember(self, request: Request, hello: bool, revision: int) -> None:
        self.last = (request, revision) if hello else None

    @precondition(lambda self: self.last is not None)
    @rule()
    def send_the_last_write_again(self):
        assert self.last is not None
        request, revision = self.last
        request.again = True  # type: ignore[attr-defined]
        result = self.do(request, self.caller(hello=True))
        assert isinstance(result, Decided)
        assert result.duplicate_of == revision

    @rule(fields=FIELDS, names=st.sets(NAMES, min_size=1))
    def sync(self, fields, names):
        request = Sync(jobs=[{"uuid": name, **fields} for name in sorted(names)])
        report = self.loop.run_until_complete(sync(self.store, request, Caller()))
        applied = unchanged = 0
        for name in names:
            record = self.model.get(name)
            if record is None and name not in self.buried:
                self.born(name, fields, None)
                applied += 1
            elif record is not None:
                after = {**record["fields"], **fields}
                if after == record["fields"]:
                    unchanged += 1
                else:
                    record["fields"] = after
                    record["revision"] += 1
                    applied += 1
        assert (report.applied, report.unchanged) == (applied, unchanged)
        assert {name for name, _ in report.rejected} == names & self.buried

    # --- looking -----------------------------------------------------------------------------------------------------

    @invariant()
    def every_record_is_what_the_model_says(self):
        for name in ("a", "b", "c"):
            row = self.loop.run_until_complete(self.read(name))
            expected = self.model.get(name)
            if expected is None:
                assert row is None
                continue
            record = decode(row.body)
            assert record.get("status") == expected["status"]
            assert record["revision"] == row.revision == expected["revision"]
            own = {field: record[field] for field in record if field in ("f", "g", "n")}
            assert own == expected["fields"]
            assert row.keys.updated >= self.updated.get(name, 0)
            self.updated[name] = row.keys.updated

    async def read(self, name: str) -> Any:
        request = Get(job_id=name)
        if self.engine.immediate:
            row, _ = self.store.get_now(request)
            return row
        return (await self.store.get(request)).row

    @rule()
    def list_everything(self):
        page = self.loop.run_until_complete(self.list_caught_up())
        assert {row.id for row in page.rows} == set(self.model)

    async def list_caught_up(self) -> Any:
        await caught_up(self.engine)
        return await list_records(self.store, List(), Caller(said_hello=True))


class WeakStoreMachine(StoreMachine):
    """The same on an engine that does all an engine may do."""

    def make_engine(self) -> Engine:
        return WeakEngine(WeakStorage(seed=1, unknown=0.3))


def machine_on(name: str) -> type[StoreMachine]:
    """The machine with its records on that engine."""
    if name == "weak":
        return WeakStoreMachine
    return type(f"StoreMachineOn{name.title()}", (StoreMachine,), {"engine_name": name})


@pytest.mark.parametrize("name", list(EVERY))
def test_any_sequence_of_writes_ends_where_the_model_ends(name: str):
    run_state_machine_as_test(
        machine_on(name),
        settings=settings(
            max_examples=examples(name, 40),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
