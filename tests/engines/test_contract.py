"""The contract of the port: what every engine promises to the rules above it.

    commit      a write applies only while the stored row carries the stamp it expects; a unit applies wholly or not at
                all; units of one batch succeed or fail on their own; those that share a record keep their order
    get         the newest committed row, tombstones included, in the order of the keys asked for
    query       living rows of one kind along one index, the same on every engine, page by page
    log         every committed write once, those of one record in order; all in one order where the engine says so
    reopening   keeps everything, or says by a new epoch that it did not

Cursors, waiting and history are in test_contract_log.py, writes that nobody is told of and rows that vanish in
test_contract_hidden.py, cutting, dumping and loading in test_contract_whole.py.

The suite runs on every registered engine and on the weak one. Engines that answer queries late are given the bounded
number of queries they are allowed, engines that answer `unknown` are read back: then all must agree.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statesvc.backends import REGISTRY
from statesvc.backends.port import NULLABLE_SORTS, UNIT_WRITES, Event, Keys, Place, Query, Row, Write, sort_key
from statesvc_client.errors import BadRequest
from tests.engines.addresses import ADDRESSES, Bench
from tests.engines.rows import after, born, buried, by_record, commit, fill, row
from tests.engines.weak import WeakEngine, WeakStorage, walk

SORTS: list[Any] = [
    "created", "updated", "started", "completed", "scheduled", "priority", "status", "id", "ready", "due", "deleted",
]  # fmt: skip
STATUSES = ["", "QUEUED", "RUNNING", "DONE"]


def test_every_registered_engine_has_a_test_address():
    assert set(REGISTRY) == set(ADDRESSES)


# --- commit ----------------------------------------------------------------------------------------------------------


async def test_a_record_that_is_not_there_reads_as_none(bench: Bench):
    assert await bench.engine.get([("job", "a"), ("kv", "a")]) == [None, None]
    assert await bench.engine.get([]) == []


async def test_what_was_committed_is_read_back_as_it_was_given(bench: Bench):
    full = Row(
        "job",
        "job-ü-😀",
        "uid",
        3,
        Keys(-5, 2**63 - 1, "RUNNING", "n", "job/o", 0, -1, 7, 2.5, (("a", "b"), ("ü", ""))),
        b'{"any":"bytes \x00\xff"}',
        b"\x00marks",
    )
    await fill(bench.engine, [full])
    assert await bench.engine.get([full.key]) == [full]
    if bench.engine.immediate:
        assert bench.engine.peek(full.key) == full


async def test_rows_come_in_the_order_of_the_keys_asked_for(bench: Bench):
    a, b = await fill(bench.engine, [row("a"), row("b")])
    assert await bench.engine.get([b.key, ("job", "x"), a.key, b.key]) == [b, None, a, b]


async def test_the_same_id_in_two_kinds_is_two_records(bench: Bench):
    a, b = await fill(bench.engine, [row("x", kind="job"), row("x", kind="kv", uid="other")])
    assert await bench.engine.get([a.key, b.key]) == [a, b]


async def test_a_write_that_expects_no_row_conflicts_with_one(bench: Bench):
    first, *_ = await fill(bench.engine, [row("a")])
    assert await commit(bench.engine, [born("a", uid="late")]) == ["conflict"]
    assert await bench.engine.get([first.key]) == [first]


async def test_a_write_that_expects_a_row_conflicts_when_there_is_none(bench: Bench):
    assert await commit(bench.engine, [(after(row("a")),)]) == ["conflict"]
    assert await bench.engine.get([("job", "a")]) == [None]


async def test_a_write_applies_on_the_stamp_it_expects_and_on_no_other(bench: Bench):
    (first,) = await fill(bench.engine, [row("a")])
    second = after(first)
    assert await commit(bench.engine, [(second,)]) == ["applied"]
    for wrong in (first.stamp, ("other", 2), ("uid-a", 3), ("uid-a", 0)):
        late = Write(row("a", revision=9), wrong, Event("updated", 9))
        assert await commit(bench.engine, [(late,)]) == ["conflict"]
    assert await bench.engine.get([first.key]) == [second.row]


async def test_a_tombstone_is_a_row_with_a_stamp_of_its_own(bench: Bench):
    (first,) = await fill(bench.engine, [row("a", status="RUNNING")])
    gone = buried(first)
    assert await commit(bench.engine, [(gone,)]) == ["applied"]
    assert await bench.engine.get([first.key]) == [gone.row]
    assert await commit(bench.engine, [born("a", uid="new")]) == ["conflict"]
    assert await commit(bench.engine, [(after(first),)]) == ["conflict"]
    again = Write(row("a", uid="new"), gone.row.stamp, Event("created", 9))
    assert await commit(bench.engine, [(again,)]) == ["applied"]
    assert await bench.engine.get([first.key]) == [again.row]


async def test_a_tombstone_is_seen_by_get_and_by_no_query(bench: Bench):
    rows = await fill(bench.engine, [row("a", labels=(("x", "y"),), owner="o"), row("b", labels=(("x", "y"),))])
    await commit(bench.engine, [(buried(rows[0]),)])
    await bench.caught_up()
    for query in (
        Query(kind="job", limit=9),
        Query(kind="job", limit=9, sort="id"),
        Query(kind="job", limit=9, sort="status", missing=True),
        Query(kind="job", limit=9, term=("label:x", "y")),
        Query(kind="job", limit=9, term=("status", "")),
    ):
        assert await bench.engine.query(query) == [rows[1]], query


async def test_a_unit_of_several_records_applies_wholly(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    unit = (after(a), *born("b"), *born("b", kind="kv", uid="kv-b"))
    assert await commit(bench.engine, [unit]) == ["applied"]
    assert await bench.engine.get([write.row.key for write in unit]) == [write.row for write in unit]


@pytest.mark.parametrize("place", range(3))
async def test_a_unit_with_one_stale_write_applies_not_at_all(bench: Bench, place: int):
    rows = await fill(bench.engine, [row("a"), row("b"), row("c")])
    before = await bench.engine.position()
    unit = [after(each) for each in rows]
    unit[place] = Write(unit[place].row, ("uid", 77), unit[place].event)
    assert await commit(bench.engine, [tuple(unit)]) == ["conflict"]
    assert await bench.engine.get([each.key for each in rows]) == rows
    assert await bench.engine.position() == before


async def test_units_of_one_batch_succeed_or_fail_on_their_own(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    batch = [born("b"), born("a", uid="late"), (after(a),), (after(row("x")),), born("c")]
    assert await commit(bench.engine, batch) == ["applied", "conflict", "applied", "conflict", "applied"]
    found = await bench.engine.get([("job", name) for name in "abcx"])
    assert [None if each is None else each.revision for each in found] == [2, 1, 1, None]


async def test_a_unit_may_build_on_an_earlier_one_of_its_batch(bench: Bench):
    one = row("a")
    two = after(one)
    three = after(two.row)
    batch = [born("a"), born("b"), (two,), (three,), (after(one),)]
    results = await commit(bench.engine, batch)
    assert results[:2] == ["applied", "applied"]
    # Where a step was answered `unknown` and not applied, those behind it were refused: they are sent again.
    for step in (two, three):
        await commit(bench.engine, [(step,)])
    assert await bench.engine.get([one.key]) == [three.row]
    if bench.address.sure:
        assert results == ["applied", "applied", "applied", "applied", "conflict"]


async def test_a_refused_unit_leaves_nothing_for_later_ones_to_build_on(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    wrong = Write(row("a", revision=5), ("uid-a", 4), Event("updated", 1))
    follower = after(wrong.row)
    assert await commit(bench.engine, [(wrong,), (follower,)]) == ["conflict", "conflict"]
    assert await bench.engine.get([a.key]) == [a]


async def test_nothing_is_built_on_a_refused_unit_though_the_stored_stamp_is_the_same(bench: Bench):
    """Another was faster: its row has the very stamp that the refused one would have made."""
    (a,) = await fill(bench.engine, [row("a")])
    theirs = Write(row("a", revision=2, node="theirs"), a.stamp, Event("updated", 1))
    assert await commit(bench.engine, [(theirs,)]) == ["applied"]
    ours = Write(row("a", revision=2, node="ours"), a.stamp, Event("updated", 1))
    assert await commit(bench.engine, [(ours,), (after(ours.row),), born("b")]) == ["conflict", "conflict", "applied"]
    assert await bench.engine.get([a.key]) == [theirs.row]


async def test_an_empty_batch_is_fine(bench: Bench):
    assert await bench.engine.commit([]) == []


async def test_a_unit_may_hold_as_many_writes_as_the_port_says(bench: Bench):
    unit = tuple(write for number in range(UNIT_WRITES) for write in born(f"job-{number:03}"))
    assert await commit(bench.engine, [unit]) == ["applied"]
    await bench.caught_up()
    assert len(await bench.engine.query(Query(kind="job", limit=1000))) == UNIT_WRITES


async def test_commits_at_once_on_one_stamp_let_one_win(bench: Bench):
    """Nobody but the group commit calls, one call at a time; an engine is safe all the same."""
    (a,) = await fill(bench.engine, [row("a")])
    rivals = [Write(row("a", revision=2, node=f"n{n}"), a.stamp, Event("updated", n)) for n in range(8)]
    results = await asyncio.gather(*(commit(bench.engine, [(rival,)]) for rival in rivals))
    assert sorted((result for [result] in results), key=str) == ["applied", *["conflict"] * 7]
    won = rivals[results.index(["applied"])].row
    assert await bench.engine.get([a.key]) == [won]


async def test_records_written_and_read_at_once_stay_whole(bench: Bench):
    """Writers with labels, readers of every index: nothing is lost, nothing breaks."""

    async def write(name: str) -> None:
        (last,) = await fill(bench.engine, [row(name, labels=(("n", "0"),))])
        for number in range(1, 12):
            step = after(last, labels=(("n", str(number)),), status=STATUSES[1 + number % 3])
            while await commit(bench.engine, [(step,)]) != ["applied"]:
                pass
            last = step.row

    async def read(sort: Any) -> None:
        for _ in range(12):
            found = await bench.engine.query(Query(kind="job", limit=50, sort=sort, descending=False))
            ids = [each.id for each in found]
            assert len(ids) == len(set(ids))
            await asyncio.sleep(0)

    await asyncio.gather(*(write(f"job-{n}") for n in range(8)), *(read(sort) for sort in SORTS))
    await bench.caught_up()
    found = await bench.engine.query(Query(kind="job", limit=50, term=("label:n", "11")))
    assert sorted(each.id for each in found) == [f"job-{n}" for n in range(8)]
    assert {each.revision for each in found} == {12}


# --- query -----------------------------------------------------------------------------------------------------------


def assorted(count: int = 60, seed: int = 5) -> list[Row]:
    """Rows with few distinct keys, so that ties are common, some of them missing."""
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return value if chance.random() < 0.7 else None

    return [
        row(
            chance.choice(["a", "B", "é", "😀", "\uffff", "job-"]) + f"{number:02}",
            kind=chance.choice(["job", "job", "job", "kv"]),
            uid=f"u{number}",
            created=chance.randint(-3, 3),
            updated=chance.randint(0, 3),
            status=maybe(chance.choice(STATUSES[1:])),
            node=maybe(chance.choice(["n1", "n2"])),
            owner=maybe(chance.choice(["job/o", "worker/w"])),
            started=maybe(chance.randint(0, 3)),
            completed=maybe(chance.randint(0, 3)),
            scheduled=maybe(2**63 - chance.randint(1, 3)),
            priority=maybe(chance.choice([-1, 0, 0.5, 1, 1.5, 2])),
            labels=tuple(sorted({name: chance.choice("xy") for name in chance.sample(["", "a", "b", "c"], 2)}.items())),
            ready=maybe(chance.choice(["0", "1", "10", "é"])),
            due=maybe(chance.randint(-1, 2)),
            deleted=chance.choice([0, 0, 0, chance.randint(1, 3)]),
        )
        for number in range(count)
    ]


async def paged(bench: Bench, query: Query, limit: int) -> list[Row]:
    """All rows of a query, `limit` at a time."""
    found: list[Row] = []
    place: Place | None = query.after
    while True:
        page = await bench.engine.query(
            Query(
                kind=query.kind,
                sort=query.sort,
                descending=query.descending,
                missing=query.missing,
                term=query.term,
                low=query.low,
                high=query.high,
                after=place,
                limit=limit,
            )
        )
        found += page
        assert len(page) <= limit
        if len(page) < limit:
            return found
        last = page[-1]
        place = Place(sort_key(last, query.sort), last.id)


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("sort", SORTS)
async def test_every_sort_order_is_the_same_on_every_engine(bench: Bench, sort: Any, descending: bool):
    rows = await fill(bench.engine, assorted())
    await bench.caught_up()
    for missing in (False, True) if sort in NULLABLE_SORTS else (False,):
        query = Query(kind="job", sort=sort, descending=descending, missing=missing, limit=1000)
        expected = walk(rows, query)
        assert expected
        for limit in (1, 7, 1000):
            assert await paged(bench, query, limit) == expected


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize(
    "term",
    [
        *[("status", value) for value in [*STATUSES, "OTHER"]],
        *[("node", value) for value in ("", "n1", "n2")],
        *[("owner", value) for value in ("", "job/o")],
        *[(f"label:{name}", value) for name in ("", "a", "b", "z") for value in ("x", "y", "")],
    ],
    ids=lambda term: f"{term[0]}={term[1]}",
)
async def test_a_term_narrows_a_walk_by_creation(bench: Bench, term: tuple[str, str], descending: bool):
    rows = await fill(bench.engine, assorted())
    await bench.caught_up()
    for low, high in ((None, None), (0, 2)):
        query = Query(kind="job", descending=descending, term=term, low=low, high=high, limit=1000)
        for limit in (3, 1000):
            assert await paged(bench, query, limit) == walk(rows, query)


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
async def test_a_record_with_several_of_the_values_asked_for_is_met_once(bench: Bench, descending: bool):
    leased = tuple(("", value) for value in ("leased", "origin:1", "origin:2"))
    rows = await fill(
        bench.engine,
        [
            row(f"job-{n}", created=n % 3, status=STATUSES[n % 4] or None, labels=leased[n % 3 : 1 + n % 4])
            for n in range(20)
        ],
    )
    await bench.caught_up()
    for term in (
        ("label:", "leased", "origin:1", "origin:2"),
        ("label:", "origin:2", "leased", "leased", "other"),
        ("status", "QUEUED", "", "QUEUED"),
        ("status",),
        ("label:",),
    ):
        query = Query(kind="job", descending=descending, term=term, limit=1000)
        for limit in (1, 3, 1000):
            assert await paged(bench, query, limit) == walk(rows, query), term
        assert await bench.engine.count(query) == len(walk(rows, query))


async def test_a_label_with_an_empty_value_is_a_label(bench: Bench):
    rows = await fill(bench.engine, [row("a", labels=(("x", ""),)), row("b")])
    await bench.caught_up()
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:x", ""))) == rows[:1]


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
async def test_low_is_inclusive_and_high_is_exclusive(bench: Bench, descending: bool):
    rows = await fill(bench.engine, assorted())
    await bench.caught_up()
    for sort in ("created", "updated", "started", "completed", "priority", "due", "deleted"):
        for low, high in ((0, 2), (None, 1), (1, None), (2, 2), (3, 1), (-(2**63) + 1, 2**63 - 1)):
            query = Query(kind="job", sort=sort, descending=descending, low=low, high=high, limit=1000)
            assert await paged(bench, query, 4) == walk(rows, query), (sort, low, high)


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
async def test_a_place_outside_the_bounds_does_not_widen_them(bench: Bench, descending: bool):
    rows = await fill(bench.engine, assorted())
    await bench.caught_up()
    for place in (Place(-9, "a"), Place(9, "a"), Place(1, ""), Place(1, "\U0010ffff")):
        query = Query(kind="job", descending=descending, low=0, high=2, after=place, limit=1000)
        assert await bench.engine.query(query) == walk(rows, query), place


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize(
    ("low", "high"), [("a", "b"), ("é", "ê"), ("😀", "😁"), ("\uffff", None), ("", "B~"), ("b", "a")]
)
async def test_ids_are_walked_in_the_order_of_their_code_points(
    bench: Bench, descending: bool, low: str | None, high: str | None
):
    rows = await fill(bench.engine, assorted())
    await bench.caught_up()
    query = Query(kind="job", sort="id", descending=descending, low=low, high=high, limit=1000)
    for limit in (2, 1000):
        assert await paged(bench, query, limit) == walk(rows, query)


async def test_a_kind_nobody_wrote_is_empty(bench: Bench):
    await fill(bench.engine, assorted(5))
    await bench.caught_up()
    for sort in SORTS:
        assert await bench.engine.query(Query(kind="network", sort=sort, limit=10)) == []


async def test_a_row_moves_in_every_index_when_its_keys_change(bench: Bench):
    keys: dict[str, Any] = {"status": "QUEUED", "node": "n1", "owner": "o1", "priority": 1, "labels": (("a", "x"),)}
    (first,) = await fill(bench.engine, [row("a", **keys)])
    for sort in SORTS:
        await bench.engine.query(Query(kind="job", sort=sort, limit=9))
    step = after(first, created=1, status="RUNNING", node="n2", started=5, labels=(("a", "y"), ("b", "x")))
    await commit(bench.engine, [(step,)])
    await bench.caught_up()
    seen = {
        term: await bench.engine.query(Query(kind="job", term=term, limit=9))
        for term in (
            ("status", "QUEUED"), ("status", "RUNNING"), ("node", "n1"), ("node", "n2"), ("owner", "o1"), ("owner", ""),
            ("label:a", "x"), ("label:a", "y"), ("label:b", "x"),
        )
    }  # fmt: skip
    held = {("status", "RUNNING"), ("node", "n2"), ("owner", ""), ("label:a", "y"), ("label:b", "x")}
    assert seen == {term: [step.row] if term in held else [] for term in seen}
    assert await bench.engine.query(Query(kind="job", sort="priority", limit=9)) == []
    assert await bench.engine.query(Query(kind="job", sort="started", limit=9)) == [step.row]


_bounds = st.none() | st.integers(-4, 4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.builds(
            lambda name, created, status, priority, labels: row(
                name, uid="u", created=created, status=status, priority=priority, labels=tuple(sorted(labels.items()))
            ),
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=3),
            st.integers(-3, 3),
            st.sampled_from([None, "a", "b"]),
            st.none() | st.integers(-2, 2) | st.sampled_from([0.5, -0.5]),
            st.dictionaries(st.sampled_from("kl"), st.sampled_from(["", "v"])),
        ),
        max_size=12,
        unique_by=lambda each: each.id,
    ),
    sort=st.sampled_from(["created", "priority", "status", "id"]),
    descending=st.booleans(),
    low=_bounds,
    high=_bounds,
    limit=st.integers(1, 5),
)
async def test_any_walk_over_any_rows_is_what_the_plain_model_says(bench, rows, sort, descending, low, high, limit):
    # The engine lives through all examples; a kind of its own keeps each to itself.
    kind = f"k{random.Random(repr(rows) + repr((sort, descending, low, high, limit))).getrandbits(60):x}"
    mine = [Row(kind, each.id, each.uid, 1, each.keys, b"{}") for each in rows]
    if not any(await bench.engine.get([each.key for each in mine])):
        await fill(bench.engine, mine)
    await bench.caught_up()
    bounds = {} if sort in ("id", "status") else {"low": low, "high": high}
    query = Query(kind=kind, sort=sort, descending=descending, limit=1000, **bounds)
    assert await paged(bench, query, limit) == walk(mine, query)


# --- the log ---------------------------------------------------------------------------------------------------------


async def test_a_new_store_has_an_empty_log(bench: Bench):
    assert await bench.engine.read_log("", 10) == []
    assert await bench.engine.read_log(await bench.engine.position(), 10) == []


async def test_every_applied_write_is_in_the_log_once_and_a_refused_one_is_not(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    step, gone = after(a), None
    await commit(bench.engine, [(step,), born("b"), born("a", uid="refused")])
    gone = buried(step.row)
    await commit(bench.engine, [(gone,)])
    log = await bench.engine.read_log("", 100)
    assert len(log) == len({entry.cursor for entry in log}) == 4
    assert await bench.engine.position() == log[-1].cursor
    assert [(entry.event, entry.row) for entry in log if entry.row.id == "a"] == [
        (Event("created", 1), a),
        (step.event, step.row),
        (gone.event, gone.row),
    ]


async def test_the_log_is_read_page_by_page(bench: Bench):
    await fill(bench.engine, [row(f"job-{number:02}") for number in range(23)])
    for number in range(5):
        await commit(bench.engine, [born(f"late-{number}")])
    whole = await bench.engine.read_log("", 1000)
    assert len(whole) == 28
    for limit in (1, 5, 23, 28, 29):
        read, cursor = [], ""
        while page := await bench.engine.read_log(cursor, limit):
            assert len(page) <= limit
            read += page
            cursor = page[-1].cursor
        assert sorted(entry.row.id for entry in read) == sorted(entry.row.id for entry in whole)
        assert read == whole or not bench.address.one_order
    assert await bench.engine.read_log(whole[-1].cursor, 10) == []
    rest = await bench.engine.read_log(whole[9].cursor, 100)
    assert {entry.row.id for entry in rest} == {entry.row.id for entry in whole[10:]}


async def test_the_log_of_one_record_is_in_the_order_of_its_revisions(bench: Bench):
    names = [f"job-{number}" for number in range(6)]
    newest = {each.id: each for each in await fill(bench.engine, [row(name) for name in names])}
    for _ in range(4):
        steps = [after(newest[name]) for name in names]
        assert set(await commit(bench.engine, [(step,) for step in steps])) == {"applied"}
        newest = {step.row.id: step.row for step in steps}
    log = await bench.engine.read_log("", 1000)
    for name in names:
        assert [entry.row.revision for entry in log if entry.row.id == name] == [1, 2, 3, 4, 5]
    if bench.address.one_order:
        assert [entry.row.id for entry in log] == names * 5


async def test_the_writes_of_one_unit_stand_together_in_the_log(bench: Bench):
    unit = (*born("a"), *born("b"), *born("c"))
    await commit(bench.engine, [born("x"), unit, born("y")])
    ids = [entry.row.id for entry in await bench.engine.read_log("", 10)]
    assert sorted(ids) == ["a", "b", "c", "x", "y"]
    if bench.address.one_order:
        at = ids.index("a")
        assert ids[at : at + 3] == ["a", "b", "c"]


async def test_what_was_committed_before_the_position_was_read_is_not_behind_it(bench: Bench):
    await fill(bench.engine, [row("a"), row("b")])
    position = await bench.engine.position()
    await fill(bench.engine, [row("c")])
    assert [entry.row.id for entry in await bench.engine.read_log(position, 10)] == ["c"]


# --- a life of its own -----------------------------------------------------------------------------------------------


async def test_an_open_engine_answers_a_ping(bench: Bench):
    await bench.engine.ping()


async def test_an_engine_names_itself_and_how_safe_a_commit_is(bench: Bench):
    assert bench.engine.name == ("redis" if bench.name == "cluster" else bench.name)
    assert bench.engine.durability in {"memory", "os", "disk", "replicated"}
    assert bench.engine.epoch


async def test_reopening_keeps_everything_or_says_so_by_a_new_epoch(bench: Bench):
    rows = await fill(bench.engine, assorted(20))
    await commit(bench.engine, [(buried(rows[0]),), (after(rows[1], labels=(("a", "z"),)),)])
    await bench.caught_up()
    whole = Query(kind="job", limit=1000)
    before = (
        await bench.engine.get([each.key for each in rows]),
        await bench.engine.query(whole),
        by_record(await bench.engine.read_log("", 1000)),
        await bench.engine.position(),
        bench.engine.epoch,
    )
    engine = await bench.reopened()
    found = (
        await engine.get([each.key for each in rows]),
        await engine.query(whole),
        by_record(await engine.read_log("", 1000)),
        await engine.position(),
        engine.epoch,
    )
    if bench.address.keeps:
        assert found == before
        step = after(rows[2])
        assert await commit(engine, [(step,), born(rows[2].id, kind=rows[2].kind)]) == ["applied", "conflict"]
    else:
        assert found[:3] == ([None] * len(rows), [], {})
        assert engine.epoch != before[4]


# --- what only the weak engine does ----------------------------------------------------------------------------------


async def test_the_weak_engine_refuses_a_unit_that_is_too_large_and_stores_nothing():
    engine = WeakEngine()
    unit = tuple(write for number in range(UNIT_WRITES + 1) for write in born(f"job-{number}"))
    with pytest.raises(BadRequest, match=str(UNIT_WRITES)):
        await engine.commit([born("a"), unit])
    assert await engine.get([("job", "a"), ("job", "job-0")]) == [None, None]
    assert await engine.read_log("", 10) == []


async def test_the_weak_engine_is_as_weak_as_it_says():
    """Without this the suite above might run on an engine that never misbehaves."""
    storage = WeakStorage(seed=3)
    engine = WeakEngine(storage)
    names = [f"job-{number:02}" for number in range(40)]
    results = await engine.commit([born(name) for name in names])
    stored = [each is not None for each in await engine.get([("job", name) for name in names])]
    of_unknown = {kept for kept, result in zip(stored, results, strict=True) if result == "unknown"}
    assert of_unknown == {True, False}
    assert all(kept for kept, result in zip(stored, results, strict=True) if result == "applied")
    counts = [len(await engine.query(Query(kind="job", limit=100))) for _ in range(4)]
    assert counts[0] < counts[-1] == sum(stored)
    logged = [entry.row.id for entry in await engine.read_log("", 100)]
    assert logged != sorted(logged)
    assert logged != [entry.row.id for entry in await WeakEngine(storage).read_log("", 100)]
    assert await engine.check() == []


async def test_two_daemons_on_one_weak_storage_see_each_other():
    storage = WeakStorage(seed=4, unknown=0)
    one, two = WeakEngine(storage), WeakEngine(storage)
    (a,) = await fill(one, [row("a")])
    assert await two.get([a.key]) == [a]
    assert await two.commit([(after(a),)]) == ["applied"]
    assert await one.commit([(after(a),)]) == ["conflict"]
    assert one.epoch == two.epoch
