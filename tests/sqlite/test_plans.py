"""Every statement a list can lead to walks one index: no table is scanned, nothing is sorted, nothing read in vain."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from statesvc.backends.port import NULLABLE_SORTS, Keys, Place, Query, Row, SortField
from statesvc.backends.sqlite.log import End
from statesvc.backends.sqlite.state import _ON_DEMAND, StateFile, StateReader, statement

SORTS: tuple[SortField, ...] = ("created", "updated", "started", "completed", "scheduled", "priority", "status", "id")
TERMS = (
    ("status", "RUNNING"), ("status", ""), ("node", "n1"), ("owner", "job/a"),
    ("label:team", "red"), ("label:team", ""),
)  # fmt: skip


def shapes() -> Iterator[Query]:
    """Every combination of sort, direction, term, bounds and place that the rules can ask for."""
    for sort, descending in itertools.product(SORTS, (False, True)):
        text = sort in ("id", "status")
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
    state = StateFile(path, "epoch", End(0, b""))
    for sort in _ON_DEMAND:
        state.make_index(sort)
    rows = {row.key: row for row in map(record, range(2000))}
    state.apply(rows, list(rows), End(2000, b"x"))
    yield path
    state.close()


def record(number: int) -> Row:
    status = "RUNNING" if number % 100 == 0 else "COMPLETED"
    keys = Keys(
        created=number,
        updated=number,
        status=status,
        node=f"n{number % 7}",
        owner=None,
        started=number,
        labels=(("team", "red"),),
    )
    return Row("job", f"job-{number}", f"u{number}", 1, keys, b"{}")


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
        assert all(" USING " in step or step.startswith("SCAN found") for step in walks), (query, plan)
        assert not [step for step in plan if "TEMP B-TREE" in step], (query, plan)
    assert len(seen) > 100, "the shapes have become fewer: is a sort or a term missing above?"


def test_the_key_of_a_record_is_found_by_its_index(db):
    sql = "SELECT data, checksum FROM record WHERE kind = ? AND id = ?"
    (plan,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", ("job", "a"))]
    assert plan == "SEARCH record USING INDEX record_key (kind=? AND id=?)"


def test_the_shapes_above_cover_every_column_the_statements_name():
    """A new index or term is noticed here before it is forgotten above."""
    source = Path(StateReader.__module__.replace(".", "/") + ".py")
    text = (Path(__file__).parents[2] / source).read_text()
    on_demand = set(re.findall(r'^    "(\w+)": "CREATE INDEX', text, re.MULTILINE))
    assert on_demand | {"created", "id"} == set(SORTS)
    terms = re.search(r"_TERM_COLUMNS = (\{.*\})", text)
    assert terms is not None
    assert set(re.findall(r'"(\w+)":', terms[1])) | {"label"} == {name.split(":")[0] for name, _ in TERMS}


def steps_of(db: apsw.Connection, query: Query) -> int:
    """How many steps of its virtual machine SQLite takes for a query: a measure that no clock is part of."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    sql, values = statement(query)
    db.set_progress_handler(count, 1)
    found = db.execute(sql, values).fetchall()
    db.set_progress_handler(None)
    assert len(found) == min(query.limit, len(found))
    return steps


@pytest.mark.parametrize(
    "query",
    [
        Query(kind="job", limit=10),
        Query(kind="job", limit=10, term=("status", "RUNNING")),
        Query(kind="job", limit=10, term=("node", "n3")),
        Query(kind="job", limit=10, term=("label:team", "red")),
        Query(kind="job", limit=10, sort="updated", descending=False, after=Place(1000, "job-1000")),
        Query(kind="job", limit=10, sort="id", low="job-15", high="job-16"),
    ],
    ids=lambda query: f"{query.sort} {query.term}",
)
def test_a_page_costs_what_it_returns_not_what_is_stored(db, query):
    """Ten of 2,000 records: some twenty steps a record, not the thousands that reading all of them takes."""
    assert steps_of(db, query) < 600
