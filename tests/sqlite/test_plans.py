"""Every statement a list can lead to walks one index: no table is scanned, nothing is sorted, nothing read in vain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import apsw
import pytest
from msgspec.structs import replace

from statesvc.backends.port import NULLABLE_SORTS, Event, Keys, Place, Query, Row, SortField
from statesvc.backends.sqlite.cache import Waiting
from statesvc.backends.sqlite.log import Change, End
from statesvc.backends.sqlite.state import _ON_DEMAND, HISTORY, KEYS_BEHIND, KINDS, StateFile
from statesvc.backends.sqlite.walks import _TERM_COLUMNS, statement

ALWAYS: tuple[SortField, ...] = ("created", "id", "ready", "due", "deleted")
SORTS: tuple[SortField, ...] = (*ALWAYS, "updated", "started", "completed", "scheduled", "priority", "status")
TERMS = (
    ("status", "RUNNING"), ("status", ""), ("node", "n1"), ("owner", "job/a"),
    ("label:team", "red"), ("label:team", ""), ("label:", "leased"),
    ("status", "RUNNING", ""), ("node", "n1", "n2", "n3"), ("label:team", "red", "blue"),
)  # fmt: skip


def shapes() -> Iterator[Query]:
    """Every combination of sort, direction, term, bounds and place that the rules can ask for."""
    for sort, descending in itertools.product(SORTS, (False, True)):
        text = sort in ("id", "status", "ready")
        bounds = (None, "b" if text else 5), (None, "y" if text else 90)
        terms = (None, *TERMS) if sort == "created" else (None,)
        missing = (False, True) if sort in NULLABLE_SORTS else (False,)
        for term, absent, low, high, placed in itertools.product(terms, missing, *bounds, (False, True)):
            if absent and (low is not None or high is not None):
                continue
            key = None if absent else "m" if text else 50
            after = Place(key, "job-5") if placed else None
            yield Query(
                kind="job", sort=sort, descending=descending, limit=100, term=term, missing=absent,
                low=low, high=high, after=after,
            )  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Iterator[Path]:
    """A state with every index, and enough records for SQLite to care."""
    path = tmp_path_factory.mktemp("plans") / "state.db"
    state = StateFile(path, "epoch", End(0, b""), new=True)
    for sort in _ON_DEMAND:
        state.make_index(sort)
    changes = [Change(Event("created", number), record(number)) for number in range(2000)]
    waiting = Waiting()
    waiting.take(1, changes)
    state.apply(waiting, End(2000, b"x"))
    yield path
    state.close()


def record(number: int) -> Row:
    status = "RUNNING" if number % 100 == 0 else "COMPLETED"
    deleted = number if number % 10 == 9 else 0
    keys = Keys(
        created=number,
        updated=number,
        status=status,
        node=f"n{number % 7}",
        owner=None,
        started=number,
        labels=(("team", "red"),),
        ready=f"{number:05}" if number % 3 == 0 else None,
        due=number if number % 5 == 0 else None,
    )
    return Row("job", f"job-{number}", f"u{number}", 1, keys, b"{}", deleted=deleted)


@pytest.fixture
def db(path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    yield connection
    connection.close()


def test_every_statement_walks_an_index_and_sorts_nothing(db):
    seen = set()
    for query in shapes():
        sql, values = statement(query)
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        seen.add(sql)
        walks = [step for step in plan if step.startswith(("SCAN", "SEARCH"))]
        assert walks, (query, plan)
        assert all(" USING " in step or step.startswith(("SCAN found", "SCAN (sub")) for step in walks), (query, plan)
        # Pages of several values are put in order once more: a page each, not all there is.
        if query.term is None or len(query.term) == 2:
            assert not [step for step in plan if "TEMP B-TREE" in step], (query, plan)
    assert len(seen) > 100, "the shapes have become fewer: is a sort or a term missing above?"


def test_the_key_of_a_record_is_found_by_its_index(db):
    sql = "SELECT data, checksum FROM record WHERE kind = ? AND id = ?"
    (plan,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", ("job", "a"))]
    assert plan == "SEARCH record USING INDEX record_key (kind=? AND id=?)"


def test_kinds_are_found_by_jumping_along_an_index(db):
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {KINDS}")]
    assert sum("SEARCH record USING COVERING INDEX" in step for step in plan) == 2, plan
    assert not [step for step in plan if step.startswith("SCAN record")], plan
    assert steps_of_sql(db, KINDS) < 100


def test_all_keys_are_walked_in_an_index_from_a_place_on(db):
    (plan,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {KEYS_BEHIND}", ("job", "job-5", 10))]
    assert plan == "SEARCH record USING COVERING INDEX record_key ((kind,id)>(?,?))"
    assert db.execute(KEYS_BEHIND, ("job", "job-1", 2)).fetchall() == [("job", "job-10"), ("job", "job-100")]
    assert steps_of_sql(db, KEYS_BEHIND, ("job", "job-5", 10)) < 200


def test_a_history_is_found_by_its_index_from_a_place_on(db):
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {HISTORY}", ("job", "job-5", 3, 10))]
    assert "SEARCH history USING PRIMARY KEY (record=? AND position>?)" in plan
    assert "SEARCH record USING COVERING INDEX record_key (kind=? AND id=?)" in plan
    assert not [step for step in plan if "SCAN" in step and step != "SCALAR SUBQUERY 1"]
    assert db.execute(HISTORY, ("job", "job-5", 0, 10)).fetchall() == [(6,)]


@pytest.mark.parametrize("kept", ["nothing but status", "everything"])
def test_a_write_touches_no_index_of_what_it_leaves_alone(path, kept):
    """A record that moves in its queue, or only changes inside, costs fewer steps than one written anew."""
    state = StateFile(path.parent / f"{kept}.db", "epoch", End(0, b""), new=True)
    rows = [record(number) for number in range(200)]
    applied(state, rows, 1)
    moved = [replace(row, revision=2) for row in rows]
    if kept != "everything":
        moved = [replace(row, keys=replace(row.keys, status="DONE")) for row in moved]
    steps = [applied_steps(state, moved, (), 201), applied_steps(state, moved, rows, 401)]
    state.close()
    assert steps[1] < steps[0] * 0.8, steps


def applied(state: StateFile, rows: list[Row], first: int, stored: Sequence[Row | None] = ()) -> None:
    waiting = Waiting()
    if stored:
        waiting.know([row.key for row in rows], stored)
    waiting.take(first, [Change(None, row) for row in rows])
    state.apply(waiting, End(first + len(rows) - 1, b"x"))


def applied_steps(state: StateFile, rows: list[Row], stored: Sequence[Row | None], first: int) -> int:
    with counting(state.db) as steps:
        applied(state, rows, first, stored)
    return steps[0]


def test_the_shapes_above_cover_every_column_the_statements_name():
    """A new index or term is noticed here before it is forgotten above."""
    assert set(_ON_DEMAND) | set(ALWAYS) == set(SORTS) == set(get_args(SortField))
    assert set(_TERM_COLUMNS) | {"label"} == {name.split(":")[0] for name, *_ in TERMS}


def steps_of(db: apsw.Connection, query: Query) -> int:
    """How many steps of its virtual machine SQLite takes for a query: a measure that no clock is part of."""
    return steps_of_sql(db, *statement(query))


def steps_of_sql(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> int:
    with counting(db) as steps:
        assert db.execute(sql, values).fetchall()
    return steps[0]


@contextmanager
def counting(db: apsw.Connection) -> Iterator[list[int]]:
    steps = [0]

    def count() -> bool:
        steps[0] += 1
        return False

    db.set_progress_handler(count, 1)
    try:
        yield steps
    finally:
        db.set_progress_handler(None)


@pytest.mark.parametrize(
    "query",
    [
        Query(kind="job", limit=10),
        Query(kind="job", limit=10, term=("status", "RUNNING")),
        Query(kind="job", limit=10, term=("node", "n3")),
        Query(kind="job", limit=10, term=("label:team", "red")),
        Query(kind="job", limit=3, term=("status", "RUNNING", "COMPLETED")),
        Query(kind="job", limit=10, sort="updated", descending=False, after=Place(1000, "job-1000")),
        Query(kind="job", limit=10, sort="id", low="job-15", high="job-16"),
        Query(kind="job", limit=10, sort="ready", descending=False),
        Query(kind="job", limit=10, sort="due", descending=False, high=1500),
        Query(kind="job", limit=10, sort="deleted", descending=False, high=1500),
    ],
    ids=lambda query: f"{query.sort} {query.term}",
)
def test_a_page_costs_what_it_returns_not_what_is_stored(db, query):
    """Ten of 2,000 records: some twenty steps a record, not the thousands that reading all of them takes."""
    assert steps_of(db, query) < 600
