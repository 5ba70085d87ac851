"""Any sequence of writes leads every engine to where a plain model gets: rows, walks, kinds, histories and the log."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from statesvc.backends.port import REMOVED, Event, Key, Query, Row, Write
from tests.engines.addresses import Bench
from tests.engines.rows import by_record, commit, row
from tests.engines.weak import walk

STEPS = ("create", "update", "quiet", "bury", "remove", "late", "reopen", "read")
WALKS: tuple[dict[str, Any], ...] = (
    *({"sort": sort, "descending": False} for sort in ("id", "ready", "due", "deleted", "status", "created")),
    {"term": ("label:", "leased")},
    {"term": ("status", "A", "B")},
    {"sort": "status", "missing": True},
)

KINDS = itertools.count()

_keys = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["A", "B"]),
        "ready": st.sampled_from(["1", "2"]),
        "due": st.integers(0, 2),
        "created": st.integers(0, 1),
        "node": st.sampled_from(["n", "m"]),
        "labels": st.sampled_from([(), (("", "leased"),), (("", "leased"), ("x", "y"))]),
    },
)


class Model:
    """What is stored and what was told, without an engine."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows: dict[Key, Row] = {}
        self.told: dict[Key, list[tuple[Event, Row]]] = {}
        self.log: dict[Key, list[tuple[Event, Row]]] = {}
        self._uids = 0

    def write(self, step: str, name: str, keys: dict[str, Any]) -> Write | None:
        """The write a step stands for; None when it makes no sense now."""
        stored = self.rows.get((self.kind, name))
        if step == "late":
            return Write(self._row(name, 9, keys), ("nobody", 8), Event("updated", 9))
        if step == "create" and (stored is None or stored.deleted):
            self._uids += 1
            return Write(self._row(name, 1, keys), None if stored is None else stored.stamp, Event("created", 1))
        if stored is None or step == "create":
            return None
        if step == "remove":
            return Write(replace(stored, deleted=REMOVED), stored.stamp, None)
        if stored.deleted:
            return None
        if step == "quiet":
            return Write(replace(stored, keys=self._row(name, 1, keys).keys, token=5), stored.stamp, None)
        changed = replace(self._row(name, stored.revision + 1, keys), uid=stored.uid)
        if step == "bury":
            return Write(replace(changed, deleted=7), stored.stamp, Event("deleted", 3))
        return Write(changed, stored.stamp, Event("updated", 2))

    def _row(self, name: str, revision: int, keys: dict[str, Any]) -> Row:
        return row(name, kind=self.kind, uid=f"u{self._uids}", revision=revision, **keys)

    def take(self, write: Write) -> None:
        key = write.row.key
        if write.event is not None:
            self.told.setdefault(key, []).append((write.event, write.row))
            self.log.setdefault(key, []).append((write.event, write.row))
        if write.row.deleted == REMOVED:
            del self.rows[key]
            self.told.pop(key, None)
        else:
            self.rows[key] = write.row


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abc"), _keys), max_size=25),
    together=st.integers(1, 6),
)
async def test_any_sequence_of_writes_leads_to_what_the_model_says(bench: Bench, steps: Any, together: int):
    # The engine lives through all examples; a kind of its own keeps each to itself.
    kind = f"k{next(KINDS)}"
    model = Model(kind)
    start = await bench.engine.position()
    batch: list[Write] = []
    for step, name, keys in steps:
        if step == "reopen" and bench.address.keeps:
            await send(bench, batch)
            await bench.reopened()
        elif step == "read":
            await send(bench, batch)
            await compare(bench, model, start)
        elif (write := model.write(step, name, keys)) is not None:
            batch.append(write)
            if step != "late":
                model.take(write)
            if len(batch) >= together:
                await send(bench, batch)
    await send(bench, batch)
    await compare(bench, model, start)


async def send(bench: Bench, batch: list[Write]) -> None:
    """One commit; where an answer may not be sure nothing is built on it before it was read back."""
    writes, batch[:] = list(batch), []
    for some in [writes] if bench.address.sure else [[write] for write in writes]:
        results = await commit(bench.engine, [(write,) for write in some])
        assert results == ["conflict" if is_late(write) else "applied" for write in some]


def is_late(write: Write) -> bool:
    return write.expects is not None and write.expects[0] == "nobody"


async def compare(bench: Bench, model: Model, start: str) -> None:
    engine, keys = bench.engine, [(model.kind, name) for name in "abc"]
    await bench.caught_up()
    assert await engine.get(keys) == [model.rows.get(key) for key in keys]
    for shape in WALKS:
        query = Query(kind=model.kind, limit=100, **shape)
        assert await engine.query(query) == walk(model.rows.values(), query), shape
    assert (model.kind in await engine.kinds()) == bool(model.rows)
    for key in keys:
        told = [(entry.event, entry.row) for entry in await engine.history(key, "", 100)]
        assert told == model.told.get(key, [])
    assert by_record(await engine.read_log(start, 1000)) == model.log
